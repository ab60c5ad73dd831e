"""What a run shows while it trains: a live panel in a terminal, one plain line per step in a log."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rich.console import Console, RenderableType
    from rich.live import Live

Metrics = Mapping[str, Any]
SPARKS = "▁▂▃▄▅▆▇█"
TIMES = ("rollout", "verify", "train", "other")
COLOURS = {"rollout": "cyan", "verify": "magenta", "train": "green", "other": "bright_black"}


class Progress:
    """Progress of one run.

    quiet:   plain lines even in a terminal.
    main:    False on every process but the first: nothing is shown at all.
    console: where to write; None: standard output. Plain lines are used where it is no terminal.
    """

    def __init__(self, quiet: bool = False, main: bool = True, console: Console | None = None) -> None:
        from rich.console import Console

        self.main = main
        self.console = console or Console(highlight=False)
        self.plain = quiet or not self.console.is_terminal
        self.total = self.done = 0
        self.run = ""
        self.last: Metrics = {}
        self.curve: list[tuple[int, float]] = []
        self._durations: deque[float] = deque(maxlen=10)
        self._began = time.monotonic()
        self._live: Live | None = None

    def start(self, total: int, done: int, run: str) -> None:
        """`total` steps, of which `done` are behind us (0 for a new run), in the folder `run`."""
        self.total, self.done, self.run = total, done, run
        self._began = time.monotonic()
        if not self.main:
            return
        if self.plain:
            start = f"goes on after step {done} of {total}" if done else f"{total} steps"
            self._print(f"{run}: {'complete' if done >= total else start}")
            return
        from rich.live import Live

        self._live = Live(get_renderable=self._panel, console=self.console, refresh_per_second=2)
        self._live.start()

    def step(self, step: int, metrics: Metrics) -> None:
        """A step is done: show its metrics."""
        self.done, self.last = step, metrics
        self._durations.append(float(metrics.get("seconds") or 0.0))
        if self.main and self.plain:
            self._print(step_line(step, self.total, metrics, self.eta))

    def evaluation(self, step: int, metrics: Metrics) -> None:
        """An evaluation is done."""
        if (value := metrics.get("eval_pass_at_1")) is not None:
            self.curve.append((step, float(value)))
        if self.main and self.plain:
            self._print(evaluation_line(step, metrics))

    def note(self, text: str) -> None:
        """Something the user should know: a skipped step, a saved checkpoint, a filter's count."""
        if self.main:
            self._print(text)

    def close(self) -> None:
        """Leave the last panel on screen and give the terminal back. Safe to call twice."""
        if self._live is not None:
            self._live.stop()
            self._live = None

    @property
    def eta(self) -> float | None:
        """Seconds to the last step, by the median of the last ten; None before the first."""
        if not self._durations:
            return None
        return sorted(self._durations)[len(self._durations) // 2] * max(self.total - self.done, 0)

    def _print(self, text: str) -> None:
        self.console.print(text, markup=False, highlight=False, soft_wrap=True)

    def _panel(self) -> RenderableType:
        """The live panel: bar, numbers, time split, evaluation curve."""
        from rich.console import Group
        from rich.panel import Panel
        from rich.progress_bar import ProgressBar
        from rich.table import Table
        from rich.text import Text

        head = Table.grid(padding=(0, 1), expand=True)
        head.add_column(no_wrap=True)
        head.add_column(ratio=1)
        head.add_column(no_wrap=True)
        times = f"{duration(time.monotonic() - self._began)} elapsed"
        if self.eta is not None:
            times += f", {duration(self.eta)} left"
        bar = ProgressBar(total=max(self.total, 1), completed=self.done, complete_style="cyan", finished_style="green")
        head.add_row(f"step {self.done}/{self.total}", bar, times)
        parts: list[RenderableType] = [head]
        if self.last:
            numbers = Table.grid(padding=(0, 3))
            pairs = numbers_of(self.last)
            for start in range(0, len(pairs), 4):
                numbers.add_row(*(Text.assemble((f"{k} ", "bright_black"), v) for k, v in pairs[start : start + 4]))
            parts += [Text(), numbers, Text(), self._time_bar()]
        if self.curve:
            values = [value for _, value in self.curve]
            best = max(values)
            label = (
                f"held-out pass@1 {values[-1]:.3f}  {sparkline(values[-40:])}  best {best:.3f}, start {values[0]:.3f}"
            )
            parts.append(Text(label, style="bold"))
        return Panel(Group(*parts), title=self.run, title_align="left", border_style="bright_black")

    def _time_bar(self) -> RenderableType:
        """Where the last step's seconds went, as one coloured bar of 30 cells with a legend."""
        from rich.text import Text

        seconds = {name: float(self.last.get(f"seconds_{name}") or 0.0) for name in TIMES}
        whole = sum(seconds.values()) or 1.0
        text = Text()
        for name, value in seconds.items():
            text.append("█" * round(30 * value / whole), style=COLOURS[name])
        for name, value in seconds.items():
            text.append(f"  {name} {value:.1f} s", style=COLOURS[name])
        return text


def numbers_of(metrics: Metrics) -> list[tuple[str, str]]:
    """(label, value) of the metrics worth a look at every step; those that are missing are left out."""
    wanted = [
        ("reward", "reward_mean", "{:.3f}"),
        ("accuracy", "accuracy", "{:.3f}"),
        ("pass@G", "pass_at_g", "{:.3f}"),
        ("entropy", "entropy", "{:.3f}"),
        ("length", "completion_length", "{:.0f}"),
        ("segment", "segment_length", "{:.0f}"),
        ("clipped", "clip_fraction", "{:.3f}"),
        ("grad norm", "grad_norm", "{:.3f}"),
        ("lr", "lr", "{:.1e}"),
        ("tok/s", "tokens_per_second", "{:.0f}"),
        ("tokens", "tokens_generated_total", "{:,.0f}"),
        ("skipped", "skipped_steps", "{:.0f}"),
    ]
    shown = [(label, template.format(metrics[key])) for label, key, template in wanted if metrics.get(key) is not None]
    return [(label, value) for label, value in shown if (label, value) != ("skipped", "0")]


def step_line(step: int, total: int, metrics: Metrics, eta: float | None) -> str:
    """`step 12/45  reward 0.312  accuracy 0.656 ...  2.1 s (rollout 1.2, train 0.9)  eta 1m 10s`."""
    words = [f"step {step}/{total}", *(f"{label} {value}" for label, value in numbers_of(metrics))]
    if metrics.get("seconds") is not None:
        split = [f"{name} {metrics[f'seconds_{name}']:.1f}" for name in TIMES if metrics.get(f"seconds_{name}")]
        words.append(f"{metrics['seconds']:.1f} s" + (f" ({', '.join(split)})" if split else ""))
    if eta is not None:
        words.append(f"eta {duration(eta)}")
    return "  ".join(words)


def evaluation_line(step: int, metrics: Metrics) -> str:
    """`evaluation at step 10  held-out pass@1 0.612 ± 0.015  pass@8 0.980  length 64`."""
    words = [f"evaluation at step {step}"]
    if metrics.get("eval_pass_at_1") is not None:
        error = metrics.get("eval_pass_at_1_stderr")
        words.append(
            f"held-out pass@1 {metrics['eval_pass_at_1']:.3f}" + (f" ± {error:.3f}" if error is not None else "")
        )
    if metrics.get("eval_pass_at_k") is not None and metrics.get("eval_k", 1) != 1:
        words.append(f"pass@{metrics.get('eval_k', 'k')} {metrics['eval_pass_at_k']:.3f}")
    if metrics.get("eval_length") is not None:
        words.append(f"length {metrics['eval_length']:.0f}")
    return "  ".join(words)


def sparkline(values: list[float], low: float = 0.0, high: float = 1.0) -> str:
    """One block character per value on a fixed scale, so that a curve near the top looks high."""
    last = len(SPARKS) - 1
    return "".join(SPARKS[min(last, max(0, int((v - low) / (high - low) * len(SPARKS))))] for v in values)


def duration(seconds: float) -> str:
    """`45s`, `3m 05s`, `2h 07m`, `3d 04h`."""
    whole = round(seconds)
    for size, unit, smaller, name in ((86400, "d", 3600, "h"), (3600, "h", 60, "m"), (60, "m", 1, "s")):
        if whole >= size:
            return f"{whole // size}{unit} {whole % size // smaller:02d}{name}"
    return f"{whole}s"
