"""Evaluation: k samples per problem, mean@k and unbiased pass@k with standard errors. Training evaluates through the same path."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from skpo.config import ModelConfig
from skpo.problems.base import Problem
from skpo.rollout.plans import PlanContext, group_plan
from skpo.rollout.types import Engine, Group, PlanRun, Sampling, derive_seed

if TYPE_CHECKING:
    from rich.table import Table

    from skpo.trainer.judge import Judge


def pass_at_k(n: int, c: int, k: int) -> float:
    """Unbiased pass@k from n samples of which c are correct: 1 - C(n - c, k) / C(n, k) (arXiv 2107.03374, section 2.1).

    Raises ValueError unless 1 <= k <= n and 0 <= c <= n.
    """
    if not (1 <= k <= n and 0 <= c <= n):
        raise ValueError(f"pass@k needs 1 <= k <= n and 0 <= c <= n, found k={k}, n={n}, c={c}")
    if n - c < k:
        return 1.0
    return 1.0 - math.prod(1.0 - k / i for i in range(n - c + 1, n + 1))


@dataclass
class Evaluation:
    """Result of an evaluation.

    scores: problem id -> the samples' scores in [0, 1] (None counted as 0); correct: how many of them are fully correct.
    """

    name: str
    samples: int
    ks: tuple[int, ...]
    scores: dict[str, list[float]]
    correct: dict[str, int]
    lengths: list[int]
    settings: dict[str, Any] = field(default_factory=dict)
    seconds: float = 0.0
    generated_tokens: int = 0

    @property
    def mean(self) -> float:
        """mean@k: accuracy over all samples, averaged within and then over problems; pass@1."""
        return float(np.mean([c / self.samples for c in self.correct.values()])) if self.correct else 0.0

    @property
    def stderr(self) -> float:
        """Standard error of `mean` over problems (sample deviation / sqrt P)."""
        values = [c / self.samples for c in self.correct.values()]
        return float(np.std(values, ddof=1) / math.sqrt(len(values))) if len(values) > 1 else 0.0

    def pass_at(self, k: int) -> float:
        """Unbiased pass@k, averaged over problems."""
        return float(np.mean([pass_at_k(self.samples, c, k) for c in self.correct.values()])) if self.correct else 0.0

    def metrics(self) -> dict[str, float]:
        """Keys for metrics.jsonl."""
        largest = max(self.ks)
        return {
            "eval_pass_at_1": self.mean,
            "eval_pass_at_1_stderr": self.stderr,
            "eval_pass_at_k": self.pass_at(largest),
            "eval_k": largest,
            "eval_length": float(np.mean(self.lengths)) if self.lengths else 0.0,
        }

    def to_dict(self) -> dict[str, Any]:
        """Everything, JSON-ready."""
        return {
            "name": self.name,
            "problems": len(self.correct),
            "samples": self.samples,
            f"mean@{self.samples}": self.mean,
            "stderr": self.stderr,
            "pass_at_k": {str(k): self.pass_at(k) for k in self.ks},
            "mean_length": float(np.mean(self.lengths)) if self.lengths else 0.0,
            "generated_tokens": self.generated_tokens,
            "seconds": self.seconds,
            "settings": self.settings,
            "correct": self.correct,
        }

    def table(self) -> Table:
        """A table for the terminal; the settings stand beside the score."""
        from rich.table import Table

        table = Table(title=self.name, title_justify="left")
        for column in ("problems", "samples", f"mean@{self.samples}", *(f"pass@{k}" for k in self.ks), "length"):
            table.add_column(column, justify="right")
        length = f"{np.mean(self.lengths):.0f}" if self.lengths else "-"
        passes = [f"{self.pass_at(k):.3f}" for k in self.ks]
        table.add_row(
            str(len(self.correct)), str(self.samples), f"{self.mean:.3f} ± {self.stderr:.3f}", *passes, length
        )
        table.caption = ", ".join(f"{k}={v}" for k, v in self.settings.items())
        return table


def run_evaluation(
    engine: Engine, renderer: Any, judge: Judge, problems: Sequence[Problem], *, samples: int, sampling: Sampling, max_tokens: int,
    ks: Iterable[int] = (1,), seed: int = 0, name: str = "held-out",
) -> Evaluation:  # fmt: skip
    """Sample and score every problem on an engine. Sample i of a problem has the same seed in every evaluation."""
    context = PlanContext(renderer, samples, max_tokens, sampling)
    runs = [PlanRun(group_plan(p, context, samples), derive_seed(seed, "eval", p.id)) for p in problems]
    groups: list[Group | None] = [None] * len(problems)
    for i, group in engine.run(runs):
        groups[i] = group
        judge.submit(group)
    judge.finish()
    done = [g for g in groups if g is not None]
    return Evaluation(
        name=name,
        samples=samples,
        ks=tuple(k for k in ks if k <= samples) or (1,),
        scores={g.problem.id: [s.score or 0.0 for s in g.samples] for g in done},
        correct={g.problem.id: sum(s.correct for s in g.samples) for g in done},
        lengths=[len(s) for g in done for s in g.samples],
        generated_tokens=sum(g.generated_tokens for g in done),
    )


def evaluate(
    model: str | ModelConfig | Any,
    problems: str | Sequence[Problem],
    *,
    samples: int = 4,
    ks: Iterable[int] = (1,),
    verifier: str = "math",
    temperature: float = 1.0,
    top_p: float = 1.0,
    top_k: int = 0,
    max_tokens: int = 1024,
    limit: int | None = None,
    seed: int = 0,
    workers: int = 1,
    prompt_key: str = "prompt",
    answer_key: str = "answer",
    slots: int = 256,
) -> Evaluation:
    """Evaluate a model on problems: mean@k and pass@k with standard errors over problems.

    model: anything `ModelConfig.path` accepts, a `ModelConfig`, or a `LoadedPolicy`. problems: a source or a list.
    `samples` per problem at `temperature` (0: greedy), each of at most `max_tokens` tokens.
    """
    import time

    from skpo.policy.loading import LoadedPolicy, load_policy
    from skpo.policy.prompts import PromptRenderer
    from skpo.problems import load_problems
    from skpo.rollout.embedded import EmbeddedEngine
    from skpo.trainer.judge import Judge
    from skpo.verifiers.pool import VerifierPool

    config = ModelConfig(path=model) if isinstance(model, str | Path) else model
    policy = model if isinstance(model, LoadedPolicy) else load_policy(config)
    model_config = ModelConfig(path=policy.source or "model") if isinstance(model, LoadedPolicy) else config
    if isinstance(problems, str):
        rows = load_problems(problems, prompt_key=prompt_key, answer_key=answer_key, verifier=verifier, limit=limit)
    else:
        rows = list(problems)[:limit]
    renderer = PromptRenderer(policy.tokenizer, model_config, policy.chat)
    engine = EmbeddedEngine(policy.model, eos_ids=policy.eos_ids, slots=slots)
    begin = time.perf_counter()
    with VerifierPool(workers=workers) as pool:
        result = run_evaluation(
            engine, renderer, Judge(pool, renderer.decode, verifier), rows, samples=samples,
            sampling=Sampling(temperature, top_p, top_k), max_tokens=max_tokens, ks=ks, seed=seed,
            name=problems if isinstance(problems, str) else "problems",
        )  # fmt: skip
    result.seconds = time.perf_counter() - begin
    result.settings = {"model": model_config.path, "temperature": temperature, "top_p": top_p, "top_k": top_k, "max_tokens": max_tokens, "seed": seed, "verifier": verifier}  # fmt: skip
    return result
