"""The exceptions of penstock, split by what the caller can do about them.

    PenstockError
    ├── UsageError(ValueError)              wrong use: fix the call
    │   ├── ForkError(RuntimeError)         a loader or engine used in a forked child
    │   └── CollateError(RuntimeError)      decoded samples that do not fit into one batch
    ├── DataError                           wrong data: repair, re-index or leave out
    │   ├── FormatError(ValueError)         a file is not what it was opened as
    │   ├── DecodeError(ValueError)         an image that is damaged, or that nothing here decodes
    │   ├── MissingError(FileNotFoundError) a file or folder is not there
    │   ├── SidecarError(ValueError)        a saved index is damaged or belongs to other data
    │   └── ChangedError(OSError)           a file changed, shrank or vanished after indexing
    ├── StorageError(OSError)               storage failed: retry, or read elsewhere
    │   └── StalledError(TimeoutError)      it has not answered yet: wait on, or give up
    ├── WorkerError(RuntimeError)           a worker ended, or did not answer in time: resume
    ├── LimitError(MemoryError)             a limit was reached: raise it, or ask for less
    └── StateError(ValueError)              a saved state does not fit: cannot continue

A failed assertion is a defect of penstock. Each exception above has a cause outside penstock: the
caller, the data, the storage or the machine.
Each message says what happened, where, the value, and what to do.
"""

from __future__ import annotations

__all__ = [
    "ChangedError",
    "CollateError",
    "DataError",
    "DecodeError",
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

import importlib
import types


class PenstockError(Exception):
    """Root of every exception that penstock raises on purpose."""


class UsageError(PenstockError, ValueError):
    """A wrong call; the message names the argument and the values that would be accepted."""


class ForkError(UsageError, RuntimeError):
    """Use of a loader or engine in a process forked after its threads had started."""


class CollateError(UsageError, RuntimeError):
    """Decoded samples of different structure, shape or dtype; torch raises RuntimeError too."""


class DataError(PenstockError):
    """Wrong data; the message names file, offset and sample."""


class FormatError(DataError, ValueError):
    """A file of another format, dtype or size than it was opened as."""


class DecodeError(DataError, ValueError):
    """An image that is damaged, or of a kind that nothing here decodes."""


class MissingError(DataError, FileNotFoundError):
    """A named file or folder that does not exist."""


class SidecarError(DataError, ValueError):
    """A saved index that is truncated, corrupt, of another version, or of other data."""


class ChangedError(DataError, OSError):
    """A file that changed, shrank or vanished after it was indexed."""


class StorageError(PenstockError, OSError):
    """A failed read, as the operating system reported it; `errno` is set."""


class StalledError(StorageError, TimeoutError):
    """A request still in flight after the time allowed for it; it may still succeed."""


class LimitError(PenstockError, MemoryError):
    """A reached limit, named in `penstock.limits` or in the budget."""


class StateError(PenstockError, ValueError):
    """A saved state of other data, another seed or another geometry."""


class WorkerError(PenstockError, RuntimeError):
    """A worker process that was killed or ended by itself, or a batch that did not come in time."""


def say_install(packages: str, extra: str) -> str:
    """Return how missing packages are had: by their own names, however penstock was installed."""
    return f"pip install {packages} (or 'penstock[{extra}]')"


def missing_library(package: str, extra: str, what: str) -> UsageError:
    """Make the error for a library that is not installed."""
    return UsageError(f"{what} needs {package}: {say_install(package, extra)}")


def import_library(module: str, extra: str, what: str) -> types.ModuleType:
    """Import a module of a library that has the module's name; UsageError if it is not there."""
    try:
        return importlib.import_module(module)
    except ImportError:
        raise missing_library(module.partition(".")[0], extra, what) from None
