"""Log-probabilities equal those of a plain full forward, for every family and every kind of plan."""

from __future__ import annotations

import pytest
import torch
from rollout.engine.engine_models import FAMILIES, as_lists, build, check_samples, run_plans, two_stage

from skpo.rollout.embedded import EmbeddedEngine
from skpo.rollout.types import Group, Plan, Problem, Request, Sampling

SAMPLINGS = {
    "plain": Sampling(),
    "warm": Sampling(temperature=0.7),
    "top-p": Sampling(temperature=1.3, top_p=0.8),
    "top-k": Sampling(top_k=7),
    "both": Sampling(temperature=0.9, top_k=20, top_p=0.6),
}


@pytest.mark.parametrize("lean", [False, True])
@pytest.mark.parametrize("family", FAMILIES)
def test_two_stage_plans_with_ragged_lengths(family: str, lean: bool) -> None:
    model = build(family)
    engine = EmbeddedEngine(model, eos_ids=[3], slots=13, lean=lean)
    plans = [two_stage(tuple(range(5, 8 + 3 * i)), 4, 20 + i) for i in range(6)]
    groups = run_plans(engine, plans)
    samples = [s for g in groups for s in [*g.samples, *g.unused]]
    assert len({len(s.context) for s in samples}) > 6
    assert check_samples(model, samples) < 1e-5


def test_more_rows_and_contexts_than_are_attended_together() -> None:
    """Rows change places as others end, over several buckets of rows and of contexts."""
    model = build("llama")
    engine = EmbeddedEngine(model, eos_ids=[3, 4, 5], slots=80)
    groups = run_plans(engine, [two_stage(tuple(range(6, 8 + i)), 8, 12 + 4 * (i % 7)) for i in range(15)])
    samples = [s for g in groups for s in [*g.samples, *g.unused]]
    assert len({len(s) for s in samples}) > 12
    assert check_samples(model, samples) < 1e-5


@pytest.mark.parametrize("kind", SAMPLINGS)
def test_truncated_distributions(kind: str) -> None:
    model = build("llama")
    engine = EmbeddedEngine(model, eos_ids=[3], slots=16)
    groups = run_plans(engine, [two_stage((5, 6, 7 + i), 4, 24, SAMPLINGS[kind]) for i in range(3)])
    samples = [s for g in groups for s in [*g.samples, *g.unused]]
    assert check_samples(model, samples, SAMPLINGS[kind]) < 1e-5


def test_different_settings_in_one_batch() -> None:
    model = build("qwen3")
    engine = EmbeddedEngine(model, eos_ids=[3], slots=64)
    settings = [*SAMPLINGS.values(), Sampling(temperature=0.0)]
    groups = run_plans(engine, [two_stage((5, 6, 7), 3, 24, s) for s in settings])
    for group, setting in zip(groups, settings, strict=True):
        assert check_samples(model, [*group.samples, *group.unused], setting) < 1e-5


def test_greedy_rows_take_the_likeliest_token_with_logp_zero() -> None:
    model = build("llama")
    engine = EmbeddedEngine(model, eos_ids=[], slots=4)
    (group,) = run_plans(engine, [two_stage((5, 6), 2, 12, Sampling(temperature=0.0))])
    for s in group.samples:
        ids = torch.tensor([s.context + tuple(s.tokens.tolist())])
        best = model(ids).logits[0].argmax(-1)[len(s.context) - 1 : -1]
        assert best.tolist() == s.tokens.tolist()
        assert (s.logp == 0).all()


def test_sliding_windows() -> None:
    for family in ("qwen2-sliding", "mistral-sliding"):
        model = build(family)
        engine = EmbeddedEngine(model, eos_ids=[3], slots=8)
        groups = run_plans(engine, [two_stage(tuple(range(4, 7 + 5 * i)), 3, 30) for i in range(5)])
        assert check_samples(model, [s for g in groups for s in [*g.samples, *g.unused]]) < 1e-5


