"""`skpo report`: runs as one self-contained HTML page.

history, catalogue   metrics.jsonl as columns; what each metric means
differences          settings of runs side by side
scan, choose         all rollouts in numbers; whose texts go into the page
vocabulary, blocks   tokens and their numbers, packed
page                 all of it in one file
refresh              the report of a run that is still training
static/              the page's HTML, CSS and JavaScript
"""

from __future__ import annotations

from typing import Any

__all__ = ["Report", "write_report"]


def __getattr__(name: str) -> Any:
    """Brings pyarrow and numpy with it, so it is imported where it is used."""
    if name in __all__:
        from skpo.report import page

        return getattr(page, name)
    raise AttributeError(f"module 'skpo.report' has no attribute {name!r}")
