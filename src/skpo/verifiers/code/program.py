"""From a completion to a program."""

from __future__ import annotations

import re
import textwrap

from skpo.verifiers.extract import after_thinking

_FENCE = re.compile(r"^[ \t]*(```+|~~~+)[ \t]*([\w+#.-]*)[^\n]*$", re.MULTILINE)
_PYTHON = {"python", "python3", "py", "py3"}
_STOP = re.compile(r"^(?:class |def |async def |@|if |print|#|assert |```|<)", re.MULTILINE)
"""Where a continuation has left the function that it continues (arXiv 2107.03374, section 2.1: \\nclass, \\ndef, \\n#, \\nif, \\nprint)."""


def fenced(text: str) -> str | None:
    """The last fenced block of Python; else the last one of no language; None without any. An unclosed block counts."""
    blocks: list[tuple[str, str]] = []
    opened: tuple[str, str, int] | None = None
    for match in _FENCE.finditer(text):
        mark, language = match[1], match[2].lower()
        if opened is None:
            opened = (mark, language, match.end() + 1)
        elif mark.startswith(opened[0]) and not language:
            blocks.append((opened[1], text[opened[2] : match.start()]))
            opened = None
    if opened is not None:
        blocks.append((opened[1], text[opened[2] :]))
    for languages in (_PYTHON, {""}):
        found = [body for language, body in blocks if language in languages and body.strip()]
        if found:
            return found[-1]
    return None


def program(completion: str, prompt: str = "", entry: str | None = None) -> str:
    """The program of a completion: its last fenced Python block, else all of it after `</think>`.

    With a prompt (HumanEval: the start of a program, up to a docstring) the program begins with the prompt. Code that
    doesn't define `entry` itself continues the prompt; it ends where the next top-level definition begins.
    """
    text = after_thinking(completion)
    block = fenced(text)
    code = text if block is None else textwrap.dedent(block)
    if not prompt:
        return code
    if entry and re.search(rf"^(?:async\s+)?def\s+{re.escape(entry)}\b|^{re.escape(entry)}\s*=", code, re.MULTILINE):
        return f"{prompt.rstrip()}\n\n\n{code.lstrip(chr(10))}"
    return _continued(prompt, text if block is None else block)


def _continued(prompt: str, code: str) -> str:
    first = re.search(r"\S", code)
    if first is None:
        return prompt
    stop = _STOP.search(code, first.end())
    code = code[: stop.start()] if stop else code
    start = code.rfind("\n", 0, first.start()) + 1
    if start < len(code) and not code[start].isspace() and prompt.endswith("\n"):
        code = textwrap.indent(code, "    ")  # a tokenizer, or a model, that leaves the first indent out
    return prompt + code
