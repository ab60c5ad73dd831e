"""The `math` verifier on cases from public bug reports, and on cases whose value can be derived by hand."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from skpo.errors import VerifierError
from skpo.verifiers import get_verifier

DATA = Path(__file__).parent / "data"
REPORTED = json.loads((DATA / "math_answers.json").read_text())["cases"]
MORE = json.loads((DATA / "math_more.json").read_text())["cases"]


@pytest.fixture(scope="module")
def math() -> Any:
    verifier = get_verifier("math")
    verifier.score(r"\boxed{x}", "y+1")  # starts a worker
    return verifier


@pytest.mark.parametrize("case", REPORTED, ids=lambda case: f"{case['category']}-{case['id']}")
def test_reported_cases(math: Any, case: dict[str, Any]) -> None:
    start = time.monotonic()
    assert math.score(case["prediction"], case["gold"]) == float(case["expected"])
    assert time.monotonic() - start < 2.5
    math.check_gold(case["gold"])


@pytest.mark.parametrize(("prediction", "gold", "expected", "why"), MORE)
def test_derived_cases(math: Any, prediction: str, gold: str, expected: bool, why: str) -> None:
    assert math.score(prediction, gold) == float(expected), why


@pytest.mark.parametrize(
    "gold", ["", "  ", None, True, float("nan"), float("inf"), [1], "{", r"\frac{1}{", r"\boxed{3", "?!"]
)
def test_unreadable_gold_is_refused(math: Any, gold: Any) -> None:
    with pytest.raises(VerifierError):
        math.check_gold(gold)


@pytest.mark.parametrize(
    "gold", [7, 0.5, "x", r"\text{Evelyn}", r"The sum is \boxed{12}.", "work\n#### 12", r"[0,\infty)"]
)
def test_readable_gold(math: Any, gold: Any) -> None:
    math.check_gold(gold)


def test_gold_may_be_a_number_or_a_worked_solution(math: Any) -> None:
    assert math.score(r"\boxed{7}", 7) == 1.0
    assert math.score(r"\boxed{\frac12}", 0.5) == 1.0
    assert math.score(r"\boxed{\frac12}", Fraction(1, 2)) == 1.0
    assert math.score(r"\boxed{7}", np.int64(7)) == 1.0
    assert math.score(r"\boxed{0.1}", np.float64(0.1)) == 1.0
    assert math.score(r"\boxed{12}", r"We add: \boxed{12}.") == 1.0
    assert math.score(r"\boxed{12}", "5 + 7 = 12\n#### 12") == 1.0


GARBAGE = [
    "{" * 50_000,
    r"\boxed{" * 20_000,
    "(" * 1900,
    r"\boxed{" + "(" * 990 + ")" * 990 + "}",
    "$" * 50_000,
    r"\boxed{" + "9" * 100_000 + "}",
    r"\boxed{" + "9" * 1999 + "}",
    "7 " * 50_000,
    "1/" * 900,
    r"\boxed{" + "x+" * 400 + "1}",
    "\x00\ud800",
    "-" * 1999,
    r"\boxed{" + ",".join(["1"] * 990) + "}",
    r"\frac" * 5000,
    r"\boxed{" + r"\text{" * 300 + "}" * 300 + "}",
    r"\boxed{" + "{" * 990 + "}" * 990 + "}",
    "answer is " * 9000,
    "a " * 50_000,
    r"\boxed{" + " " * 1990 + "}",
    r"\boxed{" + "1 " * 990 + "}",
    r"\boxed{" + "1," * 990 + "}",
    r"\boxed{" + "=" * 1990 + "}",
]


@pytest.mark.parametrize("text", GARBAGE, ids=range(len(GARBAGE)))
def test_garbage_scores_zero_in_time(math: Any, text: str) -> None:
    start = time.monotonic()
    assert math.score(text, "31337") == 0.0
    assert time.monotonic() - start < 2.5


def test_easy_answers_take_microseconds(math: Any) -> None:
    """Generous by a factor of about 20, for loaded machines; the median of many calls."""
    times = []
    for number in range(500):
        start = time.perf_counter()
        math.score(rf"Adding up, we get \boxed{{{number}}}.", "72")
        times.append(time.perf_counter() - start)
    assert sorted(times)[250] < 300e-6


def test_import_is_light() -> None:
    code = (
        "import sys; from skpo import get_verifier; import skpo.verifiers.pool; get_verifier('number'); get_verifier('math')\n"
        r"assert get_verifier('math').score(r'\boxed{7}', '7') == 1.0" + "\n"
        "print([m for m in ('torch', 'sympy', 'math_verify', 'reasoning_gym', 'numpy') if m in sys.modules])"
    )
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert out.stdout.strip() == "[]"


def test_no_size_of_formula_reaches_computer_algebra() -> None:
    from skpo.verifiers.sizes import oversized

    assert oversized(r"9^{9^{9^{9}}}\pi")
    assert oversized(r"x^{10^{10}}")
    assert oversized("100000!x")
    assert oversized("((5!)!)!x")
    assert not oversized(r"\frac{x^{12}}{5!}\cdot 2^{2006}")
