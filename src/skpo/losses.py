"""Pure pieces that losses are made of: ratios, clips, KL estimators, aggregations, sampler-trainer correction.

Everything here returns terms to be *maximised*; an algorithm's loss is the negative of their aggregate. Shapes: N rows,
T token positions. Rows are padded on the right; `mask` (never a token value) says what is trained.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields, replace
from typing import Any, Literal

import torch
from torch import Tensor

Aggregation = Literal["token-mean", "seq-mean", "seq-sum", "constant"]
Correction = Literal["tis", "mis", "icepop"]
ALL_ROLES = (0, 1, 2)  #: completion, segment, refinement


@dataclass(frozen=True)
class Totals:
    """Denominators of the whole optimiser batch, by role: across micro-batches and across processes.

    tokens[role]: trained tokens; sequences[role]: rows with at least one trained token.
    """

    tokens: Mapping[int, float]
    sequences: Mapping[int, float]

    def count(self, roles: tuple[int, ...] = ALL_ROLES) -> tuple[float, float]:
        """(trained tokens, sequences) of the given roles; 1 where there are none, so that an empty sum stays 0."""
        tokens = sum(self.tokens.get(r, 0.0) for r in roles)
        sequences = sum(self.sequences.get(r, 0.0) for r in roles)
        return max(tokens, 1.0), max(sequences, 1.0)


@dataclass
class TokenBatch:
    """One optimiser batch (or a micro-batch of it), padded. All tensors are float but `group`, `role` and `step`.

    reward [N]; group [N] int; role [N] int (0 completion, 1 segment, 2 refinement); baseline [N], in the reward's range;
    logp, old_logp, mask [N, T]. Optional: ref_logp, entropy, old_entropy, sampler_logp [N, T]; accuracy, a float.
    `totals` holds the whole batch's denominators when this is a micro-batch; None: this batch is the whole. `correction` weights
    every policy term by how the trainer's old policy differs from the sampler (`sampler_logp`); None: not at all.

    What token-level advantages are made from, [N, T], in whole batches only: token_reward, paid at each token; value, of the state
    before each token (a critic's, or estimated at the start of its step); step (int), the number of the step that each token is in.
    """

    reward: Tensor
    group: Tensor
    role: Tensor
    baseline: Tensor
    logp: Tensor
    old_logp: Tensor
    mask: Tensor
    ref_logp: Tensor | None = None
    entropy: Tensor | None = None
    old_entropy: Tensor | None = None
    sampler_logp: Tensor | None = None
    accuracy: float | None = None
    totals: Totals | None = None
    correction: Correction | None = None
    token_reward: Tensor | None = None
    value: Tensor | None = None
    step: Tensor | None = None

    @property
    def lengths(self) -> Tensor:
        """Trained tokens of each row, [N]."""
        return self.mask.sum(-1)

    def denominators(self) -> Totals:
        """The whole optimiser batch's denominators (this batch's own if it is the whole)."""
        return self.totals if self.totals is not None else count_totals(self.role, self.lengths)

    def rows(self, index: Tensor) -> TokenBatch:
        """The rows that `index` (integers or booleans, [N]) picks; `accuracy` and `totals` stay the whole batch's."""
        picked: dict[str, Any] = {
            f.name: v[index] for f in fields(self) if isinstance(v := getattr(self, f.name), Tensor)
        }
        return replace(self, **picked, totals=self.denominators())


def count_totals(role: Tensor, lengths: Tensor) -> Totals:
    """Denominators from roles [N] and trained lengths [N]."""
    tokens = {r: float(lengths[role == r].sum()) for r in ALL_ROLES}
    sequences = {r: float((lengths[role == r] > 0).sum()) for r in ALL_ROLES}
    return Totals(tokens, sequences)


def per_token(advantages: Tensor) -> Tensor:
    """Advantages [N] or [N, T] in a shape that multiplies token terms: [N, 1] or [N, T]."""
    return advantages[:, None] if advantages.dim() == 1 else advantages


# ---- ratios -------------------------------------------------------------------------------------------------------


