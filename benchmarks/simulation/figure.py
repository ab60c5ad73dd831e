"""The curves of a prediction."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from benchmarks.simulation.pool import METHODS, Method, Step

COLOURS = {"grpo": "#888888", "skpo": "#1f77b4", "skpo two passes": "#d95f02"}


def draw(
    grids: Mapping[str, Mapping[tuple[Method, int], Step]],
    workers: Sequence[int],
    titles: Mapping[str, str],
    path: Path,
) -> None:
    """A row for each scenario: seconds of a step and of its rollouts, speed-up of the rollouts, share of time that workers compute."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(len(grids), 3, figsize=(12, 3.4 * len(grids)), squeeze=False, constrained_layout=True)
    for (title, grid), (time, speedup, busy) in zip(grids.items(), axes, strict=True):
        for method in METHODS:
            steps = [grid[method, n] for n in workers]
            style = {"color": COLOURS[method], "label": titles[method]}
            time.plot(workers, [s.seconds for s in steps], marker="o", markersize=3, **style)
            time.plot(workers, [s.rollout for s in steps], linestyle=":", color=COLOURS[method])
            speedup.plot(workers, [steps[0].rollout / s.rollout for s in steps], marker="o", markersize=3, **style)
            busy.plot(workers, [100 * s.utilisation for s in steps], marker="o", markersize=3, **style)
        speedup.plot(workers, workers, color="black", linewidth=0.6, linestyle="--", label="ideal")
        time.set(yscale="log", ylabel="seconds", title=f"{title}\na step (dotted: its rollouts)")
        speedup.set(yscale="log", ylabel="times faster than one worker", title="speed-up of the rollouts")
        busy.set(ylim=(0, 105), ylabel="% of the rollout phase", title="workers that compute")
        for axis in (time, speedup, busy):
            axis.set(xscale="log", xlabel="rollout workers", xticks=workers, xticklabels=workers)
            axis.minorticks_off()
            axis.title.set_fontsize(9)
            axis.tick_params(labelsize=7)
            axis.grid(alpha=0.3)
        time.legend(fontsize=7)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=110)
    plt.close(figure)
