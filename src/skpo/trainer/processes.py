"""Several processes that train one policy: how they meet, and what they decide and know together.

Every process runs the same loop on the same problems. Rollouts, verdicts, scoring passes and gradients are shared out; what follows from
them (groups, denominators, advantages, trackers, metrics) is whole in each, so that each draws the same conclusions. One of
them, the first, owns the run's folder and the terminal.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, Any, TypeVar

from skpo.errors import ConfigError, RunError, SkpoError

if TYPE_CHECKING:
    from accelerate import Accelerator
    from torch import nn

    from skpo.config import TrainConfig

T = TypeVar("T")


def world_size() -> int:
    """Processes of this run, as whoever launched them says (torchrun, `accelerate launch`, `skpo train processes=N`); else 1."""
    return (
        int(os.environ.get("WORLD_SIZE", "1")) if "LOCAL_RANK" in os.environ else 1
    )  # some clusters set the former alone


def rank() -> int:
    """This process's number among them; 0 is the one that writes and prints."""
    return int(os.environ.get("RANK", "0")) if "LOCAL_RANK" in os.environ else 0


def sharded(config: TrainConfig) -> bool:
    """Whether weights, gradients and optimiser state are split over processes (FSDP2)."""
    return config.distributed == "fsdp2" and world_size() > 1


def make_accelerator(config: TrainConfig) -> Accelerator:
    """The run's Accelerator: alone, or joined with the other processes (gloo on CPUs, NCCL on GPUs).

    Raises ConfigError where this machine has fewer GPUs than processes, or where Accelerate's own configuration asks for another
    strategy than the recipe.
    """
    from accelerate import Accelerator
    from accelerate.utils import DistributedType

    join(config)
    bf16 = config.optimizer.precision == "bf16"
    plugin = fsdp_plugin(config) if sharded(config) else None
    accelerator = Accelerator(
        # FSDP2 casts by its own policy: Accelerate would turn bfloat16 weights into float32 ones, on several processes only.
        mixed_precision="bf16" if bf16 and plugin is None else "no",
        cpu=on_cpu(),
        fsdp_plugin=plugin,
        log_with=config.track,
        project_dir=str(config.out),
    )
    if plugin is not None and not accelerator.is_fsdp2:
        # Accelerate chooses FSDP on GPUs only; what it then does is the same on gloo.
        accelerator.state.distributed_type = DistributedType.FSDP
        accelerator.state.fsdp_plugin = plugin
    return accelerator


def join(config: TrainConfig) -> None:
    """Meet the other processes, once; alone: nothing."""
    if world_size() == 1:
        return
    from accelerate.state import PartialState

    if not PartialState._shared_state:
        _check_launch(config)
        PartialState(cpu=on_cpu(), timeout=timedelta(seconds=config.process_timeout))
    if PartialState().num_processes != world_size():
        raise RunError(
            f"{world_size()} processes were launched, but Accelerate sees {PartialState().num_processes}; is its state older than the launch?"
        )


def leave() -> None:
    """Part from the other processes in good order, at the end of a run."""
    if world_size() > 1:
        from accelerate.state import PartialState

        PartialState().destroy_process_group()


def _check_launch(config: TrainConfig) -> None:
    check_gpus(int(os.environ.get("LOCAL_WORLD_SIZE", "1")))
    for name, kind in (("ACCELERATE_USE_DEEPSPEED", "DeepSpeed"), ("ACCELERATE_USE_MEGATRON_LM", "Megatron-LM")):
        if os.environ.get(name, "false").lower() == "true":
            raise ConfigError(f"accelerate's configuration asks for {kind}; skpo trains with DDP or FSDP2")
    if os.environ.get("ACCELERATE_USE_FSDP", "false").lower() == "true" and config.distributed != "fsdp2":
        raise ConfigError("accelerate's configuration asks for FSDP; say so in the recipe, too: distributed=fsdp2")


