"""Engines: they execute read requests and report completions; they decide nothing.

The face of everything that touches storage. Its nouns: an *engine* (io_uring, pread, mmap,
objects, mirrors) reads the *extents* of a *request* into *buffers* and reports each *ticket* once
as a *completion*; a *store* lists, probes and parses files, on this machine or behind a URL; a
*request queue* orders what waits by *purpose* and *policy*; a *probe* measures a storage; a
*trace* records reads; an *arena* recycles memory; an *atomic file* appears whole or not at all.

The folder must not know samples, fields, orders, plans or batches: it is given files, extents and
a budget. What to read, and when, is decided above it.
"""

from __future__ import annotations

from . import atomic_file, page_cache, store, trace_file
from .atomic_file import AtomicFile, Bytes, QueuedFile, storage_errors, sync_folder, write_all
from .host_info import Machine, Mount, find_mount, read_machine, readahead_bytes
from .hub import find_commit, is_blob, pin_hub_urls
from .native import (
    INSTALLED_BYTES,
    Arena,
    ReadMethod,
    compute_open_files_max,
    crc32c,
    find_file_system,
    gather,
    move_blocks,
    probe_io_uring,
)
from .object_answer import ObjectInfo, ObjectRefused, require_whole, retry_until
from .object_client import Bucket, open_bucket, parse_object_url
from .object_store import locate_objects
from .open import ReadingEngine, add_mirrors, is_url, open_engine, open_store, read_extent
from .page_cache import Residency, drop_extents, evict, measure_residency
from .probe import ProbeResult, draw_large_extents, measure_copying, time_reads
from .protocol import (
    Buffer,
    Completion,
    Engine,
    Failure,
    Mask,
    check_buffers,
    check_requests,
    check_usable,
    describe_argument,
    refuse_first,
)
from .queue import (
    PATIENCE,
    Kind,
    Patience,
    Policy,
    Purpose,
    Request,
    RequestQueue,
    RoundRobin,
    Target,
    Unit,
    check_purpose,
)
from .queued import QueuedEngine
from .storage_queue import PROCESS_QUEUE, PurposeTotals, StorageQueue, Turn, number_file
from .store import (
    LOCAL,
    Listing,
    Posix,
    Progress,
    Store,
    StoreFile,
    build_changed_error,
    build_storage_error,
    map_in_threads,
)
from .threads import ThreadPool, WakeUp, build_refusal, join_threads, start_threads
from .trace_file import (
    CLOSE,
    KINDS,
    MAP,
    OPEN,
    OPEN_DIRECT,
    READ,
    STAT,
    Operations,
    Trace,
    TraceWriter,
    assign_lanes,
)

__all__ = [
    "CLOSE",
    "INSTALLED_BYTES",
    "KINDS",
    "LOCAL",
    "MAP",
    "OPEN",
    "OPEN_DIRECT",
    "PATIENCE",
    "PROCESS_QUEUE",
    "READ",
    "STAT",
    "Arena",
    "AtomicFile",
    "Bucket",
    "Buffer",
    "Bytes",
    "Completion",
    "Engine",
    "Failure",
    "Kind",
    "Listing",
    "Machine",
    "Mask",
    "Mount",
    "ObjectInfo",
    "ObjectRefused",
    "Operations",
    "Patience",
    "Policy",
    "Posix",
    "ProbeResult",
    "Progress",
    "Purpose",
    "PurposeTotals",
    "QueuedEngine",
    "QueuedFile",
    "ReadMethod",
    "ReadingEngine",
    "Request",
    "RequestQueue",
    "Residency",
    "RoundRobin",
    "StorageQueue",
    "Store",
    "StoreFile",
    "Target",
    "ThreadPool",
    "Trace",
    "TraceWriter",
    "Turn",
    "Unit",
    "WakeUp",
    "add_mirrors",
    "assign_lanes",
    "atomic_file",
    "build_changed_error",
    "build_refusal",
    "build_storage_error",
    "check_buffers",
    "check_purpose",
    "check_requests",
    "check_usable",
    "compute_open_files_max",
    "crc32c",
    "describe_argument",
    "draw_large_extents",
    "drop_extents",
    "evict",
    "find_commit",
    "find_file_system",
    "find_mount",
    "gather",
    "is_blob",
    "is_url",
    "join_threads",
    "locate_objects",
    "map_in_threads",
    "measure_copying",
    "measure_residency",
    "move_blocks",
    "number_file",
    "open_bucket",
    "open_engine",
    "open_store",
    "page_cache",
    "parse_object_url",
    "pin_hub_urls",
    "probe_io_uring",
    "read_extent",
    "read_machine",
    "readahead_bytes",
    "refuse_first",
    "require_whole",
    "retry_until",
    "start_threads",
    "storage_errors",
    "store",
    "sync_folder",
    "time_reads",
    "trace_file",
    "write_all",
]
