"""CPU seconds of Ray's rollout workers, step by step, from the kernel's accounts (Linux): a clock that others on the machine don't move."""

from __future__ import annotations

import os
import threading
from pathlib import Path

TICK = os.sysconf("SC_CLK_TCK")


def workers_cpu(root: int) -> dict[int, float]:
    """Process id -> CPU seconds of every rollout actor among the descendants of process `root`."""
    parent: dict[int, int] = {}
    found: dict[int, float] = {}
    for folder in Path("/proc").iterdir():
        if not folder.name.isdigit():
            continue
        try:
            head, _, tail = (folder / "stat").read_text().rpartition(")")
            actor = b"ray::Worker" in (folder / "cmdline").read_bytes()
        except OSError:  # it has just ended
            continue
        fields = tail.split()
        pid = int(head.partition(" ")[0])
        parent[pid] = int(fields[1])
        if actor:
            found[pid] = (int(fields[11]) + int(fields[12])) / TICK
    return {pid: cpu for pid, cpu in found.items() if _descends(pid, root, parent)}


def _descends(pid: int, root: int, parent: dict[int, int]) -> bool:
    while pid in parent and pid != root:
        pid = parent[pid]
    return pid == root


class Sampler:
    """Watches a run's `metrics.jsonl`: `per_step` is the mean CPU seconds of a worker in a step after the first."""

    def __init__(self, metrics: Path, interval: float = 0.1) -> None:
        self.metrics, self.interval = metrics, interval
        self.first: tuple[int, dict[int, float]] | None = None  # steps recorded, CPU seconds
        self.last: tuple[int, dict[int, float]] | None = None
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)

    def __enter__(self) -> Sampler:
        self._thread.start()
        return self

    def __exit__(self, *exception: object) -> None:
        self._stop.set()
        self._thread.join()

    def _watch(self) -> None:
        while not self._stop.wait(self.interval):
            done = self.metrics.read_bytes().count(b"\n") if self.metrics.exists() else 0
            cpu = workers_cpu(os.getpid())
            if done and cpu:
                self.first = self.first or (done, cpu)
                self.last = (done, cpu)

    def per_step(self, steps: int) -> float:
        """Mean over workers and over the steps between the first sample and the end of a run of `steps` steps."""
        assert self.first is not None
        assert self.last is not None
        spent = [cpu - self.first[1].get(pid, 0.0) for pid, cpu in self.last[1].items()]
        return sum(spent) / len(spent) / (steps - self.first[0])
