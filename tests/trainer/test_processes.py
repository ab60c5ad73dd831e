"""The same recipe on 1, 2 and 4 processes (gloo), DDP and FSDP2: the same problems, samples, losses, gradients and weights."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from together import together

from skpo.errors import RunError
from skpo.settings import load_config
from skpo.trainer import Trainer
from skpo.trainer.metrics import read_metrics
from skpo.trainer.rollout_log import read_rollouts

SHORT = [
    "steps=2", "problems_per_step=5", "group_size=3", "rollout.max_completion_tokens=80", "eval.limit=5", "eval.samples=1",
    "eval_every=0", "checkpoint.every=0", "optimizer.mini_batches=2", "optimizer.micro_batch_tokens=600", "optimizer.weight_decay=0.01",
    "process_timeout=240",
    "optimizer.eps=1e-4",  # AdamW's own 1e-8 divides rounding by rounding where a gradient is nearly 0
]  # fmt: skip
UNEVEN = (
    "seconds",
    "tokens_per_second",
    "engine_steps",
    "slots_busy",
    "slots_computed",
)  #: what depends on how work is shared out


def train(out: Path, *settings: str, resume: bool = False) -> None:
    Trainer(load_config("chain", [*SHORT, *settings, f"out={out}"]), resume=resume, quiet=True).train()


def numbers(run: Path) -> list[dict[str, Any]]:
    """The run's metrics without those that measure time or load."""
    return [{k: v for k, v in r.items() if not any(u in k for u in UNEVEN)} for r in read_metrics(run)]


def tensors(run: Path) -> dict[str, torch.Tensor]:
    """Weights and optimiser state of the newest checkpoint, and of the model beside the policy."""
    checkpoint = sorted((run / "checkpoints").iterdir())[-1]
    (weights,) = (checkpoint / "model").glob("*.safetensors")
    found = dict(load_file(weights))
    for file in ("optimizer.pt", "auxiliary.pt"):
        if (checkpoint / file).exists():
            found |= flat(torch.load(checkpoint / file, weights_only=True), file)
    return found


def flat(tree: Any, name: str) -> dict[str, torch.Tensor]:
    if isinstance(tree, torch.Tensor):
        return {name: tree}
    pairs = tree.items() if isinstance(tree, dict) else ()
    return {k: v for key, inner in pairs for k, v in flat(inner, f"{name}/{key}").items()}


def samples(run: Path) -> list[Any]:
    table = read_rollouts(run)
    return [table[c].to_pylist() for c in ("step", "problem_id", "role", "chosen", "tokens", "score", "reward", "seed")]


def assert_same_run(one: Path, other: Path, tolerance: float = 1e-5) -> None:
    assert samples(one) == samples(other)
    a, b = numbers(one), numbers(other)
    assert [r.keys() for r in a] == [r.keys() for r in b]
    for mine, theirs in zip(a, b, strict=True):
        assert theirs == pytest.approx(mine, abs=tolerance, rel=tolerance)
    for name, value in tensors(one).items():
        torch.testing.assert_close(tensors(other)[name], value, atol=tolerance, rtol=0, msg=name)
    for mine, theirs in zip(read_rollouts(one)["entropy"], read_rollouts(other)["entropy"], strict=True):
        assert (mine.as_py() is None) == (theirs.as_py() is None)  # what each token's row notes has come together


#: name -> settings: algorithms with what else they need (a critic, a reward model, a reference, redrawn groups, trackers).
RECIPES = {
    "skpo": [],
    "dapo": ["algorithm=dapo", "curriculum=prioritized", "group_size=2"],
    "grpo and a reference": ["algorithm=grpo", "algorithm.beta=0.1", "optimizer.old_logp=recompute"],
    "spo": ["algorithm=spo"],
    "ppo": ["algorithm=ppo"],
    "ppo, shared critic": ["algorithm=ppo", "algorithm.critic=shared"],
    "prime": ["algorithm=prime"],
    "lora": ["model.lora.r=4", "algorithm=grpo", "algorithm.beta=0.1", "optimizer.gradient_checkpointing=true"],
}
EVERYWHERE = ("skpo",)
CASES = [
    pytest.param(name, n, strategy, marks=() if name in EVERYWHERE else pytest.mark.slow, id=f"{name}-{n}-{strategy}")
    for name in RECIPES
    for n, strategy in ((2, "ddp"), (4, "ddp"), (2, "fsdp2"))
    if n == 2 or name in EVERYWHERE
]


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """A recipe's run in one process, made once."""
    folder, made = tmp_path_factory.mktemp("alone"), {}

    def run(name: str) -> Path:
        if name not in made:
            made[name] = folder / name.replace(" ", "-")
            together(1, train, made[name], *RECIPES[name])
        return made[name]

    return run


