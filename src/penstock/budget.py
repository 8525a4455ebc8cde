"""The budget of a loader: resources that it may use. It affects speed, never content.

Two loaders that differ only in their budgets give the same batches in the same order.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any, Literal

from . import limits
from .arguments import check_fields, choice, rate, real, whole
from .errors import UsageError

FastPath = Literal["required", "auto", "off"]
"""Use of a fast path: it must be used, may be used if it helps, or must not be used."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Budget:
    """Resources granted to one loader; every field can change while it runs.

        Budget(threads=8, bytes_per_s=500e6)  # at most 500 MB/s from storage

    threads:          reading threads; None lets the engine choose.
    requests:         requests to an object store in flight; None is 64.
    bytes_per_s:      bandwidth drawn from storage; None is unlimited.
    process_bytes_per_s:  bandwidth that this process draws from storage for everything: loaders,
                      checkpoints and conversions, more urgent purposes first. The lowest value of
                      all budgets in use counts. Local tiers and worker processes are not included.
                      None is unlimited.
    cores:            processor time a second for decoding, averaged over tens of ms; fractions are
                      time-shared; None is unlimited.
    readahead_bytes:  memory for batches in preparation and the user's, decoded chunks, cache blocks
                      in transit and all that is kept for reuse. One step beyond it is allowed, two
                      if it is less than two. Memory that `collate` and `decode` keep does not
                      count. A lower value frees what is kept at once, the rest step by step.
    decoded_bytes:    memory beside that for chunks that stay decoded, of data in compressed chunks;
                      None takes half of `readahead_bytes`, 256 MiB at most. With room for all that
                      an epoch decodes, each chunk is decoded once.
    io_uring, mmap, pread:  backends of the engine; one of them reads. A read that a ring refuses
                      while running uses pread even if pread is "off".
    direct:           O_DIRECT, bypassing the page cache.
    """

    threads: int | None = field(default=None, metadata=whole(1, limits.threads_max))
    requests: int | None = field(default=None, metadata=whole(1, limits.object_requests_max))
    bytes_per_s: float | None = field(default=None, metadata=rate())
    process_bytes_per_s: float | None = field(default=None, metadata=rate())
    cores: float | None = field(default=None, metadata=real(0, limits.threads_max, above=True))
    readahead_bytes: int = field(
        default=limits.readahead_bytes_default, metadata=whole(1, limits.readahead_bytes_max)
    )
    decoded_bytes: int | None = field(default=None, metadata=whole(0, limits.readahead_bytes_max))
    io_uring: FastPath = field(default="auto", metadata=choice(FastPath))
    mmap: FastPath = field(default="auto", metadata=choice(FastPath))
    pread: FastPath = field(default="auto", metadata=choice(FastPath))
    direct: FastPath = field(default="auto", metadata=choice(FastPath))

    def __post_init__(self) -> None:
        check_fields(self)
        backends = ("io_uring", "mmap", "pread")
        required = [name for name in backends if getattr(self, name) == "required"]
        if len(required) > 1:
            names = " and ".join(f"Budget.{name}" for name in required[:2])
            raise UsageError(f"{names} are both 'required': choose one")
        if all(getattr(self, name) == "off" for name in backends):
            raise UsageError("Budget.io_uring, mmap and pread are all 'off': something must read")
        if self.mmap == "required" and self.direct == "required":
            raise UsageError("Budget.mmap and Budget.direct are both 'required': choose one")

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
