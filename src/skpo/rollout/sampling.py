"""Drawing tokens: counter-based uniforms, top-k and top-p, and inverse-CDF sampling fused over a batch.

The uniform for token `t` of a sample is a hash of (sample seed, t): what a row samples does not depend on which other
rows share its batch. Log-probabilities are those of the distribution really sampled, in float32 at least.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

_BLOCK = 64  # tokens per block of the two-level cumulative sum
_CHUNK = 1 << 20  # scores handled at one time, so that they stay in a CPU's cache
_NUCLEUS = 512  # likeliest tokens tried first for top-p, before the whole vocabulary is sorted

_GOLDEN = 0x9E3779B97F4A7C15 - (
    1 << 64
)  # constants of splitmix64 (Steele, Lea and Flood, OOPSLA 2014), as signed int64
_MIX_1 = 0xBF58476D1CE4E5B9 - (1 << 64)
_MIX_2 = 0x94D049BB133111EB - (1 << 64)


@dataclass
class RowSampling:
    """Per-row settings, tensors [A] on the logits' device: temperature float32 (0: greedy), top_k int64, top_p float64."""

    temperature: Tensor
    top_k: Tensor
    top_p: Tensor


def uniforms(seeds: Tensor, positions: Tensor) -> Tensor:
    """Uniform numbers in [0, 1), float64 [A], for int64 seeds [A] and token positions [A]: splitmix64 in wrapping int64."""
    z = seeds + (positions + 1) * _GOLDEN
    z = (z ^ _shift(z, 30)) * _MIX_1
    z = (z ^ _shift(z, 27)) * _MIX_2
    z = z ^ _shift(z, 31)
    return _shift(z, 11).to(torch.float64) * 2.0**-53


def _shift(z: Tensor, bits: int) -> Tensor:
    """Logical right shift of int64 (torch's is arithmetic)."""
    return (z >> bits) & ((1 << (64 - bits)) - 1)


