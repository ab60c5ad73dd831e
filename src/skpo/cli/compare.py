"""`skpo compare`: several algorithms at an equal number of generated tokens."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated

import typer


def compare(
    recipe: Annotated[str, typer.Argument(metavar="RECIPE", help="A recipe: file or packaged name.")],
    overrides: Annotated[list[str] | None, typer.Argument(metavar="KEY=VALUE", help="Overrides for every run.")] = None,
    algorithms: Annotated[
        str,
        typer.Option(metavar="A,B,...", help="What to compare; A:key=value sets an option or a setting of that one."),
    ] = "skpo,grpo",
    seeds: Annotated[int, typer.Option(min=1, help="Seeds per algorithm: 0, 1, ...")] = 3,
    tokens: Annotated[
        int | None,
        typer.Option(
            min=1, help="Generated tokens per run; default: what the first algorithm needs for the recipe's steps."
        ),
    ] = None,
    jobs: Annotated[int | None, typer.Option(min=1, help="Runs at one time; default: the machine's cores.")] = None,
    out: Annotated[Path, typer.Option(metavar="FOLDER", help="Where runs and tables go.")] = Path("runs/compare"),
) -> None:
    """Compare algorithms on one recipe at equal cost, over seeds.

    [bold]skpo compare recipes/chain.yaml --algorithms skpo,grpo,skpo:skip=false --seeds 3[/bold]

    Every run gets the same base model, problems and number of generated tokens. The same command again goes on where it
    was interrupted. Writes comparison.md, comparison.csv and comparison.png.
    """
    from skpo.compare import Comparison, parse_variants
    from skpo.compare.table import markdown, write
    from skpo.settings import load_config, validate_algorithm

    config = load_config(recipe, overrides or [])
    variants = parse_variants(algorithms, str(config.algorithm.get("name")))
    for variant in variants:  # a mistake is told before the first run, not after the last
        validate_algorithm(load_config(recipe, [*(overrides or []), *variant.overrides]))
    comparison = Comparison(
        recipe, variants, seeds, out, tuple(overrides or ()), tokens, jobs or os.cpu_count() or 1, typer.echo
    )
    outcomes = comparison.run()
    typer.echo("\n" + markdown(outcomes))
    typer.echo("\n".join(f"wrote {path}" for path in write(outcomes, out)))
