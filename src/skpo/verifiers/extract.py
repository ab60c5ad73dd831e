"""Where the final answer stands in a completion: boxes, markers, phrases, and what is left without any of them.

All scans are linear in the length of the text; no pattern here can backtrack for long.
"""

from __future__ import annotations

import re
from collections import deque

TAIL = 4000
_NEAR = 600
_BRACES = re.compile(r"\\(?:boxed|fbox|framebox)\s*\{|\\.|[{}]", re.DOTALL)
_BOX = re.compile(r"\\(?:boxed|fbox|framebox)\b")
_BETWEEN_BOXES = re.compile(r"(?:[\s,;$&~]|\\q?quad|\\[,;:! ()\[\]]|\\text\s*\{\s*(?:and|or)\s*\}|\b(?:and|or)\b)+")
_PHRASE = re.compile(
    r"\b(?:answers?|result|solutions?)\b(?:\s+(?:to|for|of)\s+(?:the|this)\s+(?:problem|question))?[\s*_]{0,8}"
    r"(?:\bis\b|\bare\b|\bwill be\b|:|=)(?:\s{0,8}(?:therefore|thus|simply|just|equal to)\b)?[\s*_:=]{0,8}",
    re.IGNORECASE,
)
_GAP = re.compile(r"\s*(?:,\s*(?:and|or)\b|,|\band\b|\bor\b)\s*")
_JOINED = re.compile(r"[,;&]|\b(?:and|or)\b")
_ANSWER_MARK = re.compile(r"\banswer\s*(?:\bis\b\s*:?|:)", re.IGNORECASE)
_MATH = re.compile(r"\$\$(.+?)\$\$|\$([^$]+)\$|\\\((.+?)\\\)|\\\[(.+?)\\\]", re.DOTALL)
_PERCENT_AFTER = re.compile(r"\s{0,4}(?:\\?%|percent\b|per cent\b)", re.IGNORECASE)
_SENTENCE_END = re.compile(r"\n|[.;!?](?=\s|$|\*)")
_NUMBER = re.compile(
    r"(?<![\w.\\])[-+−]?(?:\\frac\s{0,2}\{-?\d+\}\s{0,2}\{-?\d+\}|(?:\d{1,3}(?:,\d{3})+(?![\d,]*\d)|\d+)?(?:\.\d+|(?<=\d))"
    r"(?:[eE][-+]?\d+)?(?:\s{0,2}\\frac\s{0,2}\{\d+\}\s{0,2}\{\d+\}| \d+\s{0,2}/\s{0,2}\d+|\s{0,2}/\s{0,2}\d+(?!\d|\.\d))?)"
    r"(?:\s{0,2}(?:\\?%|percent\b|per cent\b))?"
)
# A word that ends the mathematical start of a sentence: at least two letters, not a command, not a connective.
_WORD = re.compile(
    r"(?<![\\A-Za-z{])(?!(?:and|or|pi|sin|cos|tan|sec|csc|cot|log|ln|exp|sqrt|mod|percent|degrees?|inf|infinity)\b)"
    r"[A-Za-z]{2,}"
)


def boxes(text: str) -> list[tuple[int, int, str]]:
    r"""Complete `\boxed{}` and `\fbox{}` groups, outermost only, as (start, end, content); unclosed ones are left out."""
    first = _BOX.search(text)
    if first is None:
        return []
    found: list[tuple[int, int, str]] = []
    stack: list[tuple[int, int] | None] = []
    for match in _BRACES.finditer(text, first.start()):
        token = match.group()
        if token == "{":
            stack.append(None)
        elif token == "}":
            opened = stack.pop() if stack else None
            if opened is not None:
                start, inner = opened
                while found and found[-1][0] > start:
                    found.pop()
                found.append((start, match.end(), text[inner : match.start()]))
        elif token.endswith("{") and len(token) > 2:
            stack.append((match.start(), match.end()))
    return found


def last_box(text: str) -> str | None:
    """Content of the last complete box; boxes joined only by commas or "and" count as one list. None without a box."""
    found = boxes(text)
    if not found:
        return None
    parts = [found[-1][2]]
    start = found[-1][0]
    for begin, end, content in reversed(found[:-1]):
        between = text[end:start]
        if len(between) > 60 or not _BETWEEN_BOXES.fullmatch(between) or not _JOINED.search(between):
            break
        parts.append(content)
        start = begin
    return ", ".join(reversed(parts))


