"""Rows that begin alike share one forward and backward pass of what is the same, with the loss and gradient of the padded form.

All tokens of a micro-batch stand one after another in one sequence [1, N]: each context once, then the sampled tokens of its rows,
with the positions that they have behind it. Sampled tokens are shared as far as rows agree, too: the rows of a context form a tree, in which
each row adds the tokens from where it leaves the row before it (in the order of their tokens). What isn't attention works on
tokens and needs no more. Attention is computed in padded blocks of rows: *stems* (contexts), causal; and *branches* (sampled tokens), whose
keys are all of the row's up to oneself. A context with one row is a stem that holds the row's tokens too. Nothing is padded outside
of attention.

Registered with transformers as the attention implementation `skpo_shared_prefix`; a call without the layout is plain `sdpa`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import groupby
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import embedding, scaled_dot_product_attention

NAME = "skpo_shared_prefix"
_UNSUPPORTED = ("softcap", "s_aux", "position_bias", "head_mask")
SHORT = 32  #: tokens up to which lengths go in one block: padding costs less than another block
LIKE = 0.7  #: longer ones share a block down to this share of its longest
MASK_CELLS = (
    1 << 14
)  #: branches whose block has more query-key pairs than this only share it with branches that begin as far along
WORTH = 8  #: rows that agree on less than one in so many of their tokens don't share them: each would need a mask of its own


@dataclass
class Block:
    """Rows of one attention call, padded: `width` queries each over `keys` keys. visible: bool [rows or 1, 1, width, keys], which
    keys each query sees; None: causal, over keys at the same tokens as the queries."""

    rows: int
    width: int
    keys: int
    visible: Tensor | None = None
    _bias: dict[torch.dtype, Tensor] = field(default_factory=dict)

    def bias(self, dtype: torch.dtype) -> Tensor | None:
        """`visible` as what is added to scores: 0 or -inf. Made once for all layers."""
        if self.visible is None:
            return None
        if dtype not in self._bias:
            zeros = torch.zeros(self.visible.shape, dtype=dtype, device=self.visible.device)
            self._bias[dtype] = zeros.masked_fill_(~self.visible, -torch.inf)
        return self._bias[dtype]


@dataclass
class SharedPrefix:
    """Where attention finds the tokens of one micro-batch, and the head its predictions.

    position_ids [1, N]. query, key: the token in each query and key cell of the padded blocks, block after block (any token in the
    padding); cell [N]: the query cell of each token. distinct [U]: for each pair of a predicting position and a token the first sampled
    token with it; same [M]: the pair of each sampled token. Both None where no two are alike. calls: attention calls so far, one a layer.
    """

    position_ids: Tensor
    query: Tensor
    key: Tensor
    cell: Tensor
    blocks: list[Block]
    distinct: Tensor | None = None
    same: Tensor | None = None
    calls: int = 0


class _Rearranged(torch.autograd.Function):
    """source[forth] along the first dimension, where `back[i]` is the one place of row i that counts: the others' gradient is 0."""

    @staticmethod
    def forward(ctx: Any, source: Tensor, forth: Tensor, back: Tensor) -> Tensor:
        ctx.save_for_backward(back)
        return source.index_select(0, forth)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None]:
        return gradient.index_select(0, ctx.saved_tensors[0]), None, None


class _Collected(torch.autograd.Function):
    """source[back], every row at most once; the rest of `source` is padding without gradient."""

    @staticmethod
    def forward(ctx: Any, source: Tensor, back: Tensor) -> Tensor:
        ctx.save_for_backward(back)
        ctx.rows = len(source)
        return source.index_select(0, back)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        out = gradient.new_zeros((ctx.rows, *gradient.shape[1:]))
        return out.index_copy_(0, ctx.saved_tensors[0], gradient), None


