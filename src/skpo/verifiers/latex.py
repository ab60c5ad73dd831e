r"""LaTeX and plain mathematical text brought to one spelling, before any comparison.

`\dfrac12` and `\frac{1}{2}`, `\left(`, `14{,}916`, `\text{ and }`, the Unicode minus: many spellings, one meaning.
"""

from __future__ import annotations

import re

_UNICODE = {
    "\u2212": "-", "\u2010": "-", "\u2011": "-", "\u2013": "-", "\u2014": "-", "\ufe63": "-", "\uff0d": "-",
    "×": r"\times ", "⋅": r"\cdot ", "·": r"\cdot ", "÷": "/", "\u2215": "/", "\u2044": "/", "\uff0f": "/",
    "π": r"\pi ", "√": r"\sqrt ", "°": r"\text{deg}", "∞": r"\infty ", "∪": r"\cup ", "∩": r"\cap ", "∈": r"\in ",
    "±": r"\pm ", "≤": r"\le ", "≥": r"\ge ", "≠": r"\ne ", "⩽": r"\le ", "⩾": r"\ge ", "…": r"\ldots ",
    "\u00a0": " ", "\u2009": " ", "\u202f": " ", "\u3000": " ", "\u200b": "", "\ufeff": "", "€": "", "£": "", "¥": "",
    "½": r"\frac{1}{2}", "⅓": r"\frac{1}{3}", "⅔": r"\frac{2}{3}", "¼": r"\frac{1}{4}", "¾": r"\frac{3}{4}",
    "\uff0c": ",", "\uff0e": ".", "\uff08": "(", "\uff09": ")", "\uff1a": ":", "\uff05": "%", "\uff1d": "=",
    "θ": r"\theta ", "α": r"\alpha ", "β": r"\beta ",
}  # fmt: skip
_SUPERSCRIPTS = dict(zip("⁰¹²³⁴⁵⁶⁷⁸⁹⁻", "0123456789-", strict=True))
_SUPERSCRIPT_RUN = re.compile("[" + "".join(_SUPERSCRIPTS) + "]+")
_TEXT = re.compile(
    r"\\(?:text|textbf|textit|textrm|texttt|textsf|textnormal|textup|mbox|hbox|emph|mathrm|mathbf|mathit|mathsf|mathtt"
    r"|operatorname\*?|boldsymbol|bm|boxed|fbox)\s*\{([^{}]*)\}"
)
_SPACING = re.compile(
    r"\\(?:left|right|[bB]igg?[lr]?|displaystyle|textstyle|limits|allowbreak|phantom\{[^{}]*\})(?![A-Za-z])"
)
_RULES: tuple[tuple[re.Pattern[str], str], ...] = tuple(
    (re.compile(pattern), replacement)
    for pattern, replacement in (
        (r"(?<!\\)\\\$|\$|(?<!\\)\\[()\[\]]", ""),
        (r"(?<=\d)\s*(?:\{,\}|,\s*\\!|\\,)\s*(?=\d{3}(?!\d))", ","),
        (r"(?<!\\)\\[,!]|\\hspace\{[^{}]*\}|\\nobreak(?![a-z])", ""),
        (r"(?<!\\)\\[;:> ]|~|\\q?quad(?![a-z])", " "),
        (r"\{,\}", ","),
        (r"\\[dtc]frac(?![a-z])", r"\\frac"),
        (r"\\frac\s*([0-9a-zA-Z])\s*([0-9a-zA-Z])", r"\\frac{\1}{\2}"),
        (r"\\frac\s*([0-9a-zA-Z])\s*\{", r"\\frac{\1}{"),
        (r"\\frac\s*\{([^{}]*)\}\s*([0-9a-zA-Z])", r"\\frac{\1}{\2}"),
        (r"\\frac\s*\{([^{}]*)\}\s*\{", r"\\frac{\1}{"),
        (r"\\sqrt\s*([0-9a-zA-Z])", r"\\sqrt{\1}"),
        (r"\bsqrt\s*\(([^()]*)\)", r"\\sqrt{\1}"),
        (r"\\(?:overline|vec|overrightarrow|hat|bar)\{([A-Za-z]+)\}", r"\1"),
        (r"\\dot\{?(\d)\}?", r"\\overline{\1}"),
        (r"\\%|\s*\b(?:percent|per cent)\b|\\text\{\s*(?:percent|per cent|%)\s*\}", "%"),
        (
            r"\s*(?:\^\s*\{?\s*\\circ\s*\}?|\\degree(?![a-z])|\bdegrees?\b|\\text\{\s*deg(?:rees?)?\s*\})",
            r"\\text{deg}",
        ),
        (r"\\le(?:q|qslant)(?![a-z])|<=", r"\\le "),
        (r"\\ge(?:q|qslant)(?![a-z])|>=", r"\\ge "),
        (r"\\neq(?![a-z])|!=", r"\\ne "),
        (r"\\lt(?![a-z])", "<"),
        (r"\\gt(?![a-z])", ">"),
        (r"\\(?:lbrace|lbrack)(?![a-z])", r"\\{"),
        (r"\\(?:rbrace|rbrack)(?![a-z])", r"\\}"),
        (r"\\[lr]?dots(?![a-z])|\\cdots(?![a-z])|\.{3,}", r"\\ldots "),
        (r"\+\s*/\s*-|\+-(?=\s*\d)|\\mp(?![a-z])", r"\\pm "),
        (r"\*\*(?=\s*-?[\d(])", "^"),
        (r"\*\*|`|__", ""),
        (r"\\(?:Reals|reals|R)(?![a-zA-Z])", r"\\mathbb{R}"),
        (r"\\varnothing(?![a-z])", r"\\emptyset"),
        (r"\b(?:infinity|infty)\b(?<!\\infty)", r"\\infty "),
        (r"\s+", " "),
    )
)


_UNIT_LETTERS = frozenset("mgshLNJWVKACF")


def clean(text: str) -> str:
    r"""One spelling of a mathematical answer; what is ordinary text ends up in `\text{}`, the meaning stays the same."""
    text = text.strip()
    if not text.isascii():
        text = _SUPERSCRIPT_RUN.sub(lambda m: "^{" + "".join(_SUPERSCRIPTS[c] for c in m.group()) + "}", text)
        text = "".join(_UNICODE.get(char, char) for char in text)
    if "\\" in text:
        text = _SPACING.sub("", text)
        for _ in range(8):
            text, changed = _TEXT.subn(_unwrap, text)
            if not changed:
                break
        text = text.replace("\x02", r"\text{").replace("\x03", "}")
    for pattern, replacement in _RULES:
        text = pattern.sub(replacement, text)
    text = text.strip()
    if len(text) > 1 and text[-1] in ".,;":
        text = text[:-1].rstrip()
    return text


def _unwrap(match: re.Match[str]) -> str:
    r"""Content of a `\text`-like command where it is mathematics after all, else the content between marks."""
    inner = match.group(1).replace("\x02", "").replace("\x03", "")
    word = inner.strip()
    before = match.string[: match.start()].rstrip(" ,;:~\\")[-1:]
    if len(word) == 1 and word.isalpha() and not (before.isdigit() and word in _UNIT_LETTERS):
        return word
    if word in ("and", "or"):
        return f" {word} "
    if match.group().startswith(("\\boxed", "\\fbox")) or re.fullmatch(r"[-+]?[\d.,/ ()]*|\(?[A-Z]\)", word):
        return inner
    if match.start() == 0 and match.end() == len(match.string):
        return word
    return f"\x02{word}\x03"
