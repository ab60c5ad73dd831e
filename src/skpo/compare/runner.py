"""Queues the runs of a comparison over the machine's cores; interrupted, it goes on where it stopped."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from skpo.compare.statistics import Outcome, outcome
from skpo.compare.variants import Variant
from skpo.errors import ConfigError, RunError
from skpo.settings import load_config
from skpo.trainer.metrics import write_atomically

DONE = "compared.json"
MANY_STEPS = 1_000_000  #: the token budget ends a run, not its steps


@contextmanager
def noticing_sigterm() -> Iterator[threading.Event]:
    """An event that SIGTERM sets in place of ending the process (main thread only)."""
    asked = threading.Event()
    if threading.current_thread() is not threading.main_thread():
        yield asked
        return
    before = signal.signal(signal.SIGTERM, lambda number, frame: asked.set())
    try:
        yield asked
    finally:
        signal.signal(signal.SIGTERM, before)


@dataclass
class Job:
    """One run: a variant with a seed, in its own folder."""

    variant: Variant
    seed: int
    folder: Path
    process: subprocess.Popen[bytes] | None = None

    @property
    def name(self) -> str:
        return f"{self.variant.name} seed {self.seed}"


@dataclass
class Comparison:
    """All runs of a comparison, in `out`/VARIANT/seed-N.

    tokens: generated tokens that every run gets; None: what the first variant's first seed needs for the recipe's steps.
    jobs: runs at one time, one thread each. say: called with each line of progress.
    """

    recipe: str
    variants: Sequence[Variant]
    seeds: int
    out: Path
    overrides: Sequence[str] = ()
    tokens: int | None = None
    jobs: int = 1
    say: Callable[[str], None] = print

    def run(self) -> list[Outcome]:
        """Run what is not done yet; returns every run's outcome. Raises RunError where a run fails, after the others ended."""
        self._check_schedule()
        self.out.mkdir(parents=True, exist_ok=True)
        self._check_settings()
        queue = [Job(v, s, self.out / v.folder / f"seed-{s}") for s in range(self.seeds) for v in self.variants]
        if self.tokens is None:
            self.tokens = self._measure_budget(queue[0])
        self.say(f"{len(queue)} runs of {self.tokens:,} generated tokens each, {self.jobs} at a time")
        failed = self._work([job for job in queue if not (job.folder / DONE).exists()], len(queue))
        if failed:
            first = failed[0]
            log = first.folder / "log.txt"
            raise RunError(
                f"{len(failed)} of {len(queue)} runs failed, the first: {first.name}; its log: {log}\n{_tail(log)}"
            )
        return [outcome(job.variant.name, job.seed, job.folder) for job in queue]

    def _check_schedule(self) -> None:
        """A learning rate that falls with the steps would differ between variants: their steps differ, their tokens don't."""
        for variant in self.variants:
            kind = load_config(self.recipe, [*self.overrides, *variant.overrides]).optimizer.schedule
            if kind != "constant":
                raise ConfigError(
                    f"optimizer.schedule={kind}: runs of equal tokens have differing steps; compare with optimizer.schedule=constant"
                )

    def _check_settings(self) -> None:
        """A folder holds one comparison: going on with other settings would compare what is not comparable."""
        path = self.out / "comparison.json"
        settings: dict[str, Any] = {"recipe": str(self.recipe), "overrides": list(self.overrides)}
        asked: dict[str, Any] = {
            "asked": ",".join(v.name for v in self.variants),
            "variants": {v.folder: v.name for v in self.variants},
            "seeds": self.seeds,
        }
        if path.exists():
            known = json.loads(path.read_text())
            budget = known.pop("tokens", None)
            known = {key: known[key] for key in settings}
            if known != settings:
                raise ConfigError(
                    f"{self.out}: holds a comparison with other settings ({known}); choose another folder with --out"
                )
            if self.tokens is None:
                self.tokens = budget
            elif budget not in (None, self.tokens):
                raise ConfigError(
                    f"{self.out}: its runs have {budget} generated tokens each, not {self.tokens}; choose another folder with --out"
                )
        self._remember(settings | asked)

    def _remember(self, settings: dict[str, Any]) -> None:
        write_atomically(self.out / "comparison.json", json.dumps(settings | {"tokens": self.tokens}).encode())

    def _measure_budget(self, job: Job) -> int:
        """Generated tokens of the recipe's own number of steps: one run of the first variant."""
        self.say(f"{job.name}: runs the recipe's steps; its tokens are every run's budget")
        pilot = Job(job.variant, job.seed, self.out / "budget")
        if self._work([pilot], 1, budget=False):
            raise RunError(
                f"{pilot.name} failed; its log: {pilot.folder / 'log.txt'}\n{_tail(pilot.folder / 'log.txt')}"
            )
        tokens = outcome(job.variant.name, job.seed, pilot.folder).tokens
        path = self.out / "comparison.json"
        write_atomically(path, json.dumps(json.loads(path.read_text()) | {"tokens": tokens}).encode())
        return tokens

    def _command(self, job: Job, budget: bool) -> list[str]:
        limit = [f"max_generated_tokens={self.tokens}", f"steps={MANY_STEPS}"] if budget else []
        settings = [
            *self.overrides,
            *job.variant.overrides,
            f"seed={job.seed}",
            "threads=1",
            *limit,
            f"out={job.folder}",
        ]
        return [sys.executable, "-m", "skpo", "train", "--quiet", str(self.recipe), *settings]

    def _work(self, waiting: list[Job], total: int, budget: bool = True) -> list[Job]:
        """Keep `jobs` runs going until none is left; returns the failed ones. Runs end with this process."""
        running: list[Job] = []
        failed: list[Job] = []
        done = total - len(waiting)
        with noticing_sigterm() as terminated:
            try:
                while waiting or running:
                    if terminated.is_set():
                        raise SystemExit(128 + signal.SIGTERM)
                    while waiting and len(running) < self.jobs:
                        running.append(self._start(waiting.pop(0), budget))
                    time.sleep(0.2)
                    for job in [j for j in running if j.process is not None and j.process.poll() is not None]:
                        running.remove(job)
                        done += 1
                        if not self._ended(job, done, total):
                            failed.append(job)
            finally:
                for job in running:
                    if job.process is not None:
                        job.process.terminate()
                        job.process.wait()
        return failed

    def _start(self, job: Job, budget: bool) -> Job:
        job.folder.mkdir(parents=True, exist_ok=True)
        environment = {**os.environ, "OMP_NUM_THREADS": "1"}
        with (job.folder / "log.txt").open("ab") as log:
            job.process = subprocess.Popen(self._command(job, budget), stdout=log, stderr=log, env=environment)
        return job

    def _ended(self, job: Job, done: int, total: int) -> bool:
        assert job.process is not None
        if job.process.returncode != 0:
            self.say(f"[{done}/{total}] {job.name}: FAILED with exit code {job.process.returncode}")
            return False
        result = outcome(job.variant.name, job.seed, job.folder)
        (job.folder / DONE).write_text(json.dumps({"accuracy": result.accuracy, "tokens": result.tokens}))
        self.say(
            f"[{done}/{total}] {job.name}: held-out pass@1 {result.accuracy:.3f} after {result.tokens:,} tokens, {result.steps} steps"
        )
        return True


def _tail(path: Path, lines: int = 5) -> str:
    return "\n".join(path.read_text(errors="replace").splitlines()[-lines:]) if path.exists() else ""
