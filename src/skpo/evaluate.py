"""Evaluation under its first name: `skpo.evaluation` is the package, and this module can be called like its function."""

from __future__ import annotations

import sys
from types import ModuleType
from typing import Any

from skpo.evaluation import (
    Evaluation,
    Suite,
    bootstrap_interval,
    evaluate,
    evaluate_all,
    maj_at_k,
    pass_at_k,
    run_evaluation,
)

__all__ = [
    "Evaluation",
    "Suite",
    "bootstrap_interval",
    "evaluate",
    "evaluate_all",
    "maj_at_k",
    "pass_at_k",
    "run_evaluation",
]


class _Callable(ModuleType):
    """Importing this module makes it the attribute `skpo.evaluate`, where the function was."""

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return evaluate(*args, **kwargs)


sys.modules[__name__].__class__ = _Callable
