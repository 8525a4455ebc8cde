"""Formats of shards with an index of their own pass the suite."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

from penstock.testing import FormatSuite, Written
from tests.index.formats.writers import write_litdata, write_mds, write_megatron


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


@pytest.mark.long
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


@pytest.mark.long
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


def dealt(samples: list[list[bytes]], counts: Sequence[int]) -> list[list[list[bytes]]]:
    """The samples in shards of so many."""
    first, shards = 0, []
    for count in counts:
        shards.append(samples[first : first + count])
        first += count
    return shards


class TestLitData(FormatSuite):
    """Bytes, an array of one axis, and an integer that is the label."""

    def write(self, folder: Path, counts: Sequence[int], random: np.random.Generator) -> Written:
        """A chunk for each count."""
        total = sum(counts)
        images = payloads(random, total)
        marks = [random.random(int(n)).astype("<f4") for n in random.integers(0, 5, total)]
        labels = random.integers(0, 9, total)
        samples = [
            [images[i], marks[i].tobytes(), labels[i].astype("<i8").tobytes()] for i in range(total)
        ]
        leaves = {"image": "bytes", "marks": "no_header_numpy:9", "label": "int"}
        write_litdata(folder, leaves, dealt(samples, counts))
        keys = [f"chunk-0-{n}.bin#{i}" for n, count in enumerate(counts) for i in range(count)]
        return Written(folder, {"image": images, "marks": marks}, labels=labels.tolist(), keys=keys)


class TestLitDataTokens(FormatSuite):
    """Documents of tokens."""

    def write(self, folder: Path, counts: Sequence[int], random: np.random.Generator) -> Written:
        """A chunk for each count."""
        tokens = [
            random.integers(0, 999, int(n)).astype("<i4")
            for n in random.integers(0, 9, sum(counts))
        ]
        tokens[0] = np.arange(3, dtype="<i4")
        write_litdata(
            folder,
            {"data": "no_header_tensor:16"},
            dealt([[each.tobytes()] for each in tokens], counts),
            item_loader="TokensLoader",
        )
        return Written(folder, {"tokens": tokens})


@pytest.mark.long
class TestLitDataWindows(FormatSuite):
    """Blocks of tokens, as many as each chunk holds."""

    def write(self, folder: Path, counts: Sequence[int], random: np.random.Generator) -> Written:
        """A chunk of one document and some tokens more for each count."""
        rows, chunks = [], []
        for count in counts:
            tokens = random.integers(0, 999, 4 * count + 3).astype("<u2")
            rows += list(tokens[: 4 * count].reshape(count, 4))
            chunks.append([[tokens.tobytes()]])
        leaves = {"data": "no_header_numpy:5"}
        write_litdata(folder, leaves, chunks, item_loader="TokensLoader")
        return Written(folder, {"tokens": rows}, {"block_size": 4})


def documents(random: np.random.Generator, count: int, dtype: str) -> list[list[np.ndarray]]:
    """Documents of one, two or no sequences of some tokens each."""
    found = []
    for number in range(count):
        sequences = 0 if number == 4 else 1 + number % 2
        sizes = random.integers(1, 9, sequences).tolist()
        found.append([random.integers(0, 999, size).astype(dtype) for size in sizes])
    return found


def end_to_end(document: list[np.ndarray], dtype: str) -> np.ndarray:
    """The tokens of a document."""
    return np.concatenate([np.zeros(0, dtype), *document])


class TestMegatron(FormatSuite):
    """Documents whose sequences are adjacent."""

    def write(self, folder: Path, counts: Sequence[int], random: np.random.Generator) -> Written:
        """A pair of files for each count."""
        rows, paths = [], []
        for number, count in enumerate(counts):
            held = documents(random, count, "<i4")
            paths.append(folder / f"{number}.bin")
            write_megatron(folder / str(number), held, 4, modes=number % 2 == 1)
            rows += [end_to_end(each, "<i4") for each in held]
        path = paths[0] if len(counts) == 1 else folder / "*.bin"
        return Written(path, {"tokens": rows})


@pytest.mark.long
class TestMegatronScattered(FormatSuite):
    """Documents whose sequences are not adjacent."""

    def write(self, folder: Path, counts: Sequence[int], random: np.random.Generator) -> Written:
        """The sequences are written backwards."""
        rows, paths = [], []
        for number, count in enumerate(counts):
            held = documents(random, count, "<u2")
            paths.append(folder / f"{number}.idx")
            total = sum(map(len, held))
            write_megatron(folder / str(number), held, order=list(range(total))[::-1])
            rows += [end_to_end(each, "<u2") for each in held]
        path = paths[0] if len(counts) == 1 else paths
        return Written(path, {"tokens": rows})


class WindowSuite(FormatSuite):
    """Windows of five tokens over all documents of a file."""

    backwards = False

    def write(self, folder: Path, counts: Sequence[int], random: np.random.Generator) -> Written:
        """Make as many tokens as windows need, and some more."""
        rows = []
        for number, count in enumerate(counts):
            left = 4 * count + 1 + int(random.integers(0, 4))
            held: list[list[np.ndarray]] = []
            while left:
                size = min(left, int(random.integers(1, 12)))
                held.append([random.integers(0, 999, size).astype("<u2")])
                left -= size
            order = list(range(len(held)))
            write_megatron(
                folder / str(number), held, order=order[::-1] if self.backwards else order
            )
            tokens = end_to_end([each for document in held for each in document], "<u2")
            rows += [tokens[4 * k : 4 * k + 5] for k in range(count)]
        path = folder / "0" if len(counts) == 1 else folder / "*.idx"
        return Written(path, {"tokens": rows}, {"window": 4})


class TestMegatronWindows(WindowSuite):
    """Documents in the order of the file: arithmetic."""


@pytest.mark.long
class TestMegatronWindowsScattered(WindowSuite):
    """Documents in another order: pieces."""

    backwards = True


class TestTokens(FormatSuite):
    """Flat tokens, as llm.c writes them."""

    def write(self, folder: Path, counts: Sequence[int], random: np.random.Generator) -> Written:
        """A file for each count, with a header."""
        rows, paths = [], []
        for number, count in enumerate(counts):
            tokens = random.integers(0, 999, 3 * count + 2).astype("<u4")
            header = np.zeros(256, "<i4")
            header[:3] = 20240801, 1, len(tokens)
            paths.append(folder / f"{number}.bin")
            paths[-1].write_bytes(header.tobytes() + tokens.tobytes())
            rows += [tokens[3 * k : 3 * k + 4] for k in range(count)]
        path = paths[0] if len(counts) == 1 else folder
        return Written(path, {"tokens": rows}, {"window": 3})


class TestArrayRecord(FormatSuite):
    """Records of many sizes, some of which reach over several blocks of 64 KiB."""

    def write(self, folder: Path, counts: Sequence[int], random: np.random.Generator) -> Written:
        """By the library."""
        library = pytest.importorskip("array_record.python.array_record_module")
        values, paths = [], []
        for number, count in enumerate(counts):
            rows = payloads(random, count)
            if number == 1:
                rows[0] = random.bytes(150_000)
            paths.append(folder / f"{number}.arrayrecord")
            out = library.ArrayRecordWriter(str(paths[-1]), "group_size:1,uncompressed")
            for row in rows:
                out.write(row)
            out.close()
            values += rows
        return Written(paths[0] if len(counts) == 1 else folder, {"data": values})
