"""Timing by turns, spreads, fits and the page's numbers, against values worked out by hand."""

from __future__ import annotations

import json
import math
from pathlib import Path

import numpy as np
import pytest

from benchmarks.common import Options, Report, Spread, Turn, by_turns, exponent, number, quotient, spread


def test_spread_is_median_and_range() -> None:
    assert spread([3.0, 1.0, 2.0]) == Spread(2.0, 1.0, 3.0, 3)
    assert spread([1.0, 2.0]).median == 1.5
    with pytest.raises(ValueError, match="nothing"):
        spread([])


def test_turns_alternate_and_warm_ones_do_not_count() -> None:
    called: list[str] = []

    def side(name: str) -> dict[str, float]:
        called.append(name)
        return {"tokens": len(called)}

    timed = by_turns({"a": lambda: side("a"), "b": lambda: side("b")}, Options(repeats=2), warm=1)
    assert called == ["a", "b", "b", "a", "a", "b"]
    assert [t.counts["tokens"] for t in timed["a"]] == [4, 5]
    assert [t.counts["tokens"] for t in timed["b"]] == [3, 6]
    assert all(t.seconds >= 0 for turns in timed.values() for t in turns)


def test_quotient_pairs_turns() -> None:
    fast = [Turn(1.0, {"tokens": 10}), Turn(2.0, {"tokens": 10})]
    slow = [Turn(4.0, {"tokens": 10}), Turn(2.0, {"tokens": 10})]
    assert quotient(fast, slow) == Spread(2.5, 1.0, 4.0, 2)
    assert quotient(slow, fast, None) == Spread(2.5, 1.0, 4.0, 2)


def test_exponent_of_a_power_law() -> None:
    sizes = [1, 2, 4, 8]
    k, error = exponent(sizes, [3 * s**1.5 for s in sizes])
    assert k == pytest.approx(1.5)
    assert error == pytest.approx(0, abs=1e-7)
    assert exponent([1, 2], [1, 2])[1] is None
    # against numpy's own covariance, with values off the line
    values = np.array([1.0, 2.1, 3.7, 8.4])
    fit, covariance = np.polyfit(np.log(sizes), np.log(values), 1, cov=True)
    k, error = exponent(sizes, values)
    assert error is not None
    assert (k, error) == pytest.approx((fit[0], math.sqrt(covariance[0, 0])))


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (1234.5, "1,234"), (12.345, "12.3"), (0.01234, "0.0123"), (3, "3"), (12345, "12,345"), ("x", "x"), (None, ""), (0.0, "0"),
        ({"median": 2.0, "low": 1.0, "high": 3.0, "n": 2}, "2.00 (1.00 to 3.00)"),
    ],
)  # fmt: skip
def test_numbers(value: object, text: str) -> None:
    assert number(value) == text


def test_report_is_plain_json_and_judges_by_the_median(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    report = Report("rollout", "a over b", spread([1.0, 3.0]))
    report.table("both", ["side", "seconds"], [["a", spread([1.0, 2.0])], ["b", np.float64(2.0)]])
    report.bar("a over b", report.ratio, least=2.0)
    report.bar("b over a", 0.6, most=0.5)
    path = tmp_path / "sub" / "found.json"
    report.finish(Options(json=path))
    found = json.loads(path.read_text())
    assert found["ratio"] == 2.0
    assert [bar["met"] for bar in found["bars"]] == [True, False]
    assert found["tables"][0]["rows"] == [["a", {"median": 1.5, "low": 1.0, "high": 2.0, "n": 2}], ["b", 2.0]]
    assert "aim: at least 2, met" in capsys.readouterr().out
    assert report.data(Options(quick=True))["bars"] == []
    with pytest.raises(ValueError, match="JSON"):
        Report("rollout", "broken", math.nan).data(Options())
