"""Problems of `gym:TASK?param=value`: procedurally generated reasoning tasks of reasoning-gym (arXiv 2505.24760)."""

from __future__ import annotations

import dataclasses
import datetime
import enum
import hashlib
import types
import typing
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from skpo.errors import ProblemError, unknown
from skpo.problems.base import Problem
from skpo.problems.query import parse_int

SPLITS = ("train", "heldout")
OWN = {"size": "256", "seed": "0", "split": "train", "verifier": "gym"}
HELDOUT_SHARE = 4  # one question in so many is held out
ROUND = 256  # questions drawn from one generator of the task
IDLE_ROUNDS = 4  # give up after so many rounds without a new question


def load_gym(task: str, values: dict[str, str], source: str, limit: int | None = None) -> list[Problem]:
    """Problems of a reasoning-gym task, all with different questions.

    values: `size` (256), `seed` (0), `split` ("train" or "heldout"), `verifier` ("gym": the task's own scoring; "number"
            suits models that don't answer with the bare answer), and the task's own parameters: text, numbers, true or
            false, lists with commas.

    The split of a question is decided by its hash, so train and held-out problems are disjoint for all sizes, seeds and
    parameters. A smaller `size` gives the start of a larger one. Columns: `gym_task`, the name, and `gym_entry`, what
    the task's own `score_answer` takes.

    Raises `ProblemError` for unknown tasks and parameters, wrong values, and a task that runs out of questions.
    """
    setting = OWN | {key: value for key, value in values.items() if key in OWN}
    size = parse_int(source, "size", setting["size"], 1, 1_000_000)
    seed = parse_int(source, "seed", setting["seed"], 0, 2**63)
    split = setting["split"]
    if split not in SPLITS:
        raise ProblemError(f"{source}: {unknown('split', split, SPLITS)}")
    make = _generator(task, {key: value for key, value in values.items() if key not in OWN}, source)
    problems: list[Problem] = []
    for entry in _questions(make, f"{task}/{split}/{seed}", split, source):
        columns = {"gym_task": task, "gym_entry": entry}
        verifier = setting["verifier"]
        problems.append(Problem(prompt=entry["question"], answer=entry["answer"], verifier=verifier, columns=columns))
        if len(problems) == min(size, limit or size):
            return problems
    raise ProblemError(
        f"{source}: found only {len(problems)} different questions for this split. Use size={len(problems)} or less, or "
        "parameters that allow more questions."
    )


def split_of(question: str) -> str:
    """The split that a question belongs to: "train" (3 of 4) or "heldout"."""
    digest = hashlib.blake2b(question.encode(), digest_size=8, person=b"skpo-gym").digest()
    return "heldout" if int.from_bytes(digest, "big") % HELDOUT_SHARE == 0 else "train"


def _questions(make: Callable[[int], Any], stream: str, split: str, source: str) -> Iterator[dict[str, Any]]:
    """Entries of one split with distinct questions, from one generator after the other, until nothing new comes."""
    seen: set[str] = set()
    idle = number = 0
    while idle < IDLE_ROUNDS:
        # Hashed, because a task draws its i-th question from seed + i: near seeds would share most of theirs.
        digest = hashlib.blake2b(f"{stream}/{number}".encode(), digest_size=4).digest()
        before = len(seen)
        try:
            generator = make(int.from_bytes(digest, "big") >> 1)
            for i in range(ROUND):
                entry = generator[i]
                question = entry["question"]
                if question not in seen and split_of(question) == split:
                    seen.add(question)
                    yield entry
        except Exception as error:
            raise ProblemError(f"{source}: the task failed ({type(error).__name__}: {error}).") from error
        idle = idle + 1 if len(seen) == before else 0
        number += 1


def _generator(task: str, values: dict[str, str], source: str) -> Callable[[int], Any]:
    """A function from a seed to the task's dataset, its parameters checked."""
    import reasoning_gym
    from reasoning_gym.factory import DATASETS

    if task not in DATASETS:
        raise ProblemError(f"{source}: {unknown('reasoning-gym task', task, DATASETS)}")
    config = DATASETS[task][1]
    fields = {f.name for f in dataclasses.fields(config)}
    hints = typing.get_type_hints(config)
    parameters: dict[str, Any] = {}
    for key, value in values.items():
        if key not in fields:
            raise ProblemError(f"{source}: {unknown('parameter', key, fields | set(OWN))}")
        try:
            parameters[key] = convert(value, hints[key])
        except (ValueError, TypeError) as error:
            raise ProblemError(f'{source}: {key}="{value}": {error}.') from None
    try:
        config(**parameters, seed=0, size=ROUND).validate()
    except Exception as error:
        raise ProblemError(f"{source}: {task} refuses these parameters ({error}).") from None
    return lambda seed: reasoning_gym.create_dataset(task, **parameters, seed=seed, size=ROUND)


def convert(text: str, kind: Any) -> Any:
    """Text as a value of the type that a task's parameter has. Raises `ValueError` in words for wrong text, and
    `TypeError` for a type that can't be written in a source."""
    origin, arguments = typing.get_origin(kind), typing.get_args(kind)
    if origin in (typing.Union, types.UnionType):
        if text.lower() == "none" and type(None) in arguments:
            return None
        return convert(text, next(a for a in arguments if a is not type(None)))
    if origin is typing.Literal:
        return _choice(text, {str(value): value for value in arguments})
    if isinstance(kind, type) and issubclass(kind, enum.Enum):
        return _choice(text, {str(member.value): member for member in kind})
    if kind in (list, tuple) or origin in (list, tuple, Sequence):
        items = [convert(part, arguments[0] if arguments else str) for part in text.split(",")]
        return tuple(items) if tuple in (kind, origin) else items
    if kind is bool:
        return _choice(text.lower(), {"true": True, "false": False, "1": True, "0": False})
    if kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            raise ValueError("no integer" if kind is int else "no number") from None
    if kind in (datetime.date, datetime.time):
        return kind.fromisoformat(text)
    if kind is str:
        return text
    raise TypeError("this parameter can't be written in a source")


def _choice(text: str, values: dict[str, Any]) -> Any:
    """One of the values, by its text."""
    if text not in values:
        raise ValueError(f"not one of {', '.join(values)}")
    return values[text]
