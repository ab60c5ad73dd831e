"""Tiny random stand-ins for a dry run: a recipe's architecture and tokenizer, without its weights.

What a dry run can show is that a recipe's settings, prompts, shapes and steps fit together; its rewards mean nothing.
"""

from __future__ import annotations

from typing import Any

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors
from transformers import (
    AutoModelForCausalLM,
    LlamaConfig,
    PretrainedConfig,
    PreTrainedTokenizerBase,
    PreTrainedTokenizerFast,
    Qwen2Config,
)

LAYERS, HEAD_DIM = 2, 8
#: Sizes that only mixture-of-experts models have, and what they shrink to at most.
EXPERT_CAPS = {
    "num_experts": 4,
    "num_local_experts": 4,
    "n_routed_experts": 4,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 32,
    "shared_expert_intermediate_size": 32,
}
CHAT_TEMPLATE = (
    "{% for message in messages %}<|im_start|>{{ message['role'] }}\n{{ message['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


def tiny_model(
    config: PretrainedConfig, tokenizer: Any, dtype: torch.dtype, seed: int = 0, attention: str | None = None
) -> Any:
    """A random model of the configuration's own class, small enough for any machine; the global random state is kept."""
    options = {"attn_implementation": attention} if attention else {}
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return AutoModelForCausalLM.from_config(shrink(config, tokenizer), dtype=dtype, **options)


def shrink(config: PretrainedConfig, tokenizer: Any) -> PretrainedConfig:
    """A copy of the configuration with two layers and narrow heads; the ratio of query to key-value heads is kept.

    The vocabulary is as small as the tokenizer allows (a multiple of 64). Names differ between models
    (`n_embd`, `hidden_size`): transformers' `attribute_map` translates them.
    """
    small = type(config).from_dict(config.to_dict())
    heads = config.num_attention_heads
    kv_heads = getattr(config, "num_key_value_heads", None) or heads
    ratio = max(1, heads // kv_heads)
    small_kv = 2 if kv_heads > 1 else 1
    small.num_attention_heads = small_kv * ratio
    if hasattr(config, "num_key_value_heads"):
        small.num_key_value_heads = small_kv
    if getattr(config, "head_dim", None):
        small.head_dim = HEAD_DIM
    small.hidden_size = small.num_attention_heads * HEAD_DIM
    if getattr(config, "intermediate_size", None):
        small.intermediate_size = 2 * small.hidden_size
    if getattr(config, "n_inner", None):
        small.n_inner = 2 * small.hidden_size
    small.num_hidden_layers = min(LAYERS, config.num_hidden_layers)
    if getattr(config, "layer_types", None):
        small.layer_types = list(config.layer_types)[: small.num_hidden_layers]
    for name, cap in EXPERT_CAPS.items():
        if isinstance(getattr(config, name, None), int):
            setattr(small, name, min(cap, getattr(config, name)))
    largest = max(tokenizer.get_vocab().values())
    small.vocab_size = (largest // 64 + 1) * 64
    small.bos_token_id, small.eos_token_id = tokenizer.bos_token_id, tokenizer.eos_token_id
    small.pad_token_id = tokenizer.pad_token_id
    return small


def describe(model: Any) -> str:
    """One phrase: class, layers, width and parameters of a model."""
    size = sum(p.numel() for p in model.parameters()) / 1e6
    config = model.config
    return f"a {type(model).__name__} of {config.num_hidden_layers} layers, width {config.hidden_size}, {size:.1f} M parameters"


def known_architecture(name: str) -> tuple[PretrainedConfig, PreTrainedTokenizerBase] | None:
    """Configuration and a byte-level tokenizer for a model that a shipped recipe names; None for any other name.

    The numbers are those of the published config.json files.
    """
    short = name.rsplit("/", 1)[-1]
    if short == "Qwen2.5-Math-7B":
        qwen = Qwen2Config(
            vocab_size=152064,
            hidden_size=3584,
            intermediate_size=18944,
            num_hidden_layers=28,
            num_attention_heads=28,
            num_key_value_heads=4,
            max_position_embeddings=4096,
            rope_parameters={"rope_type": "default", "rope_theta": 10000.0},
        )
        return qwen, byte_tokenizer(chat=False)
    if short == "Llama-3.2-3B-Instruct":
        llama = LlamaConfig(
            vocab_size=128256,
            hidden_size=3072,
            intermediate_size=8192,
            num_hidden_layers=28,
            num_attention_heads=24,
            num_key_value_heads=8,
            head_dim=128,
            max_position_embeddings=131072,
            rms_norm_eps=1e-5,
            tie_word_embeddings=True,
            rope_parameters={
                "rope_type": "llama3",
                "rope_theta": 500000.0,
                "factor": 32.0,
                "high_freq_factor": 4.0,
                "low_freq_factor": 1.0,
                "original_max_position_embeddings": 8192,
            },
        )
        return llama, byte_tokenizer(chat=True, bos="<|begin_of_text|>")
    return None


def byte_tokenizer(chat: bool, bos: str | None = None) -> PreTrainedTokenizerFast:
    """A tokenizer whose tokens are the 256 bytes and a few special ones; needs no file.

    chat: with a ChatML template. bos: a token put in front of every text, where the real model has one.
    """
    special = ["<|endoftext|>", "<|im_start|>", "<|im_end|>", *([bos] if bos else [])]
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE(vocab={letter: i for i, letter in enumerate(letters)}, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(special)
    if bos:
        tokenizer.post_processor = processors.TemplateProcessing(
            single=f"{bos} $A", special_tokens=[(bos, tokenizer.token_to_id(bos))]
        )
    fast = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        bos_token=bos,
        eos_token="<|im_end|>" if chat else "<|endoftext|>",
        pad_token="<|endoftext|>",
    )
    if chat:
        fast.chat_template = ("{{ bos_token }}" if bos else "") + CHAT_TEMPLATE
    return fast
