"""How a command ends: what it raised as one message, and an exit code."""

from __future__ import annotations

import sys
from collections.abc import Callable

from ..errors import PenstockError


def run_and_exit(command: Callable[[], object]) -> None:
    """Run a command and exit. An error that penstock foresees is one message and code 1, Ctrl-C
    is code 130."""
    try:
        command()
    except PenstockError as error:
        from . import console  # not needed where all goes well

        console.say(str(error))
        sys.exit(1)
    except KeyboardInterrupt:
        sys.exit(130)
    except BrokenPipeError:  # the reader of our output has seen enough
        sys.stderr.close()
        sys.exit(141)
