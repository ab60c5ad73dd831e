"""From a step's groups to the rows an optimiser sees."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import torch
from torch import Tensor

from skpo.losses import TokenBatch, Totals, count_totals
from skpo.policy.budget import Row
from skpo.policy.scoring import PackedRows
from skpo.rollout.types import Group, Sample


@dataclass
class StepBatch:
    """All trained rows of one step, padded, on the CPU: what advantages are computed from.

    samples [N]; batch: `TokenBatch` whose logp is old_logp; advantages [N] or [N, T], float64; deviation: the engine's own
    log-probabilities where the trainer recomputed them, for comparison.
    """

    samples: list[Sample]
    batch: TokenBatch
    advantages: Tensor
    rows_of_group: list[list[int]]

    def row(self, index: int) -> Row:
        """(context ids, sampled ids) of one row."""
        sample = self.samples[index]
        return sample.context, sample.tokens  # type: ignore[return-value]


def pad(arrays: Sequence[np.ndarray], width: int) -> Tensor:
    """Float arrays of differing lengths in one float32 tensor [N, width], zeros on the right."""
    out = np.zeros((len(arrays), width), dtype=np.float32)
    for i, a in enumerate(arrays):
        out[i, : len(a)] = a
    return torch.from_numpy(out)


def trained_mask(samples: Sequence[Sample], width: int, mask_truncated: bool) -> Tensor:
    """1 on sampled tokens [N, width]; from lengths, never from token values. `mask_truncated` leaves out completions whose budget ran out."""
    lengths = torch.tensor([0 if mask_truncated and s.role == 0 and not s.finished else len(s) for s in samples])
    return (torch.arange(width)[None] < lengths[:, None]).float()


def step_batch(groups: Sequence[Group], *, mask_truncated: bool = False) -> StepBatch:
    """Rows of all groups in order. Rewards are float64, so that close rewards stay apart."""
    samples = [s for g in groups for s in g.samples]
    rows_of_group: list[list[int]] = []
    for group in groups:
        begin = rows_of_group[-1][-1] + 1 if rows_of_group else 0
        rows_of_group.append(list(range(begin, begin + len(group.samples))))
    width = max((len(s) for s in samples), default=0)
    old = pad([s.logp for s in samples], width)
    index = compared_with(groups)
    correct = [s.correct for s in samples if s.score is not None]
    batch = TokenBatch(
        reward=torch.tensor([s.reward for s in samples], dtype=torch.float64),
        group=torch.tensor(index, dtype=torch.long),
        role=torch.tensor([s.role for s in samples], dtype=torch.long),
        baseline=torch.tensor([s.baseline for s in samples], dtype=torch.float64),
        logp=old,
        old_logp=old,
        mask=trained_mask(samples, width, mask_truncated),
        accuracy=float(np.mean(correct)) if correct else 0.0,
    )
    batch.step, batch.value, batch.token_reward = step_tensors(samples, width)
    return StepBatch(samples, batch, torch.zeros(len(samples), dtype=torch.float64), rows_of_group)


def step_tensors(samples: Sequence[Sample], width: int) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
    """(step, value, token_reward) [N, width] of responses that were cut into steps; None where no sample holds them.

    A sample's `info["cuts"]` are the positions where its second and later steps begin, `info["values"]` the value at the start of
    each step, which all its tokens get, `info["step_rewards"]` one reward a step, paid at its last token.
    """
    if not any("cuts" in s.info for s in samples):
        return None, None, None
    step = torch.zeros(len(samples), width, dtype=torch.long)
    value, reward = (torch.zeros(len(samples), width, dtype=torch.float64) for _ in range(2))
    for i, sample in enumerate(samples):
        edges = [0, *sample.info.get("cuts", ()), len(sample)]
        for k, (begin, end) in enumerate(pairwise(edges)):
            step[i, begin:end] = k
            if "values" in sample.info:
                value[i, begin:end] = sample.info["values"][k]
            if "step_rewards" in sample.info and end > 0:
                reward[i, end - 1] = sample.info["step_rewards"][k]
    has = {key: any(key in s.info for s in samples) for key in ("values", "step_rewards")}
    return step, value if has["values"] else None, reward if has["step_rewards"] else None


def compared_with(groups: Sequence[Group]) -> list[int]:
    """For each row the number of the set that its reward is compared in: its problem, or its part of it (`info["subgroup"]`)."""
    keys = [(i, s.info.get("subgroup")) for i, g in enumerate(groups) for s in g.samples]
    numbers = {key: number for number, key in enumerate(dict.fromkeys(keys))}
    return [numbers[key] for key in keys]


def micro_batch(
    step: StepBatch, index: Sequence[int], packed: PackedRows, logp: Tensor, entropy: Tensor, totals: Totals
) -> tuple[TokenBatch, Tensor]:
    """(padded batch of the rows `index`, their advantages), on the device of `logp` [M], in its dtype; denominators of the whole."""
    pick, width = torch.as_tensor(index), packed.shape[1]
    whole = step.batch

    def rows(values: Tensor | None) -> Tensor | None:
        return None if values is None else values[pick, :width].to(logp.device, logp.dtype)

    def column(values: Tensor) -> Tensor:
        return values[pick].to(logp.device)

    advantages = step.advantages[pick] if step.advantages.dim() == 1 else step.advantages[pick, :width]
    old, mask = rows(whole.old_logp), rows(whole.mask)
    assert old is not None
    assert mask is not None
    batch = TokenBatch(
        reward=column(whole.reward).to(logp.dtype),
        group=column(whole.group),
        role=column(whole.role),
        baseline=column(whole.baseline).to(logp.dtype),
        logp=packed.padded(logp),
        old_logp=old,
        mask=mask,
        ref_logp=rows(whole.ref_logp),
        entropy=packed.padded(entropy),
        old_entropy=rows(whole.old_entropy),
        sampler_logp=rows(whole.sampler_logp),
        accuracy=whole.accuracy,
        totals=totals,
        correction=whole.correction,
    )
    return batch, advantages.to(logp.device, logp.dtype)


def totals_of(step: StepBatch, index: Sequence[int]) -> Totals:
    """Denominators of the optimiser batch made of the rows `index`."""
    pick = torch.as_tensor(list(index), dtype=torch.long)
    return count_totals(step.batch.role[pick], step.batch.lengths[pick])


def split_minibatches(groups: int, parts: int, rng: np.random.Generator) -> list[list[int]]:
    """Group indices in `parts` mini-batches of nearly equal size, shuffled (one part: in order). Empty parts are left out."""
    order = np.arange(groups) if parts == 1 else rng.permutation(groups)
    return [part.tolist() for part in np.array_split(order, parts) if len(part)]
