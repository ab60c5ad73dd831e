"""docs/scale.md is what the arithmetic gives, and the arithmetic is right where something is known."""

from __future__ import annotations

import re
from typing import Any

import pytest
import yaml

from benchmarks.layout import BF16, DOCS, FP32, GB, MODELS, Layout, Model, build

SMALL = Model("small", hidden=8, layers=2, heads=2, kv_heads=1, inner=10, vocabulary=32, head_dim=4)


@pytest.mark.parametrize(("name", "published"), [("3B", 3_212_749_824), ("7B", 7_615_616_512), ("70B", 70_553_706_496)])
def test_weights_are_the_published_ones(name: str, published: int) -> None:
    """Sizes of the checkpoints on the hub."""
    assert MODELS[name].weights == published


def test_weights_and_adapters_are_those_that_transformers_and_peft_make() -> None:
    import peft
    import transformers

    config = transformers.LlamaConfig(
        vocab_size=32, hidden_size=8, intermediate_size=10, num_hidden_layers=2, num_attention_heads=2,
        num_key_value_heads=1, head_dim=4, tie_word_embeddings=False,
    )  # fmt: skip
    model: Any = transformers.AutoModelForCausalLM.from_config(config)
    assert SMALL.weights == sum(p.numel() for p in model.parameters())
    adapted = peft.get_peft_model(model, peft.LoraConfig(r=3, target_modules="all-linear", task_type="CAUSAL_LM"))
    assert SMALL.adapters(3) == sum(p.numel() for p in adapted.parameters() if p.requires_grad)


def test_cache_of_a_token() -> None:
    """Keys and values of 2 layers with one head of 4 numbers: 16 numbers."""
    assert SMALL.cache_token(BF16) == 32
    assert SMALL.cache_token(FP32) == 64


def test_memory_of_full_training_on_one_gpu() -> None:
    """16 bytes a weight (float32 weight, gradient, two moments) and 2 for the bf16 copy."""
    parts = Layout(SMALL).parts()
    assert parts["weights"] + parts["gradients"] + parts["AdamW"] == 16 * SMALL.weights
    assert parts["bf16 copies"] == 2 * SMALL.weights
    assert parts["logits"] == 2 * 4 * 2**24


def test_sharding_divides_what_the_optimiser_holds() -> None:
    parts = Layout(SMALL, 4, sharded=True).parts()
    assert parts["weights"] + parts["gradients"] + parts["AdamW"] == 4 * SMALL.weights
    assert parts["whole copy"] == 4 * SMALL.weights
    assert parts["bf16 copies"] == 2 * (2 * SMALL.layer + SMALL.ends)


def test_traffic() -> None:
    """Of 4 processes each takes in 3/4: twice the bf16 weights, once the float32 gradient. A ring all-reduce moves 2 * 3/4 * 4 bytes."""
    sharded = Layout(SMALL, 4, sharded=True).per_pass()
    assert sharded == {"all-gather, twice": 3 * SMALL.weights, "reduce-scatter": 3 * SMALL.weights}
    assert Layout(SMALL, 4).per_pass() == {"all-reduce": 6 * SMALL.weights}


def test_rows_that_fit() -> None:
    """20 GB, 4 in reserve, 12 bytes a weight: the rest holds rows of 64 bytes a token, 100 + 80 / 8 tokens long."""
    rows = Layout(SMALL).rows(20 * GB, tokens=100, prompt=80)
    assert rows == int((16 * GB - 12 * SMALL.weights) / (64 * 110))


def test_adapters_alone_travel() -> None:
    assert Layout(SMALL, rank=3, stored=BF16).sent() == 4 * SMALL.adapters(3)
    assert Layout(SMALL).sent() == 4 * SMALL.weights


def test_the_page_is_up_to_date() -> None:
    assert (DOCS / "scale.md").read_text() == build()


def test_the_page_names_settings_that_exist() -> None:
    """Every `key=value` and every key in the page's YAML is a setting."""
    from skpo.settings import load_config

    text = (DOCS / "scale.md").read_text()
    blocks = re.findall(r"```yaml\n(.*?)```", text, re.S)
    assert blocks
    for block in blocks:
        values = yaml.safe_load(block)
        load_config(
            "recipes/chain.yaml",
            [f"{k}={yaml.safe_dump(v, default_flow_style=True).strip()}" for k, v in _flat(values)],
        )


def _flat(values: dict[str, Any], before: str = "") -> list[tuple[str, Any]]:
    found: list[tuple[str, Any]] = []
    for key, value in values.items():
        path = f"{before}{key}"
        found += _flat(value, f"{path}.") if isinstance(value, dict) else [(path, value)]
    return found
