"""What an algorithm is: plan, credit, loss, problem sampling, and the state it keeps between steps.

An algorithm is one class in one file. Its docstring opens with the formula and the arXiv id; `Options` names every
setting with its default and where that comes from. It is composed of the pure pieces of `skpo.losses` and `skpo.credit`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from skpo.errors import ConfigError, unknown
from skpo.problems.base import Problem
from skpo.rollout.plans import PlanContext, group_plan
from skpo.rollout.types import Group, Plan, Sample

if TYPE_CHECKING:
    from torch import Tensor

    from skpo.losses import TokenBatch
    from skpo.policy.auxiliary import Auxiliary, AuxiliaryContext


def option(default: Any, help: str) -> Any:
    """A field of `Options`: its default, and one sentence with its meaning and origin."""
    return field(default=default, metadata={"help": help})


#: Scores (context ids, token ids) pairs under today's policy: one float32 array of log-probabilities per pair.
Scorer = Callable[[Sequence[tuple[Sequence[int], Sequence[int]]]], list[np.ndarray]]


@dataclass
class StepContext:
    """What an algorithm may know when it updates its state after a step's rollouts.

    step: rollout steps done before this one; optimizer_step: optimiser steps done before this one.
    """

    step: int
    optimizer_step: int
    score: Scorer


class Algorithm:
    """Base class: group sampling, 0/1 rewards, no state. Subclasses override what differs."""

    name: ClassVar[str] = ""
    arxiv: ClassVar[str] = ""
    summary: ClassVar[str] = ""
    keeps: ClassVar[str] = "nothing"  #: what it remembers from step to step (all of it is in checkpoints)
    curriculum: ClassVar[str] = "uniform"  #: "uniform", "prioritized" or "gaussian", used where the recipe says `auto`

    @dataclass(frozen=True)
    class Options:
        pass

    def __init__(self, **options: Any) -> None:
        known = [f.name for f in fields(self.Options)]
        for key in options:
            if key not in known:
                raise ConfigError(f"algorithm {self.name}: {unknown('option', key, known)}")
        self.options: Any = self.Options(**options)
        self.budget: int | None = None  #: completion budget in tokens; the trainer sets it from the recipe
        self.akl_beta = (
            0.0  #: weight of an accuracy-conditioned KL beside the algorithm's own loss; set by the recipe's `kl: akl`
        )
        self.check()

    def check(self) -> None:
        """Raise `ConfigError` where options are out of range or contradict each other."""

    # ---- what the trainer has to provide ---------------------------------------------------------------------------

    @property
    def own_kl(self) -> bool:
        """The algorithm itself penalises the distance to the frozen starting policy."""
        return bool(getattr(self.options, "beta", 0.0))

    @property
    def needs_reference(self) -> bool:
        """A frozen copy of the starting policy scores every row (`ref_logp`)."""
        return self.own_kl or bool(self.akl_beta)

    @property
    def needs_old_entropy(self) -> bool:
        """The old policy's full-vocabulary entropy is recorded before the update (`old_entropy`)."""
        return False

    def auxiliary(self, context: AuxiliaryContext) -> Auxiliary | None:
        """A model beside the policy that the algorithm trains itself (critic, reward model), built once a run; None: there is none."""
        return None

    # ---- rollout ---------------------------------------------------------------------------------------------------

    def plan(self, problem: Problem, context: PlanContext) -> Plan:
        """The generator that samples this problem."""
        return group_plan(problem, context)

    def reward(self, sample: Sample) -> float:
        """The reward of a scored sample."""
        assert sample.score is not None
        return sample.score

    def credit(self, group: Group) -> None:
        """Set reward and baseline of a group's samples, once all scores are in. Rows without a score are taken out before."""
        for sample in group.samples:
            sample.reward = self.reward(sample)

    def keep(self, group: Group) -> bool:
        """False asks the trainer to sample another problem in this one's place (dynamic sampling)."""
        return True

    @property
    def max_rounds(self) -> int:
        """Dynamic sampling draws at most this many times the step's problems; 1: never draws again."""
        return 1

    # ---- credit and loss -------------------------------------------------------------------------------------------

    def advantages(self, batch: TokenBatch) -> Tensor:
        """Advantages of the whole step's rows, [N] (or [N, T] where they differ by token)."""
        raise NotImplementedError

    def loss(self, batch: TokenBatch, advantages: Tensor) -> tuple[Tensor, dict[str, float]]:
        """(scalar to minimise, metrics). On a micro-batch both are its share: shares add up to the whole batch's."""
        raise NotImplementedError

    def full_loss(self, batch: TokenBatch, advantages: Tensor) -> tuple[Tensor, dict[str, float]]:
        """`loss`, with the accuracy-conditioned KL that the recipe adds to it (`kl: akl`); this is what the trainer minimises."""
        loss, metrics = self.loss(batch, advantages)
        if not self.akl_beta:
            return loss, metrics
        from skpo.losses import accuracy_kl

        penalty = accuracy_kl(batch, self.akl_beta)
        return loss + penalty, {**metrics, "loss_akl": float(penalty.detach())}

    # ---- between steps ---------------------------------------------------------------------------------------------

    def problem_weight(self, problem_id: str) -> float | None:
        """Sampling weight under a prioritised curriculum; None: this algorithm keeps no value of a problem."""
        return None

    def observe(self, groups: Sequence[Group], context: StepContext) -> dict[str, float]:
        """Update what is kept between steps, after credit and before the optimiser; returns metrics."""
        return {}

    def state_dict(self) -> dict[str, Any]:
        return {}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        pass
