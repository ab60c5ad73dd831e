"""From a row of a file or dataset to a `Problem`, or to an error that says what is wrong with it and what to do."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from skpo.errors import ProblemError, VerifierError
from skpo.problems.base import Message, Problem

# Column names seen in public problem sets, likeliest first.
LIKELY = {
    "prompt": ("prompt", "question", "problem", "messages", "query", "instruction", "input", "text"),
    "answer": (
        "answer",
        "solution",
        "target",
        "ground_truth",
        "label",
        "reward_model.ground_truth",
        "final_answer",
        "expected_answer",
        "gold",
        "output",
        "answers",
    ),
}
MISSING = object()
Row = tuple[str, Any]  # where it stands ("problems.jsonl:17"), and what stands there


@dataclass
class RowReader:
    """Turns rows into problems.

    prompt_key, answer_key: columns to read; `reward_model.ground_truth` reaches into a nested column.
    verifier:               verifier of rows that name none.
    check:                  read each gold answer with its verifier (`check_gold`).
    duplicates:             "refuse" or "drop" a row whose id was there before (without ids: the same prompt and answer).
    """

    prompt_key: str = "prompt"
    answer_key: str = "answer"
    verifier: str | None = None
    check: bool = True
    duplicates: str = "refuse"
    seen: dict[str, str] = field(default_factory=dict)
    checks: dict[str, Callable[[Any], None]] = field(default_factory=dict)

    def read(self, rows: Iterable[Row]) -> Iterator[Problem]:
        """Problems, in the order of their rows. Raises `ProblemError` at the first row that can't be used."""
        for where, row in rows:
            problem = self.problem(where, row)
            before = self.seen.setdefault(problem.id, where)
            if before != where:
                if self.duplicates == "drop":
                    continue
                what = f'the id "{problem.id}"' if "id" in row else "the same prompt and answer"
                raise ProblemError(
                    f"{where}: {what} stands at {before} already. Remove one, or put ?duplicates=drop after the source."
                )
            self.check_gold(where, problem)
            yield problem

    def problem(self, where: str, row: Any) -> Problem:
        """One row's problem. Raises `ProblemError` for a missing or wrong column."""
        if not isinstance(row, Mapping):
            raise ProblemError(f"{where}: a row is an object with columns, this is {_kind(row)}.")
        prompt = _prompt(where, self.prompt_key, self.cell(where, row, "prompt", self.prompt_key))
        answer = self.cell(where, row, "answer", self.answer_key)
        if answer is None or answer == "" or (isinstance(answer, float) and math.isnan(answer)):
            raise ProblemError(f'{where}: "{self.answer_key}" is {_kind(answer)}. Every row needs a gold answer.')
        verifier = row.get("verifier")
        if not (verifier is None or (isinstance(verifier, str) and verifier)):
            raise ProblemError(f'{where}: "verifier" is {_kind(verifier)}. Write the name of a verifier.')
        used = {self.prompt_key, self.answer_key, "id", "verifier"}
        return Problem(
            prompt=prompt,
            answer=answer,
            id=_id(where, row.get("id")),
            verifier=verifier or self.verifier,
            columns={key: value for key, value in row.items() if key not in used},
        )

    def cell(self, where: str, row: Mapping[str, Any], role: str, key: str) -> Any:
        """The row's value under `key`. Where there is none the error lists the columns and suggests a likely one."""
        value = lookup(row, key)
        if value is not MISSING:
            return value
        likely = next((name for name in LIKELY[role] if lookup(row, name) is not MISSING), None)
        advice = f"Use --{role}-key {likely}." if likely else f"Name the right one with --{role}-key."
        raise ProblemError(f'{where}: no "{key}"; columns here: {", ".join(map(str, row)) or "none"}. {advice}')

    def check_gold(self, where: str, problem: Problem) -> None:
        """Raise `ProblemError` where the problem's verifier is unknown or can't read the gold answer."""
        name = problem.verifier
        if not self.check or name is None:
            return
        try:
            if name not in self.checks:
                from skpo.verifiers import get_verifier

                self.checks[name] = get_verifier(name, unsafe_code=True).check_gold  # reads answers, runs nothing
            self.checks[name](problem.answer)
        except VerifierError as error:
            raise ProblemError(f"{where}: {error}") from None


def lookup(row: Mapping[str, Any], key: str) -> Any:
    """`row[key]`, or for a dotted key the value inside nested columns; `MISSING` where there is none."""
    if key in row:
        return row[key]
    value: Any = row
    for part in key.split("."):
        if not isinstance(value, Mapping) or part not in value:
            return MISSING
        value = value[part]
    return value


def _prompt(where: str, key: str, value: Any) -> str | list[Message]:
    """A prompt as text or chat messages, checked."""
    if isinstance(value, str):
        if not value.strip():
            raise ProblemError(f'{where}: "{key}" is empty.')
        return value
    if not isinstance(value, list) or not value:
        raise ProblemError(f'{where}: "{key}" is {_kind(value)}. A prompt is text or a list of chat messages.')
    messages: list[Message] = []
    for i, message in enumerate(value):
        if not isinstance(message, Mapping) or not all(isinstance(message.get(k), str) for k in ("role", "content")):
            raise ProblemError(f'{where}: message {i} of "{key}" has no text "role" and "content".')
        messages.append({"role": message["role"], "content": message["content"]})
    if messages[-1]["role"] != "user":
        raise ProblemError(f'{where}: the last message of "{key}" is from "{messages[-1]["role"]}", not from "user".')
    return messages


def _id(where: str, value: Any) -> str:
    """An id as text; "" where the row has none."""
    if value is None:
        return ""
    if isinstance(value, bool) or not isinstance(value, str | int) or value == "":
        raise ProblemError(f'{where}: "id" is {_kind(value)}. An id is text or a whole number.')
    return str(value)


def _kind(value: Any) -> str:
    """What a wrong value is, in words."""
    if value is None:
        return "null"
    if isinstance(value, str | list | dict) and not value:
        return "empty"
    if isinstance(value, float) and math.isnan(value):
        return "NaN"
    names = {str: "text", bool: "true or false", int: "a number", float: "a number", list: "a list", dict: "an object"}
    return names.get(type(value), f"a {type(value).__name__}")
