"""Rows with the same context share one forward and backward pass of it, with the loss and gradient of the padded form.

All tokens of a micro-batch stand one after another in one sequence [1, N]: each context once, then the sampled tokens of its rows,
with the positions that they have behind it. What isn't attention works on tokens and needs no more. Attention is computed in two
kinds of padded blocks: *stems* (contexts), causal; and *branches* (sampled tokens), which see their stem's keys and their own up to
themselves. A context with one row is a stem that holds the row's tokens too. Nothing is padded outside of attention.

Registered with transformers as the attention implementation `skpo_shared_prefix`; a call without the layout is plain `sdpa`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import scaled_dot_product_attention

NAME = "skpo_shared_prefix"
_UNSUPPORTED = ("softcap", "s_aux", "position_bias", "head_mask")
SHORT = 32  #: tokens up to which lengths go in one block: padding costs less than another block
LIKE = 0.7  #: longer ones share a block down to this share of its longest
MASK_CELLS = (
    1 << 14
)  #: branches whose block has more query-key pairs than this only share it with branches behind contexts as long


@dataclass
class Branches:
    """Rows behind stems of one `Stems` block, padded to `width` tokens.

    begin: their first cell. stem [R]: index of each row's context in the block; stem_width: its longest context here.
    visible: bool [R or 1, 1, T, stem_width + T], which keys each token sees.
    """

    begin: int
    width: int
    stem: Tensor
    stem_width: int
    visible: Tensor
    _bias: dict[torch.dtype, Tensor] = field(default_factory=dict)

    def bias(self, dtype: torch.dtype) -> Tensor:
        """`visible` as what is added to scores: 0 or -inf. Made once for all layers."""
        if dtype not in self._bias:
            zeros = torch.zeros(self.visible.shape, dtype=dtype, device=self.visible.device)
            self._bias[dtype] = zeros.masked_fill_(~self.visible, -torch.inf)
        return self._bias[dtype]


@dataclass
class Stems:
    """Contexts of similar length, padded to `width` tokens; begin: their first cell."""

    begin: int
    count: int
    width: int
    branches: list[Branches]


@dataclass
class SharedPrefix:
    """Where attention finds the tokens of one micro-batch.

    position_ids [1, N]. token [cells]: the token in each cell of the padded blocks (any token in the padding); cell [N]: the cell of
    each token. calls: attention calls so far, one a layer.
    """

    position_ids: Tensor
    token: Tensor
    cell: Tensor
    blocks: list[Stems]
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
    q, k, v = (
        _Rearranged.apply(x[0].transpose(0, 1), shared_prefix.token, shared_prefix.cell) for x in (query, key, value)
    )
    parts = []
    for stems in shared_prefix.blocks:
        cells = slice(stems.begin, stems.begin + stems.count * stems.width)
        sq, sk, sv = (x[cells].unflatten(0, (stems.count, stems.width)) for x in (q, k, v))
        parts.append(_attend(sq, sk, sv, None, scaling))
        for branches in stems.branches:
            rows, t = len(branches.stem), branches.width
            cells = slice(branches.begin, branches.begin + rows * t)
            bq, bk, bv = (x[cells].unflatten(0, (rows, t)) for x in (q, k, v))
            bk, bv = (
                torch.cat([s[:, : branches.stem_width].index_select(0, branches.stem), own], 1)
                for s, own in ((sk, bk), (sv, bv))
            )
            parts.append(_attend(bq, bk, bv, branches.bias(q.dtype), scaling))
    return _Collected.apply(torch.cat(parts), shared_prefix.cell)[None], None


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


def lay_out(
    rows: Sequence[tuple[Sequence[int], Sequence[int]]], device: torch.device | str
) -> tuple[Tensor, Tensor, SharedPrefix]:
    """(input_ids [1, N], place [M], layout) of a micro-batch; `place` is the index of the token that predicts each sampled one, row by
    row. Every row has a context and at least one sampled token; the last one predicts nothing and is left out."""
    ids: list[np.ndarray] = []
    positions: list[np.ndarray] = []
    place: list[np.ndarray] = [np.zeros(0, np.int64)] * len(rows)
    stems: list[tuple[int, int]] = []  # (first token, length)
    branches: list[tuple[int, int, int]] = []  # (first token, length, stem)
    total = 0

    def add(tokens: np.ndarray, first: int) -> int:
        nonlocal total
        ids.append(tokens)
        positions.append(np.arange(first, first + len(tokens)))
        total += len(tokens)
        return total - len(tokens)

    for members in trees([context for context, _ in rows]):
        context = np.asarray(rows[members[0]][0], dtype=np.int64)
        if len(members) == 1:
            tokens = np.asarray(rows[members[0]][1], dtype=np.int64)
            begin = add(np.concatenate([context, tokens[:-1]]), 0)
            stems.append((begin, len(context) + len(tokens) - 1))
            place[members[0]] = begin + len(context) - 1 + np.arange(len(tokens))
            continue
        stem = add(context, 0)
        stems.append((stem, len(context)))
        for i in members:
            tokens = np.asarray(rows[i][1], dtype=np.int64)
            begin = add(tokens[:-1], len(context))
            place[i] = np.concatenate([[stem + len(context) - 1], begin + np.arange(len(tokens) - 1)])
            if len(tokens) > 1:
                branches.append((begin, len(tokens) - 1, len(stems) - 1))
    token, cell, blocks = _blocks(stems, branches, total, device)

    def tensor(parts: list[np.ndarray]) -> Tensor:
        return torch.from_numpy(np.concatenate(parts)).to(device)

    return tensor(ids)[None], tensor(place), SharedPrefix(tensor(positions)[None], token, cell, blocks)


def _blocks(
    stems: Sequence[tuple[int, int]],
    branches: Sequence[tuple[int, int, int]],
    total: int,
    device: torch.device | str,
) -> tuple[Tensor, Tensor, list[Stems]]:
    """(token of each cell, cell of each token, blocks) for stems (first token, length) and branches (first token, length, stem)."""
    cells: list[np.ndarray] = []
    cell_of = np.zeros(total, np.int64)
    used = 0

    def lay(spans: Sequence[tuple[int, int]], width: int) -> int:
        nonlocal used
        block = np.zeros((len(spans), width), np.int64)
        for i, (first, length) in enumerate(spans):
            block[i, :length] = np.arange(first, first + length)
            cell_of[first : first + length] = used + i * width + np.arange(length)
        cells.append(block.ravel())
        used += block.size
        return used - block.size

    children: dict[int, list[tuple[int, int]]] = {}
    for first, length, stem in branches:
        children.setdefault(stem, []).append((first, length))
    blocks = []
    for members in alike([length for _, length in stems]):
        width = stems[members[0]][1]
        block = Stems(lay([stems[i] for i in members], width), len(members), width, [])
        blocks.append(block)
        own = [(k, span) for k, i in enumerate(members) for span in children.get(i, [])]
        lengths = np.array([stems[i][1] for i in members])
        for some in _branch_blocks([span[1] for _, span in own], [int(lengths[k]) for k, _ in own]):
            behind = np.array([own[j][0] for j in some])
            t, p = max(own[j][1][1] for j in some), int(lengths[behind].max())
            begin = lay([own[j][1] for j in some], t)
            visible = _visible(lengths[behind], p, t).to(device)
            block.branches.append(Branches(begin, t, torch.from_numpy(behind).to(device), p, visible))
    return torch.from_numpy(np.concatenate(cells)).to(device), torch.from_numpy(cell_of).to(device), blocks


def alike(lengths: Sequence[int]) -> list[list[int]]:
    """Indices, longest first, cut where a length falls below `LIKE` of the longest of its block (and that one isn't short)."""
    out: list[list[int]] = []
    for i in sorted(range(len(lengths)), key=lambda i: (-lengths[i], i)):
        if out and lengths[i] >= min(LIKE * lengths[out[-1][0]], lengths[out[-1][0]] - SHORT):
            out[-1].append(i)
        else:
            out.append([i])
    return out


def _branch_blocks(lengths: Sequence[int], contexts: Sequence[int]) -> list[list[int]]:
    """Branches with lengths alike; long ones also apart by the length of their context, so that one small mask serves them all."""
    out = []
    for some in alike(lengths):
        if lengths[some[0]] * (lengths[some[0]] + max(contexts[i] for i in some)) <= MASK_CELLS:
            out.append(some)
            continue
        some = sorted(some, key=lambda i: (contexts[i], i))
        edges = [0, *(n for n in range(1, len(some)) if contexts[some[n]] != contexts[some[n - 1]]), len(some)]
        out += [some[a:b] for a, b in pairwise(edges)]
    return out


def _visible(contexts: np.ndarray, stem_width: int, width: int) -> Tensor:
    """bool [R, 1, T, stem_width + T] (R = 1 where all contexts are equally long): the whole context, and own tokens up to oneself."""
    lengths = torch.from_numpy(contexts if contexts.min() < contexts.max() else contexts[:1])
    context = (torch.arange(stem_width) < lengths[:, None])[:, None].expand(-1, width, -1)
    own = torch.ones(width, width, dtype=torch.bool).tril().expand(len(lengths), -1, -1)
    return torch.cat([context, own], -1)[:, None]
