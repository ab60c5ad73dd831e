"""What a hard prefix does to sampling, against the skip connection (SKPO, arXiv 2604.08690, figure 3, section 4.1).

For each problem: one complete response; at six positions from 1/6 to 1/2 of its length its segment s; G rollouts from
q (unconditional), q + s (continual) and [s, q] (skip). Diversity is the mean number of distinct final answers of the G,
compared in the verifier's normal form, where "no answer" is one value [ours]; the advantage-zero rate is the share of problems whose
G outcomes are all equal; lengths are in tokens, without what was conditioned on.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from skpo.analysis.lab import Lab, Records, Told
from skpo.analysis.output import COLOURS, draw, write_csv, write_json
from skpo.errors import ConfigError
from skpo.problems.base import Problem
from skpo.rollout.types import Group, Plan, Request, Sample

if TYPE_CHECKING:
    from matplotlib.axes import Axes

CONDITIONS = ("unconditional", "continual", "skip")
MEASURES = {
    "diversity": "distinct answers",
    "zero_rate": "share of problems",
    "length": "tokens",
    "accuracy": "share correct",
}
TITLES = {
    "diversity": "Answer diversity",
    "zero_rate": "Advantage-zero rate",
    "length": "Response length",
    "accuracy": "Accuracy",
}


def cut_positions(count: int = 6, low: float = 1 / 6, high: float = 1 / 2) -> list[float]:
    """`count` positions evenly from 1/6 to 1/2, both included (SKPO section 4.1)."""
    if count < 2:
        raise ConfigError(f"positions {count}: at least 2 are needed, 1/6 and 1/2")
    return [low + (high - low) * i / (count - 1) for i in range(count)]


def segment_of(response: Sample, position: float) -> tuple[int, ...]:
    """The first tokens of a response, up to a relative position of its own length; at least one where there is one.

    Its end-of-sequence token counts neither as length nor as part of the segment.
    """
    tokens = response.tokens.tolist()[: len(response) - int(response.finished)]
    return tuple(tokens[: max(1, round(position * len(tokens)))])


def shortcut_plan(problem: Problem, lab: Lab, n: int, positions: Sequence[float]) -> Plan:
    """One complete response, then `n` rollouts under each condition and position, all at once, marked in their `info`.

    A rollout that the model has no positions for is not made.
    """
    prompt = lab.renderer.prompt_ids(problem)
    response = (yield Request(prompt, 1, lab.max_tokens, lab.sampling))[0]
    asked: list[tuple[str, int, tuple[int, ...], tuple[int, ...]]] = [("unconditional", 0, (), prompt)]
    for number, position in enumerate(positions):
        segment = segment_of(response, position)
        asked.append(("continual", number, segment, lab.renderer.continual_ids(problem, segment)))
        asked.append(("skip", number, (), lab.renderer.skip_ids(problem, segment)))
    asked = [a for a in asked if lab.room(a[3]) > 0]
    rollouts: list[Sample] = []
    answers = yield [Request(context, n, lab.room(context), lab.sampling) for *_, context in asked]
    for (condition, number, prefix, _), samples in zip(asked, answers, strict=True):
        for sample in samples:
            sample.prefix = prefix
            sample.info |= {"verify": True, "condition": condition, "position": number}
        rollouts += samples
    return Group(problem, [response], rollouts)


def record_of(group: Group, default: str, positions: int) -> dict[str, Any]:
    """What is kept of a problem: for each condition and position [distinct answers, correct, mean length, rollouts].

    The unconditional ones, which depend on no position, stand for all. Raises ConfigError for answers that can't be compared.
    """
    from skpo.evaluation.votes import labels
    from skpo.verifiers import make

    verifier = make(group.problem.verifier or default)
    found: dict[str, list[list[float]]] = {condition: [] for condition in CONDITIONS}
    for condition in CONDITIONS:
        for number in range(1 if condition == "unconditional" else positions):
            some = [
                s for s in group.unused if s.info.get("condition") == condition and s.info.get("position") == number
            ]
            if not some:
                continue
            named = labels(verifier, [s.text for s in some], [s.correct for s in some])
            if named is None:
                raise ConfigError(f"verifier {verifier.name}: its answers can't be compared, so there is no diversity")
            row = [len(set(named)), sum(s.correct for s in some), float(np.mean([len(s) for s in some])), len(some)]
            found[condition].append([float(x) for x in row])
    response = group.samples[0]
    return {"response": len(response), "correct": response.correct, **found}


def sample_shortcuts(
    lab: Lab, problems: Sequence[Problem], records: Records, *, n: int, positions: Sequence[float], tell: Told
) -> None:
    """Sample every problem that `records` doesn't hold."""
    plans = {p.id: shortcut_plan(p, lab, n, positions) for p in problems if p.id not in records}
    for done, (key, group) in enumerate(lab.run(plans), start=1):
        records.add(key, record_of(group, lab.judge.verifier, len(positions)))
        if done % 8 == 0 or done == len(plans):
            tell(f"{done} of {len(plans)} problems")


