"""Weights arrive, in both modes, tied or not, or the probe says what went wrong."""

from __future__ import annotations

import re
from typing import Any

import pytest
import torch
from rollout.engine.engine_models import check_samples, run_plans, two_stage
from rollout.vllm.vllm_models import adapted, build, engine_on, nudge

from skpo.errors import ModelError
from skpo.rollout.vllm import VLLMEngine
from skpo.rollout.vllm.worker import TrainerWeights


def deviation(engine: VLLMEngine, model: Any) -> float:
    """Largest difference between what the engine reports and a plain forward of the trainer's model."""
    groups = run_plans(engine, [two_stage(tuple(range(5, 8 + 9 * i)), 4, 16) for i in range(3)])
    samples = [s for g in groups for s in [*g.samples, *g.unused]]
    assert {s.version for s in samples} == {engine.version}
    return check_samples(model, samples)


@pytest.mark.parametrize("mode", ["inprocess", "process"])
@pytest.mark.parametrize("family", ["llama", "llama-tied"])
def test_ten_updates(family: str, mode: str) -> None:
    model = build(family)
    engine = engine_on(model, mode)
    try:
        assert deviation(engine, model) < 1e-4
        for version in range(1, 11):
            nudge(model)
            engine.update_weights(None, version)
            assert engine.take_stats().more["probe_deviation"] < 1e-4
        assert deviation(engine, model) < 1e-4
    finally:
        engine.close()


@pytest.mark.parametrize("family", ["qwen2-tied", "qwen3"])
def test_other_families_and_given_weights(family: str) -> None:
    """`weights` by name, of another model, take the place of the engine's model's own."""
    model, other = build(family), build(family, seed=1)
    engine = engine_on(model)
    try:
        engine.update_weights(dict(other.named_parameters()), 7)
        assert deviation(engine, other) < 1e-4
        with pytest.raises(ModelError, match="unknown"):
            engine.update_weights({"no.such.weight": torch.zeros(1)}, 8)
    finally:
        engine.close()


def test_a_planted_stale_head_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the repacking that `TrainerWeights` does, a tied head keeps its old weights: so stock vLLM does on a CPU."""
    model = build("llama-tied")
    engine = engine_on(model)
    try:
        engine.update_weights(None, 0)
        monkeypatch.setattr(TrainerWeights, "skpo_load", lambda self, weights: self.reload_weights(weights))
        nudge(model)
        with pytest.raises(ModelError, match=r"weight version 1: .* The output head was stale"):
            engine.update_weights(None, 1)
    finally:
        engine.close()


def test_weights_that_stay_at_home_are_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    """Even where the step was so small that the log-probabilities moved by less than the tolerance."""
    model = build("llama")
    engine = engine_on(model)
    try:
        engine.update_weights(None, 0)
        monkeypatch.setattr(TrainerWeights, "skpo_load", lambda self, weights: None)
        nudge(model, 1e-5)
        with pytest.raises(ModelError, match="did not arrive") as error:
            engine.update_weights(None, 1)
        found = re.search(r"by up to (\S+) nats", str(error.value))
        assert found is not None
        assert 1e-4 < float(found[1]) < 0.01
    finally:
        engine.close()


@pytest.mark.parametrize("travels", ["adapters", "merged"])
@pytest.mark.parametrize("mode", ["inprocess", "process"])
def test_lora(travels: str, mode: str) -> None:
    model = adapted(build("llama-tied"))
    engine = engine_on(model, mode, lora=travels)
    try:
        assert deviation(engine, model) < 1e-4
        with model.disable_adapter():
            before = [p.clone() for p in model.parameters()]
        for version in (1, 2):
            nudge(model, 0.1)
            engine.update_weights(None, version)
            assert engine.take_stats().more["probe_deviation"] < 1e-4
        assert deviation(engine, model) < 1e-4
        changed = [not torch.equal(a, b) for a, b in zip(before, model.parameters(), strict=True)]
        assert changed == [p.requires_grad for p in model.parameters()]  # the base is as it was
    finally:
        engine.close()


def test_adapters_that_stay_at_home_are_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    model = adapted(build("llama"))
    engine = engine_on(model)
    try:
        engine.update_weights(None, 0)
        monkeypatch.setattr("skpo.rollout.vllm.adapters.Adapters.send", lambda self, engine: None)
        nudge(model, 0.1)
        with pytest.raises(ModelError, match="did not arrive"):
            engine.update_weights(None, 1)
    finally:
        engine.close()


def test_bfloat16() -> None:
    model = build("llama-tied").to(torch.bfloat16)
    engine = engine_on(model)
    try:
        for version in range(3):
            engine.update_weights(None, version)
            assert 0 < engine.take_stats().more["probe_deviation"] < 0.5
            nudge(model)
    finally:
        engine.close()


def test_a_model_that_vllm_refuses() -> None:
    """Heads of 8: vLLM's kernels on a CPU have none of that size. It says so at the first forward."""
    engine = engine_on(build("llama", head_dim=8))
    try:
        with pytest.raises(ModelError, match=r"vLLM can't run this model.*head_dim"):
            engine.update_weights(None, 0)
    finally:
        engine.close()
