"""Whole runs of one recipe side by side, from their folders: held-out accuracy, time, tokens per second.

    python -m benchmarks.finished_runs runs/plain runs/ray --json FILE

The first run is what the others are held against: the headline is the largest distance of a final accuracy from its own, in
standard errors of the difference. Times hold what else the machine did meanwhile, so they are no comparison of speeds.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from statistics import median

from benchmarks.common import Report, machine, parse


def more(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("runs", nargs="+", type=Path, help="folders of finished runs")


def main() -> None:
    from skpo.trainer.metrics import read_metrics

    options = parse(__doc__, more, repeats=1)
    rows, finals, lag = [], [], []
    for folder in options.extra.pop("runs"):
        records = read_metrics(folder)
        steps = [r for r in records if r["step"] > 0]
        last = next(r for r in reversed(records) if "eval_pass_at_1" in r)
        finals.append((last["eval_pass_at_1"], last["eval_pass_at_1_stderr"]))
        lag.append(steps[-1].get("version_lag", 0.0))
        middle = [
            median(r[key] for r in steps)
            for key in ("seconds", "seconds_rollout", "seconds_train", "tokens_per_second")
        ]
        accuracy = f"{finals[-1][0]:.3f} ± {finals[-1][1]:.3f}"
        rows.append([folder.name, len(steps), accuracy, sum(r["seconds"] for r in steps) / 60, *middle, lag[-1]])
    (first, error), *others = finals
    apart = [abs(value - first) / (error**2 + other**2) ** 0.5 for value, other in others]
    report = Report(
        "finished_runs",
        "largest distance from the first run's accuracy, in standard errors",
        max(apart, default=0.0),
        machine("ray"),
    )
    report.table(
        "Runs to their last step; times are medians of a step, in seconds",
        [
            "run",
            "steps",
            "held-out pass@1",
            "minutes",
            "step",
            "waiting for rollouts",
            "training",
            "tokens per second",
            "version lag",
        ],
        rows,
    )
    report.finish(options)


if __name__ == "__main__":
    main()