def token_ratio(logp: Tensor, old_logp: Tensor) -> Tensor:
    """r = exp(clamp(logp - old_logp, -20, 20)), [N, T]."""
    return (logp - old_logp).clamp(-20, 20).exp()


def masked_mean(values: Tensor, mask: Tensor) -> Tensor:
    """Mean of each row's masked values, [N]; 0 for a row without any."""
    return (values * mask).sum(-1) / mask.sum(-1).clamp(min=1)


def sequence_ratio(logp: Tensor, old_logp: Tensor, mask: Tensor) -> Tensor:
    """Geometric-mean sequence ratio s_i = exp(mean_t(logp - old_logp)), [N] (GSPO, arXiv 2507.18071)."""
    return masked_mean(logp - old_logp, mask).clamp(-20, 20).exp()


def carried_sequence_ratio(logp: Tensor, old_logp: Tensor, mask: Tensor) -> Tensor:
    """Value s_i, gradient through the token alone: sg[s_i] * exp(logp - sg[logp]), [N, T] (GSPO-token)."""
    return sequence_ratio(logp, old_logp, mask).detach()[:, None] * (logp - logp.detach()).exp()


# ---- clips --------------------------------------------------------------------------------------------------------


def min_clip(ratio: Tensor, advantages: Tensor, low: float, high: float) -> Tensor:
    """min(r A, clip(r, 1 - low, 1 + high) A) (PPO, arXiv 1707.06347)."""
    return torch.minimum(ratio * advantages, ratio.clamp(1 - low, 1 + high) * advantages)


def min_clipped(ratio: Tensor, advantages: Tensor, low: float, high: float) -> Tensor:
    """1 where the minimum-clip cuts the gradient off, else 0."""
    return (((ratio < 1 - low) & (advantages < 0)) | ((ratio > 1 + high) & (advantages > 0))).to(ratio.dtype)


def weighted_logp(ratio: Tensor, advantages: Tensor, logp: Tensor, low: float, high: float) -> Tensor:
    """sg[clip(r, 1 - low, 1 + high)] * A * logp: every token keeps a gradient (CISPO, arXiv 2506.13585)."""
    return ratio.detach().clamp(1 - low, 1 + high) * advantages * logp


# ---- Kullback-Leibler ---------------------------------------------------------------------------------------------


def kl_estimate(logp: Tensor, ref_logp: Tensor, kind: Literal["k1", "k2", "k3"] = "k3") -> Tensor:
    """Per-token estimate of KL(policy || reference) from the sampled token, with d = clamp(ref - logp, -20, 20)."""
    d = (ref_logp - logp).clamp(-20, 20)
    if kind == "k1":
        return -d
    if kind == "k2":
        return d.square() / 2
    return d.exp() - d - 1


def rising_tanh(accuracy: float) -> float:
    """(tanh(accuracy) + 1) / 2: 0.5 at accuracy 0, 0.8808 at 1 (EXPO, arXiv 2605.09923)."""
    return (math.tanh(accuracy) + 1) / 2


def accuracy_kl(batch: TokenBatch, beta: float, shape: Callable[[float], float] = rising_tanh) -> Tensor:
    """Accuracy-conditioned KL (AKL; EXPO, arXiv 2605.09923), a scalar to *minimise*: beta * shape(accuracy) * token mean of k3.

    `batch.accuracy` is the mean correctness of the step's rollouts, a number without gradient; `shape` may be any bounded positive
    non-decreasing function of it. Needs `ref_logp`. Raises ValueError without an accuracy or a reference.
    """
    if batch.accuracy is None or batch.ref_logp is None:
        raise ValueError("the accuracy-conditioned KL needs batch.accuracy and batch.ref_logp")
    kl = aggregate(kl_estimate(batch.logp, batch.ref_logp), batch, "token-mean", corrected=False)
    return beta * shape(batch.accuracy) * kl


# ---- aggregation --------------------------------------------------------------------------------------------------


