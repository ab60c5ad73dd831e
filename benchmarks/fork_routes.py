"""How fast the runs of a comparison on the recipe `fork` learn to take the right route.

    python -m benchmarks.fork_routes NAME=FOLDER     take the rollouts of a finished `skpo compare` in, under a name

docs/results/NAME/routes.jsonl then holds, for each run and step, how many of the texts that were sampled from the problem alone
(GRPO's responses, all of SKPO's segments) are on the right route; `routes_table` and `routes_plot` show it.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from skpo.analysis.output import COLOURS, draw
from skpo.chain_base import chain_tokenizer
from skpo.compare.statistics import interval
from skpo.problems.fork import Fork
from skpo.trainer.metrics import read_metrics
from skpo.trainer.rollout_log import read_rollouts

if TYPE_CHECKING:
    from matplotlib.axes import Axes

STORE = Path(__file__).parent.parent / "docs" / "results"
PARTS = 5


def take_in(name: str, folder: Path) -> Path:
    """Count the right routes in all rollouts of a comparison."""
    variants = json.loads((folder / "comparison.json").read_text())["variants"]
    lines = []
    for path in sorted(folder.glob("*/seed-*/compared.json")):
        run = {"variant": variants[path.parent.parent.name], "seed": int(path.parent.name.removeprefix("seed-"))}
        lines += [json.dumps(run | row) for row in count(path.parent)]
    target = STORE / name / "routes.jsonl"
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_text("\n".join(lines) + "\n")
    return target


def count(run: Path) -> list[dict[str, Any]]:
    """For each step of a run: texts sampled from the problem alone, and those on the right route; the same for those trained on."""
    table, names = Fork().table, chain_tokenizer()
    tokens = {r["step"]: r["tokens_generated_total"] for r in read_metrics(run) if "tokens_generated_total" in r}
    rows = read_rollouts(run).select(["step", "role", "chosen", "prompt", "tokens"]).to_pylist()
    first = "segment" if any(r["role"] == "segment" for r in rows) else "completion"
    found: dict[int, dict[str, Any]] = {}
    for row in rows:
        if row["role"] != first or not row["tokens"]:
            continue
        right = names.convert_ids_to_tokens(row["tokens"][0]) == table[row["prompt"][-1]]
        step = found.setdefault(row["step"], {"sampled": 0, "right": 0, "trained": 0, "trained_right": 0})
        step["sampled"] += 1
        step["right"] += right
        step["trained"] += row["chosen"]
        step["trained_right"] += right and row["chosen"]
    return [
        {"step": step, "tokens": tokens[step], **counts} for step, counts in sorted(found.items()) if step in tokens
    ]


def shares(name: str) -> tuple[int, dict[str, dict[int, list[tuple[float, float]]]]]:
    """The budget, and each variant's and seed's (tokens, share on the right route), in the file's order."""
    runs: dict[str, dict[int, list[tuple[float, float]]]] = {}
    for line in (STORE / name / "routes.jsonl").read_text().splitlines():
        row = json.loads(line)
        runs.setdefault(row["variant"], {}).setdefault(row["seed"], []).append(
            (row["tokens"], row["right"] / row["sampled"])
        )
    return json.loads((STORE / name / "settings.json").read_text())["tokens"], runs


def parts(budget: int, curve: Sequence[tuple[float, float]]) -> list[float]:
    """Mean share within each fifth of the budget; NaN for one without a step."""
    place = [min(PARTS - 1, int(PARTS * tokens / budget)) for tokens, _ in curve]
    return [
        float(np.mean([s for (_, s), p in zip(curve, place, strict=True) if p == i] or [np.nan])) for i in range(PARTS)
    ]


def routes_table(name: str) -> str:
    """Share on the right route by fifths of the token budget, mean and 95 % half-width over seeds."""
    budget, runs = shares(name)
    heads = [f"{100 * i // PARTS} to {100 * (i + 1) // PARTS} %" for i in range(PARTS)]
    lines = [f"| algorithm | {' | '.join(heads)} |", "|---" * (PARTS + 1) + "|"]
    for variant, seeds in runs.items():
        each = np.array([parts(budget, curve) for curve in seeds.values()])  # [seeds, parts]
        lines.append(f"| {variant} | {' | '.join(str(interval(list(column))) for column in each.T)} |")
    return "\n".join(lines)


def routes_plot(name: str) -> str:
    """Draw every run; returns the link."""

    def panel(axes: Axes) -> None:
        for colour, (variant, seeds) in zip(COLOURS, shares(name)[1].items(), strict=False):
            for i, curve in enumerate(seeds.values()):
                x, y = np.array(curve).T
                axes.plot(x / 1000, y, color=colour, alpha=0.8, linewidth=1.2, label=variant if i == 0 else None)
        axes.set(
            title="Right route, of what is sampled from the problem", xlabel="generated tokens, thousands", ylim=(0, 1)
        )
        axes.legend(loc="lower right")

    draw(STORE / name / "routes.png", [panel], f"{name}: the early decision", columns=1, size=(7, 4.2))
    return f"![{name}: share of samples on the right route against generated tokens](results/{name}/routes.png)"


def main() -> None:
    for word in sys.argv[1:]:
        name, _, folder = word.partition("=")
        print(f"wrote {take_in(name, Path(folder))}")


if __name__ == "__main__":
    main()
