"""Engine of a rank over the caches of its job: node's tiers, peers, storage.

`CachedEngine` executes requests of keys (`key_index`). The bytes of a key come from:

    a replica here                copied from it (`replicas`), if replicas are wanted
    cache block of this node      copied from the slab, into which the first rank that wants it
                                  reads it; or from the cache block read from this node's disk
    cache block of another node   fetched from that node, which reads what it does not have yet
    cache block of no node        read from storage, into the batch

If any of the first three ways fails (no room in the slab; a peer that is gone or slow, or has no
such cache block), the key is read from storage. So a batch is never wrong, and waits no longer than
a peer's deadline. Later batches do not wait for a failed peer: it is asked for one key at a time,
in the background, until it answers again. Errors of storage are reported as any engine reports
them.

`penstock.plan.CacheSession` decides all of this, and `CacheShell` performs it in threads. A hit
does without both: if the node's memory has all keys of a small request, `submit` copies them.
"""

from __future__ import annotations

import errno
import functools
import logging
import threading
import weakref
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from .. import limits
from ..budget import Budget
from ..engine.open import open_store
from ..engine.protocol import Buffer, Completion, ReadMethod, check_requests
from ..engine.request_queue import Purpose, check_purpose
from ..engine.store import build_changed_error, build_storage_error
from ..engine.threads import start_threads
from ..errors import PenstockError
from ..extent import Files, Requests, slice_files
from .replicas import UseTimes
from .shell import CacheShell, SubmittedStep

log = logging.getLogger("penstock")

_direct_bytes_max = 4 << 20
"""Bytes of a request that `submit` copies: below a millisecond. More is copied behind the user."""
_sources = ("loaded", "ram", "disk", "replica", "peer", "direct", "served")


