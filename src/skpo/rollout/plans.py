"""Rollout plans: what an algorithm samples from one problem, written as plain Python generators."""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol

import numpy as np

from skpo.errors import ConfigError
from skpo.problems.base import Message, Problem
from skpo.rollout.types import REFINEMENT, SEGMENT, Group, Plan, Request, Sample, Sampling, plan_function

TIE = 1e-9  #: two distances to the median closer than this are a tie; the lower index wins


class Renderer(Protocol):
    """Turns problems into token ids; `skpo.policy.prompts.PromptRenderer` is the real one."""

    def prompt_ids(self, problem: Problem) -> tuple[int, ...]: ...
    def skip_ids(self, problem: Problem, segment_ids: Sequence[int]) -> tuple[int, ...]: ...
    def continual_ids(self, problem: Problem, segment_ids: Sequence[int]) -> tuple[int, ...]: ...
    def refine_ids(self, problem: Problem, turns: Sequence[Message]) -> tuple[int, ...]: ...
    def decode(self, ids: Sequence[int]) -> str: ...
    def encode(self, text: str) -> tuple[int, ...]: ...
    def token_text(self, token: int) -> str: ...


@dataclass
class PlanContext:
    """What every plan is given. `rng` is seeded by (seed, step, problem): a plan's own draws never depend on other problems.

    judge: scores samples at once, for plans whose next request depends on what was right: sets their `text` and `score`, which are
    not computed again later; None where the caller has no verifier. positions: most tokens, context and sampled, that the model has.
    """

    renderer: Renderer
    group_size: int
    max_tokens: int
    sampling: Sampling = Sampling()
    step: int = 0
    rng: np.random.Generator = field(default_factory=lambda: np.random.default_rng(0))
    judge: Callable[[Sequence[Sample]], None] | None = None
    positions: int | None = None


@plan_function
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


def draw_stops(
    length: float, low: float, high: float, rng: np.random.Generator, *, splits: int = 1, alternate: int | None = None
) -> list[int]:
    """`splits` stop positions, ascending, each drawn as in `draw_stop`: where the segment is to end after each stage."""
    return sorted(draw_stop(length, low, high, rng, alternate) for _ in range(splits))


@plan_function
def skip_plan(
    problem: Problem,
    context: PlanContext,
    *,
    length: float,
    low: float = 1 / 6,
    high: float = 1 / 2,
    skip: bool = True,
    split: Literal["uniform", "alternate"] = "uniform",
    splits: int = 1,
    select: Literal["median", "extreme"] = "median",
    budget: Literal["full", "remaining"] = "full",
    own_outcome: bool = False,
) -> Plan:
    """One problem's SKPO rollout (arXiv 2604.08690, section 3.1): G segments, one kept, G completions from [s, q].

    length: this problem's average response length L_q, in tokens. `skip=False` continues q + s as a hard prefix;
    `own_outcome` adds the selected segment's own continuation from q + s, whose outcome rewards the segment ("w/o MC").
    With `splits` above 1 (not in the paper) each further stage samples G continuations of q + s and appends the one it keeps
    to s; each stage's piece is trained in the context that it was sampled from.
    """
    render, n = context.renderer, context.group_size
    alternate = context.step if split == "alternate" else None
    highest = context.step % 2 == 1 if select == "extreme" else None
    ids: tuple[int, ...] = ()
    trained: list[Sample] = []
    unused: list[Sample] = []
    for stop in draw_stops(length, low, high, context.rng, splits=splits, alternate=alternate):
        stop = min(stop, context.max_tokens)
        request = Request(render.continual_ids(problem, ids), n, max(1, stop - len(ids)), context.sampling)
        segment, rest, info = yield from segment_stage(request, highest)
        info |= {"stop_position": stop, "split": stop / length}
        unused.extend(rest)
        (trained if len(segment) else unused).append(segment)
        ids += tuple(int(t) for t in segment.tokens)

    room = max(1, context.max_tokens - len(ids)) if budget == "remaining" else context.max_tokens
    hard_prefix = render.continual_ids(problem, ids)
    if own_outcome and skip:
        own = (yield Request(hard_prefix, 1, room, context.sampling))[0]
        own.prefix, own.info["verify"] = ids, True
        unused.append(own)
        info["own"] = own
    completions = yield Request(render.skip_ids(problem, ids) if skip else hard_prefix, n, room, context.sampling)
    if not skip:
        for completion in completions:
            completion.prefix = ids
        info["own"] = completions[0]
    return Group(problem, [*completions, *trained], unused, info)


Stage = Generator[Request, list[Sample], tuple[Sample, list[Sample], dict[str, Any]]]


def segment_stage(request: Request, highest: bool | None = None) -> Stage:
    """Sample drafts and keep one of them: (segment, the others, what is worth logging).

    highest: None keeps the one of median likelihood; True the one with the highest d(s), False the lowest.
    """
    cuts = [cut_segment(s) for s in (yield request)]
    likelihood: dict[
        bytes, float
    ] = {}  # one for drafts of the same tokens: they differ by the rounding of their batches
    nll = [likelihood.setdefault(s.tokens.tobytes(), mean_nll(s)) for s in cuts]
    chosen = median_index(nll) if highest is None else extreme_index(nll, highest)
    info = {"mean_nll": nll, "chosen": chosen, "chosen_rank": rank(nll, chosen)}
    return cuts[chosen], [c for i, c in enumerate(cuts) if i != chosen], info


