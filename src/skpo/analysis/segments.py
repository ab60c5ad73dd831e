"""Is the segment used? Accuracy behind segments of several kinds, and how far R_I depends on the segment [ours].

For each problem: K plain completions, then a stop position as SKPO draws it (arXiv 2604.08690, section 3.1), S segments of the
problem and two of another one, each cut there, and K completions from every skip connection `[s, q]`. R_I of a segment is the
mean of its K rewards 2 [correct] - 1. Its variance over the segments of one problem holds what the segments differ by and
the sampling noise of K verdicts, 4 p (1 - p) / (K - 1); the rest is `signal`, as in `upstream_weight: reliability`.

Where the problem has a column `solution`, a segment that the solution begins with counts as right, any other as wrong. Problems of
`builtin:fork` also tell which route a segment and a completion are on.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from skpo.analysis.lab import Lab, Records, Told
from skpo.errors import ProblemError
from skpo.problems.base import Problem
from skpo.problems.fork import Fork
from skpo.rollout.plans import cut_segment, draw_stop
from skpo.rollout.types import Group, Plan, Request

FOREIGN = 2  #: segments of another problem
ROWS = ("none", "own", "right", "wrong", "foreign", "right choice", "wrong choice")


def segments_plan(problem: Problem, other: Problem, lab: Lab, segments: int, continuations: int) -> Plan:
    """Plain completions, segments of `problem` and of `other`, completions from each; all are verified, marked in their `info`."""
    context = lab.context(continuations, problem.id)
    prompt = lab.renderer.prompt_ids(problem)
    plain = yield Request(prompt, continuations, lab.max_tokens, lab.sampling)
    for sample in plain:
        sample.info |= {"verify": True, "from": -1}
    length = float(np.mean([len(s) for s in plain]))
    stop = min(draw_stop(length, 1 / 6, 1 / 2, context.rng), lab.max_tokens)
    own, foreign = yield [
        Request(prompt, segments, stop, lab.sampling),
        Request(lab.renderer.prompt_ids(other), FOREIGN, stop, lab.sampling),
    ]
    cuts = [cut_segment(s) for s in [*own, *foreign]]
    contexts = [lab.renderer.skip_ids(problem, c.tokens.tolist()) for c in cuts]
    answers = yield [Request(c, continuations, lab.room(c), lab.sampling) for c in contexts]
    for number, (cut, samples) in enumerate(zip(cuts, answers, strict=True)):
        cut.info |= {"number": number, "foreign": number >= segments}
        for sample in samples:
            sample.info |= {"verify": True, "from": number}
    return Group(problem, [], [*plain, *cuts, *(s for samples in answers for s in samples)])


def record_of(group: Group, decode: Callable[[Sequence[int]], str]) -> dict[str, Any]:
    """What is kept of a problem: verdicts of the plain completions, and of those behind each segment."""
    choice_of, solution = chooser(group.problem), group.problem.columns.get("solution")
    made: dict[int, list[Any]] = {}
    for sample in group.unused:
        if "from" in sample.info:
            made.setdefault(sample.info["from"], []).append(sample)
    found = []
    for cut in (s for s in group.unused if "number" in s.info):
        text, samples = decode(cut.tokens.tolist()), made[cut.info["number"]]
        choice, choices = choice_of(text), [choice_of(s.text) for s in samples]
        found.append(
            {
                "text": text,
                "foreign": cut.info["foreign"],
                "right": None if solution is None else str(solution).startswith(text),
                "right_choice": None if choice is None else choice == choice_of(str(solution)),
                "same_choice": None if choice is None else [c == choice for c in choices if c is not None],
                "correct": [s.correct for s in samples],
                "length": float(np.mean([len(s) for s in samples])),
            }
        )
    plain = made[-1]
    chosen = [choice_of(s.text) == choice_of(str(solution)) for s in plain if choice_of(s.text) is not None]
    return {"plain": [s.correct for s in plain], "plain_choice": chosen or None, "segments": found}


def chooser(problem: Problem) -> Callable[[str], str | None]:
    """What tells the route of a text that begins a response to this problem; nothing where the problem has no routes."""
    try:
        Fork.parse(problem.text)
    except ProblemError:
        return lambda text: None
    return lambda text: Fork.chosen(problem.text, text)


def sample_segments(
    lab: Lab, problems: Sequence[Problem], records: Records, *, segments: int, continuations: int, tell: Told
) -> None:
    """Sample every problem that `records` doesn't hold; the next problem in the list lends it its foreign segments."""
    after = [*problems[1:], problems[0]]
    plans = {
        p.id: segments_plan(p, other, lab, segments, continuations)
        for p, other in zip(problems, after, strict=True)
        if p.id not in records
    }
    for done, (key, group) in enumerate(lab.run(plans), start=1):
        records.add(key, record_of(group, lab.renderer.decode))
        if done % 16 == 0 or done == len(plans):
            tell(f"{done} of {len(plans)} problems")


