"""The command line: one module a command, imported when the command is called."""

from __future__ import annotations


def main() -> None:
    """Run the command line and exit."""
    from .app import main as run_command

    run_command()


__all__ = ["main"]
