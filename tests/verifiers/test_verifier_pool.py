"""The pool: nothing is lost, nothing stalls, failures are counted by kind, workers leave nothing behind."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

import pytest

from skpo.errors import VerifierError
from skpo.verifiers import nursery
from skpo.verifiers.pool import Job, Verdict, VerifierPool

NAME = "python:hostile_rewards:pick"


def job(completion: str) -> Job:
    return Job(NAME, completion, "blue")


def short(verdicts: list[Verdict]) -> list[tuple[float | None, str | None]]:
    return [(verdict.score, verdict.failure) for verdict in verdicts]


MIXED = [
    "blue",
    "loop",
    "red",
    "exit",
    "segfault",
    "blue",
    "raise",
    "nan",
    "sigkill",
    "blue",
    "skip",
    "bomb",
    "half",
    "two",
]
EXPECTED = [
    (1.0, None), (0.0, "timeout"), (0.0, None), (0.0, "crash"), (0.0, "crash"), (1.0, None), (0.0, "exception"),
    (0.0, "bad_value"), (0.0, "crash"), (1.0, None), (None, None), (0.0, "memory"), (0.5, None), (0.0, "bad_value"),
]  # fmt: skip


@pytest.mark.parametrize("workers", [1, 3])
def test_each_answer_gets_its_own_verdict(workers: int) -> None:
    with VerifierPool(workers=workers, deadline=0.5, memory_mb=128) as pool:
        jobs = [job(name) for name in MIXED + ["blue"] * 40]
        assert short(pool.score_all(jobs)) == EXPECTED + [(1.0, None)] * 40
        assert pool.failures == Counter(timeout=1, crash=3, exception=1, bad_value=2, memory=1)


def test_sleepers_end_by_wall_time_and_ignore_signals_in_vain() -> None:
    with VerifierPool(workers=2, deadline=0.2) as pool:
        start = time.monotonic()
        verdicts = pool.score_all([job("sleep"), job("stubborn"), job("blue")])
        assert short(verdicts) == [(0.0, "timeout"), (0.0, "timeout"), (1.0, None)]
        assert time.monotonic() - start < 6  # 5 x 0.2 s of wall time each, once more if the worker had served


def test_the_deadline_is_cpu_time() -> None:
    """0.6 s of wall time, hardly any CPU time, under a deadline of 0.3 s (so 1.5 s of wall time): no timeout."""
    with VerifierPool(workers=1, deadline=0.3) as pool:
        assert short(pool.score_all([job("nap")])) == [(1.0, None)]


def test_an_answer_does_not_pay_for_its_predecessor() -> None:
    """`late_exit` answers and kills its process 20 ms later, amid the answers that follow."""
    with VerifierPool(workers=1, deadline=1.0) as pool:
        verdicts = pool.score_all([job("late_exit"), *[job("blue")] * 2000])
        assert short(verdicts) == [(1.0, None)] * 2001
        assert not pool.failures


def test_quick_answers_need_no_worker_and_come_in_order() -> None:
    with VerifierPool(workers=1) as pool:
        jobs = [Job("math", rf"\boxed{{{n}}}", str(n % 2)) for n in range(1000)]
        start = time.process_time()
        scores = [verdict.score for verdict in pool.score_all(jobs)]
        assert scores == [float(n in (0, 1)) for n in range(1000)]
        assert pool._dispatcher is None
        assert time.process_time() - start < 2


def test_formulas_go_through_workers() -> None:
    with VerifierPool(workers=2) as pool:
        jobs = [Job("math", rf"\boxed{{x+{n}}}", "3+x") for n in range(12)]
        assert [verdict.score for verdict in pool.score_all(jobs)] == [float(n == 3) for n in range(12)]


def test_imports_count_for_no_deadline() -> None:
    """A worker that was made for one verifier loads another: importing sympy takes longer than this deadline."""
    lone = nursery.Nursery()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("skpo.verifiers.pool.shared", lambda: lone)
        with VerifierPool(workers=1, deadline=0.3) as pool:
            assert pool.score_all([job("blue"), Job("math", r"\boxed{x+3}", "3+x")])[1] == Verdict(
                1.0, None, pytest.approx(0.1, abs=0.2)
            )
    lone.close()


def test_submit_and_collect_overlap() -> None:
    with VerifierPool(workers=1, deadline=1.0) as pool:
        start = time.monotonic()
        ids = [pool.submit(job("loop")), pool.submit(job("blue")), pool.submit(Job("number", "7", "7"))]
        assert time.monotonic() - start < 0.5
        assert pool.collect(block=False) == [(ids[2], Verdict(1.0, None, pytest.approx(0, abs=0.1)))]
        found: dict[int, Verdict] = {}
        while len(found) < 2:
            found.update(pool.collect(block=True))
        assert found[ids[0]].failure == "timeout"
        assert found[ids[1]].score == 1.0
        assert pool.collect(block=True) == []
        assert pool.pending == 0


def test_tens_of_replaced_workers_leave_nothing_behind() -> None:
    with VerifierPool(workers=2, deadline=0.5) as pool:
        pool.score_all([job("blue")])
        before = len(os.listdir("/proc/self/fd"))
        verdicts = pool.score_all([job("exit" if n % 2 else "segfault") for n in range(60)])
        assert {verdict.failure for verdict in verdicts} == {"crash"}
        assert pool.failures == Counter(crash=60)
        assert pool.score_all([job("blue")])[0].score == 1.0
        assert len(os.listdir("/proc/self/fd")) <= before + 2
        process = nursery.shared()._process
        assert process is not None
        assert len(_children(process.pid)) <= 2 + 4  # this pool's workers and idle ones of direct scoring
    assert not [pid for pid in _children(process.pid) if _state(pid) == "Z"]


def test_children_of_a_killed_worker_die_with_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with VerifierPool(workers=1, deadline=0.4) as pool:
        assert pool.score_all([job("child")])[0].failure == "timeout"
    pid = int((tmp_path / "child.pid").read_text())
    assert _gone(pid)


def test_workers_die_with_their_parent(tmp_path: Path) -> None:
    code = (
        "import os, signal\nfrom skpo.verifiers.pool import Job, VerifierPool\n"
        "pool = VerifierPool(workers=1)\n"
        "name = 'python:hostile_rewards:process'\n"
        "pid = int(pool.score_all([Job(name, 'x', 'y')])[0].score)\n"
        "pool.submit(Job('python:hostile_rewards:pick', 'loop', 'y'))\n"
        "import time; time.sleep(0.3)\nprint(pid, flush=True)\nos.kill(os.getpid(), signal.SIGKILL)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        stdout=subprocess.PIPE,
        text=True,
        check=False,
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parent)},
        timeout=30,
    )
    assert done.returncode == -signal.SIGKILL
    assert _gone(int(done.stdout))


def test_a_dead_nursery_is_replaced() -> None:
    with VerifierPool(workers=1, deadline=0.5) as pool:
        assert pool.score_all([job("blue")])[0].score == 1.0
        process = nursery.shared()._process
        assert process is not None
        process.kill()
        process.wait()
        assert short(pool.score_all([job("blue"), job("red")])) == [(1.0, None), (0.0, None)]


def test_an_unloadable_function_is_an_error_not_a_score() -> None:
    with VerifierPool(workers=1) as pool, pytest.raises(VerifierError, match="no_such_module"):
        pool.score_all([Job("python:no_such_module:f", "x", "y")])


def test_workers_that_cannot_be_started_are_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    lone = nursery.Nursery()
    monkeypatch.setattr("skpo.verifiers.pool.shared", lambda: lone)
    monkeypatch.setattr(sys, "executable", "/no/such/python")
    with VerifierPool(workers=1) as pool, pytest.raises(VerifierError, match="can't be started"):
        pool.score_all([job("blue")])


def test_unknown_verifier_and_closed_pool() -> None:
    pool = VerifierPool()
    with pytest.raises(VerifierError, match="unknown verifier"):
        pool.submit(Job("mth", "x", "y"))
    pool.close()
    with pytest.raises(VerifierError, match="closed"):
        pool.submit(Job("number", "1", "1"))


def test_large_answers_pass() -> None:
    text = "x" * 3_000_000
    with VerifierPool(workers=1, deadline=2.0) as pool:
        verdicts = pool.score_all([Job("python:hostile_rewards:good", text, text) for _ in range(3)])
        assert [verdict.score for verdict in verdicts] == [1.0] * 3


def _state(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return ""


def _children(pid: int) -> list[int]:
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def _gone(pid: int, seconds: float = 5.0) -> bool:
    """Whether a process ends (or waits only to be reaped by its new parent) within some seconds."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        if _state(pid) in ("", "Z"):
            return True
        time.sleep(0.05)
    return False
