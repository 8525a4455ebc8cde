"""The message of a command that Ctrl-C stops: what it has left, and how to go on."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager

GOES_ON = "what is finished is kept, and the same command goes on after it"
BEGINS_AGAIN = "nothing was written, and the same command begins again"


@contextmanager
def explain_interrupt(left: str = BEGINS_AGAIN) -> Iterator[None]:
    """Say what a command has left if the user stops it; a decorator of commands."""
    try:
        yield
    except KeyboardInterrupt:
        print(f"penstock: stopped: {left}", file=sys.stderr)
        raise
