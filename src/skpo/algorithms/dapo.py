"""DAPO: decoupled clip and dynamic sampling (arXiv 2503.14476)."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from skpo.algorithms.base import Algorithm, option
from skpo.credit import group_relative, overlong_penalty
from skpo.errors import ConfigError
from skpo.losses import TokenBatch, aggregate, min_clip, min_clipped, per_token, share, token_ratio
from skpo.rollout.types import Group, Sample


class DAPO(Algorithm):
    """R_i = 2 [correct] - 1 + overlong penalty;  A_i = (R_i - mean R) / (sd R + 1e-6) within the group

    J = mean over all tokens of the batch of  min(r_t A, clip(r_t, 1 - low, 1 + high) A)

    arXiv 2503.14476, section 3: Clip-Higher (3.1), dynamic sampling (3.2: groups that are all correct or all wrong are replaced),
    token mean (3.3), soft overlong punishment (3.4: 0 up to L - C tokens, then linearly down to -1 at L).
    """

    name, arxiv = "dapo", "2503.14476"
    summary = "Clip-Higher, token mean, dynamic sampling, overlong shaping"
    keeps = "nothing (replaced groups within a step)"

    @dataclass(frozen=True)
    class Options:
        clip_low: float = option(0.2, "the ratio is clipped from below at 1 - clip_low (section 3.1)")
        clip_high: float = option(0.28, "the ratio is clipped from above at 1 + clip_high (section 3.1)")
        dynamic_sampling: bool = option(True, "replace groups that are all correct or all wrong (section 3.2)")
        max_rounds: int = option(3, "draw at most this many times the step's problems, then go on with what there is")
        overlong_buffer: int = option(
            0, "C, tokens before the budget over which the penalty grows (4096 of 20480 in the paper); 0: no penalty"
        )

    def check(self) -> None:
        if self.options.max_rounds < 1 or self.options.overlong_buffer < 0:
            raise ConfigError("algorithm dapo: max_rounds must be at least 1, overlong_buffer at least 0")

    @property
    def max_rounds(self) -> int:
        return self.options.max_rounds if self.options.dynamic_sampling else 1

    def keep(self, group: Group) -> bool:
        """Decided on correctness, never on the shaped reward."""
        outcomes = {s.correct for s in group.completions}
        return not self.options.dynamic_sampling or len(outcomes) > 1

    def reward(self, sample: Sample) -> float:
        assert sample.score is not None
        reward = 2 * sample.score - 1
        if self.options.overlong_buffer and self.budget:
            reward += overlong_penalty(len(sample), self.budget, self.options.overlong_buffer)
        return reward

    def advantages(self, batch: TokenBatch) -> Tensor:
        return group_relative(batch.reward, batch.group)

    def loss(self, batch: TokenBatch, advantages: Tensor) -> tuple[Tensor, dict[str, float]]:
        o, a = self.options, per_token(advantages)
        r = token_ratio(batch.logp, batch.old_logp)
        objective = aggregate(min_clip(r, a, o.clip_low, o.clip_high), batch, "token-mean")
        return -objective, {"clip_fraction": share(min_clipped(r, a, o.clip_low, o.clip_high), batch)}
