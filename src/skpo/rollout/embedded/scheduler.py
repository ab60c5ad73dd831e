"""Which row is started next: plans, their requests, and the order in which free rows are given to them.

Second and later requests of a plan come before new plans, in the order in which they were made. So a step's plans
finish early and the number of half-done plans, with the memory they hold, stays bounded by the number of rows.
"""

from __future__ import annotations

import contextlib
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field

from skpo.rollout.types import Group, Plan, PlanRun, Request, Sample, derive_seed


@dataclass
class Job:
    """One request of one plan, on its way through the rows.

    index, plan, seed: the plan's number in the run, its generator and its seed.
    first: number of samples that the plan's earlier requests made.
    """

    index: int
    plan: Plan
    seed: int
    request: Request
    first: int
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

    def __init__(self, runs: Iterable[PlanRun], check: Callable[[Request], None]) -> None:
        self._runs = enumerate(runs)
        self._check = check
        self._later: deque[Job] = deque()  # second and later requests
        self._new: Job | None = None  # first request of the newest plan, not launched in full
        self._exhausted = False
        self._open: dict[int, Plan] = {}
        self.finished: deque[tuple[int, Group]] = deque()

    def next_job(self) -> Job | None:
        """The job whose rows are started next, or None if nothing waits; starts a new plan if need be."""
        if self._later:
            return self._later[0]
        while self._new is None and not self._exhausted:
            try:
                index, run = next(self._runs)
            except StopIteration:
                self._exhausted = True
                break
            self._open[index] = run.plan
            self._new = self._advance(index, run.plan, run.seed, 0, None)
        return self._new

    def launch(self, job: Job, count: int) -> range:
        """Take the next `count` samples of a job that `next_job` gave; returns their numbers within the request."""
        numbers = range(job.launched, job.launched + count)
        job.launched += count
        if job.launched == job.request.n:
            if self._later and self._later[0] is job:
                self._later.popleft()
            else:
                self._new = None
        return numbers

    def deliver(self, job: Job, i: int, sample: Sample) -> None:
        """Hand over one finished sample; the plan is resumed with the last of them."""
        job.samples[i] = sample
        job.waiting -= 1
        if job.waiting == 0:
            done = [s for s in job.samples if s is not None]
            following = self._advance(job.index, job.plan, job.seed, job.first + job.request.n, done)
            if following is not None:
                self._later.append(following)

    def close(self) -> None:
        """Close the plans that have not returned."""
        for plan in self._open.values():
            with contextlib.suppress(Exception):
                plan.close()
        self._open.clear()
        self._later.clear()
        self._new = None
        self._exhausted = True

    def _advance(self, index: int, plan: Plan, seed: int, first: int, answer: list[Sample] | None) -> Job | None:
        """Run a plan to its next request; None if it returned (its group is then in `finished`)."""
        while True:
            try:
                request = next(plan) if answer is None else plan.send(answer)
            except StopIteration as stop:
                del self._open[index]
                self.finished.append((index, stop.value))
                return None
            self._check(request)
            if request.n > 0:
                return Job(index, plan, seed, request, first)
            answer = []

    def pop_finished(self) -> Iterator[tuple[int, Group]]:
        """Finished groups, oldest first, each given once."""
        while self.finished:
            yield self.finished.popleft()
