"""Arrays in numpy's own file format; numpy itself is the oracle."""

from __future__ import annotations

import ast
import contextlib
import gc
import io
import itertools
import os
import signal
import sys
import threading
import zipfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

import penstock
from penstock.engine.store import StoreFile
from penstock.errors import FormatError, PenstockError
from penstock.index.codecs.chunked_arrays import decode_npz, read_npy_header
from penstock.index.codecs.registry import CompressedChunk
from penstock.index.formats.arrays import MAGIC, read_header
from tests import warm


def opened(path: Path) -> penstock.Dataset:
    """A data set without a saved index."""
    return penstock.open(path, index="memory")


def saved(array: np.ndarray, version: tuple[int, int] | None = None) -> bytes:
    """The file that numpy writes."""
    out = io.BytesIO()
    np.lib.format.write_array(out, array, version=version, allow_pickle=True)
    return out.getvalue()


DTYPES = st.sampled_from(["u1", "<i2", ">i4", "<f4", "<f8", "<c16", "?", "S3", "<U2", "<M8[s]"])
SHAPES = arrays.array_shapes(min_dims=1, max_dims=4, max_side=5)


@given(
    array=DTYPES.flatmap(lambda d: arrays.arrays(np.dtype(d), SHAPES)),
    version=st.sampled_from([(1, 0), (2, 0), (3, 0)]),
)
def test_samples_are_numpys_rows(array, version, tmp_path_factory):
    """Type, shape and bytes of every row are those that numpy.load gives, in each version."""
    path = tmp_path_factory.mktemp("npy") / "x.npy"
    path.write_bytes(saved(array, version))
    dataset, rows = opened(path), np.load(path)
    assert len(dataset) == len(rows)
    assert dataset.fields[0].dtype == rows.dtype
    assert dataset.fields[0].shape == rows.shape[1:]
    for sample in range(len(rows)):
        data = dataset[sample]["data"]
        assert (data.dtype, data.shape) == (rows.dtype, rows.shape[1:])
        assert data.tobytes() == rows[sample : sample + 1].tobytes()


def with_header(text: bytes, data: bytes = bytes(64), version: int = 1) -> bytes:
    """A file with the given header."""
    width = 2 if version == 1 else 4
    return b"\x93NUMPY" + bytes([version, 0]) + len(text).to_bytes(width, "little") + text + data


GOOD = b"{'descr': '<f4', 'fortran_order': False, 'shape': (4, 4)}\n"


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (saved(np.array([{}, []], object)), "pickled Python objects"),
        (saved(np.zeros((4, 4), order="F")), "Fortran order"),
        (saved(np.zeros(3, [("a", "u1"), ("b", "f4")])), "structured type"),
        (saved(np.float32(3)), "single value"),
        (saved(np.zeros((0, 3))), "no samples"),
        (saved(np.zeros((3, 0))), "no samples"),
        (saved(np.zeros((4, 4)))[:-1], "127 bytes are not 128"),
        (saved(np.zeros((4, 4)))[:60], "damaged"),
        (b"\x93NUMPY\x01", "damaged"),
        (b"\x93NUMPY\x04\x00" + bytes(100), "damaged"),
        (with_header(GOOD, version=2)[:14], "damaged"),
        (b"\x93NUMPY\x02\x00\xff\xff\xff\xff" + bytes(100), "damaged"),
        (with_header(GOOD.replace(b"4, 4", b"-4, 4")), "damaged"),
        (with_header(GOOD.replace(b"4, 4", b"4.0, 4")), "damaged"),
        (with_header(GOOD.replace(b"(4, 4)", b"16")), "damaged"),
        (with_header(GOOD.replace(b"False", b"0")), "damaged"),
        (with_header(GOOD.replace(b"<f4", b"<q9")), "damaged"),
        (with_header(GOOD.replace(b"descr", b"decsr")), "damaged"),
        (with_header(b"[1]"), "damaged"),
        (with_header(b"("), "damaged"),
        (with_header(b"(" * 5000), "damaged"),
        (with_header(b"__import__('os').abort()"), "damaged"),
        (with_header(GOOD.replace(b"4, 4", b"%d, 4" % 10**20)), "damaged"),
        (with_header(b"\xff" + GOOD, version=3), "damaged"),
    ],
)
def test_what_cannot_be_read_is_an_error(content, message, tmp_path):
    """Objects, Fortran order, damaged and truncated files: the message says which."""
    path = tmp_path / "x.npy"
    path.write_bytes(content)
    with pytest.raises(FormatError, match=message) as caught:
        opened(path)
    assert str(path) in str(caught.value)


