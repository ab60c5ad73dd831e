"""The `gym` verifier: reasoning-gym's own scoring of its own tasks."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

from skpo.verifiers.base import BaseVerifier, Columns
from skpo.verifiers.extract import after_mark, after_thinking, last_box, tagged


class GymVerifier(BaseVerifier):
    """Needs the problem's columns `gym_task` (data set name) and `gym_entry` (the entry: question, answer, metadata; or
    its JSON). Without them the final answer has to equal the gold answer. An exception in the task's scoring scores 0.
    """

    preload = ("reasoning_gym",)

    def normal(self, completion: str) -> str | None:
        return gym_answer(completion) or None

    def __init__(self, name: str, deadline: float = 2.0) -> None:
        super().__init__(name, deadline)
        self._scorers: dict[str, Callable[..., float]] = {}

    def load(self) -> None:
        import reasoning_gym  # noqa: F401

    def slow(self, completion: str, answer: Any, columns: Columns, prompt: Any) -> float | None:
        found = gym_answer(completion)
        task, entry = columns.get("gym_task"), columns.get("gym_entry")
        if task is None or entry is None:
            return float(found == str(answer).strip())
        if isinstance(entry, str):
            entry = json.loads(entry)
        if task not in self._scorers:
            import reasoning_gym

            self._scorers[task] = reasoning_gym.get_score_answer_fn(task)
        return min(1.0, max(0.0, float(self._scorers[task](answer=found, entry=entry))))


def gym_answer(completion: str) -> str:
    r"""`<answer>` tag; else the last complete `\boxed{}`; else all after the last "answer is" or "answer:"; else all."""
    text = after_thinking(completion)
    for part in (tagged(text), last_box(text), after_mark(text)):
        if part is not None:
            return part.strip()
    return text.strip()
