"""The rows that decode: their tokens, log-probabilities, seeds and settings, kept contiguous at [0, count)."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from skpo.rollout.sampling import RowSampling
from skpo.rollout.scheduler import Job

TOGETHER = (
    16  #: rows attended together, over the longest of them; 32 or 8 take 6 to 20 % longer to attend (one Zen 4 core)
)
_AHEAD = 8  # steps for which saved padding is counted, in moved tokens (one takes the time of two that are read)
_HOST = ("made", "limit", "context", "temperature", "top_k", "top_p")


class Rows:
    """State of up to `slots` rows, by row number. Small integers live on the host, tokens on the device.

    made:    tokens sampled so far. The last of them is not in the key-value cache yet: it holds made - 1.
    limit:   the request's max_tokens.
    context: place of the row's context in the context cache.
    """

    def __init__(self, slots: int, device: torch.device) -> None:
        self.slots, self.device = slots, device
        self.count = 0
        self.made, self.limit, self.context, self.top_k = (np.zeros(slots, dtype=np.int64) for _ in range(4))
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

    def remove(self, numbers: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """End these rows; the others become contiguous, near enough in order of length. Returns what moved: (to, from)."""
        stays = np.ones(self.count, dtype=bool)
        stays[numbers] = False
        left = np.flatnonzero(stays)
        to, of = _regroup(self.made[left], left)
        if len(to):
            for name in _HOST:
                values = getattr(self, name)
                values[to] = values[of]
            target, source = (torch.from_numpy(x).to(self.device) for x in (to, of))
            for tensor in (self.seeds, self.tokens, self.logp):
                tensor[target] = tensor[source]
            moved = [self.job[i] for i in of.tolist()]
            for i, job in zip(to.tolist(), moved, strict=True):
                self.job[i] = job
        self.count = len(left)
        del self.job[self.count :]
        self._plain = None
        return to, of


def _regroup(lengths: np.ndarray, places: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Where rows go so that they are contiguous: (to, from).

    lengths, places: int64 [A], of each row; rows end up in places [0, A). Either only the holes are filled, from behind, or the
    longest `TOGETHER` rows come first, then the next ones, and so on: that saves padding in every step to come, but more rows
    move. New rows are shortest and are added behind, and all grow alike, so the padding stays until a row ends.
    """
    fill = _fill(places)
    order = _sort(lengths, places)
    saved = _padding(lengths, places, *fill) - _padding(lengths, places, *order)
    moved = _tokens(lengths, places, order[1]) - _tokens(lengths, places, fill[1])
    return order if saved * _AHEAD > moved else fill


def _fill(places: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The last rows go where rows are missing. places: ascending."""
    count = len(places)
    return np.setdiff1d(np.arange(count), places), places[places >= count]


def _sort(lengths: np.ndarray, places: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Buckets of `TOGETHER` rows in order of length. Rows of one bucket are in any order, so few move: a row stays unless
    its place is in another bucket."""
    order = np.argsort(-lengths, kind="stable")
    bucket = np.empty(len(places), dtype=np.int64)
    bucket[order] = np.arange(len(places)) // TOGETHER
    moves = (places // TOGETHER != bucket) | (places >= len(places))
    free = np.setdiff1d(np.arange(len(places)), places[~moves])
    movers = np.flatnonzero(moves)
    movers = movers[np.argsort(bucket[movers], kind="stable")]
    return free, places[movers]


def _padding(lengths: np.ndarray, places: np.ndarray, to: np.ndarray, of: np.ndarray) -> int:
    """Tokens read in a step after these moves: every bucket's rows are read to the longest of them."""
    by_place = np.zeros(int(places.max(initial=-1)) + 1, dtype=np.int64)
    by_place[places] = lengths
    by_place[to] = by_place[of]
    held = by_place[: len(places)]
    longest = np.maximum.reduceat(held, np.arange(0, len(held), TOGETHER)) if len(held) else held
    return int((np.repeat(longest, TOGETHER)[: len(held)]).sum())


def _tokens(lengths: np.ndarray, places: np.ndarray, of: np.ndarray) -> int:
    """Tokens of the rows at places `of`."""
    return int(lengths[np.searchsorted(places, of)].sum())
