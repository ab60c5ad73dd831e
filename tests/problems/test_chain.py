"""The chain: values worked out by hand, answers that can't be guessed, and splits that can't overlap."""

import random
import re
from collections import Counter

import pytest

from skpo.errors import ProblemError
from skpo.problems import load_problems
from skpo.problems.chain import Chain, split_of


def test_right_completion_by_hand() -> None:
    # 3 + 8 = 11 = 1;  1 * 7 = 7;  7 - 2 = 5;  5 + 6 = 11 = 1 (modulo 10); the answer is the last two states, 5 and 1.
    assert Chain(steps=4).completion("3a+8b*7c-2d+6=") == "a3+8=1;b1*7=7;c7-2=5;d5+6=1;#51"
    assert Chain(steps=4).answer("3a+8b*7c-2d+6=") == "51"


def test_negative_results_wrap_by_hand() -> None:
    # 2 - 5 = -3 = 7;  7 * 8 = 56 = 6 (modulo 10).
    assert Chain(steps=2).completion("2a-5b*8=") == "a2-5=7;b7*8=6;#76"


def test_two_digit_numbers_by_hand() -> None:
    # Modulo 13: 12 + 4 = 16 = 3;  3 * 9 = 27 = 1. All numbers have two digits.
    assert Chain(steps=2, modulus=13).completion("12a+04b*09=") == "a12+04=03;b03*09=01;#0301"


def test_noise_is_carried_on() -> None:
    # Each step, and the answer, starts from the number that was written, be it wrong.
    text = "3a+8b*7c-2d+6="
    wrong = 0
    for seed in range(50):
        completion = Chain(steps=4).completion(text, random.Random(seed), noise=1.0)
        written = re.findall(r"[a-d](\d)([-+*])(\d)=(\d);", completion)
        state = 3
        for before, sign, operand, after in written:
            assert int(before) == state
            wrong += int(after) != eval(f"{before}{sign}{operand}") % 10
            state = int(after)
        assert completion.endswith(f"#{written[2][3]}{written[3][3]}")
    assert wrong > 150  # nine tenths of 200 results


def test_noise_rate() -> None:
    chain = Chain()
    rng = random.Random(0)
    wrong = total = 0
    for _, text in zip(range(500), chain.texts(0), strict=False):
        for before, sign, operand, after in re.findall(r"(\d)([-+*])(\d)=(\d);", chain.completion(text, rng, 0.08)):
            wrong += int(after) != eval(f"{before}{sign}{operand}") % 10
            total += 1
    assert total == 5000
    # A tenth of the numbers drawn is right, so 0.072; four standard errors are 4 * sqrt(0.072 * 0.928 / 5000) = 0.0146.
    assert abs(wrong / total - 0.072) < 0.0146


def test_default_problems() -> None:
    problems = load_problems("builtin:chain")
    assert len(problems) == 256
    assert len({p.id for p in problems}) == len({p.prompt for p in problems}) == 256
    for problem in problems:
        assert re.fullmatch(r"\d" + "".join(rf"{c}[-+*]\d" for c in "abcdefghij") + "=", problem.text)
        assert "*0" not in problem.text
        assert problem.verifier == "exact"
        assert problem.columns["solution"].endswith(f";#{problem.answer}")
        assert len(problem.columns["solution"]) == 10 * len("a3+8=1;") + len("#51")


@pytest.mark.parametrize("split", ["train", "heldout"])
def test_no_constant_guess_is_right_more_often_than_one_percent(split: str) -> None:
    # 300 problems are three rounds of all 100 answers: each exactly three times.
    counts = Counter(p.answer for p in load_problems(f"builtin:chain?size=300&split={split}&seed=5"))
    assert len(counts) == 100
    assert set(counts.values()) == {3}


def test_guess_rate_of_rounds_cut_short() -> None:
    # 256 problems: two whole rounds and a part of the third, so at most three of 256.
    assert max(Counter(p.answer for p in load_problems("builtin:chain")).values()) == 3


def test_operations_stay_mixed() -> None:
    # Choosing the last two operations by their result must not take a kind of operation out. (+ and - lead to any state
    # in one way each, * in nine ways out of ten states on average: somewhat less than a third is right.)
    texts = [p.text for p in load_problems("builtin:chain?size=1000")]
    for label in "aij":
        counts = Counter(re.search(rf"{label}(.)", text)[1] for text in texts)  # type: ignore[index]
        assert min(counts[sign] for sign in "+-*") > 200


def test_splits_never_overlap() -> None:
    train: set[str] = set()
    heldout: set[str] = set()
    for seed in range(20):
        for setting in ("steps=10", "steps=2", "steps=3&operations=%2B-"):
            train |= {p.text for p in load_problems(f"builtin:chain?{setting}&seed={seed}&size=300")}
            heldout |= {p.text for p in load_problems(f"builtin:chain?{setting}&seed={seed}&size=200&split=heldout")}
    assert not train & heldout
    assert {split_of(text) for text in train} == {"train"}
    assert {split_of(text) for text in heldout} == {"heldout"}


def test_seeds_and_sizes() -> None:
    def texts(query: str) -> list[str]:
        return [p.text for p in load_problems(f"builtin:chain?{query}")]

    assert texts("size=50") == texts("size=400")[:50] == texts("size=50")
    assert not set(texts("seed=0")) & set(texts("seed=1"))
    assert [p.text for p in load_problems("builtin:chain?size=400", limit=7)] == texts("size=7")


def test_same_problems_on_every_machine() -> None:
    # Written down once: a change here would change what past runs were trained on.
    assert load_problems("builtin:chain", limit=1)[0].text == "3a*7b-0c+1d+2e-9f+9g+8h*2i*6j+9="
    assert load_problems("builtin:chain", limit=1)[0].id == "77bdc8465e0289f2"


@pytest.mark.parametrize(
    ("query", "message"),
    [
        ("step=3", 'builtin:chain?step=3: unknown parameter "step". Did you mean "steps"?'),
        ("steps=x", 'builtin:chain?steps=x: steps="x" is no integer. Use 2 to 26.'),
        ("steps=1", "builtin:chain?steps=1: steps=1 is out of range. Use 2 to 26."),
        ("operations=/", 'operations="/" is none. Use signs out of +-*, each once.'),
        ("operations=", 'operations="" is none.'),
        ("split=test", 'unknown split "test".'),
        ("seed=-1", "seed=-1 is out of range."),
        ("size=0", "size=0 is out of range."),
        ("steps", '"steps" is no parameter. Write chain?key=value&key=value.'),
        ("steps=3&steps=4", 'parameter "steps" is given twice.'),
        # 81 answers modulo 9, so a guess is right in 1 of 81.
        ("modulus=9", "with modulus=9 and operations=+-* a constant guess is right in 1.2% of the problems (limit 1%)"),
        ("operations=*", "operations=* a constant guess is right in"),
        ("steps=2&size=100000", "distinct problems with steps=2 and modulus=10 (split train). Use a smaller size"),
    ],
)
def test_refused(query: str, message: str) -> None:
    with pytest.raises(ProblemError) as error:
        load_problems(f"builtin:chain?{query}")
    assert message in str(error.value)


def test_unknown_builtin() -> None:
    with pytest.raises(ProblemError, match=r'unknown built-in problem set "chains". Did you mean "chain".'):
        load_problems("builtin:chains")


def test_no_chain_text() -> None:
    with pytest.raises(ProblemError, match="no chain problem"):
        Chain().completion("3+8=")
