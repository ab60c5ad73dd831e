"""Predictions beside real runs: the embedded engine in the trainer's process, and a Ray pool of one and two workers."""

from __future__ import annotations

import random
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean, median
from typing import Any, Literal

from benchmarks.common import Options, Report
from benchmarks.simulation import measure
from benchmarks.simulation.pool import Cluster, Step, roll_out, simulate, two_passes
from benchmarks.simulation.profile import Profile
from benchmarks.simulation.replay import engine, replay
from benchmarks.simulation.worker import Task
from benchmarks.simulation.workload import drawn

BAR = 0.15  #: a prediction is right within this share of what was measured
DRAWS = 20  #: steps that a prediction is the mean of
COLUMNS = ["what", "predicted, s", "measured, s", "predicted / measured"]


@dataclass(frozen=True)
class Compared:
    """One prediction and what was measured, in seconds."""

    what: str
    predicted: float
    measured: float

    @property
    def off(self) -> float:
        """Relative error of the prediction."""
        return self.predicted / self.measured - 1.0

    @property
    def row(self) -> list[Any]:
        return [self.what, self.predicted, self.measured, self.predicted / self.measured]


def expected(tasks: Sequence[Task], problems: int, cluster: Cluster, draws: int = DRAWS) -> list[Step]:
    """Steps on problems drawn from measured groups."""
    rng = random.Random(0)
    return [simulate(drawn(tasks, problems, rng), cluster) for _ in range(draws)]


def replayed(profile: Profile, repeats: int) -> list[Compared]:
    """Measured groups through the engine again, lengths forced: one pass and two, on CPU time."""
    model = measure.model_of("chain")
    vocabulary = measure.vocabulary_of(model)
    cluster = profile.cluster("chain")
    sides: list[tuple[str, Literal["grpo", "skpo"], bool]] = [
        ("GRPO", "grpo", False), ("SKPO, one pass", "skpo", False), ("SKPO, two passes", "skpo", True),
    ]  # fmt: skip
    found = []
    for name, algorithm, barrier in sides:
        tasks = drawn(profile.tasks[algorithm], profile.problems, random.Random(1))
        seconds = [
            replay(engine(model, cluster.slots), tasks, vocabulary, barrier=barrier)[0] for _ in range(repeats + 1)
        ]
        predicted = (two_passes if barrier else roll_out)(tasks, cluster).seconds
        found.append(Compared(f"{name}: the same lengths again", predicted, median(seconds[1:])))
    return found


def trained(
    profile: Profile, steps: int, seed: int, settings: Sequence[str], cluster: Cluster, name: str
) -> list[Compared]:
    """Short real runs of both algorithms with other problems and samples than the profile's, against predictions made from it."""
    found = []
    for algorithm in ("grpo", "skpo"):
        with tempfile.TemporaryDirectory() as temporary:
            folder = measure.train(algorithm, steps, Path(temporary) / "run", seed, *settings)
            records = list(measure.records(folder).values())
        predicted = expected(profile.tasks[algorithm], profile.problems, cluster)
        for what, key in (("rollout", "seconds_rollout"), ("train", "seconds_train"), ("step", "seconds")):
            mean = fmean(getattr(step, "seconds" if what == "step" else what) for step in predicted)
            found.append(Compared(f"{name}, {algorithm.upper()}: {what}", mean, fmean(r[key] for r in records)))
    return found


def validate(profile: Profile, options: Options, workers: Sequence[int]) -> Report:
    """Compare, and judge every rollout and step by the bar. workers: sizes of Ray pools to run, too."""
    steps = 4 if options.quick else 10
    tables = {"Embedded engine, lengths forced": replayed(profile, options.repeats)}
    tables["Embedded engine, real runs"] = trained(
        profile, steps, 1, [], profile.cluster("chain", weights=0.0), "one process"
    )
    for count in workers:
        tables[f"Ray pool, workers: {count}"] = trained(
            profile, steps, 1, ray_settings(count), ray_cluster(profile, count), f"Ray, {count}"
        )
    everything = [c for rows in tables.values() for c in rows]
    worst = max(everything, key=lambda c: abs(c.off))
    report = Report("simulate", "worst prediction over its measurement", worst.predicted / worst.measured)
    report.settings |= {"steps": steps, "profile": profile.facts.get("date")}
    for title, rows in tables.items():
        report.table(title, COLUMNS, [c.row for c in rows])
    for c in everything:
        report.bar(f"{c.what}, relative error", abs(c.off), most=BAR)
    return report


def ray_settings(workers: int) -> list[str]:
    """Settings of a run with a local pool of this many workers, one thread each."""
    return ["engine=ray", f"rollout.ray.workers={workers}"]


def ray_cluster(profile: Profile, workers: int) -> Cluster:
    """The model of such a run."""
    return profile.cluster("chain", workers=workers)
