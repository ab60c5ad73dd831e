"""`python -m skpo`."""

from __future__ import annotations

from skpo.cli import main

if __name__ == "__main__":
    main()
