"""Predicts the time of a training step for 1 to 512 rollout workers, by a discrete-event model fed with measurements.

    python -m benchmarks.simulate --measure       engine speeds, lengths and the rest of a step, on this machine
    python -m benchmarks.simulate --validate      predictions beside real runs on this machine
    python -m benchmarks.simulate                 the predictions: tables, and docs/images/simulate.png with --plot

Compared are GRPO, SKPO in one pass (a problem's completions start when its own segments are in) and SKPO in two passes (all segments,
then all completions). The measurements are in docs/results/simulate/profile.json.

Modelled: plans pulled by workers that hold a few, slots, decode steps that cost by running rows that are not alike and tokens attended to, contexts
computed once for a group, what handing over plans and weights takes a worker in a process of its own, verification in processes of its own, the update by token, the way of the weights to the workers, one step
ahead. Not modelled: memory limits and preemption, contention of workers that share a machine (--slowdown is a constant), lost workers,
time on the network for plans and groups, warm-up, checkpoints and evaluation.
"""

from __future__ import annotations

import argparse
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from statistics import fmean
from typing import Any

from benchmarks.common import Options, Report, parse
from benchmarks.simulation.pool import METHODS, Cluster, Method, Step, simulate
from benchmarks.simulation.profile import Profile, load
from benchmarks.simulation.worker import Task
from benchmarks.simulation.workload import LongTail, drawn

DOCS = Path(__file__).parent.parent / "docs"
PROFILE = DOCS / "results" / "simulate" / "profile.json"
PLOT = DOCS / "images" / "simulate.png"
HEADLINE = 64  #: workers
DRAWS = 10  #: steps that a prediction is the mean of
PARTS = ("broadcast", "rollout", "verify", "train", "other")
TITLES = {"grpo": "GRPO", "skpo": "SKPO, one pass", "skpo two passes": "SKPO, two passes"}

Source = Callable[[Method, int, random.Random], list[Task]]


@dataclass(frozen=True)
class Scenario:
    """One table: where lengths come from, and the cluster apart from its number of workers."""

    title: str
    source: Source
    cluster: Cluster


Grid = dict[tuple[Method, int], Step]


def arguments(parser: argparse.ArgumentParser) -> None:
    """The options of this benchmark."""
    mode = parser.add_mutually_exclusive_group()
    mode.add_argument("--measure", action="store_true", help="measure this machine and store the profile")
    mode.add_argument("--validate", action="store_true", help="compare predictions with real runs")
    parser.add_argument("--profile", type=Path, default=PROFILE, help="the measurements' file")
    parser.add_argument("--engines", default="chain,135M", help="measure: models whose speed is fitted")
    parser.add_argument("--steps", type=int, default=10, help="measure: steps of each real run")
    parser.add_argument(
        "--runs", nargs="*", default=[], metavar="NAME=FOLDER", help="measure: finished runs of the chain recipe to use"
    )
    parser.add_argument("--ray", default="", metavar="1,2", help="validate: sizes of Ray pools to run")
    parser.add_argument("--problems", type=int, default=512, help="problems of a step (default: 512)")
    parser.add_argument("--median", type=float, default=LongTail.median, help="long tail: median length in tokens")
    parser.add_argument(
        "--spread", type=float, default=LongTail.within, help="long tail: spread of ln length in a group"
    )
    parser.add_argument(
        "--goes-on", type=float, default=0.0, help="long tail: share of the segment that a completion saves"
    )
    parser.add_argument("--slots", type=int, default=64, help="long tail: rows of a worker")
    parser.add_argument("--in-flight", type=int, help="plans that a worker holds (default: slots / group size + 2)")
    parser.add_argument("--trainers", type=int, help="processes that share the update (default: as many as workers)")
    parser.add_argument("--verifiers", type=int, default=8, help="processes that score")
    parser.add_argument("--verify-seconds", type=float, default=0.01, help="long tail: seconds of an answer")
    parser.add_argument(
        "--bandwidth", type=float, default=1.25e9, help="bytes per second of a link (default: 10 Gbit/s)"
    )
    parser.add_argument("--slowdown", type=float, nargs="*", default=[1.0], help="factors on workers' times, in turn")
    parser.add_argument(
        "--ahead", type=int, choices=(0, 1), default=0, help="1: rollouts run while the last step trains"
    )
    parser.add_argument("--plot", type=Path, nargs="?", const=PLOT, help="draw the curves")


def counts(quick: bool) -> list[int]:
    """Numbers of workers."""
    return [1, 8, 64, 512] if quick else [2**i for i in range(10)]


