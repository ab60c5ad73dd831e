"""`skpo analyze mc-noise | shortcut | segments | implicit-advantage`: the paper's analyses, and one of our own."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

import typer

from skpo.errors import ConfigError

analyze = typer.Typer(
    no_args_is_help=True, help="Analyses: sign noise, shortcuts, use of the segment, implicit advantage."
)

REPETITIONS = 100_000
Problems = Annotated[
    list[str] | None, typer.Option(metavar="SOURCE", help="A problem source; give it again for several.")
]
Limit = Annotated[int | None, typer.Option(min=1, help="Use at most this many problems of each source.")]
VerifierName = Annotated[str, typer.Option(help="Verifier of problems that name none.")]
MaxTokens = Annotated[int, typer.Option(min=1, help="Budget of a response, in tokens.")]
Temperature = Annotated[float, typer.Option(min=0.0, help="Sampling temperature.")]
Yes = Annotated[bool, typer.Option("--yes", "-y", help="Go on without asking.")]
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
    model: Annotated[str | None, typer.Option(metavar="MODEL", help="Along real trajectories of this model.")] = None,
    problems: Problems = None,
    limit: Limit = None,
    per_class: Annotated[int, typer.Option(min=1, help="Groups of each number correct.")] = 2,
    positions: Annotated[int, typer.Option(min=2, help="Points of the grid from 0 to 1.")] = 50,
    true: Annotated[int, typer.Option("--k-true", min=2, help="Continuations behind the true value of a prefix.")] = 128,
    verifier: VerifierName = "math",
    max_tokens: MaxTokens = 1024,
    temperature: Temperature = 1.0,
    yes: Yes = False,
    out: Out = Path("runs/analysis"),
) -> None:  # fmt: skip
    """How often the signs of Monte-Carlo advantages are right.

    [bold]skpo analyze mc-noise --p 0.4,0.5,0.6 --continuations 4 --exact --json[/bold]

    [bold]skpo analyze mc-noise --group 8 --spread 0.2 --continuations 512 --json[/bold]

    [bold]skpo analyze mc-noise --figure --out runs/analysis[/bold]

    [bold]skpo analyze mc-noise --model runs/a --problems builtin:chain --verifier exact --max-tokens 128[/bold]

    With --model: groups of G trajectories by number correct, R* of every prefix from --k-true continuations, sign accuracy, error and
    win rate against the outcome advantage. The same command goes on where it was stopped.
    """
    if model is not None:
        options = {"group": group, "per_class": per_class, "positions": positions, "true": true, "seed": seed}
        lab = {"verifier": verifier, "max_tokens": max_tokens, "temperature": temperature, "seed": seed}
        _along_trajectories(model, _needed(problems), limit, out, yes, options, lab)
        return
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


@analyze.command("shortcut")
def shortcut(
    model: Annotated[str, typer.Argument(metavar="MODEL", help="A folder, a hub name, a .gguf file or builtin:NAME.")],
    problems: Problems = None,
    limit: Limit = None,
    group: Annotated[int, typer.Option(min=2, help="Rollouts per condition and position.")] = 8,
    positions: Annotated[int, typer.Option(min=2, help="Positions, evenly from 1/6 to 1/2.")] = 6,
    skip_template: Annotated[
        str | None, typer.Option(help="How [s, q] is rendered, with {segment} and {problem}; see model.skip_template.")
    ] = None,
    verifier: VerifierName = "math",
    max_tokens: MaxTokens = 1024,
    temperature: Temperature = 1.0,
    seed: Annotated[int, typer.Option(help="Seed of everything drawn.")] = 0,
    yes: Yes = False,
    out: Out = Path("runs/analysis"),
) -> None:
    """Diversity, advantage-zero rate and length under unconditional, continual and skip conditioning.

    [bold]skpo analyze shortcut builtin:chain-base --problems builtin:chain --skip-template "{segment}|{problem}" --max-tokens 128[/bold]

    Writes analysis-shortcut.png, .csv and .json into --out. The same command goes on where it was stopped.
    """
    from skpo.analysis.lab import Records, open_lab, problems_of
    from skpo.analysis.shortcut import cut_positions, sample_shortcuts, shortcut_figure, summary

    found, points = problems_of(_needed(problems), limit, verifier), cut_positions(positions)
    options: dict[str, Any] = {"verifier": verifier, "max_tokens": max_tokens, "temperature": temperature, "seed": seed}
    with open_lab(model, found, skip_template=skip_template, **options) as lab:
        options |= {"group": group, "positions": positions, "skip_template": skip_template}
        records = Records(out / "shortcut.jsonl", {"weights": lab.weights, **options})
        left = sum(p.id not in records for p in found)
        rollouts = left * (1 + group * (1 + 2 * positions))
        confirm(f"{left} problems: {rollouts:,} responses, at most {rollouts * max_tokens:,} tokens", yes)
        sample_shortcuts(lab, found, records, n=group, positions=points, tell=_tell)
    rows = summary([records[p.id] for p in found], points)
    _wrote(shortcut_figure(out, rows, {"name": short_name(model), "problems": problems, **options}))


@analyze.command("segments")
def segments(
    model: Annotated[str, typer.Argument(metavar="MODEL", help="A folder, a hub name, a .gguf file or builtin:NAME.")],
    problems: Problems = None,
    limit: Limit = None,
    count: Annotated[int, typer.Option("--segments", min=2, help="Segments per problem.")] = 8,
    continuations: Annotated[int, typer.Option(min=2, help="Completions from each.")] = 8,
    skip_template: Annotated[
        str | None, typer.Option(help="How [s, q] is rendered, with {segment} and {problem}; see model.skip_template.")
    ] = None,
    verifier: VerifierName = "math",
    max_tokens: MaxTokens = 1024,
    temperature: Temperature = 1.0,
    seed: Annotated[int, typer.Option(help="Seed of everything drawn.")] = 0,
    yes: Yes = False,
    out: Out = Path("runs/analysis"),
) -> None:
    """Is the segment used? Accuracy behind right, wrong and foreign segments, and how far R_I depends on the segment.

    [bold]skpo analyze segments runs/chain --problems "builtin:chain?split=heldout" --skip-template "{segment}|{problem}" --max-tokens 128[/bold]

    Writes analysis-segments.json into --out, and prints it as a table. The same command goes on where it was stopped.
    """
    from skpo.analysis.lab import Records, open_lab, problems_of
    from skpo.analysis.output import write_json
    from skpo.analysis.segments import FOREIGN, sample_segments, summary, table

    found = problems_of(_needed(problems), limit, verifier)
    if len(found) < 2:
        raise ConfigError("--problems: at least 2 are needed; each lends its segments to the one before it")
    options: dict[str, Any] = {"verifier": verifier, "max_tokens": max_tokens, "temperature": temperature, "seed": seed}
    with open_lab(model, found, skip_template=skip_template, **options) as lab:
        options |= {"segments": count, "continuations": continuations, "skip_template": skip_template}
        records = Records(out / "segments.jsonl", {"weights": lab.weights, **options})
        left = sum(p.id not in records for p in found)
        rollouts = left * continuations * (1 + count + FOREIGN)
        confirm(f"{left} problems: {rollouts:,} responses, at most {rollouts * max_tokens:,} tokens", yes)
        sample_segments(lab, found, records, segments=count, continuations=continuations, tell=_tell)
    result = summary([records[p.id] for p in found])
    typer.echo(table(result))
    settings = {"name": short_name(model), "problems": problems, **options}
    _wrote([write_json(out / "analysis-segments.json", {"settings": settings, **result})])


@analyze.command("implicit-advantage")
def implicit_advantage(
    run: Annotated[
        list[str],
        typer.Option(metavar="NAME=MODEL", help="A method: its model, or a sample file of skpo eval. At least two."),
    ],
    problems: Problems = None,
    evaluator: Annotated[
        str | None, typer.Option(metavar="MODEL", help="Local model that continues raw prefixes.")
    ] = None,
    endpoint: Annotated[
        str | None, typer.Option(metavar="URL", help="In its place: an OpenAI-compatible endpoint, up to /v1.")
    ] = None,
    endpoint_model: Annotated[str, typer.Option(metavar="NAME", help="Model to ask for there.")] = "",
    key: Annotated[str, typer.Option(metavar="VARIABLE", help="Environment variable with its key.")] = "OPENAI_API_KEY",
    concurrency: Annotated[int, typer.Option(min=1, help="Requests at a time.")] = 4,
    limit: Limit = None,
    positions: Annotated[int, typer.Option(min=1, help="Segments that a response is cut into.")] = 100,
    continuations: Annotated[int, typer.Option(min=1, help="Continuations from each cut.")] = 8,
    samples: Annotated[int, typer.Option(min=1, help="Responses per method and problem, to find correct ones.")] = 4,
    responses: Annotated[int, typer.Option(min=1, help="Correct responses kept per method and problem.")] = 1,
    verifier: VerifierName = "math",
    max_tokens: MaxTokens = 1024,
    temperature: Temperature = 1.0,
    seed: Annotated[int, typer.Option(help="Seed of everything drawn.")] = 0,
    yes: Yes = False,
    out: Out = Path("runs/analysis"),
) -> None:
    """Where along correct responses of several methods the advantage is made.

    [bold]skpo analyze implicit-advantage --run grpo=runs/grpo --run skpo=runs/skpo --problems builtin:chain --evaluator builtin:chain-base[/bold]

    [bold]skpo analyze implicit-advantage --run a=a.jsonl --run b=b.jsonl --problems aime24 --endpoint URL --endpoint-model NAME[/bold]

    Writes analysis-implicit.png, .csv and .json into --out. The same command goes on where it was stopped.
    """
    from skpo.analysis.implicit import rows_of, segment_ends
    from skpo.analysis.implicit_figure import implicit_figure, parts_of
    from skpo.analysis.implicit_run import Study, parse_runs, responses_of, with_endpoint, with_model
    from skpo.analysis.lab import problems_of

    if (evaluator is None) == (endpoint is None):
        raise ConfigError("give one evaluator: --evaluator MODEL, or --endpoint URL")
    runs, ends = parse_runs(run), segment_ends(positions)
    study = Study(problems_of(_needed(problems), limit, verifier), ends, continuations, samples, responses, verifier)
    options: dict[str, Any] = {"verifier": verifier, "max_tokens": max_tokens, "temperature": temperature, "seed": seed}
    found = responses_of(study, runs, out, options, _tell)
    if evaluator is not None:
        rates = with_model(study, found, evaluator, out, options, lambda cost: confirm(cost, yes), _tell)
    else:
        from skpo.analysis.endpoint import Endpoint

        asked = Endpoint(str(endpoint), endpoint_model, key, temperature, max_tokens, concurrency)
        rates = with_endpoint(study, found, asked, out, lambda cost: confirm(cost, yes), _tell)
    settings = {
        "evaluator": short_name(evaluator) if evaluator else endpoint_model or endpoint, "methods": list(runs),
        "problems": problems, "positions": positions, "k": continuations, "samples": samples, **options,
    }  # fmt: skip
    rows = rows_of(rates, list(runs), ends, seed=seed)
    _wrote(implicit_figure(out, rows, parts_of(rates, list(runs), ends, seed), settings))


def _along_trajectories(
    model: str, sources: list[str], limit: int | None, out: Path, yes: bool, options: dict[str, Any], lab_options: dict[str, Any]
) -> None:  # fmt: skip
    """Figures 1, 7 and 8."""
    from skpo.analysis.lab import Records, open_lab, problems_of
    from skpo.analysis.tokens import curves, expected_tokens, grid, sample_groups, sample_values
    from skpo.analysis.tokens_figures import token_figures

    found = problems_of(sources, limit, lab_options["verifier"])
    points, true = grid(options["positions"]), options["true"]
    with open_lab(model, found, **lab_options) as lab:
        kept = {"weights": lab.weights, "group": options["group"], **lab_options}
        records = Records(out / "mc-noise.jsonl", kept)
        groups = sample_groups(lab, found, records, group=options["group"], per_class=options["per_class"], tell=_tell)
        tokens = expected_tokens(groups, points, true)
        confirm(f"{len(groups)} groups, {true} continuations of each prefix: about {tokens:,} tokens to generate", yes)
        sample_values(lab, groups, records, positions=points, true=true, tell=_tell)
    rows = curves(groups, records, positions=points, true=true, seed=options["seed"])
    settings = {"name": short_name(model), "problems": sources, **options, **lab_options, "tokens": _spent(records)}
    _wrote(token_figures(out, rows, settings, options["group"]))


def _spent(records: Any) -> int:
    """Tokens that the continuations took."""
    return sum(value[1] for key, value in records.found.items() if key.startswith("state"))


def short_name(model: str) -> str:
    """A model's name for a figure: the run folder of a checkpoint, else the last part of its path."""
    parts = Path(model).parts
    return parts[parts.index("checkpoints") - 1] if "checkpoints" in parts[1:] else parts[-1].removeprefix("builtin:")


def confirm(cost: str, yes: bool) -> None:
    """Show what it will cost; on a terminal, without --yes, ask first."""
    import sys

    _tell(cost)
    if not yes and sys.stdin.isatty():
        typer.confirm("Go on?", abort=True, err=True)


def _needed(problems: list[str] | None) -> list[str]:
    if not problems:
        raise ConfigError("--problems is missing: a file.jsonl, hf:NAME, gym:TASK or builtin:chain")
    return problems


def _tell(text: str) -> None:
    typer.echo(text, err=True)


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