@pytest.mark.parametrize(("name", "processes", "strategy"), CASES)
def test_same_as_in_one_process(name: str, processes: int, strategy: str, alone: Any, tmp_path: Path) -> None:
    together(processes, train, tmp_path / "run", *RECIPES[name], f"distributed={strategy}")
    assert_same_run(alone(name), tmp_path / "run")


@pytest.mark.parametrize(
    ("first", "then"), [((2, "ddp"), (1, "ddp")), ((1, "ddp"), (2, "fsdp2")), ((2, "fsdp2"), (1, "ddp"))]
)
def test_checkpoints_do_not_depend_on_processes(
    first: tuple[int, str], then: tuple[int, str], alone: Any, tmp_path: Path
) -> None:
    """One step on some processes, the second on others: as two steps on one."""
    part = tmp_path / "part"
    together(first[0], train, part, "steps=1", f"distributed={first[1]}")
    together(then[0], train_on, part, f"distributed={then[1]}")
    whole, halves = numbers(alone("skpo")), numbers(part)
    for mine, theirs in zip(whole, halves, strict=True):
        assert {k: theirs[k] for k in mine if k != "eval_best"} == pytest.approx(
            {k: v for k, v in mine.items() if k != "eval_best"}, abs=1e-5, rel=1e-5
        )
    for name, value in tensors(alone("skpo")).items():
        torch.testing.assert_close(tensors(part)[name], value, atol=1e-5, rtol=0, msg=name)


def train_on(out: Path, *settings: str) -> None:
    train(out, *settings, resume=True)


@pytest.mark.slow
@pytest.mark.parametrize("strategy", ["ddp", "fsdp2"])
def test_resumed_bit_for_bit(strategy: str, tmp_path: Path) -> None:
    """At one number of processes a resumed run is the same to the last bit."""
    settings = [f"distributed={strategy}", "problems.heldout=null", "steps=3"]
    together(2, train, tmp_path / "whole", *settings)
    together(2, train, tmp_path / "part", *settings, "steps=1")
    together(2, train_on, tmp_path / "part", *settings)
    assert numbers(tmp_path / "part") == numbers(tmp_path / "whole")
    a, b = tensors(tmp_path / "whole"), tensors(tmp_path / "part")
    assert all(torch.equal(a[name], b[name]) for name in a)
    assert read_rollouts(tmp_path / "part").equals(read_rollouts(tmp_path / "whole"))


def refused(out: Path, *settings: str) -> str:
    try:
        train(out, *settings)
    except RunError as error:
        return str(error)
    return "nothing"


def test_what_the_first_process_finds_stops_all(alone: Any) -> None:
    found = together(2, refused, alone("skpo"))
    assert all("already holds a run" in message for message in found)


# ---- the command line --------------------------------------------------------------------------------------------------

COMMAND = [sys.executable, "-m", "skpo", "train", "--quiet", "chain", *SHORT]


def ended(process: subprocess.Popen[str], seconds: float = 60) -> tuple[int, str]:
    """(exit code, output) of a process that is to end by itself."""
    output, _ = process.communicate(timeout=seconds)
    return process.returncode, output


def start(out: Path, *settings: str, **environment: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [*COMMAND, *settings, "processes=2", f"out={out}"],
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env={**os.environ, **environment},
    )  # fmt: skip


def workers(parent: int) -> dict[int, int]:
    """rank -> process id of the processes that a run has launched."""
    found = {}
    for status in Path("/proc").glob("[0-9]*/stat"):
        try:
            if int(status.read_text().rpartition(")")[2].split()[1]) == parent:
                variables = (status.parent / "environ").read_bytes().split(b"\0")
                ranks = [v for v in variables if v.startswith(b"RANK=")]
                found[int(ranks[0].removeprefix(b"RANK="))] = int(status.parent.name)
        except (OSError, IndexError):
            continue
    return found


