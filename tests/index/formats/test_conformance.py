"""Every format passes the suite; each is written by its own library, or byte by byte here."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import lmdb
import numpy as np
import pytest

from penstock.testing import FormatSuite, Written


def payloads(random: np.random.Generator, count: int) -> list[bytes]:
    """Byte strings of different lengths; an empty one is among several."""
    sizes = random.integers(1, 60, count)
    if count > 3:
        sizes[3] = 0
    return [random.bytes(int(size)) for size in sizes]


class TestTree(FormatSuite):
    """A folder of files in class folders; a file is a sample, whatever its size."""

    framed = False

    def write(self, folder: Path, counts: Sequence[int], random: np.random.Generator) -> Written:
        """One class for each count."""
        values: list[bytes] = []
        keys: list[str] = []
        for number, count in enumerate(counts):
            (folder / f"class{number}").mkdir()
            for i, payload in enumerate(payloads(random, count)):
                keys.append(f"class{number}/{i:02}.bin")
                (folder / keys[-1]).write_bytes(payload)
                values.append(payload)
        labels = np.repeat(np.arange(len(counts)), counts).tolist()
        return Written(folder, {"data": values}, labels=labels, keys=keys)


class TestListing(FormatSuite):
    """A text file that names files and labels."""

    framed = False

    def write(self, folder: Path, counts: Sequence[int], random: np.random.Generator) -> Written:
        """The files lie in folders, and are named in reverse."""
        values: list[bytes] = []
        keys: list[str] = []
        for number, count in enumerate(counts):
            (folder / str(number)).mkdir()
            for i, payload in enumerate(payloads(random, count)):
                keys.append(f"{number}/{i}.bin")
                (folder / keys[-1]).write_bytes(payload)
                values.append(payload)
        values, keys = values[::-1], keys[::-1]
        labels = list(range(len(keys)))
        lines = (f"{key}\t{label}\n" for key, label in zip(keys, labels, strict=True))
        (folder / "list.tsv").write_text("".join(lines))
        return Written(folder / "list.tsv", {"data": values}, labels=labels, keys=keys)


class TestRecords(FormatSuite):
    """Records of one size after a header."""

    def write(self, folder: Path, counts: Sequence[int], random: np.random.Generator) -> Written:
        """One file, or a list of files."""
        rows, paths = [], []
        for number, count in enumerate(counts):
            rows.append(random.integers(0, 1000, (count, 3, 2)).astype("<u2"))
            paths.append(folder / f"part{number}.bin")
            paths[-1].write_bytes(b"head" + rows[-1].tobytes())
        path = paths[0] if len(counts) == 1 else paths
        options = {"format": "records", "header_bytes": 4, "dtype": "<u2", "shape": (3, 2)}
        return Written(path, {"data": list(np.concatenate(rows))}, options)


class TestNpy(FormatSuite):
    """One array."""

    several = False

    def write(self, folder: Path, counts: Sequence[int], random: np.random.Generator) -> Written:
        """By numpy.save."""
        rows = random.random((sum(counts), 2, 3)).astype(np.float32)
        np.save(folder / "x.npy", rows)
        return Written(folder / "x.npy", {"data": list(rows)})


class TestLmdb(FormatSuite):
    """LMDB environments; every other sample is large enough for pages of its own."""

    def write(self, folder: Path, counts: Sequence[int], random: np.random.Generator) -> Written:
        """One folder, or a pattern of folders, with a commit for each few samples."""
        values: list[bytes] = []
        keys: list[str] = []
        for number, count in enumerate(counts):
            samples = payloads(random, count)
            samples[::2] = [sample * 100 for sample in samples[::2]]
            path = folder / f"part{number}.lmdb"
            names = [f"{number}/{i:03}" for i in range(count)]
            with lmdb.open(str(path), map_size=1 << 22) as environment:
                for i in random.permutation(count).tolist():
                    with environment.begin(write=True) as transaction:
                        transaction.put(names[i].encode(), samples[i])
            (path / "lock.mdb").unlink()
            values += samples
            keys += names
        path = folder / ("part0.lmdb" if len(counts) == 1 else "part*.lmdb")
        return Written(path, {"data": values}, keys=keys)


def varint(number: int) -> bytes:
    """A number as protobuf has it."""
    number &= (1 << 64) - 1
    out = bytearray()
    while number > 0x7F:
        out.append(number & 0x7F | 0x80)
        number >>= 7
    return bytes([*out, number])


def datum(data: bytes, label: int, encoded: bool = True) -> bytes:
    """An image in Caffe's Datum message: channels, height, width, data, label, encoded."""
    numbers = b"\x08" + varint(3) + b"\x10" + varint(1) + b"\x18" + varint(300)
    field = b"\x22" + varint(len(data)) + data
    return numbers + field + b"\x28" + varint(label) + b"\x38" + varint(int(encoded))


