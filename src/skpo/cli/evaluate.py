"""`skpo eval`: pass@k of a model on a problem source."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from skpo.errors import ConfigError


def evaluate(
    model: Annotated[str, typer.Argument(metavar="MODEL", help="A folder, a hub name, a .gguf file or builtin:NAME.")],
    problems: Annotated[
        str, typer.Option(metavar="SOURCE", help="file.jsonl, file.parquet, hf:NAME, gym:TASK, builtin:chain?steps=10")
    ],
    samples: Annotated[int, typer.Option(min=1, help="Samples per problem.")] = 32,
    k: Annotated[
        str, typer.Option(metavar="K,K,...", help="Report pass@k for these; none above --samples.")
    ] = "1,8,32",
    verifier: Annotated[str, typer.Option(help="Verifier of problems that name none.")] = "math",
    temperature: Annotated[float, typer.Option(min=0.0, help="Sampling temperature; 0 is greedy.")] = 1.0,
    max_tokens: Annotated[int, typer.Option(min=1, help="Budget of a sample, in tokens.")] = 1024,
    limit: Annotated[int | None, typer.Option(min=1, help="Use at most this many problems.")] = None,
    prompt_key: Annotated[str, typer.Option(help="Column that holds the prompt.")] = "prompt",
    answer_key: Annotated[str, typer.Option(help="Column that holds the gold answer; dots reach inside.")] = "answer",
    json_file: Annotated[
        Path | None, typer.Option("--json", metavar="FILE", help="Also write the result here.")
    ] = None,
) -> None:
    """Measure a model's pass@k on a problem source.

    [bold]skpo eval builtin:chain-base --problems "builtin:chain?split=heldout" --verifier exact --max-tokens 128[/bold]
    """
    ks = parse_ks(k, samples)
    from rich.console import Console

    from skpo.evaluate import evaluate as run

    result = run(
        model=model,
        problems=problems,
        samples=samples,
        ks=ks,
        verifier=verifier,
        temperature=temperature,
        max_tokens=max_tokens,
        limit=limit,
        prompt_key=prompt_key,
        answer_key=answer_key,
    )
    Console().print(result.table())
    if json_file is not None:
        json_file.parent.mkdir(parents=True, exist_ok=True)
        json_file.write_text(json.dumps(result.to_dict(), indent=2) + "\n", encoding="utf-8")


def parse_ks(text: str, samples: int) -> tuple[int, ...]:
    """`1,8,32` as ascending numbers; those above `samples` are an error, except in the default list."""
    try:
        ks = sorted({int(word) for word in text.split(",")})
    except ValueError:
        raise ConfigError(
            f"--k {text}: expected whole numbers with commas between them, for example --k 1,8,32"
        ) from None
    if text == "1,8,32":
        ks = [k for k in ks if k <= samples]
    if ks[0] < 1 or ks[-1] > samples:
        raise ConfigError(
            f"--k {text}: pass@k needs 1 <= k <= {samples} samples per problem; raise --samples or lower k"
        )
    return tuple(ks)
