"""An optimiser's state by parameter name, whole: the same whatever number of processes hold it, and however it is split."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from skpo.errors import RunError
from skpo.trainer.processes import whole


def optimizer_state(model: nn.Module, optimizer: torch.optim.Optimizer, *, keep: bool = True) -> dict[str, Any]:
    """`{"state": {name: {...}}, "param_groups": [...]}` with names of `model` and whole tensors on the CPU.

    Every process of a sharded model has to call it; where `keep` is false it takes part and returns no tensors.
    """
    names = _names(model)
    state: dict[str, dict[str, Any]] = {}
    for p in _parameters(optimizer):
        values = {key: whole(value) for key, value in optimizer.state.get(p, {}).items()}
        if values and keep:
            state[names[p]] = {k: v.detach().cpu().clone() if isinstance(v, Tensor) else v for k, v in values.items()}
    groups = [{**group, "params": [names[p] for p in group["params"]]} for group in optimizer.param_groups]
    return {"state": state, "param_groups": groups}


def load_optimizer_state(model: nn.Module, optimizer: torch.optim.Optimizer, saved: Mapping[str, Any]) -> None:
    """Go on from what `optimizer_state` gave, in each process with its part. Raises RunError for another model's."""
    names = _names(model)
    own = [names[p] for p in _parameters(optimizer)]
    there = [name for group in saved["param_groups"] for name in group["params"]]
    if own != there:
        differing = sorted(map(str, set(own) ^ set(there)))
        raise RunError(
            f"the checkpoint's optimiser state belongs to other parameters ({', '.join(differing[:3]) or 'in another order'})"
        )
    parameters = _parameters(optimizer)
    number = {name: i for i, name in enumerate(own)}
    optimizer.load_state_dict(
        {
            "state": {
                number[name]: {key: _part(value, parameters[number[name]]) for key, value in values.items()}
                for name, values in saved["state"].items()
            },
            "param_groups": [{**g, "params": [number[name] for name in g["params"]]} for g in saved["param_groups"]],
        }
    )


def _parameters(optimizer: torch.optim.Optimizer) -> list[Tensor]:
    return [p for group in optimizer.param_groups for p in group["params"]]


def _names(model: nn.Module) -> dict[Tensor, str]:
    """Names of parameters without what DDP puts before them."""
    inner = model.module if isinstance(model, nn.parallel.DistributedDataParallel) else model
    return {p: name for name, p in inner.named_parameters()}


def _part(value: Any, parameter: Tensor) -> Any:
    """This process's part of a tensor that has a parameter's shape, split as the parameter is."""
    from torch.distributed.tensor import DTensor, distribute_tensor

    if isinstance(parameter, DTensor) and isinstance(value, Tensor) and value.shape == parameter.shape and value.dim():
        mesh = parameter.device_mesh
        return distribute_tensor(value.to(mesh.device_type), mesh, parameter.placements)
    return value
