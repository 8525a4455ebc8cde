"""Engines: they execute read requests and report completions; they decide nothing.

The face of everything that touches storage. Its nouns: an *engine* (io_uring, pread, mmap, objects,
mirrors) reads the *extents* of a *request* into *buffers* and reports each *ticket* once as a
*completion*; a *store* lists, probes and parses files, on this machine or behind a URL; the
*storage queue* orders reads and writes of the process by *purpose*; a *probe* collects facts about
a storage; a *trace* records reads; an *arena* recycles memory; an *atomic file* appears whole or
not at all.

The folder must not know samples, fields, orders, plans or batches: it gets files, extents and a
budget. Everything above decides what to read, and when. Names load when they are first used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..lazy_exports import hand_out

if TYPE_CHECKING:
    from . import page_cache as page_cache
    from . import recording as recording
    from .atomic_file import AtomicFile as AtomicFile
    from .atomic_file import storage_errors as storage_errors
    from .atomic_file import sync_folder as sync_folder
    from .host import find_mount as find_mount
    from .host import measure_copying as measure_copying
    from .host import read_machine as read_machine
    from .native import Arena as Arena
    from .native import crc32c as crc32c
    from .open import open_engine as open_engine
    from .open import open_store as open_store
    from .protocol import Completion as Completion
    from .protocol import Engine as Engine
    from .protocol import Failure as Failure
    from .protocol import ReadingEngine as ReadingEngine
    from .read_method import compute_open_files_max as compute_open_files_max
    from .request_queue import AGING as AGING
    from .request_queue import Purpose as Purpose
    from .storage_queue import StorageQueue as StorageQueue
    from .store import Posix as Posix
    from .threads import ThreadPool as ThreadPool
    from .threads import start_threads as start_threads
else:
    __all__, __getattr__ = hand_out(
        __name__,
        {
            "atomic_file": "AtomicFile storage_errors sync_folder",
            "host": "find_mount measure_copying read_machine",
            "native": "Arena crc32c",
            "open": "open_engine open_store",
            "page_cache": "page_cache",
            "read_method": "compute_open_files_max",
            "recording": "recording",
            "protocol": "Completion Engine Failure ReadingEngine",
            "request_queue": "AGING Purpose",
            "storage_queue": "StorageQueue",
            "store": "Posix",
            "threads": "ThreadPool start_threads",
        },
    )
