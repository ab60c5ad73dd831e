"""The step simulator: hand-derived times, a slow twin, the real engine's counters, and what must be conserved."""

from __future__ import annotations

import random
from pathlib import Path

import numpy as np
import pytest
import torch
from rollout.engine.engine_models import build, run_plans, two_stage

from benchmarks.simulation.fit import Timed, counted, features, fit, nonnegative
from benchmarks.simulation.pool import (
    Cluster,
    broadcast,
    roll_out,
    simulate,
    trained_tokens,
    two_passes,
    verified,
)
from benchmarks.simulation.profile import EngineProfile, Profile, StepProfile, load
from benchmarks.simulation.worker import Speed, Stage, Task, Worker, tokens
from benchmarks.simulation.workload import LongTail, distinct, drawn, measured_tasks
from skpo.problems.base import Problem
from skpo.rollout.embedded import EmbeddedEngine
from skpo.rollout.types import SEGMENT, Group, Sample
from skpo.trainer.rollout_log import RolloutLog

SECOND = Speed((1,), (1.0,))  #: every decode step takes one second, all else nothing


def made_tasks(seed: int, count: int = 12, group: int = 4, longest: int = 9) -> list[Task]:
    draw = random.Random(seed)

    def stage() -> Stage:
        return Stage(draw.randint(1, 20), tuple(draw.randint(1, longest) for _ in range(group)))

    return [tuple(stage() for _ in range(draw.randint(1, 3))) for _ in range(count)]


def test_one_worker_two_rows() -> None:
    """Three context tokens at 0.1 s, then rows of 2 and 4 tokens, whose first tokens come from that.

    One step of two rows (1.5 s), two of one row (1 s each). Tokens attended to: own 1 + 1, then 2, then 3; context 3 + 3, 3, 3.
    """
    speed = Speed((1, 2), (1.0, 1.5), own=0.001, context=0.0001, group=0.00001, prefill=0.1, admission=0.03, ended=0.01)
    rolled = roll_out([(Stage(3, (2, 4)),)], Cluster(speed, slots=8))
    work = rolled.work[0]
    assert work.by_rows == {2: 1, 1: 2}
    assert (work.own, work.context, work.groups, work.prefill, work.tokens) == (7, 12, 3, 3, 6)
    expected = 3 * 0.1 + 0.03 + 1.5 + 2 * 1.0 + 7 * 0.001 + 12 * 0.0001 + 3 * 0.00001 + 2 * 0.01
    assert rolled.seconds == pytest.approx(expected)
    assert rolled.ends == [rolled.seconds]
    assert rolled.busy == [pytest.approx(expected)]


def test_rows_that_are_alike_are_computed_once() -> None:
    """Half of two rows: each of three steps takes what one row takes, and attends to half of the tokens: 1 + 2 + 3 of their own."""
    speed = Speed((1, 2), (1.0, 1.5), own=0.001, context=0.0001)
    work = (rolled := roll_out([(Stage(3, (4, 4), 0.5),)], Cluster(speed, slots=8))).work[0]
    assert (work.by_rows, work.own, work.context, work.tokens) == ({2: 3}, 6, 9, 8)
    assert rolled.seconds == pytest.approx(3 * 1.0 + 6 * 0.001 + 9 * 0.0001)


def test_step_time_is_linear_between_knots_and_beyond() -> None:
    speed = Speed((1, 3, 7), (1.0, 2.0, 6.0))
    assert [speed.bare_step(n) for n in (1, 2, 3, 5, 7, 9)] == [1.0, 1.5, 2.0, 4.0, 6.0, 8.0]
    assert Speed((1,), (2.0,), own=0.5, run=3.0).scaled(2) == Speed((1,), (4.0,), own=1.0, run=6.0)


def test_rows_wait_for_slots_and_their_context_is_computed_once() -> None:
    """One slot, rows of 2 and 3 tokens: 1 + 2 steps, one prefill of 5 tokens, two rounds of admission."""
    rolled = roll_out([(Stage(5, (2, 3)),)], Cluster(SECOND, slots=1))
    assert (rolled.seconds, rolled.work[0].prefill, rolled.work[0].admissions) == (3.0, 5, 2)


