"""From a request to a program that runs shut in: keeper (outside, waits) > process 1 (waits, reaps) > the program.

Each of them dies with the one before it. Until the last step of `_shut`, only code of this package runs.
"""

from __future__ import annotations

import contextlib
import json
import os
import resource
import signal
from collections.abc import Callable
from typing import Any

from skpo.verifiers.code.inside import kernel, landlock, namespaces, seccomp

Request = dict[str, Any]
FIRST_UID = 100_000
NOBODY = 65534
PROTECTIONS = {
    "files": ("namespaces", "landlock"),
    "network": ("namespaces", "seccomp"),
    "processes": ("namespaces", "seccomp"),
}
"""What has to be protected, and the layers of which one is enough."""


def keep(
    request: Request, fds: list[int], role: Callable[[Request, list[int]], None], why_not: str | None = None
) -> None:
    """Run `role(request, fds)` in a jail; fds[0] is the line to the caller, the others are the role's. Never returns.

    On that line, JSON lines: `layers` (what shuts the program in) and `notes` (why others don't), or `refused`; at the
    end `status`, the wait status of the program. why_not: why there are no namespaces here. Raises OSError where they fail
    all the same; nothing has run then.
    """
    layers: list[str] = []
    notes: dict[str, str] = {}
    own_users = False
    request["mapped"] = _mapped()
    with contextlib.suppress(OSError), open("/proc/self/oom_score_adj", "w") as score:
        score.write("1000")  # short of memory, the system ends this first
    if why_not:
        notes["namespaces"] = why_not
    elif request.get("namespaces", True):
        own_users = namespaces.enter(request["folder"], request["folder_mb"])
        layers.append("namespaces")
    ready, go = os.pipe()
    pid = os.fork()
    if not pid:
        os.close(go)
        _first(request, fds, role, layers, notes, ready, own_users)
    for fd in (*fds, ready):
        os.close(fd)
    os.write(go, b"g")  # process 1 now dies with this one
    os.waitpid(pid, 0)
    os._exit(0)


def _first(
    request: Request, fds: list[int], role: Callable[..., None], layers: list[str], notes: dict[str, str],
    ready: int, own_users: bool,
) -> None:  # fmt: skip
    """Process 1: give up privileges, start the program, wait for it, and end with it. Never returns."""
    try:
        _give_up_privileges(own_users, "namespaces" in layers)
        if kernel.LINUX:
            kernel.drop_capabilities()
        die_with_parent()
        if os.read(ready, 1) != b"g":
            os._exit(1)
        os.close(ready)
        if kernel.LINUX:
            kernel.prctl(kernel.PR_SET_DUMPABLE, 0)
        pid = os.fork()
        if not pid:
            _program(request, fds, role, layers, notes)
        for fd in fds[1:]:
            os.close(fd)
        ended, status = os.wait()
        while ended != pid:
            ended, status = os.wait()
        _say(fds[0], {"status": status})
    finally:
        os._exit(0)


def die_with_parent() -> None:
    """Have the kernel kill this process when its parent dies."""
    if kernel.LINUX:
        kernel.prctl(kernel.PR_SET_PDEATHSIG, signal.SIGKILL)


def _give_up_privileges(own_users: bool, inside: bool) -> None:
    """Be a user that nobody else is, where this is root and that one can read the standard library."""
    if own_users or os.geteuid() != 0:
        return
    if not inside and not all(map(_public, namespaces.library_folders())):
        return
    for uid in (FIRST_UID + os.getpid() + int.from_bytes(os.urandom(3), "little"), NOBODY):
        try:
            os.setgroups([])
            os.setresgid(uid, uid, uid)
            os.setresuid(uid, uid, uid)
            return
        except OSError:  # a number that this container doesn't have
            continue


def _public(path: str) -> bool:
    """Whether every user can reach a folder."""
    parts = [path[:i] for i, char in enumerate(path) if char == "/" and i] + [path]
    return all(os.stat(part).st_mode & 1 for part in parts)


