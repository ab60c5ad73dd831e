"""Rollouts that were begun a step ahead, in a checkpoint: what was sampled with weights that nobody has any more."""

from __future__ import annotations

import pickle
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch

from skpo.errors import RunError
from skpo.problems.base import Problem
from skpo.rollout.types import Group, Sample

FILE = "ahead.pt"
_KINDS = [
    Group,
    Sample,
    Problem,
    np.ndarray,
    np.dtype,
    type(np.dtype("int64")),
    type(np.dtype("float32")),
    type(np.dtype("float64")),
]


def write_ahead(folder: Path, state: Mapping[str, Any]) -> None:
    """Save what `Collector.state_dict` gave. Groups keep which of their samples are the same object."""
    torch.save(dict(state), folder / FILE)


def read_ahead(checkpoint: Path) -> dict[str, Any] | None:
    """The state again; None where nothing was under way. Loads groups and numbers, never code: raises RunError for anything else."""
    path = checkpoint / FILE
    if not path.exists():
        return None
    rebuild: list[Any] = [np.zeros(0).__reduce__()[0], np.float64(0).__reduce__()[0]]
    try:
        with torch.serialization.safe_globals([*_KINDS, *rebuild]):
            return torch.load(path, weights_only=True)
    except (OSError, RuntimeError, EOFError, pickle.UnpicklingError) as error:
        raise RunError(
            f"{path}: can't be read ({str(error).splitlines()[0]}); delete this file to have the step sampled anew"
        ) from None
