"""docs/performance.md holds what its results files say."""

from __future__ import annotations

import json
import re
import shutil
from importlib.util import find_spec
from pathlib import Path

import pytest

from benchmarks import performance
from benchmarks.common import Options, Report, spread


def test_page_is_up_to_date(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shutil.copytree(performance.STORE.parent, tmp_path / "results")
    monkeypatch.setattr(performance, "DOCS", tmp_path)
    assert performance.build().read_text() == (performance.STORE.parent.parent / "performance.md").read_text()


def test_section_appears_with_its_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "results" / "performance").mkdir(parents=True)
    shutil.copy(performance.STORE.parent / "performance.md.jinja", tmp_path / "results")
    monkeypatch.setattr(performance, "DOCS", tmp_path)
    monkeypatch.setattr(performance, "STORE", tmp_path / "results" / "performance")
    assert "## " not in performance.build().read_text()

    report = Report("scaling", "exponent", spread([0.5, 1.5]), machine={"cores": 3, "torch": "2.0"})
    report.table("sizes", ["size", "seconds"], [["8", 1.25]])
    report.bar("exponent", report.ratio, most=0.9)
    for name in ("scaling", "of_a_colleague"):
        report.finish(Options(json=tmp_path / "results" / "performance" / f"{name}.json"))
    text = performance.build().read_text()
    assert text.count("## ") == 2
    assert "**1.00 (0.500 to 1.50)**: exponent." in text
    assert "| 8 | 1.25 |" in text
    assert "aim: at most 0.9, missed" in text
    assert "(cores 3, torch 2.0, wall-clock time, " in text


def test_every_run_is_a_benchmark_that_the_page_shows() -> None:
    text = (performance.STORE.parent / "performance.md.jinja").read_text()
    named = set(re.findall(r'"(\w+)"', text))
    for name, (module, *_) in performance.RUNS.items():
        assert name in named
        assert find_spec(f"benchmarks.{module}") is not None


def test_kept_results_are_of_full_sizes() -> None:
    reports = [json.loads(path.read_text()) for path in performance.STORE.glob("*.json")]
    assert all(not r["settings"].get("quick") for r in reports if "tables" in r)
