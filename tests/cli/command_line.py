"""What `skpo WORDS...` gave: the type of the fixture `invoke`."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass


@dataclass
class Outcome:
    code: int
    out: str
    err: str


Invoke = Callable[..., Outcome]