def sample(
    logits: Tensor, seeds: Tensor, positions: Tensor, settings: RowSampling | None = None
) -> tuple[Tensor, Tensor]:
    """Draw one token per row.

    logits: [A, V], any float type. seeds, positions: int64 [A]. settings: None where every row is at temperature 1
    without truncation (no sort, one pass). Order of the truncations: temperature, top-k, then top-p of what is left.
    Returns tokens int64 [A] and log-probabilities float32 [A] under the truncated distribution; greedy rows give the
    first of the likeliest tokens and log-probability 0. A row of non-finite logits gives a NaN log-probability.
    """
    u = uniforms(seeds, positions)
    rows = max(1, _CHUNK // logits.shape[-1])
    if logits.shape[0] <= rows:
        return _sample_rows(logits, u, settings)
    parts = []
    for start in range(0, logits.shape[0], rows):
        s = slice(start, start + rows)
        part = settings and RowSampling(settings.temperature[s], settings.top_k[s], settings.top_p[s])
        parts.append(_sample_rows(logits[s], u[s], part))
    return torch.cat([p[0] for p in parts]), torch.cat([p[1] for p in parts])


def _sample_rows(logits: Tensor, u: Tensor, settings: RowSampling | None) -> tuple[Tensor, Tensor]:
    """`sample` for rows that fit in one chunk; u: float64 [A]."""
    scores = logits.float()
    if settings is None:
        return draw(scores, u)
    greedy = settings.temperature == 0
    scores = scores / settings.temperature.masked_fill(greedy, 1.0)[:, None]
    cut = ((settings.top_k > 0) | (settings.top_p < 1)) & ~greedy
    if bool(cut.all()):
        scores = truncate(scores, settings.top_k, settings.top_p)
    elif bool(cut.any()):
        rows = cut.nonzero()[:, 0]
        scores[rows] = truncate(scores[rows], settings.top_k[rows], settings.top_p[rows])
    tokens, logp = draw(scores, u)
    if bool(greedy.any()):
        best = scores.max(-1)
        tokens = torch.where(greedy, best.indices, tokens)
        logp = torch.where(greedy & best.values.isfinite(), logp.new_zeros(()), logp)
    return tokens, logp


def draw(scores: Tensor, u: Tensor) -> tuple[Tensor, Tensor]:
    """Inverse-CDF sampling from softmax(scores).

    scores: float32 [A, V], -inf for tokens that can't be drawn. u: float64 [A] in [0, 1).
    Returns tokens int64 [A], never one of probability 0, and log-probabilities float32 [A].
    """
    count, vocab = scores.shape
    blocks = -(-vocab // _BLOCK)
    weights = scores.new_empty(count, blocks * _BLOCK)
    top = scores.amax(-1, keepdim=True)
    torch.sub(scores, top, out=weights[:, :vocab])
    weights[:, vocab:] = -torch.inf
    weights = weights.exp_().view(count, blocks, _BLOCK)
    ends = weights.sum(-1).double().cumsum(-1)  # float64 [A, blocks]: weight up to the end of each block
    total = ends[:, -1]
    # u * total may round up to total: stay below it, so that the block found always has weight
    target = torch.minimum(u * total, torch.nextafter(total, torch.zeros_like(total)))[:, None]
    block = torch.searchsorted(ends, target, right=True).clamp_(max=blocks - 1)
    start = torch.where(block > 0, ends.gather(1, (block - 1).clamp_(min=0)), 0.0)
    inside = weights[torch.arange(count, device=scores.device), block[:, 0]]
    offset = (inside.double().cumsum(-1) + start <= target).sum(-1)
    # the block's own sum may round below its entry in `ends`: then its last token with weight is the one
    last = ((inside > 0) * torch.arange(_BLOCK, device=scores.device)).amax(-1)
    tokens = (block[:, 0] * _BLOCK + torch.minimum(offset, last)).clamp_(max=vocab - 1)
    logp = (scores.gather(1, tokens[:, None]) - top)[:, 0].double() - total.log()
    return tokens, logp.float()


def truncate(scores: Tensor, top_k: Tensor, top_p: Tensor) -> Tensor:
    """Scores [A, V] with -inf for every token outside top-k (0: off), then outside top-p (1: off) of what is left.

    top_k: int64 [A]. top_p: float64 [A]. Of equal scores the lower token id comes first. At least one token stays.
    top-p keeps the shortest run of likeliest tokens whose probability reaches p (Holtzman et al., arXiv 1904.09751).
    """
    vocab = scores.shape[-1]
    limit = torch.where(top_k > 0, top_k, vocab).clamp(max=vocab)
    width = int(limit.max())
    if width > _NUCLEUS:
        # top-p alone: most often a few tokens hold it; fall back on all of them where they do not
        head = scores.topk(min(_NUCLEUS, vocab), sorted=True).values
        mass = (head.double().logsumexp(-1) - scores.double().logsumexp(-1)).exp()
        if bool(((mass > top_p + 1e-9) | (limit <= _NUCLEUS)).all()):
            width = min(_NUCLEUS, vocab)
    values, ids = _ordered(scores, width)
    rank = torch.arange(width, device=scores.device)
    values = values.masked_fill(rank >= limit[:, None], -torch.inf)
    whole = torch.where(limit <= width, values.double().logsumexp(-1), scores.double().logsumexp(-1))
    probs = (values.double() - whole[:, None]).exp()
    before = probs.cumsum(-1) - probs
    outside = (before >= top_p[:, None]) & (top_p < 1)[:, None]
    outside[:, 0] = False
    values = values.masked_fill(outside, -torch.inf)
    return torch.full_like(scores, -torch.inf).scatter_(1, ids, values)


def _ordered(scores: Tensor, width: int) -> tuple[Tensor, Tensor]:
    """The `width` largest scores of each row, descending, and their ids; equal scores in order of their ids."""
    if width * 4 > scores.shape[-1]:
        values, ids = scores.sort(dim=-1, descending=True, stable=True)
        return values[:, :width], ids[:, :width]
    # topk promises no order among equals: with one more it shows whether a tie crosses the edge, then sort by id
    values, ids = scores.topk(width + 1)
    if bool((values[:, width - 1] == values[:, width]).any()):
        values, ids = scores.sort(dim=-1, descending=True, stable=True)
        return values[:, :width], ids[:, :width]
    ids, order = ids[:, :width].sort(dim=-1)
    values, place = values[:, :width].gather(1, order).sort(dim=-1, descending=True, stable=True)
    return values, ids.gather(1, place)
