"""Rollouts on Ray workers: what comes back, under which weights, and how plans are shared out."""

from __future__ import annotations

import os
import pickle
import signal
import sys
from collections.abc import Callable
from functools import partial

import numpy as np
import pytest
import torch
from rollout.ray.pools import Told, in_order, killing, ray_config, runs, tokens

from skpo.errors import ConfigError, RunError, SkpoError, WorkersLostError
from skpo.policy.loading import load_policy
from skpo.policy.scoring import ScoringModel, score_rows
from skpo.problems.base import Problem
from skpo.rollout.embedded import EmbeddedEngine
from skpo.rollout.plans import PlanContext, refine_plan
from skpo.rollout.probe import TOLERANCE, Verdict
from skpo.rollout.ray.parcels import Weights, pack_run
from skpo.rollout.types import Group, Plan, PlanRun, Request, plan_function
from skpo.settings import load_config
from skpo.trainer.judge import Judge

Make = Callable[..., Told]


def test_samples_are_those_of_one_worker_two_workers_and_no_worker(make_pool: Make, pair: Told) -> None:
    pools = [make_pool(), pair]
    found = [in_order(pool.run(runs(pool, 12))) for pool in pools]
    policy = pools[0].policy
    here = EmbeddedEngine(policy.model, eos_ids=policy.eos_ids)
    expected = in_order(here.run(runs(pools[0], 12)))
    for groups in found:
        assert tokens(groups) == tokens(expected)
        for group, twin in zip(groups, expected, strict=True):
            for sample, other in zip(group.samples, twin.samples, strict=True):
                np.testing.assert_allclose(sample.logp, other.logp, atol=1e-5)
            assert group.info["chosen"] == twin.info["chosen"]
    pools[0].close()
    stats = pair.take_stats()
    assert stats.generated_tokens == sum(g.generated_tokens for g in found[1])
    assert 0 < stats.computed <= stats.rows
    assert stats.more["workers"] == 2


def test_a_later_run_takes_the_newest_weights_and_a_begun_one_keeps_its_own(pair: Told) -> None:
    pool = pair
    pool.take_stats()
    old = pool.run(runs(pool, 6))
    first = [next(old)]
    with torch.no_grad():
        for p in pool.policy.model.parameters():
            p.mul_(1.02)
    pool.update_weights(None, 1)
    groups = in_order([*first, *old])
    assert {s.version for g in groups for s in g.samples} == {0}
    new = in_order(pool.run(runs(pool, 6)))
    assert {s.version for g in new for s in g.samples} == {1}
    rows = [(s.context, s.tokens) for g in new for s in g.samples]
    scored = score_rows(ScoringModel(pool.policy.model), rows, device="cpu", budget=4096)[0]
    for sample, logp in zip((s for g in new for s in g.samples), scored, strict=True):
        np.testing.assert_allclose(sample.logp, logp, atol=1e-4)
    more = pool.take_stats().more
    full = sum(p.numel() * 4 for p in pool.policy.model.parameters())
    assert more["weights_bytes"] == full  # once a version, whatever the number of workers
    assert more["probe_deviation"] < 1e-4


@pytest.fixture(scope="module")
def lora(make_pool: Make) -> Told:
    return make_pool("model.lora.r=4")


def test_adapters_alone_travel_and_arrive(lora: Told) -> None:
    pool = lora
    adapters = pool.policy.trainable
    assert pool.take_stats().more["weights_bytes"] == 4 * sum(p.numel() for p in adapters)
    generator = torch.Generator().manual_seed(0)
    before = in_order(pool.run(runs(pool, 2)))
    with torch.no_grad():
        for p in adapters:
            p.add_(0.1 * torch.randn(p.shape, generator=generator))
    pool.update_weights(None, 1)
    after = in_order(pool.run(runs(pool, 2)))
    assert tokens(before) != tokens(after)
    rows = [(s.context, s.tokens) for g in after for s in g.samples]
    scored = score_rows(ScoringModel(pool.policy.model), rows, device="cpu", budget=4096)[0]
    for sample, logp in zip((s for g in after for s in g.samples), scored, strict=True):
        np.testing.assert_allclose(sample.logp, logp, atol=1e-4)


def test_weights_that_did_not_arrive_are_found(lora: Told, monkeypatch: pytest.MonkeyPatch) -> None:
    """The old adapters are sent again in place of the new ones, which one small update has moved."""
    pool = lora
    pool.update_weights(None, 2)
    stale = Weights.of([(n, p.clone()) for n, p in pool._trained()], 3)
    in_order(pool.run(runs(pool, 1)))
    with torch.no_grad():
        for p in pool.policy.trainable:
            p.add_(1e-4)
    monkeypatch.setattr(Weights, "of", classmethod(lambda cls, named, version: stale))
    pool.update_weights(None, 3)
    with pytest.raises(RunError, match="worker 0 does not sample from the trainer's weights of version 3"):
        in_order(pool.run(runs(pool, 1)))


def test_what_arrived_means() -> None:
    rng = np.random.default_rng(0)
    old = rng.normal(size=(4, 16))
    noise, step = 1e-6 * rng.normal(size=old.shape), 1e-4 * rng.normal(size=old.shape)
    new = old + step
    assert Verdict(new, new + noise, old, TOLERANCE).good
    assert not Verdict(new, old + noise, old, TOLERANCE).good
    assert not Verdict(new, new + 1, None, TOLERANCE).good
    assert not Verdict(new, new * np.nan, None, TOLERANCE).good
    nearly = old + 1e-7 * rng.normal(size=old.shape)  # an update smaller than rounding proves nothing
    assert Verdict(nearly, nearly + noise, old, TOLERANCE).good


