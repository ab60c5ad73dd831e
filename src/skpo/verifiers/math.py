r"""The `math` verifier: final answers of mathematical completions.

Numbers, texts, choices, lists, sets, tuples, intervals and ratios are compared exactly and in process; formulas,
equations and inequalities go to a worker (`symbolic`).
"""

from __future__ import annotations

import re
from functools import lru_cache
from typing import Any

from skpo.errors import VerifierError
from skpo.verifiers.base import BaseVerifier, Columns, gold_text
from skpo.verifiers.compare import Symbolic, equal
from skpo.verifiers.extract import final_answer, last_box
from skpo.verifiers.latex import clean
from skpo.verifiers.shapes import MAX_LENGTH, Shape, Text, parse

_GOLD_LETTER = re.compile(r"\(?([A-J])\)?\.?")
_LETTER = re.compile(r"\(?([A-Ja-j])\)?\.?|\(([A-J])\).*|([A-J]) ?[.:)] ?.*", re.DOTALL)


class _NeedsSymbolicError(Exception):
    """Quick rules can't tell."""


class MathVerifier(BaseVerifier):
    """Compares the final answer of a completion (`extract.final_answer`) with the gold answer."""

    preload = ("skpo.verifiers.symbolic:load",)
    one_answer = True

    def normal(self, completion: str) -> str | None:
        found = final_answer(completion)
        if found is None or not found.strip() or len(found) > MAX_LENGTH:
            return None
        return _prediction(found)[0] or None

    def alike(self, one: str, other: str) -> bool:
        """By the quick rules; formulas that only algebra could compare count as different."""
        try:
            return bool(equal(_prediction(one)[1], _prediction(other)[1], _undecided))
        except Exception:
            return False

    def quick(self, completion: str, answer: Any) -> float | None:
        try:
            return self._judge(completion, answer, _undecided)
        except _NeedsSymbolicError:
            return None

    def slow(self, completion: str, answer: Any, columns: Columns, prompt: Any) -> float | None:
        from skpo.verifiers import symbolic

        return self._judge(completion, answer, symbolic.compare)

    def check_gold(self, answer: Any) -> None:
        text = gold_text(answer, self.name)
        gold, shape = _gold(text)
        if not gold or not re.search(r"\w|\\", gold):
            raise VerifierError(f"{self.name}: nothing to compare with in the gold answer {text!r:.80}.")
        plain = re.sub(r"\\[{}]", "", gold)
        if plain.count("{") != plain.count("}"):
            raise VerifierError(f"{self.name}: unbalanced braces in the gold answer {text!r:.80}.")
        if len(gold) > MAX_LENGTH:
            raise VerifierError(f"{self.name}: the gold answer has {len(gold)} characters; at most {MAX_LENGTH}.")
        if isinstance(shape, Text) and not shape.text:
            raise VerifierError(f"{self.name}: no answer in the gold answer {text!r:.80}.")

    def _judge(self, completion: str, answer: Any, symbolic: Symbolic) -> float:
        found = final_answer(completion)
        if found is None or not found.strip() or len(found) > MAX_LENGTH:
            return 0.0
        text = answer if isinstance(answer, str) else gold_text(answer, self.name)
        if found == text:
            return 1.0
        if found.isdigit() and text.isdigit() and found.isascii() and text.isascii():
            return float(found.lstrip("0") == text.lstrip("0"))
        gold, shape = _gold(text)
        if not gold:
            return 0.0
        prediction, predicted = _prediction(found)
        if gold == prediction:
            return 1.0
        letter = _GOLD_LETTER.fullmatch(gold)
        if letter:
            chosen = _LETTER.fullmatch(prediction)
            if chosen:
                return float(next(group for group in chosen.groups() if group).upper() == letter[1])
        return float(equal(shape, predicted, symbolic))


def _undecided(gold: Shape, prediction: Shape) -> bool:
    raise _NeedsSymbolicError


@lru_cache(maxsize=8192)
def _gold(text: str) -> tuple[str, Shape]:
    """Cleaned gold answer and its shape; a worked solution counts by its last box or its `####` line."""
    boxed = last_box(text)
    if boxed is not None:
        text = boxed
    elif "####" in text:
        text = text.rpartition("####")[2]
    gold = clean(text)
    return gold, parse(gold)


@lru_cache(maxsize=8192)
def _prediction(found: str) -> tuple[str, Shape]:
    prediction = clean(found)
    return prediction, parse(prediction)