@pytest.mark.long
class TestLmdbDatum(FormatSuite):
    """Caffe's databases: files without a folder, labels after the data."""

    def write(self, folder: Path, counts: Sequence[int], random: np.random.Generator) -> Written:
        """One file, or a list of files."""
        values: list[bytes] = []
        keys: list[str] = []
        labels: list[int] = []
        paths = [folder / f"part{number}" for number in range(len(counts))]
        for number, count in enumerate(counts):
            samples = payloads(random, count)
            samples[::2] = [sample * 200 for sample in samples[::2]]
            with (
                lmdb.open(str(paths[number]), subdir=False, map_size=1 << 22) as environment,
                environment.begin(write=True) as transaction,
            ):
                for sample in samples:
                    keys.append(f"{len(keys):08}_x.jpg")
                    labels.append(int(random.integers(-1, 1 << 20)))
                    transaction.put(keys[-1].encode(), datum(sample, labels[-1]))
            Path(f"{paths[number]}-lock").unlink()
            values += samples
        path = paths[0] if len(counts) == 1 else paths
        return Written(path, {"data": values}, {"datum": True}, labels, keys)


@pytest.mark.long
class TestNpyFiles(FormatSuite):
    """Several arrays of one row shape, named by a pattern."""

    def write(self, folder: Path, counts: Sequence[int], random: np.random.Generator) -> Written:
        """By numpy.save, in two versions of the format."""
        rows = [random.integers(0, 99, (count, 3)).astype(">i4") for count in counts]
        for number, array in enumerate(rows):
            with open(folder / f"{number}.npy", "wb") as file:
                np.lib.format.write_array(file, array, version=(1 + number % 3, 0))
        keys = [f"{number}.npy#{i}" for number, n in enumerate(counts) for i in range(n)]
        one = len(counts) == 1
        return Written(
            folder / ("0.npy" if one else "*.npy"),
            {"data": [row for array in rows for row in array]},
            {"sample": "row"},
            keys=keys,
        )


class TestNpz(FormatSuite):
    """Archives of three arrays, one of them the label."""

    def write(self, folder: Path, counts: Sequence[int], random: np.random.Generator) -> Written:
        """By numpy.savez."""
        images = random.integers(0, 256, (sum(counts), 2, 3), np.uint8)
        marks = random.random(sum(counts)).astype(np.float32)
        labels = random.integers(0, 10, sum(counts)).astype(np.int32)
        first = 0
        paths = []
        for number, count in enumerate(counts):
            part = slice(first, first + count)
            paths.append(folder / f"part{number}.npz")
            np.savez(paths[-1], image=images[part], mark=marks[part], label=labels[part])
            first += count
        return Written(
            paths[0] if len(counts) == 1 else paths,
            {"image": list(images), "mark": [np.array(mark) for mark in marks]},
            labels=labels.tolist(),
        )


class TestArrow(FormatSuite):
    """Uncompressed Arrow streams and files."""

    def write(self, folder: Path, counts: Sequence[int], random: np.random.Generator) -> Written:
        """By pyarrow: streams where there are several, else a file."""
        return arrow_written(folder, counts, random, None)


@pytest.mark.long
class TestArrowCompressed(FormatSuite):
    """Arrow streams and files of compressed buffers."""

    def write(self, folder: Path, counts: Sequence[int], random: np.random.Generator) -> Written:
        """By pyarrow: streams where there are several, else a file."""
        return arrow_written(folder, counts, random, "zstd")


