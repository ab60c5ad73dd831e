"""A run's folder: lock, configuration, logs, checkpoints, best score."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any

from skpo.config import TrainConfig
from skpo.errors import RunError
from skpo.report.refresh import Refresher
from skpo.trainer.checkpoint import Checkpoints, random_states, read_optimizer, read_state, set_random_states
from skpo.trainer.lock import RunLock
from skpo.trainer.metrics import MetricsWriter, read_metrics, write_atomically
from skpo.trainer.processes import decided_by_first, rank
from skpo.trainer.progress import Progress
from skpo.trainer.rollout_log import RolloutLog

if TYPE_CHECKING:
    from skpo.trainer.setup import Parts

CONFIG = "config.yaml"


class Scores:
    """Held-out accuracies of the run: first, last, best and the step of the best."""

    def __init__(self) -> None:
        self.first: float | None = None
        self.last: float | None = None
        self.best: float | None = None
        self.best_step: int | None = None

    def see(self, step: int, value: float) -> bool:
        """Take an evaluation in; True if it is the best so far."""
        if self.first is None:
            self.first = value
        self.last = value
        if self.best is None or value > self.best:
            self.best, self.best_step = value, step
            return True
        return False

    def state_dict(self) -> dict[str, Any]:
        return dict(vars(self))

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        vars(self).update(state)


class Run:
    """One run's folder, held exclusively while the run lasts. In a multi-process run only the main process writes."""

    def __init__(self, config: TrainConfig, *, resume: bool, quiet: bool) -> None:
        self.config, self.resume, self.quiet = config, resume, quiet
        self.folder = Path(config.out)
        self.scores = Scores()
        self.rollouts: RolloutLog | None = None
        self.metrics: MetricsWriter | None = None
        self.main = True
        self.resume_from: Path | None = None

    def __enter__(self) -> Run:
        self.main = rank() == 0
        self.progress = Progress(quiet=self.quiet, main=self.main)
        self.lock = RunLock(self.folder)
        self.checkpoints = Checkpoints(self.folder, self.config.checkpoint.keep)
        self.resume_from = decided_by_first(self.config, self._open_folder)
        return self

    def _open_folder(self) -> Path | None:
        """Lock the folder; returns the checkpoint to go on from."""
        self.lock.acquire()
        try:
            return self._check_folder()
        except BaseException:
            self.lock.release()
            raise

    def _check_folder(self) -> Path | None:
        """A fresh run needs an unused folder; a resumed one finds its newest checkpoint, or begins again where there is none yet."""
        used = (self.folder / CONFIG).exists()
        if self.resume:
            if not used:
                raise RunError(f"{self.folder}: no run to resume here ({CONFIG} is missing)")
            return self.checkpoints.latest()
        if used:
            raise RunError(
                f"{self.folder}: already holds a run; go on with it (skpo train --resume {self.folder}), or choose another "
                "folder with out=FOLDER"
            )
        return None

    def begin(self, parts: Parts, config: TrainConfig) -> None:
        """Write the run's settings, and start the trackers."""
        from skpo.settings import dump_config

        if self.main:
            write_atomically(self.folder / CONFIG, dump_config(config).encode())
        self.accelerator = parts.accelerator
        parts.updater.keep_tokens = config.rollout.save
        if config.track is not None:
            parts.accelerator.init_trackers("skpo", config=_flat(config.model_dump(mode="json")))

    def open_logs(self, step: int) -> None:
        """Open the logs at a step; what later steps wrote before a crash is dropped, to be written again."""
        if not self.main:
            return
        fresh = self.resume_from is None
        self.metrics = MetricsWriter(self.folder, None if fresh else step)
        self.report = Refresher(self.folder, self.progress.note)
        if self.config.rollout.save:
            self.rollouts = RolloutLog(self.folder, None if fresh else step)

    def record(self, record: Mapping[str, Any]) -> None:
        """Log one step: metrics.jsonl, trackers, progress."""
        if not self.main or self.metrics is None:
            return
        self.metrics.write(record)
        step = int(record["step"])
        if self.config.track is not None:
            numbers = {k: v for k, v in record.items() if isinstance(v, int | float) and not isinstance(v, bool)}
            self.accelerator.log(numbers, step=step)
        if "tokens_generated" in record:
            self.progress.step(step, dict(record))
        if "eval_pass_at_1" in record:
            self.progress.evaluation(step, dict(record))
        self.report.step()

    def save(self, step: int, parts: Parts, state: dict[str, Any], ahead: Mapping[str, Any] | None = None) -> None:
        """Checkpoint the run after a step. All processes call it; the first one writes."""
        from skpo.policy.loading import save_policy

        optimizer = parts.updater.state_dict()
        if self.main:
            state = {**state, "random": random_states()}
            auxiliary = parts.auxiliary.state_dict() if parts.auxiliary is not None else None
            self.checkpoints.save(
                step,
                lambda folder: save_policy(parts.policy, folder),
                optimizer,
                state,
                self.scores.best_step,
                auxiliary,
                ahead,
            )
        parts.accelerator.wait_for_everyone()

    def load(self, path: Path, parts: Parts) -> dict[str, Any]:
        """Restore optimiser and random states from a checkpoint (its weights are loaded already); returns the trainer's state."""
        state = read_state(path)
        parts.updater.load_state_dict(read_optimizer(path))
        if parts.auxiliary is not None:
            parts.auxiliary.load_state_dict(read_optimizer(path, "auxiliary.pt"))
        set_random_states(state["random"])
        return state

    def finish(self) -> None:
        """Draw the run's curves and write its report."""
        if self.main and self.metrics is not None and read_metrics(self.folder):
            from skpo.trainer.plots import plot_run

            path = plot_run(self.folder)
            self.progress.note(f"curves: {path}")
            if (written := self.report.finish()) is not None:
                self.progress.note(f"report: {written}")

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.progress.close()
        if self.metrics is not None:
            self.metrics.close()
        if self.config.track is not None and hasattr(self, "accelerator"):
            self.accelerator.end_training()
        self.lock.release()


def _flat(values: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Nested settings as `a.b: value`, with only the types that trackers take."""
    out: dict[str, Any] = {}
    for key, value in values.items():
        name = f"{prefix}{key}"
        if isinstance(value, Mapping):
            out |= _flat(value, f"{name}.")
        else:
            out[name] = value if isinstance(value, bool | int | float | str) else str(value)
    return out
