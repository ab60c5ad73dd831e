"""Golden values: advantages, loss and gradient of every algorithm to 1e-9, in float64."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from support import vectors

from skpo import get_algorithm
from skpo.algorithms import ALGORITHMS
from skpo.losses import TokenBatch, count_totals

CASES = [c for c in vectors("objectives.json")["cases"] if c["algorithm"] in ALGORITHMS]


def batch_of(inputs: dict[str, Any]) -> TokenBatch:
    def tensor(key: str, dtype: torch.dtype = torch.float64) -> torch.Tensor:
        return torch.tensor(inputs[key], dtype=dtype)

    floats = ("reward", "baseline", "logp", "old_logp", "mask", "ref_logp", "entropy", "old_entropy")
    batch = TokenBatch(
        **{key: tensor(key) for key in floats},
        group=tensor("group", torch.long),
        role=tensor("role", torch.long),
        accuracy=inputs["accuracy"],
    )
    batch.logp.requires_grad_()
    return batch


def name_of(case: dict[str, Any]) -> str:
    return f"{case['algorithm']}-{case['options']}-{len(case['inputs']['reward'])}"


@pytest.mark.parametrize("case", CASES, ids=name_of)
def test_golden(case: dict[str, Any]) -> None:
    batch, expect = batch_of(case["inputs"]), case["expect"]
    algorithm = get_algorithm(case["algorithm"], **case["options"])
    advantages = algorithm.advantages(batch)
    loss, metrics = algorithm.loss(batch, advantages)
    (gradient,) = torch.autograd.grad(loss, batch.logp)

    def golden(key: str) -> torch.Tensor:
        return torch.tensor(expect[key], dtype=torch.float64)

    torch.testing.assert_close(advantages, golden("advantages"), rtol=0, atol=1e-9)
    torch.testing.assert_close(loss.detach(), golden("loss"), rtol=0, atol=1e-9)
    torch.testing.assert_close(gradient * batch.mask, golden("grad_logp") * batch.mask, rtol=0, atol=1e-9)
    assert all(isinstance(v, float) for v in metrics.values())


@pytest.mark.parametrize("case", CASES, ids=name_of)
def test_micro_batches_add_up(case: dict[str, Any]) -> None:
    """Loss, gradient and metrics are sums over any micro-batches, in any order, however wide their padding."""
    batch = batch_of(case["inputs"])
    algorithm = get_algorithm(case["algorithm"], **case["options"])
    advantages = algorithm.advantages(batch)
    whole, whole_metrics = algorithm.loss(batch, advantages)
    (expected,) = torch.autograd.grad(whole, batch.logp)

    totals = count_totals(batch.role, batch.lengths)
    order = torch.randperm(len(batch.reward), generator=torch.Generator().manual_seed(3))
    loss, gradient, metrics = torch.zeros(()), torch.zeros_like(expected), {}
    for rows in order.split(5):
        part = batch.rows(rows)
        part.totals = totals
        width = int(part.lengths.max())  # less padding than the whole batch has
        for key in ("logp", "old_logp", "mask", "ref_logp", "entropy", "old_entropy"):
            setattr(part, key, getattr(part, key)[:, :width])
        a = advantages[rows] if advantages.dim() == 1 else advantages[rows, :width]
        share, share_metrics = algorithm.loss(part, a)
        gradient += torch.autograd.grad(share, batch.logp)[0]
        loss = loss + share.detach()
        for key, value in share_metrics.items():
            metrics[key] = metrics.get(key, 0.0) + value
    torch.testing.assert_close(loss.double(), whole.detach(), rtol=0, atol=1e-12)
    torch.testing.assert_close(gradient, expected, rtol=0, atol=1e-12)
    assert metrics == pytest.approx(whole_metrics, abs=1e-12)


@pytest.mark.parametrize("case", CASES[::2], ids=name_of)
def test_padding_content_is_never_read(case: dict[str, Any]) -> None:
    """Masks decide, whatever stands in the padding: non-finite values there change nothing."""
    batch = batch_of(case["inputs"])
    algorithm = get_algorithm(case["algorithm"], **case["options"])
    advantages = algorithm.advantages(batch)
    loss, _ = algorithm.loss(batch, advantages)
    padding = batch.mask == 0
    for key in ("old_logp", "ref_logp", "old_entropy", "entropy"):
        getattr(batch, key)[padding] = 7.0
    again, _ = algorithm.loss(batch, algorithm.advantages(batch))
    torch.testing.assert_close(again, loss, rtol=0, atol=1e-15)
