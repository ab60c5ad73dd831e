"""Scores from hidden states in chunks of logits: values and gradients of a plain log-softmax."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from skpo.policy import head as module
from skpo.policy.head import plain, takes_gradients, token_scores

WIDTH, VOCABULARY, ROWS = 8, 31, 13


def inputs(dtype: torch.dtype = torch.float32) -> tuple[Tensor, Tensor, Tensor]:
    """(hidden states with gradient, sampled tokens, weights of their log-probabilities)."""
    generator = torch.Generator().manual_seed(0)
    states = torch.randn(ROWS, WIDTH, generator=generator).to(dtype).requires_grad_()
    return states, torch.randint(0, VOCABULARY, (ROWS,), generator=generator), torch.linspace(-1, 2, ROWS)


def linear_head(*, bias: bool = False) -> nn.Linear:
    torch.manual_seed(1)
    return nn.Linear(WIDTH, VOCABULARY, bias=bias)


def with_adapter() -> Any:
    import peft

    holder = nn.ModuleDict({"lm_head": linear_head()})
    config = peft.LoraConfig(r=2, target_modules=["lm_head"], init_lora_weights=False)
    return peft.inject_adapter_in_model(config, holder)["lm_head"]


def expected(head: Any, temperature: float) -> tuple[Tensor, Tensor, list[Tensor]]:
    states, target, weights = inputs()
    full = torch.log_softmax(head(states) / temperature, -1)
    logp = full.gather(-1, target[:, None])[:, 0]
    trained = [states, *(p for p in head.parameters() if p.requires_grad)]
    return (
        logp.detach(),
        -(full.exp() * full).sum(-1).detach(),
        list(torch.autograd.grad((logp * weights).sum(), trained)),
    )


@pytest.mark.parametrize("chunk", [1, 5 * VOCABULARY, 1 << 20])
@pytest.mark.parametrize("temperature", [1.0, 0.6])
@pytest.mark.parametrize("kind", ["linear", "bias", "frozen", "adapter"])
def test_values_and_gradients(kind: str, temperature: float, chunk: int) -> None:
    head = with_adapter() if kind == "adapter" else linear_head(bias=kind == "bias").requires_grad_(kind != "frozen")
    assert plain(head) == (kind != "adapter")
    logp_, entropy_, gradients_ = expected(head, temperature)
    states, target, weights = inputs()
    logp, entropy = token_scores(head, states, target, temperature=temperature, chunk=chunk)
    trained = [states, *(p for p in head.parameters() if p.requires_grad)]
    gradients = torch.autograd.grad((logp * weights).sum(), trained)
    torch.testing.assert_close(logp.detach(), logp_, atol=1e-5, rtol=0)
    torch.testing.assert_close(entropy, entropy_, atol=1e-5, rtol=0)
    assert not entropy.requires_grad
    for gradient, full in zip(gradients, gradients_, strict=True):
        torch.testing.assert_close(gradient, full, atol=1e-5, rtol=1e-5)


def test_no_more_logits_than_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    rooms: list[int] = []
    made: list[int] = []
    buffer, logits = module._buffer, module._logits

    def watched_buffer(*args: Any) -> Tensor:
        out = buffer(*args)
        rooms.append(out.numel())
        return out

    def watched_logits(*args: Any, out: Tensor) -> None:
        made.append(out.numel())
        logits(*args, out=out)

    monkeypatch.setattr(module, "_buffer", watched_buffer)
    monkeypatch.setattr(module, "_logits", watched_logits)
    states, target, _ = inputs()
    logp, _ = token_scores(linear_head(), states, target, temperature=1.0, chunk=3 * VOCABULARY + 5)
    logp.sum().backward()
    assert rooms == [3 * VOCABULARY] * 3  # two forward, one backward
    assert sum(made) == 2 * ROWS * VOCABULARY  # once forward, once backward
    made.clear()
    token_scores(linear_head(), states, target, temperature=1.0, chunk=1 << 20)[0].sum().backward()
    assert made == [ROWS * VOCABULARY]  # all of them fit: kept, not made again


@pytest.mark.parametrize("bias", [True, False])
def test_gradients_added_in_place_are_those_of_autograd(bias: bool) -> None:
    plain_, direct = linear_head(bias=bias), linear_head(bias=bias)
    for _ in range(2):  # the second pass adds to the first one's
        for head in (plain_, direct):
            states, target, weights = inputs()
            logp, _ = token_scores(head, states, target, temperature=0.7, chunk=4 * VOCABULARY, in_place=head is direct)
            (logp * weights).sum().backward()
        for expected_, found in zip(plain_.parameters(), direct.parameters(), strict=True):
            torch.testing.assert_close(found.grad, expected_.grad, atol=1e-6, rtol=1e-5)


def test_a_watched_gradient_is_left_to_autograd() -> None:
    head = linear_head()
    assert takes_gradients(head.weight)
    head.weight.register_post_accumulate_grad_hook(lambda p: None)
    assert not takes_gradients(head.weight)
    assert not takes_gradients(linear_head().requires_grad_(False).weight)
    assert not takes_gradients(linear_head().to(torch.bfloat16).weight)


def test_a_head_with_hooks_is_called_as_a_module() -> None:
    head = linear_head()
    head.register_forward_hook(lambda module, args, out: out * 2)
    states, target, _ = inputs()
    logp, _ = token_scores(head, states, target, temperature=1.0, chunk=100)
    full = torch.log_softmax(2 * nn.functional.linear(states, head.weight), -1)
    torch.testing.assert_close(logp, full.gather(-1, target[:, None])[:, 0])


def test_low_precision_sums_its_gradient_in_float32() -> None:
    """Chunks of a bfloat16 pass add up without rounding at each."""
    head, low = linear_head(), linear_head().to(torch.bfloat16)
    states, target, weights = inputs()
    with torch.autocast("cpu", torch.bfloat16):
        logp, _ = token_scores(head, states, target, temperature=1.0, chunk=VOCABULARY)
    (fine,) = torch.autograd.grad((logp * weights).sum(), [head.weight])
    assert logp.dtype == fine.dtype == torch.float32
    torch.testing.assert_close(fine, expected(linear_head(), 1.0)[2][1], atol=0.05, rtol=0)
    states_, _, _ = inputs(torch.bfloat16)
    logp_, _ = token_scores(low, states_, target, temperature=1.0, chunk=VOCABULARY)
    (coarse,) = torch.autograd.grad((logp_ * weights).sum(), [low.weight])
    assert coarse.dtype == torch.bfloat16
    torch.testing.assert_close(coarse.float(), fine, atol=0.05, rtol=0)
