r"""The form of a mathematical answer: number, formula, text, list, set, tuple, interval, ratio, matrix, equation, relation.

`parse` reads cleaned text (`latex.clean`) into one of the small classes below; `compare` says when two of them agree.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from fractions import Fraction

from skpo.verifiers.rational import TooLargeError, decimals, rational
from skpo.verifiers.sizes import oversized

MAX_LENGTH = 2000
MAX_ITEMS = 200

_OPEN, _CLOSE = "([{", ")]}"
_RELATION = re.compile(r"\\(le|ge|ne)(?![a-z])|([<>])")
_NAME = re.compile(
    r"(?:[A-Za-z]|\\[a-z]+|\\text\{[^{}]*\}|[A-Za-z]{2,12})(?:_\{?\w+\}?)?'*(?:\^\{?(?:-1|\\prime|')\}?)?(?: ?\([A-Za-z, ]*\))?"
)
_WORDS = re.compile(r"(?<![\\A-Za-z])[A-Za-z]{3,}")
_FUNCTIONS = frozenset(
    re.split(
        " ", "sin cos tan sec csc cot log exp sqrt lim max min gcd lcm mod det arcsin arccos arctan sinh cosh tanh"
    )
)
_UNIT = re.compile(
    r"(?P<head>.*(?:[\d)}%]|\\pi)) ?(?:\\text\{(?P<text>[^{}]*)\}|(?P<word> ?[A-Za-z]{3,}(?: [A-Za-z]{2,})*\.?| [A-Za-z]{1,4}/[A-Za-z]{1,4}"
    r"|(?:mm|cm|dm|km|kg|mg|ml|mL|ft|in|hr|hrs|min|mph|am|pm|sec|Hz|deg|AM|PM| am| pm| AM| PM| [mgsLhNJW])))(?:\^\{?[23]\}?)?"
)
_CURRENCY = re.compile(r"(?:USD|EUR|GBP|Rs\.?) ?(?=\d)|(?<=\d) ?(?:USD|EUR|GBP)$")
_SPACED = re.compile(r"-?\d{1,3}(?: \d{3})+(?:\.\d+)?")
_MATRIX = re.compile(r"\\begin\{([bpvBV]?matrix|array)\}(?:\{[lcr|]*\})?(.*)\\end\{\1\}", re.DOTALL)
_UNIT_NAMES = {"degree": "deg", "hr": "hour", "hrs": "hour", "minute": "min", "second": "sec", "dollar": "", "usd": ""}


@dataclass(frozen=True)
class Number:
    """An exact value; `digits` and `places` (significant, after the point) are set where it was written as a decimal."""

    value: Fraction
    digits: int = 0
    places: int = 0
    percent: bool = False
    unit: str = ""


@dataclass(frozen=True)
class Huge:
    """A value too large to work out; equal only to the same text."""

    text: str


@dataclass(frozen=True)
class Text:
    """Words, in lower case."""

    text: str


@dataclass(frozen=True)
class Formula:
    """An expression for the symbolic comparison, without its unit."""

    text: str
    unit: str = ""


@dataclass(frozen=True)
class Based:
    """Digits in a named base, such as 204_5."""

    digits: str
    base: int


@dataclass(frozen=True)
class Group:
    r"""Several answers. `kind`: list, set, sequence (with \ldots), ratio, union, matrix; or brackets such as "()" and "[)"."""

    kind: str
    items: tuple[Shape, ...]
    width: int = 0


@dataclass(frozen=True)
class Relation:
    """`left op right` with op one of =, <, <=, !=; `>` is stored turned round. `bounds`: the same as an interval, if any."""

    left: str
    op: str
    right: str
    bounds: Group | None = None


@dataclass(frozen=True)
class Assigned:
    """`name = value` or `name \\in value`; `equation` is the same as a relation."""

    name: str
    value: Shape
    equation: Relation | None = None


Shape = Number | Huge | Text | Formula | Based | Group | Relation | Assigned


_LINE = Group("()", (Formula(r"-\infty"), Formula(r"\infty")))
_SETS = {r"\mathbb{R}": _LINE, "all real numbers": _LINE, r"\emptyset": Group("set", ())}


def parse(text: str, depth: int = 0) -> Shape:
    """Shape of cleaned text. Never raises; what it doesn't know becomes a formula or text."""
    text = text.strip()
    if len(text) > MAX_LENGTH or depth > 8:
        return Text(squeeze(text))
    if text in _SETS:
        return _SETS[text]
    for rule in (_assigned, _plus_minus, _relation, _union, _matrix, _bracketed, _listed, _ratio, _based):
        found = rule(text, depth)
        if found is not None:
            return found
    return leaf(text)


def squeeze(text: str) -> str:
    """Text without case, spaces, punctuation at its ends, and wrappers: what words are compared by."""
    text = re.sub(r"\\text\{([^{}]*)\}", r"\1", text)
    return re.sub(r"\s+", " ", text).strip(" .,;:!?'\"()$*").casefold()


