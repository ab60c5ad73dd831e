"""Sign noise along trajectories: grid, states, measures on two trajectories by hand, the command on a chain model."""

from __future__ import annotations

import json
import math
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from skpo.analysis.lab import Records
from skpo.analysis.tokens import (
    Trajectories,
    counts_of,
    cut,
    expected_tokens,
    grid,
    measure,
    resolved,
    state_key,
    states,
)
from skpo.analysis.tokens_figures import average
from skpo.cli.app import app
from skpo.errors import RunError
from skpo.problems import Problem

PROBLEM = Problem("1+1=", "2", id="p")
HALF = 0.5 / (math.sqrt(0.5) + 1e-6)  # advantage of a reward of 1 against a reward of 0, in a group of two


def test_grid_and_cuts() -> None:
    assert grid(3) == [0.0, 0.5, 1.0]
    assert [cut(4, p) for p in (0, 0.25, 0.5, 1)] == [0, 1, 2, 4]
    assert cut(5, 0.5) == 3  # halves are rounded up


def test_shared_states_are_continued_once() -> None:
    group = Trajectories(PROBLEM, ((1, 2, 3, 4), (1, 2, 5, 6)), (1, 0))
    assert states(group, [0.0, 0.5, 0.75, 1.0]) == [(), (1, 2), (1, 2, 3), (1, 2, 5)]


def test_expected_tokens() -> None:
    """From positions 0 and 1/2 of four tokens, 5 and 3 are left with the end-of-sequence; two continuations each: 16."""
    one = Trajectories(PROBLEM, ((1, 2, 3, 4), (1, 2, 3, 4)), (1, 1))
    assert expected_tokens([one], grid(3), 2) == 16


def test_counts_end_with_the_outcome(tmp_path: Path) -> None:
    records = Records(tmp_path / "r.jsonl")
    group = Trajectories(PROBLEM, ((1, 2), (1, 3)), (1, 0))
    for state, right in (((), 2), ((1,), 3)):
        records.add(state_key(PROBLEM, state, 4), [right, 9])
    assert counts_of(group, records, grid(3), 4).tolist() == [[2, 2], [3, 3], [4, 0]]


def test_measures_by_hand() -> None:
    """Two trajectories, two positions, rates of 0 and 1, so that draws are certain; outcomes 0 and 1.

    First position, rates 0 and 1: both advantages are right, and tie. Second, rates 1 and 1: A* = 0, Monte-Carlo has it, the outcome
    advantage is wrong by 1/sqrt(2).
    """
    counts = np.array([[0, 64], [64, 64]])
    found = measure(counts, [0, 1], 64, 8, 5, np.random.default_rng(0))
    assert found["mc_accuracy"].tolist() == [1, 1]
    assert found["outcome_accuracy"].tolist() == [1, 0]
    assert found["mc_mae"] == pytest.approx([0, 0], abs=1e-12)
    assert found["outcome_mae"] == pytest.approx([0, HALF], abs=1e-12)
    assert found["win"] == pytest.approx([0.5, 1])
    assert found["sure"].tolist() == [1, 0]
    assert found["zero"].tolist() == [0, 1]
    assert found["mc_accuracy_sure"][0] == 1
    assert np.isnan(found["mc_accuracy_sure"][1])


def test_measures_of_noisy_estimates() -> None:
    """Rates 0 and 1/2, one continuation: counts (0, 1), half of the time, are right; (0, 0) estimate 0, wrong by 1/sqrt(2)."""
    found = measure(np.array([[0, 32]]), [1, 0], 64, 1, 20_000, np.random.default_rng(0))
    assert found["mc_accuracy"][0] == pytest.approx(0.5, abs=0.015)  # 4 standard errors
    assert found["mc_mae"][0] == pytest.approx(HALF / 2, abs=0.011)
    assert found["outcome_accuracy"][0] == 0
    assert found["outcome_mae"][0] == pytest.approx(2 * HALF, abs=1e-5)
    assert found["win"][0] == 1


def test_differences_within_noise_are_not_resolved() -> None:
    assert resolved(np.array([[30, 34], [8, 56]]), 64).tolist() == [[False, False], [True, True]]


def test_average_over_groups() -> None:
    """Group means 1 and 3: mean 2, standard error sqrt(2 / 2) = 1; values that are missing don't count."""
    rows = [{"problem": "a", "x": 0.0}, {"problem": "a", "x": 2.0}, {"problem": "b", "x": 3.0}, {"problem": "b", "x": None}]  # fmt: skip
    assert average(rows, "x") == (2.0, 1.0)


def test_records_of_other_settings_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "r.jsonl"
    Records(path, {"seed": 0}).add("a", 1)
    with path.open("ab") as file:
        file.write(b'["b", 2')  # cut short by a kill
    again = Records(path, {"seed": 0})
    assert again.found == {"a": 1}
    again.add("b", 3)
    assert Records(path, {"seed": 0}).found == {"a": 1, "b": 3}
    with pytest.raises(RunError, match="seed"):
        Records(path, {"seed": 1})


def test_command_resumes(tmp_path: Path) -> None:
    words = [
        "analyze", "mc-noise", "--model", "builtin:chain-base", "--problems", "builtin:chain?steps=3&size=3", "--group", "3",
        "--positions", "3", "--k-true", "4", "--per-class", "1", "--max-tokens", "40", "--out", str(tmp_path),
    ]  # fmt: skip
    done = CliRunner().invoke(app, words)
    assert done.exit_code == 0, done.output
    assert "tokens to generate" in done.output
    kept, result = (
        (tmp_path / "mc-noise.jsonl").read_bytes(),
        json.loads((tmp_path / "analysis-tokens.json").read_text()),
    )
    (tmp_path / "mc-noise.jsonl").write_bytes(kept[: len(kept) * 2 // 3])
    assert CliRunner().invoke(app, words).exit_code == 0
    again = json.loads((tmp_path / "analysis-tokens.json").read_text())
    assert again["summary"] == result["summary"]
    assert sorted((tmp_path / "mc-noise.jsonl").read_bytes().splitlines()) == sorted(kept.splitlines())
