"""Rows of `problems.jsonl` and `problems.parquet`."""

from __future__ import annotations

import gzip
import json
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from skpo.errors import ProblemError
from skpo.problems.rows import Row


def jsonl_rows(path: Path) -> Iterator[Row]:
    """Objects of a JSON Lines file (UTF-8, also `.jsonl.gz`), named `problems.jsonl:17` by line; blank lines are passed over.

    Raises `ProblemError` for a file that can't be read, a line that is no JSON, and a file without rows.
    """
    empty = True
    try:
        with gzip.open(path) if path.suffix == ".gz" else path.open("rb") as lines:
            for number, line in enumerate(lines, start=1):
                if line.strip():
                    empty = False
                    where = f"{path}:{number}"
                    yield where, _json(where, line.removeprefix(b"\xef\xbb\xbf"))
    except (OSError, EOFError, zlib.error) as error:
        raise ProblemError(unreadable(path, error)) from None
    if empty:
        raise ProblemError(f"{path}: no problems in this file.")


def _json(where: str, line: bytes) -> Any:
    """One line's value."""
    try:
        return json.loads(line.decode())
    except UnicodeDecodeError as error:
        raise ProblemError(f"{where}: no UTF-8 text (byte {error.start}). Save the file as UTF-8.") from None
    except json.JSONDecodeError as error:
        reason = f"{error.msg}, column {error.colno}"
    except (ValueError, RecursionError) as error:  # a number with thousands of digits; brackets in brackets
        reason = str(error)
    raise ProblemError(f"{where}: invalid JSON ({reason}). Write one object a line.")


def parquet_rows(path: Path) -> Iterator[Row]:
    """Rows of a parquet file, named `problems.parquet, row 17`, counted from 0 as in pandas.

    Raises `ProblemError` for a file that can't be read or has no rows.
    """
    import pyarrow
    import pyarrow.parquet

    number = 0
    try:
        with pyarrow.parquet.ParquetFile(path) as file:
            for batch in file.iter_batches():
                for row in batch.to_pylist():
                    yield f"{path}, row {number}", row
                    number += 1
    except OSError as error:
        raise ProblemError(unreadable(path, error)) from None
    except pyarrow.ArrowException as error:
        raise ProblemError(f"{path}: no readable parquet file ({str(error).splitlines()[0]})") from None
    if not number:
        raise ProblemError(f"{path}: no problems in this file.")


def unreadable(path: Path, error: Exception) -> str:
    """Message for a file that can't be opened or read."""
    if not path.exists():
        return f"{path}: no such file (looked in {Path.cwd()})."
    return f"{path}: can't be read ({getattr(error, 'strerror', None) or error})."
