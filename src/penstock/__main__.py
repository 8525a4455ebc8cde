"""`penstock`, and `python -m penstock`; a benchmark begins without what other commands need."""

from __future__ import annotations

import sys


def main() -> None:
    """Run the command line and exit."""
    if sys.argv[1:2] == ["bench"]:
        from .cli import main as run
    else:
        from .cli import main as run
    run()


if __name__ == "__main__":
    main()
