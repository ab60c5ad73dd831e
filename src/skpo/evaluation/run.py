"""The one path on which models are evaluated: by `skpo eval`, from Python, and during training."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from skpo.evaluation.result import Evaluation
from skpo.evaluation.store import Answered, SampleFile
from skpo.evaluation.votes import labels
from skpo.problems.base import Problem
from skpo.rollout.plans import PlanContext, group_plan
from skpo.rollout.types import Engine, Group, PlanRun, Sampling, derive_seed

if TYPE_CHECKING:
    from skpo.trainer.judge import Judge

Progress = Callable[[int, int], None]
"""Told (problems scored, problems in all)."""


def run_evaluation(
    engine: Engine, renderer: Any, judge: Judge, problems: Sequence[Problem], *, samples: int, sampling: Sampling, max_tokens: int,
    ks: Iterable[int] = (1,), seed: int = 0, name: str = "held-out", votes: bool = False, store: SampleFile | None = None,
    progress: Progress | None = None,
) -> Evaluation:  # fmt: skip
    """Sample and score every problem on an engine. Sample i of a problem has the same seed in every evaluation.

    votes: compare answers, for maj@k. store: problems that it holds are not sampled again; the others are added to it as
    soon as they are scored.
    """
    done = evaluated(
        engine, renderer, judge, problems,
        samples=samples, sampling=sampling, max_tokens=max_tokens, seed=seed, votes=votes, store=store, progress=progress,
    )  # fmt: skip
    return evaluation(name, samples, ks, problems, done)


def evaluated(
    engine: Engine, renderer: Any, judge: Judge, problems: Sequence[Problem], *, samples: int, sampling: Sampling, max_tokens: int,
    seed: int = 0, votes: bool = False, store: SampleFile | None = None, progress: Progress | None = None,
) -> dict[str, Answered]:  # fmt: skip
    """What `run_evaluation` judges: the answers to every problem, by its id."""
    context = PlanContext(renderer, samples, max_tokens, sampling)
    done = dict(store.done) if store else {}
    todo = [p for p in problems if p.id not in done]
    runs = [PlanRun(group_plan(p, context, samples), derive_seed(seed, "eval", p.id)) for p in todo]
    pending: list[Group] = []

    def settle() -> None:
        """Take the groups whose last verdict is in."""
        waiting = {id(sample) for sample in judge.waiting.values()}
        ready = [g for g in pending if not any(id(s) in waiting for s in g.samples)]
        pending[:] = [g for g in pending if not any(g is r for r in ready)]
        for group in ready:
            record = done[group.problem.id] = _record(group, votes, judge.verifier)
            if store:
                store.add(group, record)
        if ready and progress:
            progress(len(done), len(problems))

    for _, group in engine.run(runs):
        judge.submit(group)
        pending.append(group)
        if store or progress:
            settle()
    while judge.waiting:
        judge.wait()
        if store or progress:
            settle()
    settle()
    return done


def _record(group: Group, votes: bool, default: str) -> Answered:
    samples = group.samples
    found = None
    if votes:
        from skpo.verifiers import make

        verifier = make(group.problem.verifier or default)
        found = labels(verifier, [s.text for s in samples], [s.correct for s in samples])
    return Answered(
        id=group.problem.id,
        scores=[s.score for s in samples],
        lengths=[len(s) for s in samples],
        finished=[s.finished for s in samples],
        generated_tokens=group.generated_tokens,
        labels=found,
        failures=[s.info["verify_failure"] for s in samples if "verify_failure" in s.info],
    )


def evaluation(
    name: str, samples: int, ks: Iterable[int], problems: Sequence[Problem], answered: Mapping[str, Answered]
) -> Evaluation:
    """Figures of the answers to `problems`, in their order."""
    records = [answered[p.id] for p in problems]
    scores = {r.id: [score or 0.0 for score in r.scores] for r in records}
    return Evaluation(
        name=name,
        samples=samples,
        ks=tuple(k for k in ks if k <= samples) or (1,),
        scores=scores,
        correct={id: sum(score >= 1.0 - 1e-9 for score in found) for id, found in scores.items()},
        lengths=[length for r in records for length in r.lengths],
        generated_tokens=sum(r.generated_tokens for r in records),
        labels={r.id: r.labels for r in records if r.labels is not None},
        cut=sum(not finished for r in records for finished in r.finished),
        failures=dict(Counter(kind for r in records for kind in r.failures)),
    )