class CachedEngine:
    """Engine that executes requests of keys; see the module, and `penstock.engine.Engine`.

    It ends with `close`, or with the last reference to it: then too its threads end, and its
    descriptors and shared memory are given back. The arguments are `CacheShell`'s.
    """

    def __init__(self, *arguments: Any, **options: Any) -> None:
        # The threads refer to the shell alone, so that the engine can end with its last reference.
        self._shell = shell = CacheShell(*arguments, **options)
        files, world = shell.addressed.index.files, len(shell.nodes)
        first, end = (len(files) * rank // world for rank in (shell.rank, shell.rank + 1))
        on_change = functools.partial(_fail, weakref.ref(shell))
        self._check = SourceCheck(slice_files(files, first, end), on_change)
        self._finalizer = weakref.finalize(self, shell.close)
        self._finalizer.atexit = False  # threads that wait for storage must not delay the end
        try:
            shell.start()
        except BaseException:
            self.close()
            raise

    @property
    def choice(self) -> ReadMethod:
        """Method by which storage is read."""
        return self._shell.inner.choice

    def submit(
        self,
        requests: Requests,
        buffers: Sequence[Buffer],
        purpose: Purpose = "prefetch",
        uses: UseTimes | None = None,
    ) -> int:
        """Accept requests of keys, as `Addressed` gives them.

        purpose:  of the reads from storage, also of cache blocks to be kept. A read for a peer is a
                  demand.
        uses:     times at which the ranks of this node use samples, from the epoch of these
                  requests on. Without it replicas are neither read nor made.
        """
        shell = self._shell
        check_requests(requests, buffers, len(shell.addressed.index.files))
        check_purpose(purpose)
        shell.reports.check_usable()
        size_bytes = int(requests.length.sum())
        if size_bytes <= _direct_bytes_max and self._copy_hits(requests, buffers):
            return shell.accept(None, size_bytes)
        return shell.accept(SubmittedStep(requests, list(buffers), purpose, uses))

    def _copy_hits(self, requests: Requests, buffers: Sequence[Buffer]) -> bool:
        """Copy the keys if this node's memory has all of them; return whether it has."""
        shell, length = self._shell, requests.length
        keys = requests.offset.view(np.uint64)
        places = shell.session.find_in_memory(keys)
        if places is None:
            return False
        cache_blocks, slots = places
        at = shell.slab.offsets(slots)
        if len(at) and at.min() < 0:  # not there yet
            return False
        # A slot that is ready stays so: nothing is evicted.
        at = at + shell.layout.find_offsets(keys, cache_blocks)
        if len(buffers) == 1:
            shell.slab.gather(at, length, buffers[0], requests.target)
        else:
            for number, buffer in enumerate(buffers):
                rows = np.flatnonzero(requests.buffer == number)
                shell.slab.gather(at[rows], length[rows], buffer, requests.target[rows])
        return True

    def poll(self, timeout_ns: int) -> list[Completion]:
        """Report finished tickets."""
        return self._shell.reports.poll(timeout_ns)

    def adopt(self, budget: Budget) -> None:
        """Pass the budget on to the storage engine and the disk, and bound the memory of answers to
        peers."""
        shell = self._shell
        shell.inner.adopt(budget)
        if shell.disk is not None:
            shell.disk.arena.limit(budget.disk_buffer_bytes)
        shell.answers.limit(budget.peer_answers_bytes)
        shell.session.disk_buffer_bytes = budget.disk_buffer_bytes
        shell.session.answer_bytes = budget.peer_answers_bytes

    def measure_buffers(self, budget: Budget) -> int:
        """Return the bytes of a budget that this engine's own buffers may take."""
        answers_bytes = 0 if self._shell.peer is None else budget.peer_answers_bytes
        return answers_bytes + (budget.disk_buffer_bytes if self._shell.disk else 0)

    def survey(self) -> None:
        """Look whether files have changed since they were indexed; see `SourceCheck`.

        A changed file ends this engine with ChangedError, at once or, where storage is slow, later
        in the epoch. Each rank looks at its part of the files.
        """
        self._check.start()

    def counters(self) -> dict[str, int]:
        """Return the counters of the storage engine and of the cache.

        ram_bytes, disk_bytes, replica_bytes, peer_bytes, direct_bytes:  sources of batches' bytes.
        loaded_bytes:  read from storage to be kept.
        served_bytes:  given to peers.
        slab_*:        `SlabCounters`, of all ranks of this host.
        disk_blocks_*: cache blocks that this rank has read from the disk tier and written to it;
                       damaged ones are read from storage again.
        failed_actions:  fetches, writes to the disk and the like that failed and were replaced.

        Further counters count how often a key took another way.
        """
        shell = self._shell
        counts = shell.inner.counters() | {f"{name}_bytes": 0 for name in _sources}
        counts |= dict(shell.session.counts)
        counts["ram_bytes"] += shell.copied_bytes
        counts["failed_actions"] = counts.get("failed_actions", 0) + shell.failed_writes
        groups: dict[str, dict[str, int]] = {"slab": shell.slab.counters()._asdict()}
        if shell.disk is not None:
            groups["disk_blocks"] = shell.disk.own_counters()._asdict()
        if shell.peer is not None:
            groups["peer"] = shell.peer.counters()
        return counts | {
            f"{group}_{name}": count
            for group, named in groups.items()
            for name, count in named.items()
        }

    def close(self) -> None:
        """End the threads, the storage engine, the slab and the peer."""
        self._finalizer()


def _fail(shell: weakref.ref[CacheShell], error: PenstockError) -> None:
    if (alive := shell()) is not None:
        alive.reports.fail(error)


class SourceCheck:
    """Check in the background that kept files are still as they were indexed.

    An engine without a cache sees a changed file when it opens it. An engine that serves kept bytes
    opens nothing, and asks storage for sizes and times.

    files:      with their sizes and times, or versions, when indexed.
    on_change:  called with the error that names the first changed file, at most once.

    Storage that does not answer, or fails, is no change: kept bytes are still the index's. A failed
    check is a warning in the log.
    """

    def __init__(self, files: Files, on_change: Callable[[PenstockError], None]) -> None:
        self._files = files
        self._on_change = on_change
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        """Start a check, unless the last one still waits for storage.

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
        try:
            self._check()
        except Exception as error:
            what = "files below %s could not be looked at again, kept bytes are used: %s"
            is_ours = not isinstance(error, PenstockError)  # memory, or a defect of ours
            cause = repr(error) if is_ours else error
            log.warning(what, self._files.root, cause, exc_info=is_ours)

    def _check(self) -> None:
        was = self._files
        now, errors = open_store(was.root).probe(was)
        gone = np.isin(errors, (errno.ENOENT, errno.ENOTDIR))
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
