"""Which row is started next: plans, their requests, and the order in which free rows are given to them.

Second and later requests of a plan come before new plans, in the order in which they were made. So a step's plans
finish early and the number of half-done plans, with the memory they hold, stays bounded by the number of rows.
"""

from __future__ import annotations

import contextlib
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

from skpo.rollout.types import Group, Plan, PlanRun, Request, Sample, derive_seed


@dataclass(eq=False)
class Turn:
    """What a plan waits for: one request, or several at once.

    index, plan, seed: the plan's number in the run, its generator and its seed.
    first: number of samples that the plan's earlier turns asked for.
    """

    index: int
    plan: Plan
    seed: int
    first: int
    several: bool
    jobs: list[Job] = field(default_factory=list, repr=False)
    asked: int = 0  #: samples of all requests

    def add(self, request: Request) -> None:
        self.jobs.append(Job(self.seed, request, self.first + self.asked, self))
        self.asked += request.n

    @property
    def answer(self) -> Any:
        """What the plan is sent: the samples of its request, or of each of its requests. None while one is missing."""
        if any(job.waiting for job in self.jobs):
            return None
        answers = [[s for s in job.samples if s is not None] for job in self.jobs]
        return answers if self.several else answers[0]


@dataclass(eq=False)
class Job:
    """One request of one plan, on its way through the rows.

    seed: of the plan. first: number of samples that the plan asked for before these.
    """

    seed: int
    request: Request
    first: int
    turn: Turn
    launched: int = 0
    samples: list[Sample | None] = field(default_factory=list)
    waiting: int = 0

    def __post_init__(self) -> None:
        self.waiting = self.request.n
        self.samples = [None] * self.request.n

    def sample_seed(self, i: int) -> int:
        """Seed of the request's sample i: samples are counted over all requests of the plan."""
        return derive_seed(self.seed, self.first + i)


class Scheduler:
    """Drives plan generators. `check` raises for a request that can't be run."""

    def __init__(self, runs: Iterable[PlanRun | None], check: Callable[[Request], None]) -> None:
        self._runs = iter(runs)
        self._begun = 0
        self._check = check
        self._later: deque[Job] = deque()  # requests of second and later turns
        self._new: deque[Job] = deque()  # requests of the newest plan's first turn, not launched in full
        self._exhausted = False
        self._open: dict[int, Plan] = {}
        self.finished: deque[tuple[int, Group]] = deque()

    def next_job(self) -> Job | None:
        """The job whose rows are started next, or None if nothing waits; starts a new plan if need be."""
        if self._later:
            return self._later[0]
        while not self._new and not self._exhausted:
            try:
                run = next(self._runs)
            except StopIteration:
                self._exhausted = True
                break
            if run is None:
                break
            index, self._begun = self._begun, self._begun + 1
            self._open[index] = run.plan
            self._new.extend(self._advance(index, run.plan, run.seed, 0, None))
        return self._new[0] if self._new else None

    def launch(self, job: Job, count: int) -> range:
        """Take the next `count` samples of a job that `next_job` gave; returns their numbers within the request."""
        numbers = range(job.launched, job.launched + count)
        job.launched += count
        if job.launched == job.request.n:
            (self._later if self._later and self._later[0] is job else self._new).popleft()
        return numbers

    def deliver(self, job: Job, i: int, sample: Sample) -> None:
        """Hand over one finished sample; the plan is resumed with the last one that it waits for."""
        job.samples[i] = sample
        job.waiting -= 1
        turn = job.turn
        if job.waiting == 0 and (answer := turn.answer) is not None:
            self._later.extend(self._advance(turn.index, turn.plan, turn.seed, turn.first + turn.asked, answer))

    def close(self) -> None:
        """Close the plans that have not returned."""
        for plan in self._open.values():
            with contextlib.suppress(Exception):
                plan.close()
        self._open.clear()
        self._later.clear()
        self._new.clear()
        self._exhausted = True

    def _advance(self, index: int, plan: Plan, seed: int, first: int, answer: Any) -> list[Job]:
        """Run a plan to its next requests that ask for anything; none if it returned (its group is then in `finished`)."""
        while True:
            try:
                asked = next(plan) if answer is None else plan.send(answer)
            except StopIteration as stop:
                del self._open[index]
                self.finished.append((index, stop.value))
                return []
            turn = Turn(index, plan, seed, first, several=not isinstance(asked, Request))
            for request in [asked] if isinstance(asked, Request) else asked:
                self._check(request)
                turn.add(request)
            if turn.asked:
                return [job for job in turn.jobs if job.request.n]
            answer = turn.answer

    def pop_finished(self) -> Iterator[tuple[int, Group]]:
        """Finished groups, oldest first, each given once."""
        while self.finished:
            yield self.finished.popleft()
