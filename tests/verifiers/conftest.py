from __future__ import annotations

from pathlib import Path

import pytest


@pytest.fixture(autouse=True)
def hostile(monkeypatch: pytest.MonkeyPatch) -> None:
    """`hostile_rewards` can be imported by workers: they take over this process's import path."""
    monkeypatch.syspath_prepend(str(Path(__file__).parent))
