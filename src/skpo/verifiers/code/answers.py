"""Gold answers of the `code` verifier: tests, in the forms that public data sets have.

HumanEval:     {"test": "def check(candidate): ...", "entry_point": "name", "prompt": "def name(...): ..."}
assert list:   ["assert f(1) == 2", ...] or {"tests": [...], "setup": "import math"} (MBPP: `test_list`, `test_setup_code`)
input/output:  {"cases": [{"input": "1 2\\n", "output": "3\\n"}, ...]} or {"inputs": [...], "outputs": [...]}
functional:    the same with "function": "name" or "Solution.name"; an input is one JSON value a line for each argument,
               or a list of arguments; an output is a JSON value.
"""

from __future__ import annotations

import base64
import io
import json
import pickle
import zlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from decimal import Decimal, InvalidOperation
from typing import Any

from skpo.errors import VerifierError


@dataclass(frozen=True)
class Tests:
    """Either `cases` (whole programs) or `work` (what the judge runs: setup, tests, entry, function, calls).

    prompt, entry: how a continuation becomes a program.
    """

    cases: tuple[tuple[str, str], ...] = ()
    work: Mapping[str, Any] = field(default_factory=dict)
    prompt: str = ""
    entry: str | None = None


def read(answer: Any) -> Tests:
    """The tests of a gold answer, given as it is or as JSON. Raises `VerifierError` for any other form."""
    if isinstance(answer, str):
        try:
            answer = json.loads(answer)
        except ValueError:
            raise _bad(answer) from None
    if isinstance(answer, list) and answer and all(isinstance(test, str) for test in answer):
        answer = {"tests": answer}
    if isinstance(answer, list):
        answer = {"cases": answer}
    if not isinstance(answer, Mapping):
        raise _bad(answer)
    if "test" in answer:
        return _human_eval(answer)
    if "tests" in answer:
        tests = answer["tests"]
        if not isinstance(tests, list) or not tests or not all(isinstance(test, str) for test in tests):
            raise _bad(answer)
        setup = "\n".join([*(answer.get("imports") or []), answer.get("setup") or ""])
        for text in [setup, *tests]:
            _compiles(text)
        return Tests(work={"tests": tests, "setup": setup})
    return _cases(answer)


def _human_eval(answer: Mapping[str, Any]) -> Tests:
    test, entry, prompt = answer["test"], answer.get("entry_point"), answer.get("prompt") or ""
    if not all(isinstance(part, str) for part in (test, entry, prompt)) or not str(entry).isidentifier():
        raise _bad(answer)
    _compiles(test)
    # `candidate` and the name itself are the program's; helpers that the prompt defines are the prompt's own.
    setup = prompt if _is_code(prompt) else ""
    work = {"setup": setup, "tests": [f"{test}\ncheck({entry})\n"], "entry": entry}
    return Tests(work=work, prompt=prompt, entry=entry)


def _cases(answer: Mapping[str, Any]) -> Tests:
    cases = answer.get("cases")
    if cases is None and isinstance(answer.get("inputs"), list) and isinstance(answer.get("outputs"), list):
        if len(answer["inputs"]) != len(answer["outputs"]):
            raise VerifierError("code: the gold answer has another number of outputs than of inputs.")
        cases = [{"input": i, "output": o} for i, o in zip(answer["inputs"], answer["outputs"], strict=True)]
    if isinstance(cases, str):
        cases = packed(cases)
    more = answer.get("private_cases")
    if isinstance(cases, list) and more:
        cases = [*cases, *(packed(more) if isinstance(more, str) else more)]
    if not isinstance(cases, list) or not cases or not all(_is_case(case) for case in cases):
        raise _bad(answer)
    function = answer.get("function") or None
    if function is None and any(case.get("testtype") == "functional" for case in cases):
        raise VerifierError('code: functional cases need the "function" that they call.')
    if function is None:
        return Tests(cases=tuple((_text(case["input"]), _text(case["output"])) for case in cases))
    try:
        calls = [{"arguments": _arguments(case["input"]), "result": _value(case["output"])} for case in cases]
    except ValueError as error:
        raise VerifierError(f"code: a functional case is no JSON ({error}).") from None
    return Tests(work={"calls": calls, "function": str(function)})


def _is_case(case: Any) -> bool:
    return isinstance(case, Mapping) and "input" in case and "output" in case


def _arguments(value: Any) -> list[Any]:
    if isinstance(value, str):
        return [json.loads(line) for line in value.split("\n") if line.strip()]
    return list(value)


def _value(value: Any) -> Any:
    return json.loads(value) if isinstance(value, str) else value


def _text(value: Any) -> str:
    return value if isinstance(value, str) else "\n".join(map(str, value)) + "\n"


class _TextOnly(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        raise VerifierError(f"code: a packed test wants {module}.{name}; only text is read.")


def packed(text: str) -> Any:
    """Test cases as JSON, or as LiveCodeBench packs its private ones: base64 of zlib of a pickled JSON text.

    No pickle that names a class or function is read. Raises `VerifierError`.
    """
    try:
        return json.loads(text)
    except ValueError:
        pass
    try:
        data = zlib.decompress(base64.b64decode(text.encode()))
        inner = _TextOnly(io.BytesIO(data)).load() if data[:1] == b"\x80" else data
        return json.loads(inner)
    except (ValueError, TypeError, zlib.error, pickle.UnpicklingError, EOFError) as error:
        raise VerifierError(f"code: the test cases can't be unpacked ({error}).") from None


def same_output(found: str, expected: str) -> bool:
    """Whether two outputs agree: line by line without blanks at the ends, or word by word where words may be numbers."""
    lines = [[line.strip() for line in text.strip().splitlines()] for text in (found, expected)]
    if lines[0] == lines[1]:
        return True
    if len(lines[0]) != len(lines[1]):
        return False
    for one, other in zip(*lines, strict=True):
        words = one.split(), other.split()
        if len(words[0]) != len(words[1]) or not all(map(_same_word, *words)):
            return False
    return True


def _same_word(one: str, other: str) -> bool:
    if one == other:
        return True
    try:
        return Decimal(one) == Decimal(other)
    except InvalidOperation:
        return False


def _is_code(text: str) -> bool:
    try:
        compile(text, "<prompt>", "exec")
    except (SyntaxError, ValueError):
        return False
    return True


def _compiles(text: str) -> None:
    try:
        compile(text, "<test>", "exec")
    except (SyntaxError, ValueError) as error:
        raise VerifierError(f"code: a test is no Python ({error}).") from None


def _bad(answer: Any) -> VerifierError:
    found = f"columns {', '.join(map(str, answer))}" if isinstance(answer, Mapping) else f"{answer!r:.60}"
    return VerifierError(
        f"code: a gold answer holds tests: HumanEval's (test, entry_point, prompt), a list of asserts, or input/output "
        f"cases. Found {found}."
    )