def leaf(text: str) -> Shape:
    """A single answer without structure."""
    text = _CURRENCY.sub("", text.strip())
    if _SPACED.fullmatch(text):
        text = text.replace(" ", "")
    number = _number(text, "")
    if number is not None:
        return number
    unit, head = "", text
    match = _UNIT.fullmatch(text)
    if match and (match["text"] is not None or not _FUNCTIONS & set(match["word"].split())):
        head, unit = match["head"].strip(), _unit_name(match["text"] or match["word"] or "")
        number = _number(head, unit)
        if number is not None:
            return number
    if _is_text(head):
        return Text(squeeze(text))
    return huge(head) if oversized(head) else Formula(head, unit)


def huge(text: str) -> Huge:
    """A value too large to work out, in one spelling: no spaces, exponents in braces."""
    return Huge(re.sub(r"\^(\d+|[A-Za-z])", r"^{\1}", re.sub(r"\s+", "", text)))


def _is_text(text: str) -> bool:
    if r"\forall" in text or r"\text{" in text or r"\exists" in text:
        return True
    return bool(set(_WORDS.findall(text)) - _FUNCTIONS) and not re.search(r"[\\^=]", text)


def _number(text: str, unit: str) -> Number | Huge | None:
    percent = text.endswith("%")
    text = text.rstrip("% ") if percent else text
    try:
        value = rational(text)
    except TooLargeError:
        return huge(text)
    if value is None:
        return None
    digits, places = decimals(text) or (0, 0)
    return Number(value, digits, places, percent, unit)


def _unit_name(unit: str) -> str:
    name = re.sub(r"[^a-z]", "", unit.casefold())
    name = _UNIT_NAMES.get(name, name)
    singular = name[:-1] if len(name) > 2 and name.endswith("s") else name
    return _UNIT_NAMES.get(singular, singular)


def split(text: str, separator: re.Pattern[str]) -> list[str]:
    """Parts of a text between separators that stand outside of all brackets; a half-open interval counts as brackets."""
    parts, start, level, position = [], 0, 0, 0
    while position < len(text):
        char = text[position]
        if char in _OPEN:
            level += 1
        elif char in _CLOSE:
            level = max(0, level - 1)
        elif level == 0 and (match := separator.match(text, position)) and match.end() > position:
            parts.append(text[start:position])
            start = position = match.end()
            continue
        elif char == "\\" and text[position + 1 : position + 2] in ("{", "}", "\\"):
            level += {"{": 1, "}": -1}.get(text[position + 1], 0)
            position += 1
        position += 1
    return [*parts, text[start:]]


_EQUALS = re.compile(r"=|\\in(?![a-z])|\\equiv(?![a-z])|\\approx(?![a-z])")
_COMMA = re.compile(r"[,;]|(?<=[\d)}\]a-z ]) ?\b(?:and|or)\b ?")
_CUP = re.compile(r"\\cup(?![a-z])|(?<=[\])]) ?U ?(?=[\[(])")
_COLON = re.compile(r":")
_ROW = re.compile(r"\\\\(?:\[[^\]]*\])?")
_CELL = re.compile(r"&")


def _assigned(text: str, depth: int) -> Shape | None:
    if ("=" not in text and r"\in" not in text) or r"\forall" in text:
        return None
    sides = split(text, _EQUALS)
    if len(sides) < 2 or not all(side.strip() for side in sides):
        return None
    left, right = sides[0].strip(), sides[-1].strip()
    if len(split(text, _COMMA)) > 1 and any(len(split(part, _EQUALS)) > 1 for part in split(text, _COMMA)[1:]):
        return None
    equation = Relation(left, "=", right) if len(sides) == 2 and "=" in text else None
    if all(_NAME.fullmatch(name.strip()) for name in split(left, re.compile(r"[:,]"))):
        return Assigned(re.sub(r"[{}\s]", "", left), parse(right, depth + 1), equation)
    if len(sides) > 2 and rational_or_none(right) is not None:
        return parse(right, depth + 1)
    value = rational_or_none(left)
    return parse(right, depth + 1) if value is not None and value == rational_or_none(right) else equation


def rational_or_none(text: str) -> Fraction | None:
    """Like `rational`, with None for what is too large."""
    try:
        return rational(text)
    except TooLargeError:
        return None


def _plus_minus(text: str, depth: int) -> Shape | None:
    if text.count(r"\pm") != 1 or len(split(text, _COMMA)) > 1:
        return None
    plus = text.replace(r"\pm", "+").strip()
    minus = text.replace(r"\pm", "-").strip()
    return Group("list", (parse(plus.removeprefix("+"), depth + 1), parse(minus, depth + 1)))


def _relation(text: str, depth: int) -> Shape | None:
    if not _RELATION.search(text) or len(split(text, _COMMA)) > 1 or r"\forall" in text:
        return None
    parts = [part.strip() for part in split(text, _RELATION)]
    ops = [match.group(1) or match.group(2) for match in _RELATION.finditer(text)]
    if len(parts) != len(ops) + 1 or not all(parts) or len(ops) > 2:
        return None
    ops = [{"le": "<=", "ge": ">=", "ne": "!="}.get(op, op) for op in ops]
    if len(ops) == 2:
        return _chain(parts, ops, depth)
    left, op, right = parts[0], ops[0], parts[1]
    if op.startswith(">"):
        left, op, right = right, op.replace(">", "<"), left
    return Relation(left, op, right, _half_line(left, op, right, depth))


