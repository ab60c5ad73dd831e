"""SPO: single-stream policy optimisation with a value tracker (arXiv 2509.13232)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from torch import Tensor

from skpo.algorithms.base import Algorithm, StepContext, option
from skpo.credit import Tracker, batch_normalized
from skpo.curriculum import priority
from skpo.losses import TokenBatch, aggregate, min_clip, min_clipped, per_token, share, token_ratio
from skpo.problems.base import Problem
from skpo.rollout.plans import PlanContext, group_plan
from skpo.rollout.types import Group, Plan


class SPO(Algorithm):
    """A = R - V_before(q), then (A - mean) / (sd + 1e-6) over the batch; one response per problem, no group

    J = mean over all tokens of the batch of  min(r_t A, clip(r_t, 1 - low, 1 + high) A)

    arXiv 2509.13232. V follows each problem's success rate, V <- V + (R - V) / (rho N + 1), and forgets by how far the policy moved:
    rho = clip(2^(-D / 0.06), 0.875, 0.96), D = mean |log pi now - log pi then| on the problem's last stored response. The baseline
    is V *before* it sees R. Problems are drawn with weight sqrt(V (1 - V)) + 0.05. Keeps: the tracker and each problem's last response.
    """

    name, arxiv = "spo", "2509.13232"
    summary = "one response per problem against a persistent value tracker"
    curriculum = "prioritized"
    keeps = "each problem's value (tracker) and its last response"

    @dataclass(frozen=True)
    class Options:
        clip_low: float = option(0.2, "the ratio is clipped from below at 1 - clip_low")
        clip_high: float = option(0.28, "the ratio is clipped from above at 1 + clip_high (Clip-Higher)")
        responses: int = option(1, "responses per problem and step (1 in the paper)")
        half_life: float = option(0.06, "distance at which half of the past is forgotten (paper)")
        rho_min: float = option(0.875, "least memory: about 8 observations (paper)")
        rho_max: float = option(0.96, "most memory: about 25 observations (paper)")

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        o = self.options
        self.values = Tracker(half_life=o.half_life, rho_min=o.rho_min, rho_max=o.rho_max)
        self.last: dict[
            str, tuple[list[int], list[int], list[float]]
        ] = {}  #: problem -> context, tokens, log-probabilities

    def plan(self, problem: Problem, context: PlanContext) -> Plan:
        return group_plan(problem, context, self.options.responses)

    def credit(self, group: Group) -> None:
        super().credit(group)
        for sample in group.samples:
            sample.baseline = self.values.value(group.problem.id)

    def advantages(self, batch: TokenBatch) -> Tensor:
        return batch_normalized(batch.reward.double() - batch.baseline.double())

    def loss(self, batch: TokenBatch, advantages: Tensor) -> tuple[Tensor, dict[str, float]]:
        o, a = self.options, per_token(advantages)
        r = token_ratio(batch.logp, batch.old_logp)
        objective = aggregate(min_clip(r, a, o.clip_low, o.clip_high), batch, "token-mean")
        return -objective, {"clip_fraction": share(min_clipped(r, a, o.clip_low, o.clip_high), batch)}

    def problem_weight(self, problem_id: str) -> float:
        return priority(self.values.value(problem_id))

    def observe(self, groups: Sequence[Group], context: StepContext) -> dict[str, float]:
        known = [g for g in groups if g.problem.id in self.last]
        now = context.score([self.last[g.problem.id][:2] for g in known])
        distance = {
            g.problem.id: float(np.abs(logp - np.array(self.last[g.problem.id][2])).mean())
            for g, logp in zip(known, now, strict=True)
        }
        for group in groups:
            key = group.problem.id
            for sample in group.samples:
                self.values.update(key, sample.reward, step=context.optimizer_step, distance=distance.get(key, 0.0))
                distance[key] = 0.0  # further responses of the same visit come from the same policy
            last = group.samples[-1]
            self.last[key] = (list(last.context), last.tokens.tolist(), last.logp.tolist())
        return {"tracker_distance": float(np.mean(list(distance.values()))) if distance else 0.0}

    def state_dict(self) -> dict[str, Any]:
        return {"values": self.values.state_dict(), "last": {key: list(entry) for key, entry in self.last.items()}}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.values.load_state_dict(state["values"])
        self.last = {key: (entry[0], entry[1], entry[2]) for key, entry in state["last"].items()}
