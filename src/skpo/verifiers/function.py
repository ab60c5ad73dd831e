"""The `python:module:function` verifier: a reward function of one's own, with the signature that TRL users have."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any

from skpo.errors import VerifierError
from skpo.verifiers.base import BadValueError, BaseVerifier, Columns


class FunctionVerifier(BaseVerifier):
    """Calls `function(prompts, completions, **columns) -> list[float | None]` with lists of one, always in a worker.

    `answer` is among the columns. Chat prompts get completions as `[{"role": "assistant", "content": text}]`, others as
    text. None skips the row. Rewards are taken as they are, also outside [0, 1]. Coroutine functions are awaited. A
    function without `**kwargs` gets only the columns that it names.
    """

    def __init__(self, name: str, deadline: float = 2.0) -> None:
        super().__init__(name, deadline)
        parts = name.split(":")
        if len(parts) != 3 or not all(parts[1:]):
            raise VerifierError(f'verifier "{name}": write it as python:module:function.')
        self.module, self.function = parts[1], parts[2]
        self._call: Callable[..., Any] | None = None
        self._names: frozenset[str] | None = None

    def prepare(self) -> None:
        """Load the function in a worker once. Raises `VerifierError` if that fails."""
        from skpo.verifiers import direct

        direct.prepare(self)

    def load(self) -> None:
        found: Any = import_module(self.module)
        for part in self.function.split("."):
            found = getattr(found, part)
        if not callable(found):
            raise TypeError(f"{self.function} is a {type(found).__name__}, not a function")
        parameters = inspect.signature(found).parameters.values()
        takes_all = any(p.kind is p.VAR_KEYWORD for p in parameters)
        self._call, self._names = found, None if takes_all else frozenset(p.name for p in parameters)

    def slow(self, completion: str, answer: Any, columns: Columns, prompt: Any) -> float | None:
        assert self._call is not None
        chat = not isinstance(prompt, str | None) and all(isinstance(message, Mapping) for message in prompt)
        given = {key: [value] for key, value in {"answer": answer, **columns}.items()}
        given["prompts"] = [prompt]
        given["completions"] = [[{"role": "assistant", "content": completion}] if chat else completion]
        if self._names is not None:
            given = {key: value for key, value in given.items() if key in self._names}
        rewards = self._call(**given)
        if inspect.iscoroutine(rewards):
            import asyncio

            rewards = asyncio.run(rewards)
        return _single(rewards)


def _single(rewards: Any) -> float | None:
    """The one reward of a list of one. Raises `BadValueError`."""
    try:
        (reward,) = list(rewards)
        if reward is None:
            return None
        value = float(reward)
    except (TypeError, ValueError) as error:
        raise BadValueError(str(error)) from None
    if not math.isfinite(value):
        raise BadValueError(f"{value} is not finite")
    return value
