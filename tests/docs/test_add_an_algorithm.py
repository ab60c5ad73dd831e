"""The example in docs/add_an_algorithm.md, as it stands there."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

PAGE = Path(__file__).parents[2] / "docs" / "add_an_algorithm.md"


def example() -> str:
    (code,) = re.findall(r"```python\n(.*?)```", PAGE.read_text(), flags=re.DOTALL)
    return str(code)


def test_is_short() -> None:
    assert sum(bool(line.strip()) for line in example().splitlines()) < 60


def test_runs(tmp_path: Path) -> None:
    script = tmp_path / "median_grpo.py"
    script.write_text(example())
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [sys.executable, str(script)], cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stderr
    assert re.search(r"held-out accuracy \d\.\d\d -> \d\.\d\d", done.stdout), done.stdout
    assert len((tmp_path / "runs" / "median" / "metrics.jsonl").read_text().splitlines()) == 3  # before, and two steps


def test_options_are_checked() -> None:
    from skpo import get_algorithm
    from skpo.algorithms import ALGORITHMS
    from skpo.errors import ConfigError

    code = compile(example().partition('if __name__ == "__main__"')[0], str(PAGE), "exec")
    try:
        names = {"__name__": "median_grpo"}
        sys.modules["median_grpo"] = type(sys)("median_grpo")
        exec(code, names)
        assert get_algorithm("median_grpo").options.clip == 0.2
        with pytest.raises(ConfigError, match='unknown option "clip_low"'):
            get_algorithm("median_grpo", clip_low=1)
    finally:
        ALGORITHMS.pop("median_grpo", None)
        sys.modules.pop("median_grpo", None)
