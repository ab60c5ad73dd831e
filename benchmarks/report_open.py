"""How long the report of a large run takes to write and to open: 500 steps, 50,000 rollouts of made-up text.

    python benchmarks/report_open.py [--steps 500] [--keep FOLDER]

Prints the file's size, the seconds to write it, and, in headless Chromium, the seconds from the start of loading until each view is
drawn, opened afresh each time: overview, curves, rollouts; and a search through all texts. Needs chromium and
chromedriver (Debian: apt-get install chromium chromium-driver).
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

from report.made_runs import large_run
from report.webdriver import Browser

from skpo.report import write_report

READY = {"overview": "#overview .card", "curves": "#curves path.line", "rollouts": "#group-detail .row"}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])  # type: ignore[union-attr]
    parser.add_argument("--steps", type=int, default=500)
    parser.add_argument("--length", type=int, default=120, help="tokens of a rollout, about")
    parser.add_argument("--keep", type=Path, help="folder for the run and its report; default: a temporary one")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        folder = options.keep or Path(temporary)
        run = folder / "large"
        if not (run / "metrics.jsonl").exists():
            large_run(run, options.steps, length=options.length)
        report = write_report([run])
        print(f"{report}, written in {report.seconds:.1f} s")
        measure(report.path)


def measure(page: Path) -> None:
    """Print, for each view and three tries each, the page's own clock when it is drawn (best and worst), and the main thread's CPU time."""
    for view, selector in READY.items():
        seconds, busy = [], []
        for last in (False, False, True):
            with Browser() as browser:
                browser.cdp("Performance.enable", timeDomain="threadTicks")
                browser.open(page, view)
                browser.wait(f"return document.querySelector('{selector}') !== null")
                seconds.append(float(browser.js("return document.body.dataset.ready")) / 1000)
                metrics = {m["name"]: m["value"] for m in browser.cdp("Performance.getMetrics")["metrics"]}
                busy.append(metrics["TaskDuration"])
                if last and view == "rollouts":
                    search(browser)
        print(f"{view:<9} {min(seconds):.2f} to {max(seconds):.2f} s; main thread {max(busy):.2f} s of CPU")


def search(browser: Browser) -> None:
    begin = time.perf_counter()
    browser.press("/", *"no such words")
    browser.wait("return document.getElementById('match-count').textContent.startsWith('0 of')", 120)
    print(f"search    {time.perf_counter() - begin:.2f} s through all texts")


if __name__ == "__main__":
    main()
