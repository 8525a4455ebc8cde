"""HDF5: `records_0` and so on, of shape (samples, *sample) or of parts of the first dimension, and
`labels`, zeros. Written by HDF5 itself, but for what lies in one piece of the file."""

from __future__ import annotations

from typing import Any

import numpy as np

from penstock.engine import AtomicFile, storage_errors
from penstock.errors import UsageError
from penstock.index import missing_library

from ..file_draft import Draft


def write(part: AtomicFile, draft: Draft) -> None:
    """Write a file."""
    try:
        import h5py
    except ModuleNotFoundError:
        raise missing_library("h5py", "hdf5", "writing HDF5") from None
    at = None
    with storage_errors(part.path), h5py.File(part.temporary, "w", libver="latest") as file:
        dsets = [
            _create_dataset(file, f"records_{number}", draft)
            for number in range(draft.data.hdf5.num_dset_per_record)
        ]
        file.create_dataset("labels", data=np.zeros(draft.count, np.int64))
        if len(dsets) == 1 and dsets[0].chunks is None:
            at = dsets[0].id.get_offset()
        else:
            _fill(dsets, draft)
    if at is not None:
        with storage_errors(part.path):
            part.file.seek(at)
        for piece in draft.pieces():
            part.write(piece.data)


def _create_dataset(file: Any, name: str, draft: Draft) -> Any:
    import h5py

    data = draft.data
    shape = (draft.count, draft.shape[0] // draft.data.hdf5.num_dset_per_record, *draft.shape[1:])
    options: dict[str, Any] = {}
    if data.hdf5.chunk_dims:
        options["chunks"] = _complete_sizes(data.hdf5.chunk_dims, 1, shape, "chunk_dims")
    if data.hdf5.max_shape:
        options["maxshape"] = _complete_sizes(data.hdf5.max_shape, draft.count, shape, "max_shape")
    if data.compression != "none":
        options["compression"] = data.compression
        if data.compression == "gzip":
            options["compression_opts"] = data.compression_level
    if not options:  # contiguous: its place is known before it is written
        whole = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
        whole.set_alloc_time(h5py.h5d.ALLOC_TIME_EARLY)
        whole.set_fill_time(h5py.h5d.FILL_TIME_NEVER)
        options["dcpl"] = whole
    return file.create_dataset(name, shape, draft.dtype, **options)


def _complete_sizes(
    given: tuple[int, ...], first: int, shape: tuple[int, ...], key: str
) -> tuple[int, ...]:
    """Sizes of all dimensions, where those of a sample may be given alone."""
    sizes = (first, *given) if len(given) == len(shape) - 1 else given
    if len(sizes) != len(shape) or (key == "max_shape" and any(map(int.__lt__, sizes, shape))):
        raise UsageError(
            f"dataset.hdf5.{key} is {list(given)}, and datasets are of shape {list(shape)}: give "
            f"a size for each dimension"
        )
    return tuple(map(min, sizes, shape)) if key == "chunk_dims" else sizes


def _fill(dsets: list[Any], draft: Draft) -> None:
    done = 0
    for group in draft.groups():
        for dset, piece in zip(dsets, np.split(group, len(dsets), axis=1), strict=True):
            dset[done : done + len(group)] = piece
        done += len(group)
