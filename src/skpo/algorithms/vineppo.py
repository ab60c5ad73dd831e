"""VinePPO: PPO whose values are Monte-Carlo estimates at the steps of a response (arXiv 2410.01679)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from torch import Tensor

from skpo.algorithms.base import StepContext, option
from skpo.algorithms.token_clip import TokenClip
from skpo.credit import whitened
from skpo.credit_tokens import step_gains
from skpo.errors import ConfigError
from skpo.losses import TokenBatch
from skpo.problems.base import Problem
from skpo.rollout.plans import PlanContext
from skpo.rollout.probes import Cuts, probe_metrics, probe_plan, set_step_values
from skpo.rollout.types import Group, Plan


class VinePPO(TokenClip):
    """Responses are cut into steps, s_0 (the prompt), s_1, ...;   V(s_k) = mean reward of K continuations sampled from s_k

    A_t = V(s_k+1) - V(s_k)  for every token of step k;   V at the end of the response = its own reward
    J = mean over tokens of  min(r_t A_t, clip(r_t, 1 - low, 1 + high) A_t)

    arXiv 2410.01679, section 4: K = 9, gamma 1, the clip is PPO's. Where steps end is a list of texts: the ends of lines and sentences, and
    ";" [ours]. Steps of fewer than `min_gap` tokens join the next one, and of more than `max_steps` cuts at even distances stay [ours].
    Responses that share a beginning share its continuations, as they all do the prompt's [ours]. Continuations get what is left of the
    completion budget; they are not trained on, and count as generated tokens.
    """

    name, arxiv = "vineppo", "2410.01679"
    summary = "step advantages from Monte-Carlo values: continuations from every step's start"

    @dataclass(frozen=True)
    class Options(TokenClip.Options):
        continuations: int = option(9, "K, continuations from each step's start (paper)")
        separators: Sequence[str] = option(("\n", ". ", "! ", "? ", ";"), "texts that end a step")
        min_gap: int = option(4, "fewest tokens of a step")
        max_steps: int | None = option(16, "most steps of a response; null: no limit")
        whiten: bool = option(False, "advantages at zero mean and unit variance over the batch's tokens")

    def check(self) -> None:
        o = self.options
        if o.continuations < 1:
            raise ConfigError("algorithm vineppo: continuations must be at least 1")
        self.cuts = Cuts(after=o.separators, gap=o.min_gap, most=o.max_steps)

    def plan(self, problem: Problem, context: PlanContext) -> Plan:
        return probe_plan(problem, context, n=self.options.continuations, cuts=self.cuts)

    def credit(self, group: Group) -> None:
        super().credit(group)
        set_step_values(group, self.reward)

    def advantages(self, batch: TokenBatch) -> Tensor:
        value, step = self.needed(batch.value, "value"), self.needed(batch.step, "step")
        gains = step_gains(value, step, batch.reward, batch.mask)
        return whitened(gains, batch.mask) * batch.mask if self.options.whiten else gains

    def observe(self, groups: Sequence[Group], context: StepContext) -> dict[str, float]:
        return probe_metrics(groups)
