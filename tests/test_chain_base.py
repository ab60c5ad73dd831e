"""The shipped base model: it can do what its card says, and it can be made again."""

import random
import re
from collections.abc import Iterator
from itertools import islice
from typing import TYPE_CHECKING, Any

import pytest
import torch

from skpo.chain_base import (
    SKIP_TEMPLATE,
    chain_base_path,
    chain_tokenizer,
    completion_loss,
    lessons,
    respond,
    save_chain_base,
    schedule,
    skip_example,
    train_chain_base,
)
from skpo.problems import load_problems
from skpo.problems.chain import Chain, split_of

if TYPE_CHECKING:
    from transformers import LlamaForCausalLM, PreTrainedTokenizerFast

    Base = tuple[LlamaForCausalLM, PreTrainedTokenizerFast]


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture(scope="module")
def base() -> "Base":
    """The shipped model and tokenizer, as any user would load them."""
    from transformers import AutoModelForCausalLM, AutoTokenizer

    path = chain_base_path()
    return AutoModelForCausalLM.from_pretrained(path).eval(), AutoTokenizer.from_pretrained(path)


def test_files() -> None:
    names = {file.name for file in chain_base_path().iterdir()}
    assert names == {
        "README.md",
        "config.json",
        "generation_config.json",
        "model.safetensors",
        "tokenizer.json",
        "tokenizer_config.json",
    }
    assert sum(file.stat().st_size for file in chain_base_path().iterdir()) < 2_000_000


def test_size_and_type(base: "Base") -> None:
    model, _ = base
    # Embedding and head: 2 * 46 * 128. A layer: 4 * 128 * 128 (attention) + 3 * 128 * 384 (MLP) + 2 * 128 (norms); last norm 128.
    assert model.num_parameters() == 2 * 46 * 128 + 2 * (4 * 128**2 + 3 * 128 * 384 + 2 * 128) + 128 == 438_400
    assert model.dtype == torch.float32


def test_tokenizer(base: "Base") -> None:
    _, tokenizer = base
    text = "a3+8=1;b1|3a+8b*7="
    ids = tokenizer(text)["input_ids"]
    assert len(ids) == len(text)  # one token a character, and none before or after
    assert tokenizer.decode(ids) == text
    assert (tokenizer.pad_token_id, tokenizer.eos_token_id, tokenizer.bos_token_id) == (0, 1, None)
    assert tokenizer.chat_template is None
    assert tokenizer("a b")["input_ids"][1] == tokenizer.unk_token_id
    # Tokens of a cut anywhere, put before a problem, are the tokens of the text.
    assert ids[:9] + tokenizer(text[9:])["input_ids"] == ids


def test_greedy_accuracy(base: "Base") -> None:
    problems = load_problems("builtin:chain?split=heldout&seed=11&size=32")
    completions = respond(*base, [p.text for p in problems])
    assert sum(c.rpartition("#")[2] == p.answer for c, p in zip(completions, problems, strict=True)) >= 0.9 * 32


def test_sampled_accuracy(base: "Base") -> None:
    # The card says 0.45 to 0.52; 128 samples have a standard error of 0.044.
    problems = load_problems("builtin:chain?split=heldout&seed=12&size=128")
    completions = respond(*base, [p.text for p in problems], seed=0)
    right = sum(c.rpartition("#")[2] == p.answer for c, p in zip(completions, problems, strict=True))
    assert 0.33 < right / 128 < 0.65


def test_it_goes_on_from_a_segment(base: "Base") -> None:
    # A segment whose third result is wrong: a model that reads it answers for the wrong state, one that starts over doesn't.
    chain = Chain()
    rng = random.Random(0)
    prompts, wrong, right = [], [], []
    for text in islice(chain.texts("segment", "heldout"), 32):
        cut = chain.completion(text)[:21]
        written = cut[:19] + str((int(cut[19]) + 1 + int(rng.random() * 9)) % 10) + ";"
        prompts.append(SKIP_TEMPLATE.format(segment=written, problem=text))
        rest = text[text.index("d") :]
        tail = chain.completion(f"{written[19]}{rest}").rpartition("#")[2]
        wrong.append(tail)
        right.append(chain.answer(text))
    answers = [c.rpartition("#")[2] for c in respond(*base, prompts)]
    assert sum(a == w for a, w in zip(answers, wrong, strict=True)) >= 0.8 * 32


