"""Plans: what is asked for, what is kept, and where segments are cut (SKPO section 3.1)."""

from __future__ import annotations

import pickle

import numpy as np
import pytest
from scripted import TextlessRenderer, drive, sample
from support import vectors

from skpo import get_algorithm
from skpo.algorithms.base import StepContext
from skpo.errors import ConfigError
from skpo.problems.base import Problem
from skpo.rollout.plans import (
    PlanContext,
    branch_plan,
    cut_segment,
    draw_stop,
    draw_stops,
    extreme_index,
    group_plan,
    median_index,
    rank,
    skip_plan,
)
from skpo.rollout.types import Sampling, derive_seed
from skpo.trainer.batch import step_batch
from skpo.trainer.judge import drop_unscored

PROBLEM = Problem("q", "1", id="q")


def context(n: int = 4, budget: int = 50, step: int = 0) -> PlanContext:
    return PlanContext(TextlessRenderer(), n, budget, Sampling(), step, np.random.default_rng(0))


@pytest.mark.parametrize("case", vectors("small.json")["median"])
def test_median(case: dict) -> None:
    assert median_index(case["mean_nll"]) == case["chosen"]


def test_median_tie_is_decided_within_1e9() -> None:
    # the two middle values are always equally far from their mean, whatever rounding says
    assert median_index([0.3, 0.1, 0.1 + 0.2, 0.7]) == 0
    assert median_index([float("inf"), 2.0, 1.0]) == 1  # an empty segment is never chosen
    assert median_index([float("inf"), float("inf")]) == 0


def test_extremes_and_rank() -> None:
    values = [0.4, float("inf"), 0.1, 0.9]
    assert (extreme_index(values, highest=False), extreme_index(values, highest=True)) == (2, 3)
    assert [rank(values, i) for i in range(4)] == [1, 3, 0, 2]


def test_cut_segment() -> None:
    full = cut_segment(sample([5, 6, 7]))
    assert full.tokens.tolist() == [5, 6, 7]
    assert full.role == 1
    # 5 own tokens and an end-of-sequence: half of 5 is 2
    cut = cut_segment(sample([5, 6, 7, 8, 9, 0], [-1, -2, -3, -4, -5, -6], finished=True))
    assert cut.tokens.tolist() == [5, 6]
    assert cut.logp.tolist() == [-1, -2]
    assert cut.info["sampled"] == 6
    assert cut_segment(sample([5, 0], finished=True)).tokens.tolist() == [5]  # at least one token
    assert cut_segment(sample([0], finished=True)).tokens.tolist() == []  # there is none to keep


def test_group_plan() -> None:
    group, requests = drive(group_plan(PROBLEM, context(3)), lambda i, r: [sample([5]) for _ in range(r.n)])
    assert [(r.context, r.n, r.max_tokens) for r in requests] == [((1, 2), 3, 50)]
    assert len(group.completions) == 3


def skip_answers(i: int, request):
    if i == 0:
        logps = [-0.9, -0.2, -0.5, -0.7]
        return [sample([10 + k] * 6, [logp] * 6) for k, logp in enumerate(logps)]
    return [sample([20 + k], finished=True) for k in range(request.n)]


def test_skip_plan() -> None:
    plan = skip_plan(PROBLEM, context(), length=12, low=0.5, high=0.5)
    group, requests = drive(plan, skip_answers)
    # t_q = 6; d = .9 .2 .5 .7, median .6: .5 and .7 tie, the lower index wins
    assert [(r.context, r.n, r.max_tokens) for r in requests] == [((1, 2), 4, 6), ((12,) * 6 + (9, 1, 2), 4, 50)]
    assert [s.role for s in group.samples] == [0, 0, 0, 0, 1]
    assert group.segments[0].tokens.tolist() == [12] * 6
    assert group.segments[0].context == (1, 2)
    assert [s.tokens[0] for s in group.unused] == [10, 11, 13]
    assert group.info["chosen"] == 2
    assert group.info["chosen_rank"] == 1
    assert group.generated_tokens == 4 * 6 + 4


