"""The samples that are being drawn: their tokens, log-probabilities, seeds and settings, kept contiguous at [0, count)."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from skpo.rollout.sampling import RowSampling
from skpo.rollout.scheduler import Job

_HOST = ("made", "limit", "context", "lane", "temperature", "top_k", "top_p")


class Rows:
    """State of up to `slots` rows, by row number. Small integers live on the host, tokens on the device.

    made:    tokens sampled so far. The last of them is not in the key-value cache yet: it holds made - 1.
    limit:   the request's max_tokens.
    context: place of the row's context in the context cache.
    lane:    the row's lane (`lanes.Lanes`); negative, -1 - context, until its first token goes through the model.
    """

    def __init__(self, slots: int, device: torch.device) -> None:
        self.slots, self.device = slots, device
        self.count = 0
        self.made, self.limit, self.context, self.lane, self.top_k = (np.zeros(slots, dtype=np.int64) for _ in range(5))
        self.temperature = np.ones(slots, dtype=np.float32)
        self.top_p = np.ones(slots, dtype=np.float64)
        self.job: list[tuple[Job, int]] = []  # of each row: its job, and its sample's number in the request
        self.seeds = torch.zeros(slots, dtype=torch.int64, device=device)
        self.tokens = torch.zeros(slots, 0, dtype=torch.int64, device=device)
        self.logp = torch.zeros(slots, 0, dtype=torch.float32, device=device)
        self._index = torch.arange(slots, device=device)
        self._plain: bool | None = None

    def add(self, job: Job, numbers: range, place: int) -> None:
        """Start the request's samples `numbers` in the next rows."""
        low, high = self.count, self.count + len(numbers)
        sampling = job.request.sampling
        self.made[low:high] = 0
        self.limit[low:high] = job.request.max_tokens
        self.context[low:high] = place
        self.lane[low:high] = -1 - place
        self.temperature[low:high] = sampling.temperature
        self.top_k[low:high] = sampling.top_k
        self.top_p[low:high] = sampling.top_p
        self.seeds[low:high] = torch.tensor([job.sample_seed(i) for i in numbers], dtype=torch.int64)
        self.job.extend((job, i) for i in numbers)
        self.count = high
        self._plain = None

    def settings(self, low: int, high: int) -> RowSampling | None:
        """Sampling settings of rows [low, high); None where all rows are plain (temperature 1, no truncation)."""
        if self._plain is None:
            n = self.count
            self._plain = bool(((self.temperature[:n] == 1) & (self.top_k[:n] == 0) & (self.top_p[:n] == 1)).all())
        if self._plain:
            return None
        t, k, p = (
            torch.from_numpy(x[low:high].copy()).to(self.device) for x in (self.temperature, self.top_k, self.top_p)
        )
        return RowSampling(t, k, p)

    def positions(self, low: int, high: int) -> Tensor:
        """Number, within its sample, of the token that each row draws next, int64."""
        return torch.from_numpy(self.made[low:high].copy()).to(self.device)

    def append(self, low: int, high: int, tokens: Tensor, logp: Tensor) -> None:
        """Record one drawn token for each of the rows [low, high)."""
        width = int(self.made[low:high].max()) + 1
        if width > self.tokens.shape[1]:
            grow = max(64, width - self.tokens.shape[1], self.tokens.shape[1] // 2)
            self.tokens = torch.nn.functional.pad(self.tokens, (0, grow))
            self.logp = torch.nn.functional.pad(self.logp, (0, grow))
        at = self.positions(low, high)
        self.tokens[self._index[low:high], at] = tokens
        self.logp[self._index[low:high], at] = logp
        self.made[low:high] += 1

    def last(self) -> Tensor:
        """The token that each row drew last, int64 [count]."""
        return self.tokens[self._index[: self.count], self.positions(0, self.count) - 1]

    def take(self, numbers: np.ndarray) -> list[tuple[np.ndarray, np.ndarray]]:
        """Tokens and log-probabilities of these rows, on the host."""
        index, longest = torch.from_numpy(numbers).to(self.device), int(self.made[numbers].max())
        tokens, logp = (x[index, :longest].cpu().numpy() for x in (self.tokens, self.logp))
        return [(tokens[j, :n].copy(), logp[j, :n].copy()) for j, n in enumerate(self.made[numbers])]

    def remove(self, numbers: np.ndarray) -> None:
        """End these rows; the last ones take their numbers."""
        count = self.count - len(numbers)
        to = np.sort(numbers[numbers < count])
        of = np.setdiff1d(np.arange(count, self.count), numbers)
        if len(to):
            for name in _HOST:
                values = getattr(self, name)
                values[to] = values[of]
            target, source = (torch.from_numpy(x).to(self.device) for x in (to, of))
            for tensor in (self.seeds, self.tokens, self.logp):
                tensor[target] = tensor[source]
            for i, j in zip(to.tolist(), of.tolist(), strict=True):
                self.job[i] = self.job[j]
        self.count = count
        del self.job[count:]
        self._plain = None
