"""A run killed at any instant and resumed gives the same numbers as one never killed, bit for bit."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from skpo.config import TrainConfig
from skpo.errors import RunError
from skpo.settings import load_config
from skpo.trainer import Trainer
from skpo.trainer.metrics import read_metrics
from skpo.trainer.rollout_log import read_rollouts

SETTINGS = [
    "steps=6", "problems_per_step=6", "group_size=4", "eval_every=3", "eval.limit=6", "eval.samples=1", "checkpoint.every=2",
    "optimizer.mini_batches=2", "optimizer.warmup_steps=3", "optimizer.schedule=cosine", "optimizer.weight_decay=0.01",
]  # fmt: skip


def config(out: Path, *more: str) -> TrainConfig:
    return load_config("chain", [*SETTINGS, f"out={out}", *more])


def numbers(run: Path) -> list[dict[str, Any]]:
    """The run's metrics without those that measure time."""
    timed = ("seconds", "tokens_per_second")
    return [{k: v for k, v in record.items() if not any(t in k for t in timed)} for record in read_metrics(run)]


def rollouts(run: Path) -> list[Any]:
    table = read_rollouts(run)
    return [table[c].to_pylist() for c in ("step", "problem_id", "tokens", "logp", "advantage", "seed")]


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("runs") / "whole"
    Trainer(config(out), quiet=True).train()
    return out


def command(out: Path, resume: bool) -> list[str]:
    if resume:
        return [sys.executable, "-m", "skpo", "train", "--quiet", "--resume", str(out)]
    return [sys.executable, "-m", "skpo", "train", "--quiet", "chain", *SETTINGS, f"out={out}"]


@pytest.mark.slow
@pytest.mark.parametrize("trial", range(10))
def test_killed_and_resumed(trial: int, whole: Path, tmp_path: Path) -> None:
    """SIGKILL at a random moment, then again while resuming, then to the end."""
    rng = random.Random(trial)
    out = tmp_path / "killed"
    for _ in range(2):
        begun = (out / "metrics.jsonl").exists()
        process = subprocess.Popen(
            command(out, resume=(out / "config.yaml").exists()), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        deadline = time.monotonic() + 120
        while not begun and process.poll() is None and time.monotonic() < deadline:  # start-up is not what is tested
            begun = (out / "metrics.jsonl").exists()
            time.sleep(0.02)
        time.sleep(rng.uniform(0, 4))
        os.kill(process.pid, signal.SIGKILL)
        process.wait()
    done = subprocess.run(command(out, resume=True), capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert numbers(out) == numbers(whole)
    assert rollouts(out) == rollouts(whole)


@pytest.mark.parametrize(
    "more", [["algorithm=spo"], ["algorithm=dapo", "curriculum=prioritized"], ["algorithm=grpo", "algorithm.beta=0.1"]]
)
def test_stopped_and_resumed(more: list[str], tmp_path: Path) -> None:
    """Algorithms with state of their own, a sampler with a tracker, a reference policy: stopped after two steps of four."""
    short = ["steps=4", "eval_every=0", "optimizer.schedule=constant", *more]
    Trainer(config(tmp_path / "whole", *short), quiet=True).train()
    part = config(tmp_path / "part", *short)
    Trainer(part.model_copy(update={"steps": 2}), quiet=True).train()
    Trainer(part, resume=True, quiet=True).train()
    expected = [r for r in numbers(tmp_path / "whole") if r["step"] > 0]
    actual = [r for r in numbers(tmp_path / "part") if r["step"] > 0]
    for record in actual:
        if record["step"] == 2:  # the short run's last step was evaluated, too
            for key in [k for k in record if k.startswith("eval")]:
                record.pop(key)
    assert [{k: v for k, v in r.items() if k != "eval_best"} for r in actual] == [
        {k: v for k, v in r.items() if k != "eval_best"} for r in expected
    ]


def test_a_complete_run_has_nothing_left_to_do(whole: Path) -> None:
    before = numbers(whole)
    result = Trainer(config(whole), resume=True, quiet=True).train()
    assert result.steps == 6
    assert numbers(whole) == before


def test_a_folder_that_holds_a_run_is_not_overwritten(whole: Path, tmp_path: Path) -> None:
    with pytest.raises(RunError, match="already holds a run"):
        Trainer(config(whole), quiet=True).train()
    with pytest.raises(RunError, match="no run to resume"):
        Trainer(config(tmp_path / "none"), resume=True, quiet=True).train()


def test_checkpoints_keep_the_last_and_the_best(whole: Path) -> None:
    kept = sorted(p.name for p in (whole / "checkpoints").iterdir())
    best = max(
        (r for r in read_metrics(whole) if "eval_pass_at_1" in r and r["step"] > 0),
        key=lambda r: (r["eval_pass_at_1"], -r["step"]),
    )
    assert "step-000006" in kept
    assert len(kept) <= 3
    if best["eval_pass_at_1"] > read_metrics(whole)[0]["eval_pass_at_1"]:
        assert f"step-{best['step']:06d}" in kept
    assert not [name for name in kept if name.startswith(".")]


def test_a_checkpoint_is_a_plain_transformers_model(whole: Path) -> None:
    import transformers

    folder = whole / "checkpoints" / "step-000006" / "model"
    model = transformers.AutoModelForCausalLM.from_pretrained(folder)
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    assert model.num_parameters() > 100_000
    assert tokenizer.eos_token_id is not None
