"""The report of a run that is still training: kept fresh without costing the run more than about 1 %."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

PAUSE = 30.0  #: least seconds between two reports
SHARE = 0.01  #: most of the run's time that reports may take


class Refresher:
    """Writes a run's report when one is due, and at the end.

    One is due `PAUSE` seconds after the last, and not before the last one's duration is `SHARE` of the time since: a report that takes
    2 s is written every 200 s. A failure is told once through `note`, and never reaches the training loop. clock: seconds, growing.
    """

    def __init__(self, folder: Path, note: Callable[[str], None], clock: Callable[[], float] = time.monotonic) -> None:
        self.folder, self.note, self.clock = folder, note, clock
        self.due = clock() + PAUSE
        self.told = ""

    def step(self) -> None:
        """A step is logged: write the report if it is due."""
        if self.clock() >= self.due:
            self._write()

    def finish(self) -> str | None:
        """The last report of the run; what to say of it, None where it failed."""
        return self._write()

    def _write(self) -> str | None:
        begin = self.clock()
        try:
            from skpo.report.page import write_report

            return str(write_report([self.folder]))
        except Exception as error:  # whatever it is, training goes on
            text = f"no report: {type(error).__name__}: {error}"
            if text != self.told:
                self.note(text)
            self.told = text
            return None
        finally:
            now = self.clock()
            self.due = now + max(PAUSE, (now - begin) / SHARE)
