"""Critique-GRPO: what is shown, what is trained under which context, and how refinements weigh."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest
import torch
from scripted import TextlessRenderer, drive, sample

from skpo import get_algorithm, load_problems
from skpo.config import ModelConfig
from skpo.errors import ConfigError
from skpo.losses import TokenBatch
from skpo.problems.base import Problem
from skpo.rollout.plans import PlanContext, Wording
from skpo.rollout.types import REFINEMENT, Group, Request, Sample, Sampling

PROBLEM = Problem("q", "1", id="q")


def judge(samples: Sequence[Sample]) -> None:
    """Right where the first token is even."""
    for s in samples:
        s.text = f"answer {s.tokens[0]}"
        s.score = float(s.tokens[0] % 2 == 0)


def context(n: int = 4, **more: object) -> PlanContext:
    base = PlanContext(TextlessRenderer(), n, 50, Sampling(), 0, np.random.default_rng(0), judge)
    return replace(base, **more)  # type: ignore[arg-type]


def answers(first: Sequence[int]):
    def answer(i: int, request: Request) -> list[Sample]:
        return [sample([t], finished=True) for t in first] if i == 0 else [sample([40 + i], finished=True)]

    return answer


def run(options: dict, first: Sequence[int], **more: object) -> tuple[Group, list[Request]]:
    algorithm = get_algorithm("critique_grpo", **options)
    return drive(algorithm.plan(PROBLEM, context(**more)), answers(first))


def test_a_wrong_response_is_shown_with_its_verdict() -> None:
    group, requests = run({}, [2, 5, 4])
    assert [(r.context, r.n) for r in requests[:1]] == [((1, 2), 3)]  # n = G - k
    critique = f"{Wording.wrong} {Wording.again}"
    assert requests[1] == Request((1, 2, 8, len("answer 5"), 8, len(critique)), 1, 50)
    refinement = group.samples[-1]
    assert refinement.role == REFINEMENT
    assert refinement.context == (1, 2)  # trained under q alone
    assert refinement.info == {"refines": 1, "rescore": True}
    assert len(group.completions) == 3
    assert group.unused == []


def test_a_self_written_critique_comes_first_and_is_not_trained() -> None:
    group, requests = run({"critique": "self", "critique_tokens": 20}, [2, 5, 4])
    assert [(r.n, r.max_tokens) for r in requests] == [(3, 50), (1, 20), (1, 50)]
    assert requests[1].context == (1, 2, 8, 8, 8, len(Wording.critique))
    assert requests[2].context == (1, 2, 8, 8, 8, len(Wording.critique), 8, len("41"), 8, len(Wording.again))
    assert [s.tokens.tolist() for s in group.unused] == [[41]]
    assert group.samples[-1].tokens.tolist() == [42]
    assert group.generated_tokens == 5


def test_all_right() -> None:
    group, requests = run({"text_right": "Yes.", "text_again": "Again."}, [2, 4, 6])
    assert requests[1].context[-1] == len("Yes. Again.")
    assert len(group.samples) == 4
    group, requests = run({"all_right": "none"}, [2, 4, 6])
    assert len(requests) == 1
    assert len(group.samples) == 3


def test_several_refinements() -> None:
    group, _ = run({"refinements": 2}, [3, 5], n=4)
    assert sorted(s.info["refines"] for s in group.samples if s.role == REFINEMENT) == [0, 1]  # no response twice
    group, _ = run({"refinements": 2}, [3, 4], n=4)
    assert [s.info["refines"] for s in group.samples if s.role == REFINEMENT] == [0, 0]  # unless there is but one


def test_what_does_not_fit_the_model_is_left_out() -> None:
    group, _ = run({}, [2, 5, 4], positions=55)  # 6 ids of context and 50 new tokens
    assert len(group.samples) == 3
    group, _ = run({}, [2, 5, 4], positions=56)
    assert len(group.samples) == 4
    group, requests = run({"critique": "self"}, [2, 5, 4], positions=56)  # the critique fits, what follows it does not
    assert len(requests) == 2
    assert (len(group.samples), len(group.unused)) == (3, 1)


def test_needs_a_verifier_and_room() -> None:
    with pytest.raises(ConfigError, match="refinement needs a verifier"):
        run({}, [2], judge=None)
    with pytest.raises(ConfigError, match="found 1"):
        run({}, [], n=1)
    with pytest.raises(ConfigError, match="at least 1"):
        get_algorithm("critique_grpo", refinements=0)


def test_prompts_of_a_base_model() -> None:
    """The chain model has no chat template, and no capitals, blanks or line breaks: its tokenizer reads them as unknown."""
    from skpo.chain_base import chain_tokenizer
    from skpo.policy.prompts import PromptRenderer

    renderer = PromptRenderer(chain_tokenizer(), ModelConfig(path="builtin:chain-base"), chat=False)
    (problem,) = load_problems("builtin:chain?steps=4&size=1")
    shown = "a3+8=1;#51"
    words = {"text_wrong": "#-", "text_right": "#+", "text_again": "", "text_critique": "#", "critique": "self"}
    for options in ({}, words):
        plan = get_algorithm("critique_grpo", **options).plan(problem, context(2, renderer=renderer, positions=512))

        def answer(i: int, request: Request) -> list[Sample]:
            ids = renderer.tokenizer(shown)["input_ids"]
            return [sample(ids, finished=True) for _ in range(request.n)]

        group, requests = drive(plan, answer)
        assert renderer.decode(requests[1].context).startswith(str(problem.prompt))
        assert len(group.samples) == 2
        assert group.samples[-1].context == renderer.prompt_ids(problem)


def test_refinements_are_shaped_by_their_probability() -> None:
    """R = 1, 0, 1 in one group: A = 1/3, -2/3, 1/3. On policy a direct token's gradient is -A / (N L); a refinement's is
    -A p gamma / (p + gamma)^2 / (N L), since f = p / (p + gamma) and dp / d logp = p."""
    logp = torch.tensor([[0.5], [0.5], [0.3]], dtype=torch.float64).log()
    zeros = torch.zeros(3, dtype=torch.float64)
    role = torch.tensor([0, 0, REFINEMENT])
    reward = torch.tensor([1.0, 0.0, 1.0], dtype=torch.float64)
    batch = TokenBatch(reward, role * 0, role, zeros, logp.requires_grad_(), logp.detach(), torch.ones_like(logp))
    algorithm = get_algorithm("critique_grpo")
    algorithm.budget = 10
    loss, metrics = algorithm.loss(batch, algorithm.advantages(batch))
    (gradient,) = torch.autograd.grad(loss, batch.logp)
    expected = [-1 / 3 / 30, 2 / 3 / 30, -1 / 3 * 0.3 * 0.1 / 0.16 / 30]
    assert gradient[:, 0].tolist() == pytest.approx(expected, abs=1e-12)
    assert metrics == {"clip_fraction": 0.0}
