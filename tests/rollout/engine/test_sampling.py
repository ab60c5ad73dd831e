"""Sampling: right distributions, right supports, right log-probabilities, and uniforms that depend on seed and position alone."""

from __future__ import annotations

import pytest
import torch
from rollout.engine.engine_models import plain_truncation

from skpo.rollout.sampling import RowSampling, draw, sample, truncate, uniforms
from skpo.rollout.types import Sampling


def splitmix64(seed: int, position: int) -> float:
    """The slow twin of `uniforms`, in Python's integers."""
    mask = (1 << 64) - 1
    z = (seed + (position + 1) * 0x9E3779B97F4A7C15) & mask
    z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & mask
    z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & mask
    return ((z ^ (z >> 31)) >> 11) * 2.0**-53


def test_uniforms_equal_their_twin() -> None:
    # first output of splitmix64 from seed 0, as published with its reference code: 0xE220A8397B1DCDAF
    assert splitmix64(0, 0) == (0xE220A8397B1DCDAF >> 11) * 2.0**-53
    seeds, positions = [0, 1, 2**62 + 12345, 987654321], [0, 1, 5, 4095]
    found = uniforms(torch.tensor(seeds), torch.tensor(positions)).tolist()
    assert found == [splitmix64(s, t) for s, t in zip(seeds, positions, strict=True)]


def test_frequencies_match_the_softmax() -> None:
    torch.manual_seed(0)
    vocab, draws = 150, 60_000  # three blocks of the two-level sum, the last one not full
    scores = 1.5 * torch.randn(vocab)
    scores[70:80] = -torch.inf
    u = uniforms(torch.full((draws,), 5), torch.arange(draws))
    tokens, logp = draw(scores.expand(draws, vocab), u)
    expected = scores.double().softmax(0) * draws
    counts = torch.bincount(tokens, minlength=vocab).double()
    assert counts[70:80].sum() == 0
    some = expected > 0
    chi2 = float(((counts - expected)[some] ** 2 / expected[some]).sum())
    assert chi2 < 197.0  # 139 degrees of freedom: mean 139, deviation 16.7; 99.9 % quantile 195
    torch.testing.assert_close(logp, scores.log_softmax(0)[tokens], rtol=0, atol=2e-6)


@pytest.mark.parametrize("u", [0.0, 0.5, 1 - 2.0**-53])
def test_extreme_uniforms_never_hit_impossible_tokens(u: float) -> None:
    scores = torch.full((3, 200), -torch.inf)
    scores[0, 64:70] = 0.0  # a block's edge
    scores[1, 0] = scores[1, 199] = 0.0  # first and last token
    scores[2, 130] = 5.0
    tokens, logp = draw(scores, torch.full((3,), u, dtype=torch.float64))
    assert torch.isfinite(scores.gather(1, tokens[:, None])).all()
    assert tokens[2] == 130
    assert logp[2] == 0.0


def test_nan_logits_are_told_by_a_nan_logp() -> None:
    logits = torch.zeros(2, 10)
    logits[1, 3] = torch.nan
    logp = sample(logits, torch.zeros(2, dtype=torch.int64), torch.zeros(2, dtype=torch.int64))[1]
    assert torch.isfinite(logp[0])
    assert torch.isnan(logp[1])


@pytest.mark.parametrize("vocab", [50, 3000])
@pytest.mark.parametrize(
    ("top_k", "top_p"), [(5, 1.0), (0, 0.7), (12, 0.5), (600, 1.0), (1, 1.0), (0, 1e-9), (0, 0.999)]
)
def test_truncation_equals_its_twin(vocab: int, top_k: int, top_p: float) -> None:
    torch.manual_seed(vocab + top_k)
    scores = torch.randn(4, vocab) * torch.tensor([[0.1], [1.0], [3.0], [6.0]])
    scores[1] = scores[1].round()  # many ties: the lower id comes first
    found = truncate(scores, torch.full((4,), top_k), torch.full((4,), top_p, dtype=torch.float64))
    expected = plain_truncation(scores, Sampling(top_k=top_k, top_p=top_p))
    assert torch.equal(found, expected)


def test_rows_with_their_own_settings() -> None:
    torch.manual_seed(1)
    kinds = [Sampling(), Sampling(0.5), Sampling(0.0), Sampling(1.0, 0.6), Sampling(2.0, 0.9, 4)]
    logits = torch.randn(len(kinds), 80) * 3
    settings = RowSampling(
        torch.tensor([k.temperature for k in kinds]),
        torch.tensor([k.top_k for k in kinds]),
        torch.tensor([k.top_p for k in kinds], dtype=torch.float64),
    )
    for seed in range(40):
        seeds, at = torch.full((len(kinds),), seed), torch.arange(len(kinds))
        tokens, logp = sample(logits, seeds, at, settings)
        for i, kind in enumerate(kinds):
            expected = plain_truncation(logits[i : i + 1], kind)[0].log_softmax(0)
            assert abs(float(expected[tokens[i]] - logp[i])) < 1e-5


def test_chunks_change_nothing() -> None:
    torch.manual_seed(2)
    logits = torch.randn(40, 50_000)
    seeds, at = torch.arange(40), torch.zeros(40, dtype=torch.int64)
    tokens, logp = sample(logits, seeds, at)
    whole = draw(logits, uniforms(seeds, at))
    assert torch.equal(tokens, whole[0])
    assert torch.equal(logp, whole[1])
