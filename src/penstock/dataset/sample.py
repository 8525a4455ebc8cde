"""Samples, as `decode` takes them: dicts of fields, with random numbers of their own."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import numpy as np

from ..errors import UsageError
from ..order import rng

Decode = Callable[[dict[str, Any]], Any]
Samples = Callable[[int], dict[str, Any]]
"""Return the sample of a row."""


_Decoding = TypeVar("_Decoding", bound=Decode)


def takes_views(decode: _Decoding) -> _Decoding:
    """Mark a `decode` function that takes raw fields as memoryviews; for use as a decorator.

    It saves the copy into `bytes`, which counts for samples of 1 MiB and more. A view is valid
    while `decode` runs: its memory is used again.
    """
    if not callable(decode):
        raise UsageError(f"decode is {decode!r:.100}: give a function of a sample")
    decode.takes_views = True  # type: ignore[attr-defined]
    return decode


def can_take_views(decode: Decode) -> bool:
    """Return whether a function has the mark of `takes_views`."""
    return bool(getattr(decode, "takes_views", False))


class LoadedSample(dict[str, Any]):
    """One sample: its fields, "__key__", "__id__", "__epoch__" and, where known, "label".

    A field is an array if the format knows dtype and shape, else `bytes`: a copy, which
    `json.loads`, `.decode()` and every decoder take; a memoryview without a copy for a `decode`
    with the mark of `takes_views`.

    `sample["__rng__"]` is a `numpy.random.Generator` whose numbers depend on the loader's seed,
    the epoch and the sample, and on nothing else: `penstock.rng(seed, epoch, id)`, made when it is
    first asked for, which takes some 20 us. In a mixture the sample's pass takes the place of the
    epoch. It is no key: `in`, `keys()` and copies do not have it.
    """

    __slots__ = ("_random", "stream")

    stream: tuple[int, int, int]
    """Seed, epoch and sample that decide the random numbers; set when the sample is made."""

    def __missing__(self, name: str) -> Any:
        if name == "__rng__":
            if not hasattr(self, "_random"):
                self._random: np.random.Generator = rng(*self.stream)
            return self._random
        if name in ("__epoch__", "__id__"):  # of a sample that `Dataset.__getitem__` has read
            return self.stream[1 if name == "__epoch__" else 2]
        raise KeyError(name)

    def __reduce__(self) -> tuple[Any, ...]:
        return _rebuild_sample, (*self.stream, dict(self))


def _rebuild_sample(seed: int, epoch: int, number: int, parts: dict[str, Any]) -> LoadedSample:
    sample = LoadedSample(parts)
    sample.stream = seed, epoch, number
    return sample
