"""A sampler that is not the trainer: weights at and around their bounds, and where they enter."""

from __future__ import annotations

import math

import pytest
import torch

from skpo import get_algorithm
from skpo.algorithms.base import Algorithm
from skpo.config import TrainConfig
from skpo.errors import ConfigError
from skpo.losses import TokenBatch, aggregate, sampler_correction, sequence_correction, sequence_mean
from skpo.rollout.types import Sampling
from skpo.trainer.setup import must_recompute

CPU = torch.device("cpu")


def tensor(*values: float) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.float64)


def batch_with(rho: list[list[float]], correction: str | None, lengths: list[int] | None = None) -> TokenBatch:
    """Rows whose trainer is `rho` times as sure as their sampler; rewards 1, 0, 1, 0 ... in one group."""
    ratio = torch.tensor(rho, dtype=torch.float64)
    n, width = ratio.shape
    mask = (torch.arange(width)[None] < torch.tensor(lengths or [width] * n)[:, None]).double()
    sampler = torch.full_like(ratio, -3.0)
    old = sampler + ratio.log()
    reward = torch.tensor([float(i % 2 == 0) for i in range(n)], dtype=torch.float64)
    zeros = torch.zeros(n, dtype=torch.long)
    return TokenBatch(
        reward, zeros, zeros, reward * 0, old.clone().requires_grad_(), old, mask, sampler_logp=sampler,
        ref_logp=old - 0.5, accuracy=0.5, correction=correction,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("kind", "rho", "weight"),
    [
        ("tis", 0.01, 0.01), ("tis", 1.99, 1.99), ("tis", 2.01, 2.0), ("tis", 50, 2.0),
        ("mis", 0.49, 0.0), ("mis", 0.51, 0.51), ("mis", 1.99, 1.99), ("mis", 2.01, 0.0),
        ("icepop", 0.49, 0.0), ("icepop", 0.51, 0.51), ("icepop", 4.99, 4.99), ("icepop", 5.01, 0.0),
    ],
)  # fmt: skip
def test_weights(kind: str, rho: float, weight: float) -> None:
    old = tensor(math.log(rho)).requires_grad_()
    actual = sampler_correction(old, tensor(0.0), kind)
    assert float(actual) == pytest.approx(weight, rel=1e-12)
    assert not actual.requires_grad


def test_bounds_belong_to_the_inside() -> None:
    # log-probabilities whose difference is exactly log 2 and -log 2: exp gives 2 and 1/2 exactly
    old = tensor(math.log(2.0), -math.log(2.0))
    assert old.exp().tolist() == [2.0, 0.5]
    for kind in ("mis", "icepop", "tis"):
        assert sampler_correction(old, tensor(0.0, 0.0), kind).tolist() == [2.0, 0.5]


def test_sequence_weight_is_a_geometric_mean() -> None:
    # sqrt(4 * 1) = 2 lies inside though a token's 4 does not; the third position is padding
    old, sampler = tensor(math.log(4.0), 0.0, 9.0)[None], tensor(0.0, 0.0, 0.0)[None]
    assert float(sequence_correction(old, sampler, tensor(1, 1, 0)[None], "mis")) == pytest.approx(2.0)
    assert float(sequence_correction(old * 1.01, sampler, tensor(1, 1, 0)[None], "mis")) == 0.0
    assert float(sequence_correction(old * 1.01, sampler, tensor(1, 1, 0)[None], "tis")) == 2.0


def test_terms_are_weighted_and_denominators_are_not() -> None:
    batch = batch_with([[1.5, 4.0], [0.36, 1.0]], "mis")
    ones = torch.ones(2, 2, dtype=torch.float64)
    assert float(aggregate(ones, batch, "token-mean")) == pytest.approx((1.5 + 0 + 0 + 1) / 4)
    assert float(aggregate(ones, batch, "token-mean", corrected=False)) == 1.0
    # geometric means: sqrt(6) = 2.45 is outside, sqrt(0.36) = 0.6 inside
    assert float(sequence_mean(tensor(1.0, 1.0), batch)) == pytest.approx(0.3)
    assert float(sequence_mean(tensor(1.0, 1.0), batch, corrected=False)) == 1.0


