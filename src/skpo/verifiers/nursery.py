"""The caller's side of the helper processes: one nursery per process, and a handle for each worker.

Only end-of-file, `SIGKILL` and the length of a frame are trusted: whatever runs in a worker may be hostile or broken.
"""

from __future__ import annotations

import atexit
import contextlib
import json
import os
import pickle
import select
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from typing import Any

from skpo.errors import VerifierError
from skpo.verifiers.worker import HEADER

STARTUP_SECONDS = 120.0
MAX_REPLY = 1 << 20
_BOOT = "import sys; sys.path[:] = {path!r}; from skpo.verifiers.worker import nursery; nursery({fd})"
_TICKS = os.sysconf("SC_CLK_TCK") if hasattr(os, "sysconf") else 100


class WorkerLostError(Exception):
    """The worker died or sent what is no reply."""


class Nursery:
    """Starts and ends workers through the nursery process; started at first use, restarted if it dies. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None
        self._control: socket.socket | None = None
        self._preloaded: set[str] = set()

    def warm(self, modules: tuple[str, ...]) -> None:
        """Start the process, and let it import modules in the background. Never raises, never waits for long."""
        if not self._lock.acquire(blocking=False):
            return
        try:
            if self._process is None and modules:
                self._start()
                threading.Thread(target=self._warm_later, args=(modules,), daemon=True).start()
        except (OSError, VerifierError):
            pass
        finally:
            self._lock.release()

    def _warm_later(self, modules: tuple[str, ...]) -> None:
        with contextlib.suppress(Exception):
            self.preload(modules)

    def preload(self, modules: tuple[str, ...]) -> None:
        """Import trusted modules in the nursery, so that workers have them from birth. Raises `VerifierError`."""
        with self._lock:
            self._preload(modules)

    def _preload(self, modules: tuple[str, ...]) -> None:
        missing = [module for module in modules if module not in self._preloaded]
        if missing:
            error = self._ask({"op": "preload", "modules": missing})["error"]
            if error:
                raise VerifierError(f"verifier workers: can't import {error}")
            self._preloaded.update(missing)

    def fork(self, memory_mb: int, modules: tuple[str, ...] = ()) -> Worker:
        """A new worker whose address space may grow by `memory_mb` MiB. Raises `VerifierError` if none can be started."""
        mine, theirs = socket.socketpair()
        try:
            with self._lock:
                self._preload(modules)
                reply = self._ask({"op": "fork", "memory_mb": memory_mb}, theirs)
        except BaseException:
            mine.close()
            raise
        finally:
            theirs.close()
        return Worker(self, int(reply["pid"]), mine)

    def end(self, pid: int) -> int:
        """Kill and reap a worker; its wait status (0 if it is gone already)."""
        with self._lock:
            if self._control is None:
                return 0
            try:
                return int(self._exchange({"op": "end", "pid": pid})["status"])
            except (OSError, ValueError):
                self._drop()
                return 0

    def close(self) -> None:
        """End the nursery process and all of its workers."""
        with self._lock:
            self._drop()

    def _ask(self, request: dict[str, Any], passed: socket.socket | None = None) -> dict[str, Any]:
        for attempt in (0, 1):
            try:
                if self._control is None:
                    self._start()
                return self._exchange(request, passed)
            except (OSError, ValueError) as error:
                self._drop()
                if attempt:
                    raise VerifierError(f"verifier workers can't be started ({sys.executable}): {error}") from error
        raise AssertionError

    def _start(self) -> None:
        ours, theirs = socket.socketpair()
        try:
            path = [os.path.abspath(entry) for entry in sys.path]
            threads = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
            self._process = subprocess.Popen(
                [sys.executable, "-c", _BOOT.format(path=path, fd=theirs.fileno())],
                pass_fds=(theirs.fileno(),),
                stdin=subprocess.DEVNULL,
                env={**os.environ, **threads},
                start_new_session=True,
            )
        except BaseException:
            ours.close()
            raise
        finally:
            theirs.close()
        ours.settimeout(STARTUP_SECONDS)
        self._control = ours
        self._preloaded = set()

    def _exchange(self, request: dict[str, Any], passed: socket.socket | None = None) -> dict[str, Any]:
        assert self._control is not None
        data = json.dumps(request).encode()
        if passed is None:
            self._control.sendall(data)
        else:
            socket.send_fds(self._control, [data], [passed.fileno()])
        reply = self._control.recv(1 << 16)
        if not reply:
            raise ConnectionError("the nursery process ended")
        return json.loads(reply)

    def _drop(self) -> None:
        if self._control is not None:
            self._control.close()
            self._control = None
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None


class Worker:
    """Handle of one worker: frames out and in without ever blocking, CPU time, and a certain end."""

    def __init__(self, nursery: Nursery, pid: int, channel: socket.socket) -> None:
        channel.setblocking(False)
        self.pid, self.loaded, self.served = pid, set[str](), 0
        self._nursery, self._channel = nursery, channel
        self._out, self._in = bytearray(), bytearray()

    def fileno(self) -> int:
        return self._channel.fileno()

    @property
    def unsent(self) -> bool:
        """Whether bytes wait until the worker reads."""
        return bool(self._out)

    def load(self, name: str) -> None:
        """Ask for a verifier; the reply has `error`."""
        self._post("load", name, ([os.path.abspath(entry) for entry in sys.path], os.getcwd()))

    def job(self, name: str, payload: bytes) -> None:
        """Ask for a score; `payload` is the pickle of (completion, answer, columns, prompt)."""
        self._post("job", name, payload)

    def _post(self, kind: str, name: str, rest: Any) -> None:
        body = pickle.dumps((kind, name, rest), protocol=pickle.HIGHEST_PROTOCOL)
        self._out += HEADER.pack(len(body)) + body
        self.flush()

    def flush(self) -> None:
        """Send what can be sent now; a broken pipe shows at the next `receive`."""
        with contextlib.suppress(OSError):
            while self._out:
                del self._out[: self._channel.send(self._out[: 1 << 18])]

    def receive(self) -> list[dict[str, Any]]:
        """Whole replies that have arrived. Raises `WorkerLostError` at end-of-file and for what is no reply."""
        try:
            while part := self._channel.recv(1 << 16):
                self._in += part
                if len(self._in) > 64 * MAX_REPLY:
                    raise WorkerLostError
            closed = True
        except BlockingIOError:
            closed = False
        except OSError:
            closed = True
        replies = []
        while len(self._in) >= HEADER.size:
            size = HEADER.unpack_from(self._in)[0]
            if size > MAX_REPLY:
                raise WorkerLostError
            if len(self._in) < HEADER.size + size:
                break
            replies.append(self._decode(bytes(self._in[HEADER.size : HEADER.size + size])))
            del self._in[: HEADER.size + size]
        if closed and not replies:
            raise WorkerLostError
        return replies

    @staticmethod
    def _decode(body: bytes) -> dict[str, Any]:
        try:
            reply = json.loads(body)
        except ValueError:
            raise WorkerLostError from None
        if not isinstance(reply, dict) or not isinstance(reply.get("cpu"), float | int):
            raise WorkerLostError
        return reply

    def wait(self, seconds: float) -> dict[str, Any] | None:
        """The next reply, or None after so many seconds of wall time. Raises `WorkerLostError`."""
        end = time.monotonic() + seconds
        while (left := end - time.monotonic()) > 0:
            wait_for([self], left)
            self.flush()
            if replies := self.receive():
                return replies[0]
        return None

    def cpu(self) -> float | None:
        """CPU seconds that the process has used (all threads, reaped children), or None where the system doesn't tell."""
        try:
            with open(f"/proc/{self.pid}/stat") as stat:
                fields = stat.read().rpartition(")")[2].split()
            return sum(int(field) for field in fields[11:15]) / _TICKS
        except (OSError, IndexError, ValueError):
            return None

    def end(self) -> int:
        """Kill and reap the process; its wait status."""
        self._channel.close()
        return self._nursery.end(self.pid)


def wait_for(workers: Sequence[Worker], seconds: float | None, wake: int | None = None) -> set[int]:
    """Descriptors (of workers, and `wake`) that can be read, or written where bytes wait; blocks up to `seconds`."""
    poll = select.poll()
    for worker in workers:
        poll.register(worker.fileno(), select.POLLIN | (select.POLLOUT if worker.unsent else 0))
    if wake is not None:
        poll.register(wake, select.POLLIN)
    return {fd for fd, _ in poll.poll(None if seconds is None else max(1.0, seconds * 1000))}


_shared: Nursery | None = None
_shared_lock = threading.Lock()


def shared() -> Nursery:
    """The nursery of this process."""
    global _shared
    with _shared_lock:
        if _shared is None:
            _shared = Nursery()
            atexit.register(_shared.close)
        return _shared


def _forget() -> None:
    """A forked copy of this process must not talk to its parent's nursery."""
    global _shared, _shared_lock
    if _shared is not None:
        if _shared._control is not None:
            _shared._control.close()
        atexit.unregister(_shared.close)
    _shared, _shared_lock = None, threading.Lock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget)
