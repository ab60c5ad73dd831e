"""The verifiers `number`, `choice`, `exact`, and how verifiers are found by name."""

from __future__ import annotations

from typing import Any

import pytest

from skpo.errors import VerifierError
from skpo.verifiers import VERIFIERS, get_verifier


@pytest.mark.parametrize(
    ("completion", "gold", "expected"),
    [
        ("The sum is 12.", "12", 1.0),
        ("3 and 4 make 7", 7, 1.0),
        ("7 then 8", "7", 0.0),
        ("it is −5", "-5", 1.0),
        ("10-2", "2", 1.0),
        ("about 1,234.50 dollars", "1234.5", 1.0),
        ("so 3/4.", "0.75", 1.0),
        (r"so \frac{3}{4}", "3/4", 1.0),
        ("2 1/2 cups", "2.5", 1.0),
        ("50%", "50", 1.0),
        ("50 percent", "0.5", 1.0),
        ("1.5e3", "1500", 1.0),
        ("0.333", "1/3", 0.0),
        ("0.3333333333", "1/3", 0.0),
        ("1e999999999", "1", 0.0),
        ("none", "1", 0.0),
        ("", "1", 0.0),
        ("007", "7", 1.0),
        ("words " * 5000 + "42 at the end", "42", 1.0),
        ("42 at the start " + "words " * 5000, "42", 1.0),
    ],
)
def test_number(completion: str, gold: Any, expected: float) -> None:
    assert get_verifier("number").score(completion, gold) == expected


@pytest.mark.parametrize(
    ("completion", "gold", "expected"),
    [
        ("(C)", "C", 1.0),
        ("C.", "C", 1.0),
        ("I weigh both. The answer is C", "C", 1.0),
        ("The answer is (C) because A is wrong", "C", 1.0),
        ("answer: c", "C", 1.0),
        (r"\boxed{C}", "C", 1.0),
        (r"\boxed{\text{C}}", r"\text{C}", 1.0),
        (r"\boxed{\text{(C)}}", "(C)", 1.0),
        ("E: A polygenic risk score", "E", 1.0),
        (r"(A) is wrong. \boxed{B}", "A", 0.0),
        ("**Answer: D**", "D", 1.0),
        ("We compare.\nB", "B", 1.0),
        ("First (A), then rather (B) I think", "B", 1.0),
        ("A score of five", "A", 0.0),
        ("The answer is a mystery", "A", 0.0),
        ("", "A", 0.0),
    ],
)
def test_choice(completion: str, gold: str, expected: float) -> None:
    assert get_verifier("choice").score(completion, gold) == expected


@pytest.mark.parametrize(
    ("completion", "gold", "expected"),
    [
        ("a3+8=1;b1*7=7;#17", "17", 1.0),
        ("step\n#### 42", "42", 1.0),
        ("# title\nx\n#### 42 ", "42", 1.0),
        ("#1 #2", "1", 0.0),
        (r"\boxed{a  b}", "a b", 1.0),
        (r"# no \boxed{x}", "x", 1.0),
        ("The answer is\n blue.", "blue", 1.0),
        ("ANSWER: blue", "blue", 1.0),
        ("blue", "blue", 1.0),
        (" 1\n2 ", "1 2", 1.0),
        ("Blue", "blue", 0.0),
        ("etc.", "etc.", 1.0),
        ("", "x", 0.0),
    ],
)
def test_exact(completion: str, gold: str, expected: float) -> None:
    assert get_verifier("exact").score(completion, gold) == expected


@pytest.mark.parametrize(
    ("name", "gold"), [("number", "many"), ("choice", "Z"), ("choice", "none"), ("exact", ""), ("exact", None)]
)
def test_unreadable_gold_is_refused(name: str, gold: Any) -> None:
    with pytest.raises(VerifierError, match=name):
        get_verifier(name).check_gold(gold)
    assert get_verifier(name).score("x", gold) == 0.0


def test_unknown_name_says_the_nearest() -> None:
    with pytest.raises(VerifierError, match=r'Did you mean "number"\?.*python:module:function'):
        get_verifier("nubmer")
    with pytest.raises(VerifierError, match="unknown verifier"):
        get_verifier("math:x")


def test_every_name_is_there() -> None:
    assert set(VERIFIERS) >= {"math", "number", "choice", "exact", "gym", "python"}
    for name in VERIFIERS:
        if name != "python":
            assert get_verifier(name).name == name
