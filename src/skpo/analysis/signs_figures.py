"""Figures 5 and 6 of the paper (arXiv 2604.08690, appendix A): sign noise against continuations and spread."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from fractions import Fraction
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from skpo.analysis.output import COLOURS, draw, shades, write_csv, write_json
from skpo.analysis.signs import draw_counts, normalised, simulated_signs, spread_probabilities

if TYPE_CHECKING:
    from matplotlib.axes import Axes

SPREADS = ("0.02", "0.05", "0.1", "0.2", "0.4", "0.8")
CONTINUATIONS = tuple(2**i for i in range(3, 14))  #: 8 ... 8192
SHOWN = (8, 512)  #: continuations of which the distribution of estimates is drawn
QUANTILES = (0.05, 0.25, 0.5, 0.75, 0.95)


def sweep(group: int, spreads: Sequence[str], repetitions: int, seed: int) -> list[dict[str, Any]]:
    """Sign accuracy for every spread and number of continuations: a row each."""
    rows = []
    for spread in spreads:
        p = spread_probabilities(group, Fraction(spread))
        for n in CONTINUATIONS:
            found = simulated_signs(p, n, repetitions, seed).to_dict()
            rows.append({"spread": float(spread), "continuations": n, "group": group, **found})
    return rows


def distribution(group: int, spread: str, repetitions: int, seed: int) -> list[dict[str, Any]]:
    """Estimated advantages of each prefix: mean, quantiles and share of wrong signs, beside the true advantage."""
    p = [float(x) for x in spread_probabilities(group, Fraction(spread))]
    true, rng, rows = normalised(np.array(p)), np.random.default_rng(seed), []
    for n in SHOWN:
        estimates = normalised(draw_counts(p, n, repetitions, rng) / n)
        for i in range(group):
            column = estimates[:, i]
            quantiles = {
                f"q{round(100 * q):02d}": float(v)
                for q, v in zip(QUANTILES, np.quantile(column, QUANTILES), strict=True)
            }
            rows.append({"continuations": n, "p": p[i], "true": float(true[i]), "mean": float(column.mean()), **quantiles})  # fmt: skip
    return rows


def sign_figures(out: Path, *, group: int = 8, spread: str = "0.2", repetitions: int = 100_000, seed: int = 0) -> list[Path]:  # fmt: skip
    """Compute and draw both figures; writes PNG, CSV and JSON into `out` and returns their paths."""
    rows = sweep(group, SPREADS, repetitions, seed)
    own = rows if spread in SPREADS else sweep(group, [spread], repetitions, seed)
    one = [r for r in own if r["spread"] == float(spread)]
    spreads = distribution(group, spread, repetitions, seed)
    probabilities = [float(x) for x in spread_probabilities(group, Fraction(spread))]
    figure5 = draw(
        out / "analysis-signs.png", [lambda axes: _all_right(axes, rows), lambda axes: _share(axes, rows)],
        f"Monte-Carlo signs of {group} prefixes, success probabilities spread around 0.5", columns=2, size=(10.5, 4.2),
    )  # fmt: skip
    panels: list[Callable[[Axes], None]] = [lambda axes: _prefixes(axes, one, probabilities)]
    panels += [partial(_estimates, rows=[r for r in spreads if r["continuations"] == n], n=n) for n in SHOWN]
    figure6 = draw(
        out / "analysis-signs-prefixes.png", panels, f"Each prefix alone, spread {spread}", columns=3, size=(12.5, 4.2)
    )
    settings = {"group": group, "spread": float(spread), "repetitions": repetitions, "seed": seed}
    flat = [{k: v for k, v in r.items() if not k.startswith("per_prefix")} for r in rows]
    return [
        figure5,
        figure6,
        write_csv(out / "analysis-signs.csv", flat),
        write_csv(out / "analysis-signs-prefixes.csv", spreads),
        write_json(out / "analysis-signs.json", {"settings": settings, "signs": rows, "estimates": spreads}),
    ]


def _all_right(axes: Axes, rows: Sequence[dict[str, Any]]) -> None:
    _by_spread(axes, rows, "all_right")
    axes.set(title="All signs right", ylabel="probability")
    axes.axvline(512, color=COLOURS[7], linewidth=0.8, linestyle=":")


def _share(axes: Axes, rows: Sequence[dict[str, Any]]) -> None:
    _by_spread(axes, rows, "share_right")
    axes.set(title="Share of signs right", ylabel="share")
    axes.legend(title="spread", loc="lower right", ncols=2)


def _by_spread(axes: Axes, rows: Sequence[dict[str, Any]], key: str) -> None:
    spreads = sorted({r["spread"] for r in rows})
    for spread, colour in zip(spreads, shades(len(spreads)), strict=True):
        mine = [r for r in rows if r["spread"] == spread]
        x, y = np.array([r["continuations"] for r in mine]), np.array([r[key] for r in mine])
        error = np.array([r[f"{key}_stderr"] for r in mine])
        axes.fill_between(x, y - 2 * error, y + 2 * error, color=colour, alpha=0.2, linewidth=0)
        axes.plot(x, y, color=colour, label=f"{spread:g}", marker="o", markersize=3)
    _continuations(axes)


def _prefixes(axes: Axes, rows: Sequence[dict[str, Any]], p: Sequence[float]) -> None:
    for i, colour in enumerate(shades(len(p))):
        axes.plot([r["continuations"] for r in rows], [r["per_prefix"][i] for r in rows], color=colour, label=f"{p[i]:.3f}")  # fmt: skip
    _continuations(axes)
    axes.set(title="Sign right, by true probability", ylabel="probability")
    axes.legend(title="p", loc="lower right", ncols=2)


def _estimates(axes: Axes, rows: Sequence[dict[str, Any]], n: int) -> None:
    x = np.arange(len(rows))
    axes.vlines(x, [r["q05"] for r in rows], [r["q95"] for r in rows], color=COLOURS[0], alpha=0.35, linewidth=2, label="5 to 95 %")  # fmt: skip
    axes.vlines(x, [r["q25"] for r in rows], [r["q75"] for r in rows], color=COLOURS[0], linewidth=6, label="25 to 75 %")  # fmt: skip
    axes.plot(x, [r["true"] for r in rows], linestyle="none", marker="D", color=COLOURS[1], markersize=5, label="true")
    axes.axhline(0, color=COLOURS[7], linewidth=0.8)
    axes.set(title=f"Estimated advantages, {n} continuations", xlabel="true success probability", ylim=(-2.6, 2.6))
    axes.set_xticks(x, [f"{r['p']:.2f}" for r in rows])
    axes.legend(loc="upper left")


def _continuations(axes: Axes) -> None:
    axes.set_xscale("log", base=2)
    axes.set(xlabel="continuations per prefix", ylim=(-0.02, 1.02))
    axes.set_xticks([8, 32, 128, 512, 2048, 8192], ["8", "32", "128", "512", "2048", "8192"])
