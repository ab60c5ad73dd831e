"""Files with problems."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest


@pytest.fixture
def write_jsonl(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., str]:
    """Write rows (or raw lines) to `problems.jsonl` in an empty working directory; gives the source's name."""
    monkeypatch.chdir(tmp_path)

    def write(*rows: Any) -> str:
        lines = (row if isinstance(row, str) else json.dumps(row) for row in rows)
        Path("problems.jsonl").write_text("\n".join(lines) + "\n")
        return "problems.jsonl"

    return write
