"""What holds for every algorithm: no gradient from equal rewards, state that survives a checkpoint, a card that explains it."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest
import torch
from support import vectors

from skpo import get_algorithm
from skpo.algorithms import list_algorithms
from skpo.algorithms.base import Algorithm, StepContext
from skpo.losses import TokenBatch
from skpo.problems.base import Problem
from skpo.rollout.types import REFINEMENT, SEGMENT, Group, Sample

NAMES = sorted({case["algorithm"] for case in vectors("objectives.json")["cases"]})
GROUP_RELATIVE = [n for n in NAMES if n not in ("skpo", "spo")]


def batch(reward: list[float], role: list[int]) -> TokenBatch:
    """Two groups of four rows, the policy a little away from the old one."""
    rng = np.random.default_rng(0)
    old = torch.tensor(-rng.exponential(size=(8, 5)))
    logp = (old + torch.tensor(rng.normal(size=(8, 5))) * 0.1).clamp(max=-1e-3).requires_grad_()
    mask = (torch.arange(5)[None] < torch.tensor([5, 4, 3, 5, 1, 2, 5, 4])[:, None]).double()
    entropy = torch.tensor(rng.uniform(0.5, 2, size=(8, 5)))
    return TokenBatch(
        torch.tensor(reward, dtype=torch.float64), torch.tensor([0] * 4 + [1] * 4), torch.tensor(role),
        torch.zeros(8, dtype=torch.float64), logp, old, mask, ref_logp=old - 0.1, entropy=entropy,
        old_entropy=entropy + 0.1, accuracy=0.5,
    )  # fmt: skip


def make(name: str, **options: Any) -> Algorithm:
    algorithm = get_algorithm(name, **options)
    algorithm.budget = 16
    return algorithm


def roles(name: str) -> list[int]:
    last = {"skpo": SEGMENT, "critique_grpo": REFINEMENT}.get(name, 0)
    return [0, 0, 0, last] * 2


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("value", [0.0, 1.0, 0.1 + 0.2, -1.0])
def test_equal_rewards_are_never_nan(name: str, value: float) -> None:
    b = batch([value] * 8, roles(name))
    algorithm = make(name)
    advantages = algorithm.advantages(b)
    loss, metrics = algorithm.loss(b, advantages)
    (gradient,) = torch.autograd.grad(loss, b.logp)
    assert gradient.isfinite().all()
    assert all(np.isfinite(v) for v in metrics.values())
    assert (advantages == 0).all()


@pytest.mark.parametrize("name", GROUP_RELATIVE)
def test_an_even_group_beside_a_mixed_one_gets_nothing(name: str) -> None:
    b = batch([1.0] * 4 + [1.0, 0.0, 0.0, 1.0], roles(name))
    algorithm = make(name, **({"beta": 0.0} if name == "expo" else {}))
    advantages = algorithm.advantages(b)
    (gradient,) = torch.autograd.grad(algorithm.loss(b, advantages)[0], b.logp)
    if name != "reinforce_pp":  # whitening over the batch's tokens moves everyone
        assert (gradient[:4] == 0).all()
    assert gradient[4:].abs().sum() > 0
    assert gradient.isfinite().all()


@pytest.mark.parametrize("name", NAMES)
def test_one_row_alone(name: str) -> None:
    whole = batch([1.0, 0.0, 1.0, 0.0] * 2, [0] * 8)
    one = whole.rows(torch.tensor([0]))
    one.totals = None
    algorithm = make(name)
    loss, _ = algorithm.loss(one, algorithm.advantages(one))
    assert torch.isfinite(loss)


def groups(name: str) -> list[Group]:
    out = []
    for p in range(3):
        samples = [
            Sample((1, 2), np.arange(3 + i), np.full(3 + i, -0.5, np.float32), True, score=float((i + p) % 2))
            for i in range(4)
        ]
        if name == "skpo":
            samples.append(Sample((1,), np.arange(2), np.zeros(2, np.float32), False, role=SEGMENT))
        out.append(Group(Problem(f"p{p}", "1", id=f"p{p}"), samples))
    return out


@pytest.mark.parametrize("name", NAMES)
def test_state_survives_json(name: str) -> None:
    first, second = make(name), make(name)

    def step(algorithm: Algorithm, number: int) -> None:
        seen = groups(name)[number % 2 :]
        for group in seen:
            algorithm.credit(group)
        metrics = algorithm.observe(
            seen, StepContext(number, number, lambda rows: [np.full(len(t), -0.4 * (number + 1)) for _, t in rows])
        )
        assert all(isinstance(v, float) for v in metrics.values())

    step(first, 0)
    step(first, 1)
    second.load_state_dict(json.loads(json.dumps(first.state_dict())))
    for algorithm in (first, second):
        step(algorithm, 2)
    assert first.state_dict() == second.state_dict()
    assert first.problem_weight("p0") == second.problem_weight("p0")
    assert bool(first.state_dict()) == (name in ("skpo", "spo"))


@pytest.mark.parametrize("cls", list_algorithms(), ids=lambda c: c.name)
def test_every_algorithm_explains_itself(cls: type[Algorithm]) -> None:
    assert cls.name
    assert cls.summary
    assert cls.keeps
    assert len(cls.arxiv.split(".")) == 2
    assert cls.arxiv in (cls.__doc__ or "")
    cls()  # the defaults are valid
