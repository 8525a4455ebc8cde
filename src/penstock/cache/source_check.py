"""The check, at the start of an epoch, that files of which bytes are kept are as they were indexed.

An engine without a cache sees a changed file when it opens it. One that serves kept bytes opens
nothing, and asks storage for sizes and times instead.
"""

from __future__ import annotations

import errno
import logging
import threading
from collections.abc import Callable

import numpy as np

from .. import limits
from ..engine import build_changed_error, build_storage_error, open_store, start_threads
from ..errors import PenstockError
from ..extent import Files

log = logging.getLogger("penstock")

_gone = (errno.ENOENT, errno.ENOTDIR)


class SourceCheck:
    """Check of files, which goes on behind the epoch where storage takes its time.

    files:      with their sizes and times, or versions, when indexed.
    on_change:  called with the error that names the first file that differs, at most once.

    Storage that does not answer, or fails, is no change: kept bytes are still those of the index.
    A check that fails, for whatever reason, is a warning in the log.
    """

    def __init__(self, files: Files, on_change: Callable[[PenstockError], None]) -> None:
        self._files = files
        self._on_change = on_change
        self._thread: threading.Thread | None = None

    def begin(self) -> None:
        """Begin a check, unless the last one still waits for storage.

        Waits up to `limits.source_check_wait_s` for its end, so that an epoch over storage that
        answers serves nothing of a file that had changed before.
        """
        if len(self._files) == 0:
            return
        if self._thread is None or not self._thread.is_alive():
            self._thread = threading.Thread(
                target=self._run, name="penstock-source-check", daemon=True
            )
            start_threads([self._thread])
        self._thread.join(limits.source_check_wait_s)

    def _run(self) -> None:
        what = "files below %s could not be looked at again, kept bytes are used: %s"
        try:
            self._check()
        except PenstockError as error:
            log.warning(what, self._files.root, error)
        except Exception as error:  # memory, or a defect of ours
            log.warning(what, self._files.root, repr(error), exc_info=True)

    def _check(self) -> None:
        was = self._files
        now, errors = open_store(was.root).probe(was)
        gone = np.isin(errors, _gone)
        changed = (errors == 0) & ((now.size != was.size) | (now.mtime_ns != was.mtime_ns))
        rows = np.flatnonzero(gone | changed)
        if not len(rows):
            return
        path = was.path(int(rows[0]))
        if gone[rows[0]]:
            self._on_change(build_storage_error(int(errors[rows[0]]), path, ""))
            return
        what = (
            f"{len(rows):,} of {len(was):,} files looked at are of another size or time of writing"
        )
        self._on_change(build_changed_error(path, what))
