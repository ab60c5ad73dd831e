"""Log-probabilities of sampled tokens under a policy, with gradient: what the trainer scores with.

Two layouts of a micro-batch give the same numbers. *Shared*: rows with the same context share one pass of it, and of the sampled tokens
that they begin with, and nothing is padded (`skpo.policy.shared_prefix`); for models whose attention allows it. *Padded*: one row after the other, padded on the right and never
attended past their own tokens (causal attention sees only what came before), so no attention mask is needed. Only completion
positions get logits, in chunks that are recomputed in the backward pass: peak memory does not grow with the number of positions
times the vocabulary.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor, nn

from skpo.errors import ModelError
from skpo.policy import shared_prefix
from skpo.policy.budget import Row, micro_batches
from skpo.policy.head import plain, takes_gradients, token_scores
from skpo.policy.shared_prefix import SharedPrefix

#: Configuration fields of models that change logits after the output head; they are scored through the model's own head code.
_SCALED_HEADS = ("final_logit_softcapping", "logit_scale", "logits_scaling", "logits_soft_cap")
LOGITS = 1 << 24  #: logits (positions x vocabulary) that exist at one time: 64 MiB in float32


@dataclass
class PackedRows:
    """Rows of one micro-batch on a device.

    input_ids: context and sampled tokens. Padded: [B, L], one row after the other, padded on the right with any id. Shared: [1, N], as
    `shared` says. place [M]: index in `input_ids`, flattened, of the position that *predicts* each sampled token; target [M]: the
    token. T is the longest sampled length; cell [M] is the flat index (row * T + t) of each token in the padded [B, T] form.
    """

    input_ids: Tensor
    place: Tensor
    target: Tensor
    cell: Tensor
    shape: tuple[int, int]
    shared: SharedPrefix | None = None

    @staticmethod
    def from_rows(
        rows: Sequence[Row], device: torch.device | str = "cpu", pad: int = 0, *, share: bool = False
    ) -> PackedRows:
        """Rows with at least one sampled token each; `share`: in the shared layout."""
        longest = max(len(t) for _, t in rows)
        target = np.concatenate([np.asarray(t, dtype=np.int64) for _, t in rows])
        cell = np.concatenate([np.arange(len(t)) + i * longest for i, (_, t) in enumerate(rows)])
        if share:
            ids, place, layout = shared_prefix.lay_out(rows, device)
        else:
            ids, place = _padded(rows, pad, device)
            layout = None
        shape = (len(rows), longest)
        return PackedRows(
            ids, place, torch.from_numpy(target).to(device), torch.from_numpy(cell).to(device), shape, layout
        )

    @property
    def inputs(self) -> tuple[Tensor, Tensor, Tensor, SharedPrefix | None]:
        """Arguments of a `ScoringModel`."""
        return self.input_ids, self.place, self.target, self.shared

    def padded(self, values: Tensor) -> Tensor:
        """Values of the sampled tokens [M] in the padded form [B, T], 0 elsewhere."""
        b, t = self.shape
        return torch.zeros(b * t, dtype=values.dtype, device=values.device).index_put((self.cell,), values).view(b, t)


def _padded(rows: Sequence[Row], pad: int, device: torch.device | str) -> tuple[Tensor, Tensor]:
    """(input_ids [B, L], place [M]) of the padded layout."""
    width = max(len(c) + len(t) for c, t in rows)
    ids = np.full((len(rows), width), pad, dtype=np.int64)
    place = []
    for i, (context, tokens) in enumerate(rows):
        n, m = len(context), len(tokens)
        ids[i, :n] = context
        ids[i, n : n + m] = tokens
        place.append(np.arange(n - 1, n - 1 + m) + i * width)
    return torch.from_numpy(ids).to(device), torch.from_numpy(np.concatenate(place)).to(device)


class ScoringModel(nn.Module):
    """A causal LM whose forward pass gives log-probabilities: this is what Accelerate wraps (DDP, FSDP2).

    The temperature is the sampler's: logits are divided by it before the softmax. Everything after the head is float32. chunk: logits
    that exist at one time. share: whether rows may be given in the shared layout. "auto" tries it here on a few tokens, and
    `padded_because` says what is in the way, if anything; True raises ModelError then; False leaves the model as it is. in_place: the
    backward pass adds the gradients of output head and, where it is tied to it, of the embedding to `grad` in place. Autograd makes a
    matrix of the vocabulary for each, beside the one that is there. Not for models whose gradients are watched (DDP), nor for
    `torch.autograd.grad`.
    """

    def __init__(
        self,
        model: nn.Module,
        *,
        temperature: float = 1.0,
        chunk: int = LOGITS,
        share: bool | Literal["auto"] = "auto",
        in_place: bool = False,
    ) -> None:
        super().__init__()
        self.model = model
        self.temperature = temperature
        self.chunk = chunk
        self.in_place = in_place
        self.padded_because: str | None = "it is switched off"
        self.window = float("inf")  #: longest row that sliding windows leave whole, in tokens
        if share:
            self.padded_because = self._try_sharing()
            if self.padded_because and share is True:
                raise ModelError(
                    f"optimizer.shared_prefix=true, but rows of {type(self._base()).__name__} can't share a prefix: "
                    f"{self.padded_because}. Use shared_prefix: auto"
                )

    def forward(
        self, input_ids: Tensor, place: Tensor, target: Tensor, shared: SharedPrefix | None = None
    ) -> tuple[Tensor, Tensor]:
        """(log-probability, entropy) of each sampled token, both float32 [M]; the entropy (over the full vocabulary, in nats)
        carries no gradient. Arguments as in `PackedRows`."""
        head: Any = self._head()
        same = shared.same if shared is not None else None
        if shared is not None and shared.distinct is not None:
            place, target = place[shared.distinct], target[shared.distinct]
        options = {"use_cache": False, **shared_prefix.arguments(shared)}
        in_place = False
        if head is None:
            logits = self.model(input_ids=input_ids, **options).logits
            states = logits.view(-1, logits.shape[-1])[place]
        else:
            in_place = self.in_place and plain(head) and takes_gradients(head.weight)
            with self._sparse_gradient(head) if in_place else nullcontext():
                hidden = self._decoder()(input_ids=input_ids, **options)[0]
            states = hidden.reshape(-1, hidden.shape[-1])[place]
        logp, entropy = token_scores(
            head, states, target, temperature=self.temperature, chunk=self.chunk, in_place=in_place
        )
        if same is not None:
            logp, entropy = logp.index_select(0, same), entropy.index_select(0, same)
        return logp, entropy

    def shares(self, rows: Sequence[Row]) -> bool:
        """Whether these rows may be given in the shared layout."""
        longest = max((len(c) + len(t) for c, t in rows), default=0)
        return self.padded_because is None and longest <= self.window

    @contextmanager
    def _sparse_gradient(self, head: Any) -> Iterator[None]:
        """The embedding looks tokens up so that its gradient holds their rows alone, where that is added to a dense one: the tied head's,
        whose backward pass runs first, or that of an earlier pass."""
        embedding = self._base().get_input_embeddings()
        if (
            type(embedding) is not nn.Embedding
            or embedding.scale_grad_by_freq  # not for sparse gradients
            or not takes_gradients(embedding.weight)
        ):
            yield
            return
        before = embedding.sparse
        embedding.sparse = before or embedding.weight is head.weight or embedding.weight.grad is not None
        try:
            yield
        finally:
            embedding.sparse = before

    def _try_sharing(self) -> str | None:
        """Switch the model's attention to one that can share prefixes, and compare both layouts; what is in the way, or None."""
        config = self._config()
        self.window = _window(config)
        configs = [c for c in _configs(self.model) if c._attn_implementation != shared_prefix.NAME]
        if any(c._attn_implementation != "sdpa" for c in configs):
            return f"its attention is {config._attn_implementation}, not sdpa"
        decoder = self._decoder() if self._head() is not None else self._base()
        if "position_ids" not in inspect.signature(decoder.forward).parameters:
            return "it takes no position ids"
        shared_prefix.register()
        for c in configs:
            c._attn_implementation = shared_prefix.NAME
        because = self._compare(config)
        if because is not None:
            for c in configs:
                c._attn_implementation = "sdpa"
        return because

    @torch.no_grad()
    def _compare(self, config: Any) -> str | None:
        rows: list[Row] = [
            ((1, 2, 3, 4, 5), (6, 7, 8)),
            ((9, 8), (7,)),
            ((1, 2, 3, 4, 5), (3, 1, 2, 5)),
            ((1, 2, 3, 4, 5), (3, 1, 4)),
            ((9, 8), (1, 2)),
        ]
        top = min(config.vocab_size - 1, 10)
        rows = [([min(x, top) for x in c], [min(x, top) for x in t]) for c, t in rows]
        device = next(self.model.parameters()).device
        both = [PackedRows.from_rows(rows, device, share=share) for share in (False, True)]
        try:
            plain, shared = (self(*packed.inputs)[0] for packed in both)
        except Exception as error:
            return f"its forward pass fails ({type(error).__name__}: {error})"
        layout = both[1].shared
        assert layout is not None
        if layout.calls != config.num_hidden_layers:
            return "not all of its layers use transformers' attention interface"
        low = next(self.model.parameters()).dtype in (torch.bfloat16, torch.float16)
        gap = float((plain - shared).abs().max())
        if not gap <= (0.2 if low else 1e-3):
            return f"log-probabilities differ by {gap:.2g}"
        return None

    def _base(self) -> Any:
        model: Any = self.model
        return model.get_base_model() if hasattr(model, "get_base_model") else model

    def _config(self) -> Any:
        config = self._base().config
        return config.get_text_config() if hasattr(config, "get_text_config") else config

    def _decoder(self) -> Any:
        base = self._base()
        return getattr(base, base.base_model_prefix)

    def _head(self) -> nn.Module | None:
        """The output projection, or None where the model does more than project (then its own code makes the logits)."""
        base = self._base()
        if any(getattr(self._config(), name, None) not in (None, 1.0) for name in _SCALED_HEADS):
            return None
        head = base.get_output_embeddings() if hasattr(base, "get_output_embeddings") else None
        prefix = getattr(base, "base_model_prefix", "")
        return head if head is not None and prefix and getattr(base, prefix, base) is not base else None


