"""Rows that share a prefix: the log-probabilities, entropies and gradients of the padded form, for models whose attention allows it."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from support import tiny_model

from skpo.errors import ModelError
from skpo.policy.budget import Row, micro_batches, process_shares, shared_tokens
from skpo.policy.scoring import PackedRows, ScoringModel, score_rows, shares
from skpo.policy.shared_prefix import lay_out

RNG = np.random.default_rng(0)


def row(context: int | list[int], tokens: int) -> Row:
    """A random row of such lengths, or behind a given context."""
    ids = context if isinstance(context, list) else RNG.integers(3, 60, context).tolist()
    return ids, RNG.integers(3, 60, tokens)


def group(context: int, *tokens: int) -> list[Row]:
    first = row(context, tokens[0])
    return [first, *(row(list(first[0]), n) for n in tokens[1:])]


def alike(context: int, *parts: tuple[int, int]) -> list[Row]:
    """Rows of one context; each takes so many of the first row's tokens, and goes on with as many of its own."""
    first = row(context, max(shared for shared, _ in parts))
    return [(first[0], np.concatenate([first[1][:shared], RNG.integers(3, 60, own)])) for shared, own in parts]


BATCHES = {
    "one group": group(7, 5, 9, 2, 5),
    "groups of different contexts": [*group(5, 4, 4, 4), *group(12, 3, 8), *group(9, 2, 7)],
    "one sampled token": [*group(6, 1, 1, 1), *group(4, 1, 5), row(3, 1)],
    "contexts of one token": [*group(1, 3, 1, 6), row(1, 4), row(1, 1)],
    "nothing shared": [row(4, 5), row(11, 2), row(3, 9)],
    "segments beside completions": [row([5, 6, 7], 6), *group(11, 4, 9, 1, 7), row([8, 9], 3), *group(10, 2, 2)],
    "lengths far apart": [*group(90, 70, 3, 1, 60, 2), *group(2, 80, 1), row(60, 75), *group(70, 65, 66)],
    "completions that begin alike": [
        *alike(5, (9, 0), (4, 3), (4, 8), (7, 2), (0, 6)),
        *alike(3, (3, 3), (1, 7)),
        row(4, 4),
    ],
    "the same completion again": [
        *alike(6, (8, 0), (8, 0), (3, 2), (8, 0)),
        *alike(2, (1, 0), (1, 0)),
        *alike(4, (2, 0), (2, 0)),
    ],
    "one is how another begins": [*alike(5, (9, 0), (5, 0), (1, 0), (5, 1), (5, 1), (8, 0))],
    "long ones that begin alike": [
        *alike(40, (150, 0), (120, 9), (120, 60), (149, 1), (2, 140), (150, 0)),
        *group(7, 5, 130),
    ],
    "order mixed up": [x for pair in zip(group(5, 4, 2, 9), group(8, 3, 1, 5), strict=True) for x in pair],
}


def numbers(
    model: Any, rows: list[Row], *, share: bool
) -> tuple[torch.Tensor, torch.Tensor, list[torch.Tensor | None]]:
    """(log-probabilities, entropies, gradients of a weighted sum) of the rows in one layout."""
    scoring = ScoringModel(model, chunk=5 * 67, share=share)
    packed = PackedRows.from_rows(rows, share=share)
    logp, entropy = scoring(*packed.inputs)
    weights = torch.linspace(-1, 1, len(logp))
    trained = [p for p in model.parameters() if p.requires_grad]
    gradients = torch.autograd.grad((logp * weights).sum(), trained, allow_unused=True)
    return logp.detach(), entropy, list(gradients)


def assert_same(model: Any, rows: list[Row]) -> None:
    logp, entropy, gradients = numbers(model, rows, share=False)
    logp_, entropy_, gradients_ = numbers(model, rows, share=True)
    torch.testing.assert_close(logp_, logp, atol=1e-5, rtol=0)
    torch.testing.assert_close(entropy_, entropy, atol=1e-5, rtol=0)
    whole, whole_ = (torch.cat([g.flatten() for g in gs if g is not None]) for gs in (gradients, gradients_))
    assert float((whole_ - whole).norm() / whole.norm()) < 1e-5


def olmo(**options: Any) -> torch.nn.Module:
    """A model that nothing in this package knows: its norms stand behind attention and MLP."""
    import transformers

    torch.manual_seed(0)
    config = transformers.Olmo2Config(
        vocab_size=67, hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2,
        initializer_range=0.2, **options,
    )  # fmt: skip
    return transformers.AutoModelForCausalLM.from_config(config).eval()


