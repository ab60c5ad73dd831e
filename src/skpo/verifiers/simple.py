"""The verifiers `number`, `choice` and `exact`: no worker, microseconds an answer."""

from __future__ import annotations

import re
from functools import lru_cache
from typing import Any

from skpo.errors import VerifierError
from skpo.verifiers.base import BaseVerifier, gold_text
from skpo.verifiers.compare import same_number
from skpo.verifiers.extract import after_mark, after_thinking, last_box, last_number, tagged
from skpo.verifiers.latex import clean
from skpo.verifiers.shapes import Huge, Number, leaf

_LONE = re.compile(r"[*_`$\s]*\(?([A-Ja-j])\)?[*_`$.\s]*")
_LED = re.compile(r"[*_`$\s]*(?:(?:option|choice)\s+)?(?:\(([A-J])\)|([A-J])(?=[.:)*_`,;\s]|$))", re.IGNORECASE)
_IN_PARENTHESES = re.compile(r"\(([A-J])\)")


class NumberVerifier(BaseVerifier):
    """The last number of a completion, whole text, equals the gold number exactly.

    Integers, decimals, thousands separators, signs (also the Unicode minus), a/b, mixed numbers, percent, 1.5e3.
    """

    one_answer = True

    def normal(self, completion: str) -> str | None:
        return last_number(completion)

    def alike(self, one: str, other: str) -> bool:
        numbers = _number(one), _number(other)
        if isinstance(numbers[0], Number) and isinstance(numbers[1], Number):
            return bool(same_number(numbers[0], numbers[1]))
        return one == other

    def quick(self, completion: str, answer: Any) -> float | None:
        gold = _number(gold_text(answer, self.name))
        found = last_number(completion)
        number = _number(found) if found is not None else None
        if isinstance(gold, Number) and isinstance(number, Number):
            return float(same_number(gold, number))
        return float(number is not None and number == gold)

    def check_gold(self, answer: Any) -> None:
        if _number(gold_text(answer, self.name)) is None:
            raise VerifierError(f"{self.name}: no number in the gold answer {answer!r:.80}.")


@lru_cache(maxsize=8192)
def _number(text: str) -> Number | Huge | None:
    """Last number of a text; a decimal is exact here, whatever its length."""
    found = last_number(text)
    shape = leaf(clean(found)) if found is not None else None
    if isinstance(shape, Number):
        return Number(shape.value, percent=shape.percent)
    return shape if isinstance(shape, Huge) else None


class ChoiceVerifier(BaseVerifier):
    r"""One letter A to J: `\boxed{C}`, `(C)`, `C.`, "answer: C", "E: the option's text"."""

    one_answer = True

    def normal(self, completion: str) -> str | None:
        return choice(completion)

    def quick(self, completion: str, answer: Any) -> float | None:
        gold = _letter(gold_text(answer, self.name))
        return float(gold is not None and choice(completion) == gold)

    def check_gold(self, answer: Any) -> None:
        if _letter(gold_text(answer, self.name)) is None:
            raise VerifierError(f"{self.name}: the gold answer {answer!r:.80} is no option letter from A to J.")


def choice(completion: str) -> str | None:
    """The option that a completion settles on, in this order: last box, `<answer>` tag, after the last "answer is" or
    "answer:", the whole text, the last line, the last letter in parentheses."""
    text = after_thinking(completion)
    for part in (last_box(text), tagged(text), after_mark(text)):
        if part is not None:
            return _letter(part)
    last_line = text.strip().rpartition("\n")[2]
    found = _letter(text) or _letter(last_line)
    if found is None:
        letters = _IN_PARENTHESES.findall(text)
        found = letters[-1] if letters else None
    return found


def _letter(text: str) -> str | None:
    r"""Letter of `C`, `(C)`, `\text{C}`, `C. text`, `C: text`; "A score of 5" has none, since "A" is a word there."""
    text = clean(text[:400])
    lone = _LONE.fullmatch(text)
    if lone:
        return lone[1].upper()
    led = _LED.match(text)
    if led is None:
        return None
    letter = led[1] or led[2]
    if led[2] and (letter.islower() or (letter in "AI" and re.match(r"\s+[a-z]", text[led.end() :]))):
        return None
    return letter.upper()


class ExactVerifier(BaseVerifier):
    """The final answer equals the gold answer after whitespace is normalised; a trailing period doesn't count."""

    one_answer = True

    def normal(self, completion: str) -> str | None:
        return " ".join(exact_answer(completion).split()).removesuffix(".").rstrip() or None

    def quick(self, completion: str, answer: Any) -> float | None:
        gold = " ".join(gold_text(answer, self.name).split())
        found = " ".join(exact_answer(completion).split())
        return float(found == gold or (found.endswith(".") and found[:-1].rstrip() == gold))

    def check_gold(self, answer: Any) -> None:
        gold_text(answer, self.name)


def exact_answer(completion: str) -> str:
    r"""Last complete `\boxed{}`; else what follows the last run of `#`; else what follows the last "answer is" or
    "answer:" (any case); else all of the completion. Stripped."""
    boxed = last_box(completion)
    if boxed is not None:
        return boxed.strip()
    if "#" in completion:
        return completion.rpartition("#")[2].strip()
    stated = after_mark(completion)
    return (completion if stated is None else stated).strip()
