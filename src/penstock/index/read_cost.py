"""Cost of reading a dataset, by a few timed reads of its own samples and files (`time_reads`)."""

from __future__ import annotations

import errno
import time
from collections.abc import Callable

import numpy as np

from .. import limits
from ..engine.host import ProbeResult, draw_large_extents, time_reads
from ..engine.protocol import ReadingEngine
from ..engine.store import build_changed_error, build_storage_error
from ..errors import PenstockError
from ..extent import Extents
from ..order.order import Order
from ..order.shuffling import ReadCost
from .layout import Chunked
from .table import Index

_SAMPLES_PROBED = 4096
_STALE = errno.ESTALE


def measure_cost(
    index: Index,
    engine: ReadingEngine,
    *,
    large_bytes: int = limits.run_bytes_max,
    most_bytes: int | None = None,
    ready: Callable[[Extents], Extents] = lambda extents: extents,
) -> ProbeResult:
    """Time reads of single samples and of `large_bytes`, through an engine over the same files.

    most_bytes:  rough limit of the bytes read; None: `time_reads` limits its time only.
    ready:       see `time_reads`.

    A read that fails raises its error.
    """
    # Other places each time, because the data of the last measurement are in the page cache.
    seed = time.time_ns()
    small, large = _draw_small(index, seed), draw_large_extents(index.files.size, seed, large_bytes)
    if most_bytes is not None:
        small, large = _cut_extents(small, most_bytes // 2), _cut_extents(large, most_bytes // 2)

    def fault(extents: Extents, row: int, code: int) -> PenstockError:
        path, offset = index.files.path(int(extents.file[row])), int(extents.offset[row])
        if code > 0 and code != _STALE:
            return build_storage_error(code, path, f" (byte {offset:,})")
        what = "the file is of another size or modification time"
        return build_changed_error(f"{path} at byte {offset:,}", what)

    return time_reads(engine, small, large, fault, engine.choice.threads, ready)


def summarize_cost(probed: ProbeResult) -> ReadCost:
    """Reduce a measurement to the costs that policies use."""
    requests = max(1.0, probed.reads_per_s * probed.latency_ns * 1e-9)
    return ReadCost(probed.latency_ns, probed.bytes_per_s, requests)


def _cut_extents(extents: Extents, most_bytes: int) -> Extents:
    """Cut extents down to the first ones of so many bytes, at least two."""
    count = max(2, int(np.searchsorted(np.cumsum(extents.length), most_bytes, side="right")))
    return Extents(extents.file[:count], extents.offset[:count], extents.length[:count])


def _draw_small(index: Index, seed: int) -> Extents:
    """Draw extents of samples, or compressed chunks, by the seed, of the field with the most bytes.

    Long ones are cut to the length that one read may have.
    """
    totals = [layout.total_bytes for layout in index.layouts]
    field = totals.index(max(totals))
    layout = index.layouts[field]
    units = layout.chunks.count if isinstance(layout, Chunked) else layout.count
    ids = Order(units, seed).run(0, min(units, _SAMPLES_PROBED))
    extents, _ = index.units(ids, field)
    whole = extents.length > 0
    length = np.minimum(extents.length[whole], limits.run_bytes_max)
    return Extents(extents.file[whole], extents.offset[whole], length)
