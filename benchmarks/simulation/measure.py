"""Takes the measurements on this machine: engine speeds by replaying made-up plans, the rest from short real runs."""

from __future__ import annotations

import random
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any

import numpy as np

from benchmarks.common import machine
from benchmarks.simulation.fit import Timed, counted, fit, nonnegative
from benchmarks.simulation.pool import roll_out, trained_tokens
from benchmarks.simulation.profile import EngineProfile, Profile, StepProfile
from benchmarks.simulation.replay import engine, even, replay
from benchmarks.simulation.worker import Stage, Task
from benchmarks.simulation.workload import measured_tasks

if TYPE_CHECKING:
    from torch import nn

RECIPE = "recipes/chain.yaml"
KNOTS = {"chain": (1, 16, 64, 128, 256), "135M": (1, 8, 32, 64)}
KEPT_GROUPS = 160  #: measured groups of each algorithm that a profile keeps


def grid(name: str, quick: bool) -> Iterator[tuple[list[Task], int]]:
    """(plans, slots) of the runs that an engine's speed is fitted to: even lengths on every knot, and staggered ones."""
    if name == "chain":
        for context in (28, 100):
            for rows in KNOTS[name]:
                for length in (1, 40) if quick else (1, 40, 80):
                    yield even(rows, length, context), 256
        made = [(32, 1, 100, 256), (32, 1, 100, 64)]
        if not quick:
            made += [(32, 30, 74, 256), (8, 1, 100, 256), (24, 1, 200, 128), (32, 60, 100, 256), (16, 20, 60, 128)]
    else:
        for rows in KNOTS[name]:
            for length in (1, 12):
                yield even(rows, length, 32), 64
        yield even(8, 24, 256), 64
        made = [(2, 1, 12, 64)] if quick else [(4, 1, 48, 64), (1, 100, 200, 64)]
    for seed, (count, low, high, slots) in enumerate(made):
        yield staggered(count, low, high, seed), slots


