"""A scripted engine for tests of plans: answers requests from a function, no model."""

from __future__ import annotations

from collections.abc import Callable, Sequence

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
    """Run a plan; `answer(i, request)` gives the samples of its i-th request."""
    requests = []
    reply = None
    while True:
        try:
            request = plan.send(reply)  # type: ignore[arg-type]
        except StopIteration as stop:
            return stop.value, requests
        requests.append(request)
        reply = answer(len(requests) - 1, request)
        for s in reply:
            s.context = request.context
