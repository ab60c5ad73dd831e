"""PPO: GAE by hand, the value loss, the critic, runs and their resumption."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from support import tiny_model
from token_credit import (
    auxiliary_context,
    batch_of,
    check_micro_batches,
    check_resume,
    check_run,
    model_rows,
    rows_of,
    step_rows,
)

from skpo import get_algorithm
from skpo.credit_tokens import gae, paid_at_end, to_go
from skpo.policy.critic import Critic, ValueModel, clipped_value_loss, explained
from skpo.policy.scoring import PackedRows


def close(actual: torch.Tensor, expected: list[list[float]], atol: float = 1e-9) -> None:
    torch.testing.assert_close(actual.double(), torch.tensor(expected, dtype=torch.float64), rtol=0, atol=atol)


@pytest.mark.parametrize(
    ("gamma", "lam", "expected"),
    [
        # rewards 0, 0, 1; V = .2, .5, .4. delta_3 = 1 - .4 = .6, delta_2 = .4 - .5 = -.1, delta_1 = .5 - .2 = .3
        (1.0, 0.5, [0.4, 0.2, 0.6]),  # A_2 = -.1 + .5 * .6 = .2, A_1 = .3 + .5 * .2 = .4
        (1.0, 1.0, [0.8, 0.5, 0.6]),  # 1 - V
        (1.0, 0.0, [0.3, -0.1, 0.6]),  # delta
        # gamma .5: delta_2 = .5 * .4 - .5 = -.3, delta_1 = .5 * .5 - .2 = .05
        (0.5, 1.0, [0.05, 0.0, 0.6]),  # .25 - .2, .5 - .5, 1 - .4
        (0.5, 0.4, [0.014, -0.18, 0.6]),  # A_2 = -.3 + .2 * .6 = -.18, A_1 = .05 + .2 * -.18 = .014
    ],
)
def test_gae_on_three_tokens(gamma: float, lam: float, expected: list[float]) -> None:
    batch = batch_of([1.0, 0.5], [3, 1], [0, 0], value=rows_of([[0.2, 0.5, 0.4], [0.1]]))
    algorithm = get_algorithm("ppo", gamma=gamma, lam=lam, whiten=False)
    advantages = algorithm.advantages(batch)
    close(advantages, [expected, [0.4, 0.0, 0.0]])  # a row of one token: .5 - .1, whatever stands in its padding
    returns = algorithm.returns(batch)
    close(returns[:1], [[a + v for a, v in zip(expected, [0.2, 0.5, 0.4], strict=True)]])


def test_rewards_to_go() -> None:
    mask = torch.tensor([[1.0, 1, 1], [1, 0, 0], [0, 0, 0]])
    close(paid_at_end(torch.tensor([2.0, 3.0, 4.0]), mask), [[0, 0, 2], [3, 0, 0], [0, 0, 0]])
    rewards = torch.tensor([[1.0, 0, 4], [3, 9, 9], [9, 9, 9]])
    close(to_go(rewards, mask), [[5, 4, 4], [3, 0, 0], [0, 0, 0]])
    close(to_go(rewards, mask, 0.5), [[2, 2, 4], [3, 0, 0], [0, 0, 0]])
    assert gae(rewards[:, :0], rewards[:, :0], mask[:, :0]).shape == (3, 0)


def test_whitened_over_the_tokens() -> None:
    # R = 1, 0, V = 0: A = 1, 1, 1 and 0. mean .75, variance (3 * .0625 + .5625) / 3 = .25
    batch = batch_of([1.0, 0.0], [3, 1], [0, 0], value=rows_of([[0.0] * 3, [0.0]]))
    close(get_algorithm("ppo").advantages(batch), [[0.5] * 3, [-1.5, 0, 0]], atol=1e-5)
    with pytest.raises(ValueError, match=r"ppo: its advantages need batch\.value"):
        get_algorithm("ppo").advantages(batch_of([1.0], [2], [0]))


def test_clipped_value_loss() -> None:
    value, old, returns = torch.tensor([0.9, 0.25, 0.1]), torch.tensor([0.2, 0.2, 0.5]), torch.tensor([1.0, 0.0, 0.0])
    # clip .2: V may reach .4, so (.4 - 1)^2 / 2; unclipped .25^2 / 2; V may fall to .3, so .3^2 / 2
    expected = torch.tensor([0.18, 0.03125, 0.045])
    torch.testing.assert_close(clipped_value_loss(value, old, returns, 0.2), expected)
    torch.testing.assert_close(clipped_value_loss(value, old, returns, None), torch.tensor([0.005, 0.03125, 0.005]))


def test_explained_variance() -> None:
    goal, mask = torch.tensor([[0.0, 1.0, 7.0]]), torch.tensor([[1.0, 1.0, 0.0]])
    assert explained(torch.tensor([[0.0, 1.0, 0.0]]), goal, mask) == 1
    assert explained(torch.tensor([[0.5, 0.5, 0.0]]), goal, mask) == 0
    assert explained(goal, torch.ones(1, 3), mask) == 0


@pytest.mark.parametrize("family", ["llama", "gpt2"])
def test_a_value_is_that_of_the_state_before_its_token(family: str) -> None:
    model = tiny_model(family)
    module = ValueModel(model)
    assert not any("lm_head" in name for name, _ in module.named_parameters())
    torch.nn.init.normal_(module.head.weight)
    rows = [((5, 6, 7), [8, 9]), ((5,), [6])]
    packed = PackedRows.from_rows(rows)
    values = packed.padded(module(packed.input_ids, packed.place, packed.target)[0])
    base = getattr(model, model.base_model_prefix)
    first = module.head(base(input_ids=torch.tensor([[5, 6, 7, 8]])).last_hidden_state)[0, 2:, 0]
    second = module.head(base(input_ids=torch.tensor([[5]])).last_hidden_state)[0, :, 0]
    torch.testing.assert_close(values, torch.stack([first, torch.cat([second, torch.zeros(1)])]), atol=1e-5, rtol=0)


@pytest.mark.parametrize("kind", ["separate", "shared"])
def test_the_critic_learns_the_returns(kind: str) -> None:
    policy = tiny_model("llama")
    before = [p.detach().clone() for p in policy.parameters()]
    data = model_rows(policy)
    critic = Critic(auxiliary_context(policy), get_algorithm("ppo").returns, kind=kind, clip=None)
    rows, losses = step_rows(data), []
    for _ in range(6):
        critic.before_credit(rows, data.batch)
        losses.append(critic.update(rows, data.batch)["value_loss"])
    # values begin at 0: the loss is half of the tokens' share in rewarded rows
    share = float((data.batch.reward[:, None] * data.batch.mask).sum() / data.batch.mask.sum())
    assert losses[0] == pytest.approx(share / 2)
    assert losses[-1] < losses[0] * 0.9
    assert all(torch.equal(p, b) and p.grad is None for p, b in zip(policy.parameters(), before, strict=True))
    own = "decoder.embed_tokens.weight" in critic.state_dict()["weights"]
    assert own == (kind == "separate")


def test_the_critic_does_not_depend_on_micro_batches() -> None:
    policy, results = tiny_model("llama"), []
    for budget in (1, 40, 10_000):
        data = model_rows(policy)
        critic = Critic(
            auxiliary_context(policy, micro_batch_tokens=budget, mini_batches=2), get_algorithm("ppo").returns
        )
        torch.nn.init.constant_(critic.model.module.head.weight, 0.01)
        critic.before_credit(step_rows(data), data.batch)
        results.append(critic.update(step_rows(data), data.batch))
    for other in results[:2]:
        assert other == pytest.approx(results[2], abs=1e-5)


def test_the_critic_skips_non_finite_steps() -> None:
    policy = tiny_model("llama")
    data = model_rows(policy)
    critic = Critic(auxiliary_context(policy), lambda batch: batch.mask * float("nan"))
    critic.before_credit(step_rows(data), data.batch)
    assert critic.update(step_rows(data), data.batch)["value_skipped"] == 1
    assert all(p.isfinite().all() for p in critic.state_dict()["weights"].values())


def test_micro_batches() -> None:
    check_micro_batches("ppo", lam=0.95)


@pytest.mark.parametrize("more", [[], ["algorithm.critic=shared", "algorithm.lam=0.95"]])
def test_run(tmp_path: Path, more: list[str]) -> None:
    metrics = check_run(tmp_path / "run", "algorithm=ppo", *more)
    assert metrics[0]["value_loss"] > 0


def test_run_with_adapters(tmp_path: Path) -> None:
    """With LoRA the critic's backbone is frozen, too, under adapters of its own."""
    check_run(tmp_path / "run", "algorithm=ppo", "model.lora.r=4", "optimizer.lr=2e-3")
    weights = torch.load(tmp_path / "run" / "checkpoints" / "step-000002" / "auxiliary.pt", weights_only=True)[
        "weights"
    ]
    assert all("lora" in name or name.startswith("head.") for name in weights)
    assert any("lora" in name for name in weights)


def test_resume(tmp_path: Path) -> None:
    check_resume(tmp_path, "algorithm=ppo", "optimizer.mini_batches=2")