def test_grpo_gradient_by_hand() -> None:
    """One group, rewards 1 and 0: A = +-0.70711. On policy the gradient of a token is -A rho / (T N)."""
    batch = batch_with([[1.5, 4.0], [0.25, 1.0]], "tis")
    algorithm = get_algorithm("grpo")
    advantages = algorithm.advantages(batch)
    loss, metrics = algorithm.loss(batch, advantages)
    (gradient,) = torch.autograd.grad(loss, batch.logp)
    a = 0.5 / (math.sqrt(0.5) + 1e-6)
    expected = [[-a * 1.5 / 4, -a * 2.0 / 4], [a * 0.25 / 4, a * 1.0 / 4]]
    torch.testing.assert_close(gradient, torch.tensor(expected, dtype=torch.float64), rtol=0, atol=1e-12)
    assert metrics["clip_fraction"] == 0.0  # metrics count tokens, whatever their weight


def test_kl_penalties_are_not_weighted() -> None:
    weighted, plain = batch_with([[0.1], [9.0]], "mis"), batch_with([[0.1], [9.0]], None)
    for name in ("grpo", "expo", "reco"):
        algorithm: Algorithm = get_algorithm(name, beta=0.3)
        zero = torch.zeros(2, dtype=torch.float64)
        algorithm.advantages(plain)
        losses = [float(algorithm.loss(b, zero)[0].detach()) for b in (weighted, plain)]
        assert losses[0] == losses[1] > 0


@pytest.mark.parametrize("name", ["grpo", "dr_grpo", "rloo", "reinforce_pp", "dapo", "gspo", "gspo_token", "cispo", "sapo",
                                  "spo", "expo", "tepo", "reco", "critique_grpo", "skpo"])  # fmt: skip
def test_any_algorithm_takes_it(name: str) -> None:
    """rho = 1 changes nothing; rows and tokens out of bounds lose their gradient, and only they."""
    algorithm = get_algorithm(name, **({"beta": 0.0} if name in ("expo", "tepo") else {}))
    algorithm.budget = 16

    def gradient(rho: list[list[float]], kind: str | None) -> torch.Tensor:
        batch = batch_with(rho, kind)
        loss, _ = algorithm.loss(batch, algorithm.advantages(batch))
        return torch.autograd.grad(loss, batch.logp)[0]

    even, bad = [[1.0, 1.0]] * 4, [[1.0, 1.0], [1.0, 1.0], [9.0, 9.0], [1.0, 1.0]]
    torch.testing.assert_close(gradient(even, "mis"), gradient(even, None), rtol=0, atol=1e-15)
    kept = torch.tensor([1.0, 1.0, 0.0, 1.0], dtype=torch.float64)[:, None]
    torch.testing.assert_close(gradient(bad, "mis"), gradient(bad, None) * kept, rtol=0, atol=1e-15)
    assert (gradient(bad, None)[2] != 0).all()


def test_needs_the_sampler() -> None:
    batch = batch_with([[1.0]], "tis")
    batch.sampler_logp = None
    with pytest.raises(ValueError, match="sampler_logp"):
        aggregate(batch.logp, batch, "token-mean")


def test_setting_it_recomputes() -> None:
    base = {"model": {"path": "m"}, "problems": {"train": "p"}}
    assert must_recompute(TrainConfig(**base, optimizer={"correction": "tis"}), Sampling(), CPU)
    assert not must_recompute(TrainConfig(**base), Sampling(), CPU)
    with pytest.raises(ConfigError, match=r"optimizer\.correction .*compares the engine with the trainer"):
        must_recompute(TrainConfig(**base, optimizer={"correction": "tis", "old_logp": "engine"}), Sampling(), CPU)


def test_recomputing_beside_vllm() -> None:
    """Its float32 log-probabilities on a CPU are the trainer's; a GPU's kernels or another precision round differently."""
    base = {"model": {"path": "builtin:chain-base"}, "problems": {"train": "builtin:chain"}}

    def recompute(device: str, **vllm: str) -> bool:
        config = TrainConfig(**base, rollout={"engine": "vllm", "vllm": vllm})
        return must_recompute(config, Sampling(), torch.device(device))

    assert not recompute("cpu")
    assert recompute("cuda")
    assert recompute("cpu", dtype="bfloat16")
