"""Running the model over one pass: through the model's own modules, or by the fast path where it is recognised.

The first works for every causal language model whose layers call transformers' attention interface (LoRA included).
"""

from __future__ import annotations

import contextlib
import inspect
from collections.abc import Iterator
from typing import Any

from torch import Tensor, nn

from skpo.errors import ModelError
from skpo.rollout.embedded import attention
from skpo.rollout.embedded.lean import LeanForward, recognised

_LAYER_TYPES = {"full_attention", "sliding_attention", None}


class ModelForward:
    """The model's forward over a pass. `lean=False` never takes the fast path. Raises ModelError for models whose attention can't be computed over rows."""

    def __init__(self, model: nn.Module, *, lean: bool = True) -> None:
        self.model = model
        self._allow_lean = lean
        self._lean: LeanForward | None = None
        attention.register()
        unwrap: Any = getattr(model, "get_base_model", None)  # PEFT
        base: Any = unwrap() if unwrap is not None else model
        self.config: Any = base.config.get_text_config()
        self._configs = _distinct_configs(model)
        self._few_logits = "logits_to_keep" in inspect.signature(base.forward).parameters
        types = set(getattr(self.config, "layer_types", None) or [None])
        if types - _LAYER_TYPES or getattr(base, "_is_stateful", False):
            raise ModelError(
                f"{type(base).__name__} has layers that the embedded engine can't run "
                f"({', '.join(sorted(map(str, types - _LAYER_TYPES))) or 'recurrent state'}); use engine: vllm"
            )

    @property
    def max_positions(self) -> int | None:
        """Longest sequence that the model's positions allow, in tokens; None: no limit known."""
        rope = getattr(self.config, "rope_parameters", None) or {}
        limits = [getattr(self.config, "max_position_embeddings", None)]
        if rope.get("rope_type") in ("dynamic", "longrope"):
            # past this length the angles of every token depend on the whole length, so no cache is exact
            limits.append(rope.get("original_max_position_embeddings"))
        return min((n for n in limits if n), default=None)

    def __call__(
        self, forward: attention.Pass, tokens: Tensor, positions: Tensor, keep: Tensor | None = None
    ) -> Tensor:
        """Logits [K, V] of the tokens at indices `keep` (int64 [K]; None: all), for packed tokens and positions, int64 [N]."""
        if self._lean is not None:
            return self._lean(forward, tokens, positions, keep)
        some = {"logits_to_keep": keep} if keep is not None and self._few_logits else {}
        with attention.active(forward):
            out = self.model(
                input_ids=tokens[None], position_ids=positions[None], use_cache=False, return_dict=True, **some
            )
        logits = out.logits[0]
        return logits[keep] if keep is not None and not some else logits

    def refresh(self) -> None:
        """Look at the model anew, at the start of a run: weights, hooks or adapters may have changed since the last."""
        self._lean = LeanForward(self.model) if self._allow_lean and recognised(self.model) else None

    def forget(self) -> None:
        """Free what `refresh` made."""
        self._lean = None

    @contextlib.contextmanager
    def serving(self) -> Iterator[None]:
        """Evaluation mode and this engine's attention within; modes and settings are as found afterwards."""
        if self._lean is not None:  # it asks neither for modes nor for the attention implementation
            yield
            return
        training = [m for m in self.model.modules() if m.training]
        implementations = [(c, c._attn_implementation) for c in self._configs]
        try:
            for module in training:
                module.training = False
            for config, _ in implementations:
                config._attn_implementation = attention.NAME
            yield
        finally:
            for config, name in implementations:
                config._attn_implementation = name
            for module in training:
                module.training = True


def _distinct_configs(model: nn.Module) -> list[Any]:
    """The configuration objects that the model's layers read their attention implementation from."""
    from transformers import PreTrainedConfig

    found = {id(c): c for m in model.modules() if isinstance(c := getattr(m, "config", None), PreTrainedConfig)}
    return list(found.values())
