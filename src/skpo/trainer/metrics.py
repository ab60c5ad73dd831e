"""`metrics.jsonl`: one JSON object per step, durable the moment it is written."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from skpo.errors import RunError

FILE = "metrics.jsonl"


class MetricsWriter:
    """Appends records to `folder/metrics.jsonl`, each on disk (flush and fsync) before `write` returns.

    folder:      the run's folder; made if missing.
    resume_step: keep earlier records up to and including this step and drop later ones, which the resumed run writes
                 again; None starts an empty file.
    """

    def __init__(self, folder: Path | str, resume_step: int | None = None) -> None:
        self.path = Path(folder) / FILE
        self.path.parent.mkdir(parents=True, exist_ok=True)
        kept = [] if resume_step is None else [r for r in read_metrics(folder) if r.get("step", 0) <= resume_step]
        write_atomically(self.path, "".join(f"{json.dumps(record)}\n" for record in kept).encode())
        self._file = self.path.open("a", encoding="utf-8")

    def write(self, record: Mapping[str, Any]) -> None:
        """Append one record. Values that are NaN or infinite become null and are counted under `nonfinite_values`."""
        clean, bad = _clean(dict(record))
        if bad:
            clean["nonfinite_values"] = bad
        self._file.write(json.dumps(clean) + "\n")
        self._file.flush()
        os.fsync(self._file.fileno())

    def close(self) -> None:
        self._file.close()


def read_metrics(folder: Path | str) -> list[dict[str, Any]]:
    """All records of a run, in order; an empty list where there is no file.

    A last line that was cut off by a crash is left out. Raises RunError for damage anywhere else.
    """
    path = Path(folder) / FILE
    if not path.exists():
        return []
    lines = path.read_text(encoding="utf-8", errors="replace").splitlines()
    records = []
    for number, line in enumerate(lines, start=1):
        try:
            record = json.loads(line)
            if not isinstance(record, dict):
                raise ValueError("not an object")
        except ValueError:
            if number == len(lines):
                break
            raise RunError(f"{path}:{number}: not a JSON object; repair or delete that line") from None
        records.append(record)
    return records


def write_atomically(path: Path, content: bytes) -> None:
    """Replace a file so that a crash at any instant leaves the old or the new one, whole."""
    temporary = path.with_name(f".{path.name}.tmp")
    with temporary.open("wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
    os.replace(temporary, path)


def _clean(value: Any) -> tuple[Any, int]:
    """(JSON-ready copy, number of non-finite values in it); tensors and numpy scalars become plain numbers."""
    if isinstance(value, Mapping):
        pairs = {str(key): _clean(inner) for key, inner in value.items()}
        return {key: inner for key, (inner, _) in pairs.items()}, sum(bad for _, bad in pairs.values())
    if isinstance(value, list | tuple):
        items = [_clean(inner) for inner in value]
        return [inner for inner, _ in items], sum(bad for _, bad in items)
    if hasattr(value, "item"):
        value = value.item()
    if isinstance(value, float) and not math.isfinite(value):
        return None, 1
    return (value if value is None or isinstance(value, bool | int | float | str) else str(value)), 0
