"""Whose texts go into a report that can't hold all of them.

Groups (one problem at one step) are taken whole, in rounds. A round takes one more group of every step and outcome (none right, some
right, all right, unscored), which of them by a hash of step and problem; within a round the steps come in an order that spreads over the
run: the last, the first, the middle, the quarters, and so on. It ends where the room does. The same runs give the same choice.
"""

from __future__ import annotations

import numpy as np

from skpo.report.scan import Groups


def priority(groups: Groups) -> np.ndarray:
    """Indices of all groups in the order in which they are taken, int64 [groups]."""
    if not len(groups):
        return np.zeros(0, dtype=np.int64)
    steps, place = np.unique(groups.step, return_inverse=True)
    lot = _hash(groups.step, groups.problem)
    stratum = place * 4 + groups.outcome
    order = np.lexsort((lot, stratum))
    begins = np.concatenate([[True], np.diff(stratum[order]) != 0])
    first = np.maximum.accumulate(np.where(begins, np.arange(len(order)), 0))
    rounds = np.empty(len(order), dtype=np.int64)
    rounds[order] = np.arange(len(order)) - first
    return np.lexsort((lot, spread(len(steps))[place], rounds))


def spread(n: int) -> np.ndarray:
    """Rank of each of n places in an order where every beginning is spread evenly: last, first, middle, quarters, ... [n]."""
    bits = max(1, int(n - 1).bit_length())
    mirrored = [int(f"{i:0{bits}b}"[::-1], 2) for i in range(n)]
    rank = np.empty(n, dtype=np.int64)
    rank[np.argsort(mirrored, kind="stable")] = np.arange(n)
    rank[-1] = -1
    return np.argsort(np.argsort(rank))


def within(order: np.ndarray, cost: np.ndarray, room: float) -> np.ndarray:
    """The longest beginning of `order` whose summed cost fits the room, at least one group where there is any; sorted."""
    total = np.cumsum(cost[order])
    return np.sort(order[: max(int(np.searchsorted(total, room, side="right")), min(1, len(order)))])


def _hash(step: np.ndarray, problem: np.ndarray) -> np.ndarray:
    """A well-mixed number of (step, problem), uint64 (the finaliser of splitmix64)."""
    mixed = step.astype(np.uint64) * np.uint64(0x9E3779B97F4A7C15) + problem.astype(np.uint64)
    for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)):
        mixed = (mixed ^ (mixed >> np.uint64(shift))) * np.uint64(factor)
    return mixed ^ (mixed >> np.uint64(31))
