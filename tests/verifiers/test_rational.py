"""Exact values of written numbers."""

from __future__ import annotations

from fractions import Fraction

import pytest

from skpo.verifiers.latex import clean
from skpo.verifiers.rational import TooLargeError, rational


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("007", 7),
        (r"\frac34", Fraction(3, 4)),
        (r"-\dfrac{3}{4}", Fraction(-3, 4)),
        ("1.50", Fraction(3, 2)),
        (".4", Fraction(2, 5)),
        ("7.", 7),
        ("1,234,567", 1234567),
        (r"2\frac{1}{3}", Fraction(7, 3)),
        ("2 1/3", Fraction(7, 3)),
        (r"1.5 \times 10^{3}", 1500),
        ("1.5e-3", Fraction(3, 2000)),
        ("-2^2", -4),
        ("(-2)^2", 4),
        ("2^3^2", 512),
        ("6/2/3", 1),
        ("2(3+4)", 14),
        ("5!", 120),
        ("1-2-3", -4),
    ],
)
def test_values(text: str, value: int | Fraction) -> None:
    assert rational(clean(text)) == value


@pytest.mark.parametrize(
    "text", ["", "x", "1,000,99", "4 10/3", r"4\frac{10}{3}", "1/0", "0^{-1}", "2^{1/2}", "1:2", "1--"]
)
def test_no_rational_number(text: str) -> None:
    assert rational(clean(text)) is None


@pytest.mark.parametrize("text", ["9^{9^{9}}", "10^{10^{10}}", "99999!", "1e99999", "9" * 3000, "(3000!)^{100}"])
def test_too_large(text: str) -> None:
    with pytest.raises(TooLargeError):
        rational(text)
