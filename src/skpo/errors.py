"""Errors that tell a user what was found, where, and what to do about it."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


class SkpoError(Exception):
    """Base of every error that `skpo` raises on purpose; the command line prints it without a traceback."""


class ConfigError(SkpoError):
    """A setting that is unknown, of the wrong type, or contradicts another one."""


class ProblemError(SkpoError):
    """A problem source that can't be read, or a row in it that can't be used."""


class VerifierError(SkpoError):
    """An unknown verifier, or a gold answer that it can't read."""


class ModelError(SkpoError):
    """A model that can't be loaded, or that lacks what the run needs."""


class RunError(SkpoError):
    """A run folder that is locked, damaged or holds another run; or a run that can't go on."""


class WorkersLostError(RunError):
    """Every rollout worker is gone; nothing of the step was trained on."""


def unknown(kind: str, name: str, known: Iterable[str]) -> str:
    """Message for an unknown name: says the nearest known one (if any is near) and lists them all."""
    names = sorted(known)
    near = difflib.get_close_matches(name, names, n=1, cutoff=0.5)
    hint = f' Did you mean "{near[0]}"?' if near else ""
    return f'unknown {kind} "{name}".{hint} Known: {", ".join(names)}.'
