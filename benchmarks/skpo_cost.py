"""What SKPO costs beside GRPO, and what its single pass saves.

1. A whole step (rollout, verify, train) of SKPO against one of GRPO, per generated token, by turns: same model, problems, group
   size, budget. On the recipe `chain`, and on a model of 4 M parameters whose lengths have a geometric tail.
2. The rollout alone, on long-tailed lengths: all plans in one continuous batch, a problem's completions starting as its last
   segment stops, against two passes with a barrier between them: first every segment, then every completion. The two passes are
   made by the same engine, and by `generate` in fixed batches.
3. The share of the single pass that goes into computing the re-rendered prompts [s, q].

In 2 and 3 every row has a budget of its own and no token ends a sequence, so that all sides generate the same numbers of tokens.
The headline is 2 against the same engine.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from benchmarks.common import Options, Report, by_turns, parse, quotient, spread
from benchmarks.models import build
from benchmarks.rollout import Counts, Work, generate_side
from benchmarks.trainers import hush, skpo_run, word_model, word_problems

if TYPE_CHECKING:
    from transformers import PreTrainedModel


@dataclass(frozen=True)
class Skips:
    """The rollouts of one SKPO step. prompts: ids of q. stops: int64 [problems], t_q. budgets: int64 [problems, G], completions."""

    prompts: tuple[tuple[int, ...], ...]
    stops: np.ndarray
    budgets: np.ndarray

    @property
    def tokens(self) -> int:
        return int(self.stops.sum() * self.budgets.shape[1] + self.budgets.sum())


def draw(problems: int, group: int, mean: int, high: int, vocabulary: int, seed: int = 0) -> Skips:
    """Problems whose mean length is log-normal about `mean`, their completions exponential about that, t_q ~ U[1/6, 1/2] of it."""
    rng = np.random.default_rng(seed)
    length = (mean * rng.lognormal(-0.32, 0.8, problems)).clip(8, high)  # -0.32 = -0.8^2 / 2: of this mean
    stops = (rng.uniform(1 / 6, 1 / 2, problems) * length).round().clip(1).astype(np.int64)
    budgets = rng.exponential(length[:, None], (problems, group)).round().clip(2, high).astype(np.int64)
    prompts = tuple(tuple(rng.integers(0, vocabulary, n).tolist()) for n in rng.integers(32, 97, problems))
    return Skips(prompts, stops, budgets)


def single_pass(model: PreTrainedModel, work: Skips, slots: int) -> Callable[[], Counts]:
    """One continuous batch of plans: G segments of t_q tokens, then G completions of [s, q] for the one kept."""
    from skpo.problems.base import Problem
    from skpo.rollout.embedded import EmbeddedEngine
    from skpo.rollout.types import Group, Plan, PlanRun, Request

    engine = EmbeddedEngine(model, eos_ids=(), slots=slots)

    def plan(i: int) -> Plan:
        q, group = work.prompts[i], work.budgets.shape[1]
        segments = yield Request(q, group, int(work.stops[i]))
        skip = (*segments[0].tokens.tolist(), *q)
        answers = yield [Request(skip, 1, int(b)) for b in work.budgets[i]]
        return Group(Problem(id=str(i), prompt="", answer=""), [s for a in answers for s in a], segments)

    def run() -> Counts:
        groups = [g for _, g in engine.run([PlanRun(plan(i), i) for i in range(len(work.prompts))])]
        return {"tokens": sum(g.generated_tokens for g in groups), "steps": engine.take_stats().steps}

    return run


def two_passes(model: PreTrainedModel, work: Skips, slots: int) -> Callable[[], Counts]:
    """The same engine, with a barrier: every segment of every problem, and then every completion."""
    from skpo.problems.base import Problem
    from skpo.rollout.embedded import EmbeddedEngine
    from skpo.rollout.types import Group, Plan, PlanRun, Request

    engine = EmbeddedEngine(model, eos_ids=(), slots=slots)
    group = work.budgets.shape[1]

    def ask(i: int, requests: list[Request]) -> Plan:
        answers = yield requests
        return Group(Problem(id=str(i), prompt="", answer=""), [s for a in answers for s in a])

    def run() -> Counts:
        first = [
            PlanRun(ask(i, [Request(q, group, int(t))]), i)
            for i, (q, t) in enumerate(zip(work.prompts, work.stops, strict=True))
        ]
        segments = dict(engine.run(first))
        second = []
        for i, q in enumerate(work.prompts):
            skip = (*segments[i].samples[0].tokens.tolist(), *q)
            second.append(PlanRun(ask(i, [Request(skip, 1, int(b)) for b in work.budgets[i]]), i))
        groups = [*segments.values(), *(g for _, g in engine.run(second))]
        return {"tokens": sum(g.generated_tokens for g in groups), "steps": engine.take_stats().steps}

    return run


def two_generates(model: PreTrainedModel, work: Skips, batch: int) -> Callable[[], Counts]:
    """transformers' `generate` in fixed batches, twice; the second time behind prompts as long as [s, q]."""
    group = work.budgets.shape[1]
    first = Work(work.prompts, np.repeat(work.stops[:, None], group, 1))
    skips = tuple((*q[:1] * int(t), *q) for q, t in zip(work.prompts, work.stops, strict=True))
    passes = [generate_side(model, first, batch), generate_side(model, Work(skips, work.budgets), batch)]
    return lambda: {"tokens": sum(side()["tokens"] for side in passes)}


