"""`penstock`, and `python -m penstock`. A benchmark is begun without the other commands' modules."""

from __future__ import annotations

import sys


def main() -> None:
    """Run the command line and exit."""
    if sys.argv[1:2] == ["bench"]:
        from .cli_bench import main as run
    else:
        from .cli import main as run
    run()


if __name__ == "__main__":
    main()
