"""Both sides of a comparison do the same work."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from benchmarks import rollout, skpo_cost
from benchmarks.common import Options
from benchmarks.models import build
from benchmarks.trainers import Stepper, last_word_even, word_model, word_problems

SMALL = replace(rollout.QUICK[0], groups=2, per_group=3, slots=4, high=12, mean=6)


@pytest.mark.parametrize("lengths", ["exponential", "lognormal", "uniform"])
def test_budgets_lie_within_their_limits(lengths: str) -> None:
    work = rollout.draw(replace(rollout.CASES[0], lengths=lengths, groups=500), vocabulary=4096)
    case = rollout.CASES[0]
    assert work.budgets.min() >= case.low
    assert work.budgets.max() == case.high
    assert work.tokens == sum(b for _, b in work.rows)


def test_engine_and_generate_make_every_row_as_long_as_its_budget() -> None:
    model = build("4M")
    work = rollout.draw(SMALL, model.config.vocab_size)
    for side in (rollout.engine_side(model, work, 4), rollout.generate_side(model, work, 4)):
        counts = side()
        assert counts["tokens"] == work.tokens
        assert 0 < counts["used"] <= 1
    assert rollout.engine_side(model, work, 4)()["used"] == 1
    # rows 0-3 run to the longest of them, then rows 4 and 5
    flat = work.budgets.ravel()
    assert rollout.generate_side(model, work, 4)()["used"] == pytest.approx(
        work.tokens / (4 * flat[:4].max() + 2 * flat[4:].max())
    )


def test_single_pass_and_two_passes_make_the_same_tokens() -> None:
    model = build("4M")
    work = skpo_cost.draw(2, 2, 8, 12, model.config.vocab_size)
    one, two = skpo_cost.single_pass(model, work, 4)(), skpo_cost.two_passes(model, work, 4)()
    assert one["tokens"] == two["tokens"] == skpo_cost.two_generates(model, work, 4)()["tokens"] == work.tokens


def test_word_model_ends_as_often_as_asked(tmp_path: Path) -> None:
    from transformers import AutoTokenizer

    from skpo.config import ModelConfig
    from skpo.policy.loading import load_policy

    policy = load_policy(ModelConfig(path=str(word_model(tmp_path / "model", mean=64))))
    assert len(policy.eos_ids) == 4096 / 64
    path = word_problems(tmp_path / "problems.jsonl", 3, 5)
    ids = AutoTokenizer.from_pretrained(tmp_path / "model")(path.read_text().split('"')[3])["input_ids"]
    assert len(ids) == 5
    assert not set(ids) & set(policy.eos_ids)
    assert last_word_even(["w1 w2", "w3", ""]) == [1.0, 0.0, 0.0]


def test_stepper_does_one_step_a_call_and_ends_with_its_block() -> None:
    seen: list[int] = []

    def run(gate: object) -> None:
        counts = None
        for i in range(1000):
            gate(counts)  # type: ignore[operator]
            seen.append(i)
            counts = {"tokens": float(i)}

    with Stepper(run, 1) as step:
        assert seen == []
        assert [step()["tokens"] for _ in range(3)] == [0.0, 1.0, 2.0]
    assert seen == [0, 1, 2]
    assert not step._thread.is_alive()


def test_steppers_do_not_share_gradient_accumulation() -> None:
    """A run that is between two micro-batches must not make another one's optimiser wait."""
    from accelerate import Accelerator
    from accelerate.state import GradientState

    seen: dict[str, list[bool]] = {"whole": [], "parts": []}

    def run(name: str, parts: int, gate: Callable[[Any], None]) -> None:
        accelerator = Accelerator(cpu=True, gradient_accumulation_steps=parts)
        model = torch.nn.Linear(1, 1)
        for _ in range(20):
            with accelerator.accumulate(model):
                gate({})
                seen[name].append(GradientState().sync_gradients)

    with (
        Stepper(lambda gate: run("whole", 1, gate), 1) as whole,
        Stepper(lambda gate: run("parts", 2, gate), 1) as parts,
    ):
        for _ in range(4):
            whole(), parts()
    assert seen["whole"] == [True] * 4
    assert seen["parts"] == [False, True] * 2


def test_stepper_raises_what_its_run_raises() -> None:
    def run(gate: object) -> None:
        gate(None)  # type: ignore[operator]
        raise OSError("disk full")

    with Stepper(run, 1) as step, pytest.raises(OSError, match="disk full"):
        step()


def test_skip_work_has_a_tail() -> None:
    work = skpo_cost.draw(32, 8, 64, 512, 4096)
    lengths = work.budgets.ravel()
    assert np.quantile(lengths, 0.95) > 3 * np.median(lengths)
    assert (work.stops >= 1).all()
    assert work.tokens == int(work.stops.sum() * 8 + lengths.sum())


def test_quick_results_are_refused_by_the_page(tmp_path: Path) -> None:
    from benchmarks.common import Report
    from benchmarks.performance import take_in

    path = tmp_path / "rollout.json"
    Report("rollout", "a over b", 1.0).finish(Options(quick=True, json=path))
    with pytest.raises(SystemExit, match="full sizes"):
        take_in(path)
