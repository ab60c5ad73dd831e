"""Predictions beside real runs: the embedded engine in the trainer's process, and a Ray pool of one and two workers."""

from __future__ import annotations

import random
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from importlib.util import find_spec
from pathlib import Path
from statistics import fmean, median
from typing import Any, Literal

from benchmarks.common import Options, Report
from benchmarks.simulation import measure
from benchmarks.simulation.cpu import Sampler
from benchmarks.simulation.pool import Cluster, Step, roll_out, simulate, two_passes
from benchmarks.simulation.profile import Profile
from benchmarks.simulation.replay import engine, replay
from benchmarks.simulation.worker import Task
from benchmarks.simulation.workload import drawn

BAR = 0.15  #: a prediction is right within this share of what was measured
MEMORY = 5e9  #: bytes per second between processes of one machine; weights of the chain model take 0.4 ms
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


def busy(steps: Sequence[Step], cluster: Cluster) -> float:
    """CPU seconds of a worker in these steps, mean."""
    return fmean(step.utilisation * step.rollout + cluster.load for step in steps)


def measure_pool(profile: Profile, steps: int) -> None:
    """Adds to a profile what being in a process of its own costs a worker: the CPU time of one Ray worker in runs of GRPO with 8 and
    with 32 problems a step, less what the engine is predicted to take. Does nothing without Ray."""
    if find_spec("ray") is None or profile.step is None:
        return
    cluster, pace = profile.cluster("chain", bandwidth=MEMORY), measure.Pace()
    more = {}
    for problems in (8, 32):
        with tempfile.TemporaryDirectory() as temporary:
            folder = Path(temporary) / "run"
            with pace, Sampler(folder / "metrics.jsonl") as sampler:
                settings = ["engine=ray", "rollout.ray.workers=1", f"problems_per_step={problems}"]
                measure.train("grpo", steps, folder, 0, *settings)
        predicted = expected(profile.tasks["grpo"], problems, cluster)
        slower = pace.seconds / profile.facts["pace"]
        more[problems] = sampler.per_step(steps) / slower - busy(predicted, cluster)
    profile.step.remote = max(0.0, (more[32] - more[8]) / 24)
    profile.step.arrive = max(0.0, more[8] - 8 * profile.step.remote)


def replayed(profile: Profile, repeats: int) -> list[Compared]:
    """Measured groups through the engine again, lengths forced: one pass and two, on CPU time."""
    model = measure.model_of("chain")
    vocabulary = measure.vocabulary_of(model)
    cluster = profile.cluster("chain")
    sides: list[tuple[str, Literal["grpo", "skpo"], bool]] = [
        ("GRPO", "grpo", False), ("SKPO, one pass", "skpo", False), ("SKPO, two passes", "skpo", True),
    ]  # fmt: skip
    found, pace = [], measure.Pace()
    for name, algorithm, barrier in sides:
        measured = drawn(profile.tasks[algorithm], profile.problems, random.Random(1))
        tasks = [tuple(replace(stage, distinct=1.0) for stage in task) for task in measured]
        with pace:
            seconds = [
                replay(engine(model, cluster.slots), tasks, vocabulary, barrier=barrier)[0] for _ in range(repeats + 1)
            ]
        slower = pace.seconds / profile.facts["pace"] / profile.facts["in_a_run"]  # these are alone
        predicted = (two_passes if barrier else roll_out)(tasks, cluster).seconds
        found.append(Compared(f"{name}: the same lengths again", predicted, median(seconds[1:]) / slower))
    return found


TIMES = ("seconds_rollout", "seconds_train", "seconds")
COUNTS = ("engine_steps", "slots_busy")


