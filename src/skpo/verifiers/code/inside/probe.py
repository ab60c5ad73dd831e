"""Harmless attempts at everything that a jail has to stop."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable
from typing import Any


def breaches(work: dict[str, Any]) -> list[str]:
    """Names of the attempts that worked. work: `victim` (a file that anyone may write), `port` (a listener on this
    machine), `pid` (the caller), `mark` (a text in its environment)."""
    attempts: dict[str, Callable[[], object]] = {
        "write a file": lambda: os.close(os.open(work["victim"], os.O_WRONLY | os.O_APPEND)),
        "read a file": lambda: os.close(os.open(work["victim"], os.O_RDONLY)),
        "create a file": lambda: os.close(os.open(work["victim"] + ".new", os.O_WRONLY | os.O_CREAT)),
        "delete a file": lambda: os.unlink(work["victim"] + ".spare"),
        "use the network": lambda: socket.create_connection(("127.0.0.1", work["port"]), timeout=0.5),
        "signal another process": lambda: _signal(work["pid"]),
        "read another process's environment": lambda: os.close(os.open(f"/proc/{work['pid']}/environ", os.O_RDONLY)),
        "start a process": _fork,
    }
    found = []
    for name, attempt in attempts.items():
        try:
            attempt()
        except OSError:
            continue
        found.append(name)
    if any(work["mark"] in value for value in os.environ.values()):
        found.append("read the environment")
    return found


def _signal(pid: int) -> None:
    if pid == os.getpid():
        raise OSError
    os.kill(pid, 0)


def _fork() -> None:
    pid = os.fork()
    if not pid:
        os._exit(0)
    os.waitpid(pid, 0)
