"""Log-probabilities of sampled tokens under a policy, with gradient: what the trainer scores with.

Rows are padded on the right and never attended past their own tokens (causal attention sees only what came before), so no
attention mask is needed. Only completion positions get logits, in chunks that are recomputed in the backward pass: peak
memory does not grow with the number of positions times the vocabulary.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

Row = tuple[Sequence[int], Sequence[int]]  #: (context ids, ids of the sampled tokens)

#: Configuration fields of models that change logits after the output head; they are scored through the model's own head code.
_SCALED_HEADS = ("final_logit_softcapping", "logit_scale", "logits_scaling", "logits_soft_cap")
RECOMPUTE_ABOVE = 1 << 24  #: positions x vocabulary above which chunks are recomputed in the backward pass


@dataclass
class PackedRows:
    """Rows of one micro-batch on a device.

    input_ids [B, L]: context and sampled tokens, padded on the right with any id. place [M]: flat index (row * L + position) of the
    position that *predicts* each sampled token; target [M]: the token. T is the longest sampled length; cell [M] is the flat
    index (row * T + t) of each token in the padded [B, T] form.
    """

    input_ids: Tensor
    place: Tensor
    target: Tensor
    cell: Tensor
    shape: tuple[int, int]

    @staticmethod
    def from_rows(rows: Sequence[Row], device: torch.device | str = "cpu", pad: int = 0) -> PackedRows:
        width = max(len(c) + len(t) for c, t in rows)
        longest = max(len(t) for _, t in rows)
        ids = np.full((len(rows), width), pad, dtype=np.int64)
        place, target, cell = [], [], []
        for i, (context, tokens) in enumerate(rows):
            n, m = len(context), len(tokens)
            ids[i, :n] = context
            ids[i, n : n + m] = tokens
            place.append(np.arange(n - 1, n - 1 + m) + i * width)
            target.append(np.asarray(tokens, dtype=np.int64))
            cell.append(np.arange(m) + i * longest)

        def flat(parts: list[np.ndarray]) -> Tensor:
            return torch.from_numpy(np.concatenate(parts)).to(device)

        return PackedRows(torch.from_numpy(ids).to(device), flat(place), flat(target), flat(cell), (len(rows), longest))

    def padded(self, values: Tensor) -> Tensor:
        """Values of the sampled tokens [M] in the padded form [B, T], 0 elsewhere."""
        b, t = self.shape
        return torch.zeros(b * t, dtype=values.dtype, device=values.device).index_put((self.cell,), values).view(b, t)


class ScoringModel(nn.Module):
    """A causal LM whose forward pass gives log-probabilities: this is what Accelerate wraps (DDP, FSDP2).

    The temperature is the sampler's: logits are divided by it before the softmax. Everything after the head is float32.
    """

    def __init__(self, model: nn.Module, *, temperature: float = 1.0, chunk: int = 1024) -> None:
        super().__init__()
        self.model = model
        self.temperature = temperature
        self.chunk = chunk

    def forward(self, input_ids: Tensor, place: Tensor, target: Tensor) -> tuple[Tensor, Tensor]:
        """(log-probability, entropy) of each sampled token, both float32 [M]; the entropy (over the full vocabulary, in nats)
        carries no gradient. Arguments as in `PackedRows`."""
        head = self._head()
        project: nn.Module
        if head is None:
            logits = self.model(input_ids=input_ids, use_cache=False).logits
            states, project = logits.view(-1, logits.shape[-1])[place], nn.Identity()
        else:
            hidden = self._decoder()(input_ids=input_ids, use_cache=False)[0]
            states, project = hidden.reshape(-1, hidden.shape[-1])[place], head
        vocabulary = int(getattr(head, "out_features", states.shape[-1]))
        recompute = torch.is_grad_enabled() and len(place) * vocabulary > RECOMPUTE_ABOVE
        logps, entropies = [], []
        for begin in range(0, len(place), self.chunk):
            part = slice(begin, begin + self.chunk)
            if recompute:
                out = checkpoint(self._score, project, states[part], target[part], use_reentrant=False)
            else:
                out = self._score(project, states[part], target[part])
            logps.append(out[0])
            entropies.append(out[1])
        return torch.cat(logps), torch.cat(entropies)

    def _score(self, project: nn.Module, states: Tensor, target: Tensor) -> tuple[Tensor, Tensor]:
        logits = project(states).float() / self.temperature
        normaliser = torch.logsumexp(logits, dim=-1)
        logp = logits.gather(-1, target[:, None]).squeeze(-1) - normaliser
        with torch.no_grad():
            detached = logits.detach()
            entropy = normaliser.detach() - (torch.softmax(detached, -1) * detached).sum(-1)
        return logp, entropy

    def _base(self) -> Any:
        model: Any = self.model
        return model.get_base_model() if hasattr(model, "get_base_model") else model

    def _decoder(self) -> Any:
        base = self._base()
        return getattr(base, base.base_model_prefix)

    def _head(self) -> nn.Module | None:
        """The output projection, or None where the model does more than project (then its own code makes the logits)."""
        base = self._base()
        config = base.config.get_text_config() if hasattr(base.config, "get_text_config") else base.config
        if any(getattr(config, name, None) not in (None, 1.0) for name in _SCALED_HEADS):
            return None
        head = base.get_output_embeddings() if hasattr(base, "get_output_embeddings") else None
        prefix = getattr(base, "base_model_prefix", "")
        return head if head is not None and prefix and getattr(base, prefix, base) is not base else None


def budget_batches(lengths: Sequence[int], budget: int) -> list[list[int]]:
    """Indices of rows, longest first, in micro-batches of at most `budget` tokens each, padding included.

    A row longer than the budget gets a micro-batch of its own. lengths: tokens of each row, context and sampled.
    """
    order = sorted(range(len(lengths)), key=lambda i: (-lengths[i], i))
    batches: list[list[int]] = []
    for i in order:
        if batches and (len(batches[-1]) + 1) * lengths[batches[-1][0]] <= budget:
            batches[-1].append(i)
        else:
            batches.append([i])
    return batches


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
    for batch in budget_batches([len(rows[i][0]) + len(rows[i][1]) for i in full], budget):
        picked = [full[j] for j in batch]
        packed = PackedRows.from_rows([rows[i] for i in picked], device)
        logp, entropy = model(packed.input_ids, packed.place, packed.target)
        splits = np.cumsum([len(rows[i][1]) for i in picked])[:-1]
        for i, a, b in zip(
            picked, np.split(logp.cpu().numpy(), splits), np.split(entropy.cpu().numpy(), splits), strict=True
        ):
            logps[i], entropies[i] = a, b
    return logps, entropies
