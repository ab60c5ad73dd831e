"""SKPO: skip-connected policy optimisation (arXiv 2604.08690)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from skpo.algorithms.base import Algorithm, StepContext, option
from skpo.credit import Tracker, batch_normalized, group_relative, group_statistics
from skpo.curriculum import priority
from skpo.errors import ConfigError
from skpo.losses import TokenBatch, aggregate, min_clip, min_clipped, per_token, share, token_ratio, weighted_logp
from skpo.problems.base import Problem
from skpo.rollout.plans import PlanContext, branch_plan, skip_plan
from skpo.rollout.types import COMPLETION, SEGMENT, Group, Plan, Sample


class SKPO(Algorithm):
    """Upstream: G segments stop at t_q ~ U[L/6, L/2]; the one with median likelihood is kept, as s.
    Downstream: G completions continue from the skip connection [s, q].

        R_II = 2 [correct] - 1      A_i = (R_i - mean R) / (sd R + 1e-6) within the problem's completions
        R_I  = mean of R_II         A~  = R_I - V_before(q), then (A - mean) / (sd + 1e-6) over the batch's segments

        J_II = mean over tokens of     sg[clip(r_t, 1 - 0.2, 1 + 0.28)] A_i log pi(o_t | [s, q])
        J_I  = mean over segments of mean over tokens of  min(r_t A~, clip(r_t, 1 - 0.2, 1 + 0.2) A~)
        J    = 0.5 J_I + 0.5 J_II

    arXiv 2604.08690, section 3; defaults from its appendix C. Switches for its ablations (Table 2): `skip: false`,
    `upstream_reward: own`, `split: alternate`, `select: extreme`. Beyond the paper: `upstream_weight: reliability`; `splits: K` (the
    segment grows in K stages, each credited with the same R_I, each trained in its own context); `select: all` (B segments, all kept;
    R_I(s_b) is the mean over its own G / B completions, and the mean over the B takes the place of V_before).
    """

    name, arxiv = "skpo", "2604.08690"
    summary = "skip-connected rollout; segment credited with its completions' mean reward"
    curriculum = "prioritized"
    keeps = "each problem's value and response length (trackers)"

    @dataclass(frozen=True)
    class Options:
        upstream: float = option(0.5, "weight of the segments' objective (section 3.2)")
        downstream: float = option(0.5, "weight of the completions' objective (section 3.2)")
        upstream_clip: float = option(0.2, "minimum-clip of the segments' ratio, on both sides (appendix C)")
        clip_low: float = option(0.2, "the completions' weight is clipped from below at 1 - clip_low (appendix C)")
        clip_high: float = option(
            0.28, "the completions' weight is clipped from above at 1 + clip_high (Clip-Higher, appendix C)"
        )
        ddof: int = option(1, "1: sample standard deviation within the group, as TRL and verl; 0: population")
        split_low: float = option(
            1 / 6, "a segment stops at this share of the problem's mean response length, or later"
        )
        split_high: float = option(
            1 / 2, "a segment stops at this share of the problem's mean response length, or sooner"
        )
        initial_length: float = option(1024, "response length assumed before a problem's first observation, in tokens")
        skip: bool = option(True, "False: completions continue q + s as a hard prefix (ablation w/o Skip)")
        upstream_reward: Literal["mean", "own"] = option(
            "mean", "own: outcome of the segment's own continuation (ablation w/o MC)"
        )
        split: Literal["uniform", "alternate"] = option(
            "uniform", "alternate: split_low and split_high in turn (ablation Split@Fixed)"
        )
        splits: int = option(1, "stages in which the segment grows, each to its own stop position (not in the paper)")
        select: Literal["median", "extreme", "all"] = option(
            "median",
            "extreme: lowest and highest likelihood in turn (ablation Selection:Extreme); all: keep every one (not in the paper)",
        )
        branches: int = option(
            2,
            "select=all: segments per problem, each with group_size / branches completions (a compromise: G / B >= 2)",
        )
        budget: Literal["full", "remaining"] = option(
            "full", "remaining: the segment's tokens come off the completions' budget (not in the paper)"
        )
        upstream_weight: Literal["full", "reliability"] = option(
            "full",
            "reliability: scale the segments' advantages by how far their spread exceeds its own sampling noise (not in the paper)",
        )
        half_life: float = option(8.0, "optimiser steps after which the trackers have forgotten half (section 3.3)")
        rho_min: float = option(0.875, "least memory of the trackers (SPO)")
        rho_max: float = option(0.96, "most memory of the trackers (SPO)")

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        o = self.options
        memory = {"half_life": o.half_life, "rho_min": o.rho_min, "rho_max": o.rho_max}
        self.values = Tracker(start=0.5, **memory)
        self.lengths = Tracker(start=float(o.initial_length), **memory)
        self.reliability = 1.0  #: of the last step's segments; 1 unless `upstream_weight: reliability`

    def check(self) -> None:
        o = self.options
        if not 0 < o.split_low <= o.split_high:
            raise ConfigError(
                f"algorithm skpo: need 0 < split_low <= split_high, found {o.split_low} and {o.split_high}"
            )
        if o.splits < 1 or (o.splits > 1 and o.split == "alternate"):
            raise ConfigError("algorithm skpo: splits must be at least 1, and 1 with split=alternate")
        if o.select == "all" and (o.splits, o.split, o.upstream_reward) != (1, "uniform", "mean"):
            raise ConfigError("algorithm skpo: select=all needs splits=1, split=uniform and upstream_reward=mean")

    # ---- rollout ---------------------------------------------------------------------------------------------------

    def plan(self, problem: Problem, context: PlanContext) -> Plan:
        o = self.options
        stop = {"length": self.lengths.value(problem.id), "low": o.split_low, "high": o.split_high}
        if o.select == "all":
            return branch_plan(problem, context, **stop, branches=o.branches, skip=o.skip, budget=o.budget)
        return skip_plan(
            problem, context, **stop, skip=o.skip, split=o.split, splits=o.splits, select=o.select, budget=o.budget,
            own_outcome=o.upstream_reward == "own",
        )  # fmt: skip

    def reward(self, sample: Sample) -> float:
        assert sample.score is not None
        return 2 * sample.score - 1

    def credit(self, group: Group) -> None:
        """R_II for completions; R_I and the tracker's value before this visit for the segment. Sets info["value"] = R_I."""
        for completion in group.completions:
            completion.reward = self.reward(completion)
        if not group.completions:
            group.samples = []
            return
        value = float(np.mean([c.reward for c in group.completions]))
        own = group.info.get("own")
        if self.options.upstream_reward == "own" and own is not None and own.score is not None:
            value = self.reward(own)
        group.info["value"] = value
        if self.options.select == "all":
            self._credit_edges(group)
            return
        for segment in group.segments:
            segment.reward = value
            segment.baseline = 2 * self.values.value(group.problem.id) - 1

    def _credit_edges(self, group: Group) -> None:
        """V(s_b), the mean reward of a segment's own completions, against the mean of V over the problem's branches."""
        rewards: dict[int, list[float]] = {}
        for completion in group.completions:
            rewards.setdefault(completion.info["subgroup"], []).append(completion.reward)
        values = {b: float(np.mean(r)) for b, r in rewards.items()}
        for segment in group.segments:
            b = segment.info["subgroup"]
            if b in values:
                segment.reward, segment.baseline = values[b], float(np.mean(list(values.values())))
            else:  # none of its completions has a score
                group.samples = [s for s in group.samples if s is not segment]
                group.unused.append(segment)

    # ---- credit and loss -------------------------------------------------------------------------------------------

    def advantages(self, batch: TokenBatch) -> Tensor:
        reward, up = batch.reward.double(), batch.role == SEGMENT
        down = ~up
        advantages = torch.zeros_like(reward)
        advantages[down] = group_relative(reward[down], batch.group[down], ddof=self.options.ddof)
        surprise = reward[up] - batch.baseline.double()[up]
        self.reliability = self._reliability(batch, surprise) if self.options.upstream_weight == "reliability" else 1.0
        advantages[up] = self.reliability * batch_normalized(surprise)
        return advantages

    def _reliability(self, batch: TokenBatch, surprise: Tensor) -> float:
        """max(0, 1 - noise / spread): spread = variance of R_I - V_before over the batch; noise = the part of it that G
        coin flips per problem would give, mean of 4 p (1 - p) / (G - 1). Not in the paper. With B branches G is a branch's
        share, and their own mean as baseline takes 1 / B of the noise away."""
        if len(surprise) < 2:
            return 0.0
        down = batch.role == COMPLETION
        _, first = torch.unique(batch.group[down], return_inverse=True)
        mean, _, size, _ = group_statistics((batch.reward.double()[down] + 1) / 2, batch.group[down])
        noise = torch.zeros(int(first.max()) + 1, dtype=torch.float64)
        noise[first] = 4 * mean * (1 - mean) / (size - 1).clamp(min=1)
        left = 1 - 1 / self.options.branches if self.options.select == "all" else 1.0
        spread = float(surprise.var())
        return max(0.0, 1 - left * float(noise.mean()) / spread) if spread > 0 else 0.0

    def loss(self, batch: TokenBatch, advantages: Tensor) -> tuple[Tensor, dict[str, float]]:
        o, a = self.options, per_token(advantages)
        r = token_ratio(batch.logp, batch.old_logp)
        down = aggregate(
            weighted_logp(r, a, batch.logp, o.clip_low, o.clip_high), batch, "token-mean", roles=(COMPLETION,)
        )
        up = aggregate(min_clip(r, a, o.upstream_clip, o.upstream_clip), batch, "seq-mean", roles=(SEGMENT,))
        outside = ((r > 1 + o.clip_high) | (r < 1 - o.clip_low)).to(r.dtype)
        metrics = {
            "loss_upstream": -float(up.detach()),
            "loss_downstream": -float(down.detach()),
            "clip_fraction": share(outside, batch, (COMPLETION,)),
            "clip_fraction_upstream": share(min_clipped(r, a, o.upstream_clip, o.upstream_clip), batch, (SEGMENT,)),
        }
        return -(o.upstream * up + o.downstream * down), metrics

    # ---- between steps ---------------------------------------------------------------------------------------------

    def problem_weight(self, problem_id: str) -> float:
        return priority(self.values.value(problem_id))

    def observe(self, groups: Sequence[Group], context: StepContext) -> dict[str, float]:
        for group in groups:
            if "value" not in group.info:
                continue
            key, step = group.problem.id, context.optimizer_step
            paths = self.options.branches if self.options.select == "all" else 1  # segments side by side, not in a row
            segment = sum(len(s) for s in group.segments) / paths
            response = segment + sum(len(c) for c in group.completions) / len(group.completions)
            self.values.update(key, (group.info["value"] + 1) / 2, step=step)
            self.lengths.update(key, response, step=step)
        return {"upstream_reliability": self.reliability, "problems_tracked": float(len(self.values.entries))}

    def state_dict(self) -> dict[str, Any]:
        return {"values": self.values.state_dict(), "lengths": self.lengths.state_dict()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.values.load_state_dict(state["values"])
        self.lengths.load_state_dict(state["lengths"])