def test_lessons_teach_both_forms_all_lengths_and_no_heldout_problem() -> None:
    batches = list(islice(lessons(seed=0, noise=0.08), 332))
    prompts = [prompt for batch in batches for prompt, _ in batch]
    assert {len(batch) for batch in batches} == {32}
    skips = sum("|" in prompt for prompt in prompts)
    assert abs(skips / len(prompts) - 0.65) < 0.02  # four standard errors: 4 * sqrt(0.65 * 0.35 / 10624) = 0.0185

    def lengths(part: list[list[tuple[str, str]]]) -> list[int]:
        return [len(re.findall("[a-z]", prompt.rpartition("|")[2])) for batch in part for prompt, _ in batch]

    early, late = lengths(batches[:300]), lengths(batches[300:])
    assert set(early) == set(range(3, 11))
    assert abs(early.count(10) / len(early) - 1 / 8) < 0.014  # 4 * sqrt(0.125 * 0.875 / 9600) = 0.0135
    assert abs(late.count(10) / len(late) - (0.75 + 0.25 / 8)) < 0.052  # 4 * sqrt(0.78 * 0.22 / 1024) = 0.0518
    assert {split_of(prompt.rpartition("|")[2]) for prompt in prompts} == {"train"}


def test_skip_examples_go_on_after_the_last_whole_step() -> None:
    chain = Chain(steps=4)
    text = "3a+8b*7c-2d+6="
    right = "a3+8=1;b1*7=7;c7-2=5;d5+6=1;#51"
    kinds = dict.fromkeys(("go on", "start over", "foreign"), 0)
    for seed in range(1000):
        prompt, completion = skip_example(chain, text, random.Random(seed), noise=0.0)
        segment, _, problem = prompt.partition("|")
        assert problem == text
        assert len(segment) >= 1
        assert "#" not in segment
        if not right.startswith(segment):
            kinds["foreign"] += 1
            assert completion == right
        elif segment[: segment.rfind(";") + 1] + completion == right and completion != right:
            kinds["go on"] += 1
        else:
            kinds["start over"] += 1
            assert completion == right
    assert kinds["foreign"] > 100
    assert kinds["go on"] > 450  # the first step makes a quarter of the segments, and there going on is starting over
    assert kinds["start over"] > 100


def test_loss_counts_completion_tokens_only(base: "Base") -> None:
    model, tokenizer = base
    prompt, completion = "3a+8b*7c-2d+6=", "a3+8=1;"
    ids = torch.tensor([tokenizer(prompt + completion)["input_ids"] + [1]])
    with torch.no_grad():
        logp = model(ids).logits.log_softmax(-1)[0, :-1].gather(1, ids[0, 1:, None])[len(prompt) - 1 :]
        # A second, longer row and its padding change the mean as their tokens do, and nothing else.
        both = completion_loss(model, tokenizer, [(prompt, completion), (prompt, completion + "b1*7=7;")])
        one = completion_loss(model, tokenizer, [(prompt, completion)])
        two = completion_loss(model, tokenizer, [(prompt, completion + "b1*7=7;")])
    assert len(logp) == len(completion) + 1
    assert one.item() == pytest.approx(-logp.mean().item(), abs=1e-5)
    assert both.item() == pytest.approx((8 * one.item() + 15 * two.item()) / 23, abs=1e-5)


def test_schedule() -> None:
    assert schedule(0, 1300) == pytest.approx(1 / 50)
    assert schedule(50, 1300) == pytest.approx(1.0)
    assert schedule(1300, 1300) == pytest.approx(0.1)


def test_made_again_it_is_the_same(tmp_path: Any) -> None:
    from transformers import AutoModelForCausalLM

    state = torch.random.get_rng_state()
    first, tokenizer = train_chain_base(seed=3, steps=3)
    assert torch.equal(state, torch.random.get_rng_state())
    torch.rand(7)  # the caller's generator has no say
    second, _ = train_chain_base(seed=3, steps=3)
    other, _ = train_chain_base(seed=4, steps=3)
    for name, weight in first.state_dict().items():
        assert torch.equal(weight, second.state_dict()[name]), name
    assert not torch.equal(first.lm_head.weight, other.lm_head.weight)
    save_chain_base(first, tokenizer, tmp_path)
    loaded = AutoModelForCausalLM.from_pretrained(tmp_path)
    assert torch.equal(loaded.lm_head.weight, first.lm_head.weight)
    assert {f.name for f in tmp_path.iterdir()} == {f.name for f in chain_base_path().iterdir()} - {"README.md"}


def test_tokenizer_is_the_shipped_one() -> None:
    shipped = (chain_base_path() / "tokenizer.json").read_text()
    assert chain_tokenizer().backend_tokenizer.to_str(pretty=True) == shipped.rstrip("\n")
