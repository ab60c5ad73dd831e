"""ReCo and TEPO on cases small enough to work out by hand."""

from __future__ import annotations

import math

import pytest
import torch

from skpo import get_algorithm
from skpo.losses import TokenBatch


def batch(p: list[list[float]], p_old: list[list[float]], entropy_lost: float = 0.0) -> TokenBatch:
    new, old = (torch.tensor(x, dtype=torch.float64).log() for x in (p, p_old))
    n = len(p)
    reward = torch.tensor([1.0, 0.0] * (n // 2), dtype=torch.float64)
    zeros, ones = torch.zeros(n, dtype=torch.long), torch.ones_like(old)
    return TokenBatch(
        reward, zeros, zeros, reward * 0, new.requires_grad_(), old, ones,
        entropy=ones - entropy_lost, old_entropy=ones,
    )  # fmt: skip


A = 0.5 / (math.sqrt(0.5) + 1e-6)  #: advantage of the right one of two


def test_reco_weighs_rare_responses_up() -> None:
    """G = 2, pbar = .25 and .5: w = 2 and 1, over their mean 4/3 and 2/3. On policy v = 1: gradient -w A / 2 each."""
    b = batch([[0.25], [0.5]], [[0.25], [0.5]])
    algorithm = get_algorithm("reco")
    advantages = algorithm.advantages(b)
    (gradient,) = torch.autograd.grad(algorithm.loss(b, advantages)[0], b.logp)
    assert gradient[:, 0].tolist() == pytest.approx([-4 / 3 * A / 2, 2 / 3 * A / 2], abs=1e-12)


def test_reco_caps_before_it_divides() -> None:
    """pbar = .01 and .5: w = min(50, 5) and 1, over their mean 5/3 and 1/3."""
    b = batch([[0.01], [0.5]], [[0.01], [0.5]])
    algorithm = get_algorithm("reco")
    (gradient,) = torch.autograd.grad(algorithm.loss(b, algorithm.advantages(b))[0], b.logp)
    assert gradient[:, 0].tolist() == pytest.approx([-5 / 3 * A / 2, 1 / 3 * A / 2], abs=1e-12)


def test_reco_token_factors() -> None:
    """p_old = .5, p = .55: variances .25 and .2475, v = .99; `one_minus_p` gives .495, clipped to .8."""
    for factor, v in (("variance_ratio", 0.99), ("one_minus_p", 0.8)):
        b = batch([[0.55], [0.55]], [[0.5], [0.5]])
        algorithm = get_algorithm("reco", token_factor=factor)
        loss, metrics = algorithm.loss(b, algorithm.advantages(b))
        (gradient,) = torch.autograd.grad(loss, b.logp)
        assert gradient[:, 0].tolist() == pytest.approx([-v * A / 2, v * A / 2], abs=1e-12)
        assert metrics["clip_fraction"] == (factor == "one_minus_p")


def test_tepo_holds_tokens_that_lose_entropy() -> None:
    """p_old = .5, p = .4 in the right row: d = log(.5 / .4), d k3 / d logp = 1 - exp(d) = -.25. Only where A > 0."""
    p, p_old = [[0.4], [0.4]], [[0.5], [0.5]]
    b = batch(p, p_old, entropy_lost=0.01)
    algorithm = get_algorithm("tepo", beta=1.0)
    assert algorithm.needs_old_entropy
    loss, metrics = algorithm.loss(b, algorithm.advantages(b))
    (gradient,) = torch.autograd.grad(loss, b.logp)
    # s = .8: the ratio's own gradient, halved by the token mean, and the penalty's
    assert float(gradient[0]) == pytest.approx(-0.8 * A / 2 + -0.25 / 2, abs=1e-12)
    assert metrics["held_fraction"] == 0.5
    b = batch(p, p_old, entropy_lost=0.0005)  # less than delta
    assert algorithm.loss(b, algorithm.advantages(b))[1]["held_fraction"] == 0.0
    # the other direction, KL(old || current): d k3 / d logp = p / p_old - 1 = -.2
    b = batch(p, p_old, entropy_lost=0.01)
    other = get_algorithm("tepo", beta=1.0, kl="old")
    (gradient,) = torch.autograd.grad(other.loss(b, other.advantages(b))[0], b.logp)
    assert float(gradient[0]) == pytest.approx(-0.8 * A / 2 + -0.2 / 2, abs=1e-12)


def test_tepo_does_nothing_more_on_the_first_update() -> None:
    b = batch([[0.4], [0.7]], [[0.4], [0.7]])
    with_kl, without = get_algorithm("tepo", beta=1.0), get_algorithm("tepo", beta=0.0)
    advantages = with_kl.advantages(b)
    assert float(with_kl.loss(b, advantages)[0].detach()) == float(without.loss(b, advantages)[0].detach())
    assert not without.needs_old_entropy
