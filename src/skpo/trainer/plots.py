"""`curve.png`: one run on one page, from its `metrics.jsonl`."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from skpo.errors import RunError
from skpo.trainer.metrics import read_metrics

if TYPE_CHECKING:
    from matplotlib.axes import Axes

FILE = "curve.png"
INK, GRID = "#2b2d42", "#e6e8ee"
BLUE, ORANGE, GREEN, PURPLE, GREY = "#2f6fdf", "#e8832a", "#2a9d6f", "#8a5bd1", "#9aa0ae"
TIMES = {"rollout": BLUE, "verify": PURPLE, "train": GREEN, "other": GREY}
STYLE: Any = {
    "font.size": 9.5,
    "axes.titlesize": 10.5,
    "axes.titleweight": "bold",
    "axes.titlelocation": "left",
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.edgecolor": GREY,
    "axes.labelcolor": INK,
    "axes.grid": True,
    "grid.color": GRID,
    "grid.linewidth": 0.8,
    "axes.axisbelow": True,
    "text.color": INK,
    "xtick.color": INK,
    "ytick.color": INK,
    "legend.frameon": False,
    "legend.fontsize": 8.5,
    "lines.linewidth": 1.8,
    "lines.solid_capstyle": "round",
}
Records = list[dict[str, Any]]


def plot_run(folder: Path | str) -> Path:
    """Draw `folder/curve.png`; returns its path. Bands are one standard error. Raises RunError where there are no metrics."""
    folder = Path(folder)
    records = read_metrics(folder)
    if not records:
        raise RunError(f"{folder}: no metrics.jsonl with at least one step; nothing to draw")
    import matplotlib as mpl
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure
    from matplotlib.layout_engine import ConstrainedLayoutEngine

    steps, evaluations = split(records)
    panels: list[Callable[[Axes], None]] = [
        lambda axes: _heldout(axes, evaluations, "step"),
        lambda axes: _heldout(axes, evaluations, "tokens"),
        lambda axes: _training(axes, steps),
        lambda axes: _entropy(axes, steps),
        lambda axes: _lengths(axes, steps),
        lambda axes: _time(axes, steps),
    ]
    with mpl.rc_context(STYLE):
        layout = ConstrainedLayoutEngine(w_pad=0.12, h_pad=0.12)
        figure = Figure(figsize=(12.5, 6.6), layout=layout, facecolor="white")
        FigureCanvasAgg(figure)
        for axes, draw in zip(figure.subplots(2, 3).flat, panels, strict=True):
            draw(axes)
            axes.tick_params(length=0)
            axes.margins(x=0.02)
        figure.suptitle(_title(folder, steps, evaluations), x=0.008, ha="left", fontsize=12.5, fontweight="bold")
        path = folder / FILE
        temporary = folder / f".{FILE}.tmp"
        figure.savefig(temporary, dpi=150, format="png")
    temporary.replace(path)
    return path


def split(records: Records) -> tuple[Records, Records]:
    """(training steps, evaluations), ascending, the last record of a step winning.

    Every evaluation gets `tokens`: the tokens generated when it was made.
    """
    steps = {r["step"]: r for r in records if r.get("reward_mean") is not None}
    evaluations = {r["step"]: dict(r) for r in records if r.get("eval_pass_at_1") is not None}
    for step, record in evaluations.items():
        totals = [r.get("tokens_generated_total") or 0 for s, r in steps.items() if s <= step]
        record["tokens"] = record.get("tokens_generated_total") or max(totals, default=0)
    return [steps[s] for s in sorted(steps)], [evaluations[s] for s in sorted(evaluations)]


def _title(folder: Path, steps: Records, evaluations: Records) -> str:
    words = [folder.resolve().name]
    if len(evaluations) > 1:
        first, last = evaluations[0]["eval_pass_at_1"], evaluations[-1]["eval_pass_at_1"]
        words.append(f"held-out pass@1 {first:.3f} → {last:.3f}")
    if steps:
        words.append(
            f"{steps[-1]['step']} steps, {(steps[-1].get('tokens_generated_total') or 0) / 1e6:.2f} M tokens generated"
        )
    return "   ·   ".join(words)


def _line(axes: Axes, steps: Records, key: str, label: str, colour: str) -> None:
    """One metric against steps: the values pale, their running mean (7 steps, centred) strong."""
    points = [(r["step"], r[key]) for r in steps if r.get(key) is not None]
    if not points:
        return
    x, y = [p[0] for p in points], [p[1] for p in points]
    smooth = [sum(y[max(0, i - 3) : i + 4]) / len(y[max(0, i - 3) : i + 4]) for i in range(len(y))]
    if len(y) > 7:
        axes.plot(x, y, color=colour, alpha=0.25, linewidth=1)
    axes.plot(x, smooth if len(y) > 7 else y, color=colour, label=label)


def _heldout(axes: Axes, evaluations: Records, against: str) -> None:
    import numpy as np

    scale, label = (1e6, "generated tokens (millions)") if against == "tokens" else (1, "step")
    x = np.array([r[against] for r in evaluations]) / scale
    y = np.array([r["eval_pass_at_1"] for r in evaluations])
    error = np.array([r.get("eval_pass_at_1_stderr") or 0.0 for r in evaluations])
    axes.set(title=f"Held-out pass@1 by {'tokens' if against == 'tokens' else 'steps'}", xlabel=label)
    if not len(x):
        _empty(axes, "no evaluation")
        return
    axes.fill_between(x, y - error, y + error, color=BLUE, alpha=0.15, linewidth=0, label="± 1 standard error")
    axes.plot(x, y, color=BLUE, marker="o", markersize=4, label="pass@1")
    k = evaluations[-1].get("eval_k")
    if k and k != 1:
        high = [r.get("eval_pass_at_k") for r in evaluations]
        axes.plot(
            x, [np.nan if v is None else v for v in high], color=GREY, linestyle="--", linewidth=1.3, label=f"pass@{k}"
        )
    low = min(0.9, float((y - error).min()))
    axes.set_ylim(max(0.0, low - 0.05), 1.02)
    axes.legend(loc="best")


def _training(axes: Axes, steps: Records) -> None:
    axes.set(title="Training rollouts", xlabel="step")
    _line(axes, steps, "reward_mean", "mean reward", ORANGE)
    _line(axes, steps, "accuracy", "accuracy", BLUE)
    _line(axes, steps, "pass_at_g", "solved by one of G", GREEN)
    _finish(axes)


def _entropy(axes: Axes, steps: Records) -> None:
    axes.set(title="Entropy of the policy (nats per token)", xlabel="step")
    _line(axes, steps, "entropy", "entropy", PURPLE)
    axes.set_ylim(bottom=0)
    _finish(axes, legend=False)


def _lengths(axes: Axes, steps: Records) -> None:
    axes.set(title="Lengths (tokens)", xlabel="step")
    _line(axes, steps, "completion_length", "completion", BLUE)
    _line(axes, steps, "segment_length", "segment", ORANGE)
    axes.set_ylim(bottom=0)
    _finish(axes)


def _time(axes: Axes, steps: Records) -> None:
    axes.set(title="Seconds per step", xlabel="step")
    shown = [name for name in TIMES if any(r.get(f"seconds_{name}") for r in steps)]
    if shown:
        x = [r["step"] for r in steps]
        layers = [[r.get(f"seconds_{name}") or 0.0 for r in steps] for name in shown]
        axes.stackplot(x, *layers, labels=shown, colors=[TIMES[name] for name in shown], alpha=0.85, linewidth=0)
        axes.set_ylim(0, 1.18 * max(sum(column) for column in zip(*layers, strict=True)))  # room for the legend
        axes.legend(loc="upper center", ncols=4, columnspacing=1.2)
    else:
        _empty(axes, "not recorded")


def _finish(axes: Axes, legend: bool = True) -> None:
    """A legend where there is something to name, a note where there is nothing."""
    if not axes.has_data():
        _empty(axes, "not recorded")
    elif legend:
        axes.legend(loc="best", ncols=2)


def _empty(axes: Axes, text: str) -> None:
    axes.text(0.5, 0.5, text, transform=axes.transAxes, ha="center", va="center", color=GREY)
    axes.set(xticks=[], yticks=[])
