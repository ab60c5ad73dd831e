"""Comparison of formulas through math-verify and sympy; runs in a worker only, which can be killed.

Two expressions are equal when they agree to 15 digits at fixed points, positive and negative; that never needs
`simplify`. What can't be evaluated goes to `math_verify.verify`.
"""

from __future__ import annotations

import logging
from fractions import Fraction
from functools import lru_cache
from typing import Any

from skpo.verifiers.compare import MIN_DIGITS_PREDICTION, approximation
from skpo.verifiers.shapes import Formula, Number, Relation, Shape
from skpo.verifiers.sizes import oversized

PRECISION = 30
POINTS = 6


@lru_cache(maxsize=1)
def load() -> None:
    """Import and warm up what a comparison needs (about half a second of CPU time)."""
    logging.getLogger("math_verify").setLevel(logging.ERROR)
    same_value(_expression(r"\frac{x+1}{2}-\sqrt{3}\pi"), _expression(r"2^{x}\sin(x)"))


def compare(gold: Shape, prediction: Shape) -> bool:
    """Whether two formulas, a formula and a number, or two relations with the same sign agree."""
    if isinstance(gold, Relation) and isinstance(prediction, Relation):
        return _same_relation(gold, prediction)
    one, other = _sympy(gold), _sympy(prediction)
    if one is None or other is None:
        return False
    if isinstance(gold, Number) and gold.digits:
        value = _number(other)
        return value is not None and (abs(value - gold.value) < Fraction(1, 10**20) or approximation(gold, value))
    if isinstance(prediction, Number) and prediction.digits >= MIN_DIGITS_PREDICTION:
        value = _number(one)
        return value is not None and approximation(prediction, value)
    return same_value(one, other)


def same_value(one: Any, other: Any) -> bool:
    """Whether two sympy objects are equal: numerically where they can be evaluated, else by `math_verify.verify`."""
    import sympy

    if not isinstance(one, sympy.Expr) or not isinstance(other, sympy.Expr):
        return _verify(one, other)
    symbols = one.free_symbols | other.free_symbols
    if symbols and all(str(symbol) == "i" for symbol in symbols):  # no other unknown: the imaginary unit
        one, other = (side.subs(dict.fromkeys(symbols, sympy.I)) for side in (one, other))
    pairs = _evaluated(one, other)
    if not pairs:
        return _verify(one, other)
    return all(_close(a, b) for a, b in pairs)


def _same_relation(gold: Relation, prediction: Relation) -> bool:
    """`a = b` and `c = d` (or `a < b` and `c < d`) agree when a-b is a constant multiple (positive for `<`) of c-d."""
    import sympy

    sides = [_expression(side) for side in (gold.left, gold.right, prediction.left, prediction.right)]
    if not all(isinstance(side, sympy.Expr) for side in sides):
        return False
    one, other = sides[0] - sides[1], sides[2] - sides[3]
    pairs = [(a, b) for a, b in _evaluated(one, other) if abs(a) > 1e-20 or abs(b) > 1e-20]
    if not pairs or not (one.free_symbols or other.free_symbols) or any(abs(b) < 1e-20 for _, b in pairs):
        return False
    ratios = [a / b for a, b in pairs]
    if abs(ratios[0]) < 1e-20 or not all(_close(ratio, ratios[0]) for ratio in ratios):
        return False
    return gold.op in ("=", "!=") or (abs(sympy.im(ratios[0])) < 1e-20 and bool(sympy.re(ratios[0]) > 0))


def _sympy(shape: Shape) -> Any:
    import sympy

    if isinstance(shape, Number):
        return sympy.Rational(shape.value.numerator, shape.value.denominator)
    return _expression(shape.text) if isinstance(shape, Formula) else None


@lru_cache(maxsize=4096)
def _expression(text: str) -> Any:
    """Sympy object of LaTeX text, or None where math-verify can't read it."""
    from math_verify import LatexExtractionConfig, parse

    if oversized(text):
        return None
    found = parse(
        f"${text}$",
        extraction_config=[LatexExtractionConfig()],
        fallback_mode="no_fallback",
        parsing_timeout=None,
    )
    return found[0] if found and not isinstance(found[0], str) else None


def _verify(one: Any, other: Any) -> bool:
    from math_verify import verify

    return bool(verify(one, other, float_rounding=12, numeric_precision=PRECISION, timeout_seconds=None))


def _evaluated(one: Any, other: Any) -> list[tuple[Any, Any]]:
    """Values of both expressions at the fixed points at which both are finite numbers."""
    symbols = sorted(one.free_symbols | other.free_symbols, key=str)
    pairs = []
    for point in range(POINTS if symbols else 1):
        values = {symbol: _coordinate(index, point) for index, symbol in enumerate(symbols)}
        a, b = (_finite(side.evalf(PRECISION, subs=values)) for side in (one, other))
        if a is not None and b is not None:
            pairs.append((a, b))
    return pairs


def _coordinate(index: int, point: int) -> Any:
    """A rational of size about 0.3 to 3, of no special value; the last two points are negative."""
    import sympy

    value = sympy.Rational(3 + 7 * point + 11 * index, 10 + (5 * index + 3 * point) % 7)
    return -value if point >= POINTS - 2 else value


def _finite(value: Any) -> Any:
    return value if value.is_number and value.is_finite and not value.free_symbols else None


def _close(a: Any, b: Any) -> bool:
    return bool(abs(a - b) <= 1e-15 * max(abs(a), abs(b)) + 1e-40) or bool(
        max(abs(a), abs(b)) < 1e-25 and (a == 0 or b == 0)
    )


def _number(value: Any) -> Fraction | None:
    """Real numeric value as a fraction (30 digits), or None."""
    import sympy

    if not isinstance(value, sympy.Expr) or value.free_symbols:
        return None
    number = value.evalf(PRECISION)
    if not number.is_Float and not number.is_Integer and not number.is_Rational:
        return None
    return Fraction(str(number)) if number.is_finite else None
