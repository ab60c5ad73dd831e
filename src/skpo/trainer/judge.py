"""Scores samples while others are still being sampled: text goes to the verifier pool the moment a group is in."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from skpo.problems.base import Problem
from skpo.rollout.types import ANSWERS, Group, Sample

if TYPE_CHECKING:
    from skpo.verifiers.pool import VerifierPool


class Judge:
    """Decodes and scores the samples of groups.

    decode: token ids -> text without special tokens. verifier: name for problems that have none of their own.
    """

    travels_as = "judge"  #: a rollout worker has its own in this one's place

    def __init__(self, pool: VerifierPool, decode: Callable[[Sequence[int]], str], verifier: str) -> None:
        self.pool, self.decode, self.verifier = pool, decode, verifier
        self.waiting: dict[int, Sample] = {}
        self.seconds = 0.0  #: time spent waiting for verdicts after the rollouts

    def submit(self, group: Group) -> None:
        """Send every sample that has an answer (completions, refinements, and unused ones marked `info["verify"]`)."""
        for sample in [*group.samples, *group.unused]:
            if sample.info.get("judged"):
                continue
            sample.text = self.decode([*sample.prefix, *sample.tokens.tolist()])
            trained = sample.role in ANSWERS and any(sample is s for s in group.samples)
            if trained or sample.info.get("verify"):
                self._send(group.problem, sample)
        self._take(block=False)

    def score_now(self, problem: Problem, samples: Sequence[Sample]) -> None:
        """Text and score of samples whose plan waits for them; `submit` leaves them alone later."""
        numbers = []
        for sample in samples:
            sample.text = self.decode([*sample.prefix, *sample.tokens.tolist()])
            sample.info["judged"] = True
            numbers.append(self._send(problem, sample))
        while any(n in self.waiting for n in numbers):
            self._take(block=True)

    def _send(self, problem: Problem, sample: Sample) -> int:
        from skpo.verifiers.pool import Job

        job = Job(problem.verifier or self.verifier, sample.text, problem.answer, dict(problem.columns), problem.prompt)
        number = self.pool.submit(job)
        self.waiting[number] = sample
        return number

    def finish(self) -> None:
        """Wait until every submitted sample has its score."""
        begin = time.perf_counter()
        while self.waiting:
            self._take(block=True)
        self.seconds += time.perf_counter() - begin

    def wait(self) -> None:
        """Wait for at least one verdict, if any is missing."""
        begin = time.perf_counter()
        if self.waiting:
            self._take(block=True)
        self.seconds += time.perf_counter() - begin

    def _take(self, block: bool) -> None:
        for job, verdict in self.pool.collect(block=block):
            sample = self.waiting.pop(job, None)
            if sample is not None:
                sample.score = verdict.score
                if verdict.failure:
                    sample.info["verify_failure"] = verdict.failure


def drop_unscored(group: Group) -> int:
    """Take completions and refinements without a score (a reward said "skip") out of training; returns how many."""
    skipped = [s for s in group.samples if s.role in ANSWERS and s.score is None]
    if skipped:
        group.samples = [s for s in group.samples if not any(s is x for x in skipped)]
        group.unused.extend(skipped)
    return len(skipped)