@plan_function
def branch_plan(
    problem: Problem,
    context: PlanContext,
    *,
    length: float,
    branches: int,
    low: float = 1 / 6,
    high: float = 1 / 2,
    skip: bool = True,
    budget: Literal["full", "remaining"] = "full",
) -> Plan:
    """A tree in place of a selection (not in the paper): B segments, all kept, and G / B completions from each [s_b, q], at once.

    Samples carry `info["subgroup"] = b`: completions are compared within their own branch. A segment that came out empty is
    a branch like any other, without a row of its own. Raises ConfigError unless `branches` is at least 2, and divides the group
    size into branches of at least 2.
    """
    render, each = context.renderer, context.group_size // max(branches, 1)
    if branches < 2 or each < 2 or each * branches != context.group_size:
        raise ConfigError(
            f"select=all: {branches} branches of a group of {context.group_size} leave {each} completions each; choose "
            "algorithm.branches so that it divides group_size, with at least 2 branches and 2 completions each"
        )
    stop = min(draw_stop(length, low, high, context.rng), context.max_tokens)
    drafts = yield Request(render.prompt_ids(problem), branches, stop, context.sampling)
    cuts = [cut_segment(s) for s in drafts]
    pieces = [tuple(int(t) for t in s.tokens) for s in cuts]
    requests = []
    for ids in pieces:
        room = max(1, context.max_tokens - len(ids)) if budget == "remaining" else context.max_tokens
        after = render.skip_ids(problem, ids) if skip else render.continual_ids(problem, ids)
        requests.append(Request(after, each, room, context.sampling))
    answers = yield requests
    for b, (segment, answer) in enumerate(zip(cuts, answers, strict=True)):
        segment.info["subgroup"] = b
        for completion in answer:
            completion.info["subgroup"], completion.prefix = b, () if skip else pieces[b]
    completions = [s for answer in answers for s in answer]
    info = {"stop_position": stop, "split": stop / length, "mean_nll": [mean_nll(s) for s in cuts]}
    trained = [s for s in cuts if len(s)]
    return Group(problem, [*completions, *trained], [s for s in cuts if not len(s)], info)


@dataclass(frozen=True)
class Wording:
    """What a model is told between an answer and the next one."""

    wrong: str = "This answer is wrong."
    right: str = "This answer is right."
    critique: str = "Check this answer step by step, and say where it goes wrong, if it does."
    again: str = "Solve the problem again from the start, with what was said in mind, and give the final answer."


@plan_function
def refine_plan(
    problem: Problem,
    context: PlanContext,
    *,
    k: int = 1,
    refine_right: bool = True,
    critique_tokens: int | None = None,
    wording: Wording = Wording(),
) -> Plan:
    """Critique-GRPO's two stages (arXiv 2506.03106): group_size - k direct responses, then k refinements of wrong ones.

    critique_tokens: None tells the model only whether the response was right; a number lets it write the critique first, in at most
    so many tokens. refine_right: where no response is wrong, refine right ones (else none). A refinement leaves with the context
    `q`, under which it is trained, and `info["rescore"]`: its log-probabilities belong to another context. Raises ConfigError without
    a judge, or with no room for a direct response.
    """
    n = context.group_size - k
    if context.judge is None or n < 1:
        raise ConfigError(f"refinement needs a verifier, and a group size above {k}; found {context.group_size}")
    prompt = context.renderer.prompt_ids(problem)
    direct = yield Request(prompt, n, context.max_tokens, context.sampling)
    context.judge(direct)
    scored = [i for i, s in enumerate(direct) if s.score is not None]
    shown = [i for i in scored if not direct[i].correct] or (scored if refine_right else [])
    refinements: list[Sample] = []
    critiques: list[Sample] = []
    for i in context.rng.choice(shown, size=k, replace=len(shown) < k).tolist() if shown else []:
        refinement, critique = yield from _refine(problem, context, direct[i], critique_tokens, wording)
        critiques += critique
        for sample in refinement:
            sample.role, sample.context = REFINEMENT, prompt
            sample.info |= {"refines": i, "rescore": True}
        refinements += refinement
    return Group(problem, [*direct, *refinements], critiques)


def _refine(
    problem: Problem, context: PlanContext, shown: Sample, critique_tokens: int | None, wording: Wording
) -> Generator[Request, list[Sample], tuple[list[Sample], list[Sample]]]:
    """(refinement, self-written critique) of a response, each a list of one sample, or of none where it does not fit the model."""
    turns: list[Message] = [{"role": "assistant", "content": shown.text}]
    critique: list[Sample] = []
    if critique_tokens is None:
        verdict = wording.right if shown.correct else wording.wrong
        turns.append({"role": "user", "content": f"{verdict} {wording.again}"})
    else:
        turns.append({"role": "user", "content": wording.critique})
        critique = yield from _follow(problem, context, turns, critique_tokens)
        if not critique:
            return [], []
        turns.append({"role": "assistant", "content": context.renderer.decode(critique[0].tokens.tolist())})
        turns.append({"role": "user", "content": wording.again})
    return (yield from _follow(problem, context, turns, context.max_tokens)), critique


def _follow(
    problem: Problem, context: PlanContext, turns: Sequence[Message], most: int
) -> Generator[Request, list[Sample], list[Sample]]:
    """One sample of what follows `turns`, of at most `most` tokens; none where it could exceed the model's positions."""
    ids, room = context.renderer.refine_ids(problem, turns), min(most, context.max_tokens)
    if context.positions is not None and len(ids) + room > context.positions:
        return []
    return (yield Request(ids, 1, room, context.sampling))
