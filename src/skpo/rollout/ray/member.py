"""One place in the pool: the actor that fills it now, and what is under way there."""

from __future__ import annotations

from typing import Any

from skpo.config import TrainConfig
from skpo.rollout.ray.cluster import import_ray, make_actor

QUEUE = 4  #: plans that wait at a worker, so that it never waits for the next one


class Member:
    """A worker's place. `number` stays; the actor is a new one after each death.

    ref: the call that this place waits for; phase: which call that is (`open`, `load`, `poll`; `idle`: none; `out`: left out).
    flight: numbers of the plans that were sent and are not back. deaths: since it last got through a run.
    """

    def __init__(self, config: TrainConfig, dry_run: bool, number: int) -> None:
        self.config, self.dry_run, self.number = config, dry_run, number
        self.deaths = 0
        self.start()

    def start(self) -> None:
        """Make an actor and have it load the model."""
        self.actor: Any = make_actor(self.config, self.dry_run, self.number)
        self.weights: Any = None  # those that it samples with, as a reference into the object store
        self.where, self.pid = "", 0
        self.flight: dict[int, None] = {}
        self.sent = self.begun = 0
        self.call("open")

    def call(self, phase: str, *arguments: Any) -> None:
        """Call a method of the actor; its answer is waited for under `phase`."""
        self.phase = phase
        self.ref = getattr(self.actor, phase).remote(*arguments)

    def opened(self, answer: dict[str, Any]) -> None:
        """The actor has its model, and says where it runs."""
        self.where, self.pid = answer["host"], answer["pid"]

    def rest(self) -> None:
        self.phase, self.ref = "idle", None

    def leave_out(self) -> None:
        self.phase, self.ref = "out", None

    @property
    def ready(self) -> bool:
        """It has a model, and isn't gone."""
        return self.phase in ("load", "poll", "idle")

    def send(self, run: int, plans: list[tuple[int, bytes]]) -> None:
        """Give it plans."""
        self.actor.add.remote(run, plans)
        self.sent += len(plans)
        self.flight.update((number, None) for number, _ in plans)

    def wants(self, share: int) -> int:
        """How many more plans it may be given, at a share of at most `share` plans under way."""
        if self.phase != "poll":
            return 0
        return max(0, min(QUEUE - (self.sent - self.begun), share - len(self.flight)))

    def kill(self) -> None:
        """End the actor."""
        if self.actor is not None:
            import_ray().kill(self.actor, no_restart=True)
            self.actor = None