def arrow_written(
    folder: Path, counts: Sequence[int], random: np.random.Generator, compression: str | None
) -> Written:
    """Bytes, numbers and labels, in batches of three rows."""
    pa = pytest.importorskip("pyarrow")
    make = pa.ipc.new_file if len(counts) == 1 else pa.ipc.new_stream
    values: list[bytes] = []
    numbers: list[np.ndarray] = []
    for number, count in enumerate(counts):
        some, vectors = payloads(random, count), random.random((count, 2)).astype("<f4")
        table = pa.table(
            {
                "data": pa.array(some, pa.binary()),
                "vector": pa.array(vectors.tolist(), pa.list_(pa.float32(), 2)),
                "label": np.arange(len(values), len(values) + count),
            }
        )
        options = pa.ipc.IpcWriteOptions(compression=compression)
        with make(str(folder / f"{number}.arrow"), table.schema, options=options) as writer:
            writer.write_table(table, max_chunksize=3)
        values += some
        numbers += list(vectors)
    path = folder / "0.arrow" if len(counts) == 1 else folder
    return Written(path, {"data": values, "vector": numbers}, labels=list(range(len(values))))


class TestHdf5(FormatSuite):
    """Contiguous and chunked datasets without filters."""

    def write(self, folder: Path, counts: Sequence[int], random: np.random.Generator) -> Written:
        """By h5py."""
        return hdf5_written(folder, counts, random, None)


@pytest.mark.long
class TestHdf5Compressed(FormatSuite):
    """Datasets in deflated chunks."""

    def write(self, folder: Path, counts: Sequence[int], random: np.random.Generator) -> Written:
        """By h5py."""
        return hdf5_written(folder, counts, random, "gzip")


def hdf5_written(
    folder: Path, counts: Sequence[int], random: np.random.Generator, compression: str | None
) -> Written:
    """Two fields and labels, in chunks of up to three rows."""
    h5py = pytest.importorskip("h5py")
    pixels, vectors = [], []
    for number, count in enumerate(counts):
        pixels.append(random.integers(0, 255, (count, 4, 2), np.uint8))
        vectors.append(random.random((count, 2)).astype("<f4"))
        with h5py.File(folder / f"{number}.h5", "w") as file:
            chunks = (min(3, count), 2)
            file.create_dataset("pixels", data=pixels[-1])
            file.create_dataset("vector", data=vectors[-1], chunks=chunks, compression=compression)
            file["label"] = np.arange(count) + sum(counts[:number])
    path = folder / "0.h5" if len(counts) == 1 else folder
    fields = {"pixels": list(np.concatenate(pixels)), "vector": list(np.concatenate(vectors))}
    # Another process for each of some hundred damaged files: test_sandbox.py has that.
    return Written(path, fields, {"isolate": False}, labels=list(range(sum(counts))))


class TestZarr(FormatSuite):
    """A group of verbatim and compressed chunks; a file is a chunk, or says where they are."""

    several = False

    def write(self, folder: Path, counts: Sequence[int], random: np.random.Generator) -> Written:
        """By zarr."""
        zarr = pytest.importorskip("zarr")
        count = sum(counts)
        pixels = random.integers(0, 255, (count, 4, 2), np.uint8)
        vectors = random.random((count, 2)).astype("<f4")
        group = zarr.open_group(folder / "g", mode="w")
        group.create_array("pixels", data=pixels, chunks=(3, 4, 2), compressors=None)
        group.create_array("vector", data=vectors, chunks=(3, 2))
        group.create_array("label", data=np.arange(1, count + 1), chunks=(3,))
        fields = {"pixels": list(pixels), "vector": list(vectors)}
        return Written(folder / "g", fields, labels=list(range(1, count + 1)))


class TestParquet(FormatSuite):
    """Columns of row groups."""

    def write(self, folder: Path, counts: Sequence[int], random: np.random.Generator) -> Written:
        """By pyarrow, in row groups of three rows."""
        pa = pytest.importorskip("pyarrow")
        pq = pytest.importorskip("pyarrow.parquet")
        values: list[bytes] = []
        numbers: list[np.ndarray] = []
        for number, count in enumerate(counts):
            some, real = payloads(random, count), random.random(count)
            labels = np.arange(len(values), len(values) + count)
            table = pa.table({"data": pa.array(some, pa.binary()), "real": real, "label": labels})
            pq.write_table(table, folder / f"{number}.parquet", row_group_size=3)
            values += some
            numbers += [np.array(each) for each in real]
        path = folder / "0.parquet" if len(counts) == 1 else folder
        labels = list(range(len(values)))
        return Written(path, {"data": values, "real": numbers}, labels=labels)
