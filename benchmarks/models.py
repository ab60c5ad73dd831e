"""Models with random weights that the benchmarks run: what they cost depends on their shape alone."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from transformers import PreTrainedModel

#: name -> settings of a Llama: about 4 M parameters, and the shape of SmolLM2-135M (HuggingFaceTB/SmolLM2-135M-Instruct)
SHAPES = {
    "4M": {
        "vocab_size": 4096,
        "hidden_size": 256,
        "intermediate_size": 704,
        "num_hidden_layers": 4,
        "num_attention_heads": 4,
        "num_key_value_heads": 4,
        "max_position_embeddings": 4096,
        "tie_word_embeddings": True,
    },
    "135M": {
        "vocab_size": 49152,
        "hidden_size": 576,
        "intermediate_size": 1536,
        "num_hidden_layers": 30,
        "num_attention_heads": 9,
        "num_key_value_heads": 3,
        "max_position_embeddings": 8192,
        "rope_theta": 100000.0,
        "tie_word_embeddings": True,
    },
}


def build(shape: str, seed: int = 0) -> PreTrainedModel:
    """A Llama of `shape` (a key of SHAPES) in float32, in evaluation mode. No token ends a sequence: lengths are budgets."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(seed)
    config = LlamaConfig(**SHAPES[shape], bos_token_id=None, eos_token_id=None, pad_token_id=0)
    return LlamaForCausalLM(config).eval()


def parameters(model: PreTrainedModel) -> float:
    """Millions of weights, shared ones once."""
    return sum(p.numel() for p in model.parameters()) / 1e6
