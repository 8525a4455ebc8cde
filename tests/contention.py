"""A processor that the calling thread has to share."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from collections.abc import Iterator

_hog = "import os\nos.write(1, b'.')\nwhile True: pass"


@contextlib.contextmanager
def contended(others: int) -> Iterator[None]:
    """So many processes never leave the one processor on which this thread, and what it starts,
    may run meanwhile."""
    allowed = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {min(allowed)})
    try:
        with contextlib.ExitStack() as hogs:
            for _ in range(others):
                hog = subprocess.Popen([sys.executable, "-c", _hog], stdout=subprocess.PIPE)
                hogs.enter_context(hog)
                hogs.callback(hog.kill)
                assert hog.stdout is not None
                assert hog.stdout.read(1) == b"."
            yield
    finally:
        os.sched_setaffinity(0, allowed)
