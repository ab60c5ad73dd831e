"""What a run leaves in its folder: metrics, lock, rollouts, picture, progress lines."""

from __future__ import annotations

import io
import json
import os
import signal
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from rich.console import Console

from skpo.errors import RunError
from skpo.problems.base import Problem
from skpo.rollout.types import SEGMENT, Group, Sample
from skpo.trainer.lock import RunLock
from skpo.trainer.metrics import MetricsWriter, read_metrics
from skpo.trainer.plots import plot_run, split
from skpo.trainer.progress import Progress, duration, sparkline
from skpo.trainer.rollout_log import RolloutLog, read_rollouts


def step_metrics(step: int) -> dict[str, Any]:
    """A made-up step of a run that learns."""
    accuracy = 0.97 - 0.5 * np.exp(-step / 15) + 0.02 * np.sin(7 * step)
    return {
        "step": step,
        "tokens_generated": 20000,
        "tokens_generated_total": 20000 * step,
        "reward_mean": 2 * accuracy - 1,
        "accuracy": accuracy,
        "pass_at_g": min(1.0, accuracy + 0.25),
        "entropy": 0.3 * np.exp(-step / 20) + 0.02,
        "clip_fraction": 0.01,
        "grad_norm": 0.5,
        "lr": 2e-4,
        "completion_length": 57 + 3 * np.sin(step),
        "segment_length": 20 + 4 * np.cos(3 * step),
        "tokens_per_second": 9876.5,
        "seconds_rollout": 1.2 + 0.1 * np.sin(step),
        "seconds_verify": 0.1,
        "seconds_train": 0.9,
        "seconds_other": 0.05,
        "seconds": 2.25,
        "skipped_steps": 0,
    }


def eval_metrics(step: int) -> dict[str, Any]:
    accuracy = 0.95 - 0.47 * np.exp(-step / 15)
    return {
        "step": step,
        "eval_pass_at_1": accuracy,
        "eval_pass_at_1_stderr": np.sqrt(accuracy * (1 - accuracy) / 256),
        "eval_pass_at_k": min(1.0, accuracy + 0.2),
        "eval_k": 4,
        "eval_length": 60,
    }


def fake_run(folder: Path, steps: int = 45) -> Path:
    writer = MetricsWriter(folder)
    writer.write(eval_metrics(0))
    for step in range(1, steps + 1):
        writer.write(step_metrics(step))
        if step % 5 == 0:
            writer.write(eval_metrics(step))
    writer.close()
    return folder


class TestMetrics:
    def test_written_lines_are_read_back(self, tmp_path: Path) -> None:
        writer = MetricsWriter(tmp_path / "run")
        writer.write({"step": 1, "reward_mean": np.float32(0.5), "verify_failures": {"timeout": np.int64(2)}})
        assert read_metrics(tmp_path / "run") == [{"step": 1, "reward_mean": 0.5, "verify_failures": {"timeout": 2}}]

    def test_no_file_is_no_records(self, tmp_path: Path) -> None:
        assert read_metrics(tmp_path) == []

    def test_not_a_number_becomes_null_and_is_counted(self, tmp_path: Path) -> None:
        MetricsWriter(tmp_path).write({"step": 1, "a": float("nan"), "b": [1.0, float("inf")], "c": {"d": -np.inf}})
        text = (tmp_path / "metrics.jsonl").read_text()
        assert json.loads(text) == {"step": 1, "a": None, "b": [1.0, None], "c": {"d": None}, "nonfinite_values": 3}

    def test_resume_drops_later_lines_and_a_half_written_one(self, tmp_path: Path) -> None:
        fake_run(tmp_path, 12)
        with (tmp_path / "metrics.jsonl").open("a") as file:
            file.write('{"step": 13, "rewa')
        assert [r["step"] for r in read_metrics(tmp_path)][-1] == 12
        writer = MetricsWriter(tmp_path, resume_step=10)
        writer.write({"step": 11})
        steps = [r["step"] for r in read_metrics(tmp_path)]
        assert steps == [0, 1, 2, 3, 4, 5, 5, 6, 7, 8, 9, 10, 10, 11]
        assert (tmp_path / "metrics.jsonl").read_text().endswith("\n")

    def test_a_new_run_starts_an_empty_file(self, tmp_path: Path) -> None:
        fake_run(tmp_path, 3)
        MetricsWriter(tmp_path)
        assert read_metrics(tmp_path) == []

    def test_damage_in_the_middle_is_named(self, tmp_path: Path) -> None:
        path = tmp_path / "metrics.jsonl"
        path.write_text('{"step": 1}\noops\n{"step": 2}\n')
        with pytest.raises(RunError) as caught:
            read_metrics(tmp_path)
        assert str(caught.value) == f"{path}:2: not a JSON object; repair or delete that line"