def test_skip_plan_ablations() -> None:
    continual, requests = drive(skip_plan(PROBLEM, context(), length=12, low=0.5, high=0.5, skip=False), skip_answers)
    assert requests[1].context == (1, 2, *[12] * 6)
    assert all(c.prefix == (12,) * 6 for c in continual.completions)
    assert continual.info["own"] is continual.completions[0]

    own, requests = drive(skip_plan(PROBLEM, context(), length=12, low=0.5, high=0.5, own_outcome=True), skip_answers)
    assert [(r.context, r.n) for r in requests[1:]] == [((1, 2, *[12] * 6), 1), ((12,) * 6 + (9, 1, 2), 4)]
    assert own.info["own"] in own.unused
    assert own.info["own"].info["verify"]

    for step, chosen in [(0, 1), (1, 0)]:  # lowest d first, then highest
        extreme, _ = drive(
            skip_plan(PROBLEM, context(step=step), length=12, low=0.5, high=0.5, select="extreme"), skip_answers
        )
        assert extreme.info["chosen"] == chosen

    _, requests = drive(skip_plan(PROBLEM, context(), length=12, low=0.5, high=0.5, budget="remaining"), skip_answers)
    assert requests[1].max_tokens == 50 - 6


def test_skip_plan_survives_empty_segments() -> None:
    group, requests = drive(
        skip_plan(PROBLEM, context(2), length=10), lambda i, r: [sample([0], finished=True) for _ in range(r.n)]
    )
    assert requests[1].context == (9, 1, 2)
    assert group.segments == []
    assert len(group.completions) == 2
    assert group.generated_tokens == 4


def test_stop_positions() -> None:
    rng = np.random.default_rng(0)
    stops = [draw_stop(60, 1 / 6, 1 / 2, rng) for _ in range(4000)]
    assert min(stops) == 10
    assert max(stops) == 30
    assert np.mean(stops) == pytest.approx(20, abs=0.3)  # sd 5.8 / sqrt(4000) = 0.09
    assert draw_stop(1, 1 / 6, 1 / 2, rng) == 1
    assert [draw_stop(60, 1 / 6, 1 / 2, rng, alternate=s) for s in range(3)] == [10, 30, 10]


def test_split_range_beyond_one_half() -> None:
    group, requests = drive(skip_plan(PROBLEM, context(budget=14), length=12, low=1.0, high=1.5), skip_answers)
    assert 12 <= requests[0].max_tokens <= 14  # of 18: the completion budget is the segment's too
    assert group.info["split"] == requests[0].max_tokens / 12


def test_stop_positions_of_several_stages_ascend() -> None:
    stops = draw_stops(600, 1 / 6, 1 / 2, np.random.default_rng(0), splits=4)
    assert stops == sorted(stops)
    assert all(100 <= s <= 300 for s in stops)
    assert draw_stops(60, 1 / 6, 1 / 2, np.random.default_rng(3)) == [
        draw_stop(60, 1 / 6, 1 / 2, np.random.default_rng(3))
    ]


def test_each_stage_extends_the_segment_before() -> None:
    """Stages that end at the same draw (low = high) still add a token each, and are trained where they were sampled."""

    def answers(i: int, request):
        if i < 2:
            return [sample([10 * (i + 1) + k] * request.max_tokens, [-0.1 * k] * request.max_tokens) for k in range(4)]
        return [sample([7], finished=True) for _ in range(request.n)]

    group, requests = drive(skip_plan(PROBLEM, context(), length=12, low=0.25, high=0.25, splits=2), answers)
    # d = 0 .1 .2 .3, median .15: .1 and .2 tie, the lower index wins. Stage 1 gives 11 11 11, stage 2 one token 21.
    assert [(r.context, r.max_tokens) for r in requests[:2]] == [((1, 2), 3), ((1, 2, 11, 11, 11), 1)]
    assert requests[2].context == (11, 11, 11, 21, 9, 1, 2)
    assert [(s.context, s.tokens.tolist()) for s in group.segments] == [
        ((1, 2), [11, 11, 11]),
        ((1, 2, 11, 11, 11), [21]),
    ]
    assert group.generated_tokens == 4 * 3 + 4 * 1 + 4

    algorithm = get_algorithm("skpo", splits=2)
    for s, score in zip(group.completions, [1.0, 0.0, 1.0, 1.0], strict=True):
        s.score = score
    algorithm.credit(group)
    assert [s.reward for s in group.segments] == [0.5, 0.5]  # of all that follows: the same completions


def branch_answers(i: int, request):
    if i == 0:
        return [sample([10 + k] * 3) for k in range(request.n)]
    return [sample([20 * i + k], finished=True) for k in range(request.n)]


