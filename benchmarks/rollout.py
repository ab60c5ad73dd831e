"""The embedded engine against transformers: `generate` in fixed batches, and its continuous batching.

Every row has a budget of its own, drawn from a distribution, and no token ends a sequence, so that all sides generate the
same numbers of tokens behind the same prompts. A fixed batch runs until its longest row is full, as `generate` does. It is
tried at several batch sizes, and the engine is compared with the best of them. Sampling is plain on all sides
(temperature 1, no truncation); the engine also returns log-probabilities, `generate` doesn't. Weights are float32.

transformers' continuous batching is measured on a smaller share of the same work, beside the engine on that share.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from benchmarks.common import Options, Report, Turn, by_turns, parse, quotient, spread
from benchmarks.models import build, parameters

if TYPE_CHECKING:
    from transformers import PreTrainedModel

LEAST = {"4M": 5.0, "135M": 3.0}
Counts = dict[str, float]


@dataclass(frozen=True)
class Work:
    """Prompts and the budget of every row. prompts: token ids, one per group. budgets: int64 [groups, rows per group]."""

    prompts: tuple[tuple[int, ...], ...]
    budgets: np.ndarray

    @property
    def tokens(self) -> int:
        return int(self.budgets.sum())

    @property
    def rows(self) -> list[tuple[tuple[int, ...], int]]:
        """(prompt, budget) of each row, group after group."""
        return [(p, int(b)) for p, group in zip(self.prompts, self.budgets, strict=True) for b in group]


@dataclass(frozen=True)
class Case:
    """Sizes of one comparison. lengths: "exponential", "lognormal" or "uniform" between `low` and `high` tokens, `mean` the tail's mean."""

    shape: str
    lengths: str
    groups: int
    per_group: int
    prompt: tuple[int, int]
    low: int
    mean: int
    high: int
    slots: int
    batches: tuple[int, ...]

    @property
    def title(self) -> str:
        kind = f"{self.lengths} lengths {self.low} to {self.high}"
        return f"{self.shape} parameters, {self.groups} x {self.per_group} rows, {kind}, {self.slots} slots"


def draw(case: Case, vocabulary: int, seed: int = 0) -> Work:
    """Random prompts and budgets of a case."""
    rng = np.random.default_rng(seed)
    sizes = rng.integers(case.prompt[0], case.prompt[1] + 1, case.groups)
    prompts = tuple(tuple(rng.integers(0, vocabulary, n).tolist()) for n in sizes)
    shape = (case.groups, case.per_group)
    if case.lengths == "uniform":
        budgets = rng.integers(case.low, case.high + 1, shape).astype(np.float64)
    elif case.lengths == "exponential":
        budgets = case.low + rng.exponential(case.mean - case.low, shape)
    else:
        budgets = rng.lognormal(np.log(case.mean) - 0.5, 1.0, shape)  # of this mean, before it is clipped
    return Work(prompts, budgets.round().clip(case.low, case.high).astype(np.int64))


def engine_side(model: PreTrainedModel, work: Work, slots: int) -> Callable[[], Counts]:
    """All groups in the engine's one continuous batch."""
    from skpo.problems.base import Problem
    from skpo.rollout.embedded import EmbeddedEngine
    from skpo.rollout.types import Group, Plan, PlanRun, Request

    engine = EmbeddedEngine(model, eos_ids=(), slots=slots)

    def plan(i: int) -> Plan:
        answers = yield [Request(work.prompts[i], 1, int(b)) for b in work.budgets[i]]
        return Group(Problem(id=str(i), prompt="", answer=""), [s for answer in answers for s in answer])

    def run() -> Counts:
        runs = [PlanRun(plan(i), i) for i in range(len(work.prompts))]
        tokens = sum(len(s) for _, group in engine.run(runs) for s in group.samples)
        stats = engine.take_stats()
        return {"tokens": tokens, "used": tokens / (stats.rows + len(work.rows))}  # first tokens come from prefill

    return run


def generate_side(model: PreTrainedModel, work: Work, batch: int) -> Callable[[], Counts]:
    """`generate` in batches of neighbouring rows, prompts padded on the left, each batch until its longest row is full."""
    import torch

    def run() -> Counts:
        made = kept = 0
        for start in range(0, len(work.rows), batch):
            rows = work.rows[start : start + batch]
            width, longest = max(len(p) for p, _ in rows), max(b for _, b in rows)
            ids = torch.zeros(len(rows), width, dtype=torch.long)
            mask = torch.zeros_like(ids)
            for i, (prompt, _) in enumerate(rows):
                ids[i, width - len(prompt) :] = torch.tensor(prompt)
                mask[i, width - len(prompt) :] = 1
            out = model.generate(input_ids=ids, attention_mask=mask, generation_config=_plain(longest))
            made += out[:, width:].numel()
            kept += sum(len(out[i, width : width + b]) for i, (_, b) in enumerate(rows))
        return {"tokens": kept, "used": kept / made}

    return run


