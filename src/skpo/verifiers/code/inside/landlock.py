"""Landlock: this process may read a few folders, write in one, and neither use TCP nor signal others."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Iterable

from skpo.verifiers.code.inside import kernel

EXECUTE, WRITE_FILE, READ_FILE, READ_DIR, TRUNCATE = 1, 2, 4, 8, 1 << 14
FILE_RIGHTS = EXECUTE | WRITE_FILE | READ_FILE | TRUNCATE | 1 << 15
RIGHTS = {1: 13, 2: 14, 3: 15, 4: 15, 5: 16}
"""ABI version to the number of rights over files that it knows; 16 from version 5 on."""


class _Ruleset(ctypes.Structure):
    _fields_ = [("files", ctypes.c_uint64), ("net", ctypes.c_uint64), ("scoped", ctypes.c_uint64)]


class _Beneath(ctypes.Structure):
    _pack_ = 1
    _layout_ = "ms"
    _fields_ = [("allowed", ctypes.c_uint64), ("parent", ctypes.c_int32)]


def version() -> int:
    """The ABI version of the kernel. Raises OSError where it has no Landlock."""
    return kernel.syscall("landlock", kernel.SYS_LANDLOCK_CREATE, None, 0, 1)


def restrict(readable: Iterable[str], writable: Iterable[str], devices: Iterable[str]) -> int:
    """Restrict this process to these paths (those that exist); needs no_new_privs. The ABI version. Raises OSError."""
    abi = version()
    every = (1 << RIGHTS.get(abi, 16)) - 1
    rules = _Ruleset(every, 3 if abi >= 4 else 0, 3 if abi >= 6 else 0)
    size = 24 if abi >= 6 else 16 if abi >= 4 else 8
    ruleset = kernel.syscall("landlock", kernel.SYS_LANDLOCK_CREATE, ctypes.byref(rules), size, 0)
    try:
        for paths, rights in ((readable, READ_FILE | READ_DIR | EXECUTE), (writable, every), (devices, FILE_RIGHTS)):
            for path in paths:
                _allow(ruleset, path, rights & every)
        kernel.syscall("landlock", kernel.SYS_LANDLOCK_RESTRICT, ruleset, 0)
    finally:
        os.close(ruleset)
    return abi


def _allow(ruleset: int, path: str, rights: int) -> None:
    try:
        parent = os.open(path, os.O_PATH | os.O_CLOEXEC)
    except OSError:
        return
    try:
        if not os.path.isdir(path):
            rights &= FILE_RIGHTS
        rule = _Beneath(rights, parent)
        kernel.syscall("landlock", kernel.SYS_LANDLOCK_ADD, ruleset, 1, ctypes.byref(rule), 0)
    finally:
        os.close(parent)
