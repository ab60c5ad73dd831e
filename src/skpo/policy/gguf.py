"""GGUF files as ordinary transformers models, converted once and kept on disk.

Reading a GGUF means dequantising every tensor and rebuilding the tokenizer: about 15 s for 135 M parameters. The result
is saved as safetensors in the cache, keyed by the file's content, the transformers version and the dtype, so that later
loads take a fraction of a second and a moved or reinstalled file is still recognised.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import shutil
import tempfile
import warnings
from collections.abc import Iterator
from pathlib import Path

import torch
import transformers
from filelock import FileLock
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer

from skpo.errors import ModelError


def cache_dir() -> Path:
    """Where converted models are kept: `$SKPO_CACHE`, else `$XDG_CACHE_HOME/skpo`, else `~/.cache/skpo`."""
    if root := os.environ.get("SKPO_CACHE"):
        return Path(root).expanduser()
    base = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    return Path(base).expanduser() / "skpo"


def converted_folder(path: Path, dtype: torch.dtype = torch.float32) -> Path:
    """The cache folder of a GGUF file (it need not exist yet): content hash, transformers version and dtype."""
    with path.open("rb") as file:
        content = hashlib.file_digest(file, "blake2b").hexdigest()[:24]
    kind = str(dtype).removeprefix("torch.")
    return cache_dir() / "gguf" / f"{path.stem}-{content}-transformers{transformers.__version__}-{kind}"


def convert_gguf(path: Path, dtype: torch.dtype = torch.float32) -> Path:
    """Folder with the model (safetensors of `dtype`) and tokenizer of a GGUF file; made on the first call.

    The folder appears whole or not at all (it is written beside its place and renamed), and two processes that ask at the
    same time convert once. Raises ModelError where the file can't be read or its architecture isn't known to transformers.
    """
    folder = converted_folder(path, dtype)
    if folder.is_dir():
        return folder
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        with FileLock(folder.parent / f"{folder.name}.lock"):
            if not folder.is_dir():
                _convert_into(folder, path, dtype)
    except OSError as error:
        raise ModelError(
            f"{path}: can't convert into {folder.parent}: {error}. Point $SKPO_CACHE at a folder with free space."
        ) from error
    return folder


def gguf_skeleton(path: Path) -> tuple[transformers.PretrainedConfig, transformers.PreTrainedTokenizerBase]:
    """Configuration and tokenizer of a GGUF file, without reading its tensors (a few seconds)."""
    with _readable(path), quiet():
        config = AutoConfig.from_pretrained(path.parent, gguf_file=path.name)
        tokenizer = AutoTokenizer.from_pretrained(path.parent, gguf_file=path.name)
    return _without_quantization(config), tokenizer


def _convert_into(folder: Path, path: Path, dtype: torch.dtype) -> None:
    """Convert into a temporary folder on the same file system, then rename it to `folder`."""
    staging = Path(tempfile.mkdtemp(prefix=f".{folder.name}.", dir=folder.parent))
    try:
        with _readable(path), quiet():
            loaded = AutoModelForCausalLM.from_pretrained(path.parent, gguf_file=path.name, dtype=dtype)
            tokenizer = AutoTokenizer.from_pretrained(path.parent, gguf_file=path.name)
        # A model that came from a GGUF refuses save_pretrained: a twin without the mark of quantisation does not.
        config = _without_quantization(loaded.config)
        model = AutoModelForCausalLM.from_config(config, dtype=dtype)
        model.load_state_dict(loaded.state_dict())
        model.tie_weights()
        model.generation_config = loaded.generation_config
        with quiet():
            model.save_pretrained(staging)
            tokenizer.save_pretrained(staging)
        staging.rename(folder)
    finally:
        shutil.rmtree(staging, ignore_errors=True)


def _without_quantization(config: transformers.PretrainedConfig) -> transformers.PretrainedConfig:
    if hasattr(config, "quantization_config"):
        del config.quantization_config
    return config


@contextlib.contextmanager
def _readable(path: Path) -> Iterator[None]:
    """Turn what transformers and gguf raise on a file that they can't read into a ModelError."""
    try:
        yield
    except ImportError as error:
        raise ModelError(f'{path}: reading GGUF needs the gguf package: pip install "skpo[gguf]"') from error
    except (ValueError, KeyError, OSError, RuntimeError, NotImplementedError) as error:
        raise ModelError(f"{path}: transformers can't read this GGUF file: {error}") from error


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """No progress bars, advice or deprecation notes from transformers and PEFT inside the block; errors still show."""
    logging = transformers.utils.logging
    bars, verbosity = logging.is_progress_bar_enabled(), logging.get_verbosity()
    logging.disable_progress_bar()
    logging.set_verbosity_error()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", FutureWarning)
            yield
    finally:
        logging.set_verbosity(verbosity)
        if bars:
            logging.enable_progress_bar()
