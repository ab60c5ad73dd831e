"""What was measured on one machine, as a JSON file: speeds of engines, groups of lengths, the rest of a step."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.simulation.pool import Cluster
from benchmarks.simulation.worker import Speed, Stage, Task


@dataclass
class EngineProfile:
    """An engine's speed. error: root mean square of the fit's relative errors over `runs` runs; weights: bytes of its model."""

    speed: Speed
    error: float
    runs: int
    parameters: int
    weights: int
    load: float  #: seconds to copy new weights in


@dataclass
class StepProfile:
    """What a step costs beside the engine; names as in `Cluster`. arrive: seconds, on top of copying them, in which a worker in a
    process of its own takes new weights and proves that they are there."""

    plan: float
    verify: float
    train: float
    train_token: float
    other: float
    remote: float = 0.0
    arrive: float = 0.0


@dataclass
class Profile:
    """Everything that a prediction is fed with. tasks: measured groups of an algorithm; slots: of the measured runs."""

    engines: dict[str, EngineProfile] = field(default_factory=dict)
    tasks: dict[str, list[Task]] = field(default_factory=dict)
    step: StepProfile | None = None
    slots: int = 256
    problems: int = 32
    facts: dict[str, Any] = field(default_factory=dict)  #: machine, commands, date

    def cluster(self, engine: str, **changes: Any) -> Cluster:
        """A cluster of workers that run this engine, with the measured rest of the step; `changes` are fields of `Cluster`."""
        found = self.engines[engine]
        rest = asdict(self.step) if self.step else {}
        load = found.load + rest.pop("arrive", 0.0)
        base = {"slots": self.slots, "weights": found.weights, "load": load, **rest}
        return Cluster(found.speed, **{**base, **changes})

    def save(self, path: Path) -> None:
        """Write it; seconds keep four significant digits."""
        data = {
            **asdict(self),
            "engines": {name: asdict(e) for name, e in self.engines.items()},
            "tasks": {name: [_pack(t) for t in tasks] for name, tasks in self.tasks.items()},
        }
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(_lines(_short(data)) + "\n")


def load(path: Path) -> Profile:
    """Read a profile. Raises FileNotFoundError where there is none: `--measure` makes it."""
    data = json.loads(path.read_text())
    engines = {k: EngineProfile(**{**e, "speed": _speed(e["speed"])}) for k, e in data["engines"].items()}
    tasks = {name: [_unpack(t) for t in rows] for name, rows in data["tasks"].items()}
    step = StepProfile(**data["step"]) if data["step"] else None
    return Profile(**{**data, "engines": engines, "tasks": tasks, "step": step})


def _speed(data: dict[str, Any]) -> Speed:
    return Speed(**{**data, "rows": tuple(data["rows"]), "step": tuple(data["step"])})


def _pack(task: Task) -> list[list[float]]:
    return [[stage.context, stage.distinct, *stage.lengths] for stage in task]


def _unpack(rows: Sequence[Sequence[Any]]) -> Task:
    return tuple(Stage(row[0], tuple(row[2:]), row[1]) for row in rows)


def _short(value: Any) -> Any:
    if isinstance(value, float):
        return float(f"{value:.4g}")
    if isinstance(value, dict):
        return {k: _short(v) for k, v in value.items()}
    return [_short(v) for v in value] if isinstance(value, list | tuple) else value


def _lines(data: dict[str, Any]) -> str:
    """JSON with one line for each plan, so that the file can be read."""
    tasks = data.pop("tasks")
    head = json.dumps(data, indent=1)[:-2]
    parts = [
        f'  "{name}": [\n' + ",\n".join(f"   {json.dumps(t)}" for t in rows) + "\n  ]" for name, rows in tasks.items()
    ]
    return head + ',\n "tasks": {\n' + ",\n".join(parts) + "\n }\n}"
