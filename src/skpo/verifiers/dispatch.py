"""The thread behind a verifier pool: feeds workers, watches their clocks, replaces them.

Each worker has a stream of requests in flight and answers them in order, so that the oldest one without an answer is the
one it works on. When a worker is lost, that one is to blame and the others are sent again. A blamed job whose worker had
served others before gets one more go, first in line on a fresh worker: no verdict depends on what ran before it.
"""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

from skpo.errors import VerifierError
from skpo.verifiers.jobs import Failure, Verdict
from skpo.verifiers.nursery import STARTUP_SECONDS, Nursery, Worker, WorkerLostError, wait_for

WALL_FACTOR = 5.0
WINDOW = 8
POLL_SECONDS = 0.05


@dataclass
class Ticket:
    """One queued job. `payload`: pickle of (completion, answer, columns, prompt); `again`: on its second go."""

    id: int
    verifier: str
    preload: tuple[str, ...]
    payload: bytes
    again: bool = False


@dataclass
class Slot:
    """Place of one worker: its stream in flight (a job, or the name of a verifier to load) and the clock of the oldest."""

    worker: Worker | None = None
    stream: deque[Ticket | str] = field(default_factory=deque)
    wall: float = 0.0
    cpu: float | None = None

    def restart_clock(self) -> None:
        self.wall = time.monotonic()
        self.cpu = self.worker.cpu() if self.worker else None

    def used(self) -> tuple[float, float]:
        """(CPU seconds, wall seconds) of the oldest request; CPU is 0 where the system doesn't tell."""
        now = self.worker.cpu() if self.worker else None
        cpu = now - self.cpu if now is not None and self.cpu is not None else 0.0
        return cpu, time.monotonic() - self.wall


