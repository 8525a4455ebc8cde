"""Shards of another container, written by many: each task writes one."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from ..convert.conversion import ShardsConversion, convert, prepare_conversion
from ..dataset.dataset import Dataset
from ..errors import MissingError, UsageError
from ..extent import Int
from .dataset_work import DatasetWork, divide_evenly, list_settings
from .work_plan import Sections, read_part


class ShardWork(DatasetWork):
    """A data set in another container: units are its shards."""

    noun = "shards"
    settings = list_settings(convert, "shard_bytes")

    def prepare(self, dataset: Dataset, settings: dict[str, Any], folder: str) -> None:
        """Check the settings of `convert`."""
        settings.setdefault("destination", os.path.join(folder, "shards"))
        for name in ("to", "shards"):
            if settings.get(name) is None:
                raise UsageError(f"{name} is not given: say what to write (--to, --shards)")
        options = dict(settings)
        conversion = prepare_conversion(dataset, options.pop("destination"), **options)
        assert isinstance(conversion, ShardsConversion)  # LMDB takes no shards=
        self._conversion = conversion

    def begin(self) -> None:
        """Take the destination for the shards."""
        self._conversion.begin()

    def divide(self) -> Int:
        """Shards, one a task."""
        return divide_evenly(int(self._conversion.options["shards"]), 1)

    def describe(self) -> Any:
        """The options of the conversion."""
        return self._conversion.options

    def do(self, first: int, stop: int) -> tuple[dict[str, Any], Sections]:
        """Write a shard, and read it back."""
        entry = self._conversion.write_alone(first)
        return {"entry": entry}, {"bounds": np.array([entry["first"], entry["end"]])}

    def commit(self, parts: Sequence[str], share: Callable[..., None]) -> str:
        """Note in the destination that its shards are whole."""
        entries = [read_part(path)[0]["entry"] for path in parts]
        for path, entry in zip(parts, entries, strict=True):
            shard = os.path.join(self._conversion.path, entry["name"])
            if not os.path.isfile(shard) or os.path.getsize(shard) != entry["bytes"]:
                os.unlink(path)  # it has to be written again
                raise MissingError(f"{shard} is not as it was written: run `penstock work` again")
        made = self._conversion.run(entries)
        return f"{made.samples:,} samples in {len(made.files):,} shards: {made.call}"
