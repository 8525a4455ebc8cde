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
    from . import atomic_file as atomic_file
    from . import page_cache as page_cache
    from . import storage_queue as storage_queue
    from . import store as store
    from . import threads as threads
    from . import trace_file as trace_file
    from .atomic_file import AtomicFile as AtomicFile
    from .atomic_file import Bytes as Bytes
    from .atomic_file import QueuedFile as QueuedFile
    from .atomic_file import storage_errors as storage_errors
    from .atomic_file import sync_folder as sync_folder
    from .atomic_file import write_all as write_all
    from .host import Machine as Machine
    from .host import Mount as Mount
    from .host import ProbeResult as ProbeResult
    from .host import draw_large_extents as draw_large_extents
    from .host import find_mount as find_mount
    from .host import measure_copying as measure_copying
    from .host import read_machine as read_machine
    from .host import readahead_bytes as readahead_bytes
    from .host import time_reads as time_reads
    from .hub import find_commit as find_commit
    from .hub import is_blob as is_blob
    from .hub import pin_hub_urls as pin_hub_urls
    from .native import INSTALLED_BYTES as INSTALLED_BYTES
    from .native import Arena as Arena
    from .native import crc32c as crc32c
    from .native import gather as gather
    from .native import move_blocks as move_blocks
    from .object_client import Bucket as Bucket
    from .object_client import ObjectInfo as ObjectInfo
    from .object_client import ObjectRefused as ObjectRefused
    from .object_client import retry_until as retry_until
    from .object_store import locate_objects as locate_objects
    from .object_store import open_bucket as open_bucket
    from .object_store import parse_object_url as parse_object_url
    from .open import add_mirrors as add_mirrors
    from .open import is_url as is_url
    from .open import open_engine as open_engine
    from .open import open_store as open_store
    from .open import read_extent as read_extent
    from .page_cache import Residency as Residency
    from .page_cache import drop_extents as drop_extents
    from .page_cache import evict as evict
    from .page_cache import measure_residency as measure_residency
    from .probe import LOCAL as LOCAL
    from .probe import compute_open_files_max as compute_open_files_max
    from .probe import find_file_system as find_file_system
    from .probe import probe_io_uring as probe_io_uring
    from .protocol import Buffer as Buffer
    from .protocol import Completion as Completion
    from .protocol import Engine as Engine
    from .protocol import Failure as Failure
    from .protocol import Mask as Mask
    from .protocol import ReadingEngine as ReadingEngine
    from .protocol import ReadMethod as ReadMethod
    from .protocol import check_buffers as check_buffers
    from .protocol import check_requests as check_requests
    from .protocol import check_usable as check_usable
    from .protocol import describe_argument as describe_argument
    from .protocol import refuse_first as refuse_first
    from .request_queue import AGING as AGING
    from .request_queue import Aging as Aging
    from .request_queue import Dispatch as Dispatch
    from .request_queue import Kind as Kind
    from .request_queue import Policy as Policy
    from .request_queue import Purpose as Purpose
    from .request_queue import Request as Request
    from .request_queue import RequestQueue as RequestQueue
    from .request_queue import RoundRobin as RoundRobin
    from .request_queue import Target as Target
    from .request_queue import check_purpose as check_purpose
    from .storage_queue import PROCESS_QUEUE as PROCESS_QUEUE
    from .storage_queue import PurposeTotals as PurposeTotals
    from .storage_queue import QueuedEngine as QueuedEngine
    from .storage_queue import StorageQueue as StorageQueue
    from .storage_queue import Turn as Turn
    from .storage_queue import number_file as number_file
    from .store import Listing as Listing
    from .store import Posix as Posix
    from .store import Progress as Progress
    from .store import Store as Store
    from .store import StoreFile as StoreFile
    from .store import build_changed_error as build_changed_error
    from .store import build_storage_error as build_storage_error
    from .store import map_in_threads as map_in_threads
    from .threads import ThreadPool as ThreadPool
    from .threads import WakeUp as WakeUp
    from .threads import build_refusal as build_refusal
    from .threads import join_threads as join_threads
    from .threads import start_threads as start_threads
    from .trace_file import CLOSE as CLOSE
    from .trace_file import KINDS as KINDS
    from .trace_file import MAP as MAP
    from .trace_file import OPEN as OPEN
    from .trace_file import OPEN_DIRECT as OPEN_DIRECT
    from .trace_file import READ as READ
    from .trace_file import STAT as STAT
    from .trace_file import Operations as Operations
    from .trace_file import Trace as Trace
    from .trace_file import TraceWriter as TraceWriter
else:
    __all__, __getattr__ = hand_out(
        __name__,
        {
            "atomic_file": "AtomicFile Bytes QueuedFile atomic_file storage_errors sync_folder "
            "write_all",
            "host": "Machine Mount find_mount read_machine readahead_bytes ProbeResult "
            "draw_large_extents measure_copying time_reads",
            "hub": "find_commit is_blob pin_hub_urls",
            "native": "Arena INSTALLED_BYTES crc32c gather move_blocks",
            "object_client": "Bucket ObjectInfo ObjectRefused retry_until",
            "object_store": "locate_objects open_bucket parse_object_url",
            "open": "add_mirrors is_url open_engine open_store read_extent",
            "page_cache": "Residency drop_extents evict measure_residency page_cache",
            "probe": "LOCAL compute_open_files_max find_file_system probe_io_uring",
            "protocol": "Buffer Completion Engine Failure Mask ReadMethod ReadingEngine "
            "check_buffers check_requests check_usable describe_argument refuse_first",
            "request_queue": "AGING Aging Dispatch Kind Policy Purpose Request RequestQueue RoundRobin "
            "Target check_purpose",
            "storage_queue": "PROCESS_QUEUE PurposeTotals QueuedEngine StorageQueue Turn number_file "
            "storage_queue",
            "store": "Listing Posix Progress Store StoreFile build_changed_error "
            "build_storage_error map_in_threads store",
            "threads": "ThreadPool WakeUp build_refusal join_threads start_threads threads",
            "trace_file": "CLOSE KINDS MAP OPEN OPEN_DIRECT Operations READ STAT Trace TraceWriter "
            "trace_file",
        },
    )
