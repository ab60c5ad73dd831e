"""Log-probability and entropy of sampled tokens from hidden states, without the logits of all of them at once."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import linear
from torch.utils.checkpoint import checkpoint


class _Scores(torch.autograd.Function):
    """Chunks of logits are made, reduced and dropped; the backward pass makes them again and turns them into their gradient in place,
    (onehot(target) - softmax) g / temperature. Where all of them fit in one chunk its softmax is kept for that instead."""

    @staticmethod
    def forward(
        ctx: Any, states: Tensor, weight: Tensor, bias: Tensor | None, target: Tensor, temperature: float, chunk: int,
        dtype: torch.dtype,
    ) -> tuple[Tensor, Tensor]:  # fmt: skip
        low, bias_ = weight.to(dtype), None if bias is None else bias.to(dtype)
        keep = len(states) <= chunk and any(ctx.needs_input_grad)
        logp, entropy, normaliser = (torch.empty(len(states), device=states.device) for _ in range(3))
        softmax = None
        for begin in range(0, len(states), chunk):
            part = slice(begin, begin + chunk)
            z = linear(states[part].to(dtype), low, bias_).float().div_(temperature)
            top = z.amax(-1, keepdim=True)
            z.sub_(top)
            picked = z.gather(-1, target[part, None]).squeeze(-1)
            e = z.exp()
            total = e.sum(-1)
            log_total = total.log()
            logp[part] = picked - log_total
            entropy[part] = log_total - z.mul_(e).sum(-1) / total
            normaliser[part] = top.squeeze(-1) + log_total
            softmax = e.div_(total[:, None]) if keep else None
        ctx.save_for_backward(states, weight, bias, target, normaliser, softmax)
        ctx.temperature, ctx.chunk, ctx.dtype = temperature, chunk, dtype
        ctx.mark_non_differentiable(entropy)
        return logp, entropy

    @staticmethod
    def backward(ctx: Any, gradient: Tensor, _: Tensor) -> tuple[Tensor | None, ...]:
        states, weight, bias, target, normaliser, softmax = ctx.saved_tensors
        to_states, to_weight, to_bias = ctx.needs_input_grad[:3]
        low, bias_ = weight.to(ctx.dtype), None if bias is None else bias.to(ctx.dtype)
        d_states = torch.empty_like(states) if to_states else None
        d_weight = torch.zeros_like(weight, dtype=torch.float32) if to_weight else None
        d_bias = torch.zeros_like(bias, dtype=torch.float32) if to_bias else None
        for begin in range(0, len(states), ctx.chunk):
            part = slice(begin, begin + ctx.chunk)
            h, g = states[part].to(ctx.dtype), (gradient[part].float() / ctx.temperature)[:, None]
            if softmax is not None:
                d = softmax * -g
            else:
                d = linear(h, low, bias_).float().div_(ctx.temperature)
                d = d.sub_(normaliser[part, None]).exp_().mul_(-g)
            d.scatter_add_(-1, target[part, None], g)
            if d_bias is not None:
                d_bias += d.sum(0)
            d = d.to(ctx.dtype)
            if d_states is not None:
                d_states[part] = d @ low
            if d_weight is not None and ctx.dtype == torch.float32:
                d_weight.addmm_(d.t(), h)
            elif d_weight is not None:
                d_weight += d.t() @ h
        return (
            d_states,
            None if d_weight is None else d_weight.to(weight.dtype),
            None if bias is None or d_bias is None else d_bias.to(bias.dtype),
            *(None,) * 4,
        )


def token_scores(
    head: nn.Module | None, states: Tensor, target: Tensor, *, temperature: float, chunk: int
) -> tuple[Tensor, Tensor]:
    """(log-probability, entropy) of each token, float32 [M]; the entropy (over the vocabulary, in nats) carries no gradient.

    states [M, W]: hidden states, projected by `head`; None: they are the logits. chunk: logits (positions times vocabulary) that exist
    at one time; one position at least. Memory does not grow with the number of positions times the vocabulary.
    """
    vocabulary = int(getattr(head, "out_features", states.shape[-1]))
    size = max(1, chunk // vocabulary)
    if head is not None and plain(head):
        kind = states.device.type
        dtype = torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else head.weight.dtype
        with torch.autocast(kind, enabled=False):
            return _Scores.apply(states, head.weight, head.bias, target, temperature, size, dtype)
    recompute = torch.is_grad_enabled() and len(states) > size
    logps, entropies = [], []
    for begin in range(0, len(states), size):
        given = (head, states[begin : begin + size], target[begin : begin + size], temperature)
        logp, entropy = checkpoint(_chunk_scores, *given, use_reentrant=False) if recompute else _chunk_scores(*given)
        logps.append(logp)
        entropies.append(entropy)
    return torch.cat(logps), torch.cat(entropies)


def plain(head: nn.Module) -> bool:
    """A linear layer and nothing else: no adapter, no hook, no sharding, whose weight may be read past its `forward`."""
    hooked = head._forward_hooks or head._forward_pre_hooks or head._backward_hooks or head._backward_pre_hooks
    return type(head) is nn.Linear and not hooked and type(head.weight) in (nn.Parameter, Tensor)


def _chunk_scores(head: nn.Module | None, states: Tensor, target: Tensor, temperature: float) -> tuple[Tensor, Tensor]:
    logits = (states if head is None else head(states)).float() / temperature
    normaliser = torch.logsumexp(logits, dim=-1)
    logp = logits.gather(-1, target[:, None]).squeeze(-1) - normaliser
    with torch.no_grad():
        detached = logits.detach()
        entropy = normaliser.detach() - (torch.softmax(detached, -1) * detached).sum(-1)
    return logp, entropy