def test_a_slow_worker_gets_no_new_problems(pair: Told, monkeypatch: pytest.MonkeyPatch) -> None:
    """One of two stands still with what it has: the other one does all the rest meanwhile."""
    pool = pair
    monkeypatch.setattr(pool, "settings", pool.settings.model_copy(update={"in_flight": 2}))
    in_order(pool.run(runs(pool, 2)))
    slow = pool.members[0]
    running = pool.run(runs(pool, 12, step=1))
    groups = [next(running)]
    os.kill(slow.pid, signal.SIGSTOP)
    try:
        while len(slow.flight) + len(groups) < 12:
            groups.append(next(running))
        held = set(slow.flight)
    finally:
        os.kill(slow.pid, signal.SIGCONT)
    assert len(held) <= 2
    assert len(groups) >= 10
    assert {i for i, _ in running} == held


def test_an_abandoned_run_leaves_nothing_behind(pair: Told) -> None:
    pool = pair
    running = pool.run(runs(pool, 8))
    next(running)
    running.close()
    again = in_order(pool.run(runs(pool, 3, step=5)))
    assert {s.seed for g in again for s in g.samples} == {
        s.seed for g in in_order(pool.run(runs(pool, 3, step=5))) for s in g.samples
    }


@plan_function
def broken_plan(context: tuple[int, ...]) -> Plan:
    yield Request(context, 1, 4)
    raise SkpoError("this plan breaks")


def bare_plan(context: tuple[int, ...]) -> Plan:
    samples = yield Request(context, 1, 4)
    return Group(Problem("q", "1"), samples)


def test_what_a_plan_raises_is_raised_here(pair: Told) -> None:
    from ray import cloudpickle

    cloudpickle.register_pickle_by_value(sys.modules[__name__])
    pool = pair
    with pytest.raises(SkpoError, match="this plan breaks"):
        in_order(pool.run([*runs(pool, 2), PlanRun(broken_plan((1, 2)), 0)]))
    assert len(in_order(pool.run(runs(pool, 2)))) == 2
    with pytest.raises(SkpoError, match="put @plan_function"):
        in_order(pool.run([PlanRun(bare_plan((1, 2)), 0)]))


def test_a_plan_is_judged_where_it_runs(pair: Told) -> None:
    """Critique and refinement: the direct responses have scores before the refinement is asked for."""
    pool = pair
    first = runs(pool, 1)[0].plan.args  # type: ignore[attr-defined]
    problem, renderer = first[0], first[1].renderer
    judge = Judge(None, renderer.decode, "exact")  # type: ignore[arg-type]
    context = PlanContext(renderer, 4, 96, judge=partial(judge.score_now, problem))
    group = in_order(pool.run([PlanRun(refine_plan(problem, context), 7)]))[0]
    direct, refined = group.completions, [s for s in group.samples if "refines" in s.info]
    assert [s.score in (0.0, 1.0) for s in direct] == [True] * 3
    assert len(refined) == 1
    if not all(s.correct for s in direct):
        assert not direct[refined[0].info["refines"]].correct


def test_parcels_are_small() -> None:
    """Neither the tokenizer nor the judge's workers travel with a plan."""
    config = ray_config()
    pool = Told(config, load_policy(config.model))
    run = runs(pool, 1)[0]
    assert len(pack_run(run)) < 4000 < len(pickle.dumps(run))


def test_bfloat16_weights_travel() -> None:
    tensor = torch.randn(3, 5).to(torch.bfloat16)
    back = Weights.of([("w", tensor), ("b", tensor.float())], 0).tensors()
    assert torch.equal(back["w"], tensor)
    assert back["b"].dtype == torch.float32


def test_a_model_that_workers_cannot_load_is_an_error_at_once(pair: Told) -> None:
    broken = Told(ray_config("model.path=/no/such/folder"), pair.policy)
    broken.update_weights(None, 0)
    with pytest.raises(SkpoError, match="/no/such/folder"):
        in_order(broken.run(runs(pair, 1)))
    broken.close()


def test_without_ray_the_error_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    config = ray_config()
    with pytest.raises(ConfigError, match=r'pip install "skpo\[ray\]"'):
        Told(config, load_policy(config.model))


def test_a_step_ahead_needs_workers() -> None:
    with pytest.raises(ConfigError, match=r"rollout\.ahead = 1 needs rollout\.engine = ray"):
        load_config("chain", ["rollout.ahead=1"])


def test_a_worker_that_keeps_dying_is_left_out(make_pool: Make) -> None:
    """Killed once more than it may be: the other one does the work from then on, and its death leaves nobody."""
    pool = make_pool("rollout.ray.workers=2", "rollout.ray.restarts=0")
    expected = tokens(in_order(pool.run(runs(pool, 12))))
    assert tokens(killing(pool, pool.run(runs(pool, 12)), 0)) == expected
    assert any("worker 0" in note and "left out from now on" in note for note in pool.notes)
    assert pool.take_stats().more["workers"] == 1
    assert tokens(in_order(pool.run(runs(pool, 12)))) == expected
    assert pool.take_stats().more["workers"] == 1
    with pytest.raises(WorkersLostError, match="no rollout workers are left"):
        killing(pool, pool.run(runs(pool, 12)), 1)