def test_bfloat16_stays_near_its_own_forward() -> None:
    model = build("llama").to(torch.bfloat16)
    engine = EmbeddedEngine(model, eos_ids=[3], slots=16)
    groups = run_plans(engine, [two_stage((5, 6, 7 + i), 4, 24) for i in range(3)])
    # bf16 keeps 8 bits: neighbours of a logit between 4 and 8 are 0.03 apart, and sums are taken in another order
    assert check_samples(model, [s for g in groups for s in g.samples]) < 0.15


def test_lora() -> None:
    peft = pytest.importorskip("peft")
    model = build("llama")
    wrapped = peft.get_peft_model(model, peft.LoraConfig(r=4, target_modules="all-linear", init_lora_weights=False))
    engine = EmbeddedEngine(wrapped, eos_ids=[3], slots=8)
    groups = run_plans(engine, [two_stage((5, 6, 7 + i), 4, 16) for i in range(3)])
    samples = [s for g in groups for s in [*g.samples, *g.unused]]
    wrapped.eval()
    assert check_samples(wrapped, samples) < 1e-5
    with wrapped.disable_adapter():
        assert check_samples(wrapped, samples) > 1e-3


def test_in_place_update_is_seen_by_the_next_run() -> None:
    model = build("llama")
    engine = EmbeddedEngine(model, eos_ids=[3], slots=8)
    run_plans(engine, [two_stage((5, 6, 7), 4, 16)])
    with torch.no_grad():
        for p in model.parameters():
            p.data.mul_(1.1)  # .data: autograd's version counters do not see it
    groups = run_plans(engine, [two_stage((5, 6, 7), 4, 16)])
    assert check_samples(model, groups[0].samples) < 1e-5


def test_loading_weights() -> None:
    model, other = build("llama-tied"), build("llama-tied", seed=1)
    engine = EmbeddedEngine(model, eos_ids=[3], slots=8)
    weights = dict(other.named_parameters())  # without the tied output head
    engine.update_weights(weights, version=7)
    (group,) = run_plans(engine, [two_stage((5, 6, 7), 4, 16)])
    assert {s.version for s in group.samples} == {7}
    assert check_samples(other, group.samples) < 1e-5


def test_one_prefill_for_equal_contexts() -> None:
    engine = EmbeddedEngine(build("llama"), eos_ids=[], slots=32)

    def plan(context: tuple[int, ...]) -> Plan:
        samples = yield Request(context, 4, 5)
        return Group(Problem("q", "a"), samples)

    run_plans(engine, [plan((5, 6, 7)), plan((5, 6, 7)), plan((8, 9))])
    assert engine.take_stats().prefill_tokens == 5


def test_rows_that_are_alike_so_far_are_computed_once() -> None:
    """A peaked model's samples begin alike and part one by one; each is what it would be alone, and greedy ones never part."""
    model = build("llama")
    with torch.no_grad():
        model.lm_head.weight *= 12
    engine = EmbeddedEngine(model, eos_ids=[3], slots=40)
    plans = [(5, 6, 7 + i) for i in range(4)]
    groups = run_plans(engine, [two_stage(q, 8, 24) for q in plans])
    stats = engine.take_stats()
    samples = [s for g in groups for s in [*g.samples, *g.unused]]
    assert len({tuple(s.tokens) for s in samples}) > 20
    assert len({tuple(s.tokens[:2]) for s in samples}) < 40
    assert stats.computed < 0.8 * stats.rows
    assert check_samples(model, samples) < 1e-4
    alone = EmbeddedEngine(model, eos_ids=[3], slots=1)
    assert as_lists(run_plans(alone, [two_stage(q, 8, 24) for q in plans])) == as_lists(groups)
    assert (s := alone.take_stats()).computed == s.rows
    run_plans(engine, [two_stage((5, 6, 7), 8, 24, Sampling(temperature=0.0))])
    stats = engine.take_stats()
    assert stats.rows == 8 * stats.computed > 0
