"""VSRM: verifiable stepwise rewards from answers forced between the steps of a response (arXiv 2508.10293)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from torch import Tensor

from skpo.algorithms.base import StepContext, option
from skpo.algorithms.ppo import PPO
from skpo.credit_tokens import paid_at_end, step_rewards, to_go
from skpo.errors import ConfigError
from skpo.losses import TokenBatch
from skpo.policy.auxiliary import Auxiliary, AuxiliaryContext
from skpo.problems.base import Problem
from skpo.rollout.plans import PlanContext
from skpo.rollout.probes import Cuts, probe_metrics, probe_plan, set_step_values
from skpo.rollout.types import Group, Plan


class VSRM(PPO):
    """A response is cut where its reasoning turns; at each cut an answer is forced n times;   a_k = share correct after step k

    r_k = a_k - a_(k-1),  paid at the last token of step k;   |r_k| <= tol: the first gain beyond tol in the next W steps, times gamma^distance
    A_t = sum over s >= t of r_s (REINFORCE++), or GAE with a critic; whitened over the batch's tokens
    J = mean over tokens of  min(r_t A_t, clip(r_t, 1 - low, 1 + high) A_t)

    arXiv 2508.10293 [reconstructed: the paper's text was not to hand; every choice below is an option]. A cut is the beginning of the
    sentence that holds a marker, or follows a separator. a_0 is what answering at once gives; a_K is the response's own reward
    (`last: forced` takes that of the last cut, so that the final step gains nothing). Without look-ahead (window 0) the rewards of a
    response add up to a_K - a_0. The forced answers are not trained on, and count as generated tokens.
    """

    name, arxiv = "vsrm", "2508.10293"
    summary = "step rewards: how much each step raises the accuracy of a forced answer [reconstructed]"
    keeps = "nothing; with via=gae the critic and its optimiser"

    @dataclass(frozen=True)
    class Options(PPO.Options):
        via: Literal["reinforce_pp", "gae"] = option(
            "reinforce_pp", "what turns rewards into advantages; gae brings a critic"
        )
        markers: Sequence[str] = option(
            ("However", "Therefore", "So", "But", "Wait", "Alternatively"), "words whose sentence begins a step"
        )
        separators: Sequence[str] = option(("\n\n", ";"), "texts that end a step")
        min_gap: int = option(4, "fewest tokens of a step")
        max_steps: int | None = option(16, "most steps of a response; null: no limit")
        answers: int = option(4, "n, answers forced at each cut")
        force: str = option("\n\nThe answer is ", 'text that forces an answer (in the chain task "#")')
        answer_tokens: int = option(32, "budget of a forced answer")
        last: Literal["outcome", "forced"] = option(
            "outcome", "a_K: the response's own reward, or that of the last cut"
        )
        tol: float = option(1e-6, "a gain this small counts as none")
        window: int = option(3, "W, steps looked ahead from a step without a gain; 0: none")
        decay: float = option(0.7, "gamma of the look-ahead, for each step of distance")
        outcome: float = option(
            0.0, "weight of the response's own reward, paid at its last token beside the step rewards"
        )

    def check(self) -> None:
        o = self.options
        if min(o.answers, o.answer_tokens) < 1 or o.window < 0 or not o.force:
            raise ConfigError("algorithm vsrm: need answers >= 1, answer_tokens >= 1, window >= 0 and a text in force")
        self.cuts = Cuts(after=o.separators, before=o.markers, gap=o.min_gap, most=o.max_steps)

    def auxiliary(self, context: AuxiliaryContext) -> Auxiliary | None:
        return super().auxiliary(context) if self.options.via == "gae" else None

    def plan(self, problem: Problem, context: PlanContext) -> Plan:
        o = self.options
        return probe_plan(problem, context, n=o.answers, cuts=self.cuts, ending=o.force, max_tokens=o.answer_tokens)

    def credit(self, group: Group) -> None:
        super().credit(group)
        set_step_values(group, self.reward)
        o = self.options
        for sample in group.samples:
            values = sample.info["values"]
            end = sample.reward if o.last == "outcome" else values[-1]
            sample.info["step_rewards"] = step_rewards([*values, end], o.tol, o.window, o.decay)

    def rewards(self, batch: TokenBatch) -> Tensor:
        paid = self.needed(batch.token_reward, "token_reward").double()
        return paid + self.options.outcome * paid_at_end(batch.reward, batch.mask)

    def estimates(self, batch: TokenBatch) -> Tensor:
        if self.options.via == "gae":
            return super().estimates(batch)
        return to_go(self.rewards(batch), batch.mask, self.options.gamma)

    def observe(self, groups: Sequence[Group], context: StepContext) -> dict[str, float]:
        return probe_metrics(groups)
