"""The fast path equals its slow twin, and steps aside for models that it does not know."""

from __future__ import annotations

import pytest
import torch
from rollout.engine.engine_models import as_lists, build, check_samples, run_plans, two_stage
from torch.nn.utils import parametrizations

from skpo.rollout.embedded import EmbeddedEngine
from skpo.rollout.embedded.lean import recognised


@pytest.mark.parametrize("family", ["llama", "llama-tied", "llama-scaled", "qwen2", "qwen2-sliding", "qwen3"])
def test_fast_path_equals_its_slow_twin(family: str) -> None:
    model = build(family)
    assert recognised(model)
    fast, slow = (EmbeddedEngine(model, eos_ids=[3], slots=13, lean=lean) for lean in (True, False))
    a, b = (run_plans(e, [two_stage(tuple(range(5, 8 + i)), 4, 20) for i in range(5)]) for e in (fast, slow))
    assert as_lists(a) == as_lists(b)
    for engine, groups in ((fast, a), (slow, b)):
        engine._forward.refresh()
        assert (engine._forward._lean is not None) == (engine is fast)
        assert check_samples(model, [s for g in groups for s in g.samples]) < 1e-5


def test_bfloat16_rounds_as_the_modules_do() -> None:
    model = build("qwen3").to(torch.bfloat16)
    groups = [
        run_plans(EmbeddedEngine(model, eos_ids=[], slots=8, lean=lean), [two_stage((5, 6, 7), 4, 2)])[0]
        for lean in (True, False)
    ]
    for fast, slow in zip(groups[0].unused, groups[1].unused, strict=True):
        assert fast.tokens.tolist() == slow.tokens.tolist()
        assert abs(float(fast.logp[0] - slow.logp[0])) < 0.03  # one bf16 step of a logit near 4


def test_unknown_structures_take_the_general_path() -> None:
    assert not recognised(build("gpt2"))
    assert not recognised(build("mistral-sliding"))
    hooked = build("llama")
    hooked.model.layers[1].mlp.register_forward_hook(lambda *_: None)
    assert not recognised(hooked)
    replaced = build("llama")
    replaced.model.norm.forward = lambda x: x
    assert not recognised(replaced)
    adapted = build("llama")
    parametrizations.weight_norm(adapted.lm_head)
    assert not recognised(adapted)


def test_a_hook_added_between_runs_is_seen() -> None:
    model = build("llama")
    engine = EmbeddedEngine(model, eos_ids=[], slots=4)
    before = as_lists(run_plans(engine, [two_stage((5, 6, 7), 2, 12)]))
    handle = model.lm_head.register_forward_hook(lambda _m, _a, out: -out)
    (group,) = run_plans(engine, [two_stage((5, 6, 7), 2, 12)])
    assert as_lists([group]) != before
    assert check_samples(model, group.samples) < 1e-5
    handle.remove()
    assert as_lists(run_plans(engine, [two_stage((5, 6, 7), 2, 12)])) == before
