"""Comparisons: what is run, what is counted, and the statistics, by hand."""

from __future__ import annotations

import math
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from skpo.compare import Comparison, Variant, parse_variants
from skpo.compare.statistics import Outcome, interval, t95
from skpo.compare.table import curve, markdown, rows, write
from skpo.errors import ConfigError
from skpo.trainer.metrics import read_metrics

TINY = [
    "problems_per_step=4", "group_size=2", "eval_every=0", "eval.limit=4", "eval.samples=2", "problems.limit=16",
    "rollout.max_completion_tokens=24", "rollout.save=false", "checkpoint.every=0", "optimizer.warmup_steps=0",
]  # fmt: skip


def test_variants() -> None:
    variants = parse_variants("skpo, grpo,skpo:skip=false,spo:problems_per_step=256:half_life=0.1", "skpo")
    assert variants == [
        Variant("skpo", ()),  # the recipe's own algorithm keeps the recipe's options
        Variant("grpo", ("algorithm=grpo",)),
        Variant("skpo:skip=false", ("algorithm.skip=false",)),
        Variant(
            "spo:problems_per_step=256:half_life=0.1",
            ("algorithm=spo", "problems_per_step=256", "algorithm.half_life=0.1"),
        ),
    ]
    assert variants[3].folder == "spo_problems_per_step=256_half_life=0.1"
    for text, message in [
        ("", "nothing to compare"),
        ("skpo,skpo", "named twice: skpo"),
        ("grpo:beta", "is not KEY=VALUE"),
    ]:
        with pytest.raises(ConfigError, match=message):
            parse_variants(text)


def test_interval() -> None:
    # 1, 2, 3: mean 2, sample sd 1, half-width t(2) * 1 / sqrt(3) = 4.303 / 1.732 = 2.484
    assert interval([1.0, 2.0, 3.0]).half == pytest.approx(2.484, abs=1e-3)
    assert interval([1.0, 2.0, 3.0]).mean == 2.0
    assert math.isnan(interval([0.5]).half)
    assert str(interval([0.5])) == "0.500"
    assert [t95(1), t95(12), t95(100)] == [12.706, 2.228, 1.96]  # 12 takes the table's next smaller one


def made(variant: str, seed: int, accuracy: float) -> Outcome:
    records = (
        {"step": 0, "eval_pass_at_1": 0.1},
        {"step": 1, "tokens_generated_total": 100, "entropy": 0.5, "grad_norm": 1.0, "ratio_max": 1.5},
        {
            "step": 2,
            "tokens_generated_total": 200,
            "entropy": 0.3,
            "grad_norm": 3.0,
            "ratio_max": 1.2,
            "eval_pass_at_1": accuracy,
        },
    )
    return Outcome(variant, seed, accuracy, 0.9, 4, 200, 180, 2, 3.0, records)


def test_rows_pair_by_seed() -> None:
    outcomes = [
        made("a", 0, 0.5),
        made("b", 0, 0.7),
        made("a", 1, 0.6),
        made("b", 1, 0.7),
        made("a", 2, 0.4),
        made("b", 2, 0.7),
    ]
    first, second = rows(outcomes)
    assert first.difference is None
    assert first.accuracy.mean == pytest.approx(0.5)
    # differences 0.2, 0.1, 0.3: mean 0.2, sd 0.1, half-width 4.303 * 0.1 / sqrt(3) = 0.2484
    assert second.difference is not None
    assert second.difference.mean == pytest.approx(0.2)
    assert second.difference.half == pytest.approx(0.2484, abs=1e-4)
    assert (second.grad_norm, second.ratio_max, second.nonfinite) == (2.0, 1.5, 0)
    assert "| b | 3 | 0.700 ± 0.000 | 0.900 ± 0.000 | 0.200 ± 0.248 |" in markdown(outcomes)


def test_curve_starts_at_no_tokens() -> None:
    grid, mean, low, high = curve([made("a", 0, 0.5), made("a", 1, 0.7)], "eval_pass_at_1")
    assert (grid[0], grid[-1]) == (0, 200)
    assert (mean[0], mean[-1], low[-1], high[-1]) == pytest.approx((0.1, 0.6, 0.5, 0.7))


@pytest.mark.slow
def test_equal_tokens_and_going_on(tmp_path: Path) -> None:
    """Two algorithms get the same tokens, to within one step; a second call runs nothing again."""
    lines: list[str] = []
    variants = parse_variants("skpo,grpo", "skpo")
    comparison = Comparison("chain", variants, 1, tmp_path / "c", TINY, tokens=1000, jobs=2, say=lines.append)
    outcomes = comparison.run()
    for result in outcomes:
        step = max(r["tokens_generated"] for r in result.curve if "tokens_generated" in r)
        assert 1000 <= result.tokens < 1000 + step
    assert {p.suffix for p in write(outcomes, tmp_path / "c")} == {".md", ".csv", ".png"}
    folder = tmp_path / "c" / "grpo" / "seed-0"
    before = (folder / "metrics.jsonl").stat().st_mtime_ns
    assert Comparison("chain", variants, 1, tmp_path / "c", TINY, jobs=2, say=lines.append).run() == outcomes
    assert (folder / "metrics.jsonl").stat().st_mtime_ns == before
    assert read_metrics(folder)[-1]["tokens_generated_total"] == outcomes[1].tokens
    with pytest.raises(ConfigError, match="holds a comparison with other settings"):
        Comparison("chain", variants, 1, tmp_path / "c", [*TINY, "group_size=3"], tokens=1000).run()


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="children are looked up in Linux's /proc")
def test_runs_end_with_a_terminated_comparison(tmp_path: Path) -> None:
    command = [
        sys.executable,
        "-m",
        "skpo",
        "compare",
        "chain",
        *TINY,
        "--algorithms",
        "grpo",
        "--seeds",
        "2",
        "--jobs",
        "2",
    ]
    process = subprocess.Popen(
        [*command, "--tokens", "1000000", "--out", str(tmp_path / "c")], stdout=subprocess.DEVNULL
    )
    children = Path(f"/proc/{process.pid}/task/{process.pid}/children")
    until = time.monotonic() + 120
    while len(runs := children.read_text().split()) < 2 and time.monotonic() < until:
        time.sleep(0.1)
    process.terminate()
    assert process.wait(60) == 128 + signal.SIGTERM
    assert len(runs) == 2
    assert not any(Path(f"/proc/{pid}").exists() for pid in runs)


def test_falling_learning_rates_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"optimizer\.schedule=linear: runs of equal tokens"):
        Comparison("chain", parse_variants("grpo"), 1, tmp_path, ["optimizer.schedule=linear"]).run()