HOLDER = """
    import sys, time
    from skpo.trainer.lock import RunLock
    lock = RunLock(sys.argv[1]).acquire()
    if sys.argv[2] == "fork":  # a child that outlives us, as a stuck worker would
        import os
        if os.fork() == 0:
            os.close(1)
            time.sleep(30)
    print("held", flush=True)
    time.sleep(30)
"""


def hold(folder: Path, mode: str = "") -> subprocess.Popen[str]:
    """Another process that holds the folder's lock."""
    command = [sys.executable, "-c", textwrap.dedent(HOLDER), str(folder), mode]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, start_new_session=True)
    assert process.stdout is not None
    assert process.stdout.readline() == "held\n"
    return process


class TestLock:
    def test_two_processes(self, tmp_path: Path) -> None:
        other = hold(tmp_path)
        try:
            with pytest.raises(RunError) as caught:
                RunLock(tmp_path).acquire()
        finally:
            other.kill()
            other.wait()
        message = str(caught.value)
        assert message.startswith(
            f"{tmp_path}: process {other.pid} on {os.uname().nodename} is using this run folder since "
        )
        assert message.endswith("; wait for it, stop it, or choose another with out=FOLDER")

    def test_twice_in_one_process(self, tmp_path: Path) -> None:
        with RunLock(tmp_path), pytest.raises(RunError, match=f"process {os.getpid()} on"):
            RunLock(tmp_path).acquire()
        with RunLock(tmp_path):
            pass

    @pytest.mark.parametrize("mode", ["", "fork"])
    def test_a_killed_run_leaves_no_lock(self, tmp_path: Path, mode: str) -> None:
        other = hold(tmp_path, mode)
        other.kill()
        other.wait()
        try:
            with RunLock(tmp_path):
                pass
        finally:
            if mode:
                os.killpg(other.pid, signal.SIGKILL)


def sample(tokens: list[int], role: int = 0, **values: Any) -> Sample:
    ids = np.array(tokens, dtype=np.int64)
    return Sample((1, 2), ids, -0.5 * np.ones(len(ids), dtype=np.float32), True, role=role, **values)


def group(name: str) -> Group:
    problem = Problem("1+1=", "2", id=name)
    right = sample(
        [3, 4],
        text="2",
        score=1.0,
        reward=1.0,
        seed=2**62,
        version=5,
        info={"advantage": 0.75, "per_token": {"entropy": [0.5, 0.25]}},
    )
    unscored = sample([5], text="x", info={"ended": True})
    segment = sample([6, 7, 8], SEGMENT, baseline=0.25, reward=0.5)
    return Group(problem, [right, unscored, segment], [sample([9], SEGMENT)], {"stop_position": 3})


class TestRollouts:
    def test_every_sample_is_a_row(self, tmp_path: Path) -> None:
        path = RolloutLog(tmp_path).write(12, [group("a"), group("b")])
        assert path == tmp_path / "rollouts" / "step-000012.parquet"
        rows = read_rollouts(tmp_path).to_pylist()
        assert [(r["problem_id"], r["role"], r["chosen"]) for r in rows[:4]] == [
            ("a", "completion", True),
            ("a", "completion", True),
            ("a", "segment", True),
            ("a", "segment", False),
        ]
        assert len(rows) == 8
        assert rows[0] == {
            "step": 12,
            "problem_id": "a",
            "role": "completion",
            "chosen": True,
            "prompt": "1+1=",
            "context": [1, 2],
            "text": "2",
            "tokens": [3, 4],
            "logp": [-0.5, -0.5],
            "score": 1.0,
            "reward": 1.0,
            "advantage": 0.75,
            "baseline": 0.0,
            "finished": True,
            "stop_position": 3,
            "seed": 2**62,
            "version": 5,
            "info": None,
            "answer": "2",
            "entropy": [0.5, 0.25],
            "log_ratio": None,
            "token_advantage": None,
        }
        assert (rows[1]["score"], rows[1]["advantage"], rows[1]["info"]) == (None, None, '{"ended": true}')
        assert (rows[2]["baseline"], rows[3]["reward"]) == (0.25, None)

    def test_a_step_written_again_is_replaced(self, tmp_path: Path) -> None:
        log = RolloutLog(tmp_path)
        log.write(1, [group("a"), group("b")])
        log.write(1, [group("c")])
        assert set(read_rollouts(tmp_path)["problem_id"].to_pylist()) == {"c"}
        assert [p.name for p in (tmp_path / "rollouts").iterdir()] == ["step-000001.parquet"]

    def test_resume_removes_later_steps(self, tmp_path: Path) -> None:
        log = RolloutLog(tmp_path)
        for step in (1, 2, 3):
            log.write(step, [group("a")])
        RolloutLog(tmp_path, resume_step=2)
        assert sorted(set(read_rollouts(tmp_path)["step"].to_pylist())) == [1, 2]
        assert set(read_rollouts(tmp_path, steps=[2])["step"].to_pylist()) == {2}

    def test_no_rollouts(self, tmp_path: Path) -> None:
        with pytest.raises(RunError, match=r"rollouts: no rollouts of any step; was rollout\.save off\?"):
            read_rollouts(tmp_path)


