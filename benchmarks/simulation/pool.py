"""Several workers on one queue of plans, verification beside them, and what a whole training step takes."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from heapq import heapify, heappop, heappush
from typing import Literal

from benchmarks.simulation.worker import Speed, Task, Work, Worker

Method = Literal["grpo", "skpo", "skpo two passes"]
METHODS: tuple[Method, ...] = ("grpo", "skpo", "skpo two passes")


@dataclass(frozen=True)
class Cluster:
    """What a step runs on.

    workers, slots: rollout workers, and rows that each decodes at once.
    in_flight: unfinished plans that a worker holds at most; None: an even share of those left. queue: of these, plans that wait for slots.
    slowdowns: factor on each worker's times, repeated as needed; 1 is the speed that was measured.
    plan: seconds of the trainer's process for a finished plan (its texts, its way to the verifiers); local: the one worker is in that
        process, too, and stands still meanwhile.
    remote: seconds of a worker in a process of its own for each plan that it finishes: to hand it over, and to take the next.
    verifiers, verify: processes that score, and seconds that each answer takes.
    train, train_token, trainers: seconds of an update, plus seconds for each token of context and sample in it, shared by `trainers`.
    weights, load: bytes of one version, and seconds a worker takes to load them; bandwidth: bytes per second of one link; 0 weights: shared
        with the trainer. spread: `tree`, every worker that has them passes them on; `star`, each is sent them in turn.
    ahead: 1: the next step's rollouts run while this step trains. other: seconds of a step on nothing of the above.
    """

    speed: Speed
    workers: int = 1
    slots: int = 256
    in_flight: int | None = None
    queue: int = 4
    slowdowns: tuple[float, ...] = (1.0,)
    plan: float = 0.0
    local: bool = False
    remote: float = 0.0
    verifiers: int = 1
    verify: float = 0.0
    train: float = 0.0
    train_token: float = 0.0
    trainers: int = 1
    weights: float = 0.0
    bandwidth: float = 1.0
    load: float = 0.0
    spread: Literal["tree", "star"] = "tree"
    ahead: int = 0
    other: float = 0.0


@dataclass
class Rolled:
    """A rollout phase. ends: second at which each plan finished, in the order of the tasks; busy: seconds of work of each worker."""

    seconds: float
    ends: list[float]
    busy: list[float]
    work: list[Work]


@dataclass(frozen=True)
class Step:
    """One predicted step, in seconds. verify: waited for verdicts after the last rollout. utilisation: share of the rollout phase in
    which workers compute. hidden: seconds that `ahead` saves. decode_steps: of all workers; rows: in one of them."""

    seconds: float
    rollout: float
    verify: float
    train: float
    broadcast: float
    other: float
    hidden: float
    utilisation: float
    tokens: int
    decode_steps: int
    rows: float


def roll_out(tasks: Sequence[Task], cluster: Cluster) -> Rolled:
    """Run tasks on the cluster's workers, from second 0.

    At first tasks are dealt one by one to the worker that holds the fewest; later each worker takes the next as it gets room. So
    fast workers take more, where there are more plans than slots or `in_flight` keeps some back.
    """
    factors = cluster.slowdowns
    remote = 0.0 if cluster.local else cluster.remote
    workers = [Worker(cluster.speed, cluster.slots, factors[i % len(factors)], remote) for i in range(cluster.workers)]
    waiting = deque(enumerate(tasks))
    left = len(tasks)

    def wants(worker: Worker) -> bool:
        if not waiting:
            return False
        share = math.ceil(left / len(workers))
        rows = len(waiting[0][1][0].lengths)
        room = worker.waiting < worker.free + cluster.queue * rows
        return room and worker.open < min(share, cluster.in_flight or share)

    dealing = deque(workers)
    while dealing:
        worker = dealing.popleft()
        if wants(worker):
            worker.add(*waiting.popleft())
            dealing.append(worker)
    ends = [0.0] * len(tasks)
    for worker in workers:
        worker.now = worker.busy = cluster.speed.run * worker.slowdown
    clock = [(worker.now, i) for i, worker in enumerate(workers) if worker.open]
    heapify(clock)
    while clock:
        _, i = heappop(clock)
        worker = workers[i]
        while wants(worker):
            worker.add(*waiting.popleft())
        if not worker.open:
            continue
        done = worker.advance()
        left -= len(done)
        for number in done:
            ends[number] = worker.now
        heappush(clock, (worker.now, i))
    return Rolled(max(ends, default=0.0), ends, [w.busy for w in workers], [w.work for w in workers])


def two_passes(tasks: Sequence[Task], cluster: Cluster) -> Rolled:
    """The same with a barrier: every plan's stage ends before any plan's next stage begins."""
    rolled = Rolled(0.0, [0.0] * len(tasks), [0.0] * cluster.workers, [])
    for stage in range(max(map(len, tasks))):
        numbers = [i for i, task in enumerate(tasks) if stage < len(task)]
        part = roll_out([(tasks[i][stage],) for i in numbers], cluster)
        for i, end in zip(numbers, part.ends, strict=True):
            rolled.ends[i] = rolled.seconds + end
        rolled.seconds += part.seconds
        rolled.busy = [a + b for a, b in zip(rolled.busy, part.busy, strict=True)]
        rolled.work += part.work
    return rolled


def verified(ends: Sequence[float], answers: Sequence[int], verifiers: int, seconds: float) -> float:
    """Second at which the last verdict is in: plan i hands in answers[i] at ends[i]; `verifiers` processes take them in order."""
    free = [0.0] * verifiers
    last = 0.0
    for end, n in sorted(zip(ends, answers, strict=True)):
        for _ in range(n if seconds else 0):
            done = max(end, heappop(free)) + seconds
            heappush(free, done)
            last = max(last, done)
    return last


def broadcast(cluster: Cluster) -> float:
    """Seconds until every worker samples from new weights."""
    if not cluster.weights:
        return 0.0
    rounds = math.ceil(math.log2(cluster.workers + 1)) if cluster.spread == "tree" else cluster.workers
    return rounds * cluster.weights / cluster.bandwidth + cluster.load


def trained_tokens(task: Task) -> int:
    """Tokens that the update computes for a plan: all completions and one segment of every earlier stage, each context once, and rows
    once while they are alike (`optimizer.shared_prefix`)."""
    *earlier, last = task
    segments = sum(stage.context + stage.lengths[0] for stage in earlier)
    return segments + last.context + round(last.distinct * sum(last.lengths))


def simulate(tasks: Sequence[Task], cluster: Cluster, *, barrier: bool = False) -> Step:
    """One step on these tasks: weights out, rollouts, verdicts, update. `barrier`: two passes."""
    rolled = (two_passes if barrier else roll_out)(tasks, cluster)
    answers = [len(task[-1].lengths) for task in tasks]
    if cluster.local:
        rollout = rolled.seconds + cluster.plan * len(tasks)
    else:
        rollout = max(rolled.seconds, verified(rolled.ends, [1] * len(tasks), 1, cluster.plan))
    wait = max(0.0, verified(rolled.ends, answers, cluster.verifiers, cluster.verify) - rollout)
    train = (cluster.train + cluster.train_token * sum(map(trained_tokens, tasks))) / cluster.trainers
    out = broadcast(cluster)
    sampling = out + rollout + wait
    hidden = min(sampling, train) if cluster.ahead else 0.0
    decode = sum(w.steps for w in rolled.work)
    return Step(
        seconds=sampling + train + cluster.other - hidden,
        rollout=rollout,
        verify=wait,
        train=train,
        broadcast=out,
        other=cluster.other,
        hidden=hidden,
        utilisation=sum(rolled.busy) / (cluster.workers * rolled.seconds) if rolled.seconds else 0.0,
        tokens=sum(w.tokens for w in rolled.work),
        decode_steps=decode,
        rows=sum(w.rows for w in rolled.work) / decode if decode else 0.0,
    )
