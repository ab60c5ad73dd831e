"""What travels between the trainer and its rollout workers, as bytes: plans there, groups back, weights as arrays."""

from __future__ import annotations

import io
import pickle
import warnings
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from skpo.errors import SkpoError
from skpo.rollout.weights import whole


def pack_run(run: Any) -> bytes:
    """A `PlanRun` whose plan has not begun.

    Objects whose class says `travels_as` (the renderer, the judge) stay behind: the worker has its own. Raises SkpoError
    for a plan that can't travel: a generator of a function without `plan_function`.
    """
    from ray import cloudpickle

    class Packer(cloudpickle.Pickler):
        def persistent_id(self, thing: Any) -> str | None:
            return getattr(type(thing), "travels_as", None)

    out = io.BytesIO()
    try:
        Packer(out, protocol=5).dump(run)
    except TypeError as error:
        if "generator" not in str(error):
            raise
        raise SkpoError(
            "this plan can't travel to a rollout worker: put @plan_function (skpo.rollout.types) on the generator function "
            "that makes it"
        ) from error
    return out.getvalue()


def unpack_run(data: bytes, own: Mapping[str, Any]) -> Any:
    """The `PlanRun` again. own: this worker's `renderer` and `judge`."""

    class Unpacker(pickle.Unpickler):
        def persistent_load(self, name: str) -> Any:
            return own[name]

    return Unpacker(io.BytesIO(data)).load()


@dataclass
class Weights:
    """Weights of one version, as plain arrays, which Ray's object store shares between a node's workers without a copy.

    arrays: name -> (array, name of the torch type). Types that numpy lacks travel as integers of their size.
    """

    version: int
    arrays: dict[str, tuple[np.ndarray, str]]

    @classmethod
    def of(cls, named: Iterable[tuple[str, torch.Tensor]], version: int) -> Weights:
        return cls(version, {name: _to_array(tensor) for name, tensor in named})

    @property
    def bytes(self) -> int:
        return sum(array.nbytes for array, _ in self.arrays.values())

    def tensors(self) -> dict[str, torch.Tensor]:
        """The weights as tensors over the arrays' memory: to be copied from, never written to."""
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "The given NumPy array is not writable")
            return {name: torch.from_numpy(a).view(getattr(torch, kind)) for name, (a, kind) in self.arrays.items()}


def _to_array(tensor: torch.Tensor) -> tuple[np.ndarray, str]:
    value = whole(tensor).cpu().contiguous()
    kind = str(value.dtype).removeprefix("torch.")
    return (value.view(torch.int16) if value.dtype == torch.bfloat16 else value).numpy(), kind
