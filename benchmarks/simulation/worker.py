"""One rollout worker: a continuous batch that jumps from one ended row to the next.

The rules are those of `skpo.rollout.embedded`: later requests of a plan come before new plans, a context is computed when the
first of its rows starts, a row's first token comes from that prefill, and every decode step gives each running row one
token. Between two ended rows the batch doesn't change, so the time of the steps between them has a closed form.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from heapq import heappop, heappush
from itertools import count


@dataclass(frozen=True)
class Stage:
    """One request of a plan: `context` tokens that all its rows share, and the number of tokens that each row samples.

    distinct: share of its rows that a decode step computes, on average; the others are still alike.
    """

    context: int
    lengths: tuple[int, ...]
    distinct: float = 1.0


#: One problem's plan: its stages run one after another.
Task = tuple[Stage, ...]


@dataclass(frozen=True)
class Speed:
    """Seconds of an engine's work.

    rows, step: a decode step of rows[i] rows takes step[i], apart from attention; linear between and beyond.
    own, context: attention of one row to one sampled token, and to one token of its context; group: a step's cost of one context in use.
    prefill, admission: one context token, and one round of starting rows.
    ended: one moment at which rows end. run: once per run (packing weights, first allocation).
    """

    rows: tuple[int, ...]
    step: tuple[float, ...]
    own: float = 0.0
    context: float = 0.0
    group: float = 0.0
    prefill: float = 0.0
    admission: float = 0.0
    ended: float = 0.0
    run: float = 0.0

    def decode(self, rows: float, steps: int, own: float, context: float, groups: float) -> float:
        """Seconds of `steps` decode steps that compute `rows` rows. own, context: tokens attended to, summed over rows and steps; groups: contexts
        in use, summed over steps."""
        return steps * self.bare_step(rows) + own * self.own + context * self.context + groups * self.group

    def scaled(self, factor: float) -> Speed:
        """The same engine where all takes `factor` times as long."""
        prices = {name: value * factor for name, value in vars(self).items() if name not in ("rows", "step")}
        return Speed(self.rows, tuple(s * factor for s in self.step), **prices)

    def bare_step(self, rows: float) -> float:
        """Seconds of one step of `rows` rows without attention."""
        if len(self.rows) == 1:
            return self.step[0]
        i = min(max(bisect_right(self.rows, rows), 1), len(self.rows) - 1)
        low, high = self.rows[i - 1], self.rows[i]
        return self.step[i - 1] + (rows - low) / (high - low) * (self.step[i] - self.step[i - 1])


@dataclass
class Work:
    """What a worker has done. by_rows: decode steps, by number of rows; tokens: sampled; own, context: tokens attended to."""

    by_rows: dict[int, int] = field(default_factory=dict)
    own: float = 0
    context: float = 0
    groups: int = 0
    prefill: int = 0
    admissions: int = 0
    ended: int = 0
    tokens: int = 0

    @property
    def steps(self) -> int:
        return sum(self.by_rows.values())

    @property
    def rows(self) -> int:
        """Rows summed over decode steps."""
        return sum(rows * steps for rows, steps in self.by_rows.items())


@dataclass(eq=False)
class _Job:
    """A stage on its way through the rows. waiting: rows that have not ended; started: rows that have."""

    number: int
    task: Task
    stage: int
    started: int = 0
    waiting: int = 0
    running: int = 0

    def __post_init__(self) -> None:
        self.waiting = len(self.now.lengths)

    @property
    def now(self) -> Stage:
        return self.task[self.stage]


class Worker:
    """An engine with `slots` rows. slowdown: factor on every one of its times; remote: seconds for each finished task.

    `add` hands over a task; `advance` moves to the next moment at which rows end (`now`) and returns the tasks that finished there.
    """

    def __init__(self, speed: Speed, slots: int, slowdown: float = 1.0, remote: float = 0.0) -> None:
        if slots < 1:
            raise ValueError(f"a worker needs at least one slot, not {slots}")
        self.speed, self.slots, self.slowdown, self.remote = speed, slots, slowdown, remote
        self.now = self.busy = 0.0
        self.work = Work()
        self.open = 0  #: tasks handed over and not finished
        self.waiting = 0  #: rows that could start if there were slots
        self._step = 0  # decode steps so far
        self._rows: list[tuple[int, int, int, _Job]] = []  # heap of (last step, tie-break, step of the start, job)
        self._serial = count()
        self._distinct = 0.0  # running rows that a step computes
        self._starts = self._context = 0.0  # sums over these: steps of their starts, tokens of their contexts
        self._groups = 0  # contexts of running rows
        self._later: deque[_Job] = deque()
        self._new: deque[_Job] = deque()

    def add(self, number: int, task: Task, at: float = 0.0) -> None:
        """Take a task at time `at`. An idle worker's clock goes forward to it. Raises ValueError for an empty task."""
        if not task or any(not stage.lengths or min(stage.lengths) < 1 for stage in task):
            raise ValueError(f"task {number}: every stage needs rows, and every row a token")
        if not self.open:
            self.now = max(self.now, at)
        self.open += 1
        self.waiting += len(task[0].lengths)
        self._new.append(_Job(number, task, 0))

    @property
    def free(self) -> int:
        """Slots that no running row has."""
        return self.slots - len(self._rows)

    def advance(self) -> list[int]:
        """Go to the next moment at which rows end. Returns the numbers of the tasks that finish then, often none.

        Raises ValueError when there is nothing to do.
        """
        if not self.open:
            raise ValueError("nothing to do")
        began = self.now
        done = self._admit()
        if not done:
            self._decode()
            done = self._end()
        self._spend(len(done) * self.remote)
        self.busy += self.now - began
        return done

    def _admit(self) -> list[int]:
        """Start rows until none is free or nothing waits; the tasks that finish with their first token."""
        finished: list[int] = []
        while self.free and (self._later or self._new):
            computed = 0
            while self.free and (self._later or self._new):
                queue = self._later or self._new
                job = queue[0]
                stage = job.now
                if job.started == 0:
                    computed += stage.context
                lengths = stage.lengths[job.started : job.started + self.free]
                for length in lengths:
                    heappush(self._rows, (self._step + length - 1, next(self._serial), self._step, job))
                self._groups += job.running == 0
                job.running += len(lengths)
                job.started += len(lengths)
                self.waiting -= len(lengths)
                distinct = len(lengths) * stage.distinct
                self._distinct += distinct
                self._starts += distinct * self._step
                self._context += distinct * stage.context
                self.work.tokens += len(lengths)
                if job.started == len(stage.lengths):
                    queue.popleft()
            self.work.prefill += computed
            self.work.admissions += 1
            self._spend(computed * self.speed.prefill + self.speed.admission)
            if self._rows[0][0] == self._step:
                finished += self._end()
        return finished

    def _decode(self) -> None:
        """Decode up to the next row that ends."""
        rows, steps = len(self._rows), self._rows[0][0] - self._step
        made = self._distinct * (1 + self._step) - self._starts  # tokens that the next step attends to
        own = steps * made + self._distinct * (steps * (steps - 1) // 2)
        context, groups = steps * self._context, steps * self._groups
        work = self.work
        work.by_rows[rows] = work.by_rows.get(rows, 0) + steps
        work.own += own
        work.context += context
        work.groups += groups
        work.tokens += rows * steps
        self._step += steps
        self._spend(self.speed.decode(self._distinct, steps, own, context, groups))

    def _end(self) -> list[int]:
        """Take off the rows whose last token is drawn; starts their plans' next stages."""
        finished: list[int] = []
        while self._rows and self._rows[0][0] == self._step:
            _, _, start, job = heappop(self._rows)
            distinct = job.now.distinct
            self._distinct -= distinct
            self._starts -= distinct * start
            self._context -= distinct * job.now.context
            job.running -= 1
            self._groups -= job.running == 0
            job.waiting -= 1
            if job.waiting:
                continue
            if job.stage + 1 < len(job.task):
                self._later.append(_Job(job.number, job.task, job.stage + 1))
                self.waiting += len(self._later[-1].now.lengths)
            else:
                finished.append(job.number)
        self.open -= len(finished)
        self.work.ended += 1
        self._spend(self.speed.ended)
        return finished

    def _spend(self, seconds: float) -> None:
        self.now += seconds * self.slowdown


def tokens(tasks: Sequence[Task]) -> int:
    """Tokens that these tasks sample."""
    return sum(sum(stage.lengths) for task in tasks for stage in task)
