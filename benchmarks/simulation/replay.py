"""The same tasks on the real embedded engine, with lengths forced: what the model is fitted to and checked against."""

from __future__ import annotations

import random
import time
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from benchmarks.simulation.worker import Stage, Task
from skpo.problems.base import Problem
from skpo.rollout.types import EngineStats, Group, Plan, PlanRun, Request, Sample

if TYPE_CHECKING:
    from torch import nn

    from skpo.rollout.embedded import EmbeddedEngine


def engine(model: nn.Module, slots: int) -> EmbeddedEngine:
    """An engine in which no token ends a row, so that budgets are lengths."""
    from skpo.rollout.embedded import EmbeddedEngine

    return EmbeddedEngine(model, eos_ids=[], slots=slots)


def plan(number: int, task: Task, vocabulary: int) -> Plan:
    """A plan that samples exactly what the task says. Contexts are random tokens, different for every plan and stage."""
    draw = random.Random(number)
    samples: list[Sample] = []
    for stage in task:
        context = tuple(draw.randrange(vocabulary) for _ in range(stage.context))
        answer = yield [Request(context, 1, length) for length in stage.lengths]
        samples += [sample for one in answer for sample in one]
    return Group(Problem(id=str(number), prompt="", answer=None), samples)


def runs(tasks: Sequence[Task], vocabulary: int) -> Iterator[PlanRun]:
    """The tasks as plans with seeds."""
    for number, task in enumerate(tasks):
        yield PlanRun(plan(number, task, vocabulary), number)


def replay(
    engine: EmbeddedEngine, tasks: Sequence[Task], vocabulary: int, *, barrier: bool = False
) -> tuple[float, EngineStats]:
    """Run the tasks; returns seconds of this process's CPU time and the engine's counters. `barrier`: each stage is a run of its own."""
    passes: list[list[Task]] = [list(tasks)]
    if barrier:
        passes = [[(task[i],) for task in tasks if i < len(task)] for i in range(max(map(len, tasks)))]
    engine.take_stats()
    begin = time.process_time()
    for part in passes:
        for _ in engine.run(runs(part, vocabulary)):
            pass
    return time.process_time() - begin, engine.take_stats()


def even(rows: int, length: int, context: int, group: int = 8) -> list[Task]:
    """Tasks of up to `group` rows each, all of one length."""
    counts = [min(group, rows - low) for low in range(0, rows, group)]
    return [(Stage(context, (length,) * n),) for n in counts]
