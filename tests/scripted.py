"""A scripted engine for tests of plans: answers requests from a function, no model."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from skpo.problems.base import Problem
from skpo.rollout.types import Group, Plan, Request, Sample


class TextlessRenderer:
    """Prompt ids 100 + i for readability: problem -> (1, 2), skip -> s + (9, 1, 2), continual -> (1, 2) + s."""

    def prompt_ids(self, problem: Problem) -> tuple[int, ...]:
        return (1, 2)

    def skip_ids(self, problem: Problem, segment_ids: Sequence[int]) -> tuple[int, ...]:
        return (*segment_ids, 9, 1, 2)

    def continual_ids(self, problem: Problem, segment_ids: Sequence[int]) -> tuple[int, ...]:
        return (1, 2, *segment_ids)

    def refine_ids(self, problem: Problem, turns: Sequence[Mapping[str, str]]) -> tuple[int, ...]:
        """(1, 2), then 8 and the number of characters for each turn."""
        return (1, 2, *(i for turn in turns for i in (8, len(turn["content"]))))

    def decode(self, ids: Sequence[int]) -> str:
        return ".".join(str(i) for i in ids)


def sample(
    tokens: Sequence[int],
    logp: Sequence[float] | None = None,
    *,
    finished: bool = False,
    context: tuple[int, ...] = (1, 2),
) -> Sample:
    values = [-0.5] * len(tokens) if logp is None else list(logp)
    return Sample(context, np.array(tokens, dtype=np.int64), np.array(values, dtype=np.float32), finished)


def drive(plan: Plan, answer: Callable[[int, Request], list[Sample]]) -> tuple[Group, list[Request]]:
    """Run a plan; `answer(i, request)` gives the samples of its i-th request, counted one by one where it makes several at once."""
    requests: list[Request] = []

    def samples(request: Request) -> list[Sample]:
        requests.append(request)
        made = answer(len(requests) - 1, request)
        for s in made:
            s.context = request.context
        return made

    reply: Any = None
    while True:
        try:
            asked = plan.send(reply)
        except StopIteration as stop:
            return stop.value, requests
        reply = samples(asked) if isinstance(asked, Request) else [samples(r) for r in asked]
