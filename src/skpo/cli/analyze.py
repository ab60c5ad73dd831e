"""`skpo analyze mc-noise | shortcut | implicit-advantage`: the paper's analyses."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

import typer

from skpo.errors import ConfigError

analyze = typer.Typer(no_args_is_help=True, help="The paper's analyses: sign noise, shortcuts, implicit advantage.")

REPETITIONS = 100_000
Out = Annotated[Path, typer.Option(metavar="FOLDER", help="Where figures, tables and what was sampled go.")]


@analyze.command("mc-noise")
def mc_noise(
    p: Annotated[
        str | None, typer.Option(metavar="P,P,...", help="True success probabilities of the prefixes.")
    ] = None,
    group: Annotated[int, typer.Option(min=2, help="Prefixes, without --p.")] = 8,
    spread: Annotated[str, typer.Option(help="Without --p: probabilities evenly spaced over this width, around 0.5.")] = "0.2",
    continuations: Annotated[int, typer.Option(min=1, help="Continuations per prefix.")] = 8,
    exact: Annotated[bool, typer.Option("--exact", help="Exactly, where that takes seconds.")] = False,
    repetitions: Annotated[int, typer.Option(min=1, help="Groups to simulate.")] = REPETITIONS,
    seed: Annotated[int, typer.Option(help="Seed of everything drawn.")] = 0,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
    figure: Annotated[bool, typer.Option("--figure", help="Write figures 5 and 6 into --out.")] = False,
    out: Out = Path("runs/analysis"),
) -> None:  # fmt: skip
    """How often the signs of Monte-Carlo advantages are right.

    [bold]skpo analyze mc-noise --p 0.4,0.5,0.6 --continuations 4 --exact --json[/bold]

    [bold]skpo analyze mc-noise --group 8 --spread 0.2 --continuations 512 --json[/bold]

    [bold]skpo analyze mc-noise --figure --out runs/analysis[/bold]
    """
    from skpo.analysis.signs import exact_signs, parse_probabilities, simulated_signs, spread_probabilities

    if figure:
        from skpo.analysis.signs_figures import sign_figures

        parse_spread(spread)
        _wrote(sign_figures(out, group=group, spread=spread, repetitions=repetitions, seed=seed))
        return
    prefixes = parse_probabilities(p.split(",")) if p else spread_probabilities(group, parse_spread(spread))
    found = (
        exact_signs(prefixes, continuations) if exact else simulated_signs(prefixes, continuations, repetitions, seed)
    )
    result: dict[str, Any] = {
        "p": [float(x) for x in prefixes], "continuations": continuations, "exact": exact,
        "repetitions": found.repetitions, **found.to_dict(),
    }  # fmt: skip
    if as_json:
        typer.echo(json.dumps(result))
        return
    how = "exact" if exact else f"{repetitions} repetitions"
    typer.echo(f"{len(prefixes)} prefixes, {continuations} continuations each ({how})")
    typer.echo(f"all signs right   {_with_error(found.all_right, found.error(found.all_right))}")
    typer.echo(f"share of signs    {_with_error(found.share_right, found.error(found.share_right))}")
    for x, right in zip(prefixes, found.per_prefix, strict=True):
        typer.echo(f"  p = {float(x):.4f}      {_with_error(right, found.error(right))}")


def parse_spread(text: str) -> Any:
    """A spread as an exact fraction. Raises ConfigError for anything that is no number."""
    from fractions import Fraction

    try:
        return Fraction(text)
    except (ValueError, ZeroDivisionError):
        raise ConfigError(f'--spread "{text}": expected a number such as 0.2') from None


def _with_error(value: float, error: float | None) -> str:
    return f"{value:.5f}" if error is None else f"{value:.5f} ± {error:.5f}"


def _wrote(paths: list[Path]) -> None:
    typer.echo("\n".join(f"wrote {path}" for path in paths))
