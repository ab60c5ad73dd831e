"""Helpers that tests share: golden values, small random models."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch

DATA = Path(__file__).parent / "data"


def vectors(name: str) -> Any:
    """A file of expected values."""
    return json.loads((DATA / name).read_text())


def tiny_model(family: str, *, vocab: int = 67, seed: int = 0, **overrides: Any) -> torch.nn.Module:
    """A random causal LM of a family (`llama`, `qwen2`, `qwen3`, `gpt2`), two layers wide 32, float32, dropout off."""
    import transformers

    torch.manual_seed(seed)
    if family == "gpt2":
        options: dict[str, Any] = {
            "n_embd": 32,
            "n_layer": 2,
            "n_head": 4,
            "n_positions": 256,
            "resid_pdrop": 0.0,
            "embd_pdrop": 0.0,
            "attn_pdrop": 0.0,
        }
        config = transformers.GPT2Config(vocab_size=vocab, **{**options, **overrides})
    else:
        options = {
            "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4,
            "num_key_value_heads": 2, "max_position_embeddings": 256,
        }  # fmt: skip
        kind = {
            "llama": transformers.LlamaConfig,
            "qwen2": transformers.Qwen2Config,
            "qwen3": transformers.Qwen3Config,
        }[family]
        if family == "qwen3":
            options["head_dim"] = 8
        config = kind(vocab_size=vocab, **{**options, **overrides})
    return transformers.AutoModelForCausalLM.from_config(config).eval()
