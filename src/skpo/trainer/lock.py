"""One run per folder: a lock that the kernel drops when its process ends, however it ends."""

from __future__ import annotations

import fcntl
import json
import os
import socket
import time
from pathlib import Path
from types import TracebackType
from typing import IO, Any

from skpo.errors import RunError

FILE = ".lock"

_held: set[Path] = set()  # a process never conflicts with its own POSIX locks


class RunLock:
    """Exclusive use of a run folder, as a context manager or with `acquire` and `release`.

    A POSIX record lock, not flock: forked children (verifier workers) don't inherit it, so one that outlives a crashed
    trainer doesn't keep the folder locked. The folder is made if missing. Raises RunError if another run holds it.
    """

    def __init__(self, folder: Path | str) -> None:
        self.folder = Path(folder)
        self._file: IO[str] | None = None

    def acquire(self) -> RunLock:
        self.folder.mkdir(parents=True, exist_ok=True)
        path = (self.folder / FILE).resolve()
        if path in _held:
            raise RunError(self._message({"pid": os.getpid(), "host": socket.gethostname()}))
        file = path.open("a+")
        try:
            fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            holder = _read(file)
            file.close()
            raise RunError(self._message(holder)) from None
        file.truncate(0)
        since = time.strftime("%Y-%m-%d %H:%M:%S")
        json.dump({"pid": os.getpid(), "host": socket.gethostname(), "since": since}, file)
        file.flush()
        self._file = file
        _held.add(path)
        return self

    def release(self) -> None:
        """Give the folder free. Does nothing if it isn't held."""
        if self._file is not None:
            _held.discard((self.folder / FILE).resolve())
            self._file.truncate(0)
            self._file.close()
            self._file = None

    def _message(self, holder: dict[str, Any]) -> str:
        who = f"process {holder.get('pid', '?')} on {holder.get('host', '?')}"
        since = f" since {holder['since']}" if "since" in holder else ""
        return f"{self.folder}: {who} is using this run folder{since}; wait for it, stop it, or choose another with out=FOLDER"

    def __enter__(self) -> RunLock:
        return self.acquire()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.release()


def _read(file: IO[str]) -> dict[str, Any]:
    """What the holder wrote about itself; empty if it has not yet."""
    file.seek(0)
    try:
        holder = json.loads(file.read())
    except ValueError:
        return {}
    return holder if isinstance(holder, dict) else {}
