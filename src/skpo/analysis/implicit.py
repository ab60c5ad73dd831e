"""Where along a correct response its advantage is made (SKPO, arXiv 2604.08690, figure 4, section 4.3, appendix D).

Correct responses of several methods to the same problems are cut at relative positions; from each cut an evaluator makes K
continuations, and R(method, position, problem) is the share of correct ones (responses of one method to one problem are averaged
first [ours]; at the end R is 1 without asking). At each position and problem A(method) = (R - mean) / sd over the methods, with the
population deviation [ours], 0 where all are equal; averaged over problems, with bootstrap intervals over problems.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from skpo.analysis.endpoint import Asked, Endpoint
from skpo.analysis.lab import Lab, Records, Told, digest
from skpo.analysis.tokens import continue_plan, cut
from skpo.errors import ConfigError, ProblemError
from skpo.problems.base import Problem
from skpo.rollout.plans import group_plan
from skpo.rollout.types import Plan

if TYPE_CHECKING:
    from skpo.verifiers.pool import VerifierPool

Responses = dict[str, dict[str, list[str]]]
"""Method -> problem id -> texts of its correct responses."""
EQUAL = 1e-12  #: rates that differ by no more are equal; the smallest true difference is far larger


@dataclass(frozen=True)
class Piece:
    """The beginning of a response: token ids for a local model, text for an endpoint. Pieces of one problem with one state are equal."""

    id: str
    state: tuple[int, ...] | str
    problem: Problem = field(compare=False)

    def key(self, k: int) -> str:
        return f"piece {digest(self.id, self.state, k)}"


def segment_ends(count: int) -> list[float]:
    """Relative ends of `count` equal segments: 1 / count ... 1. Raises ConfigError for none."""
    if count < 1:
        raise ConfigError(f"positions {count}: at least 1 is needed")
    return [(i + 1) / count for i in range(count)]


def relative_advantage(rates: np.ndarray) -> np.ndarray:
    """(R - mean) / sd over the first axis, the methods; population deviation, 0 where all are equal. Any shape, float64."""
    centred, deviation = rates - rates.mean(0), rates.std(0)
    equal = rates.max(0) - rates.min(0) <= EQUAL
    return np.where(equal, 0.0, centred / np.where(equal, 1.0, deviation))


# --- responses --------------------------------------------------------------------------------------------------------


def sample_responses(lab: Lab, name: str, problems: Sequence[Problem], records: Records, n: int, most: int) -> dict[str, list[str]]:  # fmt: skip
    """Sample `n` responses of one method to every problem; texts of the first `most` correct ones."""
    key = {p.id: f"responses {digest(name, lab.weights, p.id, n)}" for p in problems}
    by_key = {key[p.id]: p for p in problems}
    plans = {k: group_plan(p, lab.context(n, p.id), n) for k, p in by_key.items() if k not in records}
    for found, group in lab.run(plans):
        records.add(found, [s.text for s in group.samples if s.correct])
    return {p.id: records[key[p.id]][:most] for p in problems}


def read_responses(path: Path, problems: Sequence[Problem], most: int) -> dict[str, list[str]]:
    """Correct responses in a sample file of `skpo eval --out`. Raises ProblemError for a line that is none."""
    known, found = {p.id for p in problems}, dict[str, list[str]]()
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), start=1):
        try:
            row = json.loads(line)
            texts = [s["text"] for s in row["samples"] if s["score"] is not None and s["score"] >= 1 - 1e-9]
            if row["id"] in known:
                found[row["id"]] = texts[:most]
        except (ValueError, KeyError, TypeError):
            raise ProblemError(f"{path}:{number}: no line of `skpo eval --out` (id, samples with text and score)") from None  # fmt: skip
    return found


def shared_problems(problems: Sequence[Problem], responses: Responses) -> list[Problem]:
    """Problems that every method solved at least once. Raises ConfigError where there are none, or only one method."""
    if len(responses) < 2:
        raise ConfigError("implicit advantage compares methods: give --run NAME=MODEL at least twice")
    kept = [p for p in problems if all(found.get(p.id) for found in responses.values())]
    if not kept:
        solved = {name: sum(bool(v) for v in found.values()) for name, found in responses.items()}
        raise ConfigError(f"no problem that every method solved; solved by each: {solved}")
    return kept


# --- pieces -----------------------------------------------------------------------------------------------------------


def pieces_of(problem: Problem, text: str, positions: Sequence[float], encode: Callable[[str], Sequence[int]] | None) -> list[Piece | None]:  # fmt: skip
    """The beginning of a response at every position, by tokens of `encode` or else by characters; None: the whole response."""
    units = text if encode is None else tuple(encode(text))
    ends = [cut(len(units), p) if p < 1 else len(units) for p in positions]
    return [None if end == len(units) and p >= 1 else Piece(problem.id, units[:end], problem) for end, p in zip(ends, positions, strict=True)]  # fmt: skip


def distinct(pieces: Iterable[Piece | None], records: Records, k: int) -> list[Piece]:
    """Pieces that are not known yet, each once: methods that wrote the same beginning share its continuations."""
    return [p for p in dict.fromkeys(x for x in pieces if x is not None) if p.key(k) not in records]


def ask_model(lab: Lab, pieces: Sequence[Piece], records: Records, k: int, tell: Told) -> None:
    """Continue pieces with a local model, in one continuous batch; a record: [correct, continuations, tokens]."""
    plans: dict[str, Plan] = {
        p.key(k): continue_plan(p.problem, lab, p.state, k) for p in pieces if not isinstance(p.state, str)
    }
    for done, (key, group) in enumerate(lab.run(plans), start=1):
        records.add(key, [sum(s.correct for s in group.samples), len(group.samples), group.generated_tokens])
        if done % 500 == 0 or done == len(plans):
            tell(f"{done} of {len(plans)} pieces")


def ask_endpoint(
    endpoint: Endpoint, pool: VerifierPool, verifier: str, pieces: Sequence[Piece], records: Records, k: int, tell: Told
) -> None:
    """Continue pieces through an endpoint. Answers are kept one by one, so that a stopped run pays for none twice.

    A piece with a failed continuation is judged by the others, and asked again for the missing ones next time.
    """
    asked = {p: [Asked(p.problem.text, str(p.state), i) for i in range(k)] for p in pieces}
    wanted = [a for each in asked.values() for a in each if endpoint.hash(a) not in records]
    done = 0

    def keep(one: Asked, text: str, tokens: int) -> None:
        nonlocal done
        records.add(endpoint.hash(one), [text, tokens])
        done += 1
        if done % 100 == 0:
            tell(f"{done} of {len(wanted)} requests")

    failures = endpoint.ask_all(wanted, keep)
    for piece, each in asked.items():
        kept = [records[h] for a in each if (h := endpoint.hash(a)) in records]
        right = judge(pool, verifier, piece, [text for text, _ in kept])
        records.found[piece.key(k)] = [right, len(kept), sum(tokens for _, tokens in kept)]
    if failures:
        tell(f"{len(failures)} of {len(wanted)} requests failed ({failures[0]}); the same command asks for them again")


def judge(pool: VerifierPool, verifier: str, piece: Piece, texts: Sequence[str]) -> int:
    """How many continuations make a correct response out of a piece."""
    from skpo.verifiers.pool import Job

    problem = piece.problem
    jobs = [
        Job(problem.verifier or verifier, f"{piece.state}{t}", problem.answer, dict(problem.columns), problem.prompt)
        for t in texts
    ]
    return sum((v.score or 0.0) >= 1 - 1e-9 for v in pool.score_all(jobs))


# --- result -----------------------------------------------------------------------------------------------------------


def rates_of(pieces: Mapping[tuple[str, str], list[list[Piece | None]]], methods: Sequence[str], ids: Sequence[str], records: Records, k: int) -> np.ndarray:  # fmt: skip
    """R, float64 [methods, problems, positions]; nan where a piece has no continuation at all."""

    def rate(piece: Piece | None) -> float:
        if piece is None:
            return 1.0
        right, made, *_ = records[piece.key(k)]
        return right / made if made else float("nan")

    table = [[np.mean([[rate(p) for p in one] for one in pieces[m, i]], axis=0) for i in ids] for m in methods]
    return np.array(table, dtype=np.float64)


def rows_of(rates: np.ndarray, methods: Sequence[str], positions: Sequence[float], *, resamples: int = 2000, seed: int = 0) -> list[dict[str, Any]]:  # fmt: skip
    """A row per method and position: mean R and relative advantage, with 95 % bootstrap intervals over problems.

    A problem without a rate of every method at a position is left out there.
    """
    from skpo.evaluation.statistics import bootstrap_interval

    rows = []
    for j, position in enumerate(positions):
        whole = ~np.isnan(rates[:, :, j]).any(0)
        values = relative_advantage(rates[:, whole, j]) if whole.any() else np.empty((len(methods), 0))
        for m, name in enumerate(methods):
            own, low, high = values[m], *bootstrap_interval(values[m].tolist(), resamples=resamples, seed=seed)
            rows.append({
                "method": name, "position": position, "problems": int(whole.sum()),
                "reward": float(rates[m, whole, j].mean()) if len(own) else None,
                "advantage": float(own.mean()) if len(own) else None,
                "low": low if len(own) else None, "high": high if len(own) else None,
                "nonzero": float((own != 0).mean()) if len(own) else None,
            })  # fmt: skip
    return rows