def trained(
    profile: Profile, steps: int, cluster: Cluster, name: str, options: Options, workers: int = 0
) -> tuple[list[Compared], list[Compared]]:
    """(times, counts) of short real runs of both algorithms, with other samples than the profile's, against predictions made from it.

    Medians of `options.repeats` runs, each with a seed of its own. workers: of a Ray pool, each with one thread; 0: the engine in the
    trainer's process. On the options' clock "cpu", a pool is judged by its workers' CPU time, since what the trainer waits for depends
    on who else uses the machine.
    """
    settings = ["engine=ray", f"rollout.ray.workers={workers}"] if workers else []
    clock = "wall" if workers else options.clock
    times, counts, pace = [], [], measure.Pace()
    for algorithm in ("grpo", "skpo"):
        runs = []
        for seed in range(1, 1 + options.repeats):
            with pace, tempfile.TemporaryDirectory() as temporary:
                folder = Path(temporary) / "run"
                with Sampler(folder / "metrics.jsonl") as sampler:
                    measure.train(algorithm, steps, folder, seed, *settings, clock=clock)
                records = list(measure.records(folder).values())
            slower = pace.seconds / profile.facts["pace"]
            run = {key: _mean(records, key) / slower for key in TIMES} | {key: _mean(records, key) for key in COUNTS}
            runs.append(run | ({"worker": sampler.per_step(steps) / slower} if workers else {}))
        took = {key: median(run[key] for run in runs) for key in runs[0]}
        predicted, title = expected(profile.tasks[algorithm], profile.problems, cluster), f"{name}, {algorithm.upper()}"
        if workers:
            times.append(Compared(f"{title}: CPU time of a worker", busy(predicted, cluster), took["worker"]))
        if not workers or options.clock == "wall":
            rollout = fmean(step.rollout + step.broadcast for step in predicted)
            times.append(Compared(f"{title}: rollout", rollout, took["seconds_rollout"]))
            times.append(Compared(f"{title}: train", fmean(s.train for s in predicted), took["seconds_train"]))
            times.append(Compared(f"{title}: step", fmean(s.seconds for s in predicted), took["seconds"]))
        decode, rows = fmean(s.decode_steps for s in predicted), fmean(s.rows for s in predicted)
        counts.append(Compared(f"{title}: decode steps, all workers", decode, took["engine_steps"]))
        counts.append(Compared(f"{title}: rows of a decode step", rows, took["slots_busy"]))
    return times, counts


def _mean(records: Sequence[Mapping[str, Any]], key: str) -> float:
    return fmean(record[key] for record in records)


def validate(profile: Profile, options: Options, workers: Sequence[int]) -> Report:
    """Compare, and judge every time by the bar. workers: sizes of Ray pools to run, too.

    Measured seconds are given as they would be at the pace at which the profile was measured (`measure.Pace`).
    """
    steps = (
        4 if options.quick else int(profile.facts["steps"])
    )  # as many as were measured: runs get faster as rows agree
    again = replayed(profile, options.repeats)
    times, counts = trained(profile, steps, profile.cluster("chain", weights=0.0, local=True), "one process", options)
    for count in workers:
        pool = profile.cluster("chain", workers=count, bandwidth=MEMORY)
        more = trained(profile, steps, pool, f"Ray, workers: {count}", options, count)
        times, counts = times + more[0], counts + more[1]
    worst = max([*again, *times], key=lambda c: abs(c.off))
    report = Report("simulate", f"prediction over measurement, where it is worst ({worst.what})", 1 + worst.off)
    report.settings |= {"steps": steps, "measured": profile.facts}
    report.table("Embedded engine, lengths forced", COLUMNS, [c.row for c in again])
    report.table(
        f"Real runs, mean step after the first, medians of {options.repeats} runs", COLUMNS, [c.row for c in times]
    )
    report.table(
        "Real runs, what the schedule does", [COLUMNS[0], "predicted", "measured", COLUMNS[3]], [c.row for c in counts]
    )
    report.note(
        "Measured seconds are as they would be at the machine's pace when the profile was measured: a fixed piece of work, timed before and "
        "after each run, says how much faster or slower it was."
    )
    for c in [*again, *times]:
        report.bar(f"{c.what}, relative error", abs(c.off), most=BAR)
    return report