def _half_line(left: str, op: str, right: str, depth: int) -> Group | None:
    if op == "!=":
        return None
    bracket = "]" if op == "<=" else ")"
    if re.fullmatch(r"[A-Za-z]", left):
        return Group(f"({bracket}", (parse(r"-\infty", depth + 1), parse(right, depth + 1)))
    if re.fullmatch(r"[A-Za-z]", right):
        return Group(f"{'[' if op == '<=' else '('})", (parse(left, depth + 1), parse(r"\infty", depth + 1)))
    return None


def _chain(parts: list[str], ops: list[str], depth: int) -> Shape | None:
    if all(op.startswith(">") for op in ops):
        parts, ops = parts[::-1], [op.replace(">", "<") for op in reversed(ops)]
    if not all(op in ("<", "<=") for op in ops) or not re.fullmatch(r"[A-Za-z]|\\[a-z]+", parts[1]):
        return None
    brackets = ("[" if ops[0] == "<=" else "(") + ("]" if ops[1] == "<=" else ")")
    return Group(brackets, (parse(parts[0], depth + 1), parse(parts[2], depth + 1)))


def _union(text: str, depth: int) -> Shape | None:
    parts = split(text, _CUP) if "\\cup" in text or "U" in text else []
    return Group("union", tuple(parse(part, depth + 1) for part in parts)) if len(parts) > 1 else None


def _matrix(text: str, depth: int) -> Shape | None:
    match = _MATRIX.fullmatch(text) if text.startswith("\\begin") else None
    if match is None:
        return None
    rows = [split(row, _CELL) for row in split(match[2], _ROW) if row.strip() and row.strip() != r"\hline"]
    if not rows or len({len(row) for row in rows}) != 1 or len(rows) * len(rows[0]) > MAX_ITEMS:
        return None
    return Group("matrix", tuple(parse(cell, depth + 1) for row in rows for cell in row), len(rows[0]))


def _bracketed(text: str, depth: int) -> Shape | None:
    text = re.sub(r"^\\langle(.*)\\rangle$", r"(\1)", text)
    if text.startswith("\\{") and text.endswith("\\}") and len(split(text, re.compile(r"(?<=\\})(?=.)"))) == 1:
        inner, kind = text[2:-2], "set"
    elif len(text) > 2 and text[0] in "([" and text[-1] in ")]" and _spans(text):
        inner, kind = text[1:-1], text[0] + text[-1]
    else:
        return None
    items = split(inner, re.compile(r"[,;]"))
    if kind != "set" and len(items) < 2:
        return parse(inner, depth + 1) if kind == "()" and re.search(r"[A-Za-z\d]", inner) else None
    if kind == "set" and (":" in inner or r"\mid" in inner or "|" in inner):
        return None
    return Group(kind, tuple(parse(item, depth + 1) for item in items[:MAX_ITEMS] if item.strip()))


def _spans(text: str) -> bool:
    """Whether the first bracket is closed by the last one."""
    level = 0
    for position, char in enumerate(text):
        level += (char in _OPEN) - (char in _CLOSE)
        if level == 0 and position < len(text) - 1:
            return False
    return level == 0


def _listed(text: str, depth: int) -> Shape | None:
    if not re.search(r"[,;]|\b(?:and|or)\b", text) or rational_or_none(text.rstrip("% ")) is not None:
        return None
    parts = [part.strip() for part in split(text, _COMMA) if part.strip()]
    if len(parts) < 2 or len(parts) > MAX_ITEMS or leaf_is_quantity(text):
        return None
    kind = "sequence" if r"\ldots" in text else "list"
    return Group(kind, tuple(parse(part, depth + 1) for part in parts))


def leaf_is_quantity(text: str) -> bool:
    """Whether the text is one number with a unit (`1,200 cm`): its comma then separates thousands."""
    match = _UNIT.fullmatch(text)
    return match is not None and rational_or_none(match["head"].strip().rstrip("% ")) is not None


def _ratio(text: str, depth: int) -> Shape | None:
    parts = [part.strip() for part in split(text, _COLON)] if ":" in text else []
    if len(parts) < 2 or not all(re.search(r"[\dA-Za-z]", part) for part in parts):
        return None
    items = tuple(parse(part, depth + 1) for part in parts)
    return Text(squeeze(text)) if any(isinstance(item, Text) for item in items) else Group("ratio", items)


def _based(text: str, depth: int) -> Shape | None:
    match = re.fullmatch(r"([0-9A-F]+)_(?:\{(?:\\text\{)?(\d{1,2})\}?\}|(\d{1,2}))", text)
    return Based(match[1].lstrip("0") or "0", int(match[2] or match[3])) if match else None