def summary(records: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Means over problems with their standard errors.

    accuracy: behind each kind of segment (`ROWS`; those with no case are left out), `share`: of the own segments. spread: variance
    of R_I between one problem's segments; noise: the part that K verdicts give; signal: max(0, 1 - noise / spread). length: tokens
    of a completion behind an own segment. same_choice: share of completions on the route of their own segment; right_choice:
    of plain completions on the right route.
    """
    own = [[s for s in r["segments"] if not s["foreign"]] for r in records]
    kinds: dict[str, list[list[Any]]] = {
        "none": [[{"correct": r["plain"]}] for r in records],
        "own": own,
        "right": [[s for s in some if s["right"]] for some in own],
        "wrong": [[s for s in some if s["right"] is False] for some in own],
        "foreign": [[s for s in r["segments"] if s["foreign"]] for r in records],
        "right choice": [[s for s in some if s["right_choice"]] for some in own],
        "wrong choice": [[s for s in some if s["right_choice"] is False] for some in own],
    }
    total = sum(map(len, own))
    accuracy = {}
    for kind in ROWS:
        values = [np.mean([np.mean(s["correct"]) for s in some]) for some in kinds[kind] if some]
        if values:
            share = sum(map(len, kinds[kind])) / total if kind not in ("none", "foreign") else None
            accuracy[kind] = {**_mean(values), "problems": len(values), "share": share}
    rates = [np.array([np.mean(s["correct"]) for s in some]) for some in own]
    n = len(records[0]["plain"])
    spread = _mean([float((2 * p - 1).var(ddof=1)) for p in rates])
    noise = _mean([float((4 * p * (1 - p) / (n - 1)).mean()) for p in rates])
    chosen = [np.mean(r["plain_choice"]) for r in records if r["plain_choice"]]
    same = [
        np.mean([x for s in some for x in s["same_choice"] or []])
        for some in own
        if any(s["same_choice"] for s in some)
    ]
    return {
        "problems": len(records),
        "accuracy": accuracy,
        "distinct_segments": _mean([len({s["text"] for s in some}) for some in own]),
        "length": _mean([np.mean([s["length"] for s in some]) for some in own]),
        "spread": spread,
        "noise": noise,
        "signal": max(0.0, 1 - noise["mean"] / spread["mean"]) if spread["mean"] > 0 else 0.0,
        "same_choice": _mean(same) if same else None,
        "right_choice": _mean(chosen) if chosen else None,
    }  # fmt: skip


def _mean(values: Sequence[Any]) -> dict[str, float]:
    """Mean and its standard error over problems."""
    x = np.array(values, dtype=np.float64)
    error = float(x.std(ddof=1) / np.sqrt(len(x))) if len(x) > 1 else float("nan")
    return {"mean": float(x.mean()), "stderr": error}


def table(result: dict[str, Any]) -> str:
    """The summary as Markdown, ± one standard error over problems."""
    lines = ["| segment | share of own | accuracy |", "|---|---|---|"]
    for kind, row in result["accuracy"].items():
        share = "" if row["share"] is None else f"{row['share']:.2f}"
        lines.append(f"| {kind} | {share} | {shown(row)} |")
    lines += [
        "",
        "| variance of R_I | sampling noise | signal | distinct segments | tokens of a completion |",
        "|---|---|---|---|---|",
    ]
    some = [result[name] for name in ("spread", "noise", "distinct_segments", "length")]
    lines.append(
        f"| {shown(some[0])} | {shown(some[1])} | {result['signal']:.2f} | {some[2]['mean']:.1f} | {some[3]['mean']:.1f} |"
    )
    if result["same_choice"]:
        lines += ["", f"completions on the route of their segment: {shown(result['same_choice'])}"]
    if result["right_choice"]:
        lines.append(f"plain completions on the right route: {shown(result['right_choice'])}")
    return "\n".join(lines)


def shown(value: dict[str, float]) -> str:
    return f"{value['mean']:.3f} ± {value['stderr']:.3f}"
