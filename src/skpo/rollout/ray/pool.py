"""`RolloutPool`: the engine whose plans run on Ray actors, each with an engine of its own."""

from __future__ import annotations

import pickle
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from math import ceil
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from skpo.config import TrainConfig
from skpo.errors import RunError, SkpoError, WorkersLostError
from skpo.rollout import probe
from skpo.rollout.ray.cluster import connect, import_ray
from skpo.rollout.ray.member import Member
from skpo.rollout.ray.parcels import Weights, pack_run
from skpo.rollout.ray.worker import Report
from skpo.rollout.types import EngineStats, Group, PlanRun

if TYPE_CHECKING:
    from skpo.policy.loading import LoadedPolicy


class RolloutPool:
    """Runs plans on workers, each plan from beginning to end on one of them. See `Engine`.

    Workers are made at the first use. A plan that was under way on a worker that died runs again on another one: seeds belong
    to samples, so it gives the same. Weights go into the object store once per version; a worker takes them before its next
    plans. Only trained parameters travel (under LoRA: the adapters), the rest every worker loads by itself.

    policy: the trainer's, whose weights `update_weights(None, version)` sends. tell: takes notes for the user.
    Raises ConfigError without Ray; `run` raises WorkersLostError where no worker is left, and what plans raise.
    """

    def __init__(
        self,
        config: TrainConfig,
        policy: LoadedPolicy,
        *,
        dry_run: bool = False,
        tell: Callable[[str], None] | None = None,
    ) -> None:
        import_ray()
        self.config, self.settings, self.policy, self.dry_run = config, config.rollout.ray, policy, dry_run
        self.tell = tell or (lambda text: None)
        self.version = 0
        self.members: list[Member] = []
        self._ours = False  # the cluster is ours to shut down
        self._number = 0  # of the run
        self._running = self._closed = False
        self._weights: Any = None  # the newest version's, in the object store
        self._rows = probe.probe_rows(policy.model.get_input_embeddings().weight.shape[0], probe.TOKENS)
        self._expected: np.ndarray | None = None  # the trainer's scores of them at that version
        self._before: np.ndarray | None = None  # and at the one before
        self._tolerance = _tolerance(config, next(policy.model.parameters()).dtype)
        self._seen = time.monotonic()  # when a worker was last there
        self._stats = EngineStats()
        self._more: dict[str, float] = {}

    # ---- weights ---------------------------------------------------------------------------------------------------

    def update_weights(self, weights: Mapping[str, Any] | None, version: int) -> None:
        """See `Engine.update_weights`; None: the policy's own, as they are now. Plans that run now go on with the old ones."""
        self._connect()
        begin = time.perf_counter()
        named = weights.items() if weights is not None else self._trained()
        sent = Weights.of(named, version)
        self._before, self._expected = self._expected, None
        if weights is None:
            self._expected = probe.trainer_scores(self.policy.model, self._rows)
        self._weights, self.version = import_ray().put(sent), version
        self._count("weights_bytes", sent.bytes)
        self._count("seconds_weights", time.perf_counter() - begin)

    def _trained(self) -> Iterator[tuple[str, Any]]:
        return ((n, p) for n, p in self.policy.model.named_parameters() if p.requires_grad)

    # ---- running ---------------------------------------------------------------------------------------------------

    def run(self, runs: Iterable[PlanRun | None]) -> Iterator[tuple[int, Group]]:
        """See `Engine.run`. All plans are made at once; each travels when a worker has room for it."""
        if self._weights is None:
            raise SkpoError("the rollout pool has no weights yet: call update_weights first")
        self._number += 1
        run = _Run(self._number, self._weights, self.version, self._expected, self._before, runs)
        return self._drive(run)  # with the weights of now, whenever the first group is asked for

    def _drive(self, run: _Run) -> Iterator[tuple[int, Group]]:
        if self._running:
            raise SkpoError("the rollout pool is already running plans; finish or close that run first")
        self._running, self._seen = True, time.monotonic()
        deaths = {m.number: m.deaths for m in self.members}
        try:
            self._start()
            for member in self.members:
                if member.phase == "idle":
                    self._serve(member, run)
            while run.open:
                self._lively()
                self._deal(run)
                for number, data in self._news(run):
                    if run.finish(number):
                        yield number, pickle.loads(data)
            for member in self.members:
                if member.ready and member.deaths == deaths.get(member.number):
                    member.deaths = 0
        finally:
            self._running = False
            for member in self.members:
                if member.phase in ("poll", "load"):
                    member.rest()
                    member.flight.clear()
                    member.actor.drop.remote(run.number + 1)
            self._number = max(self._number, run.number + 1)
            self._more["workers"] = sum(m.ready for m in self.members)

    def take_stats(self) -> EngineStats:
        """See `Engine.take_stats`: sums over all workers."""
        taken, self._stats = replace(self._stats, more=self._more), EngineStats()
        self._more = {}
        return taken

    def close(self) -> None:
        """End the workers, and the cluster if it was started for them."""
        if self._closed:
            return
        self._closed = True
        ray = import_ray()
        if not ray.is_initialized():
            return
        closing = [m.actor.close.remote() for m in self.members if m.ready]
        if closing:
            ray.wait(closing, num_returns=len(closing), timeout=5.0)
        for member in self.members:
            member.kill()
        self._weights = None
        if self._ours:
            ray.shutdown()

    # ---- workers ---------------------------------------------------------------------------------------------------

    def _connect(self) -> None:
        if not self.members and not self._closed:
            self._ours = connect(self.settings)
            self.members = [Member(self.config, self.dry_run, i) for i in range(self.settings.workers)]

    def _start(self) -> None:
        """The first time: wait until every worker has loaded its model, or `start_timeout` is over."""
        if any(m.ready or m.deaths for m in self.members):
            return
        limit = time.monotonic() + self.settings.start_timeout
        while any(m.phase == "open" for m in self.members) and time.monotonic() < limit:
            for member in self._answered():
                try:
                    member.opened(import_ray().get(member.ref))
                    member.rest()
                except import_ray().exceptions.RayTaskError as error:
                    raise _cause(error) from None
                except import_ray().exceptions.RayError as error:
                    self._lost(member, error, None)
        missing = [m.number for m in self.members if m.phase == "open"]
        if len(missing) == len(self.members):
            raise WorkersLostError(
                f"no rollout worker started within {self.settings.start_timeout:g} s; {_resources(self.settings)}"
            )
        if missing:
            self.tell(
                f"{len(missing)} of {len(self.members)} rollout workers have not started yet; {_resources(self.settings)}"
            )

    def _lively(self) -> None:
        """Raise WorkersLostError where no worker has been there for `start_timeout`: a place without resources stays empty for ever."""
        now = time.monotonic()
        if any(m.ready for m in self.members):
            self._seen = now
        elif now - self._seen > self.settings.start_timeout:
            raise WorkersLostError(
                f"no rollout worker has been there for {self.settings.start_timeout:g} s; {_resources(self.settings)}"
            )

    def _answered(self) -> list[Member]:
        """Members whose call was answered; waits a moment for one."""
        if self._closed:
            raise RunError("the rollout pool was closed while plans were running")
        waiting = {m.ref: m for m in self.members if m.ref is not None}
        if not waiting:
            return []
        ready, _ = import_ray().wait(list(waiting), num_returns=1, timeout=1.0)
        more, _ = import_ray().wait(list(waiting), num_returns=len(waiting), timeout=0)
        return [waiting[ref] for ref in dict.fromkeys([*ready, *more])]

    def _serve(self, member: Member, run: _Run) -> None:
        """Have a worker take the run's weights, if it has others, and then its plans."""
        if member.weights is not run.weights:
            member.call("load", run.number, run.weights, self._rows)
        else:
            member.call("poll", run.number)

    def _deal(self, run: _Run) -> None:
        """Plans for workers that have room, one at a time to the one with the fewest under way."""
        working = [m for m in self.members if m.phase in ("load", "poll")]
        if not working or not run.todo:
            return
        share = ceil(run.open / len(working))
        share = share if self.settings.in_flight is None else min(share, self.settings.in_flight)
        given: dict[int, list[int]] = {}
        room = {m.number: m.wants(share) for m in working}
        while run.todo and any(room.values()):
            member = min(
                (m for m in working if room[m.number]), key=lambda m: len(m.flight) + len(given.get(m.number, ()))
            )
            given.setdefault(member.number, []).append(run.todo.popleft())
            room[member.number] -= 1
        for member in working:
            if plans := given.get(member.number):
                member.send(run.number, [(i, run.packed(i)) for i in plans])

    def _news(self, run: _Run) -> list[tuple[int, bytes]]:
        """Take in what workers have to say; returns (number, pickled group) of finished plans."""
        groups: list[tuple[int, bytes]] = []
        exceptions = import_ray().exceptions
        for member in self._answered():
            phase = member.phase
            try:
                answer = import_ray().get(member.ref)
            except exceptions.RayTaskError as error:
                if phase == "open":  # a node where the model can't be loaded, say; others may do better
                    self._lost(member, _cause(error), run)
                    continue
                raise _cause(error) from None
            except exceptions.RayError as error:
                self._lost(member, error, run)
                continue
            if phase == "open":
                member.opened(answer)
                self._serve(member, run)
            elif phase == "load":
                self._check(member, answer, run)
                member.weights = run.weights
                self._serve(member, run)
            else:
                groups += self._read(member, answer, run)
        return groups

    def _read(self, member: Member, report: Report, run: _Run) -> list[tuple[int, bytes]]:
        """A worker's report of the run."""
        if report.error is not None:
            raise pickle.loads(report.error)
        member.begun = report.begun
        for number, _ in report.groups:
            member.flight.pop(number, None)
        self._stats.add(report.stats)
        member.call("poll", run.number)
        return report.groups

    def _check(self, member: Member, found: np.ndarray, run: _Run) -> None:
        """Compare a worker's probe with the trainer's. Raises RunError where its weights are not the trainer's."""
        if run.expected is None:
            return
        verdict = probe.Verdict(run.expected, found, run.before, self._tolerance)
        self._more["probe_deviation"] = max(self._more.get("probe_deviation", 0.0), verdict.deviation)
        if not verdict.good:
            raise RunError(
                f"rollout worker {member.number} does not sample from the trainer's weights of version {run.version}: on fixed rows its "
                f"log-probabilities are off by {verdict.deviation:.3g} nats. "
                + (
                    "The new weights did not arrive."
                    if verdict.unmoved
                    else "Is model.path the same model on every node?"
                )
            )

    def _lost(self, member: Member, error: BaseException, run: _Run | None) -> None:
        """A worker died: its unfinished plans go back, and another takes its place, or nobody does if it keeps dying."""
        back = run.give_back(member.flight) if run is not None else 0
        member.deaths += 1
        self._count("worker_deaths", 1)
        self._count("plans_repeated", back)
        reason, place = _reason(error), f" on {member.where}" if member.where else ""
        text = f"rollout worker {member.number}{place} died ({reason})"
        if back:
            text += f"; its {back} unfinished problems run again"
        member.kill()
        if member.deaths <= self.settings.restarts:
            self.tell(f"{text}; it is started again")
            member.start()
            return
        member.leave_out()
        self.tell(f"{text}; it has died {member.deaths} times and is left out from now on")
        if all(m.phase == "out" for m in self.members):
            raise WorkersLostError(
                f"no rollout workers are left: each of {len(self.members)} died {member.deaths} times, the last one of: {reason}"
            )

    def _count(self, name: str, value: float) -> None:
        self._more[name] = self._more.get(name, 0) + value


