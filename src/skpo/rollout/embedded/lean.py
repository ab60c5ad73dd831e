"""The fast path: Llama, Qwen2 and Qwen3 layers computed from their weights, without going through their modules.

It steps around the modules' bookkeeping and, on a CPU, multiplies with packed weights (`dense`). Weights are packed anew
at the start of every run. Its slow, obvious twin is `forward.ModelForward`.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import rms_norm

from skpo.rollout.embedded.attention import Pass
from skpo.rollout.embedded.dense import dense

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
    """`ModelForward` for a `recognised` model, with its weights as they are now."""

    def __init__(self, model: Any) -> None:
        self._embed, self._rotary = model.model.embed_tokens, model.model.rotary_emb
        self._layers = [_Layer(layer, i) for i, layer in enumerate(model.model.layers)]
        self._norm, self._head = model.model.norm, dense([model.lm_head])

    def __call__(self, forward: Pass, tokens: Tensor, positions: Tensor, keep: Tensor | None = None) -> Tensor:
        """See `ModelForward`: logits [K, V] for packed tokens and positions, int64 [N]."""
        x = self._embed.weight[tokens]  # [N, width]
        cos, sin = self._rotary(x, positions[None])
        half = sin.shape[-1] // 2
        sin = torch.cat((-sin[0, :, None, :half], sin[0, :, None, half:]), -1)
        for layer in self._layers:
            x = layer(x, forward, cos[0, :, None], sin)
        x = x if keep is None else x[keep]
        return self._head(_norm(self._norm, x))[0]


class _Layer:
    """One decoder layer."""

    def __init__(self, layer: Any, index: int) -> None:
        attention, mlp = layer.self_attn, layer.mlp
        self._index, self._dim, self._scale = index, attention.head_dim, attention.scaling
        self._window = getattr(attention, "sliding_window", None)
        self._norms = layer.input_layernorm, layer.post_attention_layernorm
        self._head_norms = getattr(attention, "q_norm", None), getattr(attention, "k_norm", None)
        self._qkv = dense([attention.q_proj, attention.k_proj, attention.v_proj])
        self._out, self._down = dense([attention.o_proj]), dense([mlp.down_proj])
        self._gate_up, self._act = dense([mlp.gate_proj, mlp.up_proj]), mlp.act_fn

    def __call__(self, x: Tensor, forward: Pass, cos: Tensor, sin: Tensor) -> Tensor:
        """x: [N, width], overwritten. cos, sin: [N, 1, head_dim], the first half of sin negated. Returns [N, width]."""
        count = x.shape[0]
        q, k, v = (y.view(count, -1, self._dim) for y in self._qkv(_norm(self._norms[0], x)))
        q, k = (y if norm is None else _norm(norm, y) for norm, y in zip(self._head_norms, (q, k), strict=True))
        q, k = _rotate(q, cos, sin), _rotate(k, cos, sin)
        out = forward.attend(self._index, q, k, v, self._scale, self._window)
        x = x.add_(self._out(out.reshape(count, -1))[0])
        gate, up = self._gate_up(_norm(self._norms[1], x))
        return x.add_(self._down(self._act(gate).mul_(up))[0])


def _norm(module: Any, x: Tensor) -> Tensor:
    if x.dtype == torch.float32:
        return rms_norm(x, x.shape[-1:], module.weight, module.variance_epsilon)
    y = x.float()  # rounded before the weight, as the modules do
    y = y * torch.rsqrt(y.square().mean(-1, keepdim=True) + module.variance_epsilon)
    return module.weight * y.to(x.dtype)


def _rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotary positions. x: [N, heads, head_dim]."""
    half = x.shape[-1] // 2
    return (x * cos).addcmul_(torch.cat((x[..., half:], x[..., :half]), -1), sin)
