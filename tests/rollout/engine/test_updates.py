"""Ten updates of the weights that trainer and engine share, as an optimiser makes them: in place."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from rollout.engine.engine_models import build, check_samples, run_plans, two_stage

from skpo.rollout.embedded import EmbeddedEngine


def adapted(model: Any) -> Any:
    import peft

    return peft.get_peft_model(model, peft.LoraConfig(r=4, target_modules="all-linear", init_lora_weights=False))


@pytest.mark.parametrize("lora", [False, True], ids=["full", "lora"])
@pytest.mark.parametrize("family", ["llama", "llama-tied", "qwen2", "gpt2"])
def test_log_probabilities_follow_ten_updates(family: str, lora: bool) -> None:
    """Those of a plain forward to 1e-4 after each, and of other tokens each time. One engine, with what it keeps between runs."""
    model = build(family)
    model = adapted(model) if lora else model
    engine = EmbeddedEngine(model, eos_ids=[3], slots=12)
    drawn = []
    for version in range(11):
        groups = run_plans(engine, [two_stage(tuple(range(5, 8 + 9 * i)), 3, 12) for i in range(3)])
        samples = [s for g in groups for s in [*g.samples, *g.unused]]
        assert {s.version for s in samples} == {version}
        assert check_samples(model, samples) < 1e-4
        drawn.append(tuple(tuple(s.tokens.tolist()) for s in samples))
        with torch.no_grad():
            for p in model.parameters():
                if p.requires_grad:
                    p.add_(0.02 * torch.randn_like(p))
        engine.update_weights(None, version + 1)
    assert len(set(drawn)) == 11
