"""Run folders made up by hand: small ones whose every number is known, and one as large as the report has to bear."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from tokenizers import AddedToken, Tokenizer, decoders, models

from skpo.trainer.rollout_log import schema

HOSTILE = "</script><script>window.hacked = 1</script><img src=x onerror='window.hacked = 2'>"
PIECES = ["<pad>", "<eos>", *"0123456789abcdef+-*=;# ", "\n", HOSTILE, "wrong", "right"]
EOS = 1


def save_tokenizer(run: Path, tokenizer: Tokenizer | None = None, step: int = 1) -> None:
    """A tokenizer in the run's checkpoint; by default one of whole words, PIECES."""
    if tokenizer is None:
        tokenizer = Tokenizer(models.WordLevel({piece: i for i, piece in enumerate(PIECES)}, "<pad>"))
        tokenizer.decoder = decoders.Fuse()
        tokenizer.add_special_tokens([AddedToken(piece, special=True) for piece in ("<pad>", "<eos>")])
    folder = run / "checkpoints" / f"step-{step:06d}" / "model"
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer.save(str(folder / "tokenizer.json"))


def ids(text: str) -> list[int]:
    """Token ids of a text of single-letter pieces."""
    return [PIECES.index(letter) for letter in text]


def row(step: int, problem: str, role: str = "completion", chosen: bool = True, **values: Any) -> dict[str, Any]:
    """A row of a rollout file; `tokens` default to those of `text`, `logp` to -0.5 each."""
    text = values.get("text", "1+2=3")
    tokens = values.pop("tokens", None) or ids(text)
    base: dict[str, Any] = {
        "step": step, "problem_id": problem, "role": role, "chosen": chosen, "prompt": f"problem {problem}", "context": ids("1+2="),
        "text": text, "tokens": tokens, "logp": [-0.5] * len(tokens), "score": None, "reward": None, "advantage": None,
        "baseline": 0.0, "finished": True, "stop_position": None, "seed": 0, "version": step - 1, "info": None, "answer": "3",
    }  # fmt: skip
    return base | values


def save_rollouts(run: Path, step: int, rows: Sequence[dict[str, Any]]) -> None:
    folder = run / "rollouts"
    folder.mkdir(parents=True, exist_ok=True)
    pq.write_table(pa.Table.from_pylist(list(rows), schema=schema()), folder / f"step-{step:06d}.parquet")


def save_metrics(run: Path, records: Sequence[dict[str, Any]], settings: str = "") -> None:
    run.mkdir(parents=True, exist_ok=True)
    (run / "metrics.jsonl").write_text("".join(json.dumps(record) + "\n" for record in records))
    if settings:
        (run / "config.yaml").write_text(settings)


def skip_group(step: int, problem: str, right: Sequence[bool]) -> list[dict[str, Any]]:
    """A group as SKPO logs it: completions, the chosen segment, the others (log-probabilities -0.1, -0.2, ... per token)."""
    segments = [
        row(
            step, problem, "segment", i == 1, text=f"1+{i}", logp=[-0.1 * (i + 1)] * 3, finished=False, stop_position=3,
            reward=0.25 if i == 1 else None, advantage=-0.5 if i == 1 else None,
        )
        for i in range(4)
    ]  # fmt: skip
    after = ids("1+1") + ids(" ") + ids("1+2=")
    completions = [
        row(
            step, problem, context=after, score=float(good), reward=2.0 * good - 1.0, advantage=1.0 if good else -1.0,
            tokens=[*ids(f"1+2={3 if good else i}"), PIECES.index("right" if good else "wrong"), EOS], text=f"1+2={3 if good else i}",
            logp=[-0.01, -0.5, -3.0, -0.1, -1.0, -0.2, -0.0], entropy=[0.0, 0.5, 1.0, 2.0, 0.1, 0.1, 0.0],
            log_ratio=[0.0, 0.1, -0.1, 0.0, 0.0, 0.0, 0.0], token_advantage=[1.0, -2.0, 0.0, 0.5, 0.5, 0.5, 0.5],
        )
        for i, good in enumerate(right)
    ]  # fmt: skip
    return [*completions, segments[1], segments[0], *segments[2:]]


