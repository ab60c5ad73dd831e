"""The trainer: one step is sample problems, roll out, verify, credit, update, track, save."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from skpo.trainer.loop import Trainer, TrainResult

__all__ = ["TrainResult", "Trainer"]


def __getattr__(name: str) -> Any:
    """`Trainer` brings torch with it, so it is imported where it is used."""
    if name in __all__:
        from skpo.trainer import loop

        return getattr(loop, name)
    raise AttributeError(f"module 'skpo.trainer' has no attribute {name!r}")
