"""Runs whose rollouts are on Ray workers: they die, they are all gone, they are a step ahead."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from skpo.config import TrainConfig
from skpo.errors import WorkersLostError
from skpo.policy.loading import load_policy
from skpo.rollout.ray.pool import RolloutPool
from skpo.settings import load_config
from skpo.trainer import Trainer
from skpo.trainer.metrics import read_metrics
from skpo.trainer.progress import Progress
from skpo.trainer.rollout_log import read_rollouts
from skpo.trainer.run import Run

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("cluster")]

SETTINGS = [
    "steps=5", "problems_per_step=8", "group_size=4", "eval_every=0", "eval.limit=6", "eval.samples=1", "checkpoint.every=2",
    "optimizer.mini_batches=2", "rollout.ray.restarts=9", "rollout.ray.start_timeout=600",
]  # fmt: skip
COST = (
    "seconds",
    "tokens_per_second",
    "tokens_prefilled",
    "engine_steps",
    "slots_busy",
    "slots_computed",
    "worker",
    "plans_repeated",
    "weights",
)


def config(out: Path, *more: str) -> TrainConfig:
    return load_config("chain", [*SETTINGS, f"out={out}", *more])


def numbers(run: Path) -> list[Any]:
    """The run's metrics without what they cost; equal up to the rounding of another batch composition."""
    found = [{k: v for k, v in r.items() if not any(c in k for c in COST)} for r in read_metrics(run)]
    for record in found:
        for name in ("version_lag", "probe_deviation"):
            record.pop(name, None)
    return [pytest.approx(record, rel=1e-3, abs=1e-4) for record in found]


def sampled(run: Path, steps: list[int] | None = None) -> list[Any]:
    table = read_rollouts(run, steps)
    return sorted(zip(*(table[c].to_pylist() for c in ("step", "problem_id", "seed", "tokens")), strict=True))


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The undisturbed run, in one process."""
    out = tmp_path_factory.mktemp("runs") / "plain"
    Trainer(config(out), quiet=True).train()
    return out


def kill_after_first_groups(monkeypatch: pytest.MonkeyPatch, trainer: Trainer, steps: list[int]) -> dict[int, int]:
    """In each of these steps, once the first groups are in: SIGKILL for the worker with the most plans under way. Returns step -> pid,
    as they die."""
    killed: dict[int, int] = {}
    read = RolloutPool._read

    def deadly(pool: RolloutPool, member: Any, report: Any, run: Any) -> Any:
        groups = read(pool, member, report, run)
        victim = max(pool.members, key=lambda m: len(m.flight))
        evaluation = run.plans[0].plan.function.__name__ == "group_plan"
        if groups and not evaluation and victim.flight and trainer.step in steps and trainer.step not in killed:
            killed[trainer.step] = victim.pid
            os.kill(victim.pid, signal.SIGKILL)
        return groups

    monkeypatch.setattr(RolloutPool, "_read", deadly)
    return killed


def test_a_worker_is_killed_in_every_step(plain: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    notes: list[str] = []
    monkeypatch.setattr(Progress, "note", lambda self, text: notes.append(text))
    trainer = Trainer(config(tmp_path / "killed", "engine=ray", "rollout.ray.workers=2"), quiet=True)
    killed = kill_after_first_groups(monkeypatch, trainer, [0, 1, 2, 3, 4])
    trainer.train()
    assert sorted(killed) == [0, 1, 2, 3, 4]
    assert sampled(tmp_path / "killed") == sampled(plain)
    assert [r.expected for r in numbers(plain)] == numbers(tmp_path / "killed")
    records = read_metrics(tmp_path / "killed")[1:]
    assert [r["worker_deaths"] for r in records] == [1] * 5
    assert all(r["plans_repeated"] >= 1 for r in records)
    assert len([n for n in notes if "died" in n and "unfinished problems run again" in n]) == 5


def test_no_workers_left(plain: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The only worker dies in the third step and may not come back: an error, a checkpoint of the two steps done, and a resumed
    run that gives what the undisturbed one gave."""
    out = tmp_path / "lost"
    trainer = Trainer(config(out, "engine=ray", "rollout.ray.restarts=0", "checkpoint.every=0"), quiet=True)
    with monkeypatch.context() as patch:
        kill_after_first_groups(patch, trainer, [2])
        with pytest.raises(WorkersLostError, match=rf"no rollout workers are left.*saved after step 2.*--resume {out}"):
            trainer.train()
    assert [p.name for p in (out / "checkpoints").iterdir()] == ["step-000002"]
    Trainer(config(out, "engine=ray"), resume=True, quiet=True).train()
    assert sampled(out) == sampled(plain)
    assert [r.expected for r in numbers(plain)] == numbers(out)