def test_branches_keep_every_segment() -> None:
    plan = branch_plan(PROBLEM, context(4), length=12, branches=2, low=0.25, high=0.25)
    group, requests = drive(plan, branch_answers)
    assert [(r.context, r.n, r.max_tokens) for r in requests] == [
        ((1, 2), 2, 3),
        ((10, 10, 10, 9, 1, 2), 2, 50),
        ((11, 11, 11, 9, 1, 2), 2, 50),
    ]
    assert [s.info["subgroup"] for s in group.completions] == [0, 0, 1, 1]
    assert [s.info["subgroup"] for s in group.segments] == [0, 1]
    assert group.unused == []
    for branches in (1, 3, 4):
        with pytest.raises(ConfigError, match=r"choose algorithm\.branches"):
            next(branch_plan(PROBLEM, context(4), length=12, branches=branches))


def test_branches_are_credited_against_their_mean() -> None:
    algorithm = get_algorithm("skpo", select="all", initial_length=12)
    algorithm.values.seed("q", 0.9, 4)  # takes no part
    group, _ = drive(algorithm.plan(PROBLEM, context()), branch_answers)
    for s, score in zip(group.completions, [1.0, 0.0, 1.0, 1.0], strict=True):
        s.score = score
    algorithm.credit(group)
    # V(s_0) = (1 - 1)/2 = 0, V(s_1) = 1, their mean 1/2
    assert [(s.reward, s.baseline) for s in group.segments] == [(0.0, 0.5), (1.0, 0.5)]
    data = step_batch([group, group])
    assert data.batch.group.tolist() == [0, 0, 1, 1, 0, 1, 2, 2, 3, 3, 2, 3]
    advantages = algorithm.advantages(data.batch)[:6].tolist()
    # within branch 0: +-1 over a sample deviation of sqrt 2; branch 1: all equal
    assert advantages[:4] == pytest.approx([0.70711, -0.70711, 0, 0], abs=1e-5)
    # -+1/2 over the batch's four segments: sample deviation sqrt(4 * 0.25 / 3) = 0.57735
    assert advantages[4:] == pytest.approx([-0.86602, 0.86602], abs=1e-4)

    algorithm.observe([group], StepContext(0, 0, lambda pairs: []))
    # a path is one segment and one completion: (3 + 3) / 2 + 1 = 4; the first observation overwrites
    segment, completion = len(group.segments[0]), 1
    assert algorithm.lengths.value("q") == segment + completion


def test_a_branch_without_any_score_is_left_out() -> None:
    algorithm = get_algorithm("skpo", select="all", initial_length=12)
    group, _ = drive(algorithm.plan(PROBLEM, context()), branch_answers)
    for s in group.completions:
        s.score = None if s.info["subgroup"] == 0 else 1.0
    drop_unscored(group)
    algorithm.credit(group)
    assert [s.info["subgroup"] for s in group.segments] == [1]
    assert len(group.unused) == 3


def test_skpo_credit_uses_the_value_before_this_visit() -> None:
    algorithm = get_algorithm("skpo", initial_length=12)
    algorithm.values.seed("q", 0.75, 4)
    group, _ = drive(algorithm.plan(PROBLEM, context()), skip_answers)
    for s, score in zip(group.completions, [1.0, 0.0, 1.0, 1.0], strict=True):
        s.score = score
    algorithm.credit(group)
    assert [s.reward for s in group.completions] == [1, -1, 1, 1]
    assert group.segments[0].reward == 0.5  # (1 - 1 + 1 + 1) / 4
    assert group.segments[0].baseline == 0.5  # 2 * 0.75 - 1


def test_skpo_own_outcome_rewards_the_segment() -> None:
    algorithm = get_algorithm("skpo", upstream_reward="own")
    group, _ = drive(algorithm.plan(PROBLEM, context()), skip_answers)
    for s in group.completions:
        s.score = 1.0
    group.info["own"].score = 0.0
    algorithm.credit(group)
    assert group.segments[0].reward == -1.0


def test_seeds_depend_on_every_part() -> None:
    seeds = {
        derive_seed(*parts) for parts in [(0, 1, "a"), (0, 1, "b"), (0, 2, "a"), (1, 1, "a"), (0, "1a"), (0, 11, "")]
    }
    assert len(seeds) == 6
    assert derive_seed(0, 1, "a") == derive_seed(0, 1, "a") < 2**63


def test_a_plan_travels_until_it_begins() -> None:
    """Pickled and back it asks for the same; once begun it refuses."""
    plan = skip_plan(PROBLEM, context(), length=20)
    copy = pickle.loads(pickle.dumps(plan))
    first = next(plan)
    assert next(copy) == first
    with pytest.raises(TypeError, match="skip_plan has begun"):
        pickle.dumps(plan)


def test_a_plan_closed_or_broken_before_it_begins() -> None:
    plan = group_plan(PROBLEM, context())
    plan.close()
    with pytest.raises(ValueError, match="now"):
        plan.throw(ValueError("now"))
