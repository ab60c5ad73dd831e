"""Whether weights arrived: the same few rows are scored by the trainer and by every worker after each change of weights."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from skpo.policy.scoring import Row, ScoringModel, score_rows

ROWS, CONTEXT, TOKENS = 4, 8, 16
TOLERANCE = {torch.float32: 0.01, torch.bfloat16: 0.5}  #: largest difference that rounding may make, in nats


def probe_rows(vocabulary: int) -> list[Row]:
    """Fixed rows of token ids, the same for every model with this vocabulary size."""
    ids = np.random.default_rng(0).integers(0, vocabulary, size=(ROWS, CONTEXT + TOKENS)).tolist()
    return [(tuple(row[:CONTEXT]), row[CONTEXT:]) for row in ids]


def probe(model: Any, temperature: float, device: torch.device | str) -> list[np.ndarray]:
    """Log-probabilities of the probe's rows under a model's weights, float32 [16] each."""
    scoring = ScoringModel(model, temperature=temperature)
    rows = probe_rows(model.get_input_embeddings().weight.shape[0])
    return score_rows(scoring, rows, device=device, budget=ROWS * (CONTEXT + TOKENS))[0]


def deviation(found: Sequence[np.ndarray], expected: Sequence[np.ndarray]) -> float:
    """Largest difference of two probes, in nats; infinite where either is not finite."""
    gap = max(float(np.abs(a - b).max()) for a, b in zip(found, expected, strict=True))
    return gap if np.isfinite(gap) else float("inf")


def arrived(
    found: Sequence[np.ndarray], expected: Sequence[np.ndarray], before: Sequence[np.ndarray] | None, dtype: torch.dtype
) -> bool:
    """Whether a worker's probe is the trainer's of now: within rounding, and not far nearer to that of the version before.

    The second finds adapters that stayed at home where one update moves log-probabilities by less than the tolerance. Rounding
    alone can't bring every token four times nearer to the old weights.
    """
    now = deviation(found, expected)
    if now > TOLERANCE.get(dtype, 0.5):
        return False
    return before is None or 4 * deviation(found, before) >= now
