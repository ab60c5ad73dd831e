"""What every benchmark shares: options, the machine, timing by turns, and a report as a table and as JSON.

A benchmark measures its sides by turns (A B A B ...), so that a machine that slows down slows all of them down, and reports
medians and ranges. Its JSON has the headline figure as `ratio`; `python -m benchmarks.performance` makes
docs/performance.md from such files.

    options = parse(__doc__)                      # --quick, --json FILE, --repeats, --threads, --clock
    timed = by_turns({"engine": engine, "generate": generate}, options)
    report = Report("rollout", "tokens per second, engine over generate", ratio=quotient(timed["engine"], timed["generate"]))
    report.table("4 M parameters", ["side", "seconds"], [[name, spread(t.seconds for t in runs)] for name, runs in timed.items()])
    report.finish(options)
"""

from __future__ import annotations

import argparse
import gc
import json
import math
import os
import platform
import statistics
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from importlib import metadata
from pathlib import Path
from typing import Any

Cell = Any  #: str, int, float, None or Spread


@dataclass(frozen=True)
class Options:
    """What a benchmark was asked for.

    quick: sizes that end within a minute. repeats: turns of each side that are counted, after one that is not. clock: "wall", or
    "cpu" (seconds of this process on all its threads) for a machine that others use, too.
    """

    quick: bool = False
    json: Path | None = None
    repeats: int = 5
    threads: int = 1
    clock: str = "wall"
    extra: dict[str, Any] = field(default_factory=dict)  #: a benchmark's own options

    def clock_now(self) -> float:
        """Seconds on the chosen clock."""
        return time.process_time() if self.clock == "cpu" else time.perf_counter()


def parse(
    description: str | None, more: Callable[[argparse.ArgumentParser], Any] | None = None, *, repeats: int = 5
) -> Options:
    """Options from the command line; `more` adds a benchmark's own, which come back in `extra`. Sets torch's threads."""
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="smaller sizes: within a minute on two cores")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the results here, the headline as `ratio`")
    parser.add_argument(
        "--repeats", type=int, help=f"turns of each side that are counted (default: {repeats}; quick: 2)"
    )
    parser.add_argument("--threads", type=int, default=1, help="threads of torch (default: 1)")
    parser.add_argument("--clock", choices=("wall", "cpu"), default="wall", help="cpu: seconds of this process")
    if more is not None:
        more(parser)
    given = vars(parser.parse_args())
    own = {k: given.pop(k) for k in list(given) if k not in ("quick", "json", "repeats", "threads", "clock")}
    given["repeats"] = given["repeats"] or (2 if given["quick"] else repeats)
    options = Options(**given, extra=own)
    set_threads(options.threads)
    return options


def set_threads(threads: int) -> None:
    """Threads of one operation in torch."""
    import torch

    torch.set_num_threads(threads)


@dataclass(frozen=True)
class Spread:
    """Median and range of repeated measurements."""

    median: float
    low: float
    high: float
    n: int

    def __str__(self) -> str:
        if self.n == 1 or self.low == self.high:
            return number(self.median)
        return f"{number(self.median)} ({number(self.low)} to {number(self.high)})"


def spread(values: Iterable[float]) -> Spread:
    """Median and range; raises ValueError without a value."""
    found = [float(v) for v in values]
    if not found:
        raise ValueError("nothing was measured")
    return Spread(statistics.median(found), min(found), max(found), len(found))


@dataclass(frozen=True)
class Turn:
    """One timed call. counts: what the call returned (tokens, rows, seconds of parts)."""

    seconds: float
    counts: dict[str, float]

    def rate(self, count: str = "tokens") -> float:
        """A count per second."""
        return self.counts[count] / self.seconds


def by_turns(
    sides: Mapping[str, Callable[[], Mapping[str, float] | None]], options: Options, *, warm: int = 1
) -> dict[str, list[Turn]]:
    """Time the sides in turns A B A B ..., `options.repeats` each after `warm` rounds that are not counted.

    A side returns counts (`{"tokens": ...}`) or None. Every second round goes through the sides backwards, so that none always
    follows the same neighbour. Garbage is collected before a call, never within one.
    """
    timed: dict[str, list[Turn]] = {name: [] for name in sides}
    for round_ in range(warm + options.repeats):
        for name in list(sides) if round_ % 2 == 0 else list(reversed(sides)):
            gc.collect()
            gc.disable()
            try:
                begin = options.clock_now()
                counts = sides[name]()
                seconds = options.clock_now() - begin
            finally:
                gc.enable()
            if round_ >= warm:
                timed[name].append(Turn(seconds, dict(counts or {})))
    return timed


def quotient(over: Sequence[Turn], under: Sequence[Turn], count: str | None = "tokens") -> Spread:
    """Spread of over/under turn by turn: of the rates of `count`, or with None of the seconds."""
    pairs = zip(over, under, strict=True)
    if count is None:
        return spread(a.seconds / b.seconds for a, b in pairs)
    return spread(a.rate(count) / b.rate(count) for a, b in pairs)


def exponent(sizes: Sequence[float], values: Sequence[float]) -> tuple[float, float | None]:
    """(k, standard error) of values ~ sizes^k: least squares on logarithms. The error needs three sizes, else None."""
    import numpy as np

    x, y = np.log(np.asarray(sizes, float)), np.log(np.asarray(values, float))
    x = x - x.mean()
    k = float(x @ y / (x @ x))
    rest = y - y.mean() - k * x
    free = len(x) - 2
    return k, math.sqrt(float(rest @ rest) / free / float(x @ x)) if free > 0 else None


