"""Lanes: what a decode step computes, one for all rows that have drawn the same tokens behind the same context.

Samples of one prompt often begin alike: a few words in a large model, most of an answer in one that is sure of it, all of it
where sampling is greedy. Such rows differ only in what they draw next, so they share one lane, which branches as they part.
"""

from __future__ import annotations

import numpy as np

TOGETHER = (
    16  #: lanes attended together, over the longest of them; 32 or 8 take 6 to 20 % longer to attend (one Zen 4 core)
)
_AHEAD = 8  # steps for which saved padding is counted, in moved tokens (one takes the time of two that are read)


class Lanes:
    """Up to `slots` lanes, contiguous at [0, count). A lane's number is its place in the row cache.

    length:  tokens of the lane in the row cache; the one that its rows drew last is not among them.
    context: place of its context in the context cache.
    """

    def __init__(self, slots: int) -> None:
        self.count = 0
        self.length, self.context = np.zeros(slots, dtype=np.int64), np.zeros(slots, dtype=np.int64)

    def branch(self, lane: np.ndarray, last: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Rows that drew different tokens part.

        lane: int64 [A], each row's lane, or -1 - context for one that has none yet. last: int64 [A], the token that it drew last.
        Returns each row's new lane, and the copies to make of what lanes hold: (to, from).
        """
        keys, first, which = np.unique((lane << 32) + last, return_index=True, return_inverse=True)
        parent = lane[first]
        stays = (parent >= 0) & np.append(True, parent[1:] != parent[:-1])
        number = parent.copy()
        number[~stays] = self.count + np.arange(len(keys) - stays.sum())
        old, new = parent[~stays], number[~stays]
        split = old >= 0
        to, of = new[split], old[split]
        self.count += len(new)
        self.length[new], self.context[new] = 0, -1 - old
        self.length[to], self.context[to] = self.length[of], self.context[of]
        return number[which], to, of

    def keep(self, used: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Free the lanes that are not among `used`, int64, ascending, and make the others contiguous.

        Returns the copies to make, (to, from), and every old lane's number now, int64 (arbitrary for a freed one).
        """
        to, of = _regroup(self.length[used], used)
        number = np.arange(self.count)
        number[of] = to
        self.length[to], self.context[to] = self.length[of], self.context[of]
        self.count = len(used)
        return to, of, number


def _regroup(lengths: np.ndarray, places: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Where lanes go so that they are contiguous: (to, from).

    lengths, places: int64 [A], of each lane; they end up in places [0, A). Either only the holes are filled, from behind, or the
    longest `TOGETHER` lanes come first, then the next ones, and so on: that saves padding in every step to come, but more of them
    move. All lanes grow alike, so the padding stays until one starts or ends.
    """
    fill = _fill(places)
    order = _sort(lengths, places)
    saved = _padding(lengths, places, *fill) - _padding(lengths, places, *order)
    moved = _tokens(lengths, places, order[1]) - _tokens(lengths, places, fill[1])
    return order if saved * _AHEAD > moved else fill


def _fill(places: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The last lanes go where some are missing. places: ascending."""
    count = len(places)
    return np.setdiff1d(np.arange(count), places), places[places >= count]


def _sort(lengths: np.ndarray, places: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Buckets of `TOGETHER` lanes in order of length. Those of one bucket are in any order, so few move: a lane stays unless
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
    """Tokens read in a step after these moves: every bucket's lanes are read to the longest of them."""
    by_place = np.zeros(int(places.max(initial=-1)) + 1, dtype=np.int64)
    by_place[places] = lengths
    by_place[to] = by_place[of]
    held = by_place[: len(places)]
    longest = np.maximum.reduceat(held, np.arange(0, len(held), TOGETHER)) if len(held) else held
    return int((np.repeat(longest, TOGETHER)[: len(held)]).sum())


def _tokens(lengths: np.ndarray, places: np.ndarray, of: np.ndarray) -> int:
    """Tokens of the lanes at places `of`."""
    return int(lengths[np.searchsorted(places, of)].sum())
