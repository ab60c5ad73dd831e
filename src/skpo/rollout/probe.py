"""Proof that an engine holds the trainer's weights: a few rows that both score after each change."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import nn

ROWS, CONTEXT, TOKENS = 8, 16, 16
TOLERANCE, LOW_PRECISION_TOLERANCE = 0.01, 0.5  #: largest difference of a token, in nats: both float32; 16 bit


@dataclass(frozen=True)
class Rows:
    """What is scored. contexts [8][16 or fewer]: token ids; tokens [8][16]: next tokens whose log-probabilities are compared."""

    contexts: list[list[int]]
    tokens: list[list[int]]


def probe_rows(vocabulary: int, length: int) -> Rows:
    """Fixed token ids, drawn evenly, the same for every model with this vocabulary; contexts of at most `length` tokens."""
    ids = np.random.default_rng(0).integers(0, vocabulary, size=(ROWS, CONTEXT + TOKENS))
    return Rows(ids[:, : min(CONTEXT, length)].tolist(), ids[:, CONTEXT:].tolist())


@torch.no_grad()
def trainer_scores(model: nn.Module, rows: Rows) -> np.ndarray:
    """Log-probabilities at temperature 1 of each row's tokens after its context, float32 [8, 16]."""
    device = next(model.parameters()).device
    ids, tokens = torch.tensor(rows.contexts, device=device), torch.tensor(rows.tokens, device=device)
    logits = model(input_ids=ids, use_cache=False).logits[:, -1].float()
    return logits.log_softmax(-1).gather(-1, tokens).cpu().numpy()


def gap(a: np.ndarray, b: np.ndarray) -> float:
    """Largest difference, in nats; infinite where either is not finite."""
    largest = float(np.abs(a - b).max())
    return largest if np.isfinite(largest) else float("inf")


@dataclass
class Verdict:
    """expected: the trainer's scores of this version; before: of the version before, if any; found: the engine's."""

    expected: np.ndarray
    found: np.ndarray
    before: np.ndarray | None
    tolerance: float

    @property
    def deviation(self) -> float:
        return gap(self.found, self.expected)

    @property
    def unmoved(self) -> bool:
        """The engine's scores are more than four times nearer to those of the version before, which rounding can't bring about."""
        return self.before is not None and 4 * gap(self.found, self.before) < self.deviation

    @property
    def good(self) -> bool:
        return self.deviation <= self.tolerance and not self.unmoved
