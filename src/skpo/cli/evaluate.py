"""`skpo eval`: mean@k, pass@k and maj@k of a model on problem sources."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from skpo.errors import ConfigError

if TYPE_CHECKING:
    from skpo.evaluation import Suite

DEFAULT_KS = "1,8,32"
DEFAULT_SAMPLES = 32


def evaluate(
    model: Annotated[str, typer.Argument(metavar="MODEL", help="A folder, a hub name, a .gguf file or builtin:NAME.")],
    problems: Annotated[
        list[str],
        typer.Option(
            metavar="SOURCE",
            help="file.jsonl, file.parquet, hf:NAME, gym:TASK, builtin:chain?steps=10, or a benchmark: aime24, "
            "aime24=file.jsonl. Give it again for several in one table.",
        ),
    ],
    samples: Annotated[
        int | None, typer.Option(min=1, help="Samples per problem. [default: the benchmark's, else 32]")
    ] = None,
    k: Annotated[
        str, typer.Option(metavar="K,K,...", help="Report pass@k and maj@k for these; none above the samples.")
    ] = DEFAULT_KS,
    verifier: Annotated[str, typer.Option(help="Verifier of problems that name none.")] = "math",
    temperature: Annotated[float, typer.Option(min=0.0, help="Sampling temperature; 0 is greedy.")] = 1.0,
    top_p: Annotated[float, typer.Option(min=0.0, max=1.0, help="Nucleus sampling; 1 switches it off.")] = 1.0,
    max_tokens: Annotated[int, typer.Option(min=1, help="Budget of a sample, in tokens.")] = 1024,
    limit: Annotated[int | None, typer.Option(min=1, help="Use at most this many problems of each source.")] = None,
    seed: Annotated[int, typer.Option(help="Seed of the samples.")] = 0,
    out: Annotated[
        Path | None,
        typer.Option(metavar="FOLDER", help="Keep every sample here; the same command goes on where it was stopped."),
    ] = None,
    deadline: Annotated[
        float | None,
        typer.Option(min=0.1, help="Seconds an answer may take to verify. [default: the benchmark's, else 2]"),
    ] = None,
    workers: Annotated[int, typer.Option(min=1, help="Processes that verify answers.")] = 1,
    unsafe_code: Annotated[
        bool, typer.Option("--unsafe-code", help="Run generated programs even where the kernel can't isolate them.")
    ] = False,
    prompt_key: Annotated[str, typer.Option(help="Column that holds the prompt.")] = "prompt",
    answer_key: Annotated[str, typer.Option(help="Column that holds the gold answer; dots reach inside.")] = "answer",
    json_file: Annotated[
        Path | None, typer.Option("--json", metavar="FILE", help="Also write the result here.")
    ] = None,
) -> None:
    """Measure a model on problem sources: mean@k, unbiased pass@k and maj@k, with 95 % bootstrap intervals over problems.

    [bold]skpo eval builtin:chain-base --problems "builtin:chain?split=heldout" --verifier exact --max-tokens 128[/bold]

    [bold]skpo eval MODEL --problems humaneval --problems math500=math500.jsonl --out runs/eval[/bold]
    """
    sizes = [sample_count(source, samples) for source in problems]
    ks = parse_ks(k, max(sizes))
    from rich.console import Console

    options: dict[str, Any] = {
        "ks": ks, "verifier": verifier, "temperature": temperature, "top_p": top_p, "max_tokens": max_tokens,
        "limit": limit, "seed": seed, "workers": workers, "deadline": deadline, "unsafe_code": unsafe_code,
        "prompt_key": prompt_key, "answer_key": answer_key,
    }  # fmt: skip
    suite = _run(model, problems, samples, out, options)
    Console().print(suite.table())
    if json_file is not None:
        json_file.parent.mkdir(parents=True, exist_ok=True)
        json_file.write_text(json.dumps(suite.to_dict(), indent=2, default=str) + "\n", encoding="utf-8")


def _run(model: str, sources: list[str], samples: int | None, out: Path | None, options: dict[str, Any]) -> Suite:
    """Evaluate, with a bar for each source on a terminal."""
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeRemainingColumn

    from skpo.evaluation import evaluate_all

    console = Console(stderr=True)
    columns = TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn()
    with Progress(*columns, console=console, disable=not console.is_terminal, transient=True) as bars:
        known: dict[str, TaskID] = {}

        def progress(name: str, done: int, total: int) -> None:
            if name not in known:
                known[name] = bars.add_task(name, total=total)
            bars.update(known[name], completed=done)

        return evaluate_all(
            model, sources, samples=samples, default_samples=DEFAULT_SAMPLES, out=out, progress=progress, **options
        )


def sample_count(source: str, samples: int | None) -> int:
    """Samples per problem: what was asked for, else the benchmark's number, else 32."""
    if samples is not None:
        return samples
    from skpo.problems.benchmarks import parse

    found = parse(source)
    return found[0].samples if found else DEFAULT_SAMPLES


def parse_ks(text: str, samples: int) -> tuple[int, ...]:
    """`1,8,32` as ascending numbers; those above `samples` are an error, except in the default list.

    `samples`: the most of any source; a source with fewer leaves the larger ones out.
    """
    try:
        ks = sorted({int(word) for word in text.split(",")})
    except ValueError:
        raise ConfigError(
            f"--k {text}: expected whole numbers with commas between them, for example --k 1,8,32"
        ) from None
    if text == DEFAULT_KS:
        ks = [k for k in ks if k <= samples]
    if ks[0] < 1 or ks[-1] > samples:
        raise ConfigError(
            f"--k {text}: pass@k needs 1 <= k <= {samples} samples per problem; raise --samples or lower k"
        )
    return tuple(ks)
