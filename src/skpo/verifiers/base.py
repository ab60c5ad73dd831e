"""What a verifier is, and the frame that the built-in ones share."""

from __future__ import annotations

import math
import numbers
import pickle
from collections.abc import Mapping
from typing import Any, Protocol

from skpo.errors import VerifierError

Columns = Mapping[str, Any]


class Verifier(Protocol):
    """Scores one completion against a gold answer.

    `score` returns a float in [0, 1], never raises and never outlives its deadline (2 s): a hang, a crash or an
    exception scores 0. `check_gold` raises `VerifierError` for an answer that this verifier can't read, so that a bad
    gold answer is refused when problems are loaded. A `python:` function alone may return floats outside [0, 1].
    """

    name: str

    def score(self, completion: str, answer: Any, columns: Columns | None = None, prompt: Any = None) -> float: ...

    def check_gold(self, answer: Any) -> None: ...


class BadValueError(ValueError):
    """A verifier got, or returned, something that is no finite number."""


class BaseVerifier:
    """A verifier in two parts: `quick` runs in the caller's process, `slow` only in a worker that can be killed.

    name:    the name it was asked for by, under which a worker builds its own copy.
    preload: modules that `slow` needs (or `module:function` to call); imported once, before any worker is made.
    """

    preload: tuple[str, ...] = ()
    unsafe_code = False  #: run programs even where the kernel doesn't isolate them; set by the caller alone
    votes = True  #: completions have a final answer, so that a majority can be taken
    one_answer = False  #: a problem has one right answer, so that all right completions agree

    def __init__(self, name: str, deadline: float = 2.0) -> None:
        self.name, self.deadline = name, deadline

    def quick(self, completion: str, answer: Any) -> float | None:
        """Score where it takes microseconds and can't hang; None where only `slow` can tell."""
        return None

    def prepare(self) -> None:
        """Get ready before the first score: let helper processes import in the background what `slow` will need."""
        if self.preload:
            from skpo.verifiers.nursery import shared

            shared().warm(self.preload)

    def normal(self, completion: str) -> str | None:
        """The final answer in a form in which equal answers are equal, as far as `alike` doesn't say; None: no answer."""
        from skpo.verifiers.extract import final_answer

        found = final_answer(completion)
        return " ".join(found.split()) or None if found is not None else None

    def alike(self, one: str, other: str) -> bool:
        """Whether two normal forms are the same answer; never raises, never takes long."""
        return one == other

    def ready(self) -> None:
        """Raise `VerifierError` where this verifier must not, or can't, score on this machine."""

    def pack(self, completion: str, answer: Any, columns: Columns | None, prompt: Any, seconds: float) -> bytes:
        """Pickle of what `slow` gets; `seconds`: wall time after which the worker is ended."""
        return pickle.dumps((completion, answer, dict(columns or {}), prompt), protocol=pickle.HIGHEST_PROTOCOL)

    def load(self) -> None:
        """Import what `slow` needs; runs in the worker, may raise."""

    def slow(self, completion: str, answer: Any, columns: Columns, prompt: Any) -> float | None:
        """Score in a worker, where it may hang, crash or raise; None skips the row."""
        raise NotImplementedError

    def score(self, completion: str, answer: Any, columns: Columns | None = None, prompt: Any = None) -> float:
        """Score of one completion within `deadline` seconds; 0.0 for a failure or a skipped row. Never raises."""
        from skpo.verifiers.direct import judge

        verdict = judge(self, completion, answer, columns, prompt)
        return verdict.score if verdict.score is not None else 0.0

    def check_gold(self, answer: Any) -> None:
        """Raise `VerifierError` for a gold answer that can't be read."""


def gold_text(answer: Any, verifier: str) -> str:
    """A gold answer as text; numbers are fine, booleans, None, containers and empty text are not."""
    if isinstance(answer, bool) or not isinstance(answer, str | numbers.Real):
        kind = type(answer).__name__
        raise VerifierError(f"verifier {verifier}: gold answer {answer!r:.80} is a {kind}; give text or a number.")
    if isinstance(answer, str | numbers.Rational):
        text = str(answer)
    else:
        text = repr(float(answer))
        if not math.isfinite(float(answer)):
            raise VerifierError(f"verifier {verifier}: gold answer {answer!r} is not finite.")
    if not text.strip():
        raise VerifierError(f"verifier {verifier}: the gold answer is empty.")
    return text
