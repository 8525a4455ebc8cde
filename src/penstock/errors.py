"""The exceptions of penstock, split by what the caller can do about them.

    PenstockError
    ├── UsageError(ValueError)              wrong use: fix the call
    │   ├── ForkError(RuntimeError)         a loader or engine used in a forked child
    │   └── CollateError(RuntimeError)      decoded samples that do not fit into one batch
    ├── DataError                           wrong data: repair, re-index or leave out
    │   ├── FormatError(ValueError)         a file is not what it was opened as
    │   ├── MissingError(FileNotFoundError) a file or folder is not there
    │   ├── SidecarError(ValueError)        a saved index is damaged or belongs to other data
    │   └── ChangedError(OSError)           a file changed, shrank or vanished after indexing
    ├── StorageError(OSError)               storage failed: retry, or read elsewhere
    │   └── StalledError(TimeoutError)      it has not answered yet: wait on, or give up
    ├── WorkerError(RuntimeError)           a worker ended, or did not answer in time: resume
    ├── LimitError(MemoryError)             a limit was reached: raise it, or ask for less
    └── StateError(ValueError)              a saved state does not fit: cannot continue

An assertion is a defect of penstock; every exception above is the world's or the caller's.
Each message says what happened, where, the value, and what to do.
"""

from __future__ import annotations

__all__ = [
    "ChangedError",
    "CollateError",
    "DataError",
    "ForkError",
    "FormatError",
    "LimitError",
    "MissingError",
    "PenstockError",
    "SidecarError",
    "StalledError",
    "StateError",
    "StorageError",
    "UsageError",
    "WorkerError",
]


class PenstockError(Exception):
    """Root of every exception that penstock raises on purpose."""


class UsageError(PenstockError, ValueError):
    """The call is wrong; the message says which argument and what would be accepted."""


class ForkError(UsageError, RuntimeError):
    """A loader or engine was used in a process forked after its threads had started."""


class CollateError(UsageError, RuntimeError):
    """Decoded samples differ in structure, shape or dtype; torch raises RuntimeError here too."""


class DataError(PenstockError):
    """The data is not what it should be; the message names file, offset and sample."""


class FormatError(DataError, ValueError):
    """A file is not of the format, dtype or size that it was opened as."""


class MissingError(DataError, FileNotFoundError):
    """A file or folder that was named is not there."""


class SidecarError(DataError, ValueError):
    """A saved index is truncated, corrupt, of another version, or of other data."""


class ChangedError(DataError, OSError):
    """A file changed, shrank or vanished after it was indexed."""


class StorageError(PenstockError, OSError):
    """The operating system reported a failed read; `errno` is set."""


class StalledError(StorageError, TimeoutError):
    """What was asked for is still under way after the time that was given; it may end well yet."""


class LimitError(PenstockError, MemoryError):
    """A limit named in `penstock.limits` or in the budget was reached."""


class StateError(PenstockError, ValueError):
    """A saved state belongs to other data, another seed or another geometry."""


class WorkerError(PenstockError, RuntimeError):
    """A worker process was killed or ended by itself, or a batch did not come in time."""
