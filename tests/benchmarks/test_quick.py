"""Every benchmark's quick run ends, measures something and writes JSON that the performance page can be made from."""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.mark.slow
@pytest.mark.parametrize(
    "name",
    [
        "rollout",
        "skpo_cost",
        "scaling",
        "simulate",
        "decode_profile",
        pytest.param("step", marks=pytest.mark.skipif(find_spec("trl") is None, reason="TRL is not installed")),
    ],
)
def test_quick_run(name: str, tmp_path: Path) -> None:
    from benchmarks.performance import table

    path = tmp_path / "found.json"
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", f"benchmarks.{name}", "--quick", "--repeats", "1", "--json", str(path)]
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr
    found = json.loads(path.read_text())
    assert math.isfinite(found["ratio"])
    assert found["ratio"] > 0
    assert found["benchmark"] == name
    assert {"processor", "cores", "threads", "torch"} <= set(found["machine"])
    assert str(tmp_path) not in path.read_text()
    for content in found["tables"]:
        assert all(len(row) == len(content["columns"]) for row in content["rows"])
        assert content["columns"][-1] in table(content)


def test_step_says_what_to_install_without_trl(tmp_path: Path) -> None:
    code = (
        "import importlib.util, sys; real = importlib.util.find_spec\n"
        "importlib.util.find_spec = lambda name, *more: None if name == 'trl' else real(name, *more)\n"
        "sys.argv = ['step', '--quick']\nimport runpy; runpy.run_module('benchmarks.step', run_name='__main__')"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=120)
    assert done.returncode == 1
    assert 'pip install -e ".[bench]"' in done.stderr
