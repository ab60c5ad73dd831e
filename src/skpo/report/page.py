"""One HTML file: the page's own HTML, CSS and JavaScript, and the packed data."""

from __future__ import annotations

import base64
import hashlib
import html
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib.resources import files
from pathlib import Path
from typing import Any

import numpy as np

from skpo.errors import RunError
from skpo.report.catalogue import SECTIONS, in_order
from skpo.report.differences import CONFIG, read_settings, table
from skpo.report.history import History, evaluations, history
from skpo.report.pack import pack
from skpo.report.rollouts import Rollouts
from skpo.trainer.metrics import FILE as METRICS
from skpo.trainer.metrics import read_metrics, write_atomically
from skpo.trainer.rollout_log import FOLDER as ROLLOUTS

FILE = "report.html"
MOST_BYTES = 18_000_000  #: of the file, nearly: texts of rollouts are left out above it
SCRIPTS = (
    "dom", "data", "text", "chart", "overview", "curves", "settings", "list", "tokens", "detail", "keys", "main",
)  # fmt: skip


@dataclass(frozen=True)
class Report:
    """A written report: its path, its size, how long it took, and rollouts in all and with texts."""

    path: Path
    size: int
    seconds: float
    rollouts: int
    with_text: int

    def __str__(self) -> str:
        texts = "" if self.with_text == self.rollouts else f", texts of {self.with_text:,}"
        return f"{self.path} ({self.size / 1e6:.1f} MB; {self.rollouts:,} rollouts{texts})"


def write_report(runs: Sequence[Path | str], out: Path | str | None = None, *, most_bytes: int = MOST_BYTES) -> Report:
    """Write the report of one run or several; returns what was written.

    runs: run folders, or folders of runs. out: the file; None: `report.html` in the run's folder, or, of several runs, here.
    most_bytes: about how large the file may get; texts of rollouts are left out above it, by the rule of `skpo.report.choose`, which
    the page tells. Raises RunError for a folder without a run.
    """
    begin = time.perf_counter()
    folders = find_runs(runs)
    path = Path(out) if out is not None else (folders[0] / FILE if len(folders) == 1 else Path(FILE))
    histories = [history(read_metrics(folder)) for folder in folders]
    settings = [read_settings(folder) for folder in folders]
    names = run_names(folders)
    static = {name: _static(name) for name in ("page.html", "style.css")}
    script = "\n".join(_static(f"{name}.js") for name in SCRIPTS)
    fixed = len(script) + sum(map(len, static.values())) + sum(8 * len(h) * len(h.values) for h in histories)
    rollouts = Rollouts(folders, most_bytes - fixed)
    described = [
        {"name": name, **_facts(h, s), "rollouts": r.account()}
        for name, h, s, r in zip(names, histories, settings, rollouts.runs, strict=True)
    ]
    payloads = {"data-main": _main(described, histories, settings, rollouts), "data-rollouts": rollouts.index()}
    for i, run in enumerate(rollouts.runs):
        payloads |= {f"data-block-{i}-{j}": block.packed for j, block in enumerate(run.blocks)}
    text = _assemble(static["page.html"], static["style.css"], script, " · ".join(names), payloads)
    path.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(path, text.encode())
    account = [d["rollouts"] for d in described]
    return Report(
        path,
        len(text.encode()),
        time.perf_counter() - begin,
        sum(a["rollouts"] for a in account),
        sum(a["text_rollouts"] for a in account),
    )


def find_runs(given: Sequence[Path | str]) -> list[Path]:
    """Run folders: each of the given ones, or the runs up to two levels below it. Raises RunError where there are none."""
    found: list[Path] = []
    for folder in map(Path, given):
        if not folder.is_dir():
            raise RunError(f"{folder}: no such folder; name a run's folder, the one with {METRICS} in it")
        if is_run(folder):
            found.append(folder)
            continue
        below = sorted({p.parent for pattern in ("*", "*/*") for p in folder.glob(f"{pattern}/{METRICS}")})
        if not below:
            raise RunError(f"{folder}: no run here ({METRICS}, {CONFIG} and {ROLLOUTS}/ are all missing), nor below it")
        found.extend(below)
    return list(dict.fromkeys(found))


