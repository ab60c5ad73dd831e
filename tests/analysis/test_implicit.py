"""Implicit advantage: positions, pieces, relative advantages by hand, the command with a local evaluator."""

from __future__ import annotations

import json
import math
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from skpo.analysis.implicit import (
    distinct,
    pieces_of,
    read_responses,
    relative_advantage,
    rows_of,
    segment_ends,
    shared_problems,
)
from skpo.analysis.implicit_figure import parts_of
from skpo.analysis.implicit_run import parse_runs
from skpo.analysis.lab import Records
from skpo.cli.app import app
from skpo.errors import ConfigError, ProblemError
from skpo.problems import Problem

PROBLEM = Problem("1+1=", "2", id="p", columns={"solution": "2"})


def test_segments_end_at_the_whole_response() -> None:
    assert segment_ends(4) == [0.25, 0.5, 0.75, 1.0]


def test_pieces_by_characters_and_by_tokens() -> None:
    states = [p and p.state for p in pieces_of(PROBLEM, "abcd", segment_ends(2), None)]
    assert states == ["ab", None]
    states = [p and p.state for p in pieces_of(PROBLEM, "abcd", segment_ends(4), lambda t: [ord(c) for c in t])]
    assert states == [(97,), (97, 98), (97, 98, 99), None]


def test_equal_pieces_are_asked_once(tmp_path: Path) -> None:
    records = Records(tmp_path / "r.jsonl")
    pieces = [*pieces_of(PROBLEM, "abcd", segment_ends(2), None), *pieces_of(PROBLEM, "abef", segment_ends(2), None)]
    found = distinct(pieces, records, 8)
    assert [p.state for p in found] == ["ab"]
    records.add(found[0].key(8), [1, 8, 0])
    assert distinct(pieces, records, 8) == []
    assert len(distinct(pieces, records, 4)) == 1


def test_relative_advantage_by_hand() -> None:
    """Rates 0, 1/2, 1: mean 1/2, population deviation sqrt(1/6); rates that are equal have none."""
    found = relative_advantage(np.array([[0.0, 0.1], [0.5, 0.1], [1.0, 0.1]]))
    assert found[:, 0] == pytest.approx([-math.sqrt(1.5), 0, math.sqrt(1.5)])
    assert found[:, 1].tolist() == [0, 0, 0]
    assert relative_advantage(np.array([[0.3], [0.7]])).ravel() == pytest.approx([-1, 1])


def test_rows_leave_missing_rates_out() -> None:
    """Two methods, two problems, one position; the second problem lacks a rate."""
    rates = np.array([[[1.0], [0.5]], [[0.0], [np.nan]]])
    first, second = rows_of(rates, ["a", "b"], [0.5], resamples=50)
    assert (first["problems"], first["advantage"], first["reward"]) == (1, 1.0, 1.0)
    assert (second["advantage"], second["low"], second["high"]) == (-1.0, -1.0, -1.0)


def test_parts() -> None:
    """Advantages +1, -1, 0, 0 of the first method at 0.1, 0.3, 0.4, 1: parts +1, -1/2, 0."""
    rates = np.array([[[1.0, 0.0, 0.5, 1.0]], [[0.0, 1.0, 0.5, 1.0]]])
    found = {r["part"]: r["advantage"] for r in parts_of(rates, ["a", "b"], [0.1, 0.3, 0.4, 1.0]) if r["method"] == "a"}
    assert found == {"0 to 20 %": 1.0, "20 to 50 %": -0.5, "50 to 100 %": 0.0}


def test_only_problems_that_all_solved() -> None:
    other = Problem("1+2=", "3", id="q")
    responses = {"a": {"p": ["2"], "q": ["3"]}, "b": {"p": ["2"], "q": []}}
    assert shared_problems([PROBLEM, other], responses) == [PROBLEM]
    with pytest.raises(ConfigError, match="no problem"):
        shared_problems([other], responses)
    with pytest.raises(ConfigError, match="at least twice"):
        shared_problems([other], {"a": {}})


def test_sample_files(tmp_path: Path) -> None:
    file = tmp_path / "s.jsonl"
    samples = [{"text": t, "score": s} for t, s in (("x", 0.0), ("y", 1.0), ("z", None), ("w", 1.0))]
    file.write_text(
        json.dumps({"id": "p", "samples": samples}) + "\n" + json.dumps({"id": "other", "samples": []}) + "\n"
    )
    assert read_responses(file, [PROBLEM], 9) == {"p": ["y", "w"]}
    assert read_responses(file, [PROBLEM], 1) == {"p": ["y"]}
    file.write_text("{}\n")
    with pytest.raises(ProblemError, match=r"s\.jsonl:1"):
        read_responses(file, [PROBLEM], 1)


def test_runs_are_named() -> None:
    assert parse_runs(["a=x", "b=y=z"]) == {"a": "x", "b": "y=z"}
    for words in (["a"], ["=x"], ["a=x", "a=y"]):
        with pytest.raises(ConfigError):
            parse_runs(words)


def test_command_with_a_local_evaluator(tmp_path: Path) -> None:
    """The same model twice: the same responses, so that every advantage is 0; the second run samples nothing."""
    words = [
        "analyze", "implicit-advantage", "--run", "a=builtin:chain-base", "--run", "b=builtin:chain-base", "--evaluator",
        "builtin:chain-base", "--problems", "builtin:chain?steps=4&size=1", "--positions", "4", "--continuations", "2",
        "--samples", "8", "--max-tokens", "40", "--out", str(tmp_path),
    ]  # fmt: skip
    done = CliRunner().invoke(app, words)
    assert done.exit_code == 0, done.output
    first = json.loads((tmp_path / "analysis-implicit.json").read_text())
    assert {r["advantage"] for r in first["rows"]} == {0.0}
    assert first["rows"][-1]["reward"] == 1.0
    again = CliRunner().invoke(app, words)
    assert "0 pieces" in again.output
    assert json.loads((tmp_path / "analysis-implicit.json").read_text()) == first
