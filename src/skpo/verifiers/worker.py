"""What runs in the helper processes: a nursery that forks workers, and the loop of a worker.

The nursery is a small process of its own, started from scratch: it never loads torch and has one thread, so that forking
from it is safe and takes milliseconds, with the heavy modules already imported. It ends with its parent (end of file on
its socket), and its workers end with it (a death signal).
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import importlib
import json
import math
import os
import pickle
import signal
import socket
import struct
import sys
import time
from typing import Any

from skpo.verifiers.base import BadValueError

HEADER = struct.Struct(">I")
_PR_SET_PDEATHSIG = 1


def nursery(fd: int) -> None:
    """Answer requests on the socket `fd` (preload, fork, end) until the other side closes it."""
    control = socket.socket(fileno=fd)
    libc = ctypes.CDLL(None) if sys.platform == "linux" else None
    os.dup2(2, 1)
    while True:
        data, fds, _, _ = socket.recv_fds(control, 1 << 16, 1)
        if not data:
            os._exit(0)
        request = json.loads(data)
        if request["op"] == "preload":
            reply: dict[str, Any] = {"error": _preload(request["modules"])}
        elif request["op"] == "fork":
            reply = {"pid": _fork(control, fds[0], int(request["memory_mb"]), libc)}
        else:
            reply = {"status": _end(int(request["pid"]))}
        control.sendall(json.dumps(reply).encode())


def _preload(modules: list[str]) -> str | None:
    """Import each `module`, and call each `module:function` without arguments; the first error, or None."""
    for module in modules:
        try:
            _import(module)
        except Exception as error:
            return f"{module}: {type(error).__name__}: {error}"
    gc.collect()
    gc.freeze()
    return None


def _import(entry: str) -> None:
    name, _, function = entry.partition(":")
    imported = importlib.import_module(name)
    if function:
        getattr(imported, function)()


def _fork(control: socket.socket, fd: int, memory_mb: int, libc: Any) -> int:
    parent = os.getpid()
    pid = os.fork()
    if pid:
        os.close(fd)
        return pid
    try:
        control.close()
        os.setsid()
        if libc is not None:
            libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
            if os.getppid() != parent:
                os._exit(1)
        _limit_memory(memory_mb)
        serve(socket.socket(fileno=fd))
    finally:
        os._exit(1)


def _end(pid: int) -> int:
    """Kill a worker with all of its process group, and reap it; its wait status."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(pid, signal.SIGKILL)
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)
    try:
        return os.waitpid(pid, 0)[1]
    except ChildProcessError:
        return 0


def _limit_memory(memory_mb: int) -> None:
    """Cap the address space at what is mapped now plus `memory_mb` MiB; no core dumps."""
    import resource

    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    mapped = 0
    with contextlib.suppress(OSError), open("/proc/self/statm") as stat:
        mapped = int(stat.read().split()[0]) * os.sysconf("SC_PAGE_SIZE")
    limit = mapped + memory_mb * (1 << 20)
    with contextlib.suppress(ValueError, OSError):
        resource.setrlimit(resource.RLIMIT_AS, (limit, limit))


def serve(channel: socket.socket) -> None:
    """A worker's loop: load verifiers and score jobs in the order in which they arrive, one reply each."""
    verifiers: dict[str, Any] = {}
    sys.stdin = open(os.devnull)  # noqa: SIM115
    while (message := _receive(channel)) is not None:
        kind, name, rest = message
        if kind == "load":
            reply = _load(verifiers, name, rest)
        else:
            reply = _score(verifiers[name], rest)
        _send(channel, reply)


def _load(verifiers: dict[str, Any], name: str, place: tuple[list[str], str]) -> dict[str, Any]:
    from skpo.verifiers import make

    try:
        path, folder = place
        sys.path[:] = [folder, *(entry for entry in path if entry != folder)]
        os.chdir(folder)
        verifiers[name] = verifier = make(name)
        for entry in verifier.preload:  # nothing to do where the nursery has it
            _import(entry)
        verifier.load()
    except MemoryError:
        return {"error": "the memory limit was reached; raise verify.memory_mb", "cpu": time.process_time()}
    except BaseException as error:
        return {"error": f"{type(error).__name__}: {error}"[:2000], "cpu": time.process_time()}
    return {"error": None, "cpu": time.process_time()}


def _score(verifier: Any, payload: bytes) -> dict[str, Any]:
    cpu, wall = time.process_time(), time.monotonic()
    score, failure = _outcome(verifier, payload)
    now = time.process_time()
    return {"score": score, "failure": failure, "used": now - cpu, "wall": time.monotonic() - wall, "cpu": now}


def _outcome(verifier: Any, payload: bytes) -> tuple[float | None, str | None]:
    try:
        completion, answer, columns, prompt = pickle.loads(payload)
        score = verifier.slow(completion, answer, columns, prompt)
    except MemoryError:
        return 0.0, "memory"
    except BadValueError:
        return 0.0, "bad_value"
    except BaseException:
        return 0.0, "exception"
    if score is None:
        return None, None
    try:
        score = float(score)
    except BaseException:
        return 0.0, "bad_value"
    return (score, None) if math.isfinite(score) else (0.0, "bad_value")


def _receive(channel: socket.socket) -> tuple[str, str, Any] | None:
    header = _exactly(channel, HEADER.size)
    body = _exactly(channel, HEADER.unpack(header)[0]) if header else None
    return pickle.loads(body) if body is not None else None


def _exactly(channel: socket.socket, size: int) -> bytes | None:
    data = bytearray()
    while len(data) < size:
        part = channel.recv(min(size - len(data), 1 << 20))
        if not part:
            return None
        data += part
    return bytes(data)


def _send(channel: socket.socket, reply: dict[str, Any]) -> None:
    body = json.dumps(reply).encode()
    channel.sendall(HEADER.pack(len(body)) + body)
