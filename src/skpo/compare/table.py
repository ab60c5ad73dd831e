"""The comparison as Markdown, CSV and PNG: one row per variant, curves against generated tokens."""

from __future__ import annotations

import csv
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from skpo.compare.statistics import Interval, Outcome, interval

PANELS = (
    ("eval_pass_at_1", "held-out pass@1"),
    ("entropy", "entropy (nats)"),
    ("advantage_zero_rate", "advantage-zero rate"),
    ("completion_length", "completion length (tokens)"),
)


@dataclass(frozen=True)
class Row:
    """One variant over its seeds; `difference`: paired by seed to the first variant."""

    variant: str
    seeds: int
    accuracy: Interval
    pass_at_k: Interval
    difference: Interval | None
    k: int
    tokens: float
    steps: float
    seconds: float
    grad_norm: float
    ratio_max: float
    nonfinite: int


def rows(outcomes: Sequence[Outcome]) -> list[Row]:
    """Summaries in the order of first appearance; the first variant is what the others are compared with."""
    names = list(dict.fromkeys(o.variant for o in outcomes))
    by_name = {n: sorted((o for o in outcomes if o.variant == n), key=lambda o: o.seed) for n in names}
    first = {o.seed: o.accuracy for o in by_name[names[0]]}
    return [_row(name, by_name[name], first if name != names[0] else None) for name in names]


def _row(name: str, runs: Sequence[Outcome], first: dict[int, float] | None) -> Row:
    paired = None if first is None else interval([r.accuracy - first[r.seed] for r in runs if r.seed in first])
    steps = [record for r in runs for record in r.curve if "grad_norm" in record]
    return Row(
        variant=name,
        seeds=len(runs),
        accuracy=interval([r.accuracy for r in runs]),
        pass_at_k=interval([r.pass_at_k for r in runs]),
        difference=paired,
        k=runs[0].k,
        tokens=float(np.mean([r.tokens for r in runs])),
        steps=float(np.mean([r.steps for r in runs])),
        seconds=float(np.mean([r.seconds for r in runs])),
        grad_norm=float(np.median([s["grad_norm"] for s in steps])) if steps else float("nan"),
        ratio_max=float(max((s["ratio_max"] or float("nan") for s in steps), default=float("nan"))),
        nonfinite=sum(bool(s.get("nonfinite_values")) + bool(s.get("skipped_in_a_row")) for s in steps),
    )


def cells(row: Row) -> dict[str, str]:
    """Column -> text of a row."""
    return {
        "algorithm": row.variant,
        "seeds": str(row.seeds),
        f"mean@{row.k}": str(row.accuracy),
        f"pass@{row.k}": str(row.pass_at_k),
        "paired difference": "-" if row.difference is None else str(row.difference),
        "tokens (M)": f"{row.tokens / 1e6:.3f}",
        "steps": f"{row.steps:.0f}",
        "seconds": f"{row.seconds:.0f}",
        "gradient norm (median)": f"{row.grad_norm:.3f}",
        "largest ratio": f"{row.ratio_max:.2f}",
        "non-finite": str(row.nonfinite),
    }


def markdown(outcomes: Sequence[Outcome]) -> str:
    """The table; intervals are 95 % (Student's t over seeds), `±` is half their width."""
    lines = [cells(row) for row in rows(outcomes)]
    head = list(lines[0])
    body = ["| " + " | ".join(line[c] for c in head) + " |" for line in lines]
    return "\n".join(["| " + " | ".join(head) + " |", "|" + "---|" * len(head), *body]) + "\n"


def write(outcomes: Sequence[Outcome], out: Path) -> list[Path]:
    """Write `comparison.md`, `comparison.csv` (one line a run) and `comparison.png`; returns their paths."""
    table, lines, picture = out / "comparison.md", out / "comparison.csv", out / "comparison.png"
    table.write_text(markdown(outcomes))
    with lines.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(
            ["variant", "seed", "accuracy", "pass_at_k", "k", "tokens", "tokens_trained", "steps", "seconds"]
        )
        for o in outcomes:
            writer.writerow(
                [o.variant, o.seed, o.accuracy, o.pass_at_k, o.k, o.tokens, o.trained, o.steps, f"{o.seconds:.1f}"]
            )
    plot(outcomes, picture)
    return [table, lines, picture]


def plot(outcomes: Sequence[Outcome], path: Path) -> None:
    """Accuracy, entropy, advantage-zero rate and length against generated tokens: mean over seeds, band of their range."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(2, 2, figsize=(11, 7.5), sharex=True, layout="constrained")
    names = list(dict.fromkeys(o.variant for o in outcomes))
    colours = plt.get_cmap("tab10" if len(names) <= 10 else "tab20")
    for number, name in enumerate(names):
        runs = [o for o in outcomes if o.variant == name]
        for axis, (key, _) in zip(axes.flat, PANELS, strict=True):
            grid, mean, low, high = curve(runs, key)
            if len(grid):
                axis.plot(grid / 1e6, mean, color=colours(number % 20), label=name, linewidth=1.6)
                if len(runs) > 1:
                    axis.fill_between(grid / 1e6, low, high, color=colours(number % 20), alpha=0.15, linewidth=0)
    for axis, (_, title) in zip(axes.flat, PANELS, strict=True):
        axis.set_title(title, fontsize=11, loc="left")
        axis.grid(alpha=0.25)
        axis.spines[["top", "right"]].set_visible(False)
    for axis in axes[1]:
        axis.set_xlabel("generated tokens (millions)")
    handles, labels = axes[0, 0].get_legend_handles_labels()
    figure.legend(
        handles, labels, loc="outside lower center", fontsize=8, frameon=False, ncols=min(3, max(len(names), 1))
    )
    figure.savefig(path, dpi=140)
    plt.close(figure)


def curve(runs: Sequence[Outcome], key: str) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """(tokens, mean, lowest, highest) of a metric over seeds, interpolated on a common grid of generated tokens."""
    lines = [points(r.curve, key) for r in runs]
    lines = [(x, y) for x, y in lines if len(x)]
    if not lines:
        return (np.zeros(0),) * 4
    grid = np.linspace(min(x[0] for x, _ in lines), min(x[-1] for x, _ in lines), 60)
    values = np.array([np.interp(grid, x, y) for x, y in lines])
    return grid, values.mean(0), values.min(0), values.max(0)


def points(records: Sequence[dict[str, Any]], key: str) -> tuple[np.ndarray, np.ndarray]:
    """(generated tokens, values) of the records that have the metric; step 0 is at 0 tokens."""
    pairs = [(r.get("tokens_generated_total", 0), r[key]) for r in records if r.get(key) is not None]
    return np.array([p[0] for p in pairs], dtype=float), np.array([p[1] for p in pairs], dtype=float)