def staggered(count: int, low: int, high: int, seed: int, group: int = 8) -> list[Task]:
    """Plans of two stages whose rows end at different times."""
    draw = random.Random(seed)

    def lengths(most: int) -> tuple[int, ...]:
        return tuple(draw.randint(low, max(low, most)) for _ in range(group))

    return [(Stage(28, lengths(high // 3)), Stage(60, lengths(high))) for _ in range(count)]


def model_of(name: str) -> nn.Module:
    """The chain recipe's model, or one of `benchmarks.models` with random weights."""
    if name == "chain":
        from skpo.policy.loading import load_policy
        from skpo.settings import load_config

        return load_policy(load_config(RECIPE).model).model.eval()
    from benchmarks.models import build

    return build(name)


def vocabulary_of(model: nn.Module) -> int:
    """Size of its vocabulary."""
    config: Any = model.config
    return int(config.vocab_size)


def engine_profile(name: str, repeats: int, quick: bool) -> EngineProfile:
    """Speed of the embedded engine with this model, on CPU time, medians of `repeats` rounds. Raises AssertionError if model and engine count differently."""
    model = model_of(name)
    vocabulary = vocabulary_of(model)
    replay(engine(model, 64), even(16, 4, 16), vocabulary)
    jobs = list(grid(name, quick))
    works = [counted(tasks, slots) for tasks, slots in jobs]
    seconds: list[list[float]] = [[] for _ in jobs]
    for _ in range(repeats):
        for (tasks, slots), work, times in zip(jobs, works, seconds, strict=True):
            taken, stats = replay(engine(model, slots), tasks, vocabulary)
            assert (work.steps, work.rows, work.tokens) == (stats.steps, stats.rows, stats.generated_tokens)
            work.prefill = (
                stats.prefill_tokens
            )  # forced lengths are requests of one row: a context may be computed twice
            times.append(taken)
    runs = [Timed(work, median(times)) for work, times in zip(works, seconds, strict=True)]
    speed, error = fit(runs, KNOTS[name])
    state = {k: v.clone() for k, v in model.state_dict().items()}
    begin = time.process_time()
    engine(model, 1).update_weights(state, 1)
    load = time.process_time() - begin
    parameters = sum(p.numel() for p in model.parameters())
    size = sum(p.numel() * p.element_size() for p in model.parameters())
    return EngineProfile(speed, error, len(runs), parameters, size, load)


def train(algorithm: str, steps: int, out: Path, seed: int = 0, *more: str) -> Path:
    """A short real run of the chain recipe without evaluation, in `out`; returns the folder."""
    from skpo import Trainer, load_config

    settings = [f"algorithm={algorithm}"] if algorithm != "skpo" else []
    settings += ["problems.heldout=null", "checkpoint.every=0", f"steps={steps}", f"seed={seed}", f"out={out}", *more]
    Trainer(load_config(RECIPE, settings), quiet=True).train()
    return out


def records(folder: Path) -> dict[int, dict[str, Any]]:
    """step -> its metrics; the first step, in which everything starts, is left out."""
    from skpo.trainer.metrics import read_metrics

    return {r["step"]: r for r in read_metrics(folder) if r["step"] > 1}


def step_profile(profile: Profile, folders: dict[str, Path]) -> StepProfile:
    """The rest of a step, from real runs in one process: what the engine's fitted speed leaves of rollouts, training by token."""
    cluster = profile.cluster("chain")
    plan, other, token_rows, seconds = [], [], [], []
    for folder in folders.values():
        tasks = measured_tasks(folder)
        for step, record in records(folder).items():
            plan.append((record["seconds_rollout"] - roll_out(tasks[step], cluster).seconds) / len(tasks[step]))
            other.append(record["seconds_other"])
            token_rows.append([1.0, sum(map(trained_tokens, tasks[step]))])
            seconds.append(record["seconds_train"])
    fixed, token = nonnegative(np.array(token_rows), np.array(seconds))
    return StepProfile(
        max(0.0, float(np.mean(plan))), verify_seconds(), float(fixed), float(token), float(np.mean(other))
    )


def verify_seconds(answers: int = 512) -> float:
    """Seconds that one verifier process takes for an answer of the chain recipe."""
    from skpo.problems import load_problems
    from skpo.settings import load_config
    from skpo.verifiers.pool import Job, VerifierPool

    config = load_config(RECIPE)
    problems = load_problems(config.problems.train)
    jobs = [
        Job(p.verifier or config.problems.verifier, f"{p.answer}", p.answer, dict(p.columns), p.prompt)
        for p in (problems * answers)[:answers]
    ]
    with VerifierPool(workers=1) as pool:
        pool.score_all(jobs)
        begin = time.perf_counter()
        pool.score_all(jobs)
        return (time.perf_counter() - begin) / answers


def measure(
    engines: Sequence[str], steps: int, repeats: int, quick: bool, given: dict[str, Path], old: Profile | None
) -> Profile:
    """A profile of this machine. given: algorithm -> folder of a finished chain run; what is missing is run for `steps` steps.

    `old` keeps its engines that are not measured again.
    """
    profile = Profile(engines=dict(old.engines) if old else {})
    for name in engines:
        profile.engines[name] = engine_profile(name, repeats, quick)
    with tempfile.TemporaryDirectory() as temporary:
        folders = {name: given.get(name) or train(name, steps, Path(temporary) / name) for name in ("skpo", "grpo")}
        for name, folder in folders.items():
            groups = [task for tasks in measured_tasks(folder).values() for task in tasks]
            every = max(1, len(groups) // KEPT_GROUPS)
            profile.tasks[name] = groups[::every][:KEPT_GROUPS]
        profile.step = step_profile(profile, folders)
    profile.facts = {"machine": machine(), "date": time.strftime("%Y-%m-%d"), "steps": steps}
    return profile
