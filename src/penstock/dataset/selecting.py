"""Selections: which samples a `Dataset.select` keeps, and which part of a `split` each goes to.

Both are decided for stretches of samples in threads, and kept as one bit a sample and part.
"""

from __future__ import annotations

import hashlib
import math
import os
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from .. import limits
from ..arguments import check_number, check_whole
from ..engine.threads import ThreadPool
from ..errors import UsageError
from ..order.keys import Words, hash_words
from ..order.order import Order
from ..order.selection import Bitmap, Subset, allot_words, set_bits
from .columns import Array, Columns, IndexedSamples, WideTextsError, make_array, slice_column
from .predicate import Predicate

Condition = str | Callable[[Mapping[str, Array]], Any]
By = str | Callable[[Mapping[str, Array]], Any]
_Decide = Callable[[int, int], npt.NDArray[Any]]


def choose_samples(
    dataset: IndexedSamples,
    *,
    ids: Any = None,
    mask: Any = None,
    where: Condition | None = None,
    fraction: float | None = None,
    seed: int = 0,
    columns: Mapping[str, Any] | None = None,
) -> Bitmap:
    """Return the set of the chosen samples, numbered as `dataset[i]`; see `Dataset.select`."""
    given = {"ids": ids, "mask": mask, "where": where, "fraction": fraction}
    named = [name for name, value in given.items() if value is not None]
    if len(named) != 1:
        shown = " and ".join(named) or "nothing"
        raise UsageError(f"select was given {shown}: give one of ids, mask, where, fraction")
    if columns is not None and where is None:
        raise UsageError("columns are for where=, which is not given: leave them out")
    count = len(dataset)
    if ids is not None:
        chosen = _choose_ids(ids, count)
    elif mask is not None:
        chosen = _choose_mask("mask", mask, count)
    elif where is not None:
        chosen = _choose_where(where, Columns(dataset, columns), dataset.classes, count)
    else:
        kept = np.uint64(round(check_number("fraction", fraction, 0, 1, above=True) * count))
        order = Order(count, seed, purpose="selection")

        def is_kept(start: int, stop: int) -> Array:
            return order.positions(np.arange(start, stop, dtype=np.uint64)) < kept

        chosen = _pack(count, is_kept)
    if not len(chosen):
        shown = f"{where!r:.300}" if where is not None else f"that {named[0]}"
        raise UsageError(f"{dataset.path}: {shown} selects none of the {count:,} samples")
    return chosen


def narrow(subset: Subset, chosen: Bitmap) -> Bitmap:
    """Return the samples of `subset` whose numbers in it were chosen."""
    words = allot_words(subset.count)
    for start in range(0, len(chosen), limits.selection_chunk_samples):
        stop = min(start + limits.selection_chunk_samples, len(chosen))
        samples = np.arange(start, stop, dtype=np.uint64)
        chosen.forward(samples, samples)
        subset.forward(samples, samples)
        set_bits(words, subset.count, samples)
    return Bitmap.from_words(subset.count, words)


