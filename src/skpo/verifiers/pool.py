"""`VerifierPool`: killable worker processes that score answers while the caller does something else.

    with VerifierPool(workers=2) as pool:
        ids = [pool.submit(job) for job in jobs]      # returns at once
        ...                                           # roll out
        for id, verdict in pool.collect(block=True):  # what is ready; waits for at least one
            ...

The deadline is CPU time of the worker on that answer, so that a loaded machine doesn't change scores; a wall-clock limit
of five times as much ends what sleeps. Start-up of a worker counts for neither.
"""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Iterable, Sequence
from types import TracebackType

from skpo.errors import VerifierError
from skpo.verifiers import BaseVerifier, make
from skpo.verifiers.dispatch import WALL_FACTOR, Dispatcher, Ticket
from skpo.verifiers.jobs import Job, Verdict
from skpo.verifiers.nursery import shared

__all__ = ["Job", "Verdict", "VerifierPool"]


class VerifierPool:
    """Scores jobs on `workers` processes. Thread-safe; verdicts depend on neither timing nor the number of workers.

    workers:   processes; they start at the first answer that needs one.
    deadline:  CPU seconds per answer; five times as much in wall seconds.
    memory_mb: MiB that a worker may map beyond what it maps when it starts.
    failures:  how many answers failed, by kind (`Verdict.failure`).
    unsafe_code: let the verifier `code` run programs even where the kernel doesn't isolate them.

    Raises `VerifierError` from `submit` and `collect` if workers can't be started or a verifier can't be loaded.
    """

    def __init__(
        self, workers: int = 1, deadline: float = 2.0, memory_mb: int = 2048, unsafe_code: bool = False
    ) -> None:
        self.workers, self.deadline, self.memory_mb = workers, deadline, memory_mb
        self.unsafe_code = unsafe_code
        self.failures: Counter[str] = Counter()
        self._verifiers: dict[str, BaseVerifier] = {}
        self._changed = threading.Condition()
        self._ready: list[tuple[int, Verdict]] = []
        self._pending = 0
        self._next = 0
        self._dispatcher: Dispatcher | None = None
        self._error: VerifierError | None = None
        self._closed = False

    def submit(self, job: Job) -> int:
        """Queue a job without waiting; the number under which `collect` returns its verdict."""
        verifier = self._verifier(job.verifier)
        verdict, payload = _at_once(verifier, job)
        with self._changed:
            self._check()
            number, self._next = self._next, self._next + 1
            if verdict is not None:
                self._add(number, verdict)
                return number
            if self._dispatcher is None:
                self._dispatcher = Dispatcher(
                    shared(), self.workers, self.deadline, self.memory_mb, self._finish, self._fail
                )
            self._pending += 1
            self._dispatcher.put(Ticket(number, job.verifier, verifier.preload, payload))
        return number

    def require(self, names: Iterable[str]) -> None:
        """Raise `VerifierError` now for a verifier that is unknown or must not run here, and not in the middle of a run."""
        for name in names:
            self._verifier(name)

    def collect(self, block: bool = True) -> list[tuple[int, Verdict]]:
        """Verdicts that are ready, each returned once; with `block`, waits for at least one unless nothing is pending."""
        with self._changed:
            if block:
                self._changed.wait_for(lambda: self._ready or not self._pending or self._error or self._closed)
            self._check()
            ready, self._ready = self._ready, []
        return ready

    @property
    def pending(self) -> int:
        """Jobs whose verdict is not ready yet."""
        with self._changed:
            return self._pending

    def score_all(self, jobs: Sequence[Job]) -> list[Verdict]:
        """Verdicts of the jobs, in their order. Not to be mixed with verdicts of `submit` that aren't collected yet."""
        numbers = [self.submit(job) for job in jobs]
        found: dict[int, Verdict] = {}
        others: list[tuple[int, Verdict]] = []
        wanted = set(numbers)
        while len(found) < len(numbers):
            for number, verdict in self.collect(block=True):
                if number in wanted:
                    found[number] = verdict
                else:
                    others.append((number, verdict))
        with self._changed:
            self._ready = others + self._ready
        return [found[number] for number in numbers]

    def close(self) -> None:
        """End all workers; verdicts that aren't ready are lost."""
        with self._changed:
            self._closed, dispatcher, self._dispatcher = True, self._dispatcher, None
            self._changed.notify_all()
        if dispatcher is not None:
            dispatcher.close()

    def __enter__(self) -> VerifierPool:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self.close()

    def _verifier(self, name: str) -> BaseVerifier:
        verifier = self._verifiers.get(name)
        if verifier is None:
            verifier = make(name, self.deadline)
            verifier.unsafe_code = self.unsafe_code
            verifier.ready()
            self._verifiers[name] = verifier
            shared().warm(verifier.preload)
        return verifier

    def _check(self) -> None:
        if self._error is not None:
            raise self._error
        if self._closed:
            raise VerifierError("the verifier pool is closed")

    def _add(self, number: int, verdict: Verdict) -> None:
        if verdict.failure is not None:
            self.failures[verdict.failure] += 1
        self._ready.append((number, verdict))

    def _finish(self, number: int, verdict: Verdict) -> None:
        with self._changed:
            self._pending -= 1
            self._add(number, verdict)
            self._changed.notify_all()

    def _fail(self, error: VerifierError) -> None:
        with self._changed:
            self._error = error
            self._changed.notify_all()


def _at_once(verifier: BaseVerifier, job: Job) -> tuple[Verdict | None, bytes]:
    """The verdict of the quick rules, or None and what a worker needs."""
    start = time.thread_time()
    try:
        score = verifier.quick(job.completion, job.answer)
        if score is not None:
            return Verdict(score, None, time.thread_time() - start), b""
        seconds = WALL_FACTOR * verifier.deadline
        return None, verifier.pack(job.completion, job.answer, job.columns, job.prompt, seconds)
    except Exception:
        return Verdict(0.0, "exception", time.thread_time() - start), b""
