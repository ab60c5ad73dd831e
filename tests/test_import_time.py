"""`import skpo` and `skpo --help` bring in nothing slow: counted in modules, not in seconds."""

from __future__ import annotations

import subprocess
import sys

import pytest

SLOW = ["torch", "transformers", "matplotlib", "numpy", "datasets", "pyarrow", "accelerate", "yaml", "skpo.config"]
HELP = """
import contextlib, io
from skpo.cli.app import app
with contextlib.redirect_stdout(io.StringIO()), contextlib.suppress(SystemExit):
    app({words!r})
"""


def imported(code: str) -> list[str]:
    """Which of the slow modules a piece of code brings in, in a fresh interpreter."""
    probe = f"{code}\nimport sys\nprint(' '.join(m for m in {SLOW!r} if m in sys.modules))"
    done = subprocess.run([sys.executable, "-c", probe], capture_output=True, text=True, check=True)
    return done.stdout.split()


def test_import_skpo() -> None:
    assert imported("import skpo") == []


@pytest.mark.parametrize(
    "words", [["--help"], ["--version"], ["train", "--help"], ["eval", "--help"], ["doctor", "--help"]]
)
def test_help(words: list[str]) -> None:
    assert imported(HELP.format(words=words)) == []


def test_settings_need_no_torch() -> None:
    slow = imported("from skpo.settings import load_config; load_config('chain')")
    assert set(slow) == {"yaml", "skpo.config"}
