"""Figures 1, 7 and 8 of the paper (arXiv 2604.08690): curves along trajectories, by number correct in the group."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from skpo.analysis.output import COLOURS, draw, shades, write_csv, write_json

if TYPE_CHECKING:
    from matplotlib.axes import Axes

Rows = Sequence[dict[str, Any]]
MEASURES = ("mc_accuracy", "outcome_accuracy", "mc_mae", "outcome_mae", "win", "mc_accuracy_sure", "outcome_accuracy_sure", "sure", "zero")  # fmt: skip
THIRDS = {"all": (0.0, 1.0), "first third": (0.0, 1 / 3), "middle third": (1 / 3, 2 / 3), "last third": (2 / 3, 1.0)}


def average(rows: Rows, key: str) -> tuple[float, float] | None:
    """Mean over groups of each group's mean, and its standard error over groups (nan for one); None without a value."""
    groups: dict[str, list[float]] = {}
    for row in rows:
        if row[key] is not None:
            groups.setdefault(row["problem"], []).append(row[key])
    means = [sum(v) / len(v) for v in groups.values()]
    if not means:
        return None
    mean = sum(means) / len(means)
    variance = sum((m - mean) ** 2 for m in means) / (len(means) - 1) if len(means) > 1 else float("nan")
    return mean, (variance / len(means)) ** 0.5


def summary(rows: Rows) -> list[dict[str, Any]]:
    """A row per number correct, K and part of the trajectory: every measure with its standard error over groups."""
    found = []
    for correct in sorted({r["correct"] for r in rows}):
        for k in sorted({r["k"] for r in rows}):
            mine = [r for r in rows if r["correct"] == correct and r["k"] == k]
            for part, (low, high) in THIRDS.items():
                some = [r for r in mine if low <= r["position"] < high]  # the end is the outcome, and not an estimate
                row: dict[str, Any] = {"correct": correct, "k": k, "part": part, "groups": len({r["problem"] for r in mine})}  # fmt: skip
                for name in MEASURES:
                    value = average(some, name)
                    row[name] = value[0] if value else None
                    row[f"{name}_stderr"] = None if value is None or value[1] != value[1] else value[1]
                found.append(row)
    return found


def token_figures(out: Path, rows: Rows, settings: dict[str, Any], group: int) -> list[Path]:
    """Draw accuracy and error along the trajectory, and all measures against K; writes PNG, CSV and JSON into `out`."""
    parts, name = summary(rows), settings["name"]
    ks = sorted({r["k"] for r in rows})
    shown = [k for k in (ks[0], 128, 512) if k in ks]
    kinds: list[tuple[str, str, str]] = [
        ("accuracy", "sign accuracy", "Sign accuracy"),
        ("mae", "mean |A - A*|", "Error"),
    ]
    paths = []
    for kind, label, title in kinds:
        panels = [
            lambda axes, c=c, kind=kind, label=label: _along(axes, rows, c, group, kind, label, shown)
            for c in range(group + 1)
        ]
        head = f"{title} along trajectories, by number correct in the group ({name})"
        paths.append(draw(out / f"analysis-tokens-{kind}.png", panels, head, columns=3, size=(12, 9.5), share_y=True))
    against = [
        lambda axes, m=m, t=t: _against_k(axes, parts, m, t, group)
        for m, t in (("mc_accuracy", "Sign accuracy"), ("mc_mae", "Error, mean |A - A*|"), ("win", "Win rate over the outcome advantage"))
    ]  # fmt: skip
    rewards = [lambda axes: _rewards(axes, rows, group)]
    title = f"Monte-Carlo advantages against continuations per prefix ({name})"
    paths.append(draw(out / "analysis-tokens.png", [*against, *rewards], title, columns=2, size=(12, 8)))
    paths.append(write_csv(out / "analysis-tokens.csv", rows))
    paths.append(write_json(out / "analysis-tokens.json", {"settings": settings, "summary": parts}))
    return paths


def _curve(rows: Rows, key: str) -> tuple[list[float], list[float], list[float]]:
    """(positions, means over groups, standard errors) of one measure."""
    x, y, e = [], [], []
    for position in sorted({r["position"] for r in rows}):
        found = average([r for r in rows if r["position"] == position], key)
        if found:
            x.append(position)
            y.append(found[0])
            e.append(0.0 if found[1] != found[1] else found[1])
    return x, y, e


def _plot(axes: Axes, curve: tuple[list[float], list[float], list[float]], colour: Any, label: str, **style: Any) -> None:  # fmt: skip
    x, y, e = curve
    axes.fill_between(x, [a - b for a, b in zip(y, e, strict=True)], [a + b for a, b in zip(y, e, strict=True)], color=colour, alpha=0.15, linewidth=0)  # fmt: skip
    axes.plot(x, y, color=colour, label=label, **style)


def _along(axes: Axes, rows: Rows, correct: int, group: int, kind: str, label: str, ks: Sequence[int]) -> None:
    mine = [r for r in rows if r["correct"] == correct]
    groups = len({r["problem"] for r in mine})
    axes.set(
        title=f"{correct}/{group} correct ({groups} group{'' if groups == 1 else 's'})", xlabel="position", ylabel=label
    )
    if kind == "accuracy":
        axes.set_ylim(-0.03, 1.05)
        axes.axhline(0.5, color=COLOURS[7], linewidth=0.8, linestyle=":")
    if not mine:
        axes.text(0.5, 0.5, "no such group found", transform=axes.transAxes, ha="center", color=COLOURS[7])
        return
    for k, colour in zip(ks, shades(len(ks) + 1), strict=False):
        _plot(axes, _curve([r for r in mine if r["k"] == k], f"mc_{kind}"), colour, f"K = {k}")
    _plot(axes, _curve([r for r in mine if r["k"] == ks[0]], f"outcome_{kind}"), COLOURS[1], "outcome", linestyle="--")
    if correct == min(r["correct"] for r in rows):
        axes.legend(loc="best")


def _against_k(axes: Axes, parts: Rows, measure: str, title: str, group: int) -> None:
    classes = sorted({r["correct"] for r in parts})
    for c in classes:
        mine = [r for r in parts if r["correct"] == c and r["part"] == "all" and r[measure] is not None]
        axes.plot([r["k"] for r in mine], [r[measure] for r in mine], color=shades(group + 1)[c], marker="o", markersize=3, label=f"{c}/{group}")  # fmt: skip
    axes.set_xscale("log", base=2)
    ks = sorted({r["k"] for r in parts})
    axes.set_xticks(ks, [str(k) for k in ks])
    axes.set(title=title, xlabel="K, continuations per prefix", ylim=(0, None if "mae" in measure else 1.02))
    if measure == "win":
        axes.axhline(0.5, color=COLOURS[7], linewidth=0.8, linestyle=":")
    if measure == "mc_accuracy":
        axes.legend(title="correct", ncols=3, loc="center left", bbox_to_anchor=(0.0, 0.36))


def _rewards(axes: Axes, rows: Rows, group: int) -> None:
    first = min(r["k"] for r in rows)
    for c in sorted({r["correct"] for r in rows}):
        mine = [r for r in rows if r["correct"] == c and r["k"] == first]
        x, y, _ = _curve(mine, "reward")
        e = [average([r for r in mine if r["position"] == p], "reward_stderr") for p in x]
        _plot(axes, (x, y, [v[0] if v else 0.0 for v in e]), shades(group + 1)[c], f"{c}/{group}")
    axes.set(title="R*, mean of the group ± mean standard error of a prefix", xlabel="position", ylim=(-0.02, 1.02))
