"""Weights on their way from a trainer to an engine: into a model of the engine's own, and as a plain checkpoint would hold them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from skpo.errors import ModelError


def load_weights(model: nn.Module, weights: Mapping[str, Any]) -> None:
    """Copy weights, named as in `state_dict()`, into the model's parameters, in place. Frozen ones may be missing, and of tied
    weights one name is enough. Raises ModelError, before any is copied, if they don't fit."""
    own = model.state_dict(keep_vars=True)
    unknown = sorted(set(weights) - set(own))
    given = {own[name].data_ptr() for name in weights if name in own}
    missing = sorted(n for n, p in model.named_parameters() if p.requires_grad and p.data_ptr() not in given)
    shapes = [
        f"{n} {tuple(weights[n].shape)}, not {tuple(own[n].shape)}"
        for n in weights
        if n in own and weights[n].shape != own[n].shape
    ]
    for what, names in (("unknown", unknown), ("missing", missing), ("of another shape", shapes)):
        if names:
            raise ModelError(
                f"{len(names)} weights are {what}: {', '.join(names[:5])}{' ...' if len(names) > 5 else ''}"
            )
    with torch.no_grad():
        for name, value in weights.items():
            own[name].copy_(torch.as_tensor(value))


@torch.no_grad()
def checkpoint_tensors(model: Any) -> Iterator[tuple[str, Tensor]]:
    """(name, tensor) of a causal LM as its own checkpoint would hold them, one after the other; tied weights once.

    Adapters of PEFT, unless they are switched off, are added into the weights that they belong to, in float32, without touching the
    model. Shards of FSDP2 are gathered: then every process has to call this.
    """
    tuned: dict[str, Any] = {}
    if hasattr(model, "peft_config"):
        from peft.tuners.lora import LoraLayer

        model = model.get_base_model()
        tuned = {name: module for name, module in model.named_modules() if isinstance(module, LoraLayer)}
    for name, parameter in model.named_parameters():
        holder = name.partition(".lora_")[0] if ".lora_" in name else None
        if holder in tuned:
            continue  # an adapter's own matrix
        value = whole(parameter)
        owner, _, last = name.rpartition(".")
        owner = owner.removesuffix(".base_layer")
        if owner in tuned and last == "weight" and not tuned[owner].disable_adapters:
            layer = tuned[owner]
            for adapter in layer.active_adapters:
                value = (value.float() + layer.get_delta_weight(adapter).float()).to(value.dtype)
        yield (f"{owner}.{last}" if owner else last), value


def whole(value: Tensor) -> Tensor:
    """A parameter without gradient; a sharded one (DTensor) gathered."""
    value = value.detach()
    gather: Any = getattr(value, "full_tensor", None)
    return value if gather is None else gather()
