"""Shortcut validation: positions, segments, the plan's requests, diversity and zero rate by hand, the command."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from scripted import TextlessRenderer, drive, sample
from typer.testing import CliRunner

from skpo.analysis.shortcut import cut_positions, record_of, segment_of, shortcut_plan, summary
from skpo.cli.app import app
from skpo.problems import Problem
from skpo.rollout.types import Group, Sampling


def test_positions() -> None:
    assert cut_positions() == pytest.approx([1 / 6, 7 / 30, 3 / 10, 11 / 30, 13 / 30, 1 / 2])


def test_segments_count_without_the_end() -> None:
    response = sample([*range(10, 22), 0], finished=True)  # twelve tokens and an end-of-sequence
    assert segment_of(response, 1 / 6) == (10, 11)
    assert segment_of(response, 1 / 2) == (10, 11, 12, 13, 14, 15)
    assert segment_of(sample([7, 0], finished=True), 1 / 6) == (7,)
    assert segment_of(sample([0], finished=True), 1 / 2) == ()


def test_plan_conditions_in_three_ways() -> None:
    lab: Any = SimpleNamespace(renderer=TextlessRenderer(), max_tokens=20, sampling=Sampling(), room=lambda c: 20)
    group, requests = drive(
        shortcut_plan(Problem("q", "1"), lab, 2, [0.5]),
        lambda i, r: [sample([5, 6, 7, 8])] if i == 0 else [sample([3], finished=True) for _ in range(r.n)],
    )
    assert [(r.context, r.n) for r in requests] == [
        ((1, 2), 1), ((1, 2), 2), ((1, 2, 5, 6), 2), ((5, 6, 9, 1, 2), 2),
    ]  # fmt: skip
    assert [s.prefix for s in group.unused] == [(), (), (5, 6), (5, 6), (), ()]
    assert all(s.info["verify"] for s in group.unused)


def rollouts(condition: str, texts: list[str], length: int) -> list[Any]:
    made = []
    for text in texts:
        one = sample([1] * length)
        one.text, one.score = text, float(text == "#1")
        one.info = {"condition": condition, "position": 0}
        made.append(one)
    return made


def test_diversity_and_zero_rate_by_hand() -> None:
    """Answers 1, 1, 2 and none are three; continual ones all agree, so that their advantages are zero."""
    unused = [
        *rollouts("unconditional", ["#1", "#1", "#2", ""], 4),
        *rollouts("continual", ["#2", "#2", "#2", "#2"], 2),
        *rollouts("skip", ["#1", "#2", "#3", "#4"], 3),
    ]
    record = record_of(Group(Problem("q", "1"), [sample([1, 2])], unused), "exact", 1)
    assert record["unconditional"] == [[3, 2, 4, 4]]
    assert record["continual"] == [[1, 0, 2, 4]]
    assert record["skip"] == [[4, 1, 3, 4]]
    rows = {r["condition"]: r for r in summary([record, record], [0.5])}
    assert [rows[c]["zero_rate"] for c in ("unconditional", "continual", "skip")] == [0, 1, 0]
    assert rows["skip"]["diversity"] == 4
    assert rows["skip"]["diversity_change"] == 1
    assert rows["continual"]["length"] == 2
    assert rows["continual"]["diversity_stderr"] == 0


def test_standard_error_over_problems() -> None:
    """Diversities 1 and 3: mean 2, standard error sqrt(2 / 2) = 1."""
    records = [{"unconditional": [[d, 1, 5, 4]], "continual": [[d, 1, 5, 4]], "skip": [[d, 1, 5, 4]]} for d in (1, 3)]
    row = summary(records, [0.5])[0]
    assert (row["diversity"], row["diversity_stderr"]) == (2, 1)


def test_command(tmp_path: Path) -> None:
    words = [
        "analyze", "shortcut", "builtin:chain-base", "--problems", "builtin:chain?steps=3&size=2", "--group", "2", "--positions", "2",
        "--skip-template", "{segment}|{problem}", "--max-tokens", "40", "--out", str(tmp_path),
    ]  # fmt: skip
    done = CliRunner().invoke(app, words)
    assert done.exit_code == 0, done.output
    first = json.loads((tmp_path / "analysis-shortcut.json").read_text())
    assert [r["problems"] for r in first["rows"]] == [2] * 6
    again = CliRunner().invoke(app, words)
    assert "0 problems: 0 responses" in again.output
    assert json.loads((tmp_path / "analysis-shortcut.json").read_text()) == first
