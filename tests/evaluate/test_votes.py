"""Which answers count as the same."""

from __future__ import annotations

import pytest

from skpo.evaluation.votes import labels
from skpo.verifiers import make


@pytest.mark.parametrize(
    ("verifier", "completions", "right", "expected"),
    [
        ("math", [r"\boxed{1/2}", r"so 0.5: \boxed{0.5}", r"\boxed{\frac{1}{2}}", r"\boxed{3}"], "", [0, 0, 0, 1]),
        ("math", [r"\boxed{x+1}", r"\boxed{1+x}"], "00", [0, 1]),  # only algebra could tell
        ("math", [r"\boxed{x+1}", r"\boxed{1+x}"], "11", [0, 0]),  # both are right, and there is one right answer
        ("math", ["", r"\boxed{", r"\boxed{7}", ""], "", [-1, -1, 0, -1]),
        ("number", ["it is 1,000", "1000.0", "no idea", "7"], "", [0, 0, -1, 1]),
        ("choice", ["(A)", "answer: A", "B.", "dunno"], "", [0, 0, 1, -1]),
        ("exact", ["#51", "x #51", "# 51.", ""], "", [0, 0, 0, -1]),
        ("gym", ["<answer>a</answer>", "a", "b"], "", [0, 0, 1]),
        ("gym", ["a", "b"], "11", [0, 1]),  # two right answers may differ
    ],
)
def test_labels(verifier: str, completions: list[str], right: str, expected: list[int]) -> None:
    correct = [mark == "1" for mark in right] or [False] * len(completions)
    assert labels(make(verifier), completions, correct) == expected


def test_programs_have_no_votes() -> None:
    assert labels(make("code"), ["a", "b"], [True, False]) is None
