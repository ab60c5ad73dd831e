"""Advantages, trackers and curricula against values that can be derived by hand."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from support import vectors

from skpo import get_algorithm
from skpo.credit import Tracker, batch_normalized, group_relative, leave_one_out, overlong_penalty, whitened
from skpo.curriculum import Sampler, gaussian_weight, priority
from skpo.errors import ConfigError
from skpo.problems.base import Problem

SMALL = vectors("small.json")


def tensor(*values: float) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.float64)


def one_group(n: int) -> torch.Tensor:
    return torch.zeros(n, dtype=torch.long)


def test_group_relative_reference_values() -> None:
    # mean 1/4; sample variance (9/16 + 3/16) / 3 = 1/4, so sd 1/2: 0.75 / 0.5 = 1.5
    a = group_relative(tensor(1, 0, 0, 0), one_group(4))
    torch.testing.assert_close(a, tensor(1.5, -0.5, -0.5, -0.5), atol=1e-5, rtol=0)
    # population variance (9/16 + 3/16) / 4 = 3/16: 0.75 / 0.4330 = 1.7321
    a = group_relative(tensor(1, 0, 0, 0), one_group(4), ddof=0)
    torch.testing.assert_close(a, tensor(1.7321, -0.5774, -0.5774, -0.5774), atol=1e-4, rtol=0)


@pytest.mark.parametrize("base", [1.0, 2.0, 1e3])
def test_close_rewards_are_not_equal_ones(base: float) -> None:
    # deviation 5e-6, sd 7.0711e-6: 5e-6 / (7.0711e-6 + 1e-6) = 0.6195
    a = group_relative(tensor(base, base + 1e-5), one_group(2))
    torch.testing.assert_close(a, tensor(-0.6196, 0.6196), atol=2e-4, rtol=0)


def test_equal_rewards_give_exactly_zero() -> None:
    thirds = tensor(*[0.1 + 0.2] * 7)  # their computed mean differs from them in the last bit
    assert (group_relative(thirds, one_group(7)) == 0).all()
    assert (leave_one_out(thirds, one_group(7)) == 0).all()
    assert (batch_normalized(thirds) == 0).all()
    assert (group_relative(tensor(3.0), one_group(1)) == 0).all()


def test_groups_need_not_be_contiguous() -> None:
    group = torch.tensor([4, 7, 4, 7])
    a = group_relative(tensor(1, 0, 0, 1), group, scale=False)
    torch.testing.assert_close(a, tensor(0.5, -0.5, -0.5, 0.5))


def test_leave_one_out() -> None:
    # 1 - (0 + 0 + 1)/3 = 2/3; 0 - (1 + 0 + 1)/3 = -2/3
    torch.testing.assert_close(leave_one_out(tensor(1, 0, 0, 1), one_group(4)), tensor(2, -2, -2, 2) / 3)


def test_batch_normalized_short_batches() -> None:
    torch.testing.assert_close(batch_normalized(tensor(0.7)), tensor(0.7))
    torch.testing.assert_close(batch_normalized(tensor(0, 1)), tensor(-0.7071, 0.7071), atol=1e-4, rtol=0)


def test_whitened_weighs_by_tokens() -> None:
    # tokens: 1, 1, 1, 0 -> mean 3/4, sum of squares 3/16 + 9/16 = 3/4, variance 3/4 / 3 = 1/4
    mask = torch.tensor([[1.0, 1, 1], [1, 0, 0]])
    torch.testing.assert_close(whitened(tensor(1, 0), mask), tensor(0.5, -1.5), atol=1e-5, rtol=0)
    by_token = whitened(torch.tensor([[1.0, 1, 1], [0, 9, 9]]), mask)
    torch.testing.assert_close(by_token[0], tensor(0.5, 0.5, 0.5), atol=1e-5, rtol=0)
    assert by_token[1, 0].item() == pytest.approx(-1.5, abs=1e-5)


@pytest.mark.parametrize("case", SMALL["overlong"])
def test_overlong(case: dict) -> None:
    assert overlong_penalty(case["length"], case["limit"], case["buffer"]) == pytest.approx(case["penalty"], abs=1e-12)


@pytest.mark.parametrize("case", SMALL["tracker"])
def test_tracker(case: dict) -> None:
    tracker = Tracker(
        half_life=case["half_life"], rho_min=case["rho_min"], rho_max=case["rho_max"], start=case["start"]
    )
    for x, distance, step in zip(case["observations"], case["distances"], case["steps"], strict=True):
        assert tracker.value("q") == pytest.approx(step["before"], abs=1e-12)
        assert tracker.rho(distance) == pytest.approx(step["rho"], abs=1e-12)
        assert tracker.update("q", x, distance=distance) == pytest.approx(step["value"], abs=1e-12)
        assert tracker.count("q") == pytest.approx(step["count"], abs=1e-12)


def test_tracker_counts_optimizer_steps() -> None:
    by_step, by_distance = Tracker(half_life=8.0), Tracker(half_life=8.0)
    for step, x in [(0, 1.0), (1, 0.0), (3, 0.5)]:
        by_step.update("q", x, step=step)
    for distance, x in [(0, 1.0), (1, 0.0), (2, 0.5)]:
        by_distance.update("q", x, distance=distance)
    assert by_step.value("q") == by_distance.value("q")


def test_tracker_warm_start_and_state() -> None:
    # SPO's reference value: v = 0.5, N = 8, rho = 0.9, R = 1 -> 0.5 + 0.5 / 8.2 = 0.560976
    tracker = Tracker(rho_min=0.9, rho_max=0.9)
    tracker.seed("q", 0.5, 8)
    assert tracker.update("q", 1.0) == pytest.approx(0.560976, abs=1e-6)
    other = Tracker()
    other.load_state_dict(tracker.state_dict())
    assert other.entries == tracker.entries


@pytest.mark.parametrize("case", SMALL["priority"])
def test_priority(case: dict) -> None:
    assert priority(case["value"]) == pytest.approx(case["weight"], abs=1e-12)


@pytest.mark.parametrize("case", SMALL["gaussian"])
def test_gaussian(case: dict) -> None:
    assert gaussian_weight(case["value"]) == pytest.approx(case["weight"], abs=1e-12)


def problems(n: int) -> list[Problem]:
    return [Problem(f"p{i}", "1", id=str(i)) for i in range(n)]


def test_uniform_draw_sees_all_equally_often() -> None:
    sampler = Sampler(problems(10), seed=0)
    drawn = [p.id for step in range(5) for p in sampler.draw(4, step)]
    assert sorted(drawn) == sorted([str(i) for i in range(10)] * 2)
    again = Sampler(problems(10), seed=0)
    assert [p.id for step in range(5) for p in again.draw(4, step)] == drawn
    assert [p.id for step in range(5) for p in Sampler(problems(10), seed=1).draw(4, step)] != drawn


def test_draws_are_without_replacement_and_resume() -> None:
    weights = {str(i): 1.0 + i for i in range(10)}
    sampler = Sampler(problems(10), 0, weights.__getitem__)
    first = sampler.draw(6, step=0)
    assert len({p.id for p in first}) == 6
    more = sampler.draw(6, step=0, taken={p.id for p in first})
    assert len(more) == 4
    assert not {p.id for p in first} & {p.id for p in more}
    other = Sampler(problems(10), 0, weights.__getitem__)
    other.load_state_dict(sampler.state_dict())
    assert [p.id for p in other.draw(5, 1)] == [p.id for p in sampler.draw(5, 1)]


def test_weighted_draw_follows_weights() -> None:
    # one draw: probability proportional to the weight, 3 : 1; 4000 draws, standard error 0.007
    sampler = Sampler(problems(2), 0, lambda key: 3.0 if key == "0" else 1.0)
    share = np.mean([sampler.draw(1, step)[0].id == "0" for step in range(4000)])
    assert share == pytest.approx(0.75, abs=0.03)


def test_empty_pool_is_an_error() -> None:
    with pytest.raises(ConfigError, match="no problems"):
        Sampler([], 0)


def test_sapo_gate_reference_values() -> None:
    from skpo.algorithms.sapo import soft_gate

    values = soft_gate(tensor(0.5, 1, 1.5, 2), 1.0)
    torch.testing.assert_close(values, tensor(1.51016, 2, 2.48984, 2.92423), atol=1e-5, rtol=0)


def test_reliability_of_pure_noise_is_zero() -> None:
    """R_I that is nothing but G coin flips has the variance that the noise term predicts: 4 p (1 - p) / (G - 1), on average."""
    from skpo.losses import TokenBatch

    rng = np.random.default_rng(0)
    wins = rng.binomial(1, 0.5, size=(400, 8)) * 2.0 - 1
    reward = torch.tensor(np.concatenate([wins.reshape(-1), wins.mean(1)]))
    n = len(reward)
    role = torch.tensor([0] * 3200 + [1] * 400)
    group = torch.tensor([i for i in range(400) for _ in range(8)] + list(range(400)))
    ones = torch.ones(n, 1)
    batch = TokenBatch(reward, group, role, torch.zeros(n), ones, ones, ones)
    algorithm = get_algorithm("skpo", upstream_weight="reliability")
    algorithm.advantages(batch)
    assert algorithm.reliability < 0.15
    # R_I that differs by problem: p is 0 or 1, no noise at all, all of the spread is real
    sure = torch.tensor([1.0] * 1600 + [-1.0] * 1600 + [1.0] * 200 + [-1.0] * 200, dtype=torch.float64)
    batch.reward = sure
    advantages = algorithm.advantages(batch)
    assert algorithm.reliability == 1.0
    assert advantages[3200].item() == pytest.approx(math.sqrt(399 / 400), abs=1e-5)  # sample deviation of +-1


def test_unknown_names_and_options() -> None:
    with pytest.raises(ConfigError, match=r'unknown algorithm "grp".*Did you mean "grpo"'):
        get_algorithm("grp")
    with pytest.raises(
        ConfigError, match=r'algorithm grpo: unknown option "clip_hi".*Did you mean "clip_high".*Known: .*beta'
    ):
        get_algorithm("grpo", clip_hi=1)
