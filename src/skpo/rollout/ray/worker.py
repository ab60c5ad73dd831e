"""What runs inside a rollout actor: one engine in a thread of its own, fed with plans while it samples."""

from __future__ import annotations

import os
import pickle
import threading
import traceback
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch

from skpo.config import TrainConfig
from skpo.errors import RunError, SkpoError
from skpo.rollout import probe
from skpo.rollout.engines import build_engine
from skpo.rollout.ray.parcels import Weights, unpack_run
from skpo.rollout.types import EngineStats, PlanRun
from skpo.rollout.weights import load_weights

LAUNCH = (
    "RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "GROUP_RANK", "GROUP_WORLD_SIZE", "ROLE_RANK", "ROLE_NAME",
    "ROLE_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT",
)  # fmt: skip
POLL = 2.0  #: seconds after which `poll` answers even without news


@dataclass
class Report:
    """A worker's news. groups: (number of the plan, pickled group). begun: plans begun since the worker was made.

    error: a pickled exception that ended the run.
    """

    groups: list[tuple[int, bytes]] = field(default_factory=list)
    begun: int = 0
    stats: EngineStats = field(default_factory=EngineStats)
    error: bytes | None = None


class _CancelledError(Exception):
    pass


class Worker:
    """An engine that takes plans whenever they come. Methods may be called from several threads.

    config: the run's. dry_run: as the trainer's. number: of the worker in its pool.
    """

    def __init__(self, config: TrainConfig, dry_run: bool, number: int) -> None:
        self.config, self.dry_run, self.number = config, dry_run, number
        self._changed = threading.Condition()
        self._waiting: deque[tuple[int, int, bytes]] = deque()  # (run, number of the plan, plan)
        self._open: list[tuple[int, int]] = []  # plans in the order in which the engine began them
        self._running = 0  # plans begun and not finished
        self._run = 0  # the pool's newest run; plans of older ones are dropped
        self._report = Report()
        self._asked = self._told = False  # the engine has room and nothing waits; the pool was told so
        self._ended = False
        self._busy = False

    def open(self) -> dict[str, Any]:
        """Load the model and start the engine's thread; says where it runs. Raises what loading raises."""
        from skpo.policy.loading import load_policy
        from skpo.policy.prompts import PromptRenderer
        from skpo.trainer.judge import Judge
        from skpo.verifiers.pool import VerifierPool

        for name in [n for n in os.environ if n in LAUNCH or n.startswith("TORCHELASTIC_")]:
            del os.environ[
                name
            ]  # of the training processes that started this cluster; vLLM would take them for its own
        ray = self.config.rollout.ray
        torch.set_num_threads(ray.threads)
        self.device = torch.device("cuda" if ray.gpus and torch.cuda.is_available() else "cpu")
        self.policy = load_policy(self.config.model, dry_run=self.dry_run, seed=self.config.seed)
        self.policy.model.to(self.device)
        renderer = PromptRenderer(self.policy.tokenizer, self.config.model, self.policy.chat)
        rollout = self.config.rollout.model_copy(update={"engine": ray.engine})
        config = self.config.model_copy(update={"rollout": rollout, "threads": ray.threads})
        self.engine = build_engine(config, self.policy, self.device)
        v = self.config.verify
        pool = VerifierPool(v.workers, v.deadline, v.memory_mb, v.unsafe_code)  # its processes start when a plan asks
        self._own: dict[str, Any] = {
            "renderer": renderer,
            "judge": Judge(pool, renderer.decode, self.config.problems.verifier),
        }
        threading.Thread(target=self._serve, name="engine", daemon=True).start()
        return {"pid": os.getpid(), "host": os.uname().nodename}

    def load(self, run: int, weights: Weights, rows: probe.Rows) -> np.ndarray:
        """Sample with these weights from now on; returns the scores of the probe's rows under them."""
        with self._changed:
            self._newest(run)
            self._ended = True
            self._changed.notify_all()
            self._changed.wait_for(lambda: not self._busy)
            self._ended = False
            if run == self._run:  # else a later call of this method was faster
                load_weights(self.policy.model, weights.tensors())
                self.engine.update_weights(None, weights.version)
            scores = getattr(self.engine, "scores", None)  # of an engine that doesn't sample from the model itself
            return scores(rows) if scores is not None else probe.trainer_scores(self.policy.model, rows)

    def add(self, run: int, plans: list[tuple[int, bytes]]) -> None:
        """Take plans of the pool's run number `run`."""
        with self._changed:
            self._newest(run)
            self._waiting.extend((run, number, plan) for number, plan in plans if run == self._run)
            self._asked = self._told = False
            self._changed.notify_all()

    def drop(self, run: int) -> None:
        """Forget every plan of runs before `run`."""
        with self._changed:
            self._newest(run)

    def poll(self, run: int) -> Report:
        """What is new in a run: answers as soon as a group is done or there is room for more plans."""
        with self._changed:
            self._newest(run)
            self._changed.wait_for(lambda: self._run != run or self._has_news(), POLL)
            if self._run != run:
                return Report()
            self._told = self._asked
            report, self._report = self._report, Report(begun=self._report.begun)
        return report

    def close(self) -> None:
        """End verifiers and engine, and their processes, before this one ends."""
        if hasattr(self, "_own"):
            self._own["judge"].pool.close()
            self.engine.close()

    def _has_news(self) -> bool:
        return bool(self._report.groups or self._report.error or (self._asked and not self._told))

    def _newest(self, run: int) -> None:
        if run > self._run:
            self._run = run
            self._waiting.clear()
            self._report = Report(begun=self._report.begun)
            self._changed.notify_all()

    def _serve(self) -> None:
        """The engine's thread: runs whatever is there, one continuous batch after the other."""
        while True:
            with self._changed:
                self._busy = False
                self._changed.notify_all()
                self._changed.wait_for(lambda: self._waiting)
                self._busy, self._running = True, 0
                self._open.clear()
            try:
                for index, group in self.engine.run(self._feed()):
                    run, number = self._open[index]
                    data = pickle.dumps(group, protocol=5)
                    with self._changed:
                        self._running -= 1
                        if run == self._run:
                            self._report.groups.append((number, data))
                        self._report.stats.add(self.engine.take_stats())
                        self._changed.notify_all()
            except _CancelledError:
                pass
            except (MemoryError, torch.OutOfMemoryError):
                traceback.print_exc()  # the machine's fault, not the plan's: another worker may do it
                os._exit(1)
            except BaseException as error:
                with self._changed:
                    if any(run == self._run for run, _ in self._open):
                        self._waiting.clear()
                        self._report.error = _packed(error)
                        self._changed.notify_all()

    def _feed(self) -> Iterator[PlanRun | None]:
        """Plans for the engine as they come; None while there are none and others run; ends when told to."""
        while True:
            with self._changed:
                if any(run < self._run for run, _ in self._open[-1:]) and self._running:
                    raise _CancelledError
                if not self._waiting:
                    if not self._told:
                        self._asked = True
                        self._changed.notify_all()
                    if not self._running:
                        self._changed.wait_for(lambda: self._waiting or self._ended)
                        if not self._waiting:
                            return
                item = self._waiting.popleft() if self._waiting else None
                if item is not None:
                    self._running += 1
                    self._report.begun += 1
                    self._open.append(item[:2])
            yield None if item is None else unpack_run(item[2], self._own)


def _packed(error: BaseException) -> bytes:
    """An exception as bytes; what can't be pickled, or isn't ours, travels with its traceback as text."""
    if isinstance(error, SkpoError):
        try:
            return pickle.dumps(error)
        except Exception:
            return pickle.dumps(RunError(str(error)))
    text = "".join(traceback.format_exception(error)).strip()
    return pickle.dumps(RunError(f"a rollout worker failed:\n{text}"))
