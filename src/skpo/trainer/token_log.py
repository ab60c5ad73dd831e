"""What the rollout log keeps about single tokens beside the log-probability: entropy, log-ratio, advantage."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from accelerate import Accelerator
    from torch import Tensor

    from skpo.losses import TokenBatch
    from skpo.trainer.batch import StepBatch

KEY = "per_token"  #: where in `Sample.info` they wait for the log
NAMES = ("entropy", "log_ratio", "token_advantage")


def note_tokens(data: StepBatch, rows: Sequence[int], batch: TokenBatch) -> None:
    """Keep a scored micro-batch's per-token numbers with its samples, under `info["per_token"]`, float32 [T] each.

    entropy: of the policy at that token when the step first scored it. log_ratio: log pi - log pi_old when it was last scored, so
    that with several mini-batches or epochs it shows the drift. token_advantage: only where the algorithm credits single tokens.
    In a run of several processes those of rows that others scored come with `share_notes`.
    """
    ratio = _host(batch.logp - batch.old_logp)
    entropy = None if batch.entropy is None else _host(batch.entropy)
    for place, row in enumerate(rows):
        sample = data.samples[row]
        kept, n = sample.info.setdefault(KEY, {}), len(sample)
        kept["log_ratio"] = _short(ratio[place, :n])
        if entropy is not None:
            kept.setdefault("entropy", _short(entropy[place, :n]))
        if data.advantages.dim() == 2:
            kept["token_advantage"] = data.advantages[row, :n].float().numpy()


def share_notes(accelerator: Accelerator, data: StepBatch) -> None:
    """Give the first process, which writes the log, what the others noted."""
    if accelerator.num_processes == 1:
        return
    from accelerate.utils import gather_object

    own = [(i, sample.info[KEY]) for i, sample in enumerate(data.samples) if KEY in sample.info]
    for i, kept in gather_object(own):
        data.samples[i].info[KEY] = kept


def _host(values: Tensor) -> np.ndarray:
    return values.detach().float().cpu().numpy()


def _short(values: np.ndarray) -> np.ndarray:
    """Four decimals, as float32: below that is rounding, which would take most of the space once compressed."""
    return np.round(values, 4).astype(np.float32)
