"""Scoring spread over processes: each takes its share of the micro-batches, all make the same number of passes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
from torch import nn

from skpo.policy.budget import Row, process_shares
from skpo.policy.scoring import score_rows, shares

if TYPE_CHECKING:
    from accelerate import Accelerator


def score_spread(
    accelerator: Accelerator, model: nn.Module, rows: Sequence[Row], *, budget: int
) -> tuple[list[np.ndarray], list[np.ndarray]]:
    """`score_rows` by all processes together, each of which gets all results. The model may be sharded over them."""
    if accelerator.num_processes == 1:
        return score_rows(model, rows, device=accelerator.device, budget=budget)
    from accelerate.utils import gather_object

    full = [i for i, (_, tokens) in enumerate(rows) if len(tokens)]
    own = process_shares(
        [rows[i] for i in full], budget, accelerator.num_processes, share=shares(model, rows)
    )  # of each process
    shortest = min(full, key=lambda i: len(rows[i][0]) + len(rows[i][1]), default=0)
    done: list[tuple[int, np.ndarray, np.ndarray]] = []
    for number in range(max(map(len, own))):
        batch = own[accelerator.process_index][number : number + 1]
        picked = [full[j] for j in batch[0]] if batch else [shortest]  # the latter only to keep in step with the others
        scored = score_rows(model, [rows[i] for i in picked], device=accelerator.device, budget=1 << 62)
        done += zip(picked, *scored, strict=True) if batch else []
    logps = [np.zeros(0, np.float32)] * len(rows)
    entropies = list(logps)
    for i, logp, entropy in gather_object(done):
        logps[i], entropies[i] = logp, entropy
    return logps, entropies