def test_two_training_processes_share_one_pool(plain: Path, tmp_path: Path) -> None:
    """`workers` are those of the run: the first process has them, and all have the groups."""
    out = tmp_path / "two"
    Trainer(
        config(out, "engine=ray", "rollout.ray.workers=2", "processes=2", "process_timeout=240"), quiet=True
    ).train()
    assert sampled(out) == sampled(plain)
    assert [r.expected for r in numbers(plain)] == numbers(out)
    records = read_metrics(out)[1:]
    assert {r["workers"] for r in records} == {2}
    size = sum(p.numel() * 4 for p in load_policy(config(out).model).model.parameters())
    assert {r["weights_bytes"] for r in records} == {size}  # once, not once a process


def below(ancestor: int) -> list[int]:
    """Process ids of the Ray workers that a process has started, through others."""
    found, parents = [], {}
    for status in Path("/proc").glob("[0-9]*/stat"):
        try:
            parents[int(status.parent.name)] = int(status.read_text().rpartition(")")[2].split()[1])
            if (status.parent / "cmdline").read_bytes().startswith(b"ray::Worker"):
                found.append(int(status.parent.name))
        except OSError:
            continue
    return [pid for pid in found if ancestor in lineage(pid, parents)]


def lineage(pid: int, parents: dict[int, int]) -> list[int]:
    line = [pid]
    while line[-1] in parents:
        line.append(parents[line[-1]])
    return line


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="processes are looked up in Linux's /proc")
def test_no_workers_left_of_two_training_processes(plain: Path, tmp_path: Path) -> None:
    """Both know at once, and the run is saved; one process goes on with what two have left."""
    out = tmp_path / "lost"
    more = ["engine=ray", "rollout.ray.restarts=0", "checkpoint.every=0", "processes=2", "process_timeout=240"]
    with subprocess.Popen(
        [sys.executable, "-m", "skpo", "train", "--quiet", "chain", *SETTINGS, *more, f"out={out}"],
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
    ) as run:  # fmt: skip
        deadline = time.monotonic() + 240
        while len(read_metrics(out)) < 3:  # before training and two steps
            assert run.poll() is None
            assert time.monotonic() < deadline
            time.sleep(0.02)
        (worker,) = below(run.pid)
        os.kill(worker, signal.SIGKILL)
        output, _ = run.communicate(timeout=120)
    assert run.returncode == 2, output
    (saved,) = (p.name for p in (out / "checkpoints").iterdir())
    step = int(saved.removeprefix("step-"))
    assert 2 <= step < 5
    line = " ".join(output.split())
    assert "no rollout workers are left" in line
    assert f"saved after step {step}; go on with: skpo train --resume" in line
    Trainer(config(out, "engine=ray"), resume=True, quiet=True).train()
    assert sampled(out) == sampled(plain)
    assert [r.expected for r in numbers(plain)] == numbers(out)


def test_a_step_ahead_is_stale_by_one_and_resumes_exactly(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    more = ["engine=ray", "rollout.ahead=1", "steps=4"]
    Trainer(config(tmp_path / "whole", *more), quiet=True).train()
    records = read_metrics(tmp_path / "whole")[1:]
    assert [r["version_lag"] for r in records] == [0, 1, 1, 1]
    table = read_rollouts(tmp_path / "whole")
    assert set(zip(table["step"].to_pylist(), table["version"].to_pylist(), strict=True)) == {
        (1, 0),
        (2, 0),
        (3, 1),
        (4, 2),
    }

    def stop(run: Run, record: Any, write: Any = Run.record) -> None:
        if record["step"] == 3:
            raise KeyboardInterrupt
        write(run, record)

    with monkeypatch.context() as patch:
        patch.setattr(Run, "record", stop)
        with pytest.raises(KeyboardInterrupt):
            Trainer(config(tmp_path / "part", *more), quiet=True).train()
    assert (tmp_path / "part" / "checkpoints" / "step-000002" / "ahead.pt").exists()
    Trainer(config(tmp_path / "part", *more), resume=True, quiet=True).train()
    assert sampled(tmp_path / "part") == sampled(tmp_path / "whole")
    assert [r.expected for r in numbers(tmp_path / "whole")] == numbers(tmp_path / "part")
