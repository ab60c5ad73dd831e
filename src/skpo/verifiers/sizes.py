"""Refuses formulas that computer algebra would work on for ever, before it sees them."""

from __future__ import annotations

import re

from skpo.verifiers.rational import MAX_FACTORIAL, TooLargeError, rational

MAX_EXPONENT = 5000
MAX_FORMULA = 1000
MAX_NESTING = 20


def oversized(text: str) -> bool:
    """Whether a formula is too large to evaluate: a power tower, a huge exponent or factorial, endless digits or nesting."""
    if len(text) > MAX_FORMULA or re.search(r"\d{400}", text) or _nesting(text) > MAX_NESTING:
        return True
    for match in re.finditer(r"(\^\s*)|(!)|(\\(?:Gamma|binom|dbinom|tbinom)\b)", text):
        if match.group(1) and _exceeds(_argument(text, match.end()), MAX_EXPONENT):
            return True
        if match.group(2) and _exceeds(_before(text, match.start()), MAX_FACTORIAL):
            return True
        if match.group(3) and _exceeds(_argument(text, match.end()), MAX_FACTORIAL):
            return True
    return False


def _exceeds(operand: str, limit: int) -> bool:
    """Whether a numeric operand is above the limit, or holds another power or factorial that can't be worked out."""
    try:
        value = rational(operand)
    except TooLargeError:
        return True
    if value is not None:
        return abs(value) > limit
    return operand.count("^") + operand.count("!") >= 2 or any(int(n[:9]) > limit for n in re.findall(r"\d+", operand))


def _argument(text: str, start: int) -> str:
    """The group or token after a command: `{...}`, `(...)` or a run of digits."""
    text = text[start:].lstrip()
    if not text.startswith(("{", "(")):
        match = re.match(r"-?\w+", text)
        return match.group() if match else ""
    level = 0
    for position, char in enumerate(text):
        level += (char in "{(") - (char in "})")
        if level == 0:
            return text[1:position]
    return text[1:]


def _before(text: str, end: int) -> str:
    """The group or digits in front of a factorial sign."""
    text = text[:end].rstrip()
    if not text.endswith(("}", ")", "!")):
        match = re.search(r"\w+$", text)
        return match.group() if match else ""
    if text.endswith("!"):
        return _before(text, len(text) - 1) + "!"
    level = 0
    for position in range(len(text) - 1, -1, -1):
        level += (text[position] in "})") - (text[position] in "{(")
        if level == 0:
            return text[position + 1 : -1]
    return text[:-1]


def _nesting(text: str) -> int:
    deepest = level = 0
    for char in text:
        level += (char in "{([") - (char in "})]")
        deepest = max(deepest, level)
    return deepest
