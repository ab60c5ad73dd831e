"""Metrics as columns, evaluations with intervals, settings side by side."""

from __future__ import annotations

import math

import numpy as np
import pytest

from skpo.report.catalogue import SECTIONS, describe, in_order
from skpo.report.differences import flatten, table
from skpo.report.history import evaluations, history


class TestHistory:
    def test_columns_and_axes(self) -> None:
        run = history(
            [
                {"step": 0, "eval_pass_at_1": 0.5},
                {"step": 1, "loss": 2.0, "seconds": 3.0, "tokens_generated_total": 10},
                {"step": 2, "loss": None, "seconds": 4.0, "tokens_generated_total": 25, "failures": {"timeout": 2}},
            ]
        )
        assert run.step.tolist() == [0, 1, 2]
        assert run.tokens.tolist() == [0, 10, 25]
        assert run.seconds.tolist() == [0, 3, 7]  # summed up
        assert math.isnan(run.values["loss"][0])  # not in the record
        assert run.values["loss"][1:].tolist() == [2.0, math.inf]  # null: it was not finite
        assert run.values["failures.timeout"][2] == 2
        assert "step" not in run.values
        assert "tokens_generated_total" not in run.values

    def test_the_last_record_of_a_step_wins(self) -> None:
        assert history([{"step": 1, "loss": 1.0}, {"step": 1, "loss": 2.0}]).values["loss"].tolist() == [2.0]

    def test_empty(self) -> None:
        assert len(history([])) == 0

    def test_text_and_booleans(self) -> None:
        run = history([{"step": 1, "note": "x", "eval_best": True}])
        assert list(run.values) == ["eval_best"]
        assert run.values["eval_best"][0] == 1


class TestEvaluations:
    def test_interval_from_the_standard_error(self) -> None:
        run = history(
            [{"step": 0, "eval_pass_at_1": 0.5, "eval_pass_at_1_stderr": 0.1, "eval_k": 4}, {"step": 1, "loss": 1.0}]
        )
        (only,) = evaluations(run)
        assert only["low"] == pytest.approx(0.5 - 0.1959963984540054)  # 1.959963984540054 standard errors
        assert only["high"] == pytest.approx(0.5 + 0.1959963984540054)
        assert (only["step"], only["k"]) == (0, 4)

    def test_cut_to_shares(self) -> None:
        (only,) = evaluations(history([{"step": 0, "eval_pass_at_1": 0.99, "eval_pass_at_1_stderr": 0.1}]))
        assert only["high"] == 1.0

    def test_own_interval_wins(self) -> None:
        record = {
            "step": 0,
            "eval_pass_at_1": 0.5,
            "eval_pass_at_1_stderr": 0.1,
            "eval_pass_at_1_low": 0.4,
            "eval_pass_at_1_high": 0.7,
        }
        (only,) = evaluations(history([record]))
        assert (only["low"], only["high"]) == (0.4, 0.7)

    def test_none(self) -> None:
        assert evaluations(history([{"step": 1, "loss": 1.0}])) == []
        (only,) = evaluations(history([{"step": 0, "eval_pass_at_1": 0.5}]))
        assert only["low"] is None


class TestCatalogue:
    def test_known_and_unknown(self) -> None:
        assert describe("grad_norm")["section"] == "Optimisation"  # type: ignore[index]
        assert describe("loss_of_something")["section"] == "Optimisation"  # type: ignore[index]
        assert describe("brand_new") == {"name": "brand_new", "section": "Other", "title": "brand new", "help": ""}
        assert describe("eval_best") is None

    def test_order(self) -> None:
        found = in_order({"zz", "loss", "accuracy", "reward_mean", "eval_k"})
        assert [d["name"] for d in found] == ["reward_mean", "accuracy", "loss", "zz"]
        assert all(d["section"] in SECTIONS for d in found)


class TestSettings:
    def test_dotted_keys(self) -> None:
        assert flatten({"a": {"b": 1, "c": [1, 2]}, "d": None, "e": "x"}) == {
            "a.b": "1",
            "a.c": "[1, 2]",
            "d": "null",
            "e": "x",
        }

    def test_differences(self) -> None:
        rows = table([{"lr": "1", "seed": "0", "out": "a"}, {"lr": "2", "seed": "0", "out": "b", "beta": "3"}])
        assert {row["key"]: row["differs"] for row in rows} == {"lr": True, "seed": False, "out": False, "beta": True}
        assert rows[-1]["values"] == [None, "3"]


def test_finite_only_where_logged() -> None:
    values = history([{"step": s, "x": 1.0} if s % 2 else {"step": s} for s in range(4)]).values["x"]
    assert np.isnan(values).tolist() == [True, False, True, False]
