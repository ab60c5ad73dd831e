"""VSRM: step rewards and look-ahead by hand, forced answers, advantages, runs."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from scripted import drive, sample
from token_credit import LetterRenderer, check_micro_batches, check_run

from skpo import get_algorithm
from skpo.credit_tokens import step_rewards
from skpo.errors import ConfigError
from skpo.problems.base import Problem
from skpo.rollout.plans import PlanContext
from skpo.rollout.types import Group, Request, Sample
from skpo.trainer.batch import step_batch
from skpo.trainer.rollout_log import read_rollouts

PROBLEM, RENDER = Problem("q", "1", id="q"), LetterRenderer()
A = [0.25, 0.25, 0.5, 0.5, 0.5, 1.0]  #: gains 0, .25, 0, 0, .5


@pytest.mark.parametrize(
    ("window", "expected"),
    [
        (0, [0, 0.25, 0, 0, 0.5]),
        # decay .5. Step 1: the next gain is .25, times .5. Step 4: .5 * .5. Step 3: the next gain is 0, too
        (1, [0.125, 0.25, 0, 0.25, 0.5]),
        (2, [0.125, 0.25, 0.125, 0.25, 0.5]),  # step 3: .5 two steps on, times .5^2
        (9, [0.125, 0.25, 0.125, 0.25, 0.5]),
    ],
)
def test_step_rewards(window: int, expected: list[float]) -> None:
    assert step_rewards(A, 0.0, window, 0.5) == expected


def test_without_look_ahead_they_telescope() -> None:
    rng = np.random.default_rng(0)
    for _ in range(20):
        values = rng.integers(0, 5, size=rng.integers(2, 9)) / 4
        assert sum(step_rewards(values.tolist(), 0.0, 0, 0.7)) == pytest.approx(values[-1] - values[0])


def test_tolerance_and_losses() -> None:
    assert step_rewards([0.5, 0.55, 0.25], 0.1, 3, 0.5) == pytest.approx(
        [-0.15, -0.3]
    )  # a loss is looked ahead to as well
    assert step_rewards([0.5, 0.5, 0.5], 0.0, 3, 0.5) == [0, 0]
    assert step_rewards([0.5, 1.0], 0.0, 3, 0.5) == [0.5]


def answer(i: int, request: Request) -> list[Sample]:
    if i == 0:
        texts = ["ab;cd;ef", "abcd"][: request.n]
        return [sample(RENDER.encode(t), finished=True) for t in texts]
    return [sample(RENDER.encode("1"), finished=True) for _ in range(request.n)]


def rolled(positions: int | None = None, **options: object) -> tuple[Group, list[Request]]:
    algorithm = get_algorithm("vsrm", answers=4, force="#", answer_tokens=5, min_gap=1, **options)
    context = PlanContext(RENDER, 2, 20, rng=np.random.default_rng(0), positions=positions)
    return drive(algorithm.plan(PROBLEM, context), answer)


def test_answers_are_forced_at_every_cut() -> None:
    group, requests = rolled()
    forced = [(1, 2, *RENDER.encode(s)) for s in ("#", "ab;#", "ab;cd;#")]
    assert [(r.context, r.n, r.max_tokens) for r in requests] == [((1, 2), 2, 20), *((ids, 4, 5) for ids in forced)]
    assert RENDER.decode([*group.unused[-1].prefix, *group.unused[-1].tokens.tolist()]) == "ab;cd;#1"
    assert group.unused[-1].info["cut"] == 6
    assert group.generated_tokens == 8 + 4 + 12
    _, requests = rolled(positions=9)
    assert [r.max_tokens for r in requests] == [20, 5, 3]  # the model has no position for an answer after the last cut


def scored(algorithm: object, right: dict[int, int]) -> Group:
    """The group above, the first response right, the second wrong, and so many of the four answers at each cut right."""
    group, _ = rolled()
    group.samples[0].score, group.samples[1].score = 1.0, 0.0
    for j, probe in enumerate(group.unused):
        probe.score = float(j % 4 < right[probe.info["cut"]])
    algorithm.credit(group)  # type: ignore[attr-defined]
    return group


def test_advantages_via_rewards_to_go() -> None:
    """a = 1/4, 1/2, 1/2 at the cuts, R = 1: gains .25, 0, .5; with window 1 and decay .5 the second is .25. The second response has no
    cut: it loses .25.

    To go: 1 on tokens 1-3, .75 on 4-6, .5 on the last two; -.25 on the four of the other. Sum 3 + 2.25 + 1 - 1 = 5.25 over 12 tokens,
    mean .4375; squares 3 + 1.6875 + .5 + .25 = 5.4375, variance (5.4375 - 12 * .4375^2) / 11 = .285511, deviation .534333.
    """
    algorithm = get_algorithm("vsrm", window=1, decay=0.5)
    group = scored(algorithm, {0: 1, 3: 2, 6: 2})
    assert group.samples[0].info["step_rewards"] == [0.25, 0.25, 0.5]
    assert group.samples[1].info["step_rewards"] == [-0.25]
    batch = step_batch([group]).batch
    assert batch.token_reward is not None
    assert batch.token_reward.tolist() == [[0, 0, 0.25, 0, 0, 0.25, 0, 0.5], [0, 0, 0, -0.25, 0, 0, 0, 0]]
    expected = (torch.tensor([[1.0] * 3 + [0.75] * 3 + [0.5] * 2, [-0.25] * 4 + [0.0] * 4]) - 0.4375) / 0.534333
    expected[1, 4:] = 0
    torch.testing.assert_close(algorithm.advantages(batch), expected.double(), rtol=0, atol=1e-5)


def test_without_whitening_the_first_token_gets_the_whole_gain() -> None:
    algorithm = get_algorithm("vsrm", window=0, whiten=False)
    batch = step_batch([scored(algorithm, {0: 1, 3: 4, 6: 2})]).batch
    assert algorithm.advantages(batch)[:, 0].tolist() == [0.75, -0.25]  # R - a_0
    paid = get_algorithm("vsrm", window=0, whiten=False, outcome=2.0).advantages(batch)
    assert paid[:, 0].tolist() == [2.75, -0.25]


def test_last_forced() -> None:
    group = scored(get_algorithm("vsrm", last="forced", window=0), {0: 1, 3: 2, 6: 2})
    assert group.samples[0].info["step_rewards"] == [0.25, 0, 0]


def test_via_gae() -> None:
    # rewards .25, 0, .5 at the ends of steps of 3, 3 and 2 tokens; V = .5 everywhere, lam 0: delta = r + V' - V
    algorithm = get_algorithm("vsrm", via="gae", lam=0.0, window=0, whiten=False)
    batch = step_batch([scored(algorithm, {0: 1, 3: 2, 6: 2})]).batch
    batch.value = torch.full_like(batch.mask, 0.5)
    expected = [[0, 0, 0.25, 0, 0, 0, 0, 0], [0, 0, 0, -0.75, 0, 0, 0, 0]]
    torch.testing.assert_close(algorithm.advantages(batch), torch.tensor(expected, dtype=torch.float64))


def test_options_are_checked() -> None:
    for wrong in ({"answers": 0}, {"window": -1}, {"force": ""}, {"markers": "So"}):
        with pytest.raises(ConfigError):
            get_algorithm("vsrm", **wrong)


@pytest.mark.parametrize("via", ["reinforce_pp", "gae"])
def test_micro_batches(via: str) -> None:
    check_micro_batches("vsrm", via=via)


@pytest.mark.parametrize("via", ["reinforce_pp", "gae"])
def test_run(tmp_path: Path, via: str) -> None:
    options = ["algorithm=vsrm", 'algorithm.force="#"', "algorithm.answer_tokens=8", f"algorithm.via={via}"]
    metrics = check_run(tmp_path / "run", *options)
    assert metrics[0]["steps_per_response"] > 3
    assert ("value_loss" in metrics[0]) == (via == "gae")
    probes = [r for r in read_rollouts(tmp_path / "run", [1]).to_pylist() if not r["chosen"]]
    assert all("#" in r["text"] and r["score"] is not None for r in probes)
    assert 0 < np.mean([r["score"] for r in probes]) < 1