def test_later_stages_come_before_new_plans() -> None:
    """Two slots, two plans of one-token segments and completions of 3: the first plan's completions run before the second plan."""
    task = (Stage(1, (1, 1)), Stage(2, (3, 3)))
    assert roll_out([task, task], Cluster(SECOND, slots=2)).ends == [2.0, 4.0]


def test_a_barrier_waits_for_the_longest_segment() -> None:
    """A row of n tokens takes n - 1 steps. One pass: max(1 + 9, 5 + 2) = 10. Two: max(1, 5) + max(9, 2) = 14."""
    tasks = [(Stage(1, (2,)), Stage(1, (10,))), (Stage(1, (6,)), Stage(1, (3,)))]
    cluster = Cluster(SECOND, workers=2)
    assert roll_out(tasks, cluster).ends == [10.0, 7.0]
    rolled = two_passes(tasks, cluster)
    assert (rolled.ends, rolled.seconds) == ([14.0, 7.0], 14.0)
    assert rolled.busy == [1.0 + 9.0, 5.0 + 2.0]


def test_a_fast_worker_takes_more() -> None:
    """Nine plans of two steps, one at a time each; the second worker needs three times as long, so it does a quarter of them.

    The fast one ends plans at 2, 4, 6, ...; the slow one at 6, 12. At 12 s eight are done; the ninth, begun by the fast one, at 14.
    """
    tasks = [(Stage(1, (3,)),)] * 9
    rolled = roll_out(tasks, Cluster(SECOND, workers=2, slowdowns=(1.0, 3.0), in_flight=1))
    assert sorted(rolled.ends) == [2, 4, 6, 6, 8, 10, 12, 12, 14]
    assert rolled.busy == [14.0, 12.0]


def test_work_is_conserved() -> None:
    """Every token is sampled once, whatever runs them, and all but a row's first come from decode steps."""
    for seed in range(20):
        tasks = made_tasks(seed)
        rows = sum(len(stage.lengths) for task in tasks for stage in task)
        for workers, slots, in_flight in ((1, 1, None), (1, 64, None), (3, 5, 2), (7, 4, 1), (40, 64, None)):
            for roll in (roll_out, two_passes):
                rolled = roll(tasks, Cluster(SECOND, workers=workers, slots=slots, in_flight=in_flight))
                assert sum(w.tokens for w in rolled.work) == tokens(tasks)
                assert sum(w.rows for w in rolled.work) == tokens(tasks) - rows
                assert sum(w.prefill for w in rolled.work) == sum(s.context for t in tasks for s in t)
                assert max(n for w in rolled.work for n in w.by_rows or {0: 0}) <= slots
                assert max(rolled.busy) <= rolled.seconds == max(rolled.ends)


def slow_twin(tasks: list[Task], slots: int) -> tuple[list[int], int, int]:
    """One token at a time: (step at which each plan ends, own and context tokens attended to)."""
    new = [(i, 0, n, s.context) for i, t in enumerate(tasks) for s in t[:1] for n in s.lengths]
    later: list[tuple[int, int, int, int]] = []
    left = {(i, j): len(s.lengths) for i, t in enumerate(tasks) for j, s in enumerate(t)}
    running: list[list[int]] = []  # plan, stage, tokens to go, tokens made, context
    ends, step, own, context = [0] * len(tasks), 0, 0, 0
    while new or later or running:
        while len(running) < slots and (new or later):
            plan, stage, length, size = (later or new).pop(0)
            running.append([plan, stage, length - 1, 1, size])
            if not (len(running) < slots and (new or later)) or not (later or new):
                retire(running, left, tasks, later, ends, step)
        if running:
            own += sum(r[3] for r in running)
            context += sum(r[4] for r in running)
            step += 1
            for r in running:
                r[2], r[3] = r[2] - 1, r[3] + 1
            retire(running, left, tasks, later, ends, step)
    return ends, own, context


