"""The command line as a user types it, with a stand-in for the trainer."""

from __future__ import annotations

import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from cli.command_line import Invoke, Outcome

import skpo.trainer
from skpo.cli import main


@pytest.fixture
def invoke(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Invoke:
    """Run `skpo WORDS...` in this process; its exit code and what it printed."""

    def run(*words: str) -> Outcome:
        monkeypatch.setattr(sys, "argv", ["skpo", *words])
        monkeypatch.setenv("COLUMNS", "200")
        with pytest.raises(SystemExit) as stopped:
            main()
        captured = capsys.readouterr()
        return Outcome(int(stopped.value.code or 0), captured.out, captured.err)

    return run


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> list[Any]:
    """What the trainer was called with; the stand-in leaves a run folder with its settings, and runs in `tmp_path`."""
    from skpo.settings import dump_config

    made: list[Any] = []

    class Stand:
        def __init__(self, config: Any, **options: bool) -> None:
            self.config = config
            made.append(SimpleNamespace(config=config, **options))

        def train(self) -> SimpleNamespace:
            if self.config.steps == 13:
                raise KeyboardInterrupt
            self.config.out.mkdir(parents=True, exist_ok=True)
            (self.config.out / "config.yaml").write_text(dump_config(self.config))
            return SimpleNamespace(
                before=0.4805, after=0.925, best=0.9375, out=self.config.out, steps=self.config.steps
            )

    monkeypatch.setitem(vars(skpo.trainer), "Trainer", Stand)  # its __getattr__ would import torch
    monkeypatch.chdir(tmp_path)
    return made