def _configs(model: nn.Module) -> list[Any]:
    """The configuration objects that the model's layers read their attention implementation from."""
    from transformers import PreTrainedConfig

    found = {id(c): c for m in model.modules() if isinstance(c := getattr(m, "config", None), PreTrainedConfig)}
    return list(found.values())


def _window(config: Any) -> float:
    """Longest row that no layer's sliding window or chunk cuts, in tokens."""
    kinds = getattr(config, "layer_types", None) or []
    local = any(kind != "full_attention" for kind in kinds) if kinds else True
    sizes = [getattr(config, name, None) for name in ("sliding_window", "attention_chunk_size")] if local else []
    return min((n for n in sizes if n), default=float("inf"))


def shares(model: nn.Module, rows: Sequence[Row]) -> bool:
    """Whether a `ScoringModel`, or what stands for one, or a wrapper of either, takes these rows in the shared layout."""
    scorer: Any = model
    while not hasattr(scorer, "shares") and hasattr(scorer, "module"):
        scorer = scorer.module
    return bool(scorer.shares(rows)) if hasattr(scorer, "shares") else False


@torch.no_grad()
def score_rows(
    model: nn.Module, rows: Sequence[Row], *, device: torch.device | str, budget: int
) -> tuple[list[np.ndarray], list[np.ndarray]]:
    """(log-probabilities, entropies) of each row's sampled tokens, float32 arrays of the row's length, without gradient.

    model: a `ScoringModel` (or its wrapper). Rows without sampled tokens give empty arrays.
    """
    logps = [np.zeros(0, np.float32)] * len(rows)
    entropies = [np.zeros(0, np.float32)] * len(rows)
    full = [i for i, (_, tokens) in enumerate(rows) if len(tokens)]
    share = shares(model, rows)
    for batch in micro_batches([rows[i] for i in full], budget, share=share):
        picked = [full[j] for j in batch]
        packed = PackedRows.from_rows([rows[i] for i in picked], device, share=share)
        logp, entropy = model(*packed.inputs)
        splits = np.cumsum([len(rows[i][1]) for i in picked])[:-1]
        for i, a, b in zip(
            picked, np.split(logp.cpu().numpy(), splits), np.split(entropy.cpu().numpy(), splits), strict=True
        ):
            logps[i], entropies[i] = a, b
    return logps, entropies