def summary(records: Sequence[dict[str, Any]], positions: Sequence[float]) -> list[dict[str, Any]]:
    """A row per condition and position: each measure, its standard error over problems, and the difference from unconditional.

    Differences are paired: their standard errors are those of the mean difference within problems.
    """
    rows = []
    plain = _measures([r["unconditional"][0] for r in records])
    for condition in CONDITIONS:
        for number, position in enumerate(positions):
            place = 0 if condition == "unconditional" else number
            kept = [i for i, r in enumerate(records) if len(r[condition]) > place]
            values = _measures([records[i][condition][place] for i in kept])
            row: dict[str, Any] = {"condition": condition, "position": position, "problems": len(kept)}
            for name in MEASURES:
                difference = values[name] - plain[name][kept]
                row[name], row[f"{name}_stderr"] = _mean(values[name])
                row[f"{name}_change"], row[f"{name}_change_stderr"] = _mean(difference)
            rows.append(row)
    return rows


def _measures(rows: Sequence[Sequence[float]]) -> dict[str, np.ndarray]:
    """Each measure [problems] of [distinct, correct, length, rollouts] rows."""
    table = np.array(rows, dtype=np.float64).reshape(-1, 4)
    distinct, correct, length, made = table.T
    zero = (correct == 0) | (correct == made)
    return {"diversity": distinct, "zero_rate": zero.astype(float), "length": length, "accuracy": correct / made}


def _mean(values: np.ndarray) -> tuple[float | None, float | None]:
    if len(values) == 0:
        return None, None
    error = float(values.std(ddof=1) / np.sqrt(len(values))) if len(values) > 1 else None
    return float(values.mean()), error


def shortcut_figure(out: Path, rows: Sequence[dict[str, Any]], settings: dict[str, Any]) -> list[Path]:
    """Draw figure 3; writes PNG, CSV and JSON into `out`. Bands are one standard error over problems."""
    count = max(r["problems"] for r in rows)
    title = (
        f"Three ways to condition on a segment: {settings['name']}, {count} problems, {settings['group']} rollouts each"
    )
    panels = [lambda axes, m=m: _panel(axes, rows, m) for m in MEASURES]
    return [
        draw(out / "analysis-shortcut.png", panels, title, columns=4, size=(14, 3.9)),
        write_csv(out / "analysis-shortcut.csv", rows),
        write_json(out / "analysis-shortcut.json", {"settings": settings, "rows": rows}),
    ]


def _panel(axes: Axes, rows: Sequence[dict[str, Any]], measure: str) -> None:
    for condition, x, y, e in _lines(rows, measure):
        colour = dict(zip(CONDITIONS, (COLOURS[7], COLOURS[1], COLOURS[0]), strict=True))[condition]
        axes.fill_between(x, y - e, y + e, color=colour, alpha=0.18, linewidth=0)
        axes.plot(x, y, color=colour, label=condition, marker="o", markersize=3.5)
    axes.set(title=TITLES[measure], xlabel="segment, share of the response", ylabel=MEASURES[measure])
    axes.set_xticks([1 / 6, 1 / 3, 1 / 2], ["1/6", "1/3", "1/2"])
    axes.set_ylim(bottom=0)
    if measure == "diversity":
        axes.legend(loc="lower left")


def _lines(rows: Sequence[dict[str, Any]], measure: str) -> Iterator[tuple[str, np.ndarray, np.ndarray, np.ndarray]]:
    for condition in CONDITIONS:
        mine = [r for r in rows if r["condition"] == condition and r[measure] is not None]
        error = np.array([r[f"{measure}_stderr"] or 0.0 for r in mine])
        yield condition, np.array([r["position"] for r in mine]), np.array([r[measure] for r in mine]), error