def machine(*packages: str) -> dict[str, Any]:
    """What the figures depend on: cores, processor, threads, versions (of `packages`, too). No names of hosts or folders."""
    import torch

    usable = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    facts: dict[str, Any] = {
        "processor": _processor(),
        "cores": usable,
        "threads": torch.get_num_threads(),
        "vector_instructions": torch.backends.cpu.get_cpu_capability(),
        "system": f"{platform.system()} {platform.machine()}",
        "python": platform.python_version(),
    }
    if torch.cuda.is_available():
        facts["gpu"] = torch.cuda.get_device_name()
    for package in ("torch", "transformers", *packages):
        facts[package] = metadata.version(package)
    return facts


def _processor() -> str:
    """The processor's name as the system gives it."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        return next(line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    except (OSError, StopIteration):
        return platform.processor() or platform.machine()


def number(value: Any) -> str:
    """A cell as text: three significant digits, thousands apart."""
    if isinstance(value, Mapping):
        value = Spread(**value)
    if isinstance(value, Spread):
        return str(value)
    if value is None:
        return ""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return str(value)
    if isinstance(value, int):
        return f"{value:,}"
    if not math.isfinite(value):
        return "-"
    size = abs(value)
    if size >= 1000:
        return f"{value:,.0f}"
    digits = max(0, 2 - math.floor(math.log10(size))) if size >= 1e-3 else None
    return f"{value:.{digits}f}" if digits is not None else f"{value:.2g}"


@dataclass
class Report:
    """A benchmark's results. name: the module's. of: what `ratio` is the ratio of, in words."""

    name: str
    of: str
    ratio: Spread | float
    machine: dict[str, Any] = field(default_factory=machine)
    settings: dict[str, Any] = field(default_factory=dict)
    tables: list[dict[str, Any]] = field(default_factory=list)
    bars: list[dict[str, Any]] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    def table(self, title: str, columns: Sequence[str], rows: Iterable[Sequence[Cell]]) -> None:
        """Add a table; cells are text, numbers or spreads."""
        self.tables.append({"title": title, "columns": list(columns), "rows": [list(row) for row in rows]})

    def bar(self, what: str, value: Spread | float, least: float | None = None, most: float | None = None) -> None:
        """State a figure that was aimed at: at least `least` or at most `most`, judged by the median."""
        median = value.median if isinstance(value, Spread) else value
        met = (least is None or median >= least) and (most is None or median <= most)
        self.bars.append({"what": what, "value": value, "least": least, "most": most, "met": met})

    def note(self, text: str) -> None:
        """Add a sentence that a reader of the figures needs."""
        self.notes.append(text)

    def data(self, options: Options) -> dict[str, Any]:
        """Everything, as plain JSON values."""
        median = self.ratio.median if isinstance(self.ratio, Spread) else self.ratio
        kept = {k: v for k, v in asdict(options).items() if k in ("quick", "repeats", "clock")} | options.extra
        whole = {
            "benchmark": self.name,
            "command": self.command(),
            "ratio": median,
            "of": self.of,
            "spread": self.ratio,
            "date": time.strftime("%Y-%m-%d"),
            "machine": self.machine,
            "settings": kept | self.settings,
            "bars": [] if options.quick else self.bars,  # aims are for the full sizes
            "tables": self.tables,
            "notes": self.notes,
        }
        return json.loads(json.dumps(whole, default=_plain, allow_nan=False))  # type: ignore[no-any-return]

    def command(self) -> str:
        """The command that this was, without where it wrote to."""
        words, kept = iter(sys.argv[1:]), []
        for word in words:
            if word == "--json":
                next(words, None)
            elif not word.startswith("--json="):
                kept.append(word)
        return " ".join(["python -m", f"benchmarks.{self.name}", *kept])

    def finish(self, options: Options) -> dict[str, Any]:
        """Print the tables, write the JSON file if one was asked for, and return its content."""
        data = self.data(options)
        show(data)
        if options.json is not None:
            options.json.parent.mkdir(parents=True, exist_ok=True)
            options.json.write_text(json.dumps(data, indent=1) + "\n")
        return data


def _plain(value: Any) -> Any:
    if isinstance(value, Spread):
        return asdict(value)
    if isinstance(value, Path):
        return value.name
    return value.item() if hasattr(value, "item") else str(value)


def show(data: Mapping[str, Any]) -> None:
    """Print a report's data."""
    from rich.console import Console
    from rich.table import Table

    console = Console(width=None if sys.stdout.isatty() else 120)
    console.print(", ".join(f"{k} {v}" for k, v in data["machine"].items()), style="dim", highlight=False)
    for content in data["tables"]:
        table = Table(title=content["title"], title_justify="left")
        for i, column in enumerate(content["columns"]):
            table.add_column(column, justify="left" if i == 0 else "right")
        for row in content["rows"]:
            table.add_row(*map(number, row))
        console.print(table)
    for bar in data["bars"]:
        console.print(f"{bar['what']}: {number(bar['value'])}; {aim(bar)}", highlight=False)
    for note in data["notes"]:
        console.print(note, highlight=False)
    console.print(f"ratio {number(data['spread'])}: {data['of']}", highlight=False, style="bold")


def aim(bar: Mapping[str, Any]) -> str:
    """A bar's aim and whether it was met, in words."""
    wanted = f"at least {bar['least']:g}" if bar["least"] is not None else f"at most {bar['most']:g}"
    return f"aim: {wanted}, {'met' if bar['met'] else 'missed'}"
