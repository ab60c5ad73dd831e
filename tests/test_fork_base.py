"""The fork's base model: it can do what its card says, and it can be made again."""

import random
from collections.abc import Iterator
from itertools import islice
from typing import TYPE_CHECKING, Any

import pytest
import torch

from skpo.chain_base import chain_base_path
from skpo.fork_base import LUCK, fork_base_path, lessons, measure, save_fork_base, skip_example, train_fork_base
from skpo.problems.chain import split_of
from skpo.problems.fork import Fork

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
    """The shipped model and tokenizer, as the trainer loads them: in float32."""
    from transformers import AutoModelForCausalLM, AutoTokenizer

    path = fork_base_path()
    return AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32).eval(), AutoTokenizer.from_pretrained(path)


def test_files() -> None:
    assert sum(file.stat().st_size for file in fork_base_path().iterdir()) < 1_000_000
    assert (fork_base_path() / "tokenizer.json").read_text() == (chain_base_path() / "tokenizer.json").read_text()


def test_the_right_route_is_somewhat_more_likely_than_chance(base: "Base") -> None:
    # Probabilities in place of samples; problems come in rounds of all ten marks.
    model, tokenizer = base
    texts = [text for text, _ in islice(Fork(luck=LUCK).texts("route", "heldout"), 100)]
    names = tokenizer.convert_tokens_to_ids(list("uvw"))
    with torch.no_grad():
        ids = tokenizer(texts, return_tensors="pt")["input_ids"]  # all of one length: [100, T]
        chances = model(input_ids=ids).logits[:, -1].softmax(-1)[:, names]  # [100, 3]
    right = torch.tensor(["uvw".index(Fork(luck=LUCK).right_route(text)) for text in texts])
    assert chances.sum(-1).min() > 0.9
    assert 0.37 < chances[torch.arange(100), right].mean() < 0.5


def test_it_walks_well_and_stays_on_the_segments_route(base: "Base") -> None:
    # The card's figures are over 300 problems; 150 have standard errors of up to 0.04.
    found = measure(*base, size=150)
    assert 0.3 < found["route"] < 0.55
    assert 0.02 < found["plain"] < 0.11
    assert found["walk"] < 0.25
    assert found["whole"] > 0.9
    assert found["kept"] > 0.7
    # Behind a wrong segment next to nothing is right: the standard error there is at most 0.02.
    assert found["skip right"] > found["skip wrong"]
    assert found["skip wrong"] < 0.06


def test_lessons_teach_both_forms_and_no_heldout_problem() -> None:
    batches = list(islice(lessons(seed=0, noise=0.09, doubt=0.8), 40))
    prompts = [prompt for batch in batches for prompt, _ in batch]
    assert {len(batch) for batch in batches} == {32}
    # Four standard errors: 4 * sqrt(0.65 * 0.35 / 1280) = 0.053
    assert abs(sum("|" in prompt for prompt in prompts) / len(prompts) - 0.65) < 0.053
    assert {split_of(prompt.rpartition("|")[2]) for prompt in prompts} == {"train"}


def test_skip_examples_go_on_after_the_last_whole_piece() -> None:
    fork = Fork(luck=1)
    text, _ = next(fork.texts(0))
    right, pieces = fork.completion(text), fork.pieces(text)
    starts = {"".join(pieces[i:]): i for i in range(1, len(pieces))}
    kinds = dict.fromkeys(("go on", "start over"), 0)
    for seed in range(300):
        prompt, completion = skip_example(fork, text, random.Random(seed), noise=0.0, doubt=0.0)
        segment, _, problem = prompt.partition("|")
        assert problem == text
        assert segment
        assert "#" not in segment
        if completion == right:
            kinds["start over"] += 1
        else:
            kinds["go on"] += 1
            # What is left out was whole in the segment, and the first piece written wasn't.
            whole = starts[completion]
            assert segment.startswith("".join(pieces[:whole]))
            assert not segment.startswith("".join(pieces[: whole + 1]))
    assert kinds["go on"] > 150
    assert kinds["start over"] > 40


def test_made_again_it_is_the_same(tmp_path: Any) -> None:
    from transformers import AutoModelForCausalLM

    first, tokenizer = train_fork_base(seed=3, steps=2)
    second, _ = train_fork_base(seed=3, steps=2)
    other, _ = train_fork_base(seed=4, steps=2)
    for name, weight in first.state_dict().items():
        assert torch.equal(weight, second.state_dict()[name]), name
    assert not torch.equal(first.lm_head.weight, other.lm_head.weight)
    save_fork_base(first, tokenizer, tmp_path)
    loaded = AutoModelForCausalLM.from_pretrained(tmp_path, dtype=torch.float32)
    assert torch.equal(loaded.lm_head.weight, first.lm_head.weight)
    assert first.lm_head.weight.dtype == torch.float32  # saving leaves the model as it is
    assert {f.name for f in tmp_path.iterdir()} == {f.name for f in fork_base_path().iterdir()} - {"README.md"}