def aggregate(
    terms: Tensor,
    batch: TokenBatch,
    how: Aggregation,
    *,
    length: float | None = None,
    roles: tuple[int, ...] = ALL_ROLES,
    corrected: bool = True,
) -> Tensor:
    """Aggregate token terms [N, T] over the whole optimiser batch; a micro-batch gives its share of the sum.

    token-mean: sum / trained tokens; seq-mean: mean over sequences of the mean over their tokens; seq-sum: mean over
    sequences of the sum over theirs; constant: sum / (sequences * length). Only rows with a role in `roles` count.
    Where the batch has a `correction`, terms are weighted by it; `corrected=False` for what is no policy term (KL penalties,
    value losses, metrics).
    """
    tokens, sequences = batch.denominators().count(roles)
    mask = batch.mask * has_role(batch, roles)[:, None]
    if corrected and batch.correction is not None:
        terms = terms * sampler_correction(*_old_and_sampler(batch), batch.correction)
    terms = torch.where(mask > 0, terms, torch.zeros_like(terms))
    if how == "token-mean":
        return terms.sum() / tokens
    if how == "seq-mean":
        return (terms.sum(-1) / batch.lengths.clamp(min=1)).sum() / sequences
    if how == "seq-sum":
        return terms.sum() / sequences
    if length is None:
        raise ValueError("aggregation 'constant' needs a length")
    return terms.sum() / (sequences * length)


def sequence_mean(terms: Tensor, batch: TokenBatch, *, corrected: bool = True) -> Tensor:
    """Mean of sequence terms [N] over the whole optimiser batch's sequences (rows with a trained token); `corrected` as in
    `aggregate`, with the sequence's own correction."""
    _, sequences = batch.denominators().count()
    if corrected and batch.correction is not None:
        terms = terms * sequence_correction(*_old_and_sampler(batch), batch.mask, batch.correction)
    return (terms * (batch.lengths > 0)).sum() / sequences


def has_role(batch: TokenBatch, roles: tuple[int, ...]) -> Tensor:
    """1 for rows whose role is in `roles`, [N], in the mask's dtype."""
    return sum((batch.role == r).to(batch.mask.dtype) for r in roles)  # type: ignore[return-value]


def share(flags: Tensor, batch: TokenBatch, roles: tuple[int, ...] = ALL_ROLES) -> float:
    """Share of the whole batch's trained tokens that `flags` [N, T] marks; shares of micro-batches add up."""
    return float(aggregate(flags.detach(), batch, "token-mean", roles=roles, corrected=False))


# ---- a sampler that is not the trainer ----------------------------------------------------------------------------

CORRECTIONS: Mapping[str, tuple[float, float]] = {"tis": (0.0, 2.0), "mis": (0.5, 2.0), "icepop": (0.5, 5.0)}


def sampler_correction(old_logp: Tensor, sampler_logp: Tensor, kind: Correction) -> Tensor:
    """rho = pi_trainer_old / pi_sampler, detached, [N, T]: `tis` min(rho, 2); `mis` rho in [0.5, 2] else 0; `icepop` rho in [0.5, 5] else 0."""
    return _bounded(token_ratio(old_logp, sampler_logp).detach(), kind)


def sequence_correction(old_logp: Tensor, sampler_logp: Tensor, mask: Tensor, kind: Correction) -> Tensor:
    """The correction of an objective whose action is the whole sequence, [N]: the geometric mean of the tokens' rho, within the same
    bounds as `sampler_correction` [ours; the product of all rho would leave any bounds within a few hundred tokens]."""
    return _bounded(sequence_ratio(old_logp, sampler_logp, mask).detach(), kind)


def _bounded(rho: Tensor, kind: Correction) -> Tensor:
    low, high = CORRECTIONS[kind]
    if kind == "tis":
        return rho.clamp(max=high)
    return torch.where((rho >= low) & (rho <= high), rho, torch.zeros_like(rho))


def _old_and_sampler(batch: TokenBatch) -> tuple[Tensor, Tensor]:
    if batch.sampler_logp is None:
        raise ValueError("a sampler-trainer correction needs batch.sampler_logp, the sampler's own log-probabilities")
    return batch.old_logp, batch.sampler_logp
