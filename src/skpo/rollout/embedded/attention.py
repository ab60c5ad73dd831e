"""Attention over the two-part cache, called by every layer of the model in place of its own.

The function is registered with transformers as the attention implementation `skpo_rows`. A forward pass packs all its
tokens in one sequence [1, N]: whole contexts one after another (prefill), or one token of each row (decode). The state
of the pass is found through `active`, since layers know nothing of it.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from skpo.errors import ModelError

NAME = "skpo_rows"
MASKED = -1e30  # finite: a row that sees nothing gets weight 0 when parts are merged, not NaN

_UNSUPPORTED = ("softcap", "s_aux", "position_bias", "head_mask")


class Pass(Protocol):
    """One forward pass through all layers."""

    def attend(self, layer: int, query: Tensor, key: Tensor, value: Tensor, scale: float, window: int | None) -> Tensor:
        """query: [N, heads, D]; key, value: [N, kv_heads, D], this pass's tokens; window: sliding window or None. Returns [N, heads, D]."""


_current: list[Pass] = []


@contextlib.contextmanager
def active(forward: Pass) -> Iterator[None]:
    """Within it, layers attend through `forward`."""
    _current.append(forward)
    try:
        yield
    finally:
        _current.pop()


def rows_attention(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    scaling: float | None = None,
    sliding_window: int | None = None,
    **kwargs: Any,
) -> tuple[Tensor, None]:
    """The function that transformers calls. query: [1, heads, N, D]; key, value: [1, kv_heads, N, D]. Returns [1, N, heads, D].

    Raises ModelError for attention that can't be computed over rows (soft caps, sinks, biases, masks of the model's own).
    """
    found = [name for name in _UNSUPPORTED if kwargs.get(name) is not None]
    if found or attention_mask is not None:
        what = ", ".join(found) or "an attention mask of its own"
        raise ModelError(
            f"{type(module).__name__} uses {what}, which the embedded engine can't compute; use engine: vllm"
        )
    scale = query.shape[-1] ** -0.5 if scaling is None else scaling
    layer = getattr(module, "layer_idx", None)
    if layer is None:
        raise ModelError(f"{type(module).__name__} has no layer_idx; the embedded engine needs it")
    out = _current[-1].attend(
        layer, query[0].transpose(0, 1), key[0].transpose(0, 1), value[0].transpose(0, 1), scale, sliding_window
    )
    return out[None], None


def register() -> None:
    """Make the implementation known to transformers (no mask function: masks are made here)."""
    from transformers import AttentionInterface

    AttentionInterface.register(NAME, rows_attention)


def attend(query: Tensor, key: Tensor, value: Tensor, mask: Tensor, scale: float) -> tuple[Tensor, Tensor]:
    """Attention with its normaliser, so that parts over different keys can be merged.

    query: [B, kv_heads, Q, D], where Q runs over the query heads of a kv head (and the rows that share the keys).
    key, value: [B, kv_heads, K, D]. mask: additive, float32 [B, 1, Q or 1, K].
    Returns the output [B, kv_heads, Q, D] and the log of the summed weights, float32 [B, kv_heads, Q].
    """
    if query.device.type == "cpu" and query.dtype == torch.float32:
        wide = mask.expand(mask.shape[0], 1, query.shape[2], mask.shape[3])
        out, log_weight = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu(
            query, key, value, attn_mask=wide, scale=scale
        )
        return out, log_weight
    return attend_plain(query, key, value, mask, scale)


def attend_plain(query: Tensor, key: Tensor, value: Tensor, mask: Tensor, scale: float) -> tuple[Tensor, Tensor]:
    """`attend` in plain products; softmax in float32."""
    scores = (query * scale @ key.transpose(-1, -2)).float() + mask
    log_weight = scores.logsumexp(-1)
    weights = (scores - log_weight[..., None]).exp_().to(value.dtype)
    return weights @ value, log_weight


def merge(first: Tensor, first_log: Tensor, second: Tensor, second_log: Tensor) -> Tensor:
    """Attention over the union of two key sets from the parts' outputs [..., D] and log weights [...]."""
    share = torch.sigmoid(first_log - second_log)[..., None].to(first.dtype)
    return second + share * (first - second)
