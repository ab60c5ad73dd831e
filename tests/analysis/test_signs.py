"""Monte-Carlo sign accuracy: golden values, hand-derived cases, the slow twin, simulation against exact."""

from __future__ import annotations

import itertools
import json
import math
import time
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest
from support import vectors
from typer.testing import CliRunner

from skpo.analysis.signs import (
    estimated_signs,
    exact_signs,
    normalised,
    parse_probabilities,
    simulated_signs,
    spread_probabilities,
    true_signs,
)
from skpo.cli.app import app
from skpo.errors import ConfigError


def fractions(*words: str) -> list[Fraction]:
    return parse_probabilities(words)


def enumerated(p: list[Fraction], n: int) -> tuple[Fraction, Fraction]:
    """(all right, share right) over all (n + 1)^G counts, in exact fractions: the obvious twin."""
    group, truth = len(p), true_signs(p)
    everything = share = Fraction(0)
    for counts in itertools.product(range(n + 1), repeat=group):
        chance = math.prod((math.comb(n, c) * x**c * (1 - x) ** (n - c) for c, x in zip(counts, p, strict=True)), start=Fraction(1))  # fmt: skip
        right = [np.sign(group * c - sum(counts)) == t for c, t in zip(counts, truth, strict=True)]
        everything += chance * all(right)
        share += chance * Fraction(sum(map(int, right)), group)
    return everything, share


@pytest.mark.parametrize("case", vectors("small.json")["sign_accuracy"], ids=lambda c: f"{c['p']} K={c['K']}")
def test_golden_values_through_the_command(case: dict) -> None:
    p = ",".join(map(str, case["p"]))
    done = CliRunner().invoke(app, ["analyze", "mc-noise", "--p", p, "--continuations", str(case["K"]), "--exact", "--json"])  # fmt: skip
    assert done.exit_code == 0, done.output
    found = json.loads(done.output)
    assert found["all_right"] == pytest.approx(case["all_right"], abs=1e-9)
    assert found["share_right"] == pytest.approx(case["share_right"], abs=1e-9)


def test_two_prefixes_by_hand() -> None:
    """p = 1/4, 3/4 and one continuation each: signs are right for counts (0, 1) alone, 3/4 * 3/4; equal counts are wrong."""
    found = exact_signs(fractions("0.25", "0.75"), 1)
    assert found.all_right == pytest.approx(9 / 16, abs=1e-15)
    assert found.per_prefix == pytest.approx((9 / 16, 9 / 16), abs=1e-15)


def test_where_the_true_advantage_is_zero_only_zero_is_right() -> None:
    """p = 1/2, 1/2 and one continuation: equal counts, (0, 0) or (1, 1), have probability 1/2."""
    assert exact_signs(fractions("1/2", "0.5"), 1).all_right == pytest.approx(0.5, abs=1e-15)


def test_zero_is_decided_without_rounding() -> None:
    """In floats 0.1 + 0.2 + 0.3 is not 3 * 0.2; the middle of 0.1, 0.2, 0.3 has advantage 0 all the same."""
    assert true_signs(fractions("0.1", "0.2", "0.3")) == [-1, 0, 1]
    assert estimated_signs(np.array([[1, 2, 3], [0, 0, 0]])).tolist() == [[-1, 0, 1], [0, 0, 0]]


@pytest.mark.parametrize(("words", "n"), [(("0.1", "0.2", "0.3"), 3), (("0", "0.5", "1"), 2), (("0.3", "0.3", "0.4", "0.9"), 3)])  # fmt: skip
def test_exact_equals_enumeration(words: tuple[str, ...], n: int) -> None:
    p = fractions(*words)
    everything, share = enumerated(p, n)
    found = exact_signs(p, n)
    assert found.all_right == pytest.approx(float(everything), abs=1e-13)
    assert found.share_right == pytest.approx(float(share), abs=1e-13)


def test_simulation_agrees_within_its_errors() -> None:
    p = spread_probabilities(4, Fraction("0.4"))
    exact, drawn = exact_signs(p, 16), simulated_signs(p, 16, 40_000, seed=1)
    error = drawn.error(drawn.all_right)
    assert error is not None
    assert abs(drawn.all_right - exact.all_right) < 4 * error
    assert drawn.per_prefix == pytest.approx(exact.per_prefix, abs=0.011)  # more than 4 sqrt(0.25 / 40000)


def test_large_groups_take_seconds() -> None:
    begin = time.process_time()
    found = simulated_signs(spread_probabilities(8, Fraction("0.2")), 8192, 100_000)
    assert time.process_time() - begin < 10
    assert found.all_right > 0.98


def test_spread_is_centred_and_even() -> None:
    assert spread_probabilities(3, Fraction("0.2")) == [Fraction(2, 5), Fraction(1, 2), Fraction(3, 5)]


def test_normalised_advantages() -> None:
    """0, 1: mean 1/2, sample deviation sqrt(1/2); equal values have none."""
    expected = 0.5 / (math.sqrt(0.5) + 1e-6)
    assert normalised(np.array([0.0, 1.0])) == pytest.approx([-expected, expected], abs=1e-12)
    assert normalised(np.array([[0.1, 0.1, 0.1]])).tolist() == [[0.0, 0.0, 0.0]]


@pytest.mark.parametrize("words", [("0.5",), ("0.5", "x"), ("0.5", "1.5"), ("0.5", "1/0")])
def test_bad_probabilities_are_refused(words: tuple[str, ...]) -> None:
    with pytest.raises(ConfigError):
        parse_probabilities(words)


def test_too_much_for_exact() -> None:
    with pytest.raises(ConfigError, match="too many"):
        exact_signs(spread_probabilities(8, Fraction("0.2")), 8192)


def test_figures(tmp_path: Path) -> None:
    words = ["analyze", "mc-noise", "--figure", "--repetitions", "50", "--out", str(tmp_path)]
    done = CliRunner().invoke(app, words)
    assert done.exit_code == 0, done.output
    content = json.loads((tmp_path / "analysis-signs.json").read_text())
    assert {r["continuations"] for r in content["signs"]} == {2**i for i in range(3, 14)}
    assert {"analysis-signs.png", "analysis-signs-prefixes.png", "analysis-signs.csv"} <= {p.name for p in tmp_path.iterdir()}  # fmt: skip
