"""Step times of the main recipe with its rollouts in this process, on Ray workers, and a step ahead.

Each side is a run of the recipe's first steps by itself, one after the other: with `rollout.ahead` steps overlap, so sides
can't take turns. The first step of each is left out. The headline is the rollout time of one worker over that of two. Every
process has one thread, so two workers beside the trainer want three cores: `cores` says how many there were.
"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path

from benchmarks.common import Options, Report, Spread, machine, parse, spread

SIDES: dict[str, list[str]] = {
    "in this process": [],
    "1 worker": ["rollout.engine=ray", "rollout.ray.workers=1"],
    "2 workers": ["rollout.engine=ray", "rollout.ray.workers=2"],
    "1 worker, a step ahead": ["rollout.engine=ray", "rollout.ray.workers=1", "rollout.ahead=1"],
    "2 workers, a step ahead": ["rollout.engine=ray", "rollout.ray.workers=2", "rollout.ahead=1"],
}
TIMES = ("seconds", "seconds_rollout", "seconds_train", "tokens_per_second")


def steps_of(overrides: list[str], steps: int, options: Options) -> list[dict[str, float]]:
    """Metrics of a run's steps, the first left out."""
    from skpo import Trainer, load_config
    from skpo.trainer.metrics import read_metrics

    with tempfile.TemporaryDirectory() as folder:
        small = ["problems_per_step=8"] if options.quick else []
        fixed = [f"steps={steps + 1}", "problems.heldout=null", f"threads={options.threads}", f"out={folder}/run"]
        config = load_config("chain", [*fixed, *small, *overrides])
        Trainer(config, quiet=True).train()
        return read_metrics(Path(config.out))[1:]


def more(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--sides", nargs="+", choices=list(SIDES), default=list(SIDES), help="measure only these")


def main() -> None:
    options = parse(__doc__, more, repeats=4)
    measured = {name: steps_of(SIDES[name], options.repeats, options) for name in options.extra["sides"]}
    rows: dict[str, dict[str, Spread]] = {
        name: {key: spread(step[key] for step in steps) for key in TIMES} for name, steps in measured.items()
    }
    ratio = 1.0
    if {"1 worker", "2 workers"} <= rows.keys():
        pairs = zip(measured["1 worker"], measured["2 workers"], strict=True)  # the same problems and samples
        ratio = spread(one["seconds_rollout"] / two["seconds_rollout"] for one, two in pairs)  # type: ignore[assignment]
    report = Report("ray_rollouts", "rollout time of one worker over two", ratio, machine("ray"))
    report.table(
        "Steps of 32 problems of 8 completions on the 0.4 M chain model, seconds",
        ["rollouts", "step", "waiting for rollouts", "training", "generated tokens per second"],
        [[name, *(found[key] for key in TIMES)] for name, found in rows.items()],
    )
    report.settings["steps"] = {
        name: [{k: step[k] for k in TIMES} for step in steps] for name, steps in measured.items()
    }
    report.finish(options)


if __name__ == "__main__":
    main()
