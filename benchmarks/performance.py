"""Makes docs/performance.md from benchmarks' JSON files, so that no number in it is typed by hand.

    python -m benchmarks.performance               rebuild docs/performance.md
    python -m benchmarks.performance FILE ...      first take JSON files of benchmarks in, under their own names
    python -m benchmarks.performance --run NAME ...  first make NAME.json anew, as RUNS says; without a NAME, all of them (an idle
                                                     machine, under an hour)

docs/results/performance/ keeps the files, docs/results/performance.md.jinja the text. In the template `found("NAME", ...)` are
those of the names whose NAME.json is there, `report("NAME")` is its content, and `section("NAME")` its command, headline, tables,
aims, notes and machine in Markdown: a section appears once its file is there. `others()` are reports that the template doesn't name.
"""

from __future__ import annotations

import argparse
import json
import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from benchmarks.common import aim, number

DOCS = Path(__file__).parent.parent / "docs"
STORE = DOCS / "results" / "performance"
#: name of a results file -> the benchmark and its options
RUNS = {
    "rollout_4M": ["rollout", "--shape", "4M", "--lengths", "exponential"],
    "rollout_135M": ["rollout", "--shape", "135M", "--lengths", "exponential"],
    "rollout_others": ["rollout", "--repeats", "2", "--lengths", "uniform"],
    "step_chain": ["step", "--work", "chain"],
    "step_tail": ["step", "--work", "tail"],
    "step_prompts": ["step", "--work", "prompts"],
    "skpo_cost": ["skpo_cost"],
    "scaling": ["scaling"],
    "train_memory": ["train_memory"],
    "decode_profile": ["decode_profile"],
}


def found(*names: str) -> list[str]:
    """Those of the names whose results are there."""
    return [name for name in names if (STORE / f"{name}.json").exists()]


def report(name: str) -> dict[str, Any]:
    """A benchmark's results."""
    return json.loads((STORE / f"{name}.json").read_text())  # type: ignore[no-any-return]


def table(content: Mapping[str, Any]) -> str:
    """One table of a report in Markdown."""
    columns = content["columns"]
    lines = ["| " + " | ".join(columns) + " |", "|---" + "|---:" * (len(columns) - 1) + "|"]
    lines += ["| " + " | ".join(map(number, row)) + " |" for row in content["rows"]]
    return "\n".join(lines)


def section(name: str) -> str:
    """A report in Markdown: command, headline, tables, aims, notes, machine."""
    data = report(name)
    parts = [f"    {data['command']}", f"**{number(data['spread'])}**: {data['of']}."]
    parts += [f"{content['title']}:\n\n{table(content)}" for content in data["tables"]]
    if data["bars"]:
        parts.append("\n".join(f"- {bar['what']}: {number(bar['value'])}; {aim(bar)}" for bar in data["bars"]))
    parts += data["notes"]
    parts.append(f"({machine(data)})")
    return "\n\n".join(parts)


def machine(data: Mapping[str, Any]) -> str:
    """Machine, clock and date of a report in one line."""
    clock = {"wall": "wall-clock time", "cpu": "CPU time of the process"}.get(str(data["settings"].get("clock")), "")
    facts = [f"{k.replace('_', ' ')} {v}" for k, v in data["machine"].items()]
    return ", ".join([*facts, *([clock] if clock else []), str(data["date"])])


def others(text: str) -> list[str]:
    """Reports that a template's text doesn't name."""
    names = sorted(path.stem for path in STORE.glob("*.json"))
    return [name for name in names if f'"{name}"' not in text and "tables" in report(name)]


def build() -> Path:
    """Fill the template; returns docs/performance.md."""
    import jinja2

    environment = jinja2.Environment(
        undefined=jinja2.StrictUndefined, keep_trailing_newline=True, trim_blocks=True, lstrip_blocks=True
    )
    text = (DOCS / "results" / "performance.md.jinja").read_text()
    path = DOCS / "performance.md"
    path.write_text(
        environment.from_string(text).render(
            found=found, report=report, section=section, number=number, others=lambda: others(text)
        )
    )
    return path


def take_in(path: Path) -> None:
    """Keep a benchmark's JSON file. Raises SystemExit for one of a quick run: its sizes say nothing."""
    if json.loads(path.read_text())["settings"].get("quick"):
        raise SystemExit(f"{path}: made with --quick; run the benchmark at its full sizes")
    STORE.mkdir(parents=True, exist_ok=True)
    shutil.copy(path, STORE / path.name)


def run(name: str) -> None:
    """Run the benchmark behind a results file and take its results in. Raises SystemExit where it fails."""
    module, *options = RUNS[name]
    STORE.mkdir(parents=True, exist_ok=True)
    command = [sys.executable, "-m", f"benchmarks.{module}", *options, "--json", str(STORE / f"{name}.json")]
    print(f"{name}: {' '.join(['python', *command[1:-2]])}", flush=True)
    if (code := subprocess.run(command, cwd=DOCS.parent).returncode) != 0:
        raise SystemExit(f"{name}: its benchmark ended with exit code {code}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--run", action="store_true", help="run benchmarks, all or those named")
    parser.add_argument("names", nargs="*", metavar="FILE or NAME")
    given = parser.parse_args()
    if given.run and (unknown := [n for n in given.names if n not in RUNS]):
        parser.error(f"no such results: {', '.join(unknown)}; there are {', '.join(RUNS)}")
    for name in given.names or (list(RUNS) if given.run else []):
        run(name) if given.run else take_in(Path(name))
    print(f"wrote {build()}")


if __name__ == "__main__":
    main()
