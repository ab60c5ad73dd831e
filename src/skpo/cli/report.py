"""`skpo report`: runs as one HTML page."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def report(
    runs: Annotated[list[Path], typer.Argument(metavar="RUN...", help="Run folders, or folders of runs.")],
    out: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE", help="Where to write; default: report.html in the run's folder, or here for several runs."
        ),
    ] = None,
) -> None:
    """Write one self-contained HTML page about one run, or several laid over each other.

    [bold]skpo report runs/a[/bold] writes runs/a/report.html; [bold]skpo report runs/a runs/b --out compared.html[/bold] compares.

    Curves of every metric, held-out accuracy with intervals, time per step, settings that differ, and a browser of the rollouts with
    tokens coloured by advantage, log-probability, entropy or ratio. The page needs no network.
    """
    from skpo.report import write_report

    typer.echo(f"wrote {write_report(runs, out)}")