def shared_attention(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    shared_prefix: SharedPrefix | None = None,
    scaling: float | None = None,
    **kwargs: Any,
) -> tuple[Tensor, None]:
    """The function that transformers calls. query: [1, heads, N, D]; key, value: [1, kv_heads, N, D]. Returns [1, N, heads, D].

    Raises ValueError for attention that can't be cut into blocks (soft caps, sinks, biases).
    """
    if shared_prefix is None:
        from transformers.integrations.sdpa_attention import sdpa_attention_forward

        return sdpa_attention_forward(module, query, key, value, attention_mask, scaling=scaling, **kwargs)
    found = [name for name in _UNSUPPORTED if kwargs.get(name) is not None]
    if found:
        raise ValueError(f"{type(module).__name__} uses {', '.join(found)}")
    shared_prefix.calls += 1
    blocks = shared_prefix.blocks
    q = _Rearranged.apply(query[0].transpose(0, 1), shared_prefix.query, shared_prefix.cell)
    k, v = (_looked_up(x[0].transpose(0, 1), shared_prefix.key) for x in (key, value))
    queries = q.split([b.rows * b.width for b in blocks])
    keys, values = (x.split([b.rows * b.keys for b in blocks]) for x in (k, v))
    parts = []
    for b, bq, bk, bv in zip(blocks, queries, keys, values, strict=True):
        bk, bv = (x.unflatten(0, (b.rows, b.keys)) for x in (bk, bv))
        parts.append(_attend(bq.unflatten(0, (b.rows, b.width)), bk, bv, b.bias(q.dtype), scaling))
    return _Collected.apply(torch.cat(parts), shared_prefix.cell)[None], None


def _looked_up(source: Tensor, index: Tensor) -> Tensor:
    """source[index] along the first dimension; the gradients of a row's places add up, as those of an embedding do."""
    return embedding(index, source.flatten(1)).unflatten(1, source.shape[1:])


def _attend(query: Tensor, key: Tensor, value: Tensor, bias: Tensor | None, scale: float | None) -> Tensor:
    """Attention of [B, T, heads, D] over [B, S, kv_heads, D]; causal where there is no bias. Returns [B * T, heads, D]."""
    times = query.shape[2] // key.shape[2]
    if times > 1 and bias is not None and query.is_cuda:  # its kernels take grouped heads or a mask, not both
        key, value = (x.repeat_interleave(times, 2) for x in (key, value))
        times = 1
    out = scaled_dot_product_attention(
        query.transpose(1, 2), key.transpose(1, 2), value.transpose(1, 2),
        attn_mask=bias, is_causal=bias is None, scale=scale, enable_gqa=times > 1,
    )  # fmt: skip
    return out.transpose(1, 2).flatten(0, 1)


def register() -> None:
    """Make the implementation known to transformers; masks of calls without the layout are those of `sdpa`."""
    from transformers import AttentionInterface, AttentionMaskInterface
    from transformers.masking_utils import sdpa_mask

    AttentionInterface.register(NAME, shared_attention)
    AttentionMaskInterface.register(NAME, sdpa_mask)


def arguments(shared: SharedPrefix | None) -> dict[str, Any]:
    """What a decoder is called with beside its ids. A mask of four dimensions is passed through to attention as it is: none is made."""
    if shared is None:
        return {}
    mask = torch.ones((1, 1, 1, 1), dtype=torch.bool, device=shared.cell.device)
    return {"position_ids": shared.position_ids, "attention_mask": mask, "shared_prefix": shared}


def trees(contexts: Sequence[Sequence[int]]) -> list[list[int]]:
    """Indices of rows with equal contexts together, in order of first appearance."""
    found: dict[tuple[int, ...], list[int]] = {}
    for i, context in enumerate(contexts):
        found.setdefault(tuple(context), []).append(i)
    return list(found.values())


@dataclass(frozen=True)
class _Row:
    """What one row adds. path: its tokens from the context's first one on, as far as they are laid out, by their index in the
    sequence; start: how many of them are there already."""

    path: np.ndarray
    start: int

    @property
    def added(self) -> int:
        return len(self.path) - self.start


