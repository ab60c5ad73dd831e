"""Is the segment used: the plan's requests, spread and noise by hand, the command."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from scripted import TextlessRenderer, drive, sample
from typer.testing import CliRunner

from skpo.analysis.segments import chooser, record_of, segments_plan, summary, table
from skpo.cli.app import app
from skpo.problems import Problem
from skpo.rollout.plans import PlanContext
from skpo.rollout.types import Group, Sampling


def lab(max_tokens: int = 40) -> Any:
    rng = np.random.default_rng(0)
    renderer = TextlessRenderer()
    return SimpleNamespace(
        renderer=renderer, max_tokens=max_tokens, sampling=Sampling(), room=lambda c: max_tokens,
        context=lambda n, key: PlanContext(renderer, n, max_tokens, Sampling(), rng=rng),
    )  # fmt: skip


def test_plan_samples_own_and_foreign_segments() -> None:
    group, requests = drive(
        segments_plan(Problem("q", "1"), Problem("r", "2"), lab(), 2, 3),
        lambda i, r: [sample([5] * 12) if i == 0 else sample([7 + i] * min(r.max_tokens, 6)) for _ in range(r.n)],
    )
    # Three plain completions of 12 tokens, so a stop from 2 to 6; two own segments, two foreign ones; three completions from each.
    stop = requests[1].max_tokens
    assert 2 <= stop <= 6
    assert [r.n for r in requests] == [3, 2, 2, 3, 3, 3, 3]
    assert {r.max_tokens for r in requests[1:3]} == {stop}
    numbers = [s.info["from"] for s in group.unused if "from" in s.info]
    assert numbers == [-1] * 3 + [0] * 3 + [1] * 3 + [2] * 3 + [3] * 3
    assert [s.info["foreign"] for s in group.unused if "foreign" in s.info] == [False, False, True, True]
    assert all(s.info["verify"] for s in group.unused if "from" in s.info)
    assert not group.samples


def record(*rates: tuple[int, int]) -> dict[str, Any]:
    """A problem with segments of (correct of 4, right or not); the last one is foreign."""
    segments = [
        {
            "text": str(i), "foreign": i == len(rates) - 1, "right": bool(right), "right_choice": None, "same_choice": None,
            "correct": [True] * c + [False] * (4 - c), "length": 10.0,
        }
        for i, (c, right) in enumerate(rates)
    ]  # fmt: skip
    return {"plain": [True, False, False, False], "plain_choice": None, "segments": segments}


def test_spread_and_noise_by_hand() -> None:
    """R_I of rates 1, 1/2 and 0 is 1, 0 and -1: variance 1. Noise: 4 p (1 - p) / 3 = 0, 1/3 and 0, mean 1/9. Signal 1 - 1/9."""
    found = summary([record((4, 1), (2, 1), (0, 0), (1, 0))])
    assert found["spread"]["mean"] == pytest.approx(1.0)
    assert found["noise"]["mean"] == pytest.approx(1 / 9)
    assert found["signal"] == pytest.approx(8 / 9)
    accuracy = found["accuracy"]
    assert {kind: row["mean"] for kind, row in accuracy.items()} == {
        "none": 0.25, "own": 0.5, "right": 0.75, "wrong": 0.0, "foreign": 0.25,
    }  # fmt: skip
    assert accuracy["right"]["share"] == pytest.approx(2 / 3)
    assert found["same_choice"] is None
    assert "| wrong | 0.33 | 0.000" in table(found)


def test_no_spread_is_no_signal() -> None:
    assert summary([record((0, 0), (0, 0), (0, 0))])["signal"] == 0.0


def test_errors_are_over_problems() -> None:
    """Accuracies 1/2 and 1 behind own segments: mean 3/4, standard error sqrt((1/8) / 2) = 1/4."""
    found = summary([record((4, 1), (0, 1), (0, 0)), record((4, 1), (4, 1), (0, 0))])
    assert found["accuracy"]["own"]["mean"] == pytest.approx(0.75)
    assert found["accuracy"]["own"]["stderr"] == pytest.approx(0.25)


def test_record_knows_right_segments_and_routes() -> None:
    text = "3ua+8b*7c-vd+6e-1f+=7"
    choice = chooser(Problem(text, "75"))
    assert (choice("ua"), choice("e9"), choice("#")) == ("u", "v", None)
    assert chooser(Problem("3a+8b*7=", "17"))("a3+8") is None
    words = {1: "ua+8b", 2: "vd+6e"}
    cut, made, plain = sample([1]), sample([3]), sample([4])
    cut.info = {"number": 0, "foreign": False}
    made.info, made.text, made.score = {"from": 0}, "b*7c-;", 1.0
    plain.info, plain.score = {"from": -1}, 0.0
    problem = Problem(text, "75", columns={"solution": "ua+8b*7c-;"})
    kept = record_of(Group(problem, [], [plain, cut, made]), lambda ids: words[ids[0]])
    segment = kept["segments"][0]
    assert (segment["right"], segment["right_choice"], segment["same_choice"], segment["correct"]) == (
        True,
        True,
        [True],
        [True],
    )
    other = sample([2])
    other.info = {"number": 0, "foreign": False}
    segment = record_of(Group(problem, [], [plain, other, made]), lambda ids: words[ids[0]])["segments"][0]
    assert (segment["right"], segment["right_choice"], segment["same_choice"]) == (False, False, [False])


def test_command(tmp_path: Path) -> None:
    words = [
        "analyze", "segments", "builtin:chain-base", "--problems", "builtin:chain?steps=3&size=3", "--segments", "2",
        "--continuations", "2", "--skip-template", "{segment}|{problem}", "--max-tokens", "40", "--out", str(tmp_path),
    ]  # fmt: skip
    done = CliRunner().invoke(app, words)
    assert done.exit_code == 0, done.output
    first = json.loads((tmp_path / "analysis-segments.json").read_text())
    assert first["problems"] == 3
    assert set(first["accuracy"]) >= {"none", "own", "foreign"}
    assert "variance of R_I" in done.output
    again = CliRunner().invoke(app, words)
    assert "0 problems: 0 responses" in again.output
    assert json.loads((tmp_path / "analysis-segments.json").read_text()) == first


def test_one_problem_is_refused(tmp_path: Path) -> None:
    words = ["analyze", "segments", "builtin:chain-base", "--problems", "builtin:chain?size=1", "--out", str(tmp_path)]
    done = CliRunner().invoke(app, words)
    assert done.exit_code != 0
    assert "at least 2" in done.output + str(done.exception)