def steps(options: Options, report: Report, *, tail: bool) -> None:
    """Part 1: whole steps of both algorithms."""
    with tempfile.TemporaryDirectory() as name, ExitStack() as stack:
        folder = Path(name)
        problems, group, budget = (4, 4, 96) if options.quick else (8, 8, 256) if tail else (32, 8, 128)
        recipe = "chain"
        common = [
            f"problems_per_step={problems}",
            f"group_size={group}",
            f"rollout.max_completion_tokens={budget}",
            "optimizer.lr=1e-6",
        ]
        if tail:
            mean = budget // 4
            model = word_model(folder / "model", mean=mean)
            path = word_problems(folder / "problems.jsonl", 64, 64)
            recipe = str(folder / "recipe.yaml")
            Path(recipe).write_text(
                f"model: {{path: {model}}}\nproblems: {{train: {path}, verifier: 'python:benchmarks.trainers:last_word_even'}}\n"
            )
        sides = {}
        for side, algorithm in {
            "skpo": ["algorithm=skpo", f"algorithm.initial_length={budget // 4 if tail else 74}"],
            "grpo": ["algorithm=grpo"],
        }.items():
            sides[side] = stack.enter_context(skpo_run(recipe, [*common, *algorithm, f"out={folder / side}"], options))
        timed = by_turns(sides, options)
        cost = spread(
            (a.seconds / a.counts["tokens"]) / (b.seconds / b.counts["tokens"])
            for a, b in zip(timed["skpo"], timed["grpo"], strict=True)
        )
        rows: list[list[Any]] = []
        for side, turns in timed.items():
            per = [spread(1e3 * t.seconds / t.counts["tokens"] for t in turns)]
            per += [spread(1e3 * t.counts[part] / t.counts["tokens"] for t in turns) for part in ("rollout", "train")]
            rows.append(
                [
                    side,
                    *per,
                    *(spread(t.counts[name] for t in turns) for name in ("tokens", "computed", "steps", "trained")),
                ]
            )
        rows.append(["skpo over grpo", cost, None, None, None, None, None, None])
        kind = "4M model, geometric tail" if tail else "chain recipe"
        report.table(
            f"a whole step, {kind}: {problems} problems x {group}, at most {budget} tokens",
            [
                "algorithm",
                "ms per generated token",
                "of it rollout",
                "of it train",
                "tokens generated",
                "computed for them",
                "decode steps",
                "trained",
            ],
            rows,
        )
        report.bar(f"{kind}: cost of an SKPO step per generated token, over GRPO's", cost, most=1.05)


def rerendered(model: PreTrainedModel, work: Skips, slots: int, options: Options) -> list[Any]:
    """Part 3: share of the single pass's time that goes into computing the prompts [s, q]: their tokens' part of all prefill."""
    from unittest.mock import patch

    from skpo.rollout.embedded.batch import Batch

    prefill = Batch._prefill
    spent = {"all": 0.0, "skip": 0.0}
    plain = set(work.prompts)

    def timed(self: Batch, contexts: list[tuple[int, ...]]) -> int:
        begin = options.clock_now()
        computed = prefill(self, contexts)
        seconds = options.clock_now() - begin
        spent["all"] += seconds
        if computed:
            spent["skip"] += seconds * sum(len(c) for c in contexts if c not in plain) / computed
        return computed

    run = single_pass(model, work, slots)
    with patch.object(Batch, "_prefill", timed):
        turns = by_turns({"single pass": run}, options, warm=0)["single pass"]
    whole = sum(t.seconds for t in turns)
    tokens = sum(len(q) + int(t) for q, t in zip(work.prompts, work.stops, strict=True))
    return ["re-rendered prompts [s, q]", tokens, spent["skip"] / whole, spent["all"] / whole]


def main() -> None:
    options = parse(__doc__, repeats=3)
    hush()
    model = build("4M")
    vocabulary = model.config.vocab_size
    work = draw(4, 4, 24, 64, vocabulary) if options.quick else draw(16, 8, 48, 384, vocabulary)
    slots, batch = (16, 16) if options.quick else (48, 32)
    one, two, generate = "single pass", "two passes, same engine", f"two passes, generate in batches of {batch}"
    sides = {
        one: single_pass(model, work, slots),
        two: two_passes(model, work, slots),
        generate: two_generates(model, work, batch),
    }
    timed = by_turns(sides, options, warm=0)
    for name, turns in timed.items():
        if any(t.counts["tokens"] != work.tokens for t in turns):
            raise RuntimeError(f"{name} made {turns[0].counts['tokens']:.0f} tokens, not {work.tokens}")
    barrier, naive = quotient(timed[one], timed[two]), quotient(timed[one], timed[generate])
    report = Report(
        "skpo_cost",
        "time of two passes with a barrier over that of the single pass, same engine, long-tailed lengths",
        barrier,
    )
    rows: list[list[Any]] = [
        [
            name,
            spread(t.seconds for t in turns),
            spread(t.rate() for t in turns),
            spread(t.counts["steps"] for t in turns) if "steps" in turns[0].counts else None,
        ]
        for name, turns in timed.items()
    ]
    rows += [
        ["two passes over the single one, same engine", barrier, None, None],
        ["two passes with generate over the single one", naive, None, None],
    ]
    title = f"SKPO's rollout, 4M, {len(work.prompts)} problems x {work.budgets.shape[1]}, {work.tokens:,} tokens, {slots} slots"
    report.table(title, ["side", "seconds", "tokens/s", "decode steps"], rows)
    report.bar("single pass over two passes of the same engine", barrier, least=1.5)
    report.bar("single pass over two passes with `generate`", naive, least=1.5)
    report.table(
        "re-rendered prompts in the single pass",
        ["what", "tokens", "share of the time", "share of all prompts"],
        [rerendered(model, work, slots, options)],
    )
    steps(options, report, tail=False)
    if not options.quick:
        steps(options, report, tail=True)
    report.finish(options)


if __name__ == "__main__":
    main()
