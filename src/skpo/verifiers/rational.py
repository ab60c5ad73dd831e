r"""Exact arithmetic on written numbers: `14{,}916`, `-\frac{3}{4}`, `2 1/3`, `1.5e3`, `50\%`, `2^{10}`, without sympy.

Values are `fractions.Fraction`, so that equality is equality. Sizes are bounded before anything is computed.
"""

from __future__ import annotations

import re
from fractions import Fraction

MAX_BITS = 1 << 16
MAX_FACTORIAL = 3000
MAX_DIGITS = 2000
MAX_DEPTH = 30

_TOKEN = re.compile(
    r"\s*(?:(?P<repeating>\d*\.\d*\\overline\{\d+\})"
    r"|(?P<mixed>\d+ +\d+ ?/ ?\d+(?![\d.]))"
    r"|(?P<number>(?:\d{1,3}(?:,\d{3})+(?![\d,]*\d)|\d+)(?:\.\d*)?(?:[eE][-+]?\d+)?(?![A-Za-z_])|\.\d+(?:[eE][-+]?\d+)?(?![A-Za-z_]))"
    r"|(?P<frac>\\frac\s*(?=\{))|(?P<times>\\cdot(?![a-z])|\\times(?![a-z])|\*|(?<=\d) ?x ?(?=10\s*\^))|(?P<div>\\div(?![a-z])|/)"
    r"|(?P<op>[-+^!(){}]))"
)
DECIMAL = re.compile(r"[-+]?\s*(?:\d{1,3}(?:,\d{3})+|\d*)\.(\d+)")


class TooLargeError(ValueError):
    """A number too large to be worked out: a power tower, a factorial, an enormous exponent."""


class _NotRationalError(ValueError):
    """The text is no rational arithmetic; other rules have to compare it."""


def rational(text: str) -> Fraction | None:
    """Value of cleaned text that is rational arithmetic, else None. Raises `TooLargeError` instead of computing for long."""
    if not text or len(text) > MAX_DIGITS:
        if len(text) > MAX_DIGITS and re.fullmatch(r"[-+]?[\d,.]+", text):
            raise TooLargeError
        return None
    try:
        reader = _Reader(_tokens(text))
        value = reader.sum()
        return value if reader.position == len(reader.tokens) else None
    except (_NotRationalError, ZeroDivisionError):
        return None


def decimals(text: str) -> tuple[int, int] | None:
    """(significant digits, digits after the point) of a plain decimal such as `-4.1231`, else None."""
    match = DECIMAL.fullmatch(text.strip())
    if match is None:
        return None
    return len(re.sub(r"\D", "", text).lstrip("0")), len(match.group(1))


def _tokens(text: str) -> list[tuple[str, str]]:
    tokens, position, end = [], 0, len(text.rstrip())
    while position < end:
        match = _TOKEN.match(text, position)
        if match is None:
            raise _NotRationalError
        kind = match.lastgroup or "op"
        tokens.append((match.group(kind) if kind == "op" else kind, match.group(kind)))
        position = match.end()
    return tokens


def _number(text: str) -> Fraction:
    text = text.replace(",", "")
    mantissa, _, exponent = text.lower().partition("e")
    if len(mantissa) > MAX_DIGITS or len(exponent) > 5 or (exponent and abs(int(exponent)) > 4000):
        raise TooLargeError
    return Fraction(mantissa.rstrip(".") or "0") * Fraction(10) ** int(exponent or 0)


def _repeating(text: str) -> Fraction:
    r"""`0.1\overline{6}` is 1/10 + 6/90."""
    start, _, period = text.rstrip("}").partition(r"\overline{")
    shift = 10 ** len(start.partition(".")[2])
    return _number(start if start != "." else "0") + Fraction(int(period), shift * (10 ** len(period) - 1))


def _power(base: Fraction, exponent: Fraction) -> Fraction:
    if exponent.denominator != 1:
        raise _NotRationalError
    power = exponent.numerator
    bits = max(base.numerator.bit_length(), base.denominator.bit_length())
    if abs(base) not in (0, 1) and bits * abs(power) > MAX_BITS:
        raise TooLargeError
    if base in (1, -1):
        return base if power % 2 else Fraction(1)
    if base == 0:
        if power <= 0:
            raise _NotRationalError
        return base
    return base**power


