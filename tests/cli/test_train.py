"""`skpo train`: what reaches the trainer, what is printed, and exit codes."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from cli.command_line import Invoke


def test_recipe_and_overrides_reach_the_trainer(invoke: Invoke, calls: list[Any]) -> None:
    done = invoke("train", "recipes/chain.yaml", "algorithm=grpo", "steps=3", "lr=1e-3", "out=runs/a", "--quiet")
    assert done.code == 0
    (call,) = calls
    assert (call.resume, call.dry_run, call.quiet) == (False, False, True)
    assert (call.config.algorithm, call.config.steps, call.config.optimizer.lr) == ({"name": "grpo"}, 3, 1e-3)
    assert done.out.splitlines() == [
        "run      runs/a (3 steps)",
        "before   held-out pass@1 0.480",
        "after    held-out pass@1 0.925 (best 0.938)",
    ]


def test_the_same_command_again_goes_on(invoke: Invoke, calls: list[Any]) -> None:
    for _ in range(2):
        assert invoke("train", "chain", "out=runs/a").code == 0
    assert [call.resume for call in calls] == [False, True]


def test_another_run_in_the_folder_is_refused(invoke: Invoke, calls: list[Any]) -> None:
    invoke("train", "chain", "out=runs/a")
    done = invoke("train", "chain", "out=runs/a", "steps=5", "algorithm=grpo")
    assert done.code == 2
    assert done.err == (
        "error: runs/a: holds a run with other settings: algorithm.name (skpo there, grpo now), "
        "algorithm.upstream_weight (reliability there, None now), algorithm.initial_length (74 there, None now) "
        "and 1 more; choose another folder with out=FOLDER, or go on with that run: skpo train --resume runs/a\n"
    )
    assert len(calls) == 1


def test_resume_takes_the_runs_own_settings(invoke: Invoke, calls: list[Any], tmp_path: Path) -> None:
    invoke("train", "chain", "out=runs/a", "steps=4", "algorithm=dapo")
    (tmp_path / "runs/a").rename(tmp_path / "runs/moved")
    assert invoke("train", "--resume", "runs/moved", "steps=8").code == 0
    call = calls[1]
    assert (call.resume, call.config.steps, call.config.algorithm["name"]) == (True, 8, "dapo")
    assert call.config.out == Path("runs/moved")


def test_resume_of_nothing(invoke: Invoke, calls: list[Any]) -> None:
    done = invoke("train", "--resume", "runs/none")
    assert (done.code, done.err) == (
        2,
        "error: runs/none: no config.yaml there, so no run to go on with; start one: skpo train RECIPE out=runs/none\n",
    )


def test_dry_run_keeps_out_of_the_runs_folder(invoke: Invoke, calls: list[Any]) -> None:
    for _ in range(2):
        assert invoke("train", "chain", "out=runs/a", "--dry-run").code == 0
    assert [(str(c.config.out), c.config.steps, c.dry_run, c.resume) for c in calls] == [
        ("runs/a-dry-run", 2, True, False)
    ] * 2
    assert not Path("runs/a").exists()


def test_interrupted(invoke: Invoke, calls: list[Any]) -> None:
    done = invoke("train", "chain", "out=runs/a", "steps=13")
    assert (done.code, done.err) == (130, "\nstopped; resume with skpo train --resume runs/a\n")


WRONG = {
    (
        "train",
    ): "error: which recipe? skpo train RECIPE [KEY=VALUE]..., for example skpo train recipes/chain.yaml steps=10",
    ("train", "steps=3"): "error: which recipe? skpo train RECIPE [KEY=VALUE]..., "
    "for example skpo train recipes/chain.yaml steps=10",
    ("train", "chain", "stepz=3"): 'error: override "stepz=3": unknown key "stepz"; did you mean "steps"?',
    (
        "train",
        "chain",
        "grpo",
    ): 'error: override "grpo": expected key=value, for example steps=200 or rollout.temperature=0.8',
    ("train", "chain", "algorithm.clip=1"): 'error: algorithm skpo: unknown option "clip". Did you mean ',
    ("train", "chain", "algorithm=grpoo"): 'error: unknown algorithm "grpoo". Did you mean "grpo"? Known: ',
}


@pytest.mark.parametrize("words", WRONG, ids=" ".join)
def test_errors_are_one_line(words: tuple[str, ...], invoke: Invoke, calls: list[Any]) -> None:
    done = invoke(*words)
    assert (done.code, done.out) == (2, "")
    assert done.err.startswith(WRONG[words])
    assert done.err.count("\n") == 1
    assert calls == []


def test_module_runs_too() -> None:
    done = subprocess.run([sys.executable, "-m", "skpo", "--version"], capture_output=True, text=True, check=True)
    assert done.stdout == "skpo 0.1.0\n"