class _Run:
    """What a run of the pool has to do, and what of it is open."""

    def __init__(
        self, number: int, weights: Any, version: int, expected: Any, before: Any, runs: Iterable[PlanRun | None]
    ) -> None:
        self.number, self.weights, self.version, self.expected, self.before = number, weights, version, expected, before
        self.plans = [run for run in runs if run is not None]
        self.todo = deque(range(len(self.plans)))
        self._open = dict.fromkeys(self.todo)

    @property
    def open(self) -> int:
        """Plans without a group."""
        return len(self._open)

    def packed(self, number: int) -> bytes:
        return pack_run(self.plans[number])

    def finish(self, number: int) -> bool:
        """A plan's group is in; False if it was in before."""
        if number not in self._open:
            return False
        del self._open[number]
        return True

    def give_back(self, flight: Iterable[int]) -> int:
        """Plans of a worker that died, to be dealt next; returns how many."""
        back = sorted(number for number in flight if number in self._open)
        self.todo.extendleft(reversed(back))
        return len(back)


def _tolerance(config: TrainConfig, dtype: torch.dtype) -> float:
    """How far a worker's probe may be from the trainer's, whose weights are of this type."""
    vllm = config.rollout.vllm
    if config.rollout.ray.engine == "embedded":
        return probe.TOLERANCE if dtype == torch.float32 else probe.LOW_PRECISION_TOLERANCE
    full = dtype == torch.float32 and vllm.dtype in ("auto", "float32")
    return vllm.probe_tolerance or (probe.TOLERANCE if full else probe.LOW_PRECISION_TOLERANCE)


def _cause(error: Any) -> BaseException:
    """What a worker's method raised, without Ray's wrapping where it is ours."""
    cause = getattr(error, "cause", None)
    return cause if isinstance(cause, SkpoError) else RunError(f"a rollout worker failed: {error}")


def _reason(error: BaseException) -> str:
    """A death in a few words."""
    if isinstance(error, SkpoError):
        return str(error)
    text = " ".join(str(error).split())
    for mark, words in (
        ("node was terminated", "its node is gone"), ("node has died", "its node is gone"), ("its node", "its node is gone"),
        ("out of memory", "out of memory"), ("OOM", "out of memory"), ("connection error code", "its process ended"),
    ):  # fmt: skip
        if mark in text:
            return words
    return text[:200] or type(error).__name__


def _resources(settings: Any) -> str:
    free = import_ray().available_resources()
    return (
        f"each needs {settings.cpus:g} CPUs and {settings.gpus:g} GPUs, the cluster has {free.get('CPU', 0):g} and "
        f"{free.get('GPU', 0):g} free"
    )
