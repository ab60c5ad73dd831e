"""When two answers agree: rules by shape; single formulas are left to a comparison that is handed in."""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction

from skpo.verifiers.shapes import Assigned, Based, Formula, Group, Huge, Number, Relation, Shape, Text

Symbolic = Callable[[Shape, Shape], bool]
"""(gold, prediction) -> equal, for two relations or for a pair with at least one formula in it."""

UNORDERED = ("list", "set")
PRINTED_DIGITS = 15
MIN_DIGITS_GOLD = 6
MIN_DIGITS_PREDICTION = 10


def equal(gold: Shape, prediction: Shape, symbolic: Symbolic) -> bool:
    """Whether a prediction agrees with a gold answer. Only `symbolic` may raise."""
    if gold == prediction:
        return True
    if isinstance(gold, Assigned) or isinstance(prediction, Assigned):
        return _assigned(gold, prediction, symbolic)
    if isinstance(gold, Relation) or isinstance(prediction, Relation):
        return _relations(gold, prediction, symbolic)
    if isinstance(gold, Group) or isinstance(prediction, Group):
        return _groups(gold, prediction, symbolic)
    return _leaves(gold, prediction, symbolic)


def approximation(gold: Number, value: Fraction) -> bool:
    """Whether a gold answer written as a decimal with six or more digits is `value`, rounded.

    A gold answer of 15 or more digits was printed from a double; its last digits carry no meaning (relative 1e-9).
    """
    if gold.digits < MIN_DIGITS_GOLD:
        return False
    slack = Fraction(1, 2 * 10**gold.places)
    if gold.digits >= PRINTED_DIGITS:
        slack = max(slack, abs(gold.value) / 10**9)
    return abs(gold.value - value) <= slack


def _assigned(gold: Shape, prediction: Shape, symbolic: Symbolic) -> bool:
    if isinstance(gold, Assigned) and isinstance(prediction, Assigned):
        if _same_name(gold.name, prediction.name) and equal(gold.value, prediction.value, symbolic):
            return True
        if gold.equation is None or prediction.equation is None:
            return False
        return symbolic(gold.equation, prediction.equation)
    one, other = (gold, prediction) if isinstance(gold, Assigned) else (prediction, gold)
    assert isinstance(one, Assigned)
    if isinstance(other, Relation) and other.op == "=":
        return one.equation is not None and symbolic(one.equation, other)
    value = one.value
    return equal(value, other, symbolic) if one is gold else equal(other, value, symbolic)


def _same_name(one: str, other: str) -> bool:
    return one.replace("\\text", "").casefold() == other.replace("\\text", "").casefold()


def _relations(gold: Shape, prediction: Shape, symbolic: Symbolic) -> bool:
    if isinstance(gold, Relation) and isinstance(prediction, Relation):
        if gold.bounds and prediction.bounds and equal(gold.bounds, prediction.bounds, symbolic):
            return True
        return gold.op == prediction.op and symbolic(gold, prediction)
    one = gold.bounds if isinstance(gold, Relation) else gold
    other = prediction.bounds if isinstance(prediction, Relation) else prediction
    return one is not None and other is not None and equal(one, other, symbolic)


def _groups(gold: Shape, prediction: Shape, symbolic: Symbolic) -> bool:
    if not isinstance(gold, Group) or not isinstance(prediction, Group):
        group, single = (gold, prediction) if isinstance(gold, Group) else (prediction, gold)
        assert isinstance(group, Group)
        if group.kind == "set" and len(group.items) == 1:
            item = group.items[0]
            return equal(item, single, symbolic) if group is gold else equal(single, item, symbolic)
        return group.kind == "ratio" and isinstance(single, Number) and _value(group) == single.value
    if "union" in (gold.kind, prediction.kind):
        gold, prediction = _as_union(gold), _as_union(prediction)
    if gold.kind in UNORDERED and prediction.kind in UNORDERED:
        return _same_items(gold, prediction, symbolic)
    if gold.kind != prediction.kind or gold.width != prediction.width:
        return False
    if gold.kind == "union":
        return _same_items(gold, prediction, symbolic)
    if len(gold.items) != len(prediction.items):
        return False
    if gold.kind == "ratio" and _proportional(gold, prediction):
        return True
    return all(equal(a, b, symbolic) for a, b in zip(gold.items, prediction.items, strict=True))


def _as_union(group: Group) -> Group:
    """`x < 1 or x > 2`, a list of inequalities, as a union of intervals."""
    if group.kind != "list" or not all(
        isinstance(item, Group) or getattr(item, "bounds", None) for item in group.items
    ):
        return group
    return Group("union", tuple(getattr(item, "bounds", None) or item for item in group.items))


def _same_items(gold: Group, prediction: Group, symbolic: Symbolic) -> bool:
    if "set" in (gold.kind, prediction.kind):
        gold, prediction = (Group(g.kind, tuple(dict.fromkeys(g.items))) for g in (gold, prediction))
    if len(gold.items) != len(prediction.items):
        return False
    rest = list(prediction.items)
    for item in gold.items:
        match = next((i for i, other in enumerate(rest) if equal(item, other, symbolic)), None)
        if match is None:
            return False
        rest.pop(match)
    return True


def _numbers(group: Group) -> list[Fraction]:
    return [item.value for item in group.items if isinstance(item, Number)]


def _value(ratio: Group) -> Fraction | None:
    numbers = _numbers(ratio)
    return numbers[0] / numbers[1] if len(numbers) == len(ratio.items) == 2 and numbers[1] else None


def _proportional(gold: Group, prediction: Group) -> bool:
    one, other = _numbers(gold), _numbers(prediction)
    if len(one) != len(gold.items) or len(other) != len(prediction.items) or not all(one) or not all(other):
        return False
    if any(item.unit for item in (*gold.items, *prediction.items) if isinstance(item, Number)):
        return False
    return len({a / b for a, b in zip(one, other, strict=True)}) == 1


def _leaves(gold: Shape, prediction: Shape, symbolic: Symbolic) -> bool:
    if isinstance(gold, Number) and isinstance(prediction, Number):
        return same_number(gold, prediction)
    if isinstance(gold, Based) or isinstance(prediction, Based):
        based, other = (gold, prediction) if isinstance(gold, Based) else (prediction, gold)
        return isinstance(other, Number) and isinstance(based, Based) and str(other.value) == based.digits
    if any(isinstance(side, Huge | Text) for side in (gold, prediction)):
        return False
    if isinstance(gold, Formula) and isinstance(prediction, Formula) and _other_unit(gold.unit, prediction.unit):
        return False
    return symbolic(gold, prediction)


def _other_unit(one: str, other: str) -> bool:
    return bool(one and other and one != other)


def same_number(gold: Number, prediction: Number) -> bool:
    if _other_unit(gold.unit, prediction.unit):
        return False
    values = {prediction.value}
    if gold.percent != prediction.percent:
        values.add(prediction.value * 100 if gold.percent else prediction.value / 100)
    if gold.value in values:
        return True
    rounded = not prediction.digits or prediction.digits >= gold.digits or gold.digits >= PRINTED_DIGITS
    return rounded and any(approximation(gold, value) for value in values)