class Dispatcher:
    """Runs tickets on `workers` processes; `finish(id, verdict)` and `fail(error)` are called from its thread."""

    def __init__(
        self,
        nursery: Nursery,
        workers: int,
        deadline: float,
        memory_mb: int,
        finish: Callable[[int, Verdict], None],
        fail: Callable[[VerifierError], None],
    ) -> None:
        self.nursery, self.deadline, self.memory_mb = nursery, deadline, memory_mb
        self.finish, self.fail = finish, fail
        self.slots = [Slot() for _ in range(workers)]
        self.queue: deque[Ticket] = deque()
        self._inbox: deque[Ticket] = deque()
        self._read, self._write = os.pipe()
        os.set_blocking(self._write, False)
        self._closed = False
        self._thread = threading.Thread(target=self._run, name="verifier-pool", daemon=True)
        self._thread.start()

    def put(self, ticket: Ticket) -> None:
        """Queue a ticket; returns at once."""
        self._inbox.append(ticket)
        self._wake()

    def close(self) -> None:
        """End the thread and all workers; what is unfinished stays so."""
        self._closed = True
        self._wake()
        self._thread.join()
        os.close(self._read)
        os.close(self._write)

    def _wake(self) -> None:
        with contextlib.suppress(BlockingIOError):  # full: it holds wake-ups enough
            os.write(self._write, b"w")

    def _run(self) -> None:
        try:
            while not self._closed:
                while self._inbox:
                    self.queue.append(self._inbox.popleft())
                for slot in self.slots:
                    self._feed(slot)
                self._listen()
                for slot in self.slots:
                    self._check(slot)
        except VerifierError as error:
            self.fail(error)
        except Exception as error:
            self.fail(VerifierError(f"the verifier pool broke: {type(error).__name__}: {error}"))
        finally:
            for slot in self.slots:
                if slot.worker is not None:
                    slot.worker.end()

    def _feed(self, slot: Slot) -> None:
        """Fill a worker's stream up to its window: one job, and more when many wait."""
        window = min(WINDOW, 1 + len(self.queue) // len(self.slots))
        while self.queue and len(slot.stream) < window:
            ticket = self.queue[0]
            if ticket.again and slot.stream:
                return
            if ticket.again and slot.worker is not None and slot.worker.served:
                slot.worker.end()
                slot.worker = None
            self.queue.popleft()
            if slot.worker is None:
                slot.worker = self.nursery.fork(self.memory_mb, ticket.preload)
            idle = not slot.stream
            if ticket.verifier not in slot.worker.loaded:
                slot.worker.loaded.add(ticket.verifier)
                slot.stream.append(ticket.verifier)
                slot.worker.load(ticket.verifier)
            slot.stream.append(ticket)
            slot.worker.job(ticket.verifier, ticket.payload)
            if idle:
                slot.restart_clock()

    def _listen(self) -> None:
        workers = [slot.worker for slot in self.slots if slot.worker is not None]
        busy = any(slot.stream for slot in self.slots)
        ready = wait_for(workers, POLL_SECONDS if busy else None, self._read)
        if self._read in ready:
            os.read(self._read, 1 << 16)
        for slot in self.slots:
            if slot.worker is not None and slot.worker.fileno() in ready:
                self._hear(slot, slot.worker)

    def _hear(self, slot: Slot, worker: Worker) -> None:
        worker.flush()
        try:
            replies = worker.receive()
            for reply in replies:
                if not slot.stream:
                    raise WorkerLostError
                request = slot.stream[0]
                if isinstance(request, str):
                    if reply.get("error"):
                        raise VerifierError(f"verifier {request} can't be loaded: {reply['error']}")
                    slot.stream.popleft()
                elif not self._settle(slot, request, reply):
                    return
                slot.restart_clock()
        except WorkerLostError:
            self._lost(slot, "crash")

    def _settle(self, slot: Slot, ticket: Ticket, reply: dict[str, object]) -> bool:
        """Take a reply to a job; False where the worker had to go with it."""
        score, failure, used, wall = (reply.get(key) for key in ("score", "failure", "used", "wall"))
        valid = score is None or isinstance(score, int | float)
        if not valid or not isinstance(used, int | float) or not isinstance(wall, int | float):
            raise WorkerLostError
        if failure == "memory" or used > self.deadline or wall > WALL_FACTOR * self.deadline:
            self._lost(slot, "memory" if failure == "memory" else "timeout", float(used))
            return False
        slot.stream.popleft()
        if slot.worker is not None:
            slot.worker.served += 1
        self.finish(ticket.id, Verdict(score, failure, float(used)))  # type: ignore[arg-type]
        return True

    def _check(self, slot: Slot) -> None:
        """End a worker whose oldest request is over its time."""
        if not slot.stream or slot.worker is None:
            return
        cpu, wall = slot.used()
        if isinstance(slot.stream[0], str):
            if wall > STARTUP_SECONDS:
                raise VerifierError(f"verifier {slot.stream[0]} can't be loaded: not ready after {STARTUP_SECONDS:g} s")
        elif cpu > self.deadline or wall > WALL_FACTOR * self.deadline:
            self._lost(slot, "timeout", cpu or wall)

    def _lost(self, slot: Slot, failure: Failure, seconds: float | None = None) -> None:
        """Replace a worker; blame the oldest request of its stream, send the others again."""
        seconds = slot.used()[0] if seconds is None else seconds
        worker, stream = slot.worker, slot.stream
        slot.worker, slot.stream = None, deque()
        served = worker.served if worker else 0
        if worker is not None:
            worker.end()
        if not stream:
            return
        blamed = stream.popleft()
        if isinstance(blamed, str):
            raise VerifierError(f"verifier {blamed} can't be loaded: its worker died ({failure})")
        self.queue.extendleft(ticket for ticket in reversed(stream) if isinstance(ticket, Ticket))
        if served and not blamed.again:
            blamed.again = True
            self.queue.appendleft(blamed)
        else:
            self.finish(blamed.id, Verdict(0.0, failure, seconds))
