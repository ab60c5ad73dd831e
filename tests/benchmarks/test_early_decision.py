"""The early decision: what its arithmetic says by hand, and how runs' routes are counted."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from scripted import sample

from benchmarks.early_decision import GROUP, Task, learn, normalised
from benchmarks.fork_routes import count, parts
from skpo.chain_base import chain_tokenizer
from skpo.problems import Problem
from skpo.problems.fork import Fork
from skpo.rollout.types import COMPLETION, SEGMENT, Group, Sample
from skpo.trainer.rollout_log import RolloutLog


def test_shares_by_hand() -> None:
    """p = 1/2, success 1/2 after it: decision variance 1/4 * 1/4 = 1/16, work 1/2 * 1/2 * 1/2 = 1/8. One verdict: 1/3.
    Mean of 8: (1/16) / (1/16 + 1/64) = 4/5. Information: (4/5) / (8/3) = 3/10."""
    found = Task(p=0.5, q=1.0, luck=2).shares()
    assert found["walk"] == 0.5
    assert found["single"] == pytest.approx(1 / 3)
    assert found["mean"] == pytest.approx(0.8)
    assert found["information"] == pytest.approx(0.3)


def test_no_verdict_tells_more_in_one_segment_than_in_a_group() -> None:
    """(8 D + W) / (D + W) >= 1: eight decisions never say less than the mean of eight verdicts on one; equal without D."""
    for p in (0.1, 0.4, 0.9):
        for luck in (1, 3, 1000):
            assert 1 / GROUP < Task(p=p, luck=luck).shares()["information"] < 1
    assert Task(luck=10**6).shares()["information"] == pytest.approx(1, abs=1e-4)


def test_group_normalised_by_hand() -> None:
    assert normalised(np.array([[0.0, 0.0], [0.0, 1.0]])) == pytest.approx(
        np.array([[0, 0], [-(0.5**0.5), 0.5**0.5]]), abs=1e-5
    )


@pytest.mark.parametrize("algorithm", ["grpo", "skpo", "skpo reliability"])
def test_a_table_learns_the_route(algorithm: str) -> None:
    curve = learn(Task(luck=2), algorithm, seed=0, steps=12)
    assert curve[0] == pytest.approx([0.367, 0.367 * 0.919**3 / 2], abs=1e-9)
    assert curve[-1, 0] > 0.6


def test_routes_of_a_run_are_counted(tmp_path: Path) -> None:
    text, names = "3ua+8b*7c-vd+6e-1f+wg+1h+1i+=7", chain_tokenizer()
    right = Fork().table["7"]
    wrong = next(n for n in "uvw" if n != right)

    def made(name: str, role: int) -> Sample:
        one = sample([names.convert_tokens_to_ids(name), 5])
        one.role = role
        return one

    group = Group(
        Problem(text, "75"),
        [
            made(wrong, COMPLETION),
            made(wrong, COMPLETION),
            made(right, SEGMENT),
        ],  # completions behind a segment don't count
        [made(right, SEGMENT), made(wrong, SEGMENT), made(wrong, SEGMENT)],
    )
    RolloutLog(tmp_path).write(1, [group])
    (tmp_path / "metrics.jsonl").write_text(json.dumps({"step": 1, "tokens_generated_total": 40}) + "\n")
    assert count(tmp_path) == [{"step": 1, "tokens": 40, "sampled": 4, "right": 2, "trained": 1, "trained_right": 1}]


def test_fifths_of_the_budget() -> None:
    curve = [(10, 0.2), (19, 0.4), (50, 0.5), (90, 0.8), (100, 1.0), (103, 0.6)]
    found = parts(100, curve)
    assert found[:1] == pytest.approx([0.3])
    assert np.isnan(found[1])
    assert found[2] == 0.5
    assert np.isnan(found[3])
    assert found[4] == pytest.approx(0.8)
