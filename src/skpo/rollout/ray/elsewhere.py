"""The pool as the other training processes see it: the first process has all the workers."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from skpo.errors import SkpoError
from skpo.rollout.types import EngineStats, Group, PlanRun


class Elsewhere:
    """An engine without workers, for processes whose groups come from the first one. See `Engine`.

    Raises SkpoError when it is asked to run a plan.
    """

    def __init__(self) -> None:
        self.version = 0

    def run(self, runs: Iterable[PlanRun | None]) -> Iterator[tuple[int, Group]]:
        """See `Engine.run`; of no plans."""
        if any(run is not None for run in runs):
            raise SkpoError("only the first training process has rollout workers")
        return iter(())

    def update_weights(self, weights: Mapping[str, Any] | None, version: int) -> None:
        """See `Engine.update_weights`; the first process sends them."""
        self.version = version

    def take_stats(self) -> EngineStats:
        """See `Engine.take_stats`."""
        return EngineStats()

    def close(self) -> None:
        """Nothing to end."""
