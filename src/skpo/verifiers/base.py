"""What a verifier is, and how one is found by name."""

from __future__ import annotations

from typing import Any, Protocol


class Verifier(Protocol):
    """Scores one completion against a gold answer.

    `score` returns a float in [0, 1], never raises and never outlives its deadline (2 s): a hang, a crash or an
    exception scores 0. `check_gold` raises `VerifierError` for an answer that this verifier can't read, so that a bad
    gold answer is refused when problems are loaded.
    """

    name: str

    def score(self, completion: str, answer: Any) -> float: ...

    def check_gold(self, answer: Any) -> None: ...
