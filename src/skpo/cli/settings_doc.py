"""`python -m skpo.cli.settings_doc > docs/settings.md`: the page of all settings, from the text under each in `skpo.config`.

`make docs` gives the root of a clone as argument: that page is written there, and the README's table of algorithms with it.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from pydantic import BaseModel
from pydantic.fields import FieldInfo

from skpo.cli.algorithms import MARKDOWN_HEAD, markdown_table, show
from skpo.config import TrainConfig
from skpo.settings import SHORTHANDS, allowed, section_of

HEAD = """\
# Settings

A recipe is a YAML file with these keys, nested. On the command line each is `key.sub=value`:
`skpo train recipes/chain.yaml steps=200 rollout.temperature=0.8`. The value is YAML; a setting that holds text takes it
as it stands. Unknown keys are refused with the nearest known one. Assigning a mapping replaces the whole section.

This page is generated: `make docs`.

## Short keys

In recipes and on the command line alike:

| short | stands for |
|---|---|
"""
MEANING = {
    "algorithm": "`algorithm=grpo` replaces the whole algorithm, options included; `algorithm.beta=0.1` sets one option",
    "model": "`model=PATH` leaves the section's other keys as they are",
}


def page() -> str:
    """The whole page as Markdown."""
    lines = [
        f"| `{short}=` | `{full}`{'; ' + MEANING[short] if short in MEANING else ''} |"
        for short, full in SHORTHANDS.items()
    ]
    body = [HEAD + "\n".join(lines)]
    body += _sections(TrainConfig, "")
    return "\n\n".join(body) + "\n"


def _sections(model: type[BaseModel], prefix: str) -> list[str]:
    """One table for a section's own settings, then the sections inside it."""
    rows = ["| key | default | allowed | meaning |", "|---|---|---|---|"]
    inner: list[str] = []
    for name, field in model.model_fields.items():
        section = section_of(field)
        if section is None or type(None) in getattr(field.annotation, "__args__", ()):
            rows.append(
                f"| `{prefix}{name}` | {_default(field)} | {_cell(allowed(field))} | {_cell(field.description or '')} |"
            )
        if section is not None:
            inner += _sections(section, f"{prefix}{name}.")
    title = f"## `{prefix.rstrip('.')}`" if prefix else "## The run"
    return [f"{title}\n\n" + "\n".join(rows), *inner]


def _default(field: FieldInfo) -> str:
    if field.is_required():
        return "required"
    value: Any = field.get_default(call_default_factory=True)
    if isinstance(value, dict):
        value = value.get("name", value)
    return f"`{list(value) if isinstance(value, tuple) else show(value)}`"


def _cell(text: str) -> str:
    """Text that fits into one cell of a Markdown table."""
    return " ".join(text.split()).replace("|", "\\|")


def with_algorithms(readme: str) -> str:
    """A README with its table of algorithms brought up to date."""
    from skpo.algorithms import list_algorithms

    before, head, rest = readme.partition(MARKDOWN_HEAD)
    if not head:
        return readme
    return before + markdown_table(list_algorithms()) + rest[rest.index("\n\n") :]


if __name__ == "__main__":
    if len(sys.argv) > 1:
        root = Path(sys.argv[1])
        (root / "docs/settings.md").write_text(page(), encoding="utf-8")
        (root / "README.md").write_text(
            with_algorithms((root / "README.md").read_text(encoding="utf-8")), encoding="utf-8"
        )
    else:
        print(page(), end="")
