"""What goes into a verifier pool and what comes out of it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

Failure = Literal["timeout", "crash", "exception", "memory", "bad_value"]


@dataclass(frozen=True)
class Job:
    """One completion to score. `columns`: the problem's other columns; `prompt`: text or chat messages."""

    verifier: str
    completion: str
    answer: Any
    columns: Mapping[str, Any] | None = None
    prompt: Any = None


@dataclass(frozen=True)
class Verdict:
    """Outcome of one job.

    score:   reward; 0.0 after a failure; None where a `python:` function skipped the row.
    failure: timeout, crash (the process died), exception, memory (limit reached), bad_value (no finite number came back).
    seconds: CPU seconds that the answer took in a worker; 0 where no worker was needed.
    """

    score: float | None
    failure: Failure | None = None
    seconds: float = 0.0
