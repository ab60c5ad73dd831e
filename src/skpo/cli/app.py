"""The commands and their options. Whatever is slow to import is imported inside the command that uses it."""

from __future__ import annotations

from typing import Annotated

import typer

from skpo import __version__
from skpo.cli.algorithms import algorithms
from skpo.cli.analyze import analyze
from skpo.cli.compare import compare
from skpo.cli.doctor import doctor
from skpo.cli.evaluate import evaluate
from skpo.cli.report import report
from skpo.cli.train import train

app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode="rich",
    pretty_exceptions_show_locals=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
app.command()(train)
app.command(name="eval")(evaluate)
app.command()(compare)
app.add_typer(analyze, name="analyze")
app.command()(report)
app.command()(algorithms)
app.command()(doctor)


def _version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"skpo {__version__}")
        raise typer.Exit


@app.callback()
def root(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Show the version and exit.")
    ] = False,
) -> None:
    """Reinforcement learning with verifiable rewards: SKPO and the GRPO family."""