def retire(running: list[list[int]], left: dict[tuple[int, int], int], tasks: list[Task], later: list[tuple[int, int, int, int]], ends: list[int], step: int) -> None:  # fmt: skip
    """Take off finished rows, oldest first; queue the next stage of plans whose stage is over."""
    for r in [r for r in running if r[2] == 0]:
        running.remove(r)
        plan, stage = r[0], r[1]
        left[plan, stage] -= 1
        if left[plan, stage]:
            continue
        if stage + 1 < len(tasks[plan]):
            s = tasks[plan][stage + 1]
            later.extend((plan, stage + 1, n, s.context) for n in s.lengths)
        else:
            ends[plan] = step


def test_jumps_give_what_single_steps_give() -> None:
    for seed in range(30):
        tasks = made_tasks(seed, longest=12)
        for slots in (1, 3, 8, 200):
            rolled = roll_out(tasks, Cluster(SECOND, slots=slots))
            ends, own, context = slow_twin(tasks, slots)
            assert rolled.ends == ends
            assert (rolled.work[0].own, rolled.work[0].context) == (own, context)


@pytest.mark.parametrize("slots", [3, 10, 64])
def test_the_real_engine_does_the_same_work(slots: int) -> None:
    """Decode steps, rows in them, tokens and prefill of the embedded engine, on lengths that it sampled itself."""
    engine = EmbeddedEngine(build("llama"), eos_ids=[3, 5, 7], slots=slots)
    contexts = [(*range(8, 12 + i % 3), 20 + i) for i in range(9)]
    groups = run_plans(engine, [two_stage(c, 4, 25) for c in contexts])
    stats = engine.take_stats()
    tasks = []
    for group in groups:
        stages = [[s for s in [*group.unused, *group.samples] if s.context == c] for c in (group.unused[0].context, group.samples[0].context)]  # fmt: skip
        tasks.append(tuple(Stage(len(rows[0].context), tuple(map(len, rows))) for rows in stages))
    assert len({n for task in tasks for stage in task for n in stage.lengths}) > 5
    work = counted(tasks, slots)
    assert (work.steps, work.rows, work.tokens) == (stats.steps, stats.rows, stats.generated_tokens)
    assert work.prefill == stats.prefill_tokens


def test_the_real_engine_computes_what_is_distinct() -> None:
    model = build("llama")
    with torch.no_grad():
        model.lm_head.weight *= 12
    engine = EmbeddedEngine(model, eos_ids=[3, 5], slots=32)
    groups = run_plans(engine, [two_stage((8, 9, 20 + i), 4, 25) for i in range(6)])
    stats, computed = engine.take_stats(), 0.0
    for group in groups:
        segments = [s for s in [*group.unused, *group.samples] if s.context == group.unused[0].context]
        completions = [s for s in group.samples if s.context != group.unused[0].context]
        for rows in (segments, completions):
            computed += distinct([s.tokens.tolist() for s in rows]) * sum(len(s) - 1 for s in rows)
    assert stats.computed < stats.rows
    assert stats.computed == pytest.approx(computed)


def test_verdicts_queue_for_verifiers() -> None:
    """Two answers at 1 s and one at 2 s, 3 s each. One process: 1-4, 4-7, 7-10. Two: 1-4, 1-4, 4-7."""
    assert verified([1.0, 2.0], [2, 1], 1, 3.0) == 10.0
    assert verified([1.0, 2.0], [2, 1], 2, 3.0) == 7.0
    assert verified([1.0], [4], 1, 0.0) == 0.0


def test_weights_travel() -> None:
    """100 bytes at 50 a second take 2 s a hop. Tree: receivers double, so 7 are reached in 3 rounds, 8 in 4. Then loading, at once."""
    at = {"weights": 100.0, "bandwidth": 50.0, "load": 0.5}
    assert broadcast(Cluster(SECOND, workers=7, **at)) == 3 * 2 + 0.5
    assert broadcast(Cluster(SECOND, workers=8, **at)) == 4 * 2 + 0.5
    assert broadcast(Cluster(SECOND, workers=7, spread="star", **at)) == 7 * 2 + 0.5
    assert broadcast(Cluster(SECOND, workers=7)) == 0.0


