"""A small clean process that starts jails: forking it takes milliseconds, and nothing of the caller is in its memory."""

from __future__ import annotations

import array
import contextlib
import json
import os
import signal
import socket
from typing import Any

from skpo.verifiers.code.inside import jail, kernel, namespaces, roles

# Loaded once here, so that no program waits for them.
WARM = ("typing", "math", "collections", "re", "functools", "itertools", "random", "string", "heapq", "bisect", "copy",
        "statistics", "hashlib", "datetime", "operator", "dataclasses", "inspect")  # fmt: skip


def serve(fd: int) -> None:
    """Answer requests on a socket until the other side closes it: `start` (with descriptors) and `end` of a jail."""
    jail.die_with_parent()
    control = socket.socket(fileno=fd)
    for module in WARM:
        __import__(module)
    namespaces.readable_folders()  # worked out here once, where there is a /proc and an /etc
    why_not: str | None = None if kernel.LINUX else "not Linux"
    tried = False
    while True:
        data, ancillary, _, _ = control.recvmsg(1 << 16, socket.CMSG_SPACE(8 * 4))
        if not data:
            os._exit(0)
        request = json.loads(data)
        if request["op"] == "start":
            if request["namespaces"] and not tried and not why_not:
                why_not, tried = namespaces.trial(request["folder"], request["folder_mb"]), True
            reply = {"pid": _start(control, request, _descriptors(ancillary), why_not)}
        else:
            reply = {"status": _end(int(request["pid"]))}
        control.sendall(json.dumps(reply).encode())


def _descriptors(ancillary: list[Any]) -> list[int]:
    found = array.array("i")
    for _, _, data in ancillary:
        found.frombytes(data[: len(data) - len(data) % found.itemsize])
    return list(found)


def _start(control: socket.socket, request: dict[str, Any], fds: list[int], why_not: str | None) -> int:
    """Fork a jail's keeper; its process id."""
    mine = os.getpid()
    pid = os.fork()
    if pid:
        for fd in fds:
            os.close(fd)
        return pid
    try:
        os.close(control.detach())
        jail.die_with_parent()
        if os.getppid() == mine:
            jail.keep(request, fds, roles.run, why_not)
    finally:
        os._exit(1)


def _end(pid: int) -> int:
    """Kill a jail's keeper, and with it all that is inside; its wait status, once it is gone."""
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)
    with contextlib.suppress(ChildProcessError):
        return os.waitpid(pid, 0)[1]
    return 0
