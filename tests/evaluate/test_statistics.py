"""pass@k, maj@k and intervals, against values worked out by hand."""

from __future__ import annotations

import itertools
import math
import random
from collections import Counter

import numpy as np
import pytest
from support import vectors

from skpo.evaluation import bootstrap_interval, maj_at_k, pass_at_k


@pytest.mark.parametrize("case", vectors("small.json")["pass_at_k"], ids=str)
def test_pass_at_k(case: dict[str, float]) -> None:
    assert pass_at_k(int(case["n"]), int(case["c"]), int(case["k"])) == pytest.approx(case["value"], abs=1e-9)


def test_pass_at_k_is_the_share_of_subsets() -> None:
    """n = 5, c = 2, k = 2: of 10 pairs 3 have no correct one: 7/10."""
    assert pass_at_k(5, 2, 2) == pytest.approx(0.7, abs=1e-12)
    for n, c, k in ((0, 0, 1), (3, 4, 1), (3, 1, 4), (3, 1, 0)):
        with pytest.raises(ValueError, match=r"pass@k needs"):
            pass_at_k(n, c, k)


class TestMajority:
    @pytest.mark.parametrize(
        ("labels", "right", "k", "value"),
        [
            ([0, 0, 1], 0, 3, 1.0),  # two votes against one
            ([0, 0, 1], 1, 3, 0.0),
            ([0, 1], 0, 2, 1 / 2),  # a tie of two
            ([0, 1, 2], 0, 3, 1 / 3),  # a tie of three
            ([0, 0, 1], 0, 1, 2 / 3),  # maj@1 is mean@n
            ([0, 0, 1], 0, 2, 2 / 3),  # pairs 00, 01, 01: 1, 1/2, 1/2
            ([0, 0, 1, 1], 0, 3, 1 / 2),  # 001, 001, 011, 011
            ([0, 0, 1, 2], 0, 3, 2 / 3),  # 001, 002: 1 each; 012 twice: 1/3 each; (1 + 1 + 1/3 + 1/3) / 4
            ([-1, -1, 0], 0, 3, 0.0),  # no answer is an answer
            ([0, 1, 2], 5, 2, 0.0),
        ],
    )
    def test_by_hand(self, labels: list[int], right: int, k: int, value: float) -> None:

        assert maj_at_k(labels, [label == right for label in labels], k) == pytest.approx(value, abs=1e-12)

    def test_against_all_subsets(self) -> None:
        rng = random.Random(0)
        for _ in range(60):
            n = rng.randint(1, 8)
            labels = [rng.randrange(4) for _ in range(n)]
            correct = [label in (1, 3) for label in labels]
            k = rng.randint(1, n)
            total = 0.0
            for subset in itertools.combinations(range(n), k):
                counts = Counter(labels[i] for i in subset)
                front = [label for label, count in counts.items() if count == max(counts.values())]
                total += sum(label in (1, 3) for label in front) / len(front)
            assert maj_at_k(labels, correct, k) == pytest.approx(total / math.comb(n, k), abs=1e-12)

    def test_order_does_not_matter_and_many_samples_are_fine(self) -> None:
        labels = [0] * 40 + [1] * 30 + list(range(2, 60))
        correct = [label == 0 for label in labels]
        assert maj_at_k(labels, correct, 128) == 1.0  # all of them
        assert maj_at_k(labels, correct, 32) == pytest.approx(maj_at_k(labels[::-1], correct[::-1], 32), abs=1e-12)
        assert maj_at_k(labels, correct, 1) == pytest.approx(40 / 128, abs=1e-12)

    def test_samples_of_one_answer_that_disagree_count_by_share(self) -> None:
        assert maj_at_k([0, 0, 0, 1], [True, True, False, False], 4) == pytest.approx(2 / 3, abs=1e-12)

    def test_refused(self) -> None:
        for k in (0, 3):
            with pytest.raises(ValueError, match=r"maj@k needs"):
                maj_at_k([0, 1], [True, False], k)


class TestInterval:
    def test_ten_problems_half_of_them_solved(self) -> None:
        """A resampled mean is Binomial(10, 1/2) / 10: P(<= 1) = 0.0107, P(<= 2) = 0.0547, so 2.5 % lies at 0.2; 0.8 above."""
        assert bootstrap_interval([1.0, 0.0] * 5) == (0.2, 0.8)

    def test_three_problems_one_solved(self) -> None:
        """Binomial(3, 1/3) / 3: P(0) = 8/27, so 2.5 % lies at 0; P(3) = 1/27 = 3.7 %, so 97.5 % lies at 1."""
        assert bootstrap_interval([1.0, 0.0, 0.0]) == (0.0, 1.0)
        assert bootstrap_interval([1.0, 0.0, 0.0], level=0.9) == (0.0, pytest.approx(2 / 3))  # P(3) < 5 %

    def test_equal_values_have_no_width(self) -> None:
        assert bootstrap_interval([0.25] * 7) == (0.25, 0.25)
        assert all(math.isnan(x) for x in bootstrap_interval([]))

    def test_many_problems_agree_with_the_normal_interval(self) -> None:
        values = np.random.default_rng(1).random(900)
        low, high = bootstrap_interval(values.tolist())
        half = 1.96 * values.std() / 30
        assert low == pytest.approx(values.mean() - half, abs=0.002)
        assert high == pytest.approx(values.mean() + half, abs=0.002)
        assert bootstrap_interval(values.tolist()) == (low, high)  # the same again
