"""Checkpoints: everything a step depends on, written whole or not at all.

    checkpoints/step-000010/model/        weights and tokenizer, as plain transformers (or PEFT) loads them
                            optimizer.pt  optimiser, its state by parameter name and whole, and schedule
                            auxiliary.pt  the algorithm's own model, where it has one: weights, optimiser, schedule
                            ahead.pt      rollouts of the next step, where they are begun a step ahead
                            state.json    trackers, sampler, position, random states, best score

A checkpoint is written beside its place and renamed, so that a crash at any instant leaves the last good one.
"""

from __future__ import annotations

import json
import os
import random
import re
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch

from skpo.errors import RunError
from skpo.trainer.ahead import write_ahead

FOLDER = "checkpoints"
_NAME = re.compile(r"^step-(\d+)$")


def random_states() -> dict[str, Any]:
    """States of Python's, numpy's and torch's global generators, as JSON-ready values."""
    kind, keys, place, gauss, cached = np.random.get_state()
    version, internal, extra = random.getstate()
    states: dict[str, Any] = {
        "python": [version, list(internal), extra],
        "numpy": [kind, np.asarray(keys).tolist(), int(place), int(gauss), float(cached)],
        "torch": torch.get_rng_state().tolist(),
    }
    if torch.cuda.is_available():
        states["cuda"] = [s.tolist() for s in torch.cuda.get_rng_state_all()]
    return states


def set_random_states(states: Mapping[str, Any]) -> None:
    """Put the generators back to what `random_states` gave."""
    version, internal, extra = states["python"]
    random.setstate((version, tuple(internal), extra))
    kind, keys, place, gauss, cached = states["numpy"]
    np.random.set_state((kind, np.array(keys, dtype=np.uint32), place, gauss, cached))
    torch.set_rng_state(torch.tensor(states["torch"], dtype=torch.uint8))
    for device, state in enumerate(states.get("cuda", [])[: torch.cuda.device_count()]):
        torch.cuda.set_rng_state(torch.tensor(state, dtype=torch.uint8), device)


class Checkpoints:
    """The checkpoints of one run folder: the last `keep` ones and the best."""

    def __init__(self, run: Path, keep: int = 2) -> None:
        self.folder, self.keep = Path(run) / FOLDER, keep

    def steps(self) -> list[int]:
        """Steps that have a checkpoint, ascending."""
        if not self.folder.is_dir():
            return []
        return sorted(int(m[1]) for p in self.folder.iterdir() if (m := _NAME.match(p.name)))

    def path(self, step: int) -> Path:
        return self.folder / f"step-{step:06d}"

    def latest(self) -> Path | None:
        """The newest checkpoint; None where there is none yet."""
        steps = self.steps()
        return self.path(steps[-1]) if steps else None

    def save(
        self,
        step: int,
        save_model: Callable[[Path], None],
        optimizer: Mapping[str, Any],
        state: Mapping[str, Any],
        best: int | None,
        auxiliary: Mapping[str, Any] | None = None,
        ahead: Mapping[str, Any] | None = None,
    ) -> Path:
        """Write the checkpoint of a step, then remove old ones: all but the last `keep` and that of step `best`."""
        final = self.path(step)
        temporary = self.folder / f".writing-{final.name}"
        shutil.rmtree(temporary, ignore_errors=True)
        (temporary / "model").mkdir(parents=True)
        save_model(temporary / "model")
        torch.save(dict(optimizer), temporary / "optimizer.pt")
        if auxiliary is not None:
            torch.save(dict(auxiliary), temporary / "auxiliary.pt")
        if ahead is not None:
            write_ahead(temporary, ahead)
        (temporary / "state.json").write_text(json.dumps(state))
        _sync(temporary)
        if (
            final.exists()
        ):  # a step saved again after a resume: out of the way first, a rename can't replace a full folder
            old = self.folder / f".old-{final.name}"
            shutil.rmtree(old, ignore_errors=True)
            os.replace(final, old)
        os.replace(temporary, final)
        _sync_folder(self.folder)
        self._clean(best)
        return final

    def _clean(self, best: int | None) -> None:
        steps = self.steps()
        for step in steps[: -self.keep]:
            if step != best:
                shutil.rmtree(self.path(step), ignore_errors=True)
        for left in self.folder.glob(".*-step-*"):
            shutil.rmtree(left, ignore_errors=True)


def read_state(path: Path) -> dict[str, Any]:
    """`state.json` of a checkpoint. Raises RunError where it can't be read."""
    try:
        return json.loads((path / "state.json").read_text())
    except (OSError, ValueError) as error:
        raise RunError(f"{path}: not a readable checkpoint ({error}); delete it to go on from the one before") from None


def read_optimizer(path: Path, name: str = "optimizer.pt") -> dict[str, Any]:
    """`optimizer.pt` of a checkpoint (or another of its files of tensors), on the CPU."""
    try:
        return torch.load(path / name, map_location="cpu", weights_only=True)
    except (OSError, RuntimeError, EOFError) as error:
        raise RunError(f"{path}: not a readable checkpoint ({error}); delete it to go on from the one before") from None


def _sync(folder: Path) -> None:
    """Make sure every file below a folder is on disk."""
    for path in sorted(folder.rglob("*")):
        if path.is_file():
            with path.open("rb") as file:
                os.fsync(file.fileno())
        else:
            _sync_folder(path)
    _sync_folder(folder)


def _sync_folder(folder: Path) -> None:
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