def is_run(folder: Path) -> bool:
    return any((folder / name).exists() for name in (METRICS, CONFIG, ROLLOUTS))


def run_names(folders: Sequence[Path]) -> list[str]:
    """The shortest endings of the paths that tell the runs apart."""
    parts = [folder.resolve().parts for folder in folders]
    depth = 1
    while depth < max(map(len, parts)) and len({p[-depth:] for p in parts}) < len({*parts}):
        depth += 1
    return ["/".join(p[-depth:]) for p in parts]


def _facts(run: History, settings: dict[str, str]) -> dict[str, Any]:
    """What the overview says of a run."""
    planned = settings.get("steps", "")
    done = [i for i in range(len(run)) if any(np.isfinite(run.values[k][i]) for k in ("seconds",) if k in run.values)]
    return {
        "algorithm": settings.get("algorithm.name"),
        "model": settings.get("model.path"),
        "steps": int(run.step[done[-1]]) if done else 0,
        "planned": int(planned) if planned.isdigit() else None,
        "tokens": float(run.tokens[-1]) if len(run) else 0.0,
        "seconds": float(run.seconds[-1]) if len(run) else 0.0,
        "evaluations": evaluations(run),
        "eval_k": _last(run, "eval_k"),
        "metrics": list(run.values),
    }


def _last(run: History, name: str) -> float | None:
    values = run.values.get(name, np.zeros(0))
    finite = values[np.isfinite(values)]
    return float(finite[-1]) if len(finite) else None


def _main(
    described: list[dict[str, Any]],
    histories: Sequence[History],
    settings: Sequence[dict[str, str]],
    rollouts: Rollouts,
) -> str:
    """The packed overview, metrics and settings: what the page needs to show anything."""
    from skpo import __version__

    arrays: dict[str, np.ndarray] = {}
    for i, run in enumerate(histories):
        arrays |= {f"r{i}_step": run.step, f"r{i}_tokens": run.tokens, f"r{i}_seconds": run.seconds}
        arrays |= {f"r{i}_m{j}": values for j, values in enumerate(run.values.values())}
    header = {
        "made": datetime.now(UTC).isoformat(timespec="seconds"),
        "version": __version__,
        "sections": list(SECTIONS),
        "metrics": in_order({name for run in histories for name in run.values}),
        "runs": described,
        "settings": table(settings),
        "shortened": rollouts.shortened,
    }
    return pack(header, arrays)


def _static(name: str) -> str:
    return files("skpo.report").joinpath("static", name).read_text(encoding="utf-8")


def _assemble(page: str, style: str, script: str, title: str, payloads: dict[str, str]) -> str:
    """Fill the page's places; the first payload stands before the script, so that the page shows it while the rest still loads. A content security policy lets nothing run but this very script, and nothing be loaded."""
    script = f"(() => {{\n'use strict';\n{script}\n}})();\n"
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    policy = f"default-src 'none'; script-src 'sha256-{digest}'; style-src 'unsafe-inline'; img-src data:"
    first, *rest = (
        f'<script type="application/octet-stream" id="{key}">{value}</script>' for key, value in payloads.items()
    )
    pieces = {
        "title": html.escape(title), "policy": policy, "style": style, "first": first, "script": script, "data": "\n".join(rest),
    }  # fmt: skip
    return "".join(_filled(page, pieces))


def _filled(page: str, pieces: dict[str, str]) -> Iterator[str]:
    """The page with every `{{name}}` replaced once, whatever the pieces themselves contain."""
    for i, part in enumerate(page.split("{{")):
        if i == 0:
            yield part
            continue
        name, rest = part.split("}}", 1)
        yield pieces[name.strip()]
        yield rest
