"""`processes=N`: one run on N processes of this machine, with one terminal, one error and one end.

torch's elastic agent starts the processes, hands out ranks and ends all of them when one fails. This adds what a user sees: the first
process has the terminal, the others' output is kept aside and shown only where one of them dies without an error of its own.
Every process is `python -m skpo.trainer.launch FOLDER`, and ends with the one that launched it.
"""

from __future__ import annotations

import contextlib
import ctypes
import dataclasses
import json
import logging
import os
import signal
import sys
import tempfile
import threading
import time
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from skpo import errors
from skpo.errors import RunError, SkpoError

if TYPE_CHECKING:
    from skpo.config import TrainConfig
    from skpo.trainer.loop import TrainResult

EXPECTED = 2  #: exit code of a process that ends with a SkpoError
CONFIG, TASK, RESULT = "config.yaml", "task.json", "result.json"
GRACE = 15  #: seconds that processes get to end before they are killed
_PR_SET_PDEATHSIG = 1


def launch(config: TrainConfig, *, resume: bool, dry_run: bool, quiet: bool) -> TrainResult:
    """Train on `config.processes` processes of this machine; arguments and result as `Trainer`'s.

    Raises what a process raised on purpose (SkpoError), RunError where one failed otherwise or was killed, and KeyboardInterrupt
    (or SystemExit) where this process was told to stop. In each case all processes have ended.
    """
    from torch.distributed.elastic.multiprocessing import DefaultLogsSpecs, SignalException, Std
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
    from torch.distributed.launcher.api import LaunchConfig, elastic_launch

    from skpo.settings import dump_config
    from skpo.trainer.loop import TrainResult
    from skpo.trainer.processes import check_gpus

    check_gpus(config.processes)
    with tempfile.TemporaryDirectory(prefix="skpo-") as name, _quiet_agent(), _own_signals():
        folder = Path(name)
        (folder / CONFIG).write_text(dump_config(config), encoding="utf-8")
        task = {"resume": resume, "dry_run": dry_run, "quiet": quiet, "parent": os.getpid()}
        (folder / TASK).write_text(json.dumps(task))
        agent = LaunchConfig(
            min_nodes=1,
            max_nodes=1,
            nproc_per_node=config.processes,
            run_id=uuid.uuid4().hex,
            rdzv_backend="c10d",
            rdzv_endpoint="localhost:0",
            local_addr="localhost",
            max_restarts=0,
            monitor_interval=0.1,
            logs_specs=DefaultLogsSpecs(
                str(folder / "logs"), redirects=dict.fromkeys(range(1, config.processes), Std.ALL)
            ),
        )
        try:
            elastic_launch(agent, sys.executable)("-m", __name__, name)
        except ChildFailedError as error:
            _show_cursor()
            raise _root_cause(error.failures, config, folder) from None
        except SignalException as stop:
            _show_cursor()
            if stop.sigval == signal.SIGINT:
                raise KeyboardInterrupt from None
            raise SystemExit(128 + stop.sigval) from None
        result = json.loads((folder / RESULT).read_text())
        return TrainResult(**{**result, "out": Path(result["out"])})


def _root_cause(failures: dict[int, Any], config: TrainConfig, folder: Path) -> SkpoError:
    """The error to raise for processes that failed: by a signal first, then on purpose, then by the earliest exception.

    Where one is killed the others lose their connection, which is what they report.
    """
    ours = {rank: f for rank, f in failures.items() if f.exitcode != -signal.SIGTERM} or failures
    rank, failure = min(
        ours.items(), key=lambda item: (item[1].exitcode >= 0, item[1].exitcode != EXPECTED, item[1].timestamp, item[0])
    )
    who = f"process {rank} of {config.processes}"
    going_on = f"the others were stopped; go on with skpo train --resume {config.out}"
    if failure.exitcode < 0:
        name = signal.Signals(-failure.exitcode).name
        reason = " (out of memory?)" if name == "SIGKILL" else ""
        return RunError(f"{who} was killed by {name}{reason}; {going_on}{_tail(folder, rank)}")
    message: dict[str, Any] = failure.message if isinstance(failure.message, dict) else {"message": failure.message}
    kind, _, text = str(message.get("message", "")).partition(": ")
    if failure.exitcode == EXPECTED:
        found = getattr(errors, kind, None)
        return found(text) if isinstance(found, type) and issubclass(found, SkpoError) else RunError(f"{kind}: {text}")
    if trace := message.get("extraInfo", {}).get("py_callstack"):
        sys.stderr.write(trace)
        return RunError(f"{who} failed with the error above; {going_on}")
    return RunError(f"{who} ended with exit code {failure.exitcode}; {going_on}{_tail(folder, rank)}")


