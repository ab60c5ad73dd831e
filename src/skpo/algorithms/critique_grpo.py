"""Critique-GRPO: responses, and one that was improved after a critique, trained as if it had come by itself (arXiv 2506.03106)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor

from skpo.algorithms.base import Algorithm, StepContext, option
from skpo.credit import group_relative
from skpo.errors import ConfigError
from skpo.losses import TokenBatch, aggregate, has_role, min_clip, min_clipped, per_token, share, token_ratio
from skpo.problems.base import Problem
from skpo.rollout.plans import PlanContext, Wording, refine_plan
from skpo.rollout.types import COMPLETION, REFINEMENT, Group, Plan


class CritiqueGRPO(Algorithm):
    """n direct responses; then k times: the model is shown a wrong one and a critique, and answers again (n + k = group size)

    A_i = R_i - mean R over all n + k, R in {0, 1}
    J = sum over all tokens of  { min(r_t A, clip(r_t, 1 - low, 1 + high) A)       direct responses
                                { f(p_t) A,  f(p) = p / (p + gamma),  p = pi(o_t | q, o_<t)       refinements
        divided by (sequences * length)

    arXiv 2506.03106: n = 7, k = 1, gamma = 0.1. A refinement is trained under q alone: the policy learns to answer that way without
    having been criticised; f takes the ratio's place, since no behaviour policy made it from q. Which wrong response is shown is drawn
    at random [ours]; where all are right a random one is refined, so that the group keeps its size [ours; `all_right: none` refines
    none]. Texts of the critique are ours. A refinement that would not fit the model's positions is left out.
    """

    name, arxiv = "critique_grpo", "2506.03106"
    summary = "refinements after a critique, trained under the problem alone"

    @dataclass(frozen=True)
    class Options:
        clip_low: float = option(0.2, "the direct responses' ratio is clipped from below at 1 - clip_low (PPO's 0.2)")
        clip_high: float = option(0.2, "the direct responses' ratio is clipped from above at 1 + clip_high (PPO's 0.2)")
        gamma: float = option(0.1, "refinements are weighted by p / (p + gamma) (paper)")
        length: float | None = option(None, "the constant length, in tokens; None: the recipe's completion budget")
        refinements: int = option(1, "k, refinements per problem, out of the group's size (1 of 8 in the paper)")
        critique: Literal["indicative", "self"] = option(
            "indicative", "indicative: right or wrong; self: the model writes the critique first"
        )
        critique_tokens: int = option(512, "budget of a self-written critique; at most the completion budget")
        all_right: Literal["random", "none"] = option(
            "random", "where no response is wrong: refine a random one, or none"
        )
        text_wrong: str = option(Wording.wrong, "the indicative critique of a wrong response")
        text_right: str = option(Wording.right, "the indicative critique of a right response")
        text_critique: str = option(Wording.critique, "the request for a self-written critique")
        text_again: str = option(Wording.again, "the request for another answer")

    def check(self) -> None:
        if self.options.refinements < 1:
            raise ConfigError("algorithm critique_grpo: refinements must be at least 1; without any, use dr_grpo")

    def plan(self, problem: Problem, context: PlanContext) -> Plan:
        o = self.options
        return refine_plan(
            problem, context, k=o.refinements, refine_right=o.all_right == "random",
            critique_tokens=o.critique_tokens if o.critique == "self" else None,
            wording=Wording(o.text_wrong, o.text_right, o.text_critique, o.text_again),
        )  # fmt: skip

    def advantages(self, batch: TokenBatch) -> Tensor:
        return group_relative(batch.reward, batch.group, scale=False)

    def loss(self, batch: TokenBatch, advantages: Tensor) -> tuple[Tensor, dict[str, float]]:
        o, a, length = self.options, per_token(advantages), self.options.length or self.budget
        r, p = token_ratio(batch.logp, batch.old_logp), batch.logp.exp()
        refined = has_role(batch, (REFINEMENT,))[:, None] > 0
        terms = torch.where(refined, p / (p + o.gamma) * a, min_clip(r, a, o.clip_low, o.clip_high))
        clipped = min_clipped(r, a, o.clip_low, o.clip_high)
        return -aggregate(terms, batch, "constant", length=length), {
            "clip_fraction": share(clipped, batch, (COMPLETION,))
        }

    def observe(self, groups: Sequence[Group], context: StepContext) -> dict[str, float]:
        refined = [s for g in groups for s in g.samples if s.role == REFINEMENT]
        metrics: dict[str, Any] = {"refinements": float(len(refined))}
        if refined:
            metrics["refinement_accuracy"] = sum(s.correct for s in refined) / len(refined)
        return metrics