def on_cpu() -> bool:
    """Whether processes meet on CPUs: no accelerator that a process group runs on, or one that is not to be used."""
    import torch

    return os.environ.get("ACCELERATE_USE_CPU", "").lower() in ("1", "true", "yes") or (
        world_size() > 1 and not (torch.cuda.is_available() or torch.xpu.is_available())
    )


def check_gpus(processes: int) -> None:
    """Raise ConfigError where a machine has GPUs, but fewer than processes: NCCL takes one process on each."""
    import torch

    found = torch.cuda.device_count()
    if 0 < found < processes and not on_cpu():
        raise ConfigError(
            f"{processes} processes on this machine, but it has {found} GPU{'s' if found > 1 else ''}; "
            f"set processes={found}, or train on its CPUs: ACCELERATE_USE_CPU=true"
        )


def fsdp_plugin(config: TrainConfig) -> Any:
    """Accelerate's FSDP2: each decoder layer is gathered when it computes, and freed behind the forward pass."""
    import torch
    from accelerate import FullyShardedDataParallelPlugin
    from torch.distributed.fsdp import MixedPrecisionPolicy

    bf16 = config.optimizer.precision == "bf16"
    policy = (
        MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32) if bf16 else MixedPrecisionPolicy()
    )
    return FullyShardedDataParallelPlugin(
        fsdp_version=2,
        reshard_after_forward=True,
        auto_wrap_policy="transformer_based_wrap",
        mixed_precision_policy=policy,
        cpu_ram_efficient_loading=False,  # every process reads the weights itself
    )


def layer_names(model: Any) -> list[str]:
    """Names of a model's decoder layer classes, which FSDP2 gathers one by one."""
    base = model.get_base_model() if hasattr(model, "get_base_model") else model
    present = {type(module).__name__ for module in base.modules()}
    return sorted(set(getattr(base, "_no_split_modules", None) or ()) & present)


def decided_by_first(config: TrainConfig, decide: Callable[[], T]) -> T:
    """What `decide` gives in the first process, in every process; a SkpoError that it raises is raised in all of them."""
    if world_size() == 1:
        return decide()
    from accelerate.utils import broadcast_object_list

    join(config)
    outcome: list[Any] = [None, None]
    if rank() == 0:
        try:
            outcome[0] = decide()
        except SkpoError as error:
            outcome[1] = error
    value, failure = broadcast_object_list(outcome)
    if failure is not None:
        raise failure
    return value


def merged(accelerator: Accelerator, own: Mapping[Any, T]) -> dict[Any, T]:
    """The dictionaries of all processes as one, in every process, keys in ascending order. Raises what one of them says with
    `fail_together`."""
    items = list(own.items())
    if accelerator.num_processes > 1:
        from accelerate.utils import gather_object

        items = gather_object(items)
        for _, value in items:
            if isinstance(value, Failure):
                raise value.error
    return dict(sorted(items))


@dataclass
class Failure:
    """An error on its way to the other processes."""

    error: SkpoError


@contextmanager
def fail_together(accelerator: Accelerator) -> Iterator[None]:
    """A SkpoError in here is raised in all processes, which wait for this one in `merged`: so that all take the same way out."""
    try:
        yield
    except SkpoError as error:
        merged(accelerator, {None: Failure(error)})
        raise


def own_share(accelerator: Accelerator, items: list[T]) -> list[T]:
    """Every n-th item, of n processes: each item is in one process's share."""
    return items[accelerator.process_index :: accelerator.num_processes]


def copy_whole(source: nn.Module, target: nn.Module) -> None:
    """Copy the trained parameters of a sharded model into a whole copy of it in every process, one after the other."""
    import torch

    names = dict(target.named_parameters())
    with torch.no_grad():
        for name, p in source.named_parameters():
            if p.requires_grad:
                names[name].copy_(whole(p))


def whole(value: Any) -> Any:
    """A tensor that is split over processes, put together in each (all of them have to ask for it); anything else as it is."""
    return value.full_tensor() if hasattr(value, "full_tensor") else value