def after_a_step(process: subprocess.Popen[str], out: Path) -> None:
    """Wait until the run has done a step."""
    deadline = time.monotonic() + 120
    while len(read_metrics(out)) < 2:
        assert process.poll() is None
        assert time.monotonic() < deadline
        time.sleep(0.05)


@pytest.mark.slow
def test_command_line(alone: Any, tmp_path: Path) -> None:
    """processes=2 launches two, prints once, and leaves what one process leaves; the same command again has nothing to do."""
    code, output = ended(start(tmp_path / "run"), 200)
    assert code == 0, output
    assert output.count("step 2/2") == 1
    assert output.count("before   held-out pass@1") == 1
    assert_same_run(alone("skpo"), tmp_path / "run")
    code, output = ended(
        subprocess.Popen([*COMMAND, "processes=1", f"out={tmp_path / 'run'}"], stdout=subprocess.PIPE, text=True)
    )
    assert code == 0
    assert "complete" in output


@pytest.mark.slow
@pytest.mark.parametrize("launcher", ["accelerate", "torchrun"])
def test_launched_by_others(launcher: str, alone: Any, tmp_path: Path) -> None:
    """`accelerate launch -m skpo train` and torchrun: those who were launched take part. --multi_gpu: with --cpu alone Accelerate
    starts one process, or MPI."""
    starts = {
        "accelerate": ["accelerate.commands.launch", "--multi_gpu", "--num_processes", "2", "--main_process_port", "0"],
        "torchrun": ["torch.distributed.run", "--standalone", "--nproc_per_node", "2"],
    }[launcher]
    command = [sys.executable, "-m", *starts, "-m", "skpo", *COMMAND[3:], f"out={tmp_path / 'run'}"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=200, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count("step 2/2") == 1
    assert_same_run(alone("skpo"), tmp_path / "run")


@pytest.mark.slow
@pytest.mark.parametrize("victim", [0, 1])
def test_a_killed_process_ends_the_run(victim: int, tmp_path: Path) -> None:
    out = tmp_path / "run"
    run = start(out, "steps=1000", "problems.heldout=null")
    after_a_step(run, out)
    members = workers(run.pid)
    assert sorted(members) == [0, 1]
    os.kill(members[victim], signal.SIGKILL)
    code, output = ended(run)
    assert code == 2
    assert f"process {victim} of 2 was killed by SIGKILL" in output
    assert not any(Path(f"/proc/{pid}").exists() for pid in members.values())


@pytest.mark.slow
@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_told_to_stop(how: signal.Signals, tmp_path: Path) -> None:
    """Ctrl-C, SIGTERM or the death of the one that launched them: all end, and the folder is free again."""
    out = tmp_path / "run"
    run = start(out, "steps=1000", "problems.heldout=null")
    after_a_step(run, out)
    members = workers(run.pid)
    run.send_signal(how)
    code, output = ended(run)
    assert code == {signal.SIGINT: 130, signal.SIGTERM: 143, signal.SIGKILL: -9}[how]
    assert ("resume with skpo train --resume" in output) == (how == signal.SIGINT)
    deadline = time.monotonic() + 10
    while any(Path(f"/proc/{pid}/exe").exists() for pid in members.values()):
        assert time.monotonic() < deadline
        time.sleep(0.05)


@pytest.mark.slow
def test_an_error_in_one_process_ends_the_run(tmp_path: Path) -> None:
    """The traceback of the process that failed, not of those that lost it."""
    (tmp_path / "sitecustomize.py").write_text(
        "import os, sys\n"
        "class Break:\n"
        "    def find_spec(self, name, path=None, target=None):\n"
        "        if name == 'skpo.trainer.report' and os.environ.get('RANK') == '1':\n"
        "            import skpo.trainer.update as update\n"
        "            def step(self, data, step): raise ZeroDivisionError('of process 1')\n"
        "            update.Updater.step = step\n"
        "sys.meta_path.insert(0, Break())\n"
    )
    path = os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")])
    code, output = ended(start(tmp_path / "run", "problems.heldout=null", PYTHONPATH=path), 200)
    assert code == 2
    assert "ZeroDivisionError: of process 1" in output
    assert "process 1 of 2 failed with the error above" in output
    assert "onnection" not in output
