"""How a step's time grows with group size, problems per step and response length.

Whole steps (rollout, verify, train) of GRPO with this library's trainer on a model of 4 M parameters, where one of the three
sizes varies and the others stay. Sequences end at their budget, so that the numbers of tokens are what the sizes say. The
exponent k of time ~ size^k is fitted by least squares on logarithms: 1 is proportional, less means that larger batches are
used better. The headline is the exponent of response length.
"""

from __future__ import annotations

import tempfile
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from benchmarks.common import Options, Report, Spread, Turn, by_turns, exponent, number, parse, spread
from benchmarks.trainers import hush, skpo_run, word_model, word_problems

SWEEPS: dict[str, tuple[str, tuple[int, ...]]] = {
    "group size": ("group_size", (2, 4, 8, 16)),
    "problems per step": ("problems_per_step", (1, 2, 4, 8)),
    "response length": ("rollout.max_completion_tokens", (32, 64, 128, 256)),
}
FIXED = {"group_size": 8, "problems_per_step": 2, "rollout.max_completion_tokens": 64}
QUICK = {"group_size": 2, "problems_per_step": 1, "rollout.max_completion_tokens": 16}
PROMPT = 64  # words


def sweep(key: str, sizes: tuple[int, ...], options: Options) -> dict[int, list[Turn]]:
    """Timed steps by size, by turns."""
    with tempfile.TemporaryDirectory() as name, ExitStack() as stack:
        folder = Path(name)
        model = word_model(folder / "model")
        path = word_problems(folder / "problems.jsonl", 64, PROMPT)
        recipe = folder / "recipe.yaml"
        recipe.write_text(
            f"model: {{path: {model}}}\nproblems: {{train: {path}, verifier: 'python:benchmarks.trainers:last_word_even'}}\n"
        )
        runs = {}
        for size in sizes:
            given = (QUICK if options.quick else FIXED) | {key: size}
            overrides = [f"{k}={v}" for k, v in given.items()] + [
                "algorithm=grpo",
                "optimizer.lr=1e-6",
                f"out={folder / str(size)}",
            ]
            runs[str(size)] = stack.enter_context(skpo_run(str(recipe), overrides, options))
        return {int(size): turns for size, turns in by_turns(runs, options).items()}


def fitted(timed: dict[int, list[Turn]], part: str) -> tuple[float, float | None]:
    """Exponent and its standard error, over the medians of each size."""
    medians = [
        spread(t.seconds if part == "step" else t.counts[part] for t in turns).median for turns in timed.values()
    ]
    return exponent(list(timed), medians)


def main() -> None:
    options = parse(__doc__, repeats=3)
    hush()
    results: dict[str, dict[int, list[Turn]]] = {}
    for what, (key, sizes) in SWEEPS.items():
        results[what] = sweep(key, tuple(s // 2 for s in sizes[1:]) if options.quick else sizes, options)
    k, error = fitted(results["response length"], "step")
    band = Spread(k, k - (error or 0.0), k + (error or 0.0), 1 if error is None else len(results["response length"]))
    report = Report(
        "scaling", "exponent k of step time ~ response length^k, with its standard error as the range", band
    )
    fits = []
    for what, timed in results.items():
        rows: list[list[Any]] = []
        for size, turns in timed.items():
            parts = [spread(t.counts[p] for t in turns) for p in ("rollout", "train")]
            rows.append(
                [str(size), spread(t.counts["tokens"] for t in turns), spread(t.seconds for t in turns), *parts]
            )
        report.table(f"step time against {what}", [what, "tokens generated", "seconds", "rollout", "train"], rows)
        fits.append([what, *(_plus_minus(*fitted(timed, part)) for part in ("step", "rollout", "train"))])
    report.table("fitted exponents (standard error)", ["size", "step", "rollout", "train"], fits)
    report.settings |= {"fixed": QUICK if options.quick else FIXED, "prompt": PROMPT}
    report.finish(options)


def _plus_minus(k: float, error: float | None) -> str:
    return f"{k:.2f}" if error is None else f"{k:.2f} ({number(error)})"


if __name__ == "__main__":
    main()
