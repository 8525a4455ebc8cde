"""The command line: one module a command. `bench` begins without what other commands need."""

from __future__ import annotations

import sys


def main() -> None:
    """Run the command line and exit."""
    if sys.argv[1:2] == ["bench"]:
        from .bench import main as run_command
    else:
        from .app import main as run_command
    run_command()


__all__ = ["main"]
