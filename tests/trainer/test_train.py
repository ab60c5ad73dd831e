"""A short run of the main recipe, from end to end: what is measured, what is written, what holds at every step."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from skpo.errors import ConfigError
from skpo.problems.base import Problem
from skpo.rollout.types import Group, derive_seed
from skpo.settings import load_config
from skpo.trainer import Trainer
from skpo.trainer.metrics import read_metrics
from skpo.trainer.report import rollout_metrics, zero_rate
from skpo.trainer.rollout_log import read_rollouts

SHORT = [
    "steps=3",
    "problems_per_step=8",
    "group_size=4",
    "eval_every=3",
    "eval.limit=8",
    "eval.samples=2",
    "checkpoint.every=0",
]


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("train") / "run"
    Trainer(load_config("chain", [*SHORT, f"out={out}"]), quiet=True).train()
    return out


@pytest.fixture(scope="module")
def steps(run: Path) -> list[dict[str, Any]]:
    return [r for r in read_metrics(run) if r["step"] > 0]


def test_every_metric_is_there(run: Path, steps: list[dict[str, Any]]) -> None:
    wanted = {
        "reward_mean", "accuracy", "pass_at_1", "pass_at_g", "advantage_zero_rate", "entropy", "kl_old", "ratio_max", "ratio_min",
        "clip_fraction", "clip_fraction_upstream", "grad_norm", "lr", "completion_length", "segment_length", "split_position",
        "chosen_rank", "logp_deviation", "tokens_generated", "tokens_generated_total", "tokens_trained", "tokens_per_second",
        "seconds_rollout", "seconds_verify", "seconds_train", "seconds_other", "seconds", "skipped_steps", "upstream_reliability",
    }  # fmt: skip
    for record in steps:
        assert wanted <= set(record)
    assert {"eval_pass_at_1", "eval_pass_at_1_stderr", "eval_pass_at_k", "eval_k", "eval_length"} <= set(steps[-1])
    assert read_metrics(run)[0]["step"] == 0


def test_engine_and_trainer_agree(steps: list[dict[str, Any]]) -> None:
    """The ratio is 1 before each first update: same temperature, positions and dtype, dropout off."""
    assert max(r["logp_deviation"] for r in steps) < 1e-4
    assert all(r["ratio_max"] < 1 + 1e-4 and r["ratio_min"] > 1 - 1e-4 for r in steps)


def test_seconds_and_tokens_add_up(steps: list[dict[str, Any]]) -> None:
    total = 0
    for r in steps:
        total += r["tokens_generated"]
        assert r["tokens_generated_total"] == total
        parts = r["seconds_rollout"] + r["seconds_verify"] + r["seconds_train"] + r["seconds_other"]
        assert parts == pytest.approx(r["seconds"])
        assert r["split_position"] >= 1 / 6 - 0.05
        assert 0 <= r["chosen_rank"] <= 3


def test_rollouts_hold_what_was_sampled(run: Path, steps: list[dict[str, Any]]) -> None:
    rows = read_rollouts(run).to_pylist()
    for record in steps:
        mine = [r for r in rows if r["step"] == record["step"]]
        trained = [r for r in mine if r["chosen"]]
        assert sum(len(r["tokens"]) for r in trained) == record["tokens_trained"]
        assert len([r for r in mine if r["role"] == "segment"]) == 8 * 4  # 8 problems, 4 segments each
        assert len([r for r in trained if r["role"] == "segment"]) == 8
        assert len([r for r in trained if r["role"] == "completion"]) == 8 * 4
    for problem in {(r["step"], r["problem_id"]) for r in rows}:
        group = [r for r in rows if (r["step"], r["problem_id"]) == problem]
        segment = next(r for r in group if r["role"] == "segment" and r["chosen"])
        for r in group:
            if r["role"] == "completion":  # token ids in, token ids out: the segment as sampled, then the problem
                assert r["context"][: len(segment["tokens"])] == segment["tokens"]
                assert r["reward"] == 2 * r["score"] - 1
        assert segment["reward"] == pytest.approx(
            sum(r["reward"] for r in group if r["role"] == "completion") / 4, abs=1e-6
        )


def test_samples_are_seeded_by_seed_step_problem_and_number(run: Path) -> None:
    rows = read_rollouts(run, steps=[2]).to_pylist()
    expected = {
        derive_seed(derive_seed(0, 1, r["problem_id"]), i) for r in rows for i in range(8)
    }  # step 2 began after one
    assert {r["seed"] for r in rows} == expected


def test_a_picture_is_drawn(run: Path) -> None:
    assert (run / "curve.png").read_bytes()[:8] == b"\x89PNG\r\n\x1a\n"


@pytest.mark.parametrize("more", [["rollout.top_p=0.9", "rollout.top_k=20"], ["rollout.temperature=0.7"]])
def test_other_sampling_keeps_the_ratio_at_one(more: list[str], tmp_path: Path) -> None:
    """Truncated sampling: the trainer scores the whole softmax, so it recomputes; another temperature: both use it."""
    Trainer(
        load_config("chain", [*SHORT, "steps=1", "eval.at_start=false", *more, f"out={tmp_path / 'r'}"]), quiet=True
    ).train()
    (record,) = read_metrics(tmp_path / "r")
    assert record["ratio_max"] == pytest.approx(1, abs=1e-4)
    assert record["ratio_min"] == pytest.approx(1, abs=1e-4)


def test_truncated_completions_can_be_masked(tmp_path: Path) -> None:
    """A budget of 30 tokens cuts most of the chain's answers off: masked, their tokens are not trained on."""
    short = [*SHORT, "steps=1", "rollout.max_completion_tokens=30", "eval.at_start=false", "problems.heldout=null"]
    for overlong in ("count", "mask"):
        out = tmp_path / overlong
        Trainer(load_config("chain", [*short, f"overlong={overlong}", f"out={out}"]), quiet=True).train()
        (record,) = read_metrics(out)
        trained = [r for r in read_rollouts(out).to_pylist() if r["chosen"]]
        cut = sum(len(r["tokens"]) for r in trained if r["role"] == "completion" and not r["finished"])
        whole = sum(len(r["tokens"]) for r in trained)
        assert cut > 0
        assert record["tokens_trained"] == (whole if overlong == "count" else whole - cut)


