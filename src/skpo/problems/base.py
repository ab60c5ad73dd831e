"""`Problem`: one task whose answer can be checked."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

Message = Mapping[str, str]


@dataclass(frozen=True)
class Problem:
    """One task with a verifiable answer.

    prompt:   plain text, or chat messages (`[{"role": ..., "content": ...}, ...]`, the last one from the user).
    answer:   the gold answer, in the form that its verifier reads.
    id:       stable across runs and machines; trackers and checkpoints are keyed by it.
    verifier: name of the verifier for this problem, or None for the run's default.
    columns:  the row's other columns, handed to `python:` rewards by name.
    """

    prompt: str | Sequence[Message]
    answer: Any
    id: str = ""
    verifier: str | None = None
    columns: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if not self.id:
            object.__setattr__(self, "id", problem_id(self.prompt, self.answer))

    @property
    def text(self) -> str:
        """The problem itself: the prompt, or the last user message of a chat."""
        if isinstance(self.prompt, str):
            return self.prompt
        return next(m["content"] for m in reversed(self.prompt) if m["role"] == "user")


def problem_id(prompt: Any, answer: Any) -> str:
    """Hash of prompt and answer: 16 hexadecimal digits, the same on every machine."""
    payload = json.dumps([prompt, answer], sort_keys=True, ensure_ascii=False, default=str)
    return hashlib.blake2b(payload.encode(), digest_size=8).hexdigest()
