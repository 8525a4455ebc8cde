"""The command line: one module a command, imported when the command is called.

Applications add commands of their own: each is an entry point in the group `penstock.commands`,
an `AddedCommand`.
"""

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
        from .plain import run_plain

        try:
            sys.exit(run_plain(sys.argv[1:], str(missing.name)))
        except PenstockError as error:
            sys.exit(f"penstock: {error}")
        except KeyboardInterrupt:
            sys.exit(130)
    from .app import main as run_command

    run_command()


if TYPE_CHECKING:
    from . import console as console
    from . import quantities as quantities
    from .added_command import AddedCommand as AddedCommand
    from .amounts import parse_bytes as parse_bytes
    from .completion import complete_names as complete_names
    from .interrupt import GOES_ON as GOES_ON
    from .interrupt import explain_interrupt as explain_interrupt
    from .lazy_group import HelpedCommand as HelpedCommand
    from .lazy_group import HelpedGroup as HelpedGroup
    from .lazy_group import make_app as make_app
    from .output_files import check_writable as check_writable
    from .output_files import repeat_command as repeat_command
    from .output_files import replace_file as replace_file
    from .output_files import results_alone as results_alone
    from .output_files import write_page as write_page
    from .output_files import write_results as write_results
    from .output_files import write_text as write_text
    from .quantities import brief as brief
    from .quantities import counted as counted
    from .quantities import duration as duration
    from .quantities import latency as latency
    from .quantities import number as number
    from .quantities import percent as percent
    from .quantities import ratio as ratio
    from .quantities import size as size
    from .quantities import size_unit as size_unit
    from .quantities import time_unit as time_unit
else:
    __all__, __getattr__ = hand_out(
        __name__,
        {
            "added_command": "AddedCommand",
            "amounts": "parse_bytes",
            "completion": "complete_names",
            "console": "console",
            "interrupt": "GOES_ON explain_interrupt",
            "lazy_group": "HelpedCommand HelpedGroup make_app",
            "output_files": "check_writable repeat_command replace_file results_alone "
            "write_page write_results write_text",
            "quantities": "brief counted duration latency number percent ratio size size_unit "
            "quantities time_unit",
        },
    )
