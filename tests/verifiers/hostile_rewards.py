"""Reward functions that misbehave in every way; imported by name in verifier workers, `pick` chooses by completion."""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
import sys
import threading
import time
from typing import Any


def good(prompts: Any, completions: Any, answer: Any, **columns: Any) -> list[float]:
    return [float(completion == gold) for completion, gold in zip(completions, answer, strict=True)]


def _loop() -> None:
    while True:
        pass


def _stubborn() -> None:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    while True:
        try:
            time.sleep(0.01)
            raise KeyboardInterrupt
        except BaseException:
            continue


def _bomb() -> None:
    hoard = []
    while True:
        hoard.append(bytearray(1 << 24))


def _late_exit() -> list[float]:
    """Answer now, die a little later: the next answer must not pay for it."""
    threading.Timer(0.02, os._exit, (1,)).start()
    return [1.0]


def _child() -> None:
    """Leave a sleeping child process behind, whose number is written to the path in REWARD_PID."""
    child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
    with open("child.pid", "w") as file:
        file.write(str(child.pid))
    time.sleep(600)


def _close_all() -> None:
    os.closerange(3, 256)
    time.sleep(600)


def _raise() -> None:
    raise RuntimeError("no")


ACTIONS: dict[str, Any] = {
    "loop": _loop,
    "sleep": lambda: time.sleep(3600),
    "stubborn": _stubborn,
    "exit": lambda: os._exit(0),
    "sys_exit": lambda: sys.exit(1),
    "segfault": lambda: ctypes.string_at(0),
    "sigkill": lambda: os.kill(os.getpid(), signal.SIGKILL),
    "bomb": _bomb,
    "child": _child,
    "close_all": _close_all,
    "late_exit": _late_exit,
    "raise": _raise,
    "interrupt": lambda: (_ for _ in ()).throw(KeyboardInterrupt()),
    "nan": lambda: [float("nan")],
    "inf": lambda: [float("inf")],
    "two": lambda: [1.0, 1.0],
    "none": list,
    "nothing": lambda: None,
    "word": lambda: ["good"],
    "nap": lambda: time.sleep(0.6) or [1.0],
    "skip": lambda: [None],
    "half": lambda: [0.5],
    "negative": lambda: [-1.0],
    "print": lambda: print("noise on standard output") or [1.0],
}


def pick(prompts: Any, completions: Any, **columns: Any) -> Any:
    action = ACTIONS.get(completions[0])
    return action() if action else good(prompts, completions, **columns)


def strict(completions: Any, color: Any) -> list[float]:
    """No `**kwargs`: only the named columns arrive."""
    return [float(color == ["red"] and completions == ["x"])]


def chat(prompts: Any, completions: Any, **columns: Any) -> list[float]:
    """1 for TRL's chat form, 0.25 for plain text."""
    if completions == [[{"role": "assistant", "content": "x"}]] and prompts == [[{"role": "user", "content": "q"}]]:
        return [1.0]
    return [0.25] if completions == ["x"] and prompts == ["q"] else [0.0]


async def awaited(prompts: Any, completions: Any, **columns: Any) -> list[float]:
    return [0.75]


def modules(prompts: Any, completions: Any, **columns: Any) -> list[float]:
    """1 where the worker has not imported torch."""
    return [float("torch" not in sys.modules)]


def process(prompts: Any, completions: Any, **columns: Any) -> list[float]:
    return [float(os.getpid())]


NOT_CALLABLE = 3
