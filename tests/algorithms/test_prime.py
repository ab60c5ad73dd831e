"""PRIME: advantages by hand, the implicit reward model, the filter, runs and their resumption."""

from __future__ import annotations

import copy
import math
from pathlib import Path

import numpy as np
import pytest
import torch
from support import tiny_model
from token_credit import (
    auxiliary_context,
    batch_of,
    check_micro_batches,
    check_resume,
    check_run,
    model_rows,
    rows_of,
    step_rows,
)

from skpo import get_algorithm
from skpo.errors import ConfigError
from skpo.policy.implicit_reward import ImplicitReward
from skpo.policy.scoring import ScoringModel, score_rows
from skpo.problems.base import Problem
from skpo.rollout.types import Group, Sample

ALL = ["algorithm.filter_low=0", "algorithm.filter_high=1"]


def test_advantages_of_two_responses() -> None:
    """c = [.1, .3] and [-.2], R = 1 and 0.

    Means per token .2 and -.2; each is the other's baseline. Process part: [.1 + .2, .3 + .2] = [.3, .5], to go [.8, .5]; and
    [-.2 - .2] = [-.4]. Outcome part: 1 - 0 and 0 - 1. Sum: [1.8, 1.5] and [-1.4], mean 1.9 / 3 = .633333, squared deviations 1.361111,
    .751111, 4.134444, variance 6.246667 / 2 = 3.123333, deviation 1.767296.
    """
    batch = batch_of([1.0, 0.0], [2, 1], [0, 0], token_reward=rows_of([[0.1, 0.3], [-0.2]]))
    expected = torch.tensor([[1.166667, 0.866667], [-2.033333, 0.0]], dtype=torch.float64) / 1.767296
    torch.testing.assert_close(get_algorithm("prime").advantages(batch), expected, rtol=0, atol=1e-5)


def test_a_lone_response_is_its_own_baseline() -> None:
    batch = batch_of([1.0], [2], [0], token_reward=rows_of([[0.1, 0.3]]))
    # [.1 - .2, .3 - .2] = [-.1, .1], to go [0, .1]; outcome 0; whitened: mean .05, deviation .0707107
    expected = torch.tensor([[-0.05, 0.05]], dtype=torch.float64) / 0.0707107
    torch.testing.assert_close(get_algorithm("prime").advantages(batch), expected, rtol=0, atol=1e-4)


def test_filter() -> None:
    algorithm = get_algorithm("prime")
    kept = []
    for right in range(6):  # of five
        samples = [Sample((1,), np.arange(2), np.zeros(2), True, score=float(i < right)) for i in range(5)]
        kept.append(algorithm.keep(Group(Problem("q", "1"), samples)))
    assert kept == [False, True, True, True, True, False]  # 0.2 and 0.8 themselves stay
    assert algorithm.max_rounds == 4
    assert algorithm.needs_reference
    assert not algorithm.own_kl
    with pytest.raises(ConfigError, match="filter_low <= filter_high"):
        get_algorithm("prime", filter_low=0.9)


@pytest.mark.parametrize("order", ["before", "after"])
def test_the_reward_model_learns_from_outcomes(order: str) -> None:
    policy = tiny_model("llama")
    data = model_rows(policy)
    data.batch.ref_logp = data.batch.old_logp
    model = ImplicitReward(auxiliary_context(policy, lr=3e-3), beta=0.5, order=order)
    metrics, losses = {}, []
    for step in range(5):
        metrics = model.before_credit(step_rows(data), data.batch)
        if step == 0 and order == "after":
            assert data.batch.token_reward.abs().max() < 1e-6  # it begins as the reference
        metrics |= model.update(step_rows(data), data.batch)
        losses.append(metrics["reward_model_loss"])
    assert losses[0] == pytest.approx(math.log(2), abs=1e-6)  # sigmoid(0)
    assert losses[-1] < 0.6
    assert metrics["implicit_accuracy"] > 0.8
    if order == "before":  # the rewards are those of the updated model: c_t = beta (log pi_phi - log pi_ref)
        logps, _ = score_rows(model.model.module, step_rows(data), device="cpu", budget=1000)
        for i, logp in enumerate(logps):
            expected = 0.5 * (torch.from_numpy(logp) - data.batch.ref_logp[i, : len(logp)])
            torch.testing.assert_close(data.batch.token_reward[i, : len(logp)].float(), expected, atol=1e-6, rtol=0)
            assert (data.batch.token_reward[i, len(logp) :] == 0).all()


def test_the_reward_model_does_not_depend_on_micro_batches() -> None:
    policy, results = tiny_model("llama"), []
    for budget in (1, 40, 10_000):
        data = model_rows(policy)
        data.batch.ref_logp = data.batch.old_logp - 0.1
        model = ImplicitReward(auxiliary_context(policy, micro_batch_tokens=budget), order="after")
        results.append(model.update(step_rows(data), data.batch))
    for other in results[:2]:
        assert other == pytest.approx(results[2], abs=1e-5)


def test_state_is_restored() -> None:
    policy = tiny_model("llama")
    data = model_rows(policy)
    data.batch.ref_logp = data.batch.old_logp
    first, second = (ImplicitReward(auxiliary_context(policy)) for _ in range(2))
    first.before_credit(step_rows(data), data.batch)
    second.load_state_dict(copy.deepcopy(first.state_dict()))
    rewards = []
    for model in (first, second):
        model.before_credit(step_rows(data), data.batch)
        rewards.append(data.batch.token_reward)
    assert torch.equal(*rewards)
    assert isinstance(first.model.module, ScoringModel)


def test_micro_batches() -> None:
    check_micro_batches("prime")


@pytest.mark.parametrize("order", ["before", "after"])
def test_run(tmp_path: Path, order: str) -> None:
    metrics = check_run(tmp_path / "run", "algorithm=prime", *ALL, f"algorithm.update={order}")
    assert metrics[0]["reward_model_loss"] == pytest.approx(math.log(2), abs=1e-4)
    assert metrics[1]["kl_ref"] > 0


def test_run_with_adapters(tmp_path: Path) -> None:
    check_run(tmp_path / "run", "algorithm=prime", *ALL, "model.lora.r=4", "optimizer.lr=2e-3")


def test_resume(tmp_path: Path) -> None:
    check_resume(tmp_path, "algorithm=prime", *ALL, "optimizer.mini_batches=2")
