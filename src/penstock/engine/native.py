"""The native engine and arena: the compiled core behind the Engine protocol.

    io_uring   many reads in flight from each thread; the default for large local files
    pread      a pool of threads; works everywhere; the default if storage is not local
    mmap       copies from a map; cheapest for small extents that are in the page cache

`read_method` decides which, from facts about the storage.
"""

from __future__ import annotations

import contextlib
import os
import threading
import warnings
import weakref
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from .. import _core
from ..budget import Budget
from ..errors import LimitError, UsageError
from ..extent import Files, Int, Requests
from .protocol import Backend, Buffer, Completion, Failure, check_usable
from .read_method import (
    INSTALLED_BYTES,
    Facts,
    choose_method,
    compute_open_files_max,
    survey_files,
)
from .request_queue import AGING, PURPOSES, Aging, Purpose, check_purpose, make_tallies
from .threads import name_refusal

crc32c = _core.crc32c
"""CRC-32C of bytes-like data: (data, before=0) -> int, as in the stub of the core."""

gather = _core.gather
move_blocks = _core.move_blocks
sum_moments, count_bins = _core.sum_moments, _core.count_bins

if _core.get_sanitizers():  # nobody should time this build
    warnings.warn(
        f"penstock's core was built with sanitizers: {_core.get_sanitizers()}", stacklevel=2
    )


def standardize(*arguments: Any) -> None:
    """Normalise numbers, as in the stub of the core, which is looked up when it is called."""
    _core.standardize(*arguments)


_backend_numbers: dict[Backend, int] = {"pread": 0, "io_uring": 1, "mmap": 2}
_timeout_ns_max = 1 << 62
_counters = ("bytes", "runs", "extents", "tickets", "opens", "open_ns", "work_ns", "busy_ns")


class NativeEngine:
    """Reads the files of an index with the compiled core; see `penstock.engine.Engine`.

    keep_open_max:  with more files than this, every read opens its file; None is a part of the
                    process's limit of open files.
    tallies:        by purpose, a sum to which the bytes of submitted requests are added.

    A file whose size or modification time differs from `files` is reported with ESTALE. Threads are
    started here and joined by `close`; the garbage collector calls that, too.
    """

    def __init__(
        self,
        files: Files,
        *,
        budget: Budget | None = None,
        mean_bytes: float | None = None,
        keep_open_max: int | None = None,
        aging: Aging = AGING,
        tallies: Mapping[Purpose, Int] | None = None,
    ) -> None:
        budget = budget or Budget()
        if tallies is None:
            tallies = make_tallies()
        self._purposes = {purpose: (aging.of(purpose), tallies[purpose]) for purpose in PURPOSES}
        self._keep_open_max = compute_open_files_max() if keep_open_max is None else keep_open_max
        if mean_bytes is None:
            mean_bytes = float(files.size.mean()) if len(files) else 0.0
        self.files = files
        self._mean_bytes = mean_bytes
        self._budget = budget
        self._facts = survey_files(files, mean_bytes, self._keep_open_max)
        self.choice = choose_method(self._facts, budget)
        with name_refusal("a thread that reads files did not start"):
            self._core = _core.Engine(
                root=os.fsencode(files.root),
                names=files.names,
                ends=files.ends,
                size=files.size,
                mtime_ns=files.mtime_ns,
                keep_max=self._keep_open_max,
                backend=_backend_numbers[self.choice.backend],
                direct=self.choice.direct,
                threads=self.choice.threads,
            )
        self._core.throttle(budget.bytes_per_s or 0.0)

    def submit(
        self, requests: Requests, buffers: Sequence[Buffer], purpose: Purpose = "prefetch"
    ) -> int:
        if self._core.is_closed:
            self._check_usable()
        if purpose not in self._purposes:
            check_purpose(purpose)
        try:
            ticket: int = self._core.submit(*requests, buffers, *self._purposes[purpose])
        except (ValueError, TypeError) as error:
            raise UsageError(f"the engine cannot accept these requests: {error}") from None
        return ticket

    def poll(self, timeout_ns: int) -> list[Completion]:
        if self._core.is_closed:
            self._check_usable()
        return [
            Completion(ticket, tuple(Failure(*failure) for failure in failures) if failures else ())
            for ticket, failures in self._core.poll(min(timeout_ns, _timeout_ns_max))
        ]

    def close(self) -> None:
        if not self._core.is_inherited:
            self._core.close()

    def adopt(self, budget: Budget) -> None:
        """Apply a changed budget to all reads that no thread has started; opens no file."""
        self._check_usable()
        self._apply_choice(self._facts, budget)

    def survey(self) -> None:
        """Survey a few files again, and read in the best way: the page cache may hold more now.

        Opens files, so that it takes long on slow storage.
        """
        self._check_usable()
        self._apply_choice(
            survey_files(self.files, self._mean_bytes, self._keep_open_max), self._budget
        )

    def _apply_choice(self, facts: Facts, budget: Budget) -> None:
        choice = choose_method(facts, budget)
        self._facts, self._budget, self.choice = facts, budget, choice
        self._core.set_backend(_backend_numbers[choice.backend], choice.direct)
        self._core.set_threads(choice.threads)
        self._core.throttle(budget.bytes_per_s or 0.0)

    def counters(self) -> dict[str, int]:
        """Return totals.

        Of finished tickets: bytes, runs (read operations), extents, tickets. Of all started work:
        opens (of files); work_ns, time that threads spent at work or waiting for storage; open_ns,
        the part of it for opening and closing files; busy_ns, time while there was something to
        read.
        """
        check_usable(self._core.is_inherited)
        return dict(zip(_counters, self._core.counters(), strict=True))

    def _check_usable(self) -> None:
        if self._core.is_closed:  # a forked child's engine is closed, too
            check_usable(self._core.is_inherited, is_closed=True)


