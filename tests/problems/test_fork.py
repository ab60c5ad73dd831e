"""The fork: values worked out by hand, routes and answers that can't be guessed, and splits that can't overlap."""

import random
import re
from collections import Counter
from itertools import islice

import pytest

from skpo.errors import ProblemError
from skpo.problems import load_problems
from skpo.problems.fork import MARKS, Fork

TEXT = "3ua+8b*7c-vd+6e-1f+=7"


def two_routes() -> Fork:
    return Fork(routes=2)


def test_completion_by_hand() -> None:
    """Route u: 3 + 8 = 11 = 1; 1 * 7 = 7; 7 - 2 = 5. Route v: 3 + 6 = 9; 9 - 1 = 8; 8 + 2 = 10 = 0 (modulo 10)."""
    fork = two_routes()
    walks = {"u": "ua+8b*7c-;a3+8=1;b1*7=7;c7-2=5;#75", "v": "vd+6e-1f+;d3+6=9;e9-1=8;f8+2=0;#80"}
    right = fork.table["7"]
    assert fork.right_route(TEXT) == right
    assert fork.completion(TEXT, operand=2) == walks[right]
    assert {fork.completion(TEXT, random.Random(i), operand=2, doubt=1.0) for i in range(30)} == set(walks.values())


def test_pieces_by_hand() -> None:
    wanted = {
        "u": ["u", "a+8", "b*7", "c-;", "a3+8=1;", "b1*7=7;", "c7-3=4;", "#74"],
        "v": ["v", "d+6", "e-1", "f+;", "d3+6=9;", "e9-1=8;", "f8+3=1;", "#81"],
    }
    assert two_routes().pieces(TEXT, operand=3) == wanted[two_routes().right_route(TEXT)]


def test_chosen_route_of_a_text() -> None:
    # From its name, from the plan, from a step: the name or the label says it wherever a text begins.
    assert [Fork.chosen(TEXT, t) for t in ("ua+8", "b*7c-;", "c7-2=5;#75", "vd", "f8+")] == ["u", "u", "u", "v", "v"]
    assert [Fork.chosen(TEXT, t) for t in ("", "#75", "g1+1", "w")] == [None] * 4


def test_doubt_noise_and_guesses() -> None:
    fork, rng = Fork(), random.Random(0)
    right = wrong = total = 0
    guesses: Counter[str] = Counter()
    for text, _ in islice(fork.texts(0), 1000):
        completion = fork.completion(text, rng, noise=0.2, doubt=0.9)
        right += completion[0] == fork.right_route(text)
        steps = re.findall(r"[a-t](\d)([-+*])(\d)=(\d);", completion)
        guesses[steps[-1][2]] += 1
        for before, sign, operand, after in steps:
            wrong += int(after) != eval(f"{before}{sign}{operand}") % 10
            total += 1
    assert total == 3000
    # Right in 0.1 + 0.9 / 3 = 0.4: four standard errors are 4 sqrt(0.24 / 1000) = 0.062. Wrong in 0.2 * 0.9 = 0.18: 4 sqrt(0.148 / 3000).
    assert abs(right / 1000 - 0.4) < 0.062
    assert abs(wrong / total - 0.18) < 0.0281
    assert set(guesses) == set("01234567")
    assert min(guesses.values()) > 83  # 125 - 4 sqrt(1000 * 7 / 64)


def test_table_is_even() -> None:
    assert Counter(Fork(routes=2).table.values()) == {"u": 5, "v": 5}
    assert sorted(Counter(Fork().table.values()).values()) == [3, 3, 4]
    assert set(Fork().table) == set(MARKS)


