"""Sign noise along real trajectories (SKPO, arXiv 2604.08690, figures 1, 7 and 8; appendix A).

G trajectories of a problem make a group. At a relative position t, R*(i, t) is the success rate of continuations from the
first t tokens of trajectory i, here the mean of `true` sampled ones. Trajectories that pass through the same state share its
continuations, so that equal states have equal values. Given R*, the count that K continuations would give is a binomial draw;
accuracy, error and win rate of A_K are means over such draws [ours], against A* from R*. At the end R* is the outcome.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from skpo.analysis.lab import Lab, Records, Told, digest
from skpo.analysis.signs import normalised
from skpo.errors import ConfigError
from skpo.problems.base import Problem
from skpo.rollout.plans import group_plan
from skpo.rollout.types import Group, Plan, Request

KS = (8, 32, 128, 512, 2048, 8192)
BATCH = 64  #: problems whose groups are sampled at a time


@dataclass(frozen=True)
class Trajectories:
    """One problem's group. tokens: response ids of each trajectory, without the end-of-sequence; outcomes: 0 or 1 each."""

    problem: Problem
    tokens: tuple[tuple[int, ...], ...]
    outcomes: tuple[int, ...]

    @property
    def correct(self) -> int:
        return sum(self.outcomes)


def grid(points: int) -> list[float]:
    """`points` relative positions from 0 to 1, both included. Raises ConfigError for fewer than 2."""
    if points < 2:
        raise ConfigError(f"positions {points}: at least 2 are needed, the start and the end")
    return [i / (points - 1) for i in range(points)]


def cut(length: int, position: float) -> int:
    """Tokens before a relative position: position times length, halves rounded up."""
    return min(length, math.floor(position * length + 0.5))


def sample_groups(
    lab: Lab, problems: Sequence[Problem], records: Records, *, group: int, per_class: int, tell: Told
) -> list[Trajectories]:
    """Groups in the problems' order, at most `per_class` of each number correct; stops when every number has its groups."""
    kept: list[Trajectories] = []
    for start in range(0, len(problems), BATCH):
        some = problems[start : start + BATCH]
        todo = {
            f"group {p.id}": group_plan(p, lab.context(group, p.id)) for p in some if f"group {p.id}" not in records
        }
        for key, found in lab.run(todo):
            rows = [[_response(s.tokens.tolist(), s.finished), int(s.correct)] for s in found.samples]
            records.add(key, rows)
        for problem in some:
            rows = records[f"group {problem.id}"]
            made = Trajectories(problem, tuple(tuple(r[0]) for r in rows), tuple(r[1] for r in rows))
            if sum(g.correct == made.correct for g in kept) < per_class:
                kept.append(made)
        if len(kept) == per_class * (group + 1):
            break
    counts = {c: sum(g.correct == c for g in kept) for c in range(group + 1)}
    tell("groups by number correct: " + ", ".join(f"{c}/{group}: {n}" for c, n in counts.items()))
    return sorted(kept, key=lambda g: g.correct)


def _response(tokens: list[int], finished: bool) -> list[int]:
    return tokens[:-1] if finished else tokens


def states(group: Trajectories, positions: Sequence[float]) -> list[tuple[int, ...]]:
    """Distinct states that are continued: all cuts of all trajectories but the ends, which have their outcome."""
    cuts = (t[: cut(len(t), p)] for t in group.tokens for p in positions if p < 1)
    return list(dict.fromkeys(cuts))


def expected_tokens(groups: Iterable[Trajectories], positions: Sequence[float], true: int) -> int:
    """Tokens that the continuations will take, if each is as long as what its trajectory had left."""
    total = 0
    for group in groups:
        left: dict[tuple[int, ...], int] = {}
        for tokens in group.tokens:
            for position in positions[:-1]:
                left.setdefault(tokens[: (end := cut(len(tokens), position))], len(tokens) - end + 1)
        total += true * sum(left.values())
    return total


def continue_plan(problem: Problem, lab: Lab, state: tuple[int, ...], n: int) -> Plan:
    """`n` continuations of one state of a response, all verified as the whole response."""
    context = lab.renderer.continual_ids(problem, state)
    room = lab.room(context, len(state))
    samples = (yield Request(context, n, room, lab.sampling)) if room > 0 else []
    for sample in samples:
        sample.prefix = state
    return Group(problem, samples)


def state_key(problem: Problem, state: Sequence[int], n: int) -> str:
    return f"state {digest(problem.id, list(state), n)}"


def sample_values(
    lab: Lab, groups: Sequence[Trajectories], records: Records, *, positions: Sequence[float], true: int, tell: Told
) -> None:
    """Continue every state that `records` doesn't hold, in one continuous batch; a record: [correct, tokens]."""
    plans: dict[str, Plan] = {}
    for group in groups:
        for state in states(group, positions):
            key = state_key(group.problem, state, true)
            if key not in records:
                plans[key] = continue_plan(group.problem, lab, state, true)
    for done, (key, found) in enumerate(lab.run(plans), start=1):
        records.add(key, [sum(s.correct for s in found.samples), found.generated_tokens])
        if done % 200 == 0:
            tell(f"{done} of {len(plans)} states")


