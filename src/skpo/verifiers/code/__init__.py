"""The `code` verifier: runs the program of a completion against tests, in a jail.

What is and what is not kept apart: docs/evaluation.md, section "Isolation".
"""

from __future__ import annotations

import pickle
import time
from collections.abc import Mapping
from typing import Any

from skpo.verifiers.base import BaseVerifier, Columns
from skpo.verifiers.code.answers import Tests, read, same_output
from skpo.verifiers.code.program import program

SETTINGS = "\x00code"  # a column that no data set can have by accident; set by `pack` in the caller's process alone
CASE_SECONDS = 6.0


class CodeVerifier(BaseVerifier):
    """1.0 where the program of a completion passes every test of the gold answer (forms: `answers`), else 0.0.

    The program is the last fenced Python block, else the whole text; for HumanEval what continues the prompt. It runs
    without network, outside of all files but a folder of its own, with limits on CPU time (`deadline` seconds), memory,
    processes and output. unsafe_code: run even where the kernel doesn't isolate.
    """

    memory_mb = 1024
    votes = False

    def prepare(self) -> None:
        self.ready()

    def ready(self) -> None:
        """Raises `VerifierError` where programs can't be isolated and `unsafe_code` is not set."""
        if not self.unsafe_code:
            from skpo.verifiers.code.isolation import require

            require()

    def pack(self, completion: str, answer: Any, columns: Columns | None, prompt: Any, seconds: float) -> bytes:
        settings = {
            "unsafe": self.unsafe_code,
            "cpu": self.deadline,
            "wall": 0.9 * seconds,
            "memory_mb": self.memory_mb,
        }
        return pickle.dumps((completion, answer, {SETTINGS: settings}, None), protocol=pickle.HIGHEST_PROTOCOL)

    def quick(self, completion: str, answer: Any) -> float | None:
        return None if completion.strip() else 0.0

    def load(self) -> None:
        from skpo.verifiers.code.sandbox import Sandbox

        self._sandboxes: dict[bool, Sandbox] = {}

    def slow(self, completion: str, answer: Any, columns: Columns, prompt: Any) -> float | None:
        from skpo.verifiers.code.sandbox import Sandbox

        settings = columns[SETTINGS]
        unsafe = bool(settings["unsafe"])
        if unsafe not in self._sandboxes:
            self._sandboxes[unsafe] = Sandbox(unsafe)
        tests = read(answer)
        return float(passes(self._sandboxes[unsafe], program(completion, tests.prompt, tests.entry), tests, settings))

    def check_gold(self, answer: Any) -> None:
        read(answer)


def passes(sandbox: Any, source: str, tests: Tests, settings: Mapping[str, Any]) -> bool:
    """Whether a program passes all tests; settings: `cpu` and `wall` seconds for all of them together, `memory_mb`."""
    from skpo.verifiers.code.sandbox import Limits

    end = time.monotonic() + settings["wall"]
    if not tests.cases:
        run = sandbox.tested(source, dict(tests.work), Limits(settings["cpu"], settings["wall"], settings["memory_mb"]))
        report = run.report if run.failure is None else None
        return isinstance(report, dict) and report["passed"] == report["of"] > 0
    for given, expected in tests.cases:
        left = end - time.monotonic()
        if left <= 0:
            return False
        cpu = min(settings["cpu"], CASE_SECONDS)
        limits = Limits(cpu, left, settings["memory_mb"], output=2 * len(expected) + (64 << 10))
        run = sandbox.whole(source, given, limits)
        if run.failure or run.status != 0 or not same_output(run.stdout.decode(errors="replace"), expected):
            return False
    return True
