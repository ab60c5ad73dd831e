"""Shows what `skpo analyze segments` found, out of docs/results/segments/.

python -m benchmarks.segment_use NAME=FOLDER ...     take finished analyses in, each under a name
"""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path
from typing import Any

STORE = Path(__file__).parent.parent / "docs" / "results" / "segments"
KINDS = {
    "none": "no segment",
    "own": "own",
    "right": "right",
    "wrong": "wrong",
    "right choice": "right route",
    "wrong choice": "wrong route",
    "foreign": "foreign",
}


def take_in(name: str, folder: Path) -> Path:
    """Copy what an analysis found."""
    STORE.mkdir(parents=True, exist_ok=True)
    return Path(shutil.copy(folder / "analysis-segments.json", STORE / f"{name}.json"))


def found(name: str) -> dict[str, Any]:
    return json.loads((STORE / f"{name}.json").read_text())  # type: ignore[no-any-return]


def accuracy_table(models: dict[str, str]) -> str:
    """Accuracy behind each kind of segment, for each model's title and name of its analysis; in brackets the share of segments."""
    results = {title: found(name)["accuracy"] for title, name in models.items()}
    kinds = [k for k in KINDS if any(k in r for r in results.values())]
    lines = [f"| model | {' | '.join(KINDS[k] for k in kinds)} |", "|---" * (len(kinds) + 1) + "|"]
    for title, rows in results.items():
        lines.append(f"| {title} | {' | '.join(_cell(rows.get(k)) for k in kinds)} |")
    return "\n".join(lines)


def spread_table(models: dict[str, str]) -> str:
    """How far R_I depends on the segment, for the same models."""
    heads = ("variance of R_I", "sampling noise", "signal", "distinct segments of 8", "tokens of a completion")
    lines = [f"| model | {' | '.join(heads)} |", "|---" * (len(heads) + 1) + "|"]
    for title, name in models.items():
        r = found(name)
        cells = [
            _cell(r["spread"]),
            _cell(r["noise"]),
            f"{r['signal']:.2f}",
            f"{r['distinct_segments']['mean']:.1f}",
            f"{r['length']['mean']:.1f}",
        ]
        lines.append(f"| {title} | {' | '.join(cells)} |")
    return "\n".join(lines)


def signal(name: str) -> str:
    """Share of the variance of R_I between one problem's segments that is no sampling noise."""
    return f"{found(name)['signal']:.2f}"


def _cell(row: dict[str, Any] | None) -> str:
    if row is None:
        return "-"
    share = f" ({row['share']:.0%})" if row.get("share") not in (None, 1.0) else ""
    return f"{row['mean']:.3f} ± {row['stderr']:.3f}{share}"


def main() -> None:
    for word in sys.argv[1:]:
        name, _, folder = word.partition("=")
        print(f"wrote {take_in(name, Path(folder))}")


if __name__ == "__main__":
    main()