def continuous_side(model: PreTrainedModel, work: Work, slots: int) -> Callable[[], Counts]:
    """transformers' continuous batching, blocks shared between equal prompts, each row with its own budget."""
    from transformers import ContinuousBatchingConfig

    longest = max(b for _, b in work.rows)
    total = sum(len(p) + b for p, b in work.rows)
    page = 32
    config = ContinuousBatchingConfig(
        page_size=page,
        num_blocks=-(-total // page) + 2 * len(work.rows),
        max_batch_tokens=1024,
        max_requests_per_batch=slots,
        scheduler_type="fifo",
        seed=0,
    )

    def run() -> Counts:
        generation = _plain(longest)
        generation.eos_token_id = -1
        tokens = waiting = 0
        with model.continuous_batching_context_manager(
            generation_config=generation, continuous_batching_config=config, timeout=10, warmup=False
        ) as manager:
            for prompt, budget in work.rows:
                manager.add_request(list(prompt), max_new_tokens=budget)
                waiting += 1
            while waiting:
                result = manager.get_result(timeout=1)
                if result is None and not manager.is_running():
                    raise RuntimeError("transformers' continuous batching ended before its requests")
                if result is not None and result.is_finished():
                    tokens += len(result.generated_tokens)
                    waiting -= 1
        return {"tokens": tokens}

    return run


def _plain(longest: int) -> Any:
    """Sampling from the softmax itself, exactly `longest` tokens."""
    from transformers import GenerationConfig

    return GenerationConfig(
        do_sample=True, temperature=1.0, top_k=0, top_p=1.0, max_new_tokens=longest, pad_token_id=0, use_cache=True
    )


def compare(case: Case, options: Options, model: PreTrainedModel) -> tuple[dict[str, list[Turn]], str]:
    """Timings by side, and the name of the fastest `generate`: batch sizes are tried once each, the best one is repeated."""
    work = draw(case, model.config.vocab_size)
    sides = {f"generate, batches of {b}": generate_side(model, work, b) for b in case.batches}
    tried = by_turns(sides, replace(options, repeats=1), warm=0) if len(sides) > 1 else {}
    best = max(tried, key=lambda name: tried[name][0].rate()) if tried else next(iter(sides))
    timed = by_turns({"engine": engine_side(model, work, case.slots), best: sides[best]}, options, warm=0)
    for name, turns in (timed | tried).items():
        if any(t.counts["tokens"] != work.tokens for t in turns):
            raise RuntimeError(f"{name} made {turns[0].counts['tokens']:.0f} tokens, not {work.tokens}")
    return {**tried, **timed}, best


CASES = (
    Case("4M", "exponential", 32, 8, (32, 96), 8, 48, 192, 128, (32, 64)),
    Case("135M", "exponential", 6, 8, (32, 96), 4, 16, 64, 24, (8, 12)),
    Case("4M", "lognormal", 16, 8, (32, 96), 8, 48, 192, 64, (32,)),
    Case("4M", "uniform", 16, 8, (32, 96), 8, 0, 96, 64, (32, 64)),
    Case("135M", "uniform", 6, 8, (32, 96), 4, 0, 32, 24, (12, 24)),
)
QUICK = (
    Case("4M", "exponential", 6, 8, (16, 32), 4, 16, 64, 24, (24,)),
    Case("135M", "exponential", 2, 4, (8, 16), 2, 6, 16, 8, (8,)),
)


def main() -> None:
    def more(parser: Any) -> None:
        parser.add_argument("--lengths", help="only the cases with these lengths: exponential, lognormal or uniform")
        parser.add_argument("--shape", choices=sorted(LEAST), help="only the cases of this model")

    options = parse(__doc__, more, repeats=3)
    wanted = options.extra
    cases = [
        c
        for c in (QUICK if options.quick else CASES)
        if wanted["lengths"] in (None, c.lengths) and wanted["shape"] in (None, c.shape)
    ]
    if not cases:
        raise SystemExit("no case has this shape and these lengths")
    report: Report | None = None
    for case in cases:
        model = build(case.shape)
        timed, best = compare(case, options, model)
        ratio = quotient(timed["engine"], timed[best])
        if report is None:
            report = Report(
                "rollout", f"tokens per second, engine over `generate` at its best batch size ({case.title})", ratio
            )
        rows = [
            [
                name,
                spread(t.rate() for t in turns),
                spread(t.seconds for t in turns),
                spread(t.counts["used"] for t in turns),
            ]
            for name, turns in timed.items()
        ]
        rows.append([f"engine over {best}", ratio, None, None])
        title = f"{case.title}, {parameters(model):.1f} M weights"
        report.table(title, ["side", "tokens/s", "seconds", "computed tokens that count"], rows)
        if case.lengths == "exponential":
            report.bar(f"{case.shape}, exponential lengths: engine over `generate`", ratio, least=LEAST[case.shape])
        if case == cases[0]:
            _continuous(case, options, model, report)
    assert report is not None
    report.note(
        "A computed token counts if it is within its row's budget; a fixed batch goes on until its longest row is full."
    )
    report.finish(options)


def _continuous(case: Case, options: Options, model: PreTrainedModel, report: Report) -> None:
    """Add transformers' continuous batching on a share of the first case."""
    small = replace(case, groups=max(1, case.groups // 4))
    work = draw(small, model.config.vocab_size, seed=1)
    sides = {
        "engine": engine_side(model, work, small.slots),
        "transformers, continuous": continuous_side(model, work, small.slots),
    }
    timed = by_turns(sides, replace(options, repeats=min(options.repeats, 2)), warm=0)
    rows: list[list[Any]] = [
        [n, spread(t.rate() for t in turns), spread(t.seconds for t in turns)] for n, turns in timed.items()
    ]
    rows.append(["engine over transformers", quotient(*timed.values()), None])
    report.table(f"continuous batching on both sides: {small.title}", ["side", "tokens/s", "seconds"], rows)


if __name__ == "__main__":
    main()
