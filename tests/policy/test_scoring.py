"""Log-probabilities with gradient: equal to the model's own softmax, whatever the packing."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from support import tiny_model
from torch.utils._python_dispatch import TorchDispatchMode

from skpo.policy.budget import padded_batches
from skpo.policy.scoring import PackedRows, ScoringModel, score_rows

ROWS = [((3, 4, 5), np.array([6, 7, 8, 9])), ((3,), np.array([2])), ((11, 12, 13, 14, 15, 16), np.array([1, 2]))]


def reference(model: torch.nn.Module, temperature: float) -> list[tuple[torch.Tensor, torch.Tensor]]:
    """(log-probability, entropy) of each row from one full forward pass a row."""
    out = []
    for context, tokens in ROWS:
        ids = torch.tensor([[*context, *tokens.tolist()]])
        logits = model(input_ids=ids).logits[0, len(context) - 1 : -1].float() / temperature
        full = torch.log_softmax(logits, -1)
        picked = full.gather(-1, torch.tensor(tokens)[:, None])[:, 0]
        out.append((picked, -(full.exp() * full).sum(-1)))
    return out


@pytest.mark.parametrize("temperature", [1.0, 0.7])
@pytest.mark.parametrize("budget", [1, 12, 1000])
def test_equal_to_the_models_own_softmax(family: str, temperature: float, budget: int) -> None:
    model = tiny_model(family)
    logps, entropies = score_rows(
        ScoringModel(model, temperature=temperature, chunk=3 * 67), ROWS, device="cpu", budget=budget
    )
    with torch.no_grad():
        for logp, entropy, (expected, expected_entropy) in zip(
            logps, entropies, reference(model, temperature), strict=True
        ):
            torch.testing.assert_close(torch.tensor(logp), expected, atol=1e-5, rtol=0)
            torch.testing.assert_close(torch.tensor(entropy), expected_entropy, atol=1e-5, rtol=0)


def test_recomputed_chunks_give_the_same_gradient(family: str) -> None:
    model = tiny_model(family)
    packed = PackedRows.from_rows(ROWS, pad=5)
    weights = torch.linspace(-1, 1, len(packed.target))
    gradients = []
    for chunk in (1 << 30, 2 * 67):
        logp, _ = ScoringModel(model, chunk=chunk)(*packed.inputs)
        gradients.append(torch.autograd.grad((logp * weights).sum(), list(model.parameters()), allow_unused=True))
    expected = torch.autograd.grad(
        (torch.cat([logp for logp, _ in reference(model, 1.0)]) * weights).sum(),
        list(model.parameters()),
        allow_unused=True,
    )
    for plain, recomputed, full in zip(*gradients, expected, strict=True):
        if full is not None:
            torch.testing.assert_close(plain, full, atol=1e-5, rtol=1e-4)
            torch.testing.assert_close(recomputed, plain, atol=1e-6, rtol=1e-5)


class Made(TorchDispatchMode):
    """Dense tensors of one shape that operations make, apart from those that are there."""

    def __init__(self, shape: torch.Size, *there: torch.Tensor | None) -> None:
        super().__init__()
        self.shape, self.there, self.names = shape, {t.data_ptr() for t in there if t is not None}, []

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = function(*args, **(kwargs or {}))
        if isinstance(out, torch.Tensor) and out.layout == torch.strided and out.shape == self.shape:
            if out.data_ptr() not in self.there:
                self.names.append(str(function))
            self.there.add(out.data_ptr())
        return out


@pytest.mark.parametrize("tied", [True, False])
def test_gradients_of_the_vocabulary_are_added_in_place(family: str, tied: bool) -> None:
    """They are those of autograd, and no further matrix of the vocabulary is made for them."""
    plain, direct = (tiny_model(family, tie_word_embeddings=tied) for _ in range(2))
    scoring, scoring_ = ScoringModel(plain, chunk=2 * 67), ScoringModel(direct, chunk=2 * 67, in_place=True)
    packed = PackedRows.from_rows(ROWS)
    weights = torch.linspace(-1, 1, len(packed.target))
    embedding = direct.get_input_embeddings()
    head = direct.get_output_embeddings().weight
    for number in (1, 2, 3):
        (scoring(*packed.inputs)[0] * weights).sum().backward()
        with Made(head.shape, head, head.grad, embedding.weight, embedding.weight.grad) as made:
            (scoring_(*packed.inputs)[0] * weights).sum().backward()
        assert len(made.names) == ((1 if tied else 2) if number == 1 else 0)  # the gradients themselves
        assert not embedding.sparse
        for p, q in zip(plain.parameters(), direct.parameters(), strict=True):
            assert q.grad is None or q.grad.layout == torch.strided
            torch.testing.assert_close(q.grad, p.grad, atol=1e-6, rtol=1e-5)


def test_padded_form() -> None:
    packed = PackedRows.from_rows(ROWS)
    values = torch.arange(1.0, 8.0)
    expected = torch.tensor([[1.0, 2, 3, 4], [5, 0, 0, 0], [6, 7, 0, 0]])
    torch.testing.assert_close(packed.padded(values), expected)


def test_heads_that_scale_their_logits_use_the_models_own_code() -> None:
    """Gemma-2 caps its final logits: hidden states times the output matrix would be another distribution."""
    import transformers

    torch.manual_seed(0)
    config = transformers.Gemma2Config(
        vocab_size=67, hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2,
        head_dim=8, final_logit_softcapping=0.05, attn_implementation="eager",
    )  # fmt: skip
    model = transformers.AutoModelForCausalLM.from_config(config).eval()
    logps, _ = score_rows(ScoringModel(model), ROWS, device="cpu", budget=100)
    with torch.no_grad():
        for logp, (expected, _) in zip(logps, reference(model, 1.0), strict=True):
            torch.testing.assert_close(torch.tensor(logp), expected, atol=1e-5, rtol=0)


def test_padded_batches() -> None:
    assert padded_batches([3, 10, 4, 5], 10) == [[1], [3, 2], [0]]  # 5 + 4 padded to 5 + 5
    assert padded_batches([30, 2], 10) == [[0], [1]]  # longer than the budget: alone
    assert padded_batches([], 10) == []


def test_lora_is_scored_through_its_adapters() -> None:
    import peft

    model = peft.get_peft_model(
        tiny_model("llama"), peft.LoraConfig(r=2, target_modules="all-linear", init_lora_weights=False)
    )
    logps, _ = score_rows(ScoringModel(model), ROWS, device="cpu", budget=100)
    with torch.no_grad():
        for logp, (expected, _) in zip(logps, reference(model, 1.0), strict=True):
            torch.testing.assert_close(torch.tensor(logp), expected, atol=1e-5, rtol=0)