def _tail(folder: Path, rank: int, lines: int = 10) -> str:
    """The last lines that a process other than the first wrote."""
    written: list[str] = []
    for path in sorted(folder.glob(f"logs/*/attempt_0/{rank}/std*.log"), reverse=True):
        written += path.read_text(errors="replace").splitlines()
    return "".join(f"\n  {line}" for line in written[-lines:])


def _show_cursor() -> None:
    """A live panel hides the cursor; its process may have been killed."""
    if sys.stdout.isatty():
        sys.stdout.write("\x1b[?25h")
        sys.stdout.flush()


@contextlib.contextmanager
def _quiet_agent() -> Iterator[None]:
    """The agent's own log says again, and at length, what `launch` says."""
    os.environ.setdefault("TORCH_ELASTIC_SHUTDOWN_TIMEOUT", str(GRACE))
    loggers = [logging.getLogger(n) for n in list(logging.root.manager.loggerDict) if n.startswith("torch.distributed")]
    before = [logger.disabled for logger in loggers]
    for logger in loggers:
        logger.disabled = True
    try:
        yield
    finally:
        for logger, state in zip(loggers, before, strict=True):
            logger.disabled = state


@contextlib.contextmanager
def _own_signals() -> Iterator[None]:
    """The agent replaces signal handlers; put them back."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {s: signal.getsignal(s) for s in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


# ---- in each process -------------------------------------------------------------------------------------------------


def main(folder: Path) -> int:
    """One of the processes: train, and leave the result, or the error, to the one that launched it. Returns the exit code."""
    task = json.loads((folder / TASK).read_text())
    _end_with(task["parent"])
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    os.environ.setdefault("OMP_NUM_THREADS", str(max(1, cores // int(os.environ["LOCAL_WORLD_SIZE"]))))
    from torch.distributed.elastic.multiprocessing.errors import get_error_handler

    from skpo.settings import load_config
    from skpo.trainer.loop import Trainer
    from skpo.trainer.processes import leave

    try:
        config = load_config(folder / CONFIG)
        result = Trainer(config, resume=task["resume"], dry_run=task["dry_run"], quiet=task["quiet"]).train()
        if os.environ["RANK"] == "0":
            (folder / RESULT).write_text(json.dumps(dataclasses.asdict(result), default=str))
        leave()
    except KeyboardInterrupt:
        return 130
    except BaseException as error:
        if _lost_connection(error):
            time.sleep(3)  # the process that it lost is the cause: the agent sees that one first, and ends this one
        get_error_handler().record_exception(error)
        return EXPECTED if isinstance(error, SkpoError) else 1
    return 0


def _end_with(parent: int) -> None:
    """Have the kernel kill this process when its parent ends, however that ends (Linux)."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != parent:
            os._exit(1)


def _lost_connection(error: BaseException) -> bool:
    """Whether an error is what a process sees when another one has died."""
    from torch.distributed import DistError

    text = str(error)
    return isinstance(error, DistError) or any(word in text for word in ("gloo", "NCCL", "onnection", "process group"))


if __name__ == "__main__":
    code = main(Path(sys.argv[1]))
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)  # without waiting for collectives that the others will not come to
