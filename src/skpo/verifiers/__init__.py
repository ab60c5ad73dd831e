"""Verifiers: rewards that can be checked. `get_verifier(name).score(completion, answer)` is a float in [0, 1].

Names: `math`, `number`, `choice`, `exact`, `gym`, `code`, and `python:module:function` for a function of one's own.
A new built-in one is a class in a file here and a line in `VERIFIERS`.
"""

from __future__ import annotations

from importlib import import_module

from skpo.errors import VerifierError, unknown
from skpo.verifiers.base import BaseVerifier, Verifier

__all__ = ["VERIFIERS", "BaseVerifier", "Verifier", "get_verifier"]

VERIFIERS = {
    "math": "skpo.verifiers.math:MathVerifier",
    "number": "skpo.verifiers.simple:NumberVerifier",
    "choice": "skpo.verifiers.simple:ChoiceVerifier",
    "exact": "skpo.verifiers.simple:ExactVerifier",
    "gym": "skpo.verifiers.gym:GymVerifier",
    "code": "skpo.verifiers.code:CodeVerifier",
    "python": "skpo.verifiers.function:FunctionVerifier",
}
"""Name (for `python:module:function`, what stands before the first colon) to `module:class`."""


def get_verifier(name: str, *, deadline: float = 2.0, unsafe_code: bool = False) -> BaseVerifier:
    """The verifier of that name; `deadline` is what one `score` may take, in seconds.

    unsafe_code: let `code` run programs even where the kernel doesn't isolate them. Raises `VerifierError` for an unknown
    name, for a `python:` name whose module can't be found, and for `code` where nothing isolates.
    """
    verifier = make(name, deadline)
    verifier.unsafe_code = unsafe_code
    verifier.prepare()
    return verifier


def make(name: str, deadline: float = 2.0) -> BaseVerifier:
    """Like `get_verifier`, without any preparation: what a worker calls."""
    key = name.partition(":")[0]
    if key not in VERIFIERS or (key != name and key != "python"):
        raise VerifierError(
            unknown("verifier", name, [*(k for k in VERIFIERS if k != "python"), "python:module:function"])
        )
    module, _, cls = VERIFIERS[key].partition(":")
    return getattr(import_module(module), cls)(name, deadline)