class Arena:
    """Recycled, pre-faulted, page-aligned memory for batches.

    An array from `take` returns its memory when the last view of it is gone, to be used again.
    Memory kept for reuse, and blocks lent and not handed over, take at most `bytes_max` and one
    block; kept memory makes room, so that only lending more than `bytes_max` exceeds it.
    """

    def __init__(self, bytes_max: int) -> None:
        self._core = _core.Arena(bytes_max)
        self.hand_over: Callable[[Buffer], None] = self._core.hand_over
        """Count an array of `take` as the user's from now on: only `lent_bytes` includes it."""
        self.has_room: Callable[[list[int], int], bool] = self._core.has_room
        """Tell whether blocks of these sizes, and so many bytes, fit below `bytes_max`."""

    def take(self, size_bytes: int) -> Buffer:
        """Return a writable uint8 array of the given size; its content is undefined."""
        try:
            if size_bytes > INSTALLED_BYTES:
                raise MemoryError
            block: Buffer = self._core.take(size_bytes)
        except MemoryError:
            what = f"no memory for a batch of {size_bytes:,} bytes"
            raise LimitError(f"{what}: lower batch_size, or cut samples into several") from None
        return block

    def prepare(self, size_bytes: int, count: int) -> None:
        """Touch memory for so many arrays of a size, as the bound has room, in a thread.

        For 28 MB that takes 15 to 70 ms, which the first batches need not wait for. It ends with
        the arena, or with the main thread.
        """
        known = weakref.ref(self)

        def touch() -> None:
            for _ in range(count):
                arena = known() if threading.main_thread().is_alive() else None
                if arena is None or not arena._core.prepare(size_bytes, 1):
                    break

        with contextlib.suppress(RuntimeError):  # no thread is to be had
            threading.Thread(target=touch, name="penstock-memory").start()

    def limit(self, bytes_max: int) -> None:
        """Change the bound. Memory kept above it is freed at once."""
        self._core.bytes_max = bytes_max

    @property
    def bytes_max(self) -> int:
        """Bound of the memory that is kept, or lent and not handed over."""
        return int(self._core.bytes_max)

    @property
    def ahead_bytes(self) -> int:
        """Bytes in arrays that are alive and not handed over."""
        return int(self._core.ahead_bytes)

    @property
    def lent_bytes(self) -> int:
        """Bytes in arrays that are alive."""
        return int(self._core.lent_bytes)

    @property
    def kept_bytes(self) -> int:
        """Bytes that are kept for reuse."""
        return int(self._core.kept_bytes)