def test_tokens_of_the_update() -> None:
    """GRPO: rows of 3 and 4 tokens that share 10. SKPO: one segment of 5 behind 10, then rows of 3 and 4 that share 15."""
    assert trained_tokens((Stage(10, (3, 4)),)) == 10 + 7
    assert trained_tokens((Stage(10, (5, 5)), Stage(15, (3, 4)))) == 10 + 5 + 15 + 7
    assert trained_tokens((Stage(10, (5, 5), 0.5), Stage(15, (3, 5), 0.5))) == 10 + 5 + 15 + 4


def test_a_worker_of_its_own_hands_plans_over() -> None:
    """Two plans of three tokens, one row at a time: 2 s of decoding and 0.25 s each; in the trainer's process nothing is handed over."""
    tasks = [(Stage(1, (3,)),)] * 2
    assert roll_out(tasks, Cluster(SECOND, slots=1, remote=0.25)).seconds == 2 * 2.25
    assert roll_out(tasks, Cluster(SECOND, slots=1, remote=0.25, local=True)).seconds == 2 * 2


def test_a_whole_step() -> None:
    """Weights 2 s + rollout 4 s (5 tokens) + one verdict of 3 s + update 1 + 6 tokens at 0.5, on two processes + 0.25 s of all else."""
    tasks = [(Stage(1, (5,)),)]
    cluster = Cluster(SECOND, weights=2.0, verify=3.0, train=1.0, train_token=0.5, trainers=2, other=0.25)
    step = simulate(tasks, cluster)
    assert (step.broadcast, step.rollout, step.verify, step.train, step.other) == (2.0, 4.0, 3.0, 2.0, 0.25)
    assert (step.seconds, step.hidden, step.utilisation, step.tokens) == (11.25, 0.0, 1.0, 5)
    assert (step.decode_steps, step.rows) == (4, 1.0)


def test_finished_plans_cost_the_trainer() -> None:
    """Plans end at 2 and 3 s, 5 s each. Beside workers: 2-7, 7-12. In the engine's own process: 3 + 5 + 5."""
    tasks = [(Stage(1, (3,)),), (Stage(1, (4,)),)]
    assert simulate(tasks, Cluster(SECOND, workers=2, plan=5.0)).rollout == 12.0
    assert simulate(tasks, Cluster(SECOND, plan=5.0, local=True)).rollout == 13.0


def test_one_step_ahead_hides_the_shorter_half() -> None:
    tasks = [(Stage(1, (5,)),)]
    hidden = simulate(tasks, Cluster(SECOND, train=3.0, ahead=1))
    assert (hidden.seconds, hidden.hidden) == (4.0, 3.0)
    assert simulate(tasks, Cluster(SECOND, train=9.0, ahead=1)).seconds == 9.0


def test_empty_tasks_are_refused() -> None:
    for task in ((), (Stage(3, ()),), (Stage(3, (0,)),)):
        with pytest.raises(ValueError, match="task 4"):
            Worker(SECOND, 2).add(4, task)


def test_fit_finds_the_prices_that_made_the_times() -> None:
    knots = (1, 4, 16)
    true = Speed(
        knots, (1.0, 1.5, 5.0), own=0.02, context=0.003, group=0.07, prefill=0.04, admission=0.5, ended=0.25, run=2.0
    )
    prices = np.array(
        [*true.step, true.own, true.context, true.group, true.prefill, true.admission, true.ended, true.run]
    )
    works = [counted(made_tasks(seed, 2 + seed % 5, group, 30), slots) for seed in range(12) for group in (1, 4) for slots in (2, 16)]  # fmt: skip
    found, error = fit([Timed(w, float(features(w, knots) @ prices)) for w in works], knots)
    assert error < 1e-6
    assert found.step == pytest.approx(true.step, rel=1e-3)
    assert (found.own, found.context, found.prefill) == pytest.approx((0.02, 0.003, 0.04), rel=1e-2)


