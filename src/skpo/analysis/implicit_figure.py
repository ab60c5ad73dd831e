"""Figure 4 of the paper (arXiv 2604.08690): relative advantage by position and method."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from skpo.analysis.output import COLOURS, draw, write_csv, write_json

if TYPE_CHECKING:
    from matplotlib.axes import Axes

PARTS = {"0 to 20 %": (0.0, 0.2), "20 to 50 %": (0.2, 0.5), "50 to 100 %": (0.5, 1.0)}


def parts_of(rates: np.ndarray, methods: Sequence[str], positions: Sequence[float], seed: int = 0) -> list[dict[str, Any]]:  # fmt: skip
    """Mean relative advantage over parts of the response, with bootstrap intervals over problems.

    A part holds the positions p with low < p <= high. Problems with a missing rate are left out of the part.
    """
    from skpo.analysis.implicit import relative_advantage
    from skpo.evaluation.statistics import bootstrap_interval

    rows = []
    for part, (low, high) in PARTS.items():
        some = [j for j, p in enumerate(positions) if low + 1e-9 < p <= high + 1e-9]
        whole = ~np.isnan(rates[:, :, some]).any((0, 2))
        if not some or not whole.any():
            continue
        values = relative_advantage(rates[:, whole][:, :, some]).mean(-1)
        for m, name in enumerate(methods):
            interval = bootstrap_interval(values[m].tolist(), resamples=2000, seed=seed)
            rows.append({
                "method": name, "part": part, "problems": int(whole.sum()), "advantage": float(values[m].mean()),
                "low": interval[0], "high": interval[1], "reward": float(rates[m, whole][:, some].mean()),
            })  # fmt: skip
    return rows


def implicit_figure(out: Path, rows: Sequence[dict[str, Any]], parts: Sequence[dict[str, Any]], settings: dict[str, Any]) -> list[Path]:  # fmt: skip
    """Draw figure 4; writes PNG, CSV and JSON into `out`. Bands are 95 % bootstrap intervals over problems."""
    count = max(r["problems"] for r in rows)
    title = f"Correct responses continued by {settings['evaluator']}, {count} problems, {settings['k']} continuations"
    panels = [
        lambda axes: _panel(axes, rows, "advantage", "Relative advantage"),
        lambda axes: _panel(axes, rows, "reward", "Success rate of continuations"),
    ]
    return [
        draw(out / "analysis-implicit.png", panels, title, columns=2, size=(12, 4.2)),
        write_csv(out / "analysis-implicit.csv", rows),
        write_json(out / "analysis-implicit.json", {"settings": settings, "parts": list(parts), "rows": list(rows)}),
    ]


def _panel(axes: Axes, rows: Sequence[dict[str, Any]], key: str, title: str) -> None:
    for name, colour in zip(dict.fromkeys(r["method"] for r in rows), COLOURS, strict=False):
        mine = [r for r in rows if r["method"] == name and r[key] is not None]
        x = [r["position"] for r in mine]
        if key == "advantage":
            axes.fill_between(x, [r["low"] for r in mine], [r["high"] for r in mine], color=colour, alpha=0.15, linewidth=0)  # fmt: skip
        axes.plot(x, [r[key] for r in mine], color=colour, label=name)
    axes.set(title=title, xlabel="position in the response", ylabel=key)
    if key == "advantage":
        axes.axhline(0, color=COLOURS[7], linewidth=0.8)
        axes.legend(loc="best")
    else:
        axes.set_ylim(-0.02, 1.02)