def cut(chosen: Bitmap, start: int, stop: int) -> Bitmap:
    """Return the members of a set in [start, stop), numbered from `start` on."""
    words = allot_words(stop - start)
    need = -(-(stop - start) // 64)
    low, shift = divmod(start, 64)
    padded = np.zeros(need + 1, np.uint64)
    given = chosen.words[low : low + need + 1]
    padded[: len(given)] = given
    words[:need] = padded[:-1] >> np.uint64(shift)
    if shift:
        words[:need] |= padded[1:] << np.uint64(64 - shift)
    rest = (stop - start) % 64
    if rest:
        words[need - 1] &= np.uint64((1 << rest) - 1)
    return Bitmap.from_words(stop - start, words)


# -- what is selected ------------------------------------------------------------------------------


def _choose_ids(ids: Any, count: int) -> Bitmap:
    if isinstance(ids, range):
        if len(ids) and not (0 <= ids[0] < count and 0 <= ids[-1] < count):
            raise UsageError(f"ids is {ids!r}: use 0..{count - 1}")
        low, high = sorted((ids[0], ids[-1])) if len(ids) else (0, -1)
        step = np.uint64(min(abs(ids.step), 2**63))

        def is_in_range(start: int, stop: int) -> npt.NDArray[np.bool_]:
            samples = np.arange(start, stop, dtype=np.uint64)
            inside = (samples >= np.uint64(low)) & (samples <= np.uint64(max(high, 0)))
            if step != 1:
                inside &= (samples - np.uint64(low)) % step == 0
            return inside & (high >= 0)

        return _pack(count, is_in_range)
    if not hasattr(ids, "__array__"):
        if isinstance(ids, str | bytes) or not isinstance(ids, Iterable):
            raise UsageError(f"ids is {ids!r:.100}: give sample numbers, or a range of them")
        ids = list(ids)
    array = make_array("ids", ids, "iu")
    wide = array.astype(np.uint64 if array.dtype.kind == "u" else np.int64, copy=False)
    return Bitmap.from_samples(count, np.ascontiguousarray(wide))


def _choose_mask(name: str, mask: Any, count: int) -> Bitmap:
    array = make_array(name, mask, "b", count)
    return _pack(count, lambda start, stop: array[start:stop])


def _choose_where(
    where: Condition, columns: Columns, classes: tuple[str, ...] | None, count: int
) -> Bitmap:
    if callable(where):
        return _choose_mask("what where returned", where(columns), count)
    if not isinstance(where, str):
        raise UsageError(f"where is {where!r:.100}: give a condition as text, or a function")
    predicate = Predicate(where, columns.kinds, classes)
    slices = {name: columns.find(name) for name in predicate.names}

    def decide(start: int, stop: int) -> npt.NDArray[np.bool_]:
        return predicate({name: values(start, stop) for name, values in slices.items()})

    return _pack(count, _divide_wide(decide))


def _divide_wide(decide: Callable[[int, int], Array]) -> Callable[[int, int], Array]:
    """Return the function that asks about fewer samples at a time where a text is long."""

    def decide_in_parts(start: int, stop: int) -> Array:
        try:
            return decide(start, stop)
        except WideTextsError:
            middle = (start + stop) // 2
            halves = decide_in_parts(start, middle), decide_in_parts(middle, stop)
            return np.concatenate(halves)

    return decide_in_parts


# -- parts that do not overlap ---------------------------------------------------------------------


def divide_samples(
    dataset: IndexedSamples,
    fractions: Mapping[str, float],
    by: By | None,
    seed: int,
    columns: Mapping[str, Any] | None,
) -> dict[str, Bitmap]:
    """Return the samples of each part, numbered as `dataset[i]`; see `Dataset.split`."""
    if not isinstance(fractions, Mapping) or not 0 < len(fractions) <= 256:
        raise UsageError(f"parts is {fractions!r:.100}: give a dict of fractions by name")
    shares = [
        check_number(f"the part {name!r}", fraction, 0, 1, above=True)
        for name, fraction in fractions.items()
    ]
    total, count = math.fsum(shares), len(dataset)
    if abs(total - 1) > 1e-9:
        missing = f"; add a part of {1 - total:.6g} for the rest" if total < 1 else ""
        raise UsageError(f"the parts add up to {total:.6g}: they must add up to 1{missing}")
    if columns is not None and by is None:
        raise UsageError("columns are for by=, which is not given: leave them out")
    ends = np.cumsum(np.array(shares) / total)
    order = Order(count, seed, purpose="selection")
    bounds = np.rint(ends[:-1] * count).astype(np.uint64)

    def divide_by_place(start: int, stop: int) -> Array:  # exact, to within a sample
        places = order.positions(np.arange(start, stop, dtype=np.uint64))
        return np.searchsorted(bounds, places, side="right")

    decide: _Decide = divide_by_place
    if by is not None:
        decide = _divide_by_value(dataset, Columns(dataset, columns), by, ends, seed)
    chosen = dict(zip(fractions, _pack_parts(count, decide, len(shares)), strict=True))
    if empty := [name for name, samples in chosen.items() if not len(samples)]:
        what = f"the part {empty[0]!r} of {fractions[empty[0]]}"
        raise UsageError(f"{dataset.path}: {what} has none of the {count:,} samples")
    return chosen


def _divide_by_value(
    dataset: IndexedSamples, columns: Columns, by: By, ends: npt.NDArray[np.float64], seed: int
) -> _Decide:
    """Divide by a keyed hash of a value: equal values go to one part, whatever else there is."""
    bounds = np.array([min(int(end * 2.0**64), 2**64 - 1) for end in ends[:-1].tolist()], np.uint64)
    key = Order(1, check_whole("seed", seed, 0, (1 << 64) - 1), purpose="selection").key()
    if isinstance(by, str):
        if columns.kinds.get(by) == "list":
            raise UsageError(f"by is {by!r}, a list of each sample: name a column of one value")
        if by == "key" and dataset.index.counts_over_files:
            keys = f"keys such as {dataset.index.key(0)!r} count samples over all files"
            raise UsageError(f"by is 'key', and {keys}: name a column that tells samples apart")
        values = columns.find(by)
    elif callable(by):
        values = slice_column(make_array("what by returned", by(columns), "biufU", len(dataset)))
    else:
        raise UsageError(f"by is {by!r:.100}: give the name of a column, or a function")

    def decide(start: int, stop: int) -> npt.NDArray[Any]:
        return np.searchsorted(bounds, _hash_values(values(start, stop), key), side="right")

    return _divide_wide(decide)


def _hash_values(values: Array, key: int) -> Words:
    """Hash values to 64 bits; equal ones alike, whatever their dtype."""
    if values.dtype.kind == "U":
        texts, rows = np.unique(values, return_inverse=True)
        salt = key.to_bytes(8, "little")
        hashes = [
            hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=8, key=salt)
            for text in texts.tolist()
        ]
        words = np.array([int.from_bytes(h.digest(), "little") for h in hashes], np.uint64)
        return words[rows]
    if values.dtype.kind == "f":
        wide = values.astype(np.float64) + 0.0  # -0.0 is 0.0
        wide[np.isnan(wide)] = np.nan
        whole = (wide == np.floor(wide)) & (np.abs(wide) < 2.0**63)
        words = wide.view(np.uint64).copy()
        words[whole] = wide[whole].astype(np.int64).view(np.uint64)
        return hash_words(words, key)
    wide_integers = values.astype(np.uint64 if values.dtype == np.uint64 else np.int64)
    return hash_words(wide_integers.view(np.uint64), key)