@given(data=st.data())
def test_a_damaged_file_is_an_error_or_reads_like_numpy(data, tmp_path_factory):
    """Random bytes in the header: a PenstockError, or what numpy reads."""
    content = bytearray(saved(np.arange(12, dtype="<i4").reshape(4, 3)))
    for _ in range(data.draw(st.integers(1, 3))):
        content[data.draw(st.integers(6, 127))] = data.draw(st.integers(0, 255))
    path = tmp_path_factory.mktemp("npy") / "x.npy"
    path.write_bytes(content)
    try:
        dataset = opened(path)
    except PenstockError:
        return
    rows = np.load(path)
    assert dataset.fields[0].dtype == rows.dtype
    assert b"".join(sample["data"].tobytes() for sample in dataset) == rows.tobytes()


def test_bytes_after_the_array_do_not_count(tmp_path):
    """Like numpy.load, which reads the first of several arrays in a file."""
    path = tmp_path / "x.npy"
    path.write_bytes(saved(np.arange(3)) + b"more")
    assert [int(sample["data"]) for sample in opened(path)] == [0, 1, 2]


def test_a_process_forked_while_a_header_is_read_reads_headers() -> None:
    """The thread that holds the lock does not exist there."""
    head, held, forked = saved(np.arange(3)), threading.Event(), threading.Event()

    class Slow(io.BytesIO):
        def read(self, size: int | None = -1) -> bytes:
            if self.tell() > len(MAGIC):
                held.set()
                forked.wait()
            return super().read(size)

    thread = threading.Thread(target=read_npy_header, args=(Slow(head),))
    thread.start()
    held.wait()
    child = os.fork()
    if child == 0:
        try:
            signal.alarm(60)
            os._exit(read_npy_header(io.BytesIO(head))[0] != (3,))
        finally:
            os._exit(2)
    forked.set()
    thread.join()
    assert os.waitpid(child, 0)[1] == 0


@pytest.mark.parametrize("other", ["file", "entry of an archive", "literal"])
def test_headers_are_read_by_many_threads(other: str) -> None:
    """In a process of its own: garbage is collected anywhere, in threads of the test runner too."""
    code = f"from {__name__} import read_in_many_threads as read; read({other!r})"
    warm.run([sys.executable, "-c", code], check=True, timeout=240)


def read_in_many_threads(other: str) -> None:
    """One thread's literal is evaluated while another's is, in the middle of it, ours or not.

    CPython 3.11 collects garbage there, and its finalizers let other threads run.
    """
    npy = io.BytesIO()
    np.save(npy, np.zeros((2, 3), np.int32))
    head = npy.getvalue()
    source = StoreFile("a.npy", len(head), lambda start, length: head[start : start + length], -1)
    archive = io.BytesIO()
    np.savez_compressed(archive, x=np.zeros((2, 3), np.int32))
    with zipfile.ZipFile(archive) as names:
        size = names.start_dir
    entry = CompressedChunk(0, memoryview(archive.getvalue())[:size], [size], 1)
    options = {"dtype": "<i4", "shape": (2, 3)}
    threads = []

    def read_file() -> tuple[int, ...]:
        return read_header(source, "a.npy").shape

    def read_entry() -> tuple[int, ...]:
        return decode_npz(options, entry).shape[1:]

    def evaluate_own() -> None:
        with contextlib.suppress(SystemError):
            ast.literal_eval("(2, 3)")

    actions: dict[str, Callable[[], object]]
    actions = {"file": read_file, "entry of an archive": read_entry, "literal": evaluate_own}

    def act(depth: int) -> object:
        return act(depth - 1) if depth else actions[other]()

    class Garbage:
        def __init__(self) -> None:
            self.itself = self

        def __del__(self) -> None:
            threads.append(threading.Thread(target=act, args=(5,)))
            threads[-1].start()
            threads[-1].join(0.05)

    before = gc.get_threshold()
    try:
        for threshold, one in itertools.product(range(10, 30), [read_file, read_entry]):
            gc.collect()
            Garbage()
            gc.set_threshold(threshold)
            assert one() == (2, 3)
            gc.set_threshold(*before)
    finally:
        gc.set_threshold(*before)
    for thread in threads:
        thread.join()
    assert threads
