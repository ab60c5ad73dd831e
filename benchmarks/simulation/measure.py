"""Takes the measurements on this machine: engine speeds by replaying made-up plans, the rest from short real runs."""

from __future__ import annotations

import random
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from statistics import fmean, median
from typing import TYPE_CHECKING, Any
from unittest.mock import patch

import numpy as np

from benchmarks.common import Options, machine
from benchmarks.simulation.fit import Timed, counted, fit
from benchmarks.simulation.pool import simulate, trained_tokens
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
        for rows, context, group in (
            (32, 28, 1),
            (64, 28, 1),
            (128, 28, 2),
            (64, 60, 2),
            (96, 60, 3),
        ):  # fewer rows to a context
            yield even(rows, 40, context, group), 256
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
        if name == "chain":
            yield staggered(count, low, high, seed, 3), slots


def staggered(count: int, low: int, high: int, seed: int, group: int = 8) -> list[Task]:
    """Plans of two stages whose rows end at different times."""
    draw = random.Random(seed)

    def lengths(most: int) -> tuple[int, ...]:
        return tuple(draw.randint(low, max(low, most)) for _ in range(group))

    return [(Stage(28, lengths(high // 3)), Stage(60, lengths(high))) for _ in range(count)]


def model_of(name: str) -> nn.Module:
    """The chain recipe's model, or one of `benchmarks.models` with random weights. Every token is as likely as any other, near
    enough, so that rows part at once and each is computed."""
    if name == "chain":
        import torch

        from skpo.policy.loading import load_policy
        from skpo.settings import load_config

        model: Any = load_policy(load_config(RECIPE).model).model.eval()
        with torch.no_grad():
            model.lm_head.weight.zero_()
        return model
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
            assert (work.rows, work.tokens) == (stats.rows, stats.generated_tokens)
            assert (
                abs(work.steps - stats.steps) <= 0.01 * work.steps
            )  # plans whose rows end in one step queue in either order
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


class Pace:
    """How fast the machine is just now: seconds of a fixed piece of an engine's work, the median of a few. A virtual machine's speed
    changes by a fifth from one minute to the next, so what is measured at different times is held against this.

    `with pace:` takes it before and after what is within; `seconds` is the mean of the two.
    """

    seconds: float

    def __init__(self) -> None:
        self._model = model_of("chain")
        self._vocabulary = vocabulary_of(self._model)
        self._before = 0.0
        self._now(1)

    def __enter__(self) -> Pace:
        self._before = self._now()
        return self

    def __exit__(self, *exception: object) -> None:
        self.seconds = (self._before + self._now()) / 2

    def _now(self, repeats: int = 5) -> float:
        tasks = even(128, 40, 28)
        return median(replay(engine(self._model, 256), tasks, self._vocabulary)[0] for _ in range(repeats))


def train(algorithm: str, steps: int, out: Path, seed: int = 0, *more: str, clock: str = "wall") -> Path:
    """A short real run of the chain recipe without evaluation, in `out`; returns the folder.

    clock: "cpu" writes this process's CPU seconds into its metrics, which others on the machine hardly move.
    """
    from skpo import Trainer, load_config

    settings = [f"algorithm={algorithm}"] if algorithm != "skpo" else []
    settings += ["problems.heldout=null", "checkpoint.every=0", f"steps={steps}", f"seed={seed}", f"out={out}", *more]
    with patch("time.perf_counter", time.process_time if clock == "cpu" else time.perf_counter):
        Trainer(load_config(RECIPE, settings), quiet=True).train()
    return out


def records(folder: Path) -> dict[int, dict[str, Any]]:
    """step -> its metrics; the first step, in which everything starts, is left out."""
    from skpo.trainer.metrics import read_metrics

    return {r["step"]: r for r in read_metrics(folder) if r["step"] > 1}


def step_profile(folders: dict[str, Path]) -> StepProfile:
    """The rest of a step, from real runs in one process: training by token, all else; and what plans and verdicts cost."""
    seconds, trained, other = 0.0, 0, []
    for folder in folders.values():
        tasks = measured_tasks(folder)
        for step, record in records(folder).items():
            seconds += record["seconds_train"]
            trained += sum(map(trained_tokens, tasks[step]))
            other.append(record["seconds_other"])
    return StepProfile(plan_seconds(), verify_seconds(), 0.0, seconds / trained, fmean(other))


def in_a_run(profile: Profile, folders: dict[str, Path]) -> float:
    """How much longer rollouts of real runs take than the model makes of the very same groups: between updates an engine finds its
    memory cold, and verifiers beside it."""
    cluster = profile.cluster("chain", weights=0.0, local=True)
    measured = predicted = 0.0
    for folder in folders.values():
        tasks = measured_tasks(folder)
        for step, record in records(folder).items():
            measured += record["seconds_rollout"]
            predicted += simulate(tasks[step], cluster).rollout
    return measured / predicted


def plan_seconds(plans: int = 64, group: int = 8, length: int = 60) -> float:
    """CPU seconds of the trainer's process for a finished plan: texts of its samples, and their way to the verifiers."""
    from skpo.policy.loading import load_policy
    from skpo.policy.prompts import PromptRenderer
    from skpo.problems import load_problems
    from skpo.rollout.types import Group, Sample
    from skpo.settings import load_config
    from skpo.trainer.judge import Judge
    from skpo.verifiers.pool import VerifierPool

    config = load_config(RECIPE)
    policy = load_policy(config.model)
    renderer = PromptRenderer(policy.tokenizer, config.model, policy.chat)
    problem = load_problems(config.problems.train)[0]
    tokens, logp = np.full(length, renderer.prompt_ids(problem)[-1]), np.zeros(length, np.float32)
    with VerifierPool(workers=1) as pool:
        judge = Judge(pool, renderer.decode, config.problems.verifier)
        begin = time.process_time()
        for _ in range(plans):
            judge.submit(Group(problem, [Sample((), tokens, logp, True) for _ in range(group)]))
        spent = time.process_time() - begin
        judge.finish()
    return spent / plans


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
    engines: Sequence[str], steps: int, options: Options, given: dict[str, Path], old: Profile | None
) -> Profile:
    """A profile of this machine. given: algorithm -> folder of a finished chain run; what is missing is run for `steps` steps.

    Engines are timed on CPU time, real runs on the options' clock. `old` keeps its engines that are not measured again.
    """
    profile, pace = Profile(dict(old.engines), facts=dict(old.facts)) if old else Profile(), Pace()
    for name in engines:
        with pace:
            profile.engines[name] = engine_profile(name, options.repeats, options.quick)
        if name == "chain":
            profile.facts["pace"] = pace.seconds
    with tempfile.TemporaryDirectory() as temporary:
        here = Path(temporary)
        with pace:
            folders = {
                name: given.get(name) or train(name, steps, here / name, clock=options.clock)
                for name in ("skpo", "grpo")
            }
        slower = pace.seconds / profile.facts.setdefault("pace", pace.seconds)
        for name, folder in folders.items():
            groups = [task for step, tasks in measured_tasks(folder).items() if step > 1 for task in tasks]
            kept = np.linspace(0, len(groups) - 1, min(len(groups), KEPT_GROUPS)).round().astype(int)
            profile.tasks[name] = [groups[i] for i in kept]
        profile.step = step_profile(folders)
        profile.step.train_token /= slower
        if "chain" in engines:
            factor = in_a_run(profile, folders) / slower
            profile.engines["chain"].speed = profile.engines["chain"].speed.scaled(factor)
            profile.facts["in_a_run"] = round(factor, 3)
    profile.facts |= {
        "machine": machine(), "date": time.strftime("%Y-%m-%d"), "steps": steps, "repeats": options.repeats,
        "clock": options.clock,
    }  # fmt: skip
    return profile
