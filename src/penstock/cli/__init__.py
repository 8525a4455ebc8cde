"""The command line: one module a command, imported when the command is called."""

from __future__ import annotations

import sys


def main() -> None:
    """Run the command line and exit. Without typer and rich, what needs neither still runs."""
    try:
        import rich as rich
        import typer as typer
    except ModuleNotFoundError as missing:
        from ..errors import PenstockError
        from .plain import run_plain

        try:
            sys.exit(run_plain(sys.argv[1:], str(missing.name)))
        except PenstockError as error:
            sys.exit(f"penstock: {error}")
        except KeyboardInterrupt:
            sys.exit(130)
    from .app import main as run_command

    run_command()


__all__ = ["main"]
