"""Cutting rows into micro-batches of a token budget, and into shares of several processes."""

from __future__ import annotations

from collections.abc import Sequence

from skpo.policy.shared_prefix import trees

Row = tuple[Sequence[int], Sequence[int]]  #: (context ids, ids of the sampled tokens)


def micro_batches(rows: Sequence[Row], budget: int, *, share: bool) -> list[list[int]]:
    """Indices of rows in micro-batches that compute at most `budget` tokens each.

    Shared: rows with the same context are kept together where the budget allows. Padded: by length. A row longer than the budget gets
    a micro-batch of its own.
    """
    if share:
        return _filled(rows, pieces(rows, budget), budget)
    return padded_batches([len(c) + len(t) for c, t in rows], budget)


def process_shares(rows: Sequence[Row], budget: int, world: int, *, share: bool) -> list[list[list[int]]]:
    """Micro-batches of each of `world` processes, which have about the same number of tokens each."""
    if not share:
        length = [len(c) + len(t) for c, t in rows]
        order = sorted(range(len(rows)), key=lambda i: (-length[i], i))
        mine = [order[r::world] for r in range(world)]
        return [[[m[j] for j in b] for b in padded_batches([length[i] for i in m], budget)] for m in mine]
    if world == 1:
        return [micro_batches(rows, budget, share=True)]
    whole = sum(shared_tokens(rows, piece) for piece in pieces(rows, budget))
    parts = pieces(rows, min(budget, -(-whole // world)))  # no piece is larger than a process's share
    owned: list[list[list[int]]] = [[] for _ in range(world)]
    load = [0] * world
    for piece in sorted(parts, key=lambda p: -shared_tokens(rows, p)):
        least = load.index(min(load))
        owned[least].append(piece)
        load[least] += shared_tokens(rows, piece)
    rank = {id(piece): k for k, piece in enumerate(parts)}
    return [_filled(rows, sorted(own, key=lambda p: rank[id(p)]), budget) for own in owned]


def pieces(rows: Sequence[Row], limit: int) -> list[list[int]]:
    """Rows with the same context, cut where they would compute more than `limit` tokens; longest contexts first, longest rows first."""
    out = []
    for tree in trees([context for context, _ in rows]):
        context = len(rows[tree[0]][0])
        piece: list[int] = []
        used = context
        for i in sorted(tree, key=lambda i: (-len(rows[i][1]), i)):
            if piece and used + len(rows[i][1]) > limit:
                out.append(piece)
                piece, used = [], context
            piece.append(i)
            used += len(rows[i][1])
        out.append(piece)
    return sorted(out, key=lambda piece: (-len(rows[piece[0]][0]), -len(rows[piece[0]][1]), piece[0]))


def shared_tokens(rows: Sequence[Row], piece: Sequence[int]) -> int:
    """Tokens that rows with one common context compute in the shared layout (the last of each predicts nothing, but counts here)."""
    return len(rows[piece[0]][0]) + sum(len(rows[i][1]) for i in piece)


def padded_batches(lengths: Sequence[int], budget: int) -> list[list[int]]:
    """Indices of rows, longest first, in micro-batches of at most `budget` tokens each, padding included.

    lengths: tokens of each row, context and sampled.
    """
    order = sorted(range(len(lengths)), key=lambda i: (-lengths[i], i))
    batches: list[list[int]] = []
    for i in order:
        if batches and (len(batches[-1]) + 1) * lengths[batches[-1][0]] <= budget:
            batches[-1].append(i)
        else:
            batches.append([i])
    return batches


def _filled(rows: Sequence[Row], parts: Sequence[list[int]], budget: int) -> list[list[int]]:
    """Pieces in their order, as many in a micro-batch as its budget holds."""
    batches: list[list[int]] = []
    used = 0
    for piece in parts:
        cost = shared_tokens(rows, piece)
        if batches and used + cost <= budget:
            batches[-1] += piece
            used += cost
        else:
            batches.append(list(piece))
            used = cost
    return batches
