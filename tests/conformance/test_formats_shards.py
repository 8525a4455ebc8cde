"""Formats of shards with an index of their own pass the suite."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from penstock.testing import FormatSuite, Written
from writers import write_mds


def payloads(random: np.random.Generator, count: int) -> list[bytes]:
    """Byte strings of different lengths; an empty one is among several."""
    sizes = random.integers(1, 60, count)
    if count > 3:
        sizes[3] = 0
    return [random.bytes(int(size)) for size in sizes]


class TestMds(FormatSuite):
    """Two columns that vary, an array, a label."""

    def write(self, folder: Path, counts: Sequence[int], random: np.random.Generator) -> Written:
        """A shard for each count."""
        total = sum(counts)
        arrays = random.random((total, 2, 3)).astype("<f4")
        labels = random.integers(0, 9, total)
        images, notes = payloads(random, total), payloads(random, total)[::-1]
        columns = {
            "array": ("ndarray:float32:2,3", 24),
            "image": ("jpeg", None),
            "label": ("int", 8),
            "note": ("str", None),
        }
        samples = [
            [arrays[i].tobytes(), images[i], labels[i].astype("<i8").tobytes(), notes[i]]
            for i in range(total)
        ]
        first, shards = 0, []
        for count in counts:
            shards.append(samples[first : first + count])
            first += count
        write_mds(folder, columns, shards)
        keys = [f"shard.{n:05}.mds#{i}" for n, count in enumerate(counts) for i in range(count)]
        fields = {"array": list(arrays), "image": images, "note": notes}
        return Written(folder, fields, labels=labels.tolist(), keys=keys)


class TestMdsOfFixedSize(FormatSuite):
    """Columns of one size: arithmetic."""

    def write(self, folder: Path, counts: Sequence[int], random: np.random.Generator) -> Written:
        """A shard for each count."""
        rows = random.integers(0, 99, (sum(counts), 5)).astype("<u2")
        marks = random.random(sum(counts)).astype("<f8")
        first, shards = 0, []
        for count in counts:
            part = range(first, first + count)
            shards.append([[marks[i].tobytes(), rows[i].tobytes()] for i in part])
            first += count
        columns = {"mark": ("float64", 8), "tokens": ("ndarray:uint16:5", 10)}
        write_mds(folder, columns, shards)
        fields = {"mark": [np.array(mark) for mark in marks], "tokens": list(rows)}
        return Written(folder, fields)


class TestMdsOfOneColumn(FormatSuite):
    """One column that varies: its size is what is left."""

    def write(self, folder: Path, counts: Sequence[int], random: np.random.Generator) -> Written:
        """A shard for each count."""
        values = payloads(random, sum(counts))
        first, shards = 0, []
        for count in counts:
            shards.append([[value] for value in values[first : first + count]])
            first += count
        write_mds(folder, {"text": ("str", None)}, shards)
        return Written(folder, {"text": values})