def small_run(run: Path, steps: int = 4, shift: float = 0.0, settings: str = "") -> Path:
    """Two problems a step, evaluations at 0 and the last step, a value that is not finite at step 2, hostile texts at step 1."""
    records: list[dict[str, Any]] = [{"step": 0, "eval_pass_at_1": 0.25, "eval_pass_at_1_stderr": 0.05, "eval_k": 4, "eval_pass_at_k": 0.5, "eval_length": 10.0}]  # fmt: skip
    for step in range(1, steps + 1):
        records.append(
            {
                "step": step, "reward_mean": -0.5 + 0.2 * step + shift, "accuracy": 0.2 * step, "entropy": None if step == 2 else 1.0 / step,
                "lr": 10.0**-step, "seconds": 2.0, "seconds_rollout": 1.2, "seconds_train": 0.8, "seconds_verify": 0.0,
                "tokens_generated": 100, "tokens_generated_total": 100 * step,
            }
        )  # fmt: skip
        groups = [skip_group(step, "even", [True, False, True, False]), skip_group(step, "hard", [False] * 4)]
        if step == 1:
            bad = PIECES.index(HOSTILE)
            groups.append([row(1, HOSTILE, text=HOSTILE, tokens=[bad, EOS], prompt=HOSTILE, score=0.0, reward=0.0, info=json.dumps({"note": HOSTILE}))])  # fmt: skip
        save_rollouts(run, step, [r for group in groups for r in group])
    records[-1] |= {"eval_pass_at_1": 0.75, "eval_pass_at_1_stderr": 0.02, "eval_k": 4, "eval_pass_at_k": 1.0}
    save_metrics(
        run, records, settings or f"algorithm:\n  name: skpo\nsteps: {steps}\nout: {run}\noptimizer:\n  lr: 0.1\n"
    )
    save_tokenizer(run)
    return run


def large_run(run: Path, steps: int = 500, problems: int = 10, group: int = 10, length: int = 120) -> Path:
    """steps x problems x group rollouts of about `length` tokens with entropies, frequencies like a language's (Zipf)."""
    rng = np.random.default_rng(0)
    vocabulary = 3000
    pieces = [f" w{i}" for i in range(vocabulary)]
    tokenizer = Tokenizer(models.WordLevel({piece: i for i, piece in enumerate(pieces)}, pieces[0]))
    tokenizer.decoder = decoders.Fuse()
    folder = run / "rollouts"
    folder.mkdir(parents=True, exist_ok=True)
    per_step = problems * group
    for step in range(1, steps + 1):
        sizes = rng.integers(length // 2, 3 * length // 2, per_step)
        at, total = np.concatenate([[0], np.cumsum(sizes)]), int(sizes.sum())
        tokens = np.minimum(rng.zipf(1.3, total), vocabulary - 1)
        score = (rng.random(per_step) < step / (steps + 50)).astype(np.float32)
        offsets = pa.array(at, pa.int32())
        lists = lambda values, kind: pa.ListArray.from_arrays(offsets, pa.array(values, kind))  # noqa: E731, B023
        number = np.repeat(rng.choice(2000, problems, replace=False), group)
        columns: dict[str, Any] = {
            "step": np.full(per_step, step, np.int32), "problem_id": [f"p{i}" for i in number],
            "role": ["completion"] * per_step, "chosen": np.ones(per_step, bool), "text": [""] * per_step,
            "tokens": lists(tokens, pa.int32()), "logp": lists(-rng.exponential(0.4, total), pa.float32()),
            "entropy": lists(rng.exponential(0.5, total), pa.float32()), "score": score, "reward": 2 * score - 1,
            "advantage": score - score.mean(), "baseline": np.zeros(per_step, np.float32), "finished": np.ones(per_step, bool),
            "version": np.full(per_step, step - 1, np.int32),
        }  # fmt: skip
        columns["prompt"] = [f"problem {i}: " + "".join(pieces[i : i + 60]) for i in number]
        columns["context"] = [list(range(int(i), int(i) + 60)) for i in number]
        table = {
            field.name: pa.array(columns[field.name], field.type) if not isinstance(columns.get(field.name), pa.Array) else columns[field.name]
            for field in schema() if field.name in columns
        }  # fmt: skip
        pq.write_table(pa.table(table), folder / f"step-{step:06d}.parquet", compression="zstd")
    records = [
        {"step": s, "seconds": 3.0, "tokens_generated_total": s * per_step * length, **{f"metric_{i}": float(rng.random()) for i in range(40)}}
        for s in range(1, steps + 1)
    ]  # fmt: skip
    save_metrics(run, records, f"steps: {steps}\nalgorithm: {{name: grpo}}\n")
    save_tokenizer(run, tokenizer)
    return run