@pytest.mark.parametrize("name", BATCHES)
@pytest.mark.parametrize("family", ["llama", "olmo2"])
def test_same_numbers_and_gradient(family: str, name: str) -> None:
    model = olmo() if family == "olmo2" else tiny_model(family, initializer_range=0.2)
    assert_same(model, BATCHES[name])


@pytest.mark.parametrize("tied", [True, False])
def test_families(family: str, tied: bool) -> None:
    model = tiny_model(family, initializer_range=0.2, tie_word_embeddings=tied)
    assert_same(model, BATCHES["segments beside completions"])


def test_many_query_heads_on_one_key_head() -> None:
    assert_same(tiny_model("llama", num_key_value_heads=1, initializer_range=0.2), BATCHES["lengths far apart"])


def test_lora() -> None:
    import peft

    model = peft.get_peft_model(
        tiny_model("qwen2", initializer_range=0.2),
        peft.LoraConfig(r=2, target_modules="all-linear", init_lora_weights=False),
    )
    assert_same(model, BATCHES["groups of different contexts"])


def test_gradient_checkpointing() -> None:
    """Layers that run again in the backward pass attend as they did in the forward pass."""
    model = tiny_model("llama", initializer_range=0.2)
    rows = BATCHES["groups of different contexts"]
    expected = numbers(model, rows, share=True)[2]
    model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
    model.train()
    for gradient, plain in zip(numbers(model, rows, share=True)[2], expected, strict=True):
        torch.testing.assert_close(gradient, plain, atol=1e-6, rtol=1e-5)
    assert_same(model, rows)


def test_under_autocast() -> None:
    model = tiny_model("llama")
    with torch.autocast("cpu", torch.bfloat16):
        logp, _, gradients = numbers(model, BATCHES["one group"], share=False)
        logp_, _, gradients_ = numbers(model, BATCHES["one group"], share=True)
    torch.testing.assert_close(logp_, logp, atol=0.05, rtol=0)
    whole, whole_ = (torch.cat([g.flatten() for g in gs]) for gs in (gradients, gradients_))
    assert float((whole_ - whole).norm() / whole.norm()) < 0.05


def test_a_context_is_computed_once() -> None:
    rows = [*group(20, 5, 1, 3), row(4, 6)]
    ids, place, layout = lay_out(rows, "cpu")
    assert ids.shape == (1, 20 + 4 + 0 + 2 + 4 + 5)  # the last sampled token of a row predicts nothing
    assert place[[0, 5, 6]].tolist() == [19, 19, 19]  # first tokens of the group come from the context's last position
    assert int(layout.position_ids[0, 20]) == 20
    assert layout.position_ids.shape == ids.shape


def test_sampled_tokens_are_computed_once_where_rows_begin_alike() -> None:
    context = [5, 6, 7]
    rows: list[Row] = [(context, [8, 9, 10, 11]), (context, [8, 9, 20, 21, 22]), (context, [8, 9, 10, 11])]
    ids, place, layout = lay_out(rows, "cpu")
    assert sorted(ids[0].tolist()) == sorted([*context, 8, 9, 10, 20, 21])
    by_row = place.split([4, 5, 4])
    assert torch.equal(by_row[0], by_row[2])
    assert torch.equal(by_row[0][:3], by_row[1][:3])
    for (_, tokens), where in zip(rows, by_row, strict=True):
        assert ids[0, where].tolist() == [context[-1], *tokens[:-1]]
        assert layout.position_ids[0, where].tolist() == list(range(2, 2 + len(tokens)))
    assert layout.distinct is not None
    assert len(layout.distinct) == 4 + 3  # the last row predicts nothing new


def test_long_rows_do_not_share_a_short_beginning() -> None:
    """Each would need a mask of its own to save next to nothing."""
    _, _, layout = lay_out(alike(30, (2, 160), (3, 160), (0, 160)), "cpu")
    assert [len(b.visible) for b in layout.blocks if b.visible is not None] == [1]