def counts_of(group: Trajectories, records: Records, positions: Sequence[float], true: int) -> np.ndarray:
    """Correct continuations of `true`, int64 [positions, G]; at the end the outcome times `true`."""
    rows = []
    for position in positions:
        row = []
        for tokens, outcome in zip(group.tokens, group.outcomes, strict=True):
            state = tokens[: cut(len(tokens), position)]
            row.append(outcome * true if position >= 1 else records[state_key(group.problem, state, true)][0])
        rows.append(row)
    return np.array(rows, dtype=np.int64)


def measure(
    counts: np.ndarray, outcomes: Sequence[int], true: int, k: int, repetitions: int, rng: np.random.Generator
) -> Mapping[str, np.ndarray]:
    """One group's curves, each float64 [positions].

    counts [positions, G]: correct of `true` continuations. mc_*: K continuations per prefix, mean over `repetitions` draws;
    outcome_*: the outcome advantage. win: share of trajectories (a tie counts half) where the former is nearer to A*.
    *_sure: accuracy over the advantages that lie more than two standard errors of R* from 0; nan where there is none.
    """
    rates = counts / true
    size = counts.shape[1]
    signs = np.sign(size * counts - counts.sum(1, keepdims=True))
    truth, outcome = normalised(rates), np.broadcast_to(normalised(np.array(outcomes, dtype=np.float64)), counts.shape)
    drawn = rng.binomial(k, rates, size=(repetitions, *counts.shape))
    right = (np.sign(size * drawn - drawn.sum(-1, keepdims=True)) == signs).mean(0)
    error = np.abs(normalised(drawn / k) - truth)
    distance = np.abs(outcome - truth)
    win = np.where(np.isclose(error, distance, rtol=0, atol=1e-12), 0.5, error < distance).mean(0)
    sure = resolved(counts, true)
    by_outcome = np.sign(size * np.array(outcomes) - sum(outcomes)) == signs
    return {
        "mc_accuracy": right.mean(1),
        "mc_mae": error.mean((0, 2)),
        "win": win.mean(1),
        "outcome_accuracy": by_outcome.mean(1),
        "outcome_mae": distance.mean(1),
        "mc_accuracy_sure": _mean_where(right, sure),
        "outcome_accuracy_sure": _mean_where(by_outcome, sure),
        "sure": sure.mean(1),
        "zero": (signs == 0).mean(1),
    }


def resolved(counts: np.ndarray, true: int) -> np.ndarray:
    """Where R* - mean is more than two of its standard errors from 0: bool [positions, G].

    The rates are smoothed to (c + 1) / (n + 2) for the error; prefixes count as independent.
    """
    size = counts.shape[1]
    smooth = (counts + 1) / (true + 2)
    variance = smooth * (1 - smooth) / true
    spread = variance * (1 - 2 / size) + variance.sum(1, keepdims=True) / size**2
    difference = (counts - counts.mean(1, keepdims=True)) / true
    return np.asarray(np.abs(difference) > 2 * np.sqrt(spread))


def _mean_where(values: np.ndarray, mask: np.ndarray) -> np.ndarray:
    """Row means of the values under a mask; nan for a row without any."""
    number = mask.sum(1)
    return np.where(number > 0, (values * mask).sum(1) / np.maximum(number, 1), np.nan)


def curves(
    groups: Sequence[Trajectories], records: Records, *, positions: Sequence[float], true: int,
    ks: Sequence[int] = KS, repetitions: int = 200, seed: int = 0,
) -> list[dict[str, Any]]:  # fmt: skip
    """A row per group, K and position, with what `measure` gives, mean R* of the group and its standard error."""
    rows = []
    for group in groups:
        counts = counts_of(group, records, positions, true)
        rates = counts / true
        errors = np.sqrt(rates * (1 - rates) / true)
        for k in ks:
            rng = np.random.default_rng([seed, k, int(group.problem.id[:8], 16) if _hex(group.problem.id) else 0])
            found = measure(counts, group.outcomes, true, k, repetitions, rng)
            for j, position in enumerate(positions):
                rows.append({
                    "problem": group.problem.id, "correct": group.correct, "k": k, "position": position,
                    "reward": float(rates[j].mean()), "reward_stderr": float(errors[j].mean()),
                    **{name: None if np.isnan(v[j]) else float(v[j]) for name, v in found.items()},
                })  # fmt: skip
    return rows


def _hex(text: str) -> bool:
    return len(text) >= 8 and all(c in "0123456789abcdef" for c in text[:8])
