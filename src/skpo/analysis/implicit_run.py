"""The implicit-advantage analysis from sources to rates: responses, cost, evaluator. What is known is never asked again."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from skpo.analysis.endpoint import Asked, Endpoint
from skpo.analysis.implicit import (
    Piece,
    Responses,
    ask_endpoint,
    ask_model,
    distinct,
    pieces_of,
    rates_of,
    read_responses,
    sample_responses,
    shared_problems,
)
from skpo.analysis.lab import Lab, Records, Told, open_lab
from skpo.errors import ConfigError
from skpo.problems.base import Problem


@dataclass(frozen=True)
class Study:
    """What is measured. k: continuations of a piece. samples: responses per method and problem. most: correct ones kept."""

    problems: Sequence[Problem]
    positions: Sequence[float]
    k: int = 8
    samples: int = 4
    most: int = 1
    verifier: str = "math"


Pieces = dict[tuple[str, str], list[list[Piece | None]]]


def parse_runs(words: Sequence[str]) -> dict[str, str]:
    """`NAME=MODEL` words as a mapping. Raises ConfigError for anything else, and for a name given twice."""
    found: dict[str, str] = {}
    for word in words:
        name, equals, model = word.partition("=")
        if not equals or not name or not model:
            raise ConfigError(f"--run {word}: expected NAME=MODEL or NAME=samples.jsonl")
        if name in found:
            raise ConfigError(f"--run {word}: there are two runs called {name}")
        found[name] = model
    return found


def responses_of(study: Study, runs: dict[str, str], out: Path, lab_options: dict[str, Any], tell: Told) -> Responses:
    """Correct responses of every run: from its sample file, or sampled from its model."""
    found: Responses = {}
    for name, model in runs.items():
        if model.endswith(".jsonl"):
            found[name] = read_responses(Path(model), study.problems, study.most)
        else:
            with open_lab(model, study.problems, **lab_options) as lab:
                records = Records(out / "responses.jsonl", lab_options)
                found[name] = sample_responses(lab, name, study.problems, records, study.samples, study.most)
        tell(f"{name}: solved {sum(bool(v) for v in found[name].values())} of {len(study.problems)} problems")
    return found


def with_model(
    study: Study, responses: Responses, model: str, out: Path, lab_options: dict[str, Any], confirm: Told, tell: Told
) -> np.ndarray:
    """Rates [methods, problems, positions] by true prefix continuation of a local model."""
    problems = shared_problems(study.problems, responses)
    with open_lab(model, problems, **lab_options) as lab:
        pieces = _pieces(study, problems, responses, lab.renderer.encode)
        records = Records(out / "implicit.jsonl", {"weights": lab.weights, **lab_options})
        todo = distinct(_flat(pieces), records, study.k)
        confirm(f"{len(todo):,} pieces x {study.k}: {len(todo) * study.k:,} continuations, about {_cost(study, todo, responses, lab):,} tokens")  # fmt: skip
        ask_model(lab, todo, records, study.k, tell)
    return rates_of(pieces, list(responses), [p.id for p in problems], records, study.k)


def with_endpoint(
    study: Study, responses: Responses, endpoint: Endpoint, out: Path, confirm: Told, tell: Told
) -> np.ndarray:
    """Rates [methods, problems, positions] by instruction; comparative only (appendix D)."""
    from skpo.verifiers.pool import VerifierPool

    problems = shared_problems(study.problems, responses)
    pieces = _pieces(study, problems, responses, None)
    records = Records(out / "endpoint.jsonl")
    todo = distinct(_flat(pieces), records, study.k)
    asked = [Asked(p.problem.text, str(p.state), i) for p in todo for i in range(study.k)]
    new = sum(endpoint.hash(a) not in records for a in asked)
    longest = sum(len(a.problem) + len(a.partial) for a in asked)
    confirm(
        f"{new:,} of {len(asked):,} requests to {endpoint.url} ({endpoint.model}): at most {new * endpoint.max_tokens:,} tokens "
        f"to generate, about {longest // 4 + 60 * len(asked):,} to read"
    )
    with VerifierPool() as pool:
        pool.require({p.verifier or study.verifier for p in problems})
        ask_endpoint(endpoint, pool, study.verifier, todo, records, study.k, tell)
    tell(f"{endpoint.retried} retries")
    return rates_of(pieces, list(responses), [p.id for p in problems], records, study.k)


def _pieces(
    study: Study, problems: Sequence[Problem], responses: Responses, encode: Callable[[str], Sequence[int]] | None
) -> Pieces:
    return {
        (name, p.id): [pieces_of(p, text, study.positions, encode) for text in found[p.id]]
        for name, found in responses.items()
        for p in problems
    }


def _flat(pieces: Pieces) -> list[Piece | None]:
    return [piece for group in pieces.values() for one in group for piece in one]


def _cost(study: Study, todo: Sequence[Piece], responses: Responses, lab: Lab) -> int:
    """Tokens to generate, if continuations are as long as what the responses had left on average."""
    longest = {
        p.id: max(len(lab.renderer.encode(text)) for found in responses.values() for text in found.get(p.id) or [""])
        for p in study.problems
    }
    return study.k * sum(max(1, longest[p.problem.id] - len(p.state) + 1) for p in todo)