def test_the_model_charges_what_the_fit_counts() -> None:
    knots = (1, 4, 16)
    speed = Speed(
        knots, (1.0, 1.5, 5.0), own=0.02, context=0.003, group=0.07, prefill=0.04, admission=0.5, ended=0.25, run=2.0
    )
    prices = np.array(
        [*speed.step, speed.own, speed.context, speed.group, speed.prefill, speed.admission, speed.ended, speed.run]
    )
    tasks = made_tasks(5)
    rolled = roll_out(tasks, Cluster(speed, slots=6))
    assert rolled.seconds == pytest.approx(float(features(rolled.work[0], knots) @ prices))


def test_nonnegative_least_squares() -> None:
    """Without the bound p = (2, -1); with it the second is 0 and the first is the mean of 2 and 1."""
    x, y = np.array([[1.0, 0.0], [1.0, 1.0]]), np.array([2.0, 1.0])
    assert nonnegative(x, y) == pytest.approx([1.5, 0.0])


def test_long_tail() -> None:
    tail = LongTail(median=400, most=1000)
    grpo, skpo = (tail.tasks(method, 50, random.Random(3)) for method in ("grpo", "skpo"))
    assert [t[0].lengths for t in grpo] == [t[1].lengths for t in skpo]
    assert max(n for t in grpo for n in t[0].lengths) == 1000
    assert all(s.context == tail.prompt + first.lengths[0] for first, s in skpo)
    assert all(max(first.lengths) <= 0.5 * 1000 for first, _ in skpo)
    goes_on = LongTail(median=400, most=1000, goes_on=1.0).tasks("skpo", 50, random.Random(3))
    assert [max(1, n - t[0].lengths[0]) for t in skpo for n in t[1].lengths] == [
        n for t in goes_on for n in t[1].lengths
    ]
    assert drawn(grpo, 7, random.Random(0)) == drawn(grpo, 7, random.Random(0))


def sample(context: int, made: int, role: int = 0, **info: int) -> Sample:
    return Sample((1,) * context, np.ones(made, np.int64), np.zeros(made, np.float32), True, role=role, info=info)


def test_tasks_of_a_run(tmp_path: Path) -> None:
    """A segment that was cut counts with what was sampled; the one that was trained on comes first."""
    completions = [sample(9, n) for n in (4, 6)]
    unused = [sample(5, 3, SEGMENT, sampled=3)]
    group = Group(Problem("?", "1", "a"), [*completions, sample(5, 2, SEGMENT, sampled=4)], unused)
    RolloutLog(tmp_path).write(2, [group, Group(Problem("?", "1", "b"), [sample(7, 8)])])
    two_thirds, five_eighths = (
        2 / 3,
        5 / 8,
    )  # the samples are the same token again and again: of the shorter all is shared
    assert measured_tasks(tmp_path) == {
        2: [(Stage(5, (4, 3), two_thirds), Stage(9, (4, 6), five_eighths)), (Stage(7, (8,)),)]
    }


def test_profiles_are_kept(tmp_path: Path) -> None:
    speed = Speed((1, 8), (0.25, 0.5), own=0.125)
    profile = Profile(
        engines={"small": EngineProfile(speed, 0.0625, 3, 10, 40, 0.5)},
        tasks={"grpo": made_tasks(0)[:2]},
        step=StepProfile(0.5, 0.25, 1.0, 0.125, 2.0),
        slots=8,
    )
    profile.save(tmp_path / "profile.json")
    found = load(tmp_path / "profile.json")
    assert found == profile
    cluster = found.cluster("small", workers=3)
    assert (cluster.speed, cluster.workers, cluster.slots, cluster.weights, cluster.train) == (speed, 3, 8, 40, 1.0)