# -- bits ------------------------------------------------------------------------------------------


def _pack(count: int, decide: _Decide) -> Bitmap:
    """Return the set of the samples for which `decide` gives True."""
    return _pack_parts(count, lambda start, stop: np.logical_not(decide(start, stop)), 1)[0]


def _pack_parts(count: int, decide: _Decide, part_count: int) -> list[Bitmap]:
    """Return the sets of the samples for which `decide` gives 0, 1, ...

    decide:  gives the part of each of the samples [start, stop); called in threads.
    """
    chunk = limits.selection_chunk_samples
    columns = [allot_words(count) for _ in range(part_count)]
    octets = [words.view(np.uint8) for words in columns]

    def work(start: int) -> None:
        stop = min(start + chunk, count)
        part_of = decide(start, stop)
        for number, target in enumerate(octets):
            bits = np.packbits(part_of == number, bitorder="little")
            target[start // 8 : start // 8 + len(bits)] = bits

    starts = range(0, count, chunk)
    threads = min(len(os.sched_getaffinity(0)), len(starts))
    if threads == 1:
        for start in starts:
            work(start)
    else:
        pool = ThreadPool(threads, "penstock-select")
        try:
            for _ in pool.map(work, starts):
                pass
        finally:
            pool.shutdown(cancel_futures=True)
    return [Bitmap.from_words(count, words) for words in columns]