def _factorial(value: Fraction) -> Fraction:
    if value.denominator != 1 or value < 0:
        raise _NotRationalError
    if value > MAX_FACTORIAL:
        raise TooLargeError
    result = 1
    for factor in range(2, value.numerator + 1):
        result *= factor
    return Fraction(result)


class _Reader:
    """Recursive descent over tokens (kind, text); raises `_NotRationalError` at whatever it doesn't know."""

    def __init__(self, tokens: list[tuple[str, str]]) -> None:
        self.tokens, self.position, self.depth = tokens, 0, 0

    def peek(self) -> str:
        return self.tokens[self.position][0] if self.position < len(self.tokens) else ""

    def take(self, kind: str = "") -> str:
        if (kind and self.peek() != kind) or self.position >= len(self.tokens):
            raise _NotRationalError
        self.position += 1
        return self.tokens[self.position - 1][1]

    def sum(self) -> Fraction:
        self.depth += 1
        if self.depth > MAX_DEPTH:
            raise _NotRationalError
        value = self.product()
        while self.peek() in ("+", "-"):
            value = self._bounded(value + self.product() if self.take() == "+" else value - self.product())
        self.depth -= 1
        return value

    def product(self) -> Fraction:
        value = self.signed()
        while (kind := self.peek()) in ("times", "div", "(", "{", "frac"):
            if kind == "times":
                self.take()
                value *= self.signed()
            elif kind == "div":
                self.take()
                value /= self.signed()
            else:
                value = self._juxtaposed(value, kind)
            value = self._bounded(value)
        return value

    def _juxtaposed(self, value: Fraction, kind: str) -> Fraction:
        r"""`2(3)` is a product; `2\frac{1}{2}` a mixed number; `4\frac{10}{3}` is neither and left to nobody."""
        plain = self.tokens[self.position - 1][0] == "number"
        factor = self.power()
        if kind == "{" or (kind == "frac" and not plain):
            raise _NotRationalError
        if kind == "(":
            return value * factor
        if value.denominator != 1 or not 0 < factor < 1:
            raise _NotRationalError
        return value + factor if value >= 0 else value - factor

    def signed(self) -> Fraction:
        sign = 1
        for _ in range(3):
            if self.peek() == "-":
                sign = -sign
            elif self.peek() != "+":
                break
            self.take()
        else:
            raise _NotRationalError
        value = self.power()
        if sign < 0 and self.peek() == "frac" and self.tokens[self.position - 1][0] == "number":
            return -self._juxtaposed(value, "frac")
        return sign * value

    def power(self) -> Fraction:
        base = self.factorial()
        if self.peek() != "^":
            return base
        self.take()
        if self.peek() == "-":
            self.take()
            return _power(base, -self.power())
        return _power(base, self.power())

    def factorial(self) -> Fraction:
        value = self.atom()
        if self.peek() == "!":
            self.take()
            value = _factorial(value)
        return value

    def atom(self) -> Fraction:
        kind = self.peek()
        if kind == "number":
            return _number(self.take())
        if kind == "repeating":
            return _repeating(self.take())
        if kind == "mixed":
            whole, upper, lower = (int(part[:MAX_DIGITS]) for part in re.findall(r"\d+", self.take()))
            if not 0 < upper < lower:
                raise _NotRationalError
            return whole + Fraction(upper, lower)
        if kind == "frac":
            self.take()
            return self.group("{", "}") / self.group("{", "}")
        if kind == "(":
            return self.group("(", ")")
        return self.group("{", "}")

    def group(self, opening: str, closing: str) -> Fraction:
        self.take(opening)
        value = self.sum()
        self.take(closing)
        return value

    @staticmethod
    def _bounded(value: Fraction) -> Fraction:
        if max(value.numerator.bit_length(), value.denominator.bit_length()) > 4 * MAX_BITS:
            raise TooLargeError
        return value
