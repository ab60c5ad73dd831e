"""The command line: `skpo train | eval | algorithms | doctor`."""

from __future__ import annotations

import sys


def main() -> None:
    """Run the command line. An error raised on purpose is one red line on standard error and exit code 2, no traceback."""
    from skpo.cli.app import app
    from skpo.errors import SkpoError

    try:
        app()
    except SkpoError as error:
        from rich.console import Console

        Console(stderr=True).print(f"error: {error}", style="bold red", markup=False, highlight=False, soft_wrap=True)
        sys.exit(2)