def scenarios(profile: Profile, extra: Mapping[str, Any]) -> list[Scenario]:
    """The measured lengths at the measured speed, and a long tail at the speed of a larger model."""
    shared = {
        "trainers": extra["trainers"] or 0, "verifiers": extra["verifiers"], "bandwidth": extra["bandwidth"],
        "slowdowns": tuple(extra["slowdown"]), "ahead": extra["ahead"],
    }  # fmt: skip

    def measured(method: Method, count: int, rng: random.Random) -> list[Task]:
        return drawn(profile.tasks["grpo" if method == "grpo" else "skpo"], count, rng)

    tail = LongTail(median=extra["median"], within=extra["spread"], goes_on=extra["goes_on"])
    group = len(profile.tasks["grpo"][0][0].lengths)
    chain = profile.cluster("chain", in_flight=extra["in_flight"] or profile.slots // group + 2, **shared)
    found = [Scenario("chain recipe: measured lengths and speeds", measured, chain)]
    if "135M" in profile.engines:
        slots = extra["slots"]
        long = profile.cluster(
            "135M", slots=slots, in_flight=extra["in_flight"] or slots // tail.group + 2, plan=0.0, other=0.0,
            verify=extra["verify_seconds"], train=0.0, train_token=token_price(profile), **shared,
        )  # fmt: skip
        found.append(
            Scenario(f"135M parameters, long-tailed lengths (median {tail.median:g} tokens)", tail.tasks, long)
        )
    return found


def token_price(profile: Profile) -> float:
    """Training seconds per token of the 135M shape: the chain model's, by the number of weights."""
    assert profile.step is not None
    return profile.step.train_token * profile.engines["135M"].parameters / profile.engines["chain"].parameters


def predict(scenario: Scenario, workers: Sequence[int], problems: int, repeats: int) -> Grid:
    """Mean step over `repeats` draws of the problems; every method and number of workers gets the same draws."""
    grid: Grid = {}
    for method in METHODS:
        draws = [scenario.source(method, problems, random.Random(seed)) for seed in range(repeats)]
        for count in workers:
            trainers = scenario.cluster.trainers or count
            cluster = replace(scenario.cluster, workers=count, trainers=trainers)
            grid[method, count] = mean([simulate(d, cluster, barrier=method == "skpo two passes") for d in draws])
    return grid


def mean(steps: Sequence[Step]) -> Step:
    """Every field's mean."""
    return Step(**{f.name: fmean(getattr(s, f.name) for s in steps) for f in fields(Step)})  # type: ignore[arg-type]


def run(profile: Profile, options: Options) -> Report:
    """The predictions as a report."""
    extra = options.extra
    workers = counts(options.quick)
    grids = {s.title: predict(s, workers, extra["problems"], DRAWS) for s in scenarios(profile, extra)}
    last = list(grids.values())[-1]
    ratio = last["skpo two passes", HEADLINE].seconds / last["skpo", HEADLINE].seconds
    report = Report(
        "simulate", f"SKPO's step in two passes over one pass, {HEADLINE} workers, {list(grids)[-1]}", ratio
    )
    report.settings["measured"] = profile.facts
    for title, grid in grids.items():
        tables(report, title, grid, workers)
    report.note(
        "Seconds are those of workers like the measured one: one CPU core. The 135 M model's update is priced like the chain model's, by the "
        "number of weights, and shared by as many processes as there are workers, without the traffic between them."
    )
    report.note("Predicted, not measured: `--validate` compares the model with real runs on one and two workers.")
    if extra["plot"]:
        from benchmarks.simulation.figure import draw

        draw(grids, workers, TITLES, extra["plot"])
    return report


def tables(report: Report, title: str, grid: Grid, workers: Sequence[int]) -> None:
    """Step times and utilisation of all methods; where the step's time goes."""
    rows = []
    for count in workers:
        steps = [grid[method, count] for method in METHODS]
        _, one, two = steps
        ratios = [two.seconds / one.seconds, two.rollout / one.rollout]
        gains = [grid[m, workers[0]].seconds / s.seconds for m, s in zip(METHODS, steps, strict=True)]
        busy = [f"{s.utilisation:.0%}" for s in steps]
        rows.append([count, *(s.seconds for s in steps), *gains, *busy, *ratios])
    names = ["GRPO", "one pass", "two passes"]
    heads = [f"{name}{what}" for what in (", s", ", speed-up", ", busy") for name in names]
    report.table(f"{title}: step time", ["workers", *heads, "two / one: step", "two / one: rollouts"], rows)
    report.table(
        f"{title}: where a step's seconds go",
        ["workers, method", *PARTS, "hidden by ahead"],
        [
            [f"{count}, {TITLES[m]}", *(getattr(grid[m, count], p) for p in PARTS), grid[m, count].hidden]
            for count in workers
            if count in (workers[0], 8, HEADLINE, workers[-1])
            for m in METHODS
        ],
    )


def main() -> None:
    options = parse(__doc__, arguments, repeats=3)
    extra = options.extra
    old = load(extra["profile"]) if extra["profile"].exists() else None
    if extra["measure"]:
        from benchmarks.simulation.measure import measure
        from benchmarks.simulation.validate import measure_pool

        given = {name: Path(folder) for name, _, folder in (word.partition("=") for word in extra["runs"])}
        profile = measure(extra["engines"].split(","), extra["steps"], options, given, old)
        measure_pool(profile, extra["steps"])
        profile.save(extra["profile"])
        print(f"wrote {extra['profile']}")
        return
    if old is None:
        raise SystemExit(f"{extra['profile']}: no measurements; make them with --measure")
    if extra["validate"]:
        from benchmarks.simulation.validate import validate

        report = validate(old, options, [int(n) for n in extra["ray"].split(",") if n])
    else:
        report = run(old, options)
    report.finish(options)


if __name__ == "__main__":
    main()
