"""The budget of a loader: resources that it may use. It affects speed, never content.

Two loaders that differ only in their budgets give the same batches in the same order.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any, Literal, get_args

from . import limits
from .arguments import check_whole
from .errors import UsageError

FastPath = Literal["required", "auto", "off"]
"""Use of a fast path: it must be used, may be used if it helps, or must not be used."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Budget:
    """Resources granted to one loader; every field can change while it runs.

    threads:          reading threads; None lets the engine choose for its backend.
    requests:         requests to an object store in flight; None is 64.
    bytes_per_s:      bandwidth drawn from storage; None is unlimited.
    process_bytes_per_s:  bandwidth that all of this process draws from storage, its loaders' reads
                      and the writes of its checkpoints and conversions together; more urgent
                      purposes go first. Of several budgets in use the lowest value holds, and each
                      user keeps within its own `bytes_per_s` besides. None is unlimited. Tiers on
                      local disks do not count, and worker processes are processes of their own.
    cores:            processor time a second that decoding takes, on average over some tens of ms;
                      fractions are time-shared; None is unlimited.
    readahead_bytes:  memory for batches that are requested, being decoded or ready, but not handed
                      over, for chunks that are kept decoded, for cache blocks on their way to or
                      from the disk of a cache, for samples on their way from a cache to other
                      hosts, and for what is kept to be used again. All of it takes no more than
                      this and one step (its bytes, its decoded batch, its cache blocks of the disk,
                      and one answer to another host); at least one step is always allowed. What
                      `collate` and `decode` keep themselves does not count. A lower value frees
                      what is kept at once, and the rest as batches are handed over.
    io_uring, mmap, pread:  backends of the engine, of which one reads. With pread "off" it is not
                      chosen at the start; a read that a ring refuses while running still uses it,
                      so that it is not lost.
    direct:           O_DIRECT, which bypasses the page cache.
    """

    threads: int | None = None
    requests: int | None = None
    bytes_per_s: float | None = None
    process_bytes_per_s: float | None = None
    cores: float | None = None
    readahead_bytes: int = limits.readahead_bytes_default
    io_uring: FastPath = "auto"
    mmap: FastPath = "auto"
    pread: FastPath = "auto"
    direct: FastPath = "auto"

    def __post_init__(self) -> None:
        for name, most in (
            ("threads", limits.threads_max),
            ("requests", limits.object_requests_max),
            ("readahead_bytes", limits.readahead_bytes_max),
        ):
            value = getattr(self, name)
            if value is not None or name == "readahead_bytes":
                object.__setattr__(self, name, check_whole(f"Budget.{name}", value, 1, most))
        for name in ("bytes_per_s", "process_bytes_per_s"):
            rate = getattr(self, name)
            if rate is not None and not (
                type(rate) is not bool
                and isinstance(rate, (int, float))
                and (0 < rate < 1 << 1000 or rate == math.inf)
            ):
                raise UsageError(
                    f"Budget.{name} is {rate!r}: use None (unlimited) or a rate above 0"
                )
        if self.cores is not None and not (
            isinstance(self.cores, (int, float))
            and type(self.cores) is not bool
            and 0 < self.cores <= limits.threads_max
        ):
            raise UsageError(
                f"Budget.cores is {self.cores!r}: use None (unlimited), or a number above 0, at "
                f"most {limits.threads_max}"
            )
        for name in ("io_uring", "mmap", "pread", "direct"):
            value = getattr(self, name)
            if value not in get_args(FastPath):
                raise UsageError(
                    f"Budget.{name} is {value!r}: use one of {', '.join(get_args(FastPath))}"
                )
        backends = ("io_uring", "mmap", "pread")
        required = [name for name in backends if getattr(self, name) == "required"]
        if len(required) > 1:
            raise UsageError(
                f"Budget.{required[0]} and Budget.{required[1]} are both 'required': only one "
                "backend reads"
            )
        if all(getattr(self, name) == "off" for name in backends):
            raise UsageError("Budget.io_uring, mmap and pread are all 'off': something must read")
        if self.mmap == "required" and self.direct == "required":
            raise UsageError(
                "Budget.mmap and Budget.direct are both 'required': a map reads through the page"
                " cache"
            )

    @property
    def disk_buffer_bytes(self) -> int:
        """Part of `readahead_bytes` for cache blocks on their way to or from a cache's disk."""
        return min(limits.disk_buffers_bytes_max, self.readahead_bytes // 4)

    @property
    def peer_answers_bytes(self) -> int:
        """Part of `readahead_bytes` for copies of samples on their way to other hosts."""
        return min(limits.peer_answers_bytes_max, self.readahead_bytes // 4)

    def replace(self, **changes: Any) -> Budget:
        """Return a copy with these fields changed, checked again."""
        return replace(self, **changes)
