"""The fast path: Llama, Qwen2 and Qwen3 layers computed from their weights, without going through their modules.

On a CPU a small model spends a fifth of its time in the bookkeeping of modules; this steps around it. It reads the
modules' own parameters, so there is nothing to refresh when they change. Its slow, obvious twin is `forward.ModelForward`.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import linear, rms_norm

from skpo.rollout.embedded.attention import Pass

_FAMILIES = {
    ("transformers.models.llama.modeling_llama", "LlamaForCausalLM"),
    ("transformers.models.qwen2.modeling_qwen2", "Qwen2ForCausalLM"),
    ("transformers.models.qwen3.modeling_qwen3", "Qwen3ForCausalLM"),
}


def recognised(model: nn.Module) -> bool:
    """True where `LeanForward` computes what the model's own forward does: one of the families, unwrapped, without hooks,
    adapters, quantised weights, replaced methods or several devices. Asked at every run, since any of these can change."""
    if (type(model).__module__, type(model).__name__) not in _FAMILIES:
        return False
    devices = {p.device for p in model.parameters()}
    return len(devices) == 1 and all(map(_untouched, model.modules()))


def _untouched(module: nn.Module) -> bool:
    """No hooks, no method of its own, no class from outside torch and transformers, plain parameters."""
    home = type(module).__module__
    return (
        home.startswith(("torch.nn.modules.", "transformers.models.", "transformers.activations"))
        and not module._forward_hooks
        and not module._forward_pre_hooks
        and "forward" not in module.__dict__
        and all(type(p) is nn.Parameter and p.is_floating_point() for p in module._parameters.values() if p is not None)
    )


class LeanForward:
    """`ModelForward` for a `recognised` model."""

    def __init__(self, model: Any) -> None:
        self._head, self._embed = model.lm_head, model.model.embed_tokens
        self._layers = list(model.model.layers)
        self._norm, self._rotary = model.model.norm, model.model.rotary_emb

    def __call__(self, forward: Pass, tokens: Tensor, positions: Tensor, keep: Tensor | None = None) -> Tensor:
        """See `ModelForward`: logits [K, V] for packed tokens and positions, int64 [N]."""
        x = self._embed.weight[tokens]  # [N, width]
        cos, sin = self._rotary(x, positions[None])
        half = sin.shape[-1] // 2
        angles = (cos[0, :, None], torch.cat((-sin[0, :, None, :half], sin[0, :, None, half:]), -1))  # each [N, 1, D]
        for i, layer in enumerate(self._layers):
            x = x.add_(_attention(layer.self_attn, i, _norm(layer.input_layernorm, x), forward, angles))
            x = x.add_(_mlp(layer.mlp, _norm(layer.post_attention_layernorm, x)))
        x = x if keep is None else x[keep]
        return linear(_norm(self._norm, x), self._head.weight, self._head.bias)


def _norm(module: Any, x: Tensor) -> Tensor:
    if x.dtype == torch.float32:
        return rms_norm(x, x.shape[-1:], module.weight, module.variance_epsilon)
    y = x.float()  # rounded before the weight, as the modules do
    y = y * torch.rsqrt(y.square().mean(-1, keepdim=True) + module.variance_epsilon)
    return module.weight * y.to(x.dtype)


def _attention(module: Any, index: int, x: Tensor, forward: Pass, angles: tuple[Tensor, Tensor]) -> Tensor:
    """x: [N, width], normalised. Returns [N, width]."""
    count, dim = x.shape[0], module.head_dim
    q, k, v = (linear(x, p.weight, p.bias).view(count, -1, dim) for p in (module.q_proj, module.k_proj, module.v_proj))
    if hasattr(module, "q_norm"):
        q, k = _norm(module.q_norm, q), _norm(module.k_norm, k)
    q, k = _rotate(q, *angles), _rotate(k, *angles)
    out = forward.attend(index, q, k, v, module.scaling, getattr(module, "sliding_window", None))
    return linear(out.reshape(count, -1), module.o_proj.weight, module.o_proj.bias)


def _rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotary positions. x: [N, heads, D]; cos, sin: [N, 1, D], the first half of sin negated."""
    half = x.shape[-1] // 2
    return (x * cos).addcmul_(torch.cat((x[..., half:], x[..., :half]), -1), sin)


def _mlp(module: Any, x: Tensor) -> Tensor:
    gate = module.act_fn(linear(x, module.gate_proj.weight, module.gate_proj.bias))
    up = linear(x, module.up_proj.weight, module.up_proj.bias)
    return linear(gate.mul_(up), module.down_proj.weight, module.down_proj.bias)
