"""The key-value cache in two parts: contexts, each computed and held once, and the sampled tokens of every row.

Both parts are one tensor [layers, 2, places, kv_heads, capacity, head_dim] (keys are [:, 0], values [:, 1]) that grows
as needed. A row attends to its context's place and to its own place; nothing is copied when n samples share a context.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

_STEP = 64  # capacities are multiples of this
_SMALL = 1 << 28  # bytes of a small cache


def rounded(tokens: int) -> int:
    """Capacity, in tokens, that a row of so many tokens takes."""
    return -(-tokens // _STEP) * _STEP


@dataclass(frozen=True)
class CacheShape:
    """Sizes that a model's layers share."""

    layers: int
    kv_heads: int
    head_dim: int
    dtype: torch.dtype
    device: torch.device


class Places:
    """A growable tensor of places, each able to hold `capacity` tokens of keys and values."""

    def __init__(self, shape: CacheShape) -> None:
        self.shape = shape
        self.data = self._empty(0, 0)

    @property
    def count(self) -> int:
        return self.data.shape[2]

    @property
    def capacity(self) -> int:
        return self.data.shape[4]

    @property
    def small(self) -> bool:
        """Whether it may be kept between runs: a new one would cost time, its pages are zeroed as they are first touched."""
        return self.shape.device.type == "cpu" and self._bytes(self.count, self.capacity) <= _SMALL

    def reserve(self, places: int, tokens: int, most_places: int, most_tokens: int) -> None:
        """Room for `tokens` tokens in each of the first `places` places, which keep what they hold.

        Grows by more than asked for, up to the two limits, so that growth is seldom; a small cache takes all it may need at once.
        """
        if places <= self.count and tokens <= self.capacity:
            return
        capacity, most = self.capacity, rounded(most_tokens)
        count = max(places, min(most_places, self.count if places <= self.count else 2 * self.count))
        if tokens > capacity:
            all_of_it = self._bytes(count, most) <= _SMALL
            capacity = max(rounded(tokens), most if all_of_it else min(rounded(capacity + capacity // 2), most))
        fresh = self._empty(count, capacity)
        used = min(places, self.count)
        fresh[:, :, :used, :, : self.capacity] = self.data[:, :, :used]
        self.data = fresh

    def trim(self, places: int, tokens: int) -> None:
        """Give back all but `tokens` tokens of the first `places` places."""
        capacity = min(self.capacity, rounded(tokens))
        if (places, capacity) != (self.count, self.capacity):
            fresh = self._empty(places, capacity)
            fresh.copy_(self.data[:, :, :places, :, :capacity])
            self.data = fresh

    def move(self, target: np.ndarray, source: np.ndarray, tokens: int) -> None:
        """Copy the first `tokens` tokens of places `source` to places `target`."""
        to, of = (torch.from_numpy(x).to(self.data.device) for x in (target, source))
        self.data[:, :, to, :, :tokens] = self.data[:, :, of, :, :tokens]

    def _empty(self, places: int, capacity: int) -> Tensor:
        """Zeros: stale NaN in a masked place would spoil a product."""
        s, sizes = self.shape, self._sizes(places, capacity)
        if s.device.type != "cpu" or not math.prod(sizes):
            return torch.zeros(sizes, dtype=s.dtype, device=s.device)
        # numpy takes pages that are zero already and touches none of them
        return torch.from_numpy(np.zeros(math.prod(sizes) * s.dtype.itemsize, dtype=np.uint8)).view(s.dtype).view(sizes)

    def _bytes(self, places: int, capacity: int) -> int:
        return math.prod(self._sizes(places, capacity)) * self.shape.dtype.itemsize

    def _sizes(self, places: int, capacity: int) -> tuple[int, ...]:
        s = self.shape
        return s.layers, 2, places, s.kv_heads, capacity, s.head_dim


class Contexts:
    """Which contexts are held, where, and by how many rows (and requests not launched in full)."""

    def __init__(self) -> None:
        self.place: dict[tuple[int, ...], int] = {}
        self.lengths = np.zeros(0, dtype=np.int64)  # [places], 0: free
        self.logits: dict[int, Tensor] = {}  # place -> next-token logits [V]
        self._holders: dict[int, int] = {}
        self._tokens: dict[int, tuple[int, ...]] = {}

    def add(self, context: tuple[int, ...]) -> int:
        """A place for a new context: the lowest that is free."""
        free = np.flatnonzero(self.lengths == 0)
        place = int(free[0]) if len(free) else len(self.lengths)
        if not len(free):
            self.lengths = np.append(self.lengths, 0)
        self.lengths[place] = len(context)
        self.place[context] = place
        self._tokens[place] = context
        self._holders[place] = 0
        return place

    def hold(self, place: int, count: int = 1) -> None:
        self._holders[place] += count

    def release(self, place: int) -> None:
        """One holder less; a context without holders is forgotten."""
        self._holders[place] -= 1
        if self._holders[place] == 0:
            del self._holders[place]
            del self.place[self._tokens.pop(place)]
            self.logits.pop(place, None)
            self.lengths[place] = 0

    @property
    def extent(self) -> int:
        """Places up to the last one in use."""
        return int(np.flatnonzero(self.lengths).max(initial=-1)) + 1

    @property
    def longest(self) -> int:
        return int(self.lengths.max(initial=0))
