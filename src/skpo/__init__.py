"""Skip-Connected Policy Optimization and the GRPO family: reinforcement learning with verifiable rewards."""

from __future__ import annotations

from importlib import import_module
from typing import Any

__version__ = "0.1.0"

_EXPORTS = {
    "Trainer": "skpo.trainer",
    "TrainConfig": "skpo.config",
    "get_algorithm": "skpo.algorithms",
    "get_verifier": "skpo.verifiers",
    "load_problems": "skpo.problems",
    "load_config": "skpo.settings",
    "evaluate": "skpo.evaluation",
    "Problem": "skpo.problems",
}
__all__ = [*_EXPORTS, "__version__"]


def __getattr__(name: str) -> Any:
    """Import public names where they are used: `import skpo` stays fast and brings no torch."""
    if name in _EXPORTS:
        return getattr(import_module(_EXPORTS[name]), name)
    raise AttributeError(f"module 'skpo' has no attribute {name!r}")
