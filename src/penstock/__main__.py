"""`penstock`, and `python -m penstock`."""

from __future__ import annotations

import sys


def main() -> None:
    """Run the command line and exit; Ctrl-C is code 130 while it is imported, too."""
    try:
        from .cli import main as run

        run()
    except KeyboardInterrupt:
        sys.exit(130)  # 128 + SIGINT


if __name__ == "__main__":
    main()
