"""Problems from reasoning-gym: typed parameters, and splits that can't overlap."""

import datetime
import enum
import typing
from typing import Any

import pytest
import reasoning_gym

from skpo.errors import ProblemError
from skpo.problems import load_problems
from skpo.problems.gym import convert, split_of


def test_problems_and_their_columns() -> None:
    problems = load_problems("gym:chain_sum?min_terms=2&max_terms=2&max_digits=1&size=20")
    assert len(problems) == len({p.text for p in problems}) == 20
    task = reasoning_gym.create_dataset("chain_sum")
    for problem in problems:
        entry = problem.columns["gym_entry"]
        assert problem.columns["gym_task"] == "chain_sum"
        assert (problem.prompt, problem.answer) == (entry["question"], entry["answer"])
        assert eval(entry["metadata"]["expression"]) == int(problem.answer)
        assert entry["metadata"]["num_terms"] == 2
        assert task.score_answer(problem.answer, entry) == 1.0
        assert problem.verifier == "gym"


@pytest.mark.parametrize("task", ["gcd?max_value=30", "products?max_digits=1", "count_bits?max_n=300"])
def test_splits_never_overlap(task: str) -> None:
    # Small tasks, in which plain seeds would give nearly the same questions.
    train = {p.text for seed in range(5) for p in load_problems(f"gym:{task}&size=60&seed={seed}")}
    heldout = {p.text for seed in range(5) for p in load_problems(f"gym:{task}&size=20&seed={seed}&split=heldout")}
    assert not train & heldout
    assert {split_of(q) for q in train} == {"train"}
    assert {split_of(q) for q in heldout} == {"heldout"}


def test_seeds_and_sizes() -> None:
    def texts(query: str) -> list[str]:
        return [p.text for p in load_problems(f"gym:chain_sum?{query}")]

    assert texts("size=10") == texts("size=30")[:10]
    # Neighbouring seeds, which in reasoning-gym itself share all questions but one.
    assert not set(texts("seed=0&size=30")) & set(texts("seed=1&size=30"))
    assert [p.text for p in load_problems("gym:chain_sum?size=30", limit=4)] == texts("size=4")


def test_verifier_of_choice() -> None:
    assert load_problems("gym:gcd?size=2&verifier=number")[0].verifier == "number"


@pytest.mark.parametrize(
    ("query", "message"),
    [
        (
            "chain_sums",
            'gym:chain_sums: unknown reasoning-gym task "chain_sums". Did you mean "chain_sum"? Known: ab, ',
        ),
        ("chain_sum?max_term=3", 'unknown parameter "max_term". Did you mean "max_terms"?'),
        ("chain_sum?max_terms=three", 'gym:chain_sum?max_terms=three: max_terms="three": no integer.'),
        ("chain_sum?allow_negation=maybe", 'allow_negation="maybe": not one of true, false'),
        ("chain_sum?max_terms=1", "chain_sum refuses these parameters (max_terms must be >= min_terms)."),
        ("chain_sum?split=test", 'unknown split "test".'),
        ("basic_arithmetic?whitespace=none", "not one of no_space, single, random"),
        ("composite?datasets=a", "this parameter can't be written in a source"),
        ("composite", "composite refuses these parameters (Must specify at least one dataset)."),
        ("products?min_terms=2&max_terms=2&max_digits=1&size=500", "different questions for this split. Use size="),
    ],
)
def test_refused(query: str, message: str) -> None:
    with pytest.raises(ProblemError) as error:
        load_problems(f"gym:{query}")
    assert str(error.value).startswith(f"gym:{query}: ")
    assert message in str(error.value)


class Colour(enum.Enum):
    RED = "red"


@pytest.mark.parametrize(
    ("text", "kind", "value"),
    [
        ("3", int, 3),
        ("none", int | None, None),
        ("3", typing.Optional[int], 3),  # noqa: UP045
        ("0.5", float, 0.5),
        ("True", bool, True),
        ("0", bool, False),
        ("none", str, "none"),
        ("+,-", tuple[str, ...], ("+", "-")),
        ("+,-", tuple, ("+", "-")),
        ("0.5,1", list[float], [0.5, 1.0]),
        ("a,b", typing.Sequence[str], ["a", "b"]),
        ("red", Colour, Colour.RED),
        ("x", typing.Literal["x", "y"], "x"),
        ("2020-02-03", datetime.date, datetime.date(2020, 2, 3)),
    ],
)
def test_parameters_have_types(text: str, kind: Any, value: Any) -> None:
    assert convert(text, kind) == value
    assert type(convert(text, kind)) is type(value)
