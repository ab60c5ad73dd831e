"""Continuous batching: order, priorities, limits, clean ends, and samples that do not depend on any of it."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest
import torch
from rollout.engine.engine_models import PROBLEM, VOCAB, as_lists, build, check_samples, one_stage, run_plans, two_stage

from skpo.errors import ModelError, SkpoError
from skpo.rollout.embedded import EmbeddedEngine
from skpo.rollout.types import Group, Plan, PlanRun, Request, derive_seed


def make(**options: object) -> EmbeddedEngine:
    return EmbeddedEngine(build("llama"), eos_ids=options.pop("eos_ids", [3]), **options)  # type: ignore[arg-type]


def contexts(count: int) -> list[tuple[int, ...]]:
    return [(*tuple(range(5, 7 + i % 5)), 10 + i) for i in range(count)]


def test_samples_do_not_depend_on_slots_or_chunks_or_memory() -> None:
    results = []
    for options in (
        {"slots": 3},
        {"slots": 64},
        {"slots": 64, "prefill_chunk": 4},
        {"slots": 9, "max_cache_tokens": 700},
    ):
        groups = run_plans(make(**options), [two_stage(c, 4, 20) for c in contexts(7)])
        results.append(as_lists(groups))
    assert all(r == results[0] for r in results)


def test_samples_do_not_depend_on_the_order_of_plans() -> None:
    engine = make(slots=10)
    runs = list(enumerate(contexts(6)))
    first = dict(engine.run(PlanRun(two_stage(c, 3, 18), seed) for seed, c in runs))
    second = dict(engine.run(PlanRun(two_stage(c, 3, 18), seed) for seed, c in reversed(runs)))
    assert as_lists(first[i] for i in range(6)) == as_lists(second[5 - i] for i in range(6))


def test_repeated_runs_are_identical_to_the_bit() -> None:
    engine = make(slots=7)
    a, b = ([s for g in run_plans(engine, [two_stage(c, 4, 20) for c in contexts(6)]) for s in g.samples] for _ in "ab")
    assert all(np.array_equal(x.logp, y.logp) and np.array_equal(x.tokens, y.tokens) for x, y in zip(a, b, strict=True))


def test_seeds_count_over_all_requests_of_a_plan() -> None:
    (group,) = run_plans(make(slots=2), [two_stage((5, 6), 3, 8)])
    assert [s.seed for s in group.unused] == [derive_seed(0, i) for i in range(3)]
    assert [s.seed for s in group.samples] == [derive_seed(0, i) for i in range(3, 6)]
    assert len({tuple(s.tokens.tolist()) for s in [*group.samples, *group.unused]}) > 1


def test_no_barrier_between_plans() -> None:
    engine = make(eos_ids=[], slots=8)
    begun: dict[str, int] = {}

    def staged(name: str, tokens: int) -> Plan:
        first = yield Request((5, 6), 2, tokens)
        begun[name] = engine.steps
        second = yield Request((7, 8), 2, 5)
        return Group(PROBLEM, second, first)

    run_plans(engine, [staged("short", 3), staged("long", 40)])
    # a request's first token comes from the prefill, each further one takes a step
    assert begun == {"short": 2, "long": 39}
    assert engine.steps == 39 + 4


def test_second_stages_come_before_new_plans() -> None:
    engine = make(eos_ids=[], slots=4)
    started: list[int] = []

    def lazy() -> Iterator[PlanRun]:
        for i in range(20):
            started.append(engine.steps)
            yield PlanRun(two_stage((5, 6 + i), 4, 8), i)

    for done, _ in enumerate(engine.run(lazy())):
        assert len(started) <= done + 2  # consumed lazily: no plan starts before there is room


def test_more_samples_than_slots() -> None:
    engine = make(slots=4)
    (group,) = run_plans(engine, [one_stage((5, 6, 7), 11, 12)])
    assert len(group.samples) == 11
    assert check_samples(build("llama"), group.samples) < 1e-5
    assert engine.take_stats().prefill_tokens == 3  # held until its last sample has started


def test_counters_add_up() -> None:
    engine = make(slots=6)
    groups = run_plans(engine, [two_stage(c, 4, 20) for c in contexts(5)])
    stats = engine.take_stats()
    samples = [s for g in groups for s in [*g.samples, *g.unused]]
    assert stats.generated_tokens == sum(len(s) for s in samples) == sum(g.generated_tokens for g in groups)
    assert stats.rows == stats.generated_tokens - len(samples)  # each first token comes from a prefill
    assert stats.prefill_tokens == sum(len(c) for c in {s.context for s in samples})
    assert stats.steps == engine.steps
    assert stats.seconds > 0
    assert engine.take_stats().generated_tokens == 0


def test_eos_ends_a_sample_and_is_part_of_it() -> None:
    engine = make(eos_ids=[3, 4, *range(40, 60)], slots=16)
    groups = run_plans(engine, [one_stage(c, 8, 10) for c in contexts(4)])
    samples = [s for g in groups for s in g.samples]
    assert {s.finished for s in samples} == {True, False}
    for s in samples:
        is_eos = np.isin(s.tokens, [3, 4, *range(40, 60)])
        assert is_eos[-1] == s.finished
        assert not is_eos[:-1].any()
        assert s.finished or len(s) == 10
        assert s.tokens.dtype == np.int64
        assert s.logp.dtype == np.float32


def test_one_token_takes_no_step() -> None:
    engine = make(slots=3)
    groups = run_plans(engine, [one_stage(c, 4, 1) for c in contexts(3)])
    assert [len(s) for g in groups for s in g.samples] == [1] * 12
    assert engine.steps == 0


def test_plans_without_requests_or_samples() -> None:
    def silent() -> Plan:
        return Group(PROBLEM, [])
        yield  # a generator all the same

    def empty() -> Plan:
        samples = yield Request((5,), 0, 4)
        return Group(PROBLEM, samples)

    groups = run_plans(make(), [silent(), empty(), one_stage((5, 6), 2, 4)])
    assert [len(g.samples) for g in groups] == [0, 0, 2]


def test_closing_early_leaves_the_engine_clean() -> None:
    engine = make(slots=4, eos_ids=[])
    closed: list[int] = []

    def watched(i: int) -> Plan:
        try:
            samples = yield Request((5, 6 + i), 2, 4 + 8 * i)
        finally:
            closed.append(i)
        return Group(PROBLEM, samples)

    running = engine.run(PlanRun(watched(i), i) for i in range(6))
    next(running)
    with pytest.raises(SkpoError, match="already running"):
        next(engine.run([]))
    with pytest.raises(SkpoError, match="running"):
        engine.update_weights(None, 1)
    running.close()  # type: ignore[attr-defined]
    assert closed == [0, 1, 2]
    expected = as_lists(run_plans(make(slots=4, eos_ids=[]), [two_stage((5, 6), 4, 16)]))
    assert as_lists(run_plans(engine, [two_stage((5, 6), 4, 16)])) == expected


def test_an_exception_in_a_plan_propagates_and_leaves_the_engine_clean() -> None:
    engine = make(slots=4)
    engine._forward.model.train()

    def broken() -> Plan:
        yield Request((5, 6), 2, 4)
        raise ValueError("from the plan")

    with pytest.raises(ValueError, match="from the plan"):
        run_plans(engine, [two_stage((5, 6), 2, 30), broken()])
    assert engine._forward.model.training
    assert len(run_plans(engine, [two_stage((5, 6), 4, 16)])) == 1


def test_model_is_handed_back_as_it_was_with_every_group() -> None:
    model = build("gpt2").train()
    model.gradient_checkpointing_enable()
    model.transformer.h[0].eval()
    model.config.use_cache = True
    before = (model.config._attn_implementation, [m.training for m in model.modules()])
    engine = EmbeddedEngine(model, eos_ids=[3], slots=8)
    for _ in engine.run(PlanRun(two_stage(c, 2, 12), i) for i, c in enumerate(contexts(4))):
        assert (model.config._attn_implementation, [m.training for m in model.modules()]) == before
        assert model.config.use_cache
        assert torch.is_grad_enabled()
    group = run_plans(engine, [two_stage((5, 6), 2, 12)])[0]
    assert check_samples(model.eval(), group.samples) < 1e-5  # dropout was off


def test_requests_that_cannot_run() -> None:
    with pytest.raises(SkpoError, match=r"needs 140 positions .* but the model has 128"):
        run_plans(make(), [one_stage((5,) * 40, 2, 100)])
    with pytest.raises(SkpoError, match="max_cache_tokens is 100"):
        run_plans(make(max_cache_tokens=100), [one_stage((5,) * 40, 2, 20)])
    with pytest.raises(SkpoError, match="empty context"):
        run_plans(make(), [one_stage((), 2, 20)])


def test_memory_stays_within_its_limit() -> None:
    engine = make(slots=64, max_cache_tokens=1000)
    largest = 0
    for _ in engine.run(PlanRun(two_stage(c, 6, 40), i) for i, c in enumerate(contexts(9))):
        batch = engine._batch
        assert batch is not None
        caches = [c for c in (batch._row_cache, batch._context_cache) if c is not None]
        largest = max(largest, sum(c.count * c.capacity for c in caches))
    assert 0 < largest <= 1000


def test_a_waiting_request_gives_way_where_memory_is_short() -> None:
    """Cache places are of 64 tokens. Two rows of contexts up to 64 fit in 256 tokens; a context of 100 fits only alone."""

    def growing(first: tuple[int, ...]) -> Plan:
        short = yield Request(first, 3, 10)
        long = yield Request((*range(4, 99), 5, 6, 7, 8, 9), 3, 10)
        return Group(PROBLEM, long, short)

    narrow, wide = (
        run_plans(make(eos_ids=[], **options), [growing((5, 6 + i)) for i in range(4)])
        for options in ({"slots": 2, "max_cache_tokens": 256}, {"slots": 64})
    )
    assert len(narrow) == 4
    assert as_lists(narrow) == as_lists(wide)


def test_broken_weights_and_wrong_names_are_told() -> None:
    engine = make()
    weights = {n: p.clone() for n, p in engine._forward.model.named_parameters()}
    with pytest.raises(ModelError, match=r"1 weights are missing: .*norm"):
        engine.update_weights({n: w for n, w in weights.items() if n != "model.norm.weight"}, 1)
    with pytest.raises(ModelError, match="1 weights are unknown: extra"):
        engine.update_weights({**weights, "extra": torch.zeros(1)}, 1)
    engine.update_weights({**weights, "model.norm.weight": torch.full((32,), torch.nan)}, 1)
    with pytest.raises(ModelError, match="not finite"):
        run_plans(engine, [one_stage((5, 6), 2, 4)])
    engine.update_weights(weights, 2)
    assert all((s.tokens < VOCAB).all() for s in run_plans(engine, [one_stage((5, 6), 2, 4)])[0].samples)
