"""Tiny models of shapes that vLLM's CPU kernels know (heads of 32), and engines on them."""

from __future__ import annotations

from typing import Any

import torch

from skpo.config import VLLMConfig
from skpo.rollout.vllm import VLLMEngine

EOS = 3


def build(family: str, seed: int = 0, head_dim: int = 32) -> Any:
    """A random model of two layers with uneven distributions: `llama`, `llama-tied`, `qwen2-tied`, `qwen3`"""
    import transformers as tf

    torch.manual_seed(seed)
    name, _, variant = family.partition("-")
    kind: Any = {"llama": tf.LlamaConfig, "qwen2": tf.Qwen2Config, "qwen3": tf.Qwen3Config}[name]
    config = kind(
        vocab_size=99, hidden_size=64, intermediate_size=96, num_hidden_layers=2, num_attention_heads=2, num_key_value_heads=1,
        head_dim=head_dim, max_position_embeddings=128, initializer_range=0.15, tie_word_embeddings=variant == "tied",
    )  # fmt: skip
    return tf.AutoModelForCausalLM.from_config(config, attn_implementation="sdpa").eval()


def adapted(model: Any, rank: int = 4) -> Any:
    """The model with random adapters on every linear layer."""
    import peft

    torch.manual_seed(1)
    return peft.get_peft_model(model, peft.LoraConfig(r=rank, target_modules="all-linear", init_lora_weights=False))


def engine_on(model: Any, mode: str = "inprocess", *, slots: int = 12, **settings: Any) -> VLLMEngine:
    return VLLMEngine(
        model, eos_ids=[EOS], slots=slots, threads=1, settings=VLLMConfig(mode=mode, kv_cache_gib=0.01, **settings)
    )


def nudge(model: Any, by: float = 0.02) -> None:
    """Change every trained weight at random, as a large optimiser step would."""
    with torch.no_grad():
        for p in model.parameters():
            if p.requires_grad:
                p.add_(by * torch.randn_like(p))
