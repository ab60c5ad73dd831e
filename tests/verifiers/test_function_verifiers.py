"""`python:module:function` and `gym`, called directly."""

from __future__ import annotations

import os
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from skpo.errors import VerifierError
from skpo.verifiers import get_verifier
from skpo.verifiers.direct import judge


@pytest.mark.parametrize(
    ("completion", "score", "failure"),
    [
        ("blue", 1.0, None),
        ("red", 0.0, None),
        ("half", 0.5, None),
        ("negative", -1.0, None),
        ("print", 1.0, None),
        ("skip", None, None),
        ("raise", 0.0, "exception"),
        ("interrupt", 0.0, "exception"),
        ("sys_exit", 0.0, "exception"),
        ("nan", 0.0, "bad_value"),
        ("inf", 0.0, "bad_value"),
        ("two", 0.0, "bad_value"),
        ("none", 0.0, "bad_value"),
        ("nothing", 0.0, "bad_value"),
        ("word", 0.0, "bad_value"),
        ("exit", 0.0, "crash"),
        ("segfault", 0.0, "crash"),
        ("sigkill", 0.0, "crash"),
        ("close_all", 0.0, "crash"),
        ("loop", 0.0, "timeout"),
        ("sleep", 0.0, "timeout"),
        ("stubborn", 0.0, "timeout"),
    ],
)
def test_verdicts(completion: str, score: float | None, failure: str | None) -> None:
    verifier = get_verifier("python:hostile_rewards:pick", deadline=0.5)
    start = time.monotonic()
    verdict = judge(verifier, completion, "blue")
    assert (verdict.score, verdict.failure) == (score, failure)
    assert verifier.score("blue", "blue") == 1.0
    assert time.monotonic() - start < 3


def test_default_deadline_is_two_seconds_of_wall_time() -> None:
    verifier = get_verifier("python:hostile_rewards:pick")
    start = time.monotonic()
    assert verifier.score("sleep", "x") == 0.0
    assert 1.9 < time.monotonic() - start < 3


def test_any_thread_and_several_at_once() -> None:
    """Four sleepers at once end after one deadline, not after four."""
    verifier = get_verifier("python:hostile_rewards:pick", deadline=1.0)
    scores: list[float] = []
    threads = [threading.Thread(target=lambda: scores.append(verifier.score("sleep", "x"))) for _ in range(4)]
    start = time.monotonic()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert scores == [0.0] * 4
    assert time.monotonic() - start < 3


def test_columns_and_chat() -> None:
    assert get_verifier("python:hostile_rewards:strict").score("x", "gold", columns={"color": "red", "size": 3}) == 1.0
    chat = get_verifier("python:hostile_rewards:chat")
    assert chat.score("x", "a", prompt=[{"role": "user", "content": "q"}]) == 1.0
    assert chat.score("x", "a", prompt="q") == 0.25
    assert get_verifier("python:hostile_rewards:awaited").score("x", "a") == 0.75


def test_worker_has_no_torch() -> None:
    assert get_verifier("python:hostile_rewards:modules").score("x", "a") == 1.0


def test_module_in_the_current_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "my_reward_here.py").write_text("def f(prompts, completions, **columns):\n    return [0.125]\n")
    monkeypatch.chdir(tmp_path)
    assert get_verifier("python:my_reward_here:f").score("x", "a") == 0.125


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("python:no_such_module_at_all:f", "no_such_module_at_all"),
        ("python:hostile_rewards:absent", "absent"),
        ("python:hostile_rewards:NOT_CALLABLE", "not a function"),
        ("python:hostile_rewards", "python:module:function"),
        ("python", "python:module:function"),
    ],
)
def test_what_cannot_be_loaded(name: str, said: str) -> None:
    with pytest.raises(VerifierError, match=said):
        get_verifier(name)


def test_unpicklable_columns_score_zero() -> None:
    verifier = get_verifier("python:hostile_rewards:pick")
    assert verifier.score("blue", "blue", columns={"lock": threading.Lock()}) == 0.0


def test_a_forked_process_has_its_own_workers() -> None:
    verifier = get_verifier("python:hostile_rewards:pick")
    assert verifier.score("blue", "blue") == 1.0
    pid = os.fork()
    if pid == 0:
        os._exit(7 if verifier.score("blue", "blue") == 1.0 else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 7
    assert verifier.score("blue", "blue") == 1.0


def test_gym_uses_the_tasks_own_scoring() -> None:
    import reasoning_gym

    entry: dict[str, Any] = reasoning_gym.create_dataset("chain_sum", seed=1, size=1)[0]
    columns = {"gym_task": "chain_sum", "gym_entry": entry}
    gym = get_verifier("gym")
    answer = entry["answer"]
    assert gym.score(f"Adding up. The answer is {answer}", answer, columns) == 1.0
    assert gym.score(f"<answer>{answer}</answer>", answer, columns) == 1.0
    assert gym.score(rf"so \boxed{{{answer}}}", answer, columns) == 1.0
    assert gym.score(answer, answer, columns) == 1.0
    assert gym.score("1234567", answer, columns) < 1.0
    assert gym.score(answer, answer) == 1.0
    assert gym.score(answer, answer, {"gym_task": "no such task", "gym_entry": entry}) == 0.0
