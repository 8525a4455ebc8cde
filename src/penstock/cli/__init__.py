"""The command line: a module of each command, or of a few, is imported when one is called."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from ..lazy_exports import hand_out


def main() -> None:
    """Run the command line and exit. Without typer and rich, what needs neither still runs."""
    try:
        import rich as rich
        import typer as typer
    except ModuleNotFoundError as missing:
        from ..errors import PenstockError
        from .commands import run_plain

        try:
            sys.exit(run_plain(sys.argv[1:], str(missing.name)))
        except PenstockError as error:
            sys.exit(f"penstock: {error}")
        except KeyboardInterrupt:
            sys.exit(130)  # 128 + SIGINT
    from .app import main as run_command

    run_command()


if TYPE_CHECKING:
    from . import console as console
    from . import quantities as quantities
    from .app import HelpedCommand as HelpedCommand
    from .app import HelpedGroup as HelpedGroup
    from .app import complete_names as complete_names
    from .app import make_app as make_app
    from .commands import LazyCommand as LazyCommand
    from .console import GOES_ON as GOES_ON
    from .console import check_writable as check_writable
    from .console import explain_interrupt as explain_interrupt
    from .console import replace_file as replace_file
    from .console import write_text as write_text
    from .options import AsJson as AsJson
    from .options import setting as setting
else:
    __all__, __getattr__ = hand_out(
        __name__,
        {
            "app": "HelpedCommand HelpedGroup complete_names make_app",
            "commands": "LazyCommand",
            "console": "GOES_ON check_writable console explain_interrupt replace_file write_text",
            "options": "AsJson setting",
            "quantities": "quantities",
        },
    )
