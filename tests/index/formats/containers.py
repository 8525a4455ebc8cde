"""One data set in every container, for tests of what must hold for all of them."""

from __future__ import annotations

import io
import tarfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import lmdb
import numpy as np
import numpy.typing as npt
import zstandard

from penstock.convert import encode_record_head, mask_crc
from penstock.engine import crc32c
from tests.index.formats.recordio_writer import record
from tests.index.formats.writers import litdata_chunk, write_litdata, write_mds, write_megatron

Contents = list[bytes]
Place = tuple[Path, Mapping[str, Any]]
"""A path, and the options of `penstock.open`."""


def _cut_rows(contents: Contents) -> npt.NDArray[np.uint8]:
    """Make rows of one length, that of the first, for containers of arrays."""
    width = len(contents[0])
    rows = [content[:width].ljust(width) for content in contents]
    return np.frombuffer(b"".join(rows), np.uint8).reshape(len(rows), width)


def write_tree(folder: Path, contents: Contents) -> Place:
    for number, content in enumerate(contents):
        (folder / f"{number:05}.bin").write_bytes(content)
    return folder, {}


def write_listing(folder: Path, contents: Contents) -> Place:
    write_tree(folder, contents)
    (folder / "list.txt").write_text("".join(f"{n:05}.bin\n" for n in range(len(contents))))
    return folder / "list.txt", {}


def write_records(folder: Path, contents: Contents) -> Place:
    (folder / "x.raw").write_bytes(_cut_rows(contents).tobytes())
    return folder / "x.raw", {"record_bytes": len(contents[0])}


def write_npy(folder: Path, contents: Contents) -> Place:
    np.save(folder / "x.npy", _cut_rows(contents))
    return folder / "x.npy", {}


def write_npz(folder: Path, contents: Contents) -> Place:
    np.savez(folder / "x.npz", x=_cut_rows(contents))
    return folder / "x.npz", {}


def write_lmdb(folder: Path, contents: Contents) -> Place:
    store = lmdb.open(str(folder), map_size=1 << 28)
    with store, store.begin(write=True) as transaction:
        for number, content in enumerate(contents):
            transaction.put(b"%05d" % number, content)
    return folder, {}


def write_mds_folder(folder: Path, contents: Contents) -> Place:
    write_mds(folder, {"x": ("bytes", None)}, [[[content] for content in contents]])
    return folder, {}


def write_litdata_folder(folder: Path, contents: Contents) -> Place:
    write_litdata(folder, {"x": "bytes"}, [[[content] for content in contents]])
    return folder, {}


def write_litdata_zstd(folder: Path, contents: Contents) -> Place:
    """All samples lie in one compressed chunk."""
    write_litdata(folder, {"x": "bytes"}, [[[content] for content in contents]], compression="zstd")
    chunk = zstandard.compress(litdata_chunk([[content] for content in contents]))
    (folder / "chunk-0-0.bin").write_bytes(chunk)
    return folder, {}


def write_megatron_pair(folder: Path, contents: Contents) -> Place:
    write_megatron(folder / "x", [[np.frombuffer(each, np.uint8)] for each in contents], code=1)
    return folder / "x", {}


def write_tokens(folder: Path, contents: Contents) -> Place:
    tokens = np.frombuffer(b"".join(contents), np.uint8)
    (folder / "x.bin").write_bytes(tokens.tobytes())
    window = max(1, len(tokens) // len(contents))
    return folder / "x.bin", {"format": "tokens", "dtype": "u1", "window": window}


def write_tar(folder: Path, contents: Contents) -> Place:
    with tarfile.open(folder / "x.tar", "w") as tar:
        for number, content in enumerate(contents):
            info = tarfile.TarInfo(f"{number:05}.bin")
            info.size = len(content)
            tar.addfile(info, io.BytesIO(content))
    return folder / "x.tar", {}


def write_tfrecord(folder: Path, contents: Contents) -> Place:
    with (folder / "x.tfrecord").open("wb") as file:
        for content in contents:
            file.write(encode_record_head(len(content)) + content + mask_crc(int(crc32c(content))))
    return folder / "x.tfrecord", {"check": "all", "verify": True}


def write_recordio(folder: Path, contents: Contents) -> Place:
    (folder / "x.rec").write_bytes(b"".join(map(record, contents)))
    return folder / "x.rec", {}


def write_arrow(folder: Path, contents: Contents, compression: str | None = None) -> Place:
    import pyarrow as pa

    table = pa.table({"x": pa.array(contents, pa.binary())})
    options = pa.ipc.IpcWriteOptions(compression=compression)
    with pa.ipc.new_file(str(folder / "x.arrow"), table.schema, options=options) as file:
        file.write_table(table, max_chunksize=max(1, len(contents) // 10))
    return folder / "x.arrow", {}


def write_arrow_zstd(folder: Path, contents: Contents) -> Place:
    return write_arrow(folder, contents, "zstd")


def write_parquet(folder: Path, contents: Contents) -> Place:
    import pyarrow as pa
    from pyarrow import parquet

    table = pa.table({"x": pa.array(contents, pa.binary())})
    parquet.write_table(table, folder / "x.parquet", row_group_size=max(1, len(contents) // 10))
    return folder / "x.parquet", {}


def write_hdf5(folder: Path, contents: Contents, **options: Any) -> Place:
    import h5py

    rows = _cut_rows(contents)
    chunks = (max(1, len(rows) // 10), rows.shape[1])
    with h5py.File(folder / "x.h5", "w") as file:
        file.create_dataset("x", data=rows, chunks=chunks, **options)
    return folder / "x.h5", {"isolate": False}


def write_hdf5_gzip(folder: Path, contents: Contents) -> Place:
    return write_hdf5(folder, contents, compression="gzip")


def write_hdf5_lzf(folder: Path, contents: Contents) -> Place:
    return write_hdf5(folder, contents, compression="lzf")


def write_zarr(folder: Path, contents: Contents, **options: Any) -> Place:
    import zarr

    rows = _cut_rows(contents)
    chunks = (max(1, len(rows) // 10), rows.shape[1])
    zarr.create_array(folder / "x.zarr", data=rows, chunks=chunks, **options)
    return folder / "x.zarr", {}


def write_zarr_raw(folder: Path, contents: Contents) -> Place:
    return write_zarr(folder, contents, compressors=None)


CONTAINERS: dict[str, Callable[[Path, Contents], Place]] = {
    "npy": write_npy,
    "tree": write_tree,
    "tar": write_tar,
    "parquet": write_parquet,
    "arrow, compressed": write_arrow_zstd,
    "lmdb": write_lmdb,
    "litdata, compressed": write_litdata_zstd,
    "tfrecord": write_tfrecord,
    "hdf5, deflated": write_hdf5_gzip,
    "listing": write_listing,
    "records": write_records,
    "npz": write_npz,
    "mds": write_mds_folder,
    "litdata": write_litdata_folder,
    "megatron": write_megatron_pair,
    "tokens": write_tokens,
    "recordio": write_recordio,
    "arrow": write_arrow,
    "hdf5": write_hdf5,
    "hdf5, by its library": write_hdf5_lzf,
    "zarr": write_zarr_raw,
    "zarr, compressed": write_zarr,
}
"""Functions that write these byte strings, by the name of the container."""
