"""Pictures and tables of the analyses, in the style of the training curves."""

from __future__ import annotations

import csv
import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from skpo.trainer.plots import BLUE, GREEN, GREY, INK, ORANGE, PURPLE, STYLE

if TYPE_CHECKING:
    from matplotlib.axes import Axes

COLOURS = (BLUE, ORANGE, GREEN, PURPLE, "#c2405a", "#3a9bb5", "#7a6a2f", GREY, INK)
Row = Mapping[str, Any]


def shades(n: int) -> list[Any]:
    """`n` colours of one ramp, dark to light, for curves with an order."""
    import matplotlib as mpl

    ramp = mpl.colormaps["viridis"]
    return [ramp(0.88 * i / max(1, n - 1)) for i in range(n)]


def draw(
    path: Path,
    panels: Sequence[Callable[[Axes], None]],
    title: str,
    *,
    columns: int,
    size: tuple[float, float],
    share_y: bool = False,
) -> Path:
    """Draw panels row by row into one PNG, with `columns` in a row; `size` in inches."""
    import matplotlib as mpl
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure
    from matplotlib.layout_engine import ConstrainedLayoutEngine

    rows = -(-len(panels) // columns)
    with mpl.rc_context(STYLE):
        figure = Figure(figsize=size, layout=ConstrainedLayoutEngine(w_pad=0.1, h_pad=0.1), facecolor="white")
        FigureCanvasAgg(figure)
        grid = figure.subplots(rows, columns, squeeze=False, sharey=share_y).flat
        for axes, panel in zip(grid, panels, strict=False):
            panel(axes)
            axes.tick_params(length=0)
        for axes in list(figure.axes)[len(panels) : rows * columns]:
            axes.set_visible(False)
        figure.suptitle(title, x=0.008, ha="left", fontsize=12.5, fontweight="bold")
        path.parent.mkdir(parents=True, exist_ok=True)
        figure.savefig(path, dpi=130, format="png")
    return path


def write_json(path: Path, content: Any) -> Path:
    """Write one JSON file, at once or not at all."""
    path.parent.mkdir(parents=True, exist_ok=True)
    new = path.with_name(f".{path.name}.new")
    new.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")
    new.replace(path)
    return path


def write_csv(path: Path, rows: Sequence[Row]) -> Path:
    """Write rows with the columns of the first one; numbers in full."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, list(rows[0]) if rows else [])
        writer.writeheader()
        writer.writerows(rows)
    return path
