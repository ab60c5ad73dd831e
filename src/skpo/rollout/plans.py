"""Rollout plans: what an algorithm samples from one problem, written as plain Python generators."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal, Protocol

import numpy as np

from skpo.problems.base import Problem
from skpo.rollout.types import SEGMENT, Group, Plan, Request, Sample, Sampling

TIE = 1e-9  #: two distances to the median closer than this are a tie; the lower index wins


class Renderer(Protocol):
    """Turns problems into token ids; `skpo.policy.prompts.PromptRenderer` is the real one."""

    def prompt_ids(self, problem: Problem) -> tuple[int, ...]: ...
    def skip_ids(self, problem: Problem, segment_ids: Sequence[int]) -> tuple[int, ...]: ...
    def continual_ids(self, problem: Problem, segment_ids: Sequence[int]) -> tuple[int, ...]: ...


@dataclass
class PlanContext:
    """What every plan is given. `rng` is seeded by (seed, step, problem): a plan's own draws never depend on other problems."""

    renderer: Renderer
    group_size: int
    max_tokens: int
    sampling: Sampling = Sampling()
    step: int = 0
    rng: np.random.Generator = field(default_factory=lambda: np.random.default_rng(0))


def group_plan(problem: Problem, context: PlanContext, n: int | None = None) -> Plan:
    """`n` (default: the group size) full responses to one problem."""
    prompt = context.renderer.prompt_ids(problem)
    samples = yield Request(prompt, n or context.group_size, context.max_tokens, context.sampling)
    return Group(problem, samples)


def cut_segment(sample: Sample) -> Sample:
    """The part of an early-stopped sample that may serve as a segment (SKPO section 3.1, point 2).

    A sample that ended by itself is cut to half of its own length, at least one token; its end-of-sequence token is
    never part of a segment. A sample that is nothing but end-of-sequence gives an empty segment.
    """
    keep = len(sample)
    if sample.finished:
        own = len(sample) - 1
        keep = min(max(1, own // 2), own)
    cut = Sample(
        sample.context, sample.tokens[:keep], sample.logp[:keep], False, sample.seed, sample.version, role=SEGMENT
    )
    cut.info = {"sampled": len(sample), "ended": sample.finished}
    return cut


def mean_nll(sample: Sample) -> float:
    """d(s) = -(1/|s|) sum_t log pi(s_t | q, s_<t) over the tokens kept; infinite for an empty segment."""
    return float(-sample.logp.astype(np.float64).mean()) if len(sample) else float("inf")


def median_index(values: Sequence[float]) -> int:
    """Index of the value closest to the median of all (mean of the two middle ones where their number is even).

    Distances within 1e-9 of each other tie, and the lower index wins. Infinite values are left out unless all are.
    """
    finite = [v for v in values if np.isfinite(v)]
    if not finite:
        return 0
    distance = [abs(v - float(np.median(finite))) for v in values]
    nearest = min(distance)
    return next(i for i, d in enumerate(distance) if d <= nearest + TIE)


def extreme_index(values: Sequence[float], highest: bool) -> int:
    """Index of the lowest or the highest finite value (ablation "Selection:Extreme")."""
    finite = [i for i, v in enumerate(values) if np.isfinite(v)]
    if not finite:
        return 0
    return (max if highest else min)(finite, key=lambda i: values[i])


def rank(values: Sequence[float], index: int) -> int:
    """Place of values[index] among all, from 0 (lowest); ties count the earlier ones."""
    return sum(v < values[index] or (v == values[index] and i < index) for i, v in enumerate(values))


def draw_stop(length: float, low: float, high: float, rng: np.random.Generator, alternate: int | None = None) -> int:
    """Stop position t_q ~ U[low L_q, high L_q], rounded, at least 1; `alternate` (a step) takes low and high in turn."""
    if alternate is not None:
        return max(1, round((low, high)[alternate % 2] * length))
    return max(1, round(float(rng.uniform(low * length, high * length))))


def skip_plan(
    problem: Problem,
    context: PlanContext,
    *,
    length: float,
    low: float = 1 / 6,
    high: float = 1 / 2,
    skip: bool = True,
    split: Literal["uniform", "alternate"] = "uniform",
    select: Literal["median", "extreme"] = "median",
    budget: Literal["full", "remaining"] = "full",
    own_outcome: bool = False,
) -> Plan:
    """One problem's SKPO rollout (arXiv 2604.08690, section 3.1): G segments, one kept, G completions from [s, q].

    length: this problem's average response length L_q, in tokens. `skip=False` continues q + s as a hard prefix;
    `own_outcome` adds the selected segment's own continuation from q + s, whose outcome rewards the segment ("w/o MC").
    """
    render, n = context.renderer, context.group_size
    stop = min(
        draw_stop(length, low, high, context.rng, context.step if split == "alternate" else None), context.max_tokens
    )
    drafts = yield Request(render.prompt_ids(problem), n, stop, context.sampling)
    cuts = [cut_segment(s) for s in drafts]
    nll = [mean_nll(s) for s in cuts]
    chosen = median_index(nll) if select == "median" else extreme_index(nll, highest=context.step % 2 == 1)
    segment = cuts[chosen]
    unused = [c for i, c in enumerate(cuts) if i != chosen]
    ids = tuple(int(t) for t in segment.tokens)
    room = max(1, context.max_tokens - len(ids)) if budget == "remaining" else context.max_tokens
    info = {"stop_position": stop, "split": stop / length, "mean_nll": nll, "chosen": chosen, "chosen_rank": rank(nll, chosen)}

    hard_prefix = render.continual_ids(problem, ids)
    if own_outcome and skip:
        own = (yield Request(hard_prefix, 1, room, context.sampling))[0]
        own.prefix, own.info["verify"] = ids, True
        unused.append(own)
        info["own"] = own
    context_ids = render.skip_ids(problem, ids) if skip else hard_prefix
    completions = yield Request(context_ids, n, room, context.sampling)
    if not skip:
        for completion in completions:
            completion.prefix = ids
        info["own"] = completions[0]
    trained = [segment] if len(segment) else []
    if not trained:
        unused.append(segment)
    return Group(problem, [*completions, *trained], unused, info)
