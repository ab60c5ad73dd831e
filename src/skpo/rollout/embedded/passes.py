"""The two kinds of forward pass: prefill of whole contexts, and one decoded token for each row."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from skpo.rollout.embedded.attention import MASKED, attend, merge
from skpo.rollout.embedded.cache import CacheShape, Places
from skpo.rollout.embedded.lanes import TOGETHER

_CONTEXTS = 8  # contexts that always go together, over the longest of them
_CALL = 50_000  # numbers of the cache that are read in the time of one more call (measured on one Zen 4 core)
_QUERIES = 8  # queries of one product that take as long as reading its keys and values


def _even(tokens: int) -> int:
    """Products over a multiple of 16 keys are faster; the cache's capacities are multiples of 64."""
    return -(-tokens // 16) * 16


class _Span(NamedTuple):
    """Neighbouring places attended together. longest: tokens of the longest of them; width: most rows that use one of them."""

    low: int
    high: int
    longest: int
    width: int = 0

    @property
    def work(self) -> float:
        """Tokens read, and the time of the products in terms of that."""
        return (self.high - self.low) * self.longest * (1 + self.width / _QUERIES)

    def joined(self, other: _Span) -> _Span:
        """Both, `other` behind this one, padded to the larger of each."""
        return _Span(self.low, other.high, max(self.longest, other.longest), max(self.width, other.width))


def _join(spans: list[_Span], call: float) -> list[_Span]:
    """Neighbours go together where that costs less, in padding, than `call`, the work of one more call."""
    out = spans[:1]
    for span in spans[1:]:
        both = out[-1].joined(span)
        if both.work <= out[-1].work + span.work + call:
            out[-1] = both
        else:
            out.append(span)
    return out


class PrefillPass:
    """Contexts packed one after another; their keys and values go to `places` of the context cache.

    lengths: int64 [C], tokens of each context. places: int64 [C].
    """

    def __init__(self, lengths: np.ndarray, places: np.ndarray, device: torch.device) -> None:
        longest = int(lengths.max())
        ends = np.cumsum(lengths)
        starts = ends - lengths
        inside = np.arange(longest)[None] < lengths[:, None]
        grid = np.where(inside, starts[:, None] + np.arange(longest), 0)
        self.positions = torch.from_numpy(np.concatenate([np.arange(n) for n in lengths])).to(device)
        self.last = torch.from_numpy(ends - 1).to(device)
        self.lengths = lengths
        self.places = torch.from_numpy(places).to(device)
        self._grid = torch.from_numpy(grid).to(device)  # [C, longest] index of each context's tokens in the pack
        self._flat = torch.from_numpy(np.flatnonzero(inside)).to(device)
        self._windows: dict[int, Tensor] = {}
        self.store: Places | None = None
        self.kept: dict[
            int, tuple[Tensor, Tensor]
        ] = {}  # layer -> keys, values [C, kv_heads, longest, D], without a store

    def attend(self, layer: int, query: Tensor, key: Tensor, value: Tensor, scale: float, window: int | None) -> Tensor:
        """See `attention.Pass`."""
        count, longest = self._grid.shape
        q, k, v = (x[self._grid].transpose(1, 2) for x in (query, key, value))  # [C, heads, longest, D]
        if self.store is None:
            self.kept[layer] = (k, v)
        else:
            self._write(layer, k, v)
        mask = self._window(window) if window is not None and window < longest else None
        out = scaled_dot_product_attention(
            q, k, v, attn_mask=mask, is_causal=mask is None, scale=scale, enable_gqa=q.shape[1] != k.shape[1]
        )
        return out.transpose(1, 2).reshape(count * longest, *query.shape[1:])[self._flat]

    def save(self, store: Places) -> None:
        """Write what was kept while the cache's shape was unknown."""
        self.store = store
        for layer, (k, v) in self.kept.items():
            self._write(layer, k, v)
        self.kept.clear()

    def _write(self, layer: int, k: Tensor, v: Tensor) -> None:
        assert self.store is not None
        longest = k.shape[2]
        self.store.data[layer, 0, self.places, :, :longest] = k
        self.store.data[layer, 1, self.places, :, :longest] = v

    def _window(self, window: int) -> Tensor:
        """Causal mask with a sliding window, bool [longest, longest]."""
        if window not in self._windows:
            at = torch.arange(self._grid.shape[1], device=self._grid.device)
            gap = at[:, None] - at
            self._windows[window] = (gap >= 0) & (gap < window)
        return self._windows[window]


class Layout:
    """Which rows use which contexts; holds until a row starts, ends or moves.

    context: int64 [A], each row's place in the context cache. lengths: int64 [places], tokens of each context, 0: free.
    shape: of the caches.
    """

    def __init__(self, context: np.ndarray, lengths: np.ndarray, shape: CacheShape) -> None:
        self.shape, device = shape, shape.device
        order = np.argsort(context, kind="stable")
        ordered = context[order]
        nth = np.arange(len(order)) - np.searchsorted(ordered, ordered)  # which of its context's rows each is
        spans = []
        for low in range(0, len(lengths), _CONTEXTS):
            a, b = np.searchsorted(ordered, [low, low + _CONTEXTS])
            if a < b:
                first, last = int(ordered[a]), int(ordered[b - 1]) + 1
                spans.append(_Span(first, last, _even(int(lengths[first:last].max())), int(nth[a:b].max()) + 1))
        self.spans = _join(spans, 2 * self.call)
        self.rows = []  # int64 [places, width] for each span: the rows that use each place, and others as padding
        back = np.zeros(len(context), dtype=np.int64)
        taken = 0
        for span in self.spans:
            a, b = np.searchsorted(ordered, [span.low, span.high])
            users, place = order[a:b], ordered[a:b] - span.low
            rows = np.full((span.high - span.low, span.width), users[0], dtype=np.int64)
            rows[place, nth[a:b]] = users
            back[users] = taken + place * span.width + nth[a:b]
            taken += rows.size
            self.rows.append(torch.from_numpy(rows).to(device))
        self.back = torch.from_numpy(back).to(device)  # [A] where each row's part is in the concatenated spans
        self.lengths = torch.from_numpy(lengths).to(device)
        self.context = torch.from_numpy(context).to(device)
        self.masks = [self._mask(span) for span in self.spans]

    @property
    def call(self) -> float:
        """`_CALL` in tokens of this cache."""
        return _CALL / (2 * self.shape.kv_heads * self.shape.head_dim)

    def _mask(self, span: _Span) -> Tensor:
        """Additive mask [places, 1, 1, longest] over the padding of shorter contexts."""
        at = torch.arange(span.longest, device=self.shape.device)
        hidden = at >= self.lengths[span.low : span.high, None]
        return torch.zeros(hidden.shape, device=hidden.device).masked_fill_(hidden, MASKED)[:, None, None]


class DecodePass:
    """One token of each of the rows [0, A): appended to its own part of the cache, then attended over both parts.

    before: int64 [A], the row's tokens in its own part before this pass.
    """

    def __init__(self, layout: Layout, contexts: Places, rows: Places, before: np.ndarray) -> None:
        self._layout, self._contexts, self._rows = layout, contexts, rows
        device, count = layout.shape.device, len(before)
        self._at = torch.from_numpy(before).to(device)
        self.positions = layout.lengths[layout.context] + self._at
        edges = [(low, min(low + TOGETHER, count)) for low in range(0, count, TOGETHER)]
        spans = [_Span(low, high, _even(int(before[low:high].max()) + 1)) for low, high in edges]
        self._spans = _join(spans, layout.call)
        lines = np.arange(rows.count * layout.shape.kv_heads).reshape(rows.count, -1)[:count] * rows.capacity
        lines = lines + before[:, None]
        both = np.stack((lines, lines + rows.count * layout.shape.kv_heads * rows.capacity))
        self._lines = torch.from_numpy(both.reshape(-1)).to(device)  # [2 * A * kv_heads] where keys and values go
        self._key = torch.arange(_even(int(before.max()) + 1), device=device)
        hidden = self._key > self._at[:, None]
        self._mask = torch.zeros(hidden.shape, device=device).masked_fill_(hidden, MASKED)[:, None, None]
        self._windows: dict[int, tuple[Tensor, list[Tensor]]] = {}

    def attend(self, layer: int, query: Tensor, key: Tensor, value: Tensor, scale: float, window: int | None) -> Tensor:
        """See `attention.Pass`."""
        count, heads, dim = query.shape
        kv_heads = key.shape[1]
        store = self._rows.data[layer]
        store.view(-1, dim).index_copy_(0, self._lines, torch.stack((key, value)).view(-1, dim))
        q = query.reshape(count, kv_heads, heads // kv_heads, dim)
        mask, context_masks = (
            (self._mask, self._layout.masks) if window is None else self._window(window, heads // kv_heads)
        )
        own, own_log = self._attend_rows(q, store, mask, scale)
        shared, shared_log = self._attend_contexts(q, self._contexts.data[layer], context_masks, scale)
        return merge(shared, shared_log, own, own_log).reshape(count, heads, dim)

    def _attend_rows(self, q: Tensor, store: Tensor, mask: Tensor, scale: float) -> tuple[Tensor, Tensor]:
        """Over each row's own tokens. q: [A, kv_heads, g, D]; returns the same shape and [A, kv_heads, g]."""
        parts = []
        for b in self._spans:
            k, v = store[:, b.low : b.high, :, : b.longest]
            parts.append(attend(q[b.low : b.high], k, v, mask[b.low : b.high, ..., : b.longest], scale))
        if len(parts) == 1:
            return parts[0]
        return torch.cat([p[0] for p in parts]), torch.cat([p[1] for p in parts])

    def _attend_contexts(self, q: Tensor, store: Tensor, masks: list[Tensor], scale: float) -> tuple[Tensor, Tensor]:
        """Over the shared contexts, the rows of one context as queries of one product."""
        _, kv_heads, g, dim = q.shape
        outs, logs = [], []
        for b, rows, mask in zip(self._layout.spans, self._layout.rows, masks, strict=True):
            places, width = rows.shape
            grouped = q[rows].transpose(1, 2).reshape(places, kv_heads, width * g, dim)
            k, v = store[:, b.low : b.high, :, : b.longest]
            out, log = attend(grouped, k, v, mask, scale)
            outs.append(out.view(places, kv_heads, width, g, dim).transpose(1, 2).reshape(-1, kv_heads, g, dim))
            logs.append(log.view(places, kv_heads, width, g).transpose(1, 2).reshape(-1, kv_heads, g))
        back = self._layout.back
        out, log = (outs[0], logs[0]) if len(outs) == 1 else (torch.cat(outs), torch.cat(logs))
        return out[back], log[back]

    def _window(self, window: int, g: int) -> tuple[Tensor, list[Tensor]]:
        """Masks of a layer with a sliding window: own [A, 1, 1, K], and [places, 1, width * g, longest] of each bucket."""
        if window not in self._windows:
            first = self.positions - window + 1  # [A] the earliest position a row sees
            own_first = first - (self.positions - self._at)
            mask = self._mask.masked_fill((self._key < own_first[:, None])[:, None, None], MASKED)
            masks = []
            for b, rows, base in zip(self._layout.spans, self._layout.rows, self._layout.masks, strict=True):
                hidden = (
                    torch.arange(b.longest, device=first.device) < first[rows][..., None]
                )  # [places, width, longest]
                masks.append(base.masked_fill(hidden.repeat_interleave(g, 1)[:, None], MASKED))
            self._windows[window] = (mask, masks)
        return self._windows[window]
