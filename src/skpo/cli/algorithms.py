"""`skpo algorithms`: the family as a table, or one of them with its formula and options."""

from __future__ import annotations

import dataclasses
import inspect
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from rich.table import Table

    from skpo.algorithms.base import Algorithm

MARKDOWN_HEAD = "| name | arXiv | what it is |"


def algorithms(
    name: Annotated[str | None, typer.Argument(metavar="[NAME]", help="One algorithm, for example skpo.")] = None,
) -> None:
    """List the algorithms, or show the formula and options of one."""
    from rich.console import Console

    from skpo.algorithms import algorithm_class, list_algorithms

    console = Console()
    if name is None:
        console.print(family_table(list_algorithms()))
        console.print("[bright_black]formula and options of one: skpo algorithms NAME[/bright_black]")
        return
    algorithm = algorithm_class(name)
    head = f"{algorithm.name}  arXiv {algorithm.arxiv}  {algorithm.summary}"
    console.print(head, style="bold", markup=False, highlight=False)
    console.print()
    console.print(inspect.cleandoc(algorithm.__doc__ or ""), markup=False, highlight=False, soft_wrap=True)
    console.print()
    rows = option_rows(algorithm)
    console.print(options_table(rows) if rows else "no options")
    console.print()
    console.print(f"keeps between steps: {algorithm.keeps}", markup=False, highlight=False)
    console.print(
        f"problem sampling: {algorithm.curriculum}, unless the recipe says otherwise", markup=False, highlight=False
    )


def family_table(classes: list[type[Algorithm]]) -> Table:
    """Name, arXiv id, one line."""
    from rich.markup import escape
    from rich.table import Table

    table = Table(box=None, header_style="bold", padding=(0, 2, 0, 0))
    for column in ("name", "arXiv", "what it is"):
        table.add_column(column, no_wrap=column != "what it is")
    for algorithm in classes:
        table.add_row(algorithm.name, algorithm.arxiv, escape(algorithm.summary))
    return table


def markdown_table(classes: list[type[Algorithm]]) -> str:
    """The README's table of the family."""
    rows = [f"| `{a.name}` | [{a.arxiv}](https://arxiv.org/abs/{a.arxiv}) | {a.summary} |" for a in classes]
    return "\n".join([MARKDOWN_HEAD, "|---|---|---|", *rows])


def options_table(rows: list[tuple[str, str, str]]) -> Table:
    """Option, default, meaning and origin."""
    from rich.markup import escape
    from rich.table import Table

    table = Table(box=None, header_style="bold", padding=(0, 2, 0, 0))
    for column in ("option", "default", "meaning and origin"):
        table.add_column(column, no_wrap=column != "meaning and origin")
    for row in rows:
        table.add_row(*map(escape, row))  # "[s, q]" is no style
    return table


def option_rows(algorithm: type[Algorithm]) -> list[tuple[str, str, str]]:
    """(option, default, meaning) of an algorithm, in the order of its `Options`."""
    return [
        (option.name, show(_default(option)), option.metadata.get("help", ""))
        for option in dataclasses.fields(algorithm.Options)
    ]


def _default(option: dataclasses.Field[Any]) -> Any:
    if option.default is not dataclasses.MISSING:
        return option.default
    return option.default_factory() if option.default_factory is not dataclasses.MISSING else None


def show(value: Any) -> str:
    """A default as it is written in a recipe."""
    if value is None or isinstance(value, bool):
        return {None: "null", True: "true", False: "false"}[value]
    return f"{value:.4g}" if isinstance(value, float) else str(value)
