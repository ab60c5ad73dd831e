"""Numbers that describe one step's rollouts."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence

import numpy as np

from skpo.rollout.types import ANSWERS, Group


def rollout_metrics(groups: Sequence[Group]) -> dict[str, float]:
    """Reward, accuracy, pass@1, pass@G, advantage-zero rate and lengths of a step's groups (those trained on).

    accuracy: share of fully correct completions over all; pass_at_1 / pass_at_g: mean over problems of the share correct, and
    of whether any is. advantage_zero_rate: see `zero_rate`.
    """
    answers = [[s for s in g.samples if s.role in ANSWERS] for g in groups]
    filled = [a for a in answers if a]
    if not filled:
        return {}
    flat = [s for a in filled for s in a]
    out = {
        "reward_mean": float(np.mean([s.reward for s in flat])),
        "accuracy": float(np.mean([s.correct for s in flat])),
        "pass_at_1": float(np.mean([np.mean([s.correct for s in a]) for a in filled])),
        "pass_at_g": float(np.mean([any(s.correct for s in a) for a in filled])),
        "advantage_zero_rate": zero_rate(groups),
        "completion_length": float(np.mean([len(s) for s in flat])),
        "completion_length_max": float(max(len(s) for s in flat)),
        "finished_rate": float(np.mean([s.finished for s in flat])),
    }
    segments = [s for g in groups for s in g.segments]
    if segments:
        out["segment_length"] = float(np.mean([len(s) for s in segments]))
        out["segment_reward"] = float(np.mean([s.reward for s in segments]))
        out["segment_baseline"] = float(np.mean([s.baseline for s in segments]))
    for key, name in (("stop_position", "stop_position"), ("split", "split_position"), ("chosen_rank", "chosen_rank")):
        values = [g.info[key] for g in groups if key in g.info]
        if values:
            out[name] = float(np.mean(values))
    return out


def zero_rate(groups: Sequence[Group]) -> float:
    """Share of groups whose completions (refinements included) all have the same reward: no group-relative gradient.

    Where a problem's completions are compared within branches (`info["subgroup"]`), every branch is a group of its own.
    """
    rewards: dict[tuple[int, object], list[float]] = {}
    for i, group in enumerate(groups):
        for sample in group.samples:
            if sample.role in ANSWERS:
                rewards.setdefault((i, sample.info.get("subgroup")), []).append(sample.reward)
    flags = [max(r) - min(r) == 0 for r in rewards.values()]
    return float(np.mean(flags)) if flags else 0.0


def failure_counts(groups: Sequence[Group]) -> dict[str, int]:
    """Verifier failures by kind (timeout, crash, exception, memory, bad_value)."""
    kinds: Callable[[Group], list[str]] = lambda g: [  # noqa: E731
        s.info["verify_failure"] for s in [*g.samples, *g.unused] if "verify_failure" in s.info
    ]
    return dict(Counter(kind for group in groups for kind in kinds(group)))
