"""The trainer's weights on their way to vLLM: handed over in one process, through files in shared memory between two."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from torch import Tensor

from skpo.rollout.weights import checkpoint_tensors

SHARD = 2 << 30  #: bytes per file, so that the trainer never holds a second whole copy of a large model
SHARED_MEMORY = Path("/dev/shm")


@contextmanager
def shared_folder(size: int) -> Iterator[Path]:
    """A temporary folder with room for `size` bytes: in shared memory if they fit there, else where temporary files are."""
    roomy = SHARED_MEMORY.is_dir() and shutil.disk_usage(SHARED_MEMORY).free > 1.1 * size
    with tempfile.TemporaryDirectory(prefix="skpo-", dir=SHARED_MEMORY if roomy else None) as folder:
        yield Path(folder)


def write_checkpoint(tensors: Iterable[tuple[str, Tensor]], folder: Path, shard: int = SHARD) -> list[str]:
    """Write tensors as safetensors files of about `shard` bytes; returns their paths."""
    from safetensors.torch import save_file

    files: list[str] = []
    part: dict[str, Tensor] = {}
    size = 0

    def flush() -> None:
        files.append(str(folder / f"model-{len(files):05d}.safetensors"))
        save_file(part, files[-1], metadata={"format": "pt"})
        part.clear()

    for name, tensor in tensors:
        part[name] = tensor.to("cpu").contiguous()
        size += tensor.nbytes
        if size >= shard:
            flush()
            size = 0
    if part:
        flush()
    return files


def send(engine: Any, model: Any, *, own_process: bool) -> None:
    """Give vLLM the model's weights, adapters added in."""
    if not own_process:
        engine.collective_rpc("skpo_load", kwargs={"weights": checkpoint_tensors(model)})
        return
    with shared_folder(sum(p.nbytes for p in model.parameters())) as folder:
        files = write_checkpoint(checkpoint_tensors(model), folder)
        engine.collective_rpc("skpo_load", kwargs={"files": files})