class TestPlot:
    def test_picture(self, tmp_path: Path) -> None:
        path = plot_run(fake_run(tmp_path))
        assert path == tmp_path / "curve.png"
        assert path.read_bytes().startswith(b"\x89PNG")
        assert not list(tmp_path.glob(".*.tmp"))

    def test_only_an_evaluation(self, tmp_path: Path) -> None:
        writer = MetricsWriter(tmp_path)
        writer.write({"step": 0, "eval_pass_at_1": 0.5})
        assert plot_run(tmp_path).exists()

    def test_evaluations_know_their_tokens(self, tmp_path: Path) -> None:
        steps, evaluations = split(read_metrics(fake_run(tmp_path, 10)))
        assert len(steps) == 10
        assert [(r["step"], r["tokens"]) for r in evaluations] == [(0, 0), (5, 100_000), (10, 200_000)]

    def test_nothing_to_draw(self, tmp_path: Path) -> None:
        with pytest.raises(RunError, match="nothing to draw"):
            plot_run(tmp_path)


def shown(terminal: bool, **options: Any) -> str:
    """What two steps of a run look like."""
    out = io.StringIO()
    console = Console(file=out, force_terminal=terminal, width=110, highlight=False)
    progress = Progress(console=console, **options)
    progress.start(45, 0, "runs/a")
    progress.evaluation(0, eval_metrics(0))
    for step in (1, 2):
        progress.step(step, step_metrics(step) | {"reward_mean": 0.5, "accuracy": 0.75, "pass_at_g": 1.0})
    progress.note("saved step 2")
    progress.close()
    progress.close()
    return out.getvalue()


class TestProgress:
    def test_log_lines(self) -> None:
        lines = shown(terminal=False).splitlines()
        assert lines[0] == "runs/a: 45 steps"
        assert lines[1] == "evaluation at step 0  held-out pass@1 0.480 ± 0.031  pass@4 0.680  length 60"
        assert lines[3] == (
            "step 2/45  reward 0.500  accuracy 0.750  pass@G 1.000  entropy 0.291  length 60  segment 24  clipped 0.010  "
            "grad norm 0.500  lr 2.0e-04  tok/s 9876  tokens 40,000  2.2 s (rollout 1.3, verify 0.1, train 0.9, other 0.1)  "
            "eta 1m 37s"
        )
        assert lines[4:] == ["saved step 2"]

    def test_quiet_is_plain_in_a_terminal_too(self) -> None:
        assert shown(terminal=True, quiet=True) == shown(terminal=False)

    def test_terminal_has_a_panel(self) -> None:
        text = shown(terminal=True)
        for words in ("runs/a", "step 2/45", "held-out pass@1 0.480", "9876", "rollout 1.3 s", "saved step 2"):
            assert words in text

    def test_other_processes_are_silent(self) -> None:
        assert shown(terminal=True, main=False) == shown(terminal=False, main=False) == ""

    @pytest.mark.parametrize(("done", "words"), [(10, "goes on after step 10 of 45"), (45, "complete")])
    def test_resumed(self, done: int, words: str) -> None:
        out = io.StringIO()
        Progress(console=Console(file=out, width=80)).start(45, done, "runs/a")
        assert out.getvalue() == f"runs/a: {words}\n"

    def test_sparkline_and_duration(self) -> None:
        assert sparkline([0.0, 0.5, 0.99, 1.0]) == "▁▅██"
        assert [duration(s) for s in (4.4, 185, 7620, 3600 * 76)] == ["4s", "3m 05s", "2h 07m", "3d 04h"]
