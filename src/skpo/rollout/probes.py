"""Monte-Carlo probes: responses are cut into steps, and from each step's start the policy is sampled again.

What a state of a response is worth is the mean reward of `n` continuations from it. All probes of a problem run at the same time, in
the engine's continuous batch. Responses that share a beginning share its probes: the state is the same.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from skpo.errors import ConfigError
from skpo.problems.base import Problem
from skpo.rollout.plans import PlanContext
from skpo.rollout.types import Group, Plan, Request, Sample, plan_function

_SENTENCE_END = re.compile(r"\n|[.!?](?=\s)")


@dataclass(frozen=True)
class Cuts:
    """Where a response is cut into steps.

    after: texts that end a step (spaces behind them begin the next one). before: words whose sentence begins one. gap: fewest tokens
    of a step. most: most steps; of more, cuts at even distances stay.
    """

    after: Sequence[str] = ()
    before: Sequence[str] = ()
    gap: int = 1
    most: int | None = None

    def __post_init__(self) -> None:
        for name, texts in (("after", self.after), ("before", self.before)):
            if isinstance(texts, str) or not all(isinstance(t, str) and t.strip(" ") for t in texts):
                raise ConfigError(f"cuts {name} {texts!r}: expected a list of texts, none of them empty")
        if self.gap < 1 or (self.most is not None and self.most < 1):
            raise ConfigError(
                f"steps need at least one token each, and one step at least; found {self.gap}, {self.most}"
            )


def step_cuts(tokens: Sequence[int], text_of: Callable[[int], str], cuts: Cuts) -> list[int]:
    """Positions, ascending, where second and later steps begin: 0 < cut < len(tokens). text_of: a token's text.

    A token that holds the end of one step and the beginning of the next belongs to the former.
    """
    pieces = [text_of(int(t)) for t in tokens]
    text, ends = "".join(pieces), np.cumsum([len(p) for p in pieces])
    places = [m.start() + len(end.rstrip(" ")) for end in cuts.after for m in re.finditer(re.escape(end), text)]
    places += [_sentence(text, m.start()) for word in cuts.before for m in re.finditer(rf"\b{re.escape(word)}\b", text)]
    kept: list[int] = []
    for cut in sorted({int(np.searchsorted(ends, place)) + 1 for place in places if place > 0}):
        if cut - (kept[-1] if kept else 0) >= cuts.gap and len(tokens) - cut >= cuts.gap:
            kept.append(cut)
    if cuts.most is not None and len(kept) > cuts.most - 1:
        kept = [kept[j * len(kept) // cuts.most] for j in range(1, cuts.most)]
    return kept


def _sentence(text: str, place: int) -> int:
    """Where the sentence begins that holds a place; spaces before its first word are part of it."""
    return max((m.end() for m in _SENTENCE_END.finditer(text, 0, place)), default=0)


@plan_function
def probe_plan(
    problem: Problem, context: PlanContext, *, n: int, cuts: Cuts, ending: str = "", max_tokens: int | None = None
) -> Plan:
    """A group of responses, then `n` probes from the prompt and from each cut of each response, all at once.

    ending: text put behind the cut response, for example to force an answer. max_tokens: budget of a probe; None: what the response
    had left. A response carries `info["cuts"]`. Probes are unused samples that are verified, each with `info["parent"]` (number of the
    first response that passes through its state) and `info["cut"]`. A probe that the model has no positions for is not made.
    """
    render = context.renderer
    prompt, forced = render.prompt_ids(problem), render.encode(ending) if ending else ()
    responses = yield Request(prompt, context.group_size, context.max_tokens, context.sampling)
    states: dict[tuple[int, ...], int] = {(): 0}  # tokens sampled so far -> number of the response
    for i, response in enumerate(responses):
        response.info["cuts"] = step_cuts(response.tokens.tolist(), render.token_text, cuts)
        for cut in response.info["cuts"]:
            states.setdefault(tuple(response.tokens[:cut].tolist()), i)
    requests, asked = [], []
    for state, parent in states.items():
        ids = (*prompt, *state, *forced)
        room = context.max_tokens - len(state) if max_tokens is None else max_tokens
        room = room if context.positions is None else min(room, context.positions - len(ids))
        if room > 0:
            requests.append(Request(ids, n, room, context.sampling))
            asked.append((state, parent))
    probes: list[Sample] = []
    for (state, parent), samples in zip(asked, (yield requests), strict=True):
        for sample in samples:
            sample.prefix = (*state, *forced)
            sample.info |= {"verify": True, "parent": parent, "cut": len(state)}
        probes += samples
    return Group(problem, responses, probes)


def probes_of(group: Group) -> list[Sample]:
    """The probes of a group that `probe_plan` made."""
    return [s for s in group.unused if "parent" in s.info and "cut" in s.info]


def set_step_values(group: Group, reward: Callable[[Sample], float]) -> None:
    """Give each response `info["values"]`: the mean reward of the probes at the start of each of its steps.

    A state without a scored probe is worth what follows it (at the end: the response's own reward), so that its step gains nothing.
    """
    rewards: dict[tuple[int, ...], list[float]] = {}
    for probe in probes_of(group):
        if probe.score is not None:
            rewards.setdefault(probe.prefix[: probe.info["cut"]], []).append(reward(probe))
    for sample in group.samples:
        values, following = [], sample.reward
        for cut in reversed([0, *sample.info.get("cuts", ())]):
            found = rewards.get(tuple(sample.tokens[:cut].tolist()))
            following = float(np.mean(found)) if found else following
            values.append(following)
        sample.info["values"] = values[::-1]


def probe_metrics(groups: Sequence[Group]) -> dict[str, float]:
    """Steps of a response, tokens that the probes cost, and the mean value before the first token."""
    samples = [s for g in groups for s in g.samples if "values" in s.info]
    if not samples:
        return {}
    return {
        "steps_per_response": float(np.mean([len(s.info["cuts"]) + 1 for s in samples])),
        "probe_tokens": float(sum(len(p) for g in groups for p in probes_of(g))),
        "value_start": float(np.mean([s.info["values"][0] for s in samples])),
    }