def test_default_problems() -> None:
    problems = load_problems("builtin:fork")
    assert len({p.id for p in problems}) == len({p.prompt for p in problems}) == 256
    fork = Fork()
    for problem in problems:
        parsed = fork.parse(problem.text)
        assert list(parsed.routes) == list("uvw")
        assert "".join(label for moves in parsed.routes.values() for label, *_ in moves) == "abcdefghi"
        assert [moves[-1][2] for moves in parsed.routes.values()] == [None] * 3
        assert all(n is not None for moves in parsed.routes.values() for *_, n in moves[:-1])
        assert problem.verifier == "exact"
        assert problem.columns["route"] == problem.columns["solution"][0] == fork.table[problem.text[-1]]
        assert problem.columns["solution"].endswith(f";#{problem.answer}")
        assert len(problem.columns["solution"]) == 1 + 2 * 3 + 2 + 1 + 3 * 7 + 3 == 34


def test_every_guess_on_the_right_route_has_its_own_answer_and_none_on_another_is_right() -> None:
    fork = Fork()
    for problem in load_problems("builtin:fork?size=150"):
        hits = Counter()
        for seed in range(40):
            completion = fork.completion(problem.text, random.Random(seed), doubt=1.0)
            hits[completion[0], completion.rpartition("#")[2]] += 1
        right = {c for c in hits if c[1] == problem.answer}
        assert right <= {(problem.columns["route"], problem.answer)}
        ends = {fork.completion(problem.text, operand=n).rpartition("#")[2] for n in range(8)}
        assert len(ends) == 8
        assert problem.answer in ends


def test_no_constant_answer_or_mark_pays() -> None:
    # 300 problems are three rounds of all 100 answers and thirty of all 10 marks.
    problems = load_problems("builtin:fork?size=300")
    counts = Counter(p.answer for p in problems)
    assert len(counts) == 100
    assert set(counts.values()) == {3}
    assert set(Counter(p.text[-1] for p in problems).values()) == {30}


def test_nothing_smudged() -> None:
    problem = load_problems("builtin:fork?luck=1&routes=2&steps=2", limit=1)[0]
    assert re.fullmatch(r"\du(?:[ab][-+*]\d){2}v(?:[cd][-+*]\d){2}=\d", problem.text)
    assert Fork(2, 2, 1).completion(problem.text) == problem.columns["solution"]


def test_splits_never_overlap() -> None:
    texts = {
        split: {p.text for seed in range(5) for p in load_problems(f"builtin:fork?routes=2&steps=2&seed={seed}&split={split}")}
        for split in ("train", "heldout")
    }  # fmt: skip
    assert not texts["train"] & texts["heldout"]


def test_seeds_and_sizes() -> None:
    def texts(query: str) -> list[str]:
        return [p.text for p in load_problems(f"builtin:fork?{query}")]

    assert texts("size=50") == texts("size=200")[:50] == texts("size=50")
    assert not set(texts("seed=0")) & set(texts("seed=1"))
    assert [p.text for p in load_problems("builtin:fork?size=400", limit=7)] == texts("size=7")


def test_same_problems_on_every_machine() -> None:
    # Written down once: a change here would change what past runs were trained on.
    first = load_problems("builtin:fork", limit=1)[0]
    assert (first.text, first.answer) == ("4ua*7b-1c-vd-7e-8f+wg+2h-5i+=5", "12")
    assert "".join(Fork().table[mark] for mark in MARKS) == "vvvuwwuwuu"


@pytest.mark.parametrize(
    ("query", "message"),
    [
        ("step=3", 'builtin:fork?step=3: unknown parameter "step". Did you mean "steps"?'),
        ("steps=1", "builtin:fork?steps=1: steps=1 is out of range. Use 2 to 20."),
        ("routes=7", "routes=7 is out of range. Use 2 to 6."),
        ("luck=11", "luck=11 is out of range. Use 1 to 10."),
        ("routes=4&steps=6", "4 routes of 6 steps need 24 labels; there are 20"),
        ("split=test", 'unknown split "test".'),
        ("size=0", "size=0 is out of range."),
    ],
)
def test_refused(query: str, message: str) -> None:
    with pytest.raises(ProblemError) as error:
        load_problems(f"builtin:fork?{query}")
    assert message in str(error.value)


def test_no_fork_text() -> None:
    with pytest.raises(ProblemError, match="no fork problem"):
        Fork().parse("3a+8b*7=")