def lay_out(
    rows: Sequence[tuple[Sequence[int], Sequence[int]]], device: torch.device | str
) -> tuple[Tensor, Tensor, SharedPrefix]:
    """(input_ids [1, N], place [M], layout) of a micro-batch; `place` is the index of the token that predicts each sampled one, row by
    row. Every row has a context and at least one sampled token; the last one predicts nothing and is left out."""
    ids: list[np.ndarray] = []
    positions: list[np.ndarray] = []
    place: list[np.ndarray] = [np.zeros(0, np.int64)] * len(rows)
    stems: list[_Row] = []
    branches: list[_Row] = []
    total = 0

    def add(tokens: np.ndarray, behind: np.ndarray) -> np.ndarray:
        """Append tokens behind a path; the whole path."""
        nonlocal total
        ids.append(tokens)
        positions.append(np.arange(len(behind), len(behind) + len(tokens)))
        total += len(tokens)
        return np.concatenate([behind, np.arange(total - len(tokens), total)])

    nothing = np.zeros(0, np.int64)
    target = [np.asarray(tokens, dtype=np.int64) for _, tokens in rows]
    for members in trees([context for context, _ in rows]):
        context = np.asarray(rows[members[0]][0], dtype=np.int64)
        first = len(context) - 1  # predicts the first sampled token
        if len(members) == 1:
            path = add(np.concatenate([context, target[members[0]][:-1]]), nothing)
            stems.append(_Row(path, 0))
            place[members[0]] = path[first:]
            continue
        path = stem = add(context, nothing)
        stems.append(_Row(stem, 0))
        before = nothing
        for i in sorted(members, key=lambda i: target[i][:-1].astype(">i8").tobytes()):
            own = target[i][:-1]
            n = _common(before, own)
            n = n if n * WORTH >= len(own) else 0
            start = len(context) + n
            path = add(own[n:], path[:start])
            place[i] = path[first:]
            if n < len(own):
                branches.append(_Row(path, start))
            before = own
    layout = _layout(stems, branches, np.concatenate(positions), device)
    places = np.concatenate(place)
    targets = np.concatenate(target)
    _, distinct, same = np.unique(places * (targets.max() + 1) + targets, return_index=True, return_inverse=True)
    if len(distinct) < len(same):
        layout.distinct, layout.same = (torch.from_numpy(x).to(device) for x in (distinct, same))
    return torch.from_numpy(np.concatenate(ids)).to(device)[None], torch.from_numpy(places).to(device), layout


def _common(a: np.ndarray, b: np.ndarray) -> int:
    """Tokens that both begin with."""
    n = min(len(a), len(b))
    differ = np.flatnonzero(a[:n] != b[:n])
    return int(differ[0]) if len(differ) else n


def _layout(
    stems: Sequence[_Row], branches: Sequence[_Row], positions: np.ndarray, device: torch.device | str
) -> SharedPrefix:
    """The attention blocks of contexts and of what stands behind them, for tokens with these positions."""
    queries: list[np.ndarray] = []
    keys: list[np.ndarray] = []
    cell = np.zeros(len(positions), np.int64)
    used = 0

    def lay(rows: Sequence[_Row]) -> tuple[int, int]:
        """Cells of a block's rows; the widths of its queries and keys."""
        nonlocal used
        width, length = max(r.added for r in rows), max(len(r.path) for r in rows)
        query, key = np.zeros((len(rows), width), np.int64), np.zeros((len(rows), length), np.int64)
        for i, row in enumerate(rows):
            own = row.path[row.start :]
            query[i, : len(own)] = own
            key[i, : len(row.path)] = row.path
            cell[own] = used + i * width + np.arange(len(own))
        queries.append(query.ravel())
        keys.append(key.ravel())
        used += query.size
        return width, length

    blocks = []
    for some in alike([len(row.path) for row in stems]):
        blocks.append(Block(len(some), *lay([stems[i] for i in some])))
    for block in _branch_blocks(branches):
        width, length = lay(block)
        starts = np.unique([row.start for row in block])
        if len(starts) > 1:
            starts = np.array([row.start for row in block])
        last = torch.from_numpy(starts)[:, None] + torch.arange(width)  # position of each query
        visible = torch.arange(length) <= last[:, None, :, None]
        blocks.append(Block(len(block), width, length, visible.to(device)))

    def tensor(parts: Any) -> Tensor:
        return torch.from_numpy(np.concatenate(parts)).to(device)

    return SharedPrefix(tensor([positions])[None], tensor(queries), tensor(keys), tensor([cell]), blocks)


def alike(lengths: Sequence[int]) -> list[list[int]]:
    """Indices, longest first, cut where a length falls below `LIKE` of the longest of its block (and that one isn't short)."""
    out: list[list[int]] = []
    for i in sorted(range(len(lengths)), key=lambda i: (-lengths[i], i)):
        if out and lengths[i] >= min(LIKE * lengths[out[-1][0]], lengths[out[-1][0]] - SHORT):
            out[-1].append(i)
        else:
            out.append([i])
    return out


def _branch_blocks(branches: Sequence[_Row]) -> list[list[_Row]]:
    """Branches with keys and queries alike; long ones also apart by where they start, so that one small mask serves them all."""
    out: list[list[_Row]] = []
    for near in alike([len(row.path) for row in branches]):
        rows = [branches[i] for i in near]
        for some in alike([row.added for row in rows]):
            block = [rows[i] for i in some]
            if block[0].added * max(len(row.path) for row in block) <= MASK_CELLS:
                out.append(block)
                continue
            block.sort(key=lambda row: row.start)
            out += [list(rest) for _, rest in groupby(block, key=lambda row: row.start)]
    return out