def test_dynamic_sampling_replaces_decided_groups(tmp_path: Path) -> None:
    settings = [*SHORT, "steps=1", "algorithm=dapo", "group_size=2", "eval.at_start=false", f"out={tmp_path / 'r'}"]
    Trainer(load_config("chain", settings), quiet=True).train()
    (record,) = read_metrics(tmp_path / "r")
    assert record["problems_sampled"] > record["problems_kept"]
    assert record["problems_sampled"] <= 3 * 8
    assert record["advantage_zero_rate"] == 0
    assert record["sampling_rounds"] >= 2


def test_python_rewards_and_rows_they_skip(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "my_reward.py").write_text(
        "def reward(prompts, completions, **columns):\n"
        "    return [None if '7' in c else float(len(c) % 2) for c in completions]\n"
    )
    monkeypatch.chdir(tmp_path)
    lines = [f'{{"prompt": "3a+{i}b*7c=", "answer": "1"}}' for i in range(1, 9)]
    (tmp_path / "p.jsonl").write_text("\n".join(lines))
    settings = [
        *SHORT,
        "steps=1",
        "problems.train=p.jsonl",
        "problems.heldout=null",
        "problems.verifier=python:my_reward:reward",
        "out=r",
    ]
    Trainer(load_config("chain", settings), quiet=True).train()
    (record,) = read_metrics(tmp_path / "r")
    rows = read_rollouts(tmp_path / "r").to_pylist()
    skipped = [r for r in rows if r["role"] == "completion" and r["score"] is None]
    assert record["unscored"] == len(skipped) > 0
    assert not any(r["chosen"] for r in skipped)
    assert all("7" in r["text"] for r in skipped)


def test_settings_that_contradict_each_other(tmp_path: Path) -> None:
    for overrides, message in [
        (["problems_per_step=500"], "there are only 256 training problems"),
        (["optimizer.old_logp=engine", "rollout.top_p=0.9"], "old_logp=engine needs rollout.top_p=1"),
        (["problems.heldout=builtin:chain?steps=10&size=256&split=train"], "problems are both in"),
    ]:
        with pytest.raises(ConfigError, match=message):
            Trainer(load_config("chain", [*SHORT, *overrides, f"out={tmp_path / message[:9]}"]), quiet=True).train()


def test_rollout_metrics_by_hand() -> None:
    from scripted import sample

    def group(*scores: float) -> Group:
        samples = [sample([5] * (i + 1), finished=True) for i in range(len(scores))]
        for s, score in zip(samples, scores, strict=True):
            s.score, s.reward = score, 2 * score - 1
        return Group(Problem("p", "1"), samples)

    groups = [group(1, 0), group(1, 1), group(0, 0.5)]
    m = rollout_metrics(groups)
    assert m["accuracy"] == 0.5  # partial credit is not correct
    assert m["pass_at_1"] == 0.5
    assert m["pass_at_g"] == pytest.approx(2 / 3)
    assert m["reward_mean"] == pytest.approx(1 / 6)  # (1 - 1 + 1 + 1 - 1 + 0) / 6
    assert zero_rate(groups) == pytest.approx(1 / 3)
    branched = group(1, 1, 0, 0)  # all of one branch right, all of the other wrong: neither has a gradient of its own
    assert zero_rate([branched]) == 0
    for i, s in enumerate(branched.samples):
        s.info["subgroup"] = i // 2
    assert zero_rate([branched]) == 1