def has_box(text: str) -> bool:
    """Whether the text opens a box at all, closed or not."""
    return _BOX.search(text) is not None


def after_thinking(text: str) -> str:
    """The part after the last `</think>`, or all of the text."""
    return text.rpartition("</think>")[2] if "</think>" in text else text


def after_mark(text: str) -> str | None:
    """Everything after the last "answer is" or "answer:" (any case), or None."""
    last = _last(_ANSWER_MARK, text)
    return None if last is None else text[last.end() :]


def tagged(text: str) -> str | None:
    """Content of the last `<answer>...</answer>` (any case), or None."""
    lower = text.lower()
    end = lower.rfind("</answer>") if len(lower) == len(text) else -1
    start = lower.rfind("<answer>", 0, end) if end >= 0 else -1
    return text[start + len("<answer>") : end] if start >= 0 else None


def last_number(text: str) -> str | None:
    """The last number of a text as it is written (fraction, mixed number and percent sign included), or None."""
    if len(text) > 2 * _NEAR:
        near = _last(_NUMBER, text, len(text) - _NEAR)
        if near is not None and near.start() > len(text) - _NEAR + 100:
            return near.group()
    last = _last(_NUMBER, text)
    return None if last is None else last.group()


def sentence(tail: str) -> str:
    """First sentence of what follows a final-answer phrase, or its first line that is not empty."""
    tail = tail.lstrip(" \t\r\n*_:`")
    end = _SENTENCE_END.search(tail)
    return (tail[: end.start()] if end else tail).strip()


def final_answer(completion: str) -> str | None:
    r"""The final answer of a mathematical completion, or None.

    Order: last complete box (an unclosed box alone is no answer); `<answer>` tag; `#### 42`; last final-answer phrase;
    the whole text where it is nothing but mathematics or one word; the last formula or number, whichever comes later.
    Without a box, tag or `####`, only the last 4,000 characters count.
    """
    text = after_thinking(completion)
    boxed = last_box(text)
    if boxed is not None:
        return boxed
    if has_box(text):
        return None
    inside = tagged(text)
    if inside is not None:
        return inside.strip() or None
    if "####" in text:
        return text.rpartition("####")[2].strip().split("\n", 1)[0] or None
    text = text[-TAIL:]
    last = _last(_PHRASE, text)
    if last is not None:
        stated = stated_answer(sentence(text[last.end() :]))
        if stated:
            return stated
    return bare_answer(text.strip())


def stated_answer(said: str) -> str:
    """The answer at the start of a sentence: its first formulas, else all before the first ordinary word, else all."""
    formula = _MATH.search(said)
    word = _WORD.search(said)
    if formula and (word is None or formula.start() < word.start() or not re.search(r"\d", said[: formula.start()])):
        parts = [_with_percent(said, formula)]
        while (gap := _GAP.match(said, formula.end())) and (following := _MATH.match(said, gap.end())):
            formula = following
            parts.append(_with_percent(said, formula))
        return ", ".join(parts)
    head = said[: word.start()] if word else said
    head = head.strip().strip("*_`").rstrip(" ,;:")
    return head if re.search(r"[\w\\]", head) and not re.fullmatch(r"[AIa]", head) else said.strip("*_` ")


def bare_answer(text: str) -> str | None:
    """The answer of a text without marker: all of it if it is only mathematics or one word, else its last formula or number."""
    if len(text) <= 300 and "$" not in text and text and "\n" not in text and _WORD.search(text) is None:
        return text
    if len(text) <= 40 and re.fullmatch(r"[A-Za-z]+[.!]?", text):
        return text
    formula = _last(_MATH, text)
    if formula is not None:
        later = last_number(text[formula.end() :])
        return later if later is not None else _with_percent(text, formula)
    number = last_number(text)
    return number.strip() if number is not None else None


def _with_percent(text: str, formula: re.Match[str]) -> str:
    inner = next(group for group in formula.groups() if group is not None)
    return inner + "%" if _PERCENT_AFTER.match(text, formula.end()) else inner


def _last(pattern: re.Pattern[str], text: str, start: int = 0) -> re.Match[str] | None:
    found = deque(pattern.finditer(text, start), maxlen=1)
    return found[0] if found else None
