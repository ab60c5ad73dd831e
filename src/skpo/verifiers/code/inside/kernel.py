"""System calls that Python has no function for."""

from __future__ import annotations

import ctypes
import os
import platform
import sys
from typing import Any

LINUX = sys.platform == "linux"
MACHINE = {"x86_64": 0, "amd64": 0, "aarch64": 1, "arm64": 1}.get(platform.machine().lower())
"""Column of the tables of system call numbers; None on another processor: no seccomp there."""

PR_SET_PDEATHSIG, PR_SET_DUMPABLE, PR_SET_SECCOMP, PR_SET_NO_NEW_PRIVS = 1, 4, 22, 38
NEWNS, NEWCGROUP, NEWUTS, NEWIPC, NEWUSER, NEWPID, NEWNET = (
    0x20000, 0x2000000, 0x4000000, 0x8000000, 0x10000000, 0x20000000, 0x40000000,
)  # fmt: skip
MS_RDONLY, MS_NOSUID, MS_NODEV, MS_BIND, MS_REC, MS_PRIVATE = 1, 2, 4, 4096, 16384, 1 << 18
MNT_DETACH = 2
AT_FDCWD, AT_RECURSIVE = -100, 0x8000
MOUNT_ATTR_RDONLY, MOUNT_ATTR_NOSUID, MOUNT_ATTR_NODEV = 1, 2, 4
SYS_MOUNT_SETATTR = 442
SYS_PIVOT_ROOT = (155, 41)
SYS_CAPSET = (126, 91)
SYS_LANDLOCK_CREATE, SYS_LANDLOCK_ADD, SYS_LANDLOCK_RESTRICT = 444, 445, 446

_libc: Any = ctypes.CDLL(None, use_errno=True) if LINUX else None


def checked(result: int, what: str) -> int:
    """The result of a call. Raises OSError where it is negative."""
    if result < 0:
        code = ctypes.get_errno()
        raise OSError(code, f"{what}: {os.strerror(code)}")
    return result


def prctl(option: int, value: Any, third: Any = 0) -> None:
    """Raises OSError."""
    checked(_libc.prctl(option, value, third, 0, 0), f"prctl {option}")


def syscall(what: str, number: int, *args: Any) -> int:
    """A system call by number, its integers as longs. Raises OSError."""
    words = [ctypes.c_long(a) if isinstance(a, int) else a for a in args]
    return checked(_libc.syscall(ctypes.c_long(number), *words), what)


def unshare(flags: int) -> None:
    """Leave namespaces. Raises OSError."""
    checked(_libc.unshare(flags), "unshare")


def mount(source: str, target: str, kind: str | None, flags: int, options: str | None = None) -> None:
    """Raises OSError."""
    arguments = [text.encode() if text is not None else None for text in (source, target, kind)]
    checked(_libc.mount(*arguments, ctypes.c_ulong(flags), options.encode() if options else None), f"mount {target}")


def seal(target: str, attributes: int, recursive: bool = True) -> None:
    """Add attributes (read-only, ...) to a mount and those below it (Linux 5.12). Raises OSError."""

    class Attributes(ctypes.Structure):
        _fields_ = [(name, ctypes.c_uint64) for name in ("set", "clear", "propagation", "userns")]

    wanted = Attributes(attributes, 0, 0, 0)
    flags = AT_RECURSIVE if recursive else 0
    size = ctypes.sizeof(wanted)
    syscall("mount_setattr", SYS_MOUNT_SETATTR, AT_FDCWD, target.encode(), flags, ctypes.byref(wanted), size)


def pivot(folder: str) -> None:
    """Make a mounted folder the root, and let go of the old one. Raises OSError."""
    os.chdir(folder)
    syscall("pivot_root", SYS_PIVOT_ROOT[MACHINE or 0], b".", b".")
    checked(_libc.umount2(b".", MNT_DETACH), "umount of the old root")
    os.chdir("/")


def drop_capabilities() -> None:
    """Give up every capability. Raises OSError."""
    header = (ctypes.c_uint32 * 2)(0x20080522, 0)
    nothing = (ctypes.c_uint32 * 6)()
    syscall("capset", SYS_CAPSET[MACHINE or 0], header, nothing)