def _program(
    request: Request, fds: list[int], role: Callable[..., None], layers: list[str], notes: dict[str, str]
) -> None:
    """The program's own process. Never returns."""
    code = 1
    try:
        os.setsid()
        die_with_parent()
        nothing = os.open(os.devnull, os.O_RDWR)
        for fd in (0, 1, 2):
            os.dup2(nothing, fd)
        _shut(request, layers, notes)
        missing = [what for what, by in PROTECTIONS.items() if not set(by) & set(layers)]
        answer: Request = {"layers": layers, "notes": notes}
        if missing and not request.get("unsafe"):
            answer["refused"] = f"no protection of {' and '.join(missing)}"
        _say(fds[0], answer)
        if "refused" not in answer:
            kept = _numbered(fds[1:])
            role(request, kept)
            code = 0
    except MemoryError:
        code = 3
    finally:
        os._exit(code)


def _numbered(fds: list[int]) -> list[int]:
    """The descriptors as 3, 4, ...; all others are closed."""
    high = [fd_above(fd, 64) for fd in fds]
    for number, fd in enumerate(high, start=3):
        os.dup2(fd, number)
    os.closerange(3 + len(fds), 4096)
    return list(range(3, 3 + len(fds)))


def fd_above(fd: int, low: int) -> int:
    """A copy of a descriptor with a number of at least `low`."""
    import fcntl

    return fcntl.fcntl(fd, fcntl.F_DUPFD, low)


def _shut(request: Request, layers: list[str], notes: dict[str, str]) -> None:
    """Limits first, then the kernel's locks; adds to `layers` what holds and to `notes` why something doesn't."""
    inside = "namespaces" in layers
    work = namespaces.WORK if inside else None
    os.chdir(work or "/")
    limit(request)
    if not kernel.LINUX or not request.get("locks", True):
        return
    kernel.prctl(kernel.PR_SET_NO_NEW_PRIVS, 1)
    try:
        readable = namespaces.library_folders() if inside else namespaces.readable_folders()
        abi = landlock.restrict(readable, [work] if work else [], namespaces.DEVICES)
        layers.append("landlock")
        notes["landlock"] = f"version {abi}"
    except OSError as error:
        notes["landlock"] = str(error)
    try:
        seccomp.install(files_visible=not inside)
        layers.append("seccomp")
    except OSError as error:
        notes["seccomp"] = str(error)


def limit(request: Request) -> None:
    """Hard limits: CPU seconds, memory beyond what is mapped now, size of a file, open files, threads; no core dump."""
    cpu = int(request["cpu"])
    wanted = {
        "RLIMIT_CORE": (0, 0),
        "RLIMIT_CPU": (cpu, cpu + 1),
        "RLIMIT_AS": (request["mapped"] + (request["memory_mb"] << 20),) * 2,
        "RLIMIT_FSIZE": (request["file_mb"] << 20,) * 2,
        "RLIMIT_NOFILE": (256, 256),
        "RLIMIT_NPROC": (request["threads"],) * 2,
        "RLIMIT_MEMLOCK": (0, 0),
        "RLIMIT_MSGQUEUE": (0, 0),
    }
    for name, (soft, hard) in wanted.items():
        kind = getattr(resource, name, None)
        if kind is None:
            continue
        most = resource.getrlimit(kind)[1]
        if most != resource.RLIM_INFINITY:
            soft, hard = min(soft, most), min(hard, most)
        with contextlib.suppress(ValueError, OSError):
            resource.setrlimit(kind, (soft, hard))


def _mapped() -> int:
    """Bytes of address space in use."""
    with contextlib.suppress(OSError, ValueError), open("/proc/self/statm") as statm:
        return int(statm.read().split()[0]) * resource.getpagesize()
    return 256 << 20


def _say(fd: int, message: Request) -> None:
    with contextlib.suppress(OSError):
        os.write(fd, json.dumps(message).encode() + b"\n")