def test_a_padded_pass_is_what_it_was() -> None:
    """A model set up for sharing still computes calls without the layout, and generates, as before."""
    ids = torch.tensor([[3, 4, 5, 6], [7, 8, 9, 0]])
    mask = torch.tensor([[1, 1, 1, 1], [1, 1, 1, 0]])
    model = tiny_model("llama")
    with torch.no_grad():
        logits = model(input_ids=ids, attention_mask=mask).logits
        sampled = model.generate(ids, attention_mask=mask, max_new_tokens=8, do_sample=False, pad_token_id=0)
        assert ScoringModel(model).padded_because is None
        assert torch.equal(model(input_ids=ids, attention_mask=mask).logits, logits)
        again = model.generate(ids, attention_mask=mask, max_new_tokens=8, do_sample=False, pad_token_id=0)
    assert torch.equal(again, sampled)


def bloom() -> Any:
    import transformers

    return transformers.BloomForCausalLM(
        transformers.BloomConfig(vocab_size=67, hidden_size=32, n_layer=2, n_head=4)
    ).eval()


def gemma2() -> Any:
    import transformers

    config = transformers.Gemma2Config(
        vocab_size=67, hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2,
        head_dim=8, attn_implementation="eager",
    )  # fmt: skip
    return transformers.AutoModelForCausalLM.from_config(config).eval()


def mamba() -> Any:
    import transformers

    config = transformers.MambaConfig(vocab_size=67, hidden_size=32, num_hidden_layers=2, state_size=4)
    return transformers.AutoModelForCausalLM.from_config(config).eval()


@pytest.mark.parametrize(
    ("make", "why"),
    [(bloom, "its attention is eager, not sdpa"), (gemma2, "its attention is eager, not sdpa"), (mamba, "its attention is eager, not sdpa")],
)  # fmt: skip
def test_other_models_keep_the_padded_form(make: Any, why: str) -> None:
    """ALiBi, soft caps, recurrent states: scored as ever, and `true` says what is in the way."""
    model = make()
    rows = BATCHES["one group"]
    expected = numbers(model, rows, share=False)[0]
    scoring = ScoringModel(model)
    assert scoring.padded_because == why
    assert not shares(scoring, rows)
    logps, _ = score_rows(scoring, rows, device="cpu", budget=1000)
    torch.testing.assert_close(torch.from_numpy(np.concatenate(logps)), expected, atol=1e-5, rtol=0)
    with pytest.raises(ModelError, match=r"shared_prefix=true, but rows of .* can't share a prefix"):
        ScoringModel(make(), share=True)


def test_rows_longer_than_a_sliding_window_are_padded() -> None:
    import transformers

    torch.manual_seed(0)
    config = transformers.MistralConfig(
        vocab_size=67, hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2,
        sliding_window=16, initializer_range=0.2,
    )  # fmt: skip
    model = transformers.AutoModelForCausalLM.from_config(config).eval()
    scoring = ScoringModel(model)
    assert scoring.padded_because is None
    short, long = group(7, 5, 9, 2), group(14, 5, 9, 2)
    assert shares(scoring, short)
    assert not shares(scoring, long)
    assert_same(model, short)
    logps, _ = score_rows(scoring, long, device="cpu", budget=1000)
    torch.testing.assert_close(
        torch.from_numpy(np.concatenate(logps)), numbers(model, long, share=False)[0], atol=1e-5, rtol=0
    )


def test_micro_batches_keep_groups_together() -> None:
    rows = [*group(10, 5, 5, 5), *group(8, 4, 4), *group(10, 30, 2)]
    batches = micro_batches(rows, 45, share=True)
    assert sorted(i for b in batches for i in b) == list(range(7))
    assert sorted(map(sorted, batches)) == [[0, 1, 2, 3, 4], [5, 6]]
    cut = micro_batches(rows, 21, share=True)  # a group that doesn't fit is cut; a row that doesn't stands alone
    assert all(shared_tokens(rows, b) <= 21 for b in cut if len(b) > 1)
    assert sorted(i for b in cut for i in b) == list(range(7))


@pytest.mark.parametrize("share", [True, False])
@pytest.mark.parametrize("world", [1, 2, 3])
def test_processes_have_all_rows_once(world: int, share: bool) -> None:
    rows = [r for n in range(1, 8) for r in group(10 + n, *RNG.integers(1, 20, 4).tolist())]
    of_process = process_shares(rows, 120, world, share=share)
    assert sorted(i for batches in of_process for b in batches for i in b) == list(range(len(rows)))
    tokens = [sum(len(rows[i][1]) for b in batches for i in b) for batches in of_process]
    assert min(tokens) > 0.6 * max(tokens)


def test_one_group_is_cut_for_two_processes() -> None:
    assert all(process_shares(group(10, *[10] * 8), 10_000, 2, share=True))
