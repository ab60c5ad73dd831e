"""LoRA through PEFT: wrapping a model in new adapters, loading saved ones, merging them.

Adapters are float32 even on a bfloat16 base: an update of 1e-6 relative to a weight is lost in bfloat16's 8 bits, and the
adapters are small. PEFT casts a layer's input to float32 for the adapter and its output back to the base's type.
"""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import torch

from skpo.config import LoraConfig
from skpo.errors import ModelError

ADAPTER_FILE = "adapter_config.json"


def add_lora(model: Any, config: LoraConfig, source: str, seed: int = 0) -> Any:
    """The model with fresh adapters, the only trainable parameters. It computes what the base computed until trained (B = 0).

    source: what `load_policy` needs to find the base again; written into the saved adapter.
    seed:   of the adapters' random A matrices; the global random state is left as it was.
    Raises ModelError where `target_modules` names no module of the model.
    """
    from peft import LoraConfig as PeftConfig
    from peft import get_peft_model

    alpha: Any = config.alpha  # annotated as int in PEFT, but used as a plain factor alpha / r
    peft_config = PeftConfig(
        r=config.r,
        lora_alpha=alpha,
        target_modules=config.target_modules,
        lora_dropout=0.0,
        task_type="CAUSAL_LM",
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        try:
            wrapped = get_peft_model(model, peft_config, autocast_adapter_dtype=True)
        except ValueError as error:
            raise ModelError(f"model.lora.target_modules={config.target_modules!r}: {error}") from error
    wrapped.peft_config["default"].base_model_name_or_path = source
    return wrapped


def adapter_base(folder: Path) -> str:
    """The base model of a saved adapter, as `load_policy` spells it. Raises ModelError where the file does not say."""
    base = json.loads((folder / ADAPTER_FILE).read_text()).get("base_model_name_or_path")
    if not base:
        raise ModelError(
            f'{folder / ADAPTER_FILE}: no "base_model_name_or_path". Set it to the base model\'s folder or name.'
        )
    return str(base)


def load_adapter(model: Any, folder: Path, source: str) -> Any:
    """The base model with the adapter of `folder`, ready to be trained on (float32, gradients on)."""
    from peft import PeftModel

    try:
        wrapped = PeftModel.from_pretrained(model, str(folder), is_trainable=True, autocast_adapter_dtype=True)
    except (RuntimeError, ValueError) as error:
        raise ModelError(f"{folder}: the adapter does not fit its base {source}: {error}") from error
    wrapped.peft_config["default"].base_model_name_or_path = source
    return wrapped


def is_lora(model: Any) -> bool:
    """True for a model that PEFT has wrapped."""
    return hasattr(model, "peft_config") and hasattr(model, "merge_and_unload")


def merged(model: Any) -> Any:
    """A plain transformers model with the adapters added into the weights; the policy itself stays as it is (a copy is made)."""
    return copy.deepcopy(model).merge_and_unload()
