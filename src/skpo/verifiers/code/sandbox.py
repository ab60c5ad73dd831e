"""Programs in jails, from the outside: start, feed, listen, and a certain end.

with Sandbox() as sandbox:
    run = sandbox.whole(source, stdin="3 4\\n", limits=Limits(cpu=2, wall=5))
    run.status, run.stdout
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from skpo.errors import VerifierError
from skpo.verifiers.code.inside.namespaces import WORK

START_SECONDS = 60.0
_INSIDE = Path(__file__).parent / "inside"
# The packages above `inside` are made up: they would import the rest of `skpo`, which has no place in a jail.
_BOOT = """
import sys, types
for name, path in {packages!r}:
    module = types.ModuleType(name)
    module.__path__ = [path]
    sys.modules[name] = module
from skpo.verifiers.code.inside.zygote import serve
serve({fd})
"""


@dataclass(frozen=True)
class Limits:
    """What one program may use.

    cpu: CPU seconds (whole ones, rounded up); wall: seconds; memory_mb: MiB beyond the interpreter; output: bytes of
    standard output; file_mb: MiB of one file; folder_mb: MiB of all its files; threads: threads and processes.
    """

    cpu: float = 2.0
    wall: float = 10.0
    memory_mb: int = 1024
    output: int = 4 << 20
    file_mb: int = 16
    folder_mb: int = 32
    threads: int = 64


@dataclass
class Run:
    """How a program ended.

    status: exit code, minus the signal's number, or None where it was killed from here. failure: timeout, output, crash
    (its jail broke). layers: what shut it in.
    """

    status: int | None = None
    failure: str | None = None
    stdout: bytes = b""
    report: Any = None
    layers: tuple[str, ...] = ()
    notes: dict[str, str] = field(default_factory=dict)
    seconds: float = 0.0


class RefusedError(VerifierError):
    """The kernel doesn't isolate well enough, and nobody said that it needn't."""


class Sandbox:
    """Starts jails through one clean process. Not thread-safe: one for each thread.

    unsafe: run even where nothing isolates. namespaces, locks: layers to try (for tests of each by itself).
    """

    def __init__(self, unsafe: bool = False, *, namespaces: bool = True, locks: bool = True) -> None:
        self.unsafe, self.namespaces, self.locks = unsafe, namespaces, locks
        self._process: subprocess.Popen[bytes] | None = None
        self._control: socket.socket | None = None

    def __enter__(self) -> Sandbox:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """End the process, and all jails with it."""
        if self._control is not None:
            self._control.close()
        if self._process is not None:
            self._process.kill()
            self._process.wait()
        self._control = self._process = None

    def whole(self, source: str, stdin: str, limits: Limits) -> Run:
        """Run a program from standard input to standard output. Raises `RefusedError`."""
        read, write = os.pipe()
        with (
            _descriptors(_file(stdin.encode()), write) as fds,
            self._jail("whole", {"source": source}, fds, limits) as jail,
        ):
            return _listen([jail], read, limits)

    def tested(self, source: str, tests: dict[str, Any], limits: Limits) -> Run:
        """Run tests against what a program defines, each in a jail of its own; `report` is the tests'. Raises `RefusedError`."""
        ours, theirs = socket.socketpair()
        read, write = os.pipe()
        with (
            _descriptors(theirs.detach()) as line,
            self._jail("player", {"source": source}, line, limits) as program,
            _descriptors(ours.detach(), write) as fds,
            self._jail("judge", tests, fds, limits) as judge,
        ):
            run = _listen([judge, program], read, limits)
        with contextlib.suppress(ValueError):
            run.report = json.loads(run.stdout)
        return run

    def probe(self, job: dict[str, Any], limits: Limits) -> Run:
        """Try to break out, harmlessly; `report` is the list of what worked. Raises `RefusedError`."""
        read, write = os.pipe()
        with _descriptors(write) as fds, self._jail("probe", job, fds, limits) as jail:
            run = _listen([jail], read, limits)
        with contextlib.suppress(ValueError):
            run.report = json.loads(run.stdout)
        return run

    @contextlib.contextmanager
    def _jail(self, role: str, job: dict[str, Any], fds: list[int], limits: Limits) -> Iterator[_Jail]:
        """A started jail; its end is the end of all that is in it. `fds` are closed here once they have been handed over."""
        request = {
            "op": "start", "role": role, "cpu": -(-limits.cpu // 1), "memory_mb": limits.memory_mb,
            "file_mb": limits.file_mb, "folder_mb": limits.folder_mb, "threads": limits.threads, "unsafe": self.unsafe,
            "namespaces": self.namespaces, "locks": self.locks, "folder": tempfile.gettempdir(),
        }  # fmt: skip
        mine, its = socket.socketpair()
        with _descriptors(its.detach(), _file(json.dumps(job).encode())) as own:
            try:
                pid = int(self._ask(request, [*own, *fds])["pid"])
            except BaseException:
                mine.close()
                raise
        _close(fds)
        try:
            yield _Jail(mine, self.unsafe)
        finally:
            with contextlib.suppress(VerifierError):
                self._ask({"op": "end", "pid": pid})
            mine.close()

    def _ask(self, request: dict[str, Any], fds: list[int] | None = None) -> dict[str, Any]:
        if self._control is None:
            self._start()
        assert self._control is not None
        try:
            data = json.dumps(request).encode()
            if fds:
                socket.send_fds(self._control, [data], fds)
            else:
                self._control.sendall(data)
            reply = self._control.recv(1 << 16)
            if not reply:
                raise ConnectionError("it ended")
            answer: dict[str, Any] = json.loads(reply)
        except (OSError, ValueError) as error:
            self.close()
            raise VerifierError(f"verifier code: the process that starts jails is lost ({error})") from None
        return answer

    def _start(self) -> None:
        folders = [("skpo", _INSIDE.parents[2]), ("skpo.verifiers", _INSIDE.parents[1])]
        folders += [("skpo.verifiers.code", _INSIDE.parent)]
        ours, theirs = socket.socketpair(
            socket.AF_UNIX, socket.SOCK_SEQPACKET if sys.platform == "linux" else socket.SOCK_STREAM
        )
        try:
            boot = _BOOT.format(packages=[(name, str(path)) for name, path in folders], fd=theirs.fileno())
            self._process = subprocess.Popen(
                [sys.executable, "-s", "-P", "-S", "-B", "-X", "utf8", "-c", boot],
                pass_fds=(theirs.fileno(),), stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
                env={"PYTHONHASHSEED": "0", "LC_ALL": "C.UTF-8", "HOME": WORK, "TMPDIR": WORK}, cwd="/",
            )  # fmt: skip
        except BaseException:
            ours.close()
            raise
        finally:
            theirs.close()
        ours.settimeout(START_SECONDS)
        self._control = ours


class _Jail:
    """The line to a jail: what it says about itself."""

    def __init__(self, line: socket.socket, unsafe: bool) -> None:
        line.setblocking(False)
        self.line, self.unsafe = line, unsafe
        self.layers: tuple[str, ...] | None = None
        self.notes: dict[str, str] = {}
        self.status: int | None = None
        self.over = False
        self._buffer = b""

    def hear(self) -> None:
        """Take what has arrived. Raises `RefusedError`."""
        try:
            while part := self.line.recv(1 << 16):
                self._buffer += part
            self.over = True
        except BlockingIOError:
            pass
        except OSError:
            self.over = True
        *lines, self._buffer = self._buffer.split(b"\n")
        for line in lines:
            message = json.loads(line)
            if "layers" in message:
                self.layers, self.notes = tuple(message["layers"]), message["notes"]
            if "refused" in message and not self.unsafe:
                raise RefusedError(f"{message['refused']} ({'; '.join(f'{k}: {v}' for k, v in self.notes.items())})")
            if "status" in message:
                self.status = os.waitstatus_to_exitcode(message["status"])
                self.over = True


def _listen(jails: list[_Jail], output: int, limits: Limits) -> Run:
    """Read the first jail's output until it is over; the clock starts when it is shut. Closes `output`."""
    first, run, data = jails[0], Run(), bytearray()
    begin = time.monotonic()
    end = begin + START_SECONDS
    started = False
    os.set_blocking(output, False)
    poll = select.poll()
    open_output = True
    poll.register(output, select.POLLIN)
    for jail in jails:
        poll.register(jail.line, select.POLLIN)
    try:
        while not (first.over and not open_output):
            left = end - time.monotonic()
            if left <= 0:
                run.failure = "timeout" if started else "crash"
                break
            poll.poll(min(left, 1.0 if not first.over else 0.2) * 1000)
            for jail in jails:
                if not jail.over:
                    jail.hear()
                    if jail.over:
                        poll.unregister(jail.line)
            if not started and all(jail.layers is not None or jail.over for jail in jails):
                started, end = True, time.monotonic() + limits.wall
            while open_output:
                try:
                    part = os.read(output, 1 << 16)
                except BlockingIOError:
                    if first.over:  # what was written before the end is here by now
                        open_output = False
                    break
                data += part
                if not part:
                    open_output = False
                    poll.unregister(output)
                elif len(data) > limits.output:
                    run.failure = "output"
                    return run
    finally:
        os.close(output)
        run.stdout, run.seconds = bytes(data[: limits.output]), time.monotonic() - begin
        run.status, run.layers, run.notes = first.status, first.layers or (), first.notes
    if run.failure is None and first.status is None:
        run.failure = "crash"
    return run


def _file(data: bytes) -> int:
    """A descriptor of a file in memory that holds `data`, at its start."""
    fd = os.memfd_create("job") if hasattr(os, "memfd_create") else os.dup(tempfile.TemporaryFile().fileno())  # noqa: SIM115
    view = memoryview(data)
    while view:
        view = view[os.write(fd, view) :]
    os.lseek(fd, 0, os.SEEK_SET)
    return fd


def _close(fds: list[int]) -> None:
    while fds:
        os.close(fds.pop())


@contextlib.contextmanager
def _descriptors(*fds: int) -> Iterator[list[int]]:
    """Descriptors that are closed at the end, unless they were before."""
    held = list(fds)
    try:
        yield held
    finally:
        _close(held)
