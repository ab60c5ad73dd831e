"""Accuracy-conditioned KL and Gaussian curriculum: in EXPO, and beside any other algorithm."""

from __future__ import annotations

import json
import math

import numpy as np
import pytest
import torch

from skpo import get_algorithm
from skpo.config import TrainConfig
from skpo.credit import AccuracyTable
from skpo.curriculum import GaussianSampler, gaussian_weight
from skpo.errors import ConfigError
from skpo.losses import TokenBatch, rising_tanh
from skpo.problems.base import Problem
from skpo.rollout.types import Group, Sample
from skpo.trainer.loop import make_algorithm, make_sampler

BASE = {"model": {"path": "m"}, "problems": {"train": "p"}, "problems_per_step": 2}


def config(**settings: object) -> TrainConfig:
    return TrainConfig(**{**BASE, **settings})  # type: ignore[arg-type]


def tokens(accuracy: float = 1.0) -> TokenBatch:
    """Two rows, three tokens in all; the reference is e^-1 times as sure of each: k3 = exp(-1) + 1 - 1 = e^-1."""
    logp = torch.full((2, 2), -1.0, dtype=torch.float64, requires_grad=True)
    mask = torch.tensor([[1.0, 1.0], [1.0, 0.0]], dtype=torch.float64)
    reward = torch.tensor([1.0, 0.0], dtype=torch.float64)
    zeros = torch.zeros(2, dtype=torch.long)
    old = logp.detach()
    return TokenBatch(reward, zeros, zeros, reward * 0, logp, old, mask, ref_logp=old - 1, accuracy=accuracy)


@pytest.mark.parametrize(
    ("accuracy", "beta"), [(0, 0.010000), (0.25, 0.012449), (0.5, 0.014621), (0.75, 0.016351), (1, 0.017616)]
)
def test_beta_rises_with_accuracy(accuracy: float, beta: float) -> None:
    assert 0.02 * rising_tanh(accuracy) == pytest.approx(beta, abs=5e-7)


def test_akl_beside_any_algorithm() -> None:
    algorithm = make_algorithm(config(algorithm={"name": "cispo"}, kl="akl", kl_beta=0.1))
    assert algorithm.needs_reference
    batch = tokens()
    advantages = algorithm.advantages(batch)
    own, _ = algorithm.loss(batch, advantages)
    full, metrics = algorithm.full_loss(batch, advantages)
    penalty = 0.1 * (math.tanh(1) + 1) / 2 * math.exp(-1)
    assert float((full - own).detach()) == pytest.approx(penalty, abs=1e-12)
    assert metrics["loss_akl"] == pytest.approx(penalty, abs=1e-12)
    # d k3 / d logp = 1 - exp(d) with d = -1, over three tokens
    (gradient,) = torch.autograd.grad(full - own, batch.logp)
    slope = 0.1 * rising_tanh(1.0) * (1 - math.exp(-1)) / 3
    expected = torch.tensor([[slope, slope], [slope, 0.0]], dtype=torch.float64)
    torch.testing.assert_close(gradient, expected, rtol=0, atol=1e-12)


def test_akl_is_the_same_in_expo_and_beside_it() -> None:
    batch = tokens(0.5)
    expo, plain = get_algorithm("expo", beta=0.3), get_algorithm("expo", beta=0.0)
    plain.akl_beta = 0.3
    a = expo.advantages(batch)
    assert expo.loss(batch, a)[0].item() == pytest.approx(plain.full_loss(batch, a)[0].item(), abs=1e-14)
    assert expo.full_loss(batch, a)[0] == expo.loss(batch, a)[0]


def test_two_penalties_are_refused() -> None:
    with pytest.raises(ConfigError, match="kl=akl beside expo's own KL penalty"):
        make_algorithm(config(algorithm="expo", kl="akl"))
    assert make_algorithm(config(algorithm={"name": "expo", "beta": 0.0}, kl="akl")).akl_beta == 0.02
    assert make_algorithm(config(algorithm="tepo", kl="akl")).needs_reference  # its beta is another thing
    assert not make_algorithm(config(algorithm="tepo")).needs_reference


def test_accuracy_table() -> None:
    table = AccuracyTable()
    assert [round(table.update("q", x), 6) for x in (1, 1, 0)] == [0.55, 0.595, 0.5355]
    assert table.value("other") == 0.5


def group(problem: Problem, scores: list[float]) -> Group:
    return Group(problem, [Sample((1,), np.array([1]), np.zeros(1), True, score=s) for s in scores])


def test_gaussian_sampler_keeps_its_table_in_checkpoints() -> None:
    problems = [Problem(f"p{i}", "1", id=str(i)) for i in range(4)]
    for algorithm in ("expo", "skpo", "spo", "grpo"):  # with or without values of their own
        settings = config(algorithm=algorithm, curriculum="auto" if algorithm == "expo" else "gaussian")
        sampler = make_sampler(settings, make_algorithm(settings), problems)
        assert isinstance(sampler, GaussianSampler)
    sampler.observe([group(problems[0], [1, 1, 1, 1]), group(problems[1], [1, 0, 0.5, 0])], 0)
    # partial credit is not correct: 1 of 4
    assert sampler.table.entries == pytest.approx({"0": 0.55, "1": 0.45 + 0.025})
    assert sampler.weight is not None
    assert sampler.weight("0") == gaussian_weight(0.55)
    assert sampler.weight("3") == 1.0
    again = GaussianSampler(problems, 0)
    again.load_state_dict(json.loads(json.dumps(sampler.state_dict())))
    assert again.table.entries == sampler.table.entries
    assert [p.id for p in again.draw(3, 1)] == [p.id for p in sampler.draw(3, 1)]
