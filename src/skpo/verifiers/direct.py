"""One answer at a time, from any thread: what `Verifier.score` does.

The deadline is wall time here, counted from the moment a worker is ready; starting one has its own, generous limit.
"""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from typing import TYPE_CHECKING, Any

from skpo.errors import VerifierError
from skpo.verifiers.jobs import Verdict
from skpo.verifiers.nursery import STARTUP_SECONDS, Nursery, Worker, WorkerLostError, shared

if TYPE_CHECKING:
    from skpo.verifiers.base import BaseVerifier, Columns

MEMORY_MB = 2048
MAX_IDLE = 4

_log = logging.getLogger(__name__)
_idle: list[Worker] = []
_lock = threading.Lock()
_owner: Nursery | None = None


def judge(
    verifier: BaseVerifier, completion: str, answer: Any, columns: Columns | None = None, prompt: Any = None
) -> Verdict:
    """Verdict on one completion; never raises."""
    try:
        score = verifier.quick(completion, answer)
        if score is not None:
            return Verdict(score)
        verifier.ready()
        payload = verifier.pack(completion, answer, columns, prompt, verifier.deadline)
    except VerifierError as error:
        _log.error("%s", error)
        return Verdict(0.0, "crash")
    except Exception as error:
        _log.debug("%s: %r", verifier.name, error)
        return Verdict(0.0, "exception")
    end: float | None = None
    while True:
        try:
            worker = _borrow(verifier)
        except (VerifierError, OSError) as error:
            _log.error("%s", error)
            return Verdict(0.0, "crash")
        end = end or time.monotonic() + verifier.deadline
        used = worker.served > 0
        verdict = _ask(worker, verifier, payload, end)
        if verdict.failure in ("crash", "memory") and used and time.monotonic() < end:
            continue
        return verdict


def prepare(verifier: BaseVerifier) -> None:
    """Load a verifier in a worker, so that its first score doesn't wait. Raises `VerifierError` if it can't be loaded."""
    _give_back(_borrow(verifier))


def close() -> None:
    """End the idle workers of this process."""
    with _lock:
        workers, _idle[:] = _idle[:], []
    for worker in workers:
        worker.end()


def _ask(worker: Worker, verifier: BaseVerifier, payload: bytes, end: float) -> Verdict:
    start = time.monotonic()
    try:
        worker.job(verifier.name, payload)
        reply = worker.wait(end - time.monotonic())
    except WorkerLostError:
        worker.end()
        return Verdict(0.0, "crash", time.monotonic() - start)
    except BaseException:
        worker.end()
        raise
    if reply is None:
        worker.end()
        return Verdict(0.0, "timeout", time.monotonic() - start)
    if reply.get("failure") == "memory":
        worker.end()
    else:
        worker.served += 1
        _give_back(worker)
    return Verdict(reply.get("score"), reply.get("failure"), float(reply.get("used", 0.0)))


def _borrow(verifier: BaseVerifier) -> Worker:
    """A worker in which the verifier is loaded: an idle one that has it, else any idle one, else a new one."""
    global _owner
    nursery = shared()
    with _lock:
        if _owner is not nursery:
            _idle.clear()
            _owner = nursery
        worker = next((w for w in _idle if verifier.name in w.loaded), None)
        if worker is not None:
            _idle.remove(worker)
    if worker is not None and _alive(worker):
        return worker
    return _fresh(nursery, verifier)


def _alive(worker: Worker) -> bool:
    """Whether an idle worker still stands; what it says unasked makes it untrustworthy."""
    with contextlib.suppress(WorkerLostError):
        if not worker.receive():
            return True
    worker.end()
    return False


def _fresh(nursery: Nursery, verifier: BaseVerifier) -> Worker:
    worker = nursery.fork(MEMORY_MB, verifier.preload)
    try:
        worker.load(verifier.name)
        reply = worker.wait(STARTUP_SECONDS)
        error = "no answer" if reply is None else reply.get("error")
    except WorkerLostError:
        error = "its worker died"
    except BaseException:
        worker.end()
        raise
    if error:
        worker.end()
        raise VerifierError(f"verifier {verifier.name} can't be loaded: {error}")
    worker.loaded.add(verifier.name)
    return worker


def _give_back(worker: Worker) -> None:
    with _lock:
        surplus = _idle.pop(0) if len(_idle) >= MAX_IDLE else None
        _idle.append(worker)
    if surplus is not None:
        surplus.end()
