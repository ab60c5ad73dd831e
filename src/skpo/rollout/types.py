"""What plans and engines exchange: `Request`, `Sample`, `Group`, and the engine contract.

Token ids go in and token ids come out; no engine sees text. A *plan* is a generator that yields `Request`s, is sent the
list of `Sample`s that answers each, and returns a `Group`. It may also yield a list of requests, which run at the same time
and are answered together, by a list of lists. An engine runs any number of plans in one continuous batch and resumes each
the moment its own samples are in.
"""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any, ParamSpec, Protocol

import numpy as np

from skpo.problems.base import Problem

COMPLETION, SEGMENT, REFINEMENT = 0, 1, 2  #: `Sample.role`, as in `TokenBatch.role`
ANSWERS = (COMPLETION, REFINEMENT)  #: roles whose text holds an answer, which a verifier scores


@dataclass(frozen=True)
class Sampling:
    """How tokens are drawn. temperature 0 is greedy; top_p 1 and top_k 0 switch the truncations off."""

    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0

    @property
    def truncated(self) -> bool:
        """True where the sampled distribution is not the model's own softmax at this temperature."""
        return self.top_p < 1.0 or self.top_k > 0 or self.temperature == 0.0


@dataclass(frozen=True)
class Request:
    """Sample `n` continuations of `context` (token ids), each of at most `max_tokens` tokens (at least 1)."""

    context: tuple[int, ...]
    n: int
    max_tokens: int
    sampling: Sampling = Sampling()


@dataclass
class Sample:
    """One sampled continuation.

    tokens:   int64 [T], the ids sampled, with the end-of-sequence id at the end if it was sampled.
    logp:     float32 [T], log-probability of each under the distribution it was really drawn from.
    finished: an end-of-sequence token was sampled; False if the budget ran out.
    version:  weight version that made it.
    """

    context: tuple[int, ...]
    tokens: np.ndarray
    logp: np.ndarray
    finished: bool
    seed: int = 0
    version: int = 0
    role: int = COMPLETION
    prefix: tuple[int, ...] = ()  #: tokens before it that belong to its answer's text (a hard prefix)
    text: str = ""  #: decoded prefix + tokens, without special tokens; filled in by the trainer
    score: float | None = None  #: the verifier's verdict, in [0, 1]; None before it or where a reward says "skip"
    reward: float = 0.0  #: the algorithm's reward
    baseline: float = 0.0
    info: dict[str, Any] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.tokens)

    @property
    def correct(self) -> bool:
        """Fully correct: a score of 1. Partial credit is not correct."""
        return self.score is not None and self.score >= 1.0 - 1e-9


@dataclass
class Group:
    """Everything one problem's plan made in one step.

    samples: the rows that are trained on, in order.
    unused:  sampled but not trained on (segments not chosen, Monte-Carlo continuations); their tokens count as cost.
    """

    problem: Problem
    samples: list[Sample]
    unused: list[Sample] = field(default_factory=list)
    info: dict[str, Any] = field(default_factory=dict)

    @property
    def completions(self) -> list[Sample]:
        return [s for s in self.samples if s.role == COMPLETION]

    @property
    def segments(self) -> list[Sample]:
        return [s for s in self.samples if s.role == SEGMENT]

    @property
    def generated_tokens(self) -> int:
        """Tokens really sampled for this problem, trained on or not (a cut segment counts in full)."""
        return sum(s.info.get("sampled", len(s)) for s in [*self.samples, *self.unused])


#: What a plan yields: one request, answered by its samples, or a list of requests, answered by a list of their samples each. The
#: answer's type depends on that, so it is open here. Samples are numbered over all requests of a plan in the order given.
Plan = Generator[Request | list[Request], Any, Group]

P = ParamSpec("P")


class PlanCall(Plan):
    """A plan function's call that has not begun: a plan like any other, and until its first request it can be pickled.

    That is how whole plans travel to other processes: a generator can't, its function and arguments can.
    """

    def __init__(self, function: Callable[..., Plan], args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        self.function, self.args, self.kwargs = function, args, kwargs
        self._running: Plan | None = None

    def __reduce__(self) -> tuple[Any, ...]:
        if self._running is not None:
            raise TypeError(f"the plan {self.function.__qualname__} has begun, so it can't be pickled any more")
        return PlanCall, (self.function, self.args, self.kwargs)

    def send(self, value: Any) -> Request | list[Request]:
        if self._running is None:
            self._running = self.function.__wrapped__(*self.args, **self.kwargs)  # type: ignore[attr-defined]
        return self._running.send(value)

    def throw(self, kind: Any, value: Any = None, trace: TracebackType | None = None) -> Request | list[Request]:
        if self._running is None:
            self._running = self.function.__wrapped__(*self.args, **self.kwargs)  # type: ignore[attr-defined]
        return self._running.throw(kind if value is None else value)

    def close(self) -> None:
        if self._running is not None:
            self._running.close()


def plan_function(function: Callable[P, Plan]) -> Callable[P, Plan]:
    """Decorates a generator function that makes a plan, so that its plans can travel to rollout workers (see `PlanCall`)."""

    @functools.wraps(function)
    def call(*args: P.args, **kwargs: P.kwargs) -> Plan:
        return PlanCall(call, args, kwargs)

    return call


@dataclass
class PlanRun:
    """A plan with the seed that its samples' seeds come from (see `derive_seed`)."""

    plan: Plan
    seed: int


@dataclass
class EngineStats:
    """Counters since the last `take_stats`: tokens sampled, prompt tokens computed, decode steps, rows summed over decode
    steps (a sample's first token comes from its prefill), and how many of these were computed (rows that are alike so far may
    share)."""

    generated_tokens: int = 0
    prefill_tokens: int = 0
    steps: int = 0
    rows: int = 0
    computed: int = 0
    seconds: float = 0.0
    more: dict[str, float] = field(default_factory=dict)  #: further metrics of this engine

    def add(self, other: EngineStats) -> None:
        """Add another engine's counters (not `more`)."""
        for name in ("generated_tokens", "prefill_tokens", "steps", "rows", "computed", "seconds"):
            setattr(self, name, getattr(self, name) + getattr(other, name))


class Engine(Protocol):
    """What every rollout engine offers. A plan can't tell which one runs it."""

    version: int  #: weight version of the samples made now

    def run(self, runs: Iterable[PlanRun | None]) -> Iterator[tuple[int, Group]]:
        """Run plans in one continuous batch; yield (index of the plan, its group) as each finishes.

        `runs` is consumed lazily: a plan starts when there is room for it. A None among them is no plan: there is none to start
        now, and `runs` is asked again after the next tokens. Raises what a plan raises.
        """

    def update_weights(self, weights: Mapping[str, Any] | None, version: int) -> None:
        """Make `weights` (name -> tensor; None: shared with the trainer) the ones sampled from, and forget every cache of the old ones."""

    def take_stats(self) -> EngineStats:
        """Counters since the last call."""

    def close(self) -> None:
        """Free memory and processes."""


def derive_seed(*parts: int | str) -> int:
    """A 63-bit seed from any parts, the same on every machine: sampling seeds are derive_seed(seed, step, problem, sample)."""
    digest = hashlib.blake2b("\x1f".join(map(str, parts)).encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little") >> 1
