"""Log-probability and entropy of sampled tokens from hidden states, without the logits of all of them at once."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import linear
from torch.utils.checkpoint import checkpoint


def _buffer(states: Tensor, weight: Tensor, chunk: int) -> Tensor:
    """Room for the logits of a chunk, float32 [chunk, V]. Made once for all chunks: large blocks are new pages each time."""
    return torch.empty(min(chunk, len(states)), len(weight), device=states.device)


def _logits(states: Tensor, weight: Tensor, bias: Tensor | None, temperature: float, *, out: Tensor) -> None:
    """Logits of states [n, W] over the temperature, written to `out`, float32 [n, V]."""
    if weight.dtype != torch.float32:
        out.copy_(linear(states, weight, bias))
    elif bias is None:
        torch.mm(states, weight.t(), out=out)
    else:
        torch.addmm(bias, states, weight.t(), out=out)
    if temperature != 1:
        out.div_(temperature)


class _Scores(torch.autograd.Function):
    """Chunks of logits are made, reduced and dropped; the backward pass makes them again and turns them into their gradient in place,
    (onehot(target) - softmax) g / temperature. Where all of them fit in one chunk its softmax is kept for that instead."""

    @staticmethod
    def forward(
        ctx: Any, states: Tensor, weight: Tensor, bias: Tensor | None, target: Tensor, temperature: float, chunk: int,
        dtype: torch.dtype, in_place: bool,
    ) -> tuple[Tensor, Tensor]:  # fmt: skip
        low, bias_ = weight.to(dtype), None if bias is None else bias.to(dtype)
        keep = len(states) <= chunk and any(ctx.needs_input_grad)
        logp, entropy, normaliser = (torch.empty(len(states), device=states.device) for _ in range(3))
        softmax = None
        buffers = [_buffer(states, weight, chunk) for _ in range(2)]
        for begin in range(0, len(states), chunk):
            part = slice(begin, begin + chunk)
            z, e = (b[: len(states[part])] for b in buffers)
            _logits(states[part].to(dtype), low, bias_, temperature, out=z)
            top = z.amax(-1, keepdim=True)
            z.sub_(top)
            picked = z.gather(-1, target[part, None]).squeeze(-1)
            torch.exp(z, out=e)
            total = e.sum(-1)
            log_total = total.log()
            logp[part] = picked - log_total
            entropy[part] = log_total - z.mul_(e).sum(-1) / total
            normaliser[part] = top.squeeze(-1) + log_total
            softmax = e.div_(total[:, None]) if keep else None
        ctx.save_for_backward(states, weight, bias, target, normaliser, softmax)
        ctx.temperature, ctx.chunk, ctx.dtype, ctx.in_place = temperature, chunk, dtype, in_place
        ctx.mark_non_differentiable(entropy)
        return logp, entropy

    @staticmethod
    def backward(ctx: Any, gradient: Tensor, _: Tensor) -> tuple[Tensor | None, ...]:
        states, weight, bias, target, normaliser, softmax = ctx.saved_tensors
        to_states, to_weight, to_bias = ctx.needs_input_grad[:3]
        low, bias_ = weight.to(ctx.dtype), None if bias is None else bias.to(ctx.dtype)
        d_states = torch.empty_like(states) if to_states else None
        d_weight = None
        if to_weight and ctx.in_place:
            d_weight = weight.grad = torch.zeros_like(weight) if weight.grad is None else weight.grad
        elif to_weight:
            d_weight = torch.zeros_like(weight, dtype=torch.float32)
        d_bias = torch.zeros_like(bias, dtype=torch.float32) if to_bias else None
        buffer = _buffer(states, weight, ctx.chunk)
        for begin in range(0, len(states), ctx.chunk):
            part = slice(begin, begin + ctx.chunk)
            h, g = states[part].to(ctx.dtype), (gradient[part].float() / ctx.temperature)[:, None]
            d = buffer[: len(h)]
            if softmax is not None:
                torch.mul(softmax, -g, out=d)
            else:
                _logits(h, low, bias_, ctx.temperature, out=d)
                d.sub_(normaliser[part, None]).exp_().mul_(-g)
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
            None if d_weight is None or ctx.in_place else d_weight.to(weight.dtype),
            None if bias is None or d_bias is None else d_bias.to(bias.dtype),
            *(None,) * 5,
        )


def token_scores(
    head: nn.Module | None, states: Tensor, target: Tensor, *, temperature: float, chunk: int, in_place: bool = False
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
            return _Scores.apply(states, head.weight, head.bias, target, temperature, size, dtype, in_place)
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


def takes_gradients(weight: Tensor) -> bool:
    """Whether what is added to the `grad` of this weight past autograd is all that autograd would do: nothing watches it."""
    watched: Any = weight._backward_hooks or getattr(weight, "_post_accumulate_grad_hooks", None)
    return weight.requires_grad and weight.is_leaf and weight.dtype == torch.float32 and not watched


def _chunk_scores(head: nn.Module | None, states: Tensor, target: Tensor, temperature: float) -> tuple[Tensor, Tensor]:
    logits = (states if head is None else head(states)).float() / temperature
    normaliser = torch.logsumexp(logits, dim=-1)
    logp = logits.gather(-1, target[:, None]).squeeze(-1) - normaliser
    with torch.no_grad():
        detached = logits.detach()
        entropy = normaliser.detach() - (torch.softmax(detached, -1) * detached).sum(-1)
    return logp, entropy
