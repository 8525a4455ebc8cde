"""The page cache: what is in it, what leaves it, and what cannot be told."""

from __future__ import annotations

import ctypes
import mmap
import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.engine.host import find_mount
from penstock.engine.page_cache import drop_extents, evict, measure_residency
from penstock.errors import MissingError
from penstock.extent import Extents, Files

PAGE = os.sysconf("SC_PAGE_SIZE")
PAGES = 300  # of the file, the last one in part


@pytest.fixture(scope="module")
def folder() -> Iterator[Path]:
    """A folder on a disk from whose page cache files can be dropped."""
    for place in (None, "/var/tmp", "."):
        path = Path(tempfile.mkdtemp(dir=place))
        (path / "probe").write_bytes(bytes(PAGE))
        left = evict([str(path / "probe")])
        if left is not None and left.cached_bytes == 0:
            yield path
            shutil.rmtree(path)
            return
        shutil.rmtree(path)
    pytest.skip("no folder here from whose page cache files can be dropped, and that tells so")


@pytest.fixture(scope="module")
def file(folder: Path) -> Path:
    path = folder / "file.bin"
    path.write_bytes(np.random.default_rng(0).bytes((PAGES - 1) * PAGE + 100))
    return path


def resident_pages(path: Path) -> int:
    """Count resident pages by mincore: the independent reading."""
    libc = ctypes.CDLL(None, use_errno=True)
    size = path.stat().st_size
    pages = -(-size // PAGE)
    with path.open("r+b") as opened, mmap.mmap(opened.fileno(), size) as mapped:
        here = (ctypes.c_char * size).from_buffer(mapped)
        answer = (ctypes.c_ubyte * pages)()
        address = ctypes.c_void_p(ctypes.addressof(here))
        assert libc.mincore(address, ctypes.c_size_t(size), answer) == 0
        del here
    return sum(page & 1 for page in answer)


@given(st.lists(st.tuples(st.integers(0, PAGES - 1), st.integers(1, 40)), max_size=5))
def test_residency_is_what_mincore_says(file: Path, reads: list[tuple[int, int]]) -> None:
    """After any reads the pages that mincore counts are cached; after evicting none."""
    left = evict([str(file)])
    assert left is not None
    assert (left.cached_bytes, left.files, left.of_files) == (0, 1, 1)
    assert resident_pages(file) == 0
    with file.open("rb", buffering=0) as opened:
        os.posix_fadvise(opened.fileno(), 0, 0, os.POSIX_FADV_RANDOM)
        for page, count in reads:
            os.pread(opened.fileno(), count * PAGE, page * PAGE)
    residency = measure_residency([str(file)])
    assert residency is not None
    size = file.stat().st_size
    assert residency.total_bytes == size
    assert residency.cached_bytes == min(size, resident_pages(file) * PAGE)
    assert residency.fraction == residency.cached_bytes / size
    file.read_bytes()
    assert measure_residency([str(file)]) == residency._replace(cached_bytes=size)


def test_what_is_not_written_yet_is_written_and_dropped(folder: Path) -> None:
    """Dirty pages survive posix_fadvise: they are synced first, and nothing is lost."""
    path = folder / "dirty"
    data = os.urandom(3 << 20)
    path.write_bytes(data)
    left = evict([str(path)])
    assert left is not None
    assert left.cached_bytes == 0
    assert path.read_bytes() == data


def test_what_is_mapped_stays_and_is_seen_to_stay(folder: Path) -> None:
    """Evicting cannot drop pages that somebody has mapped: the proof says so."""
    path = folder / "mapped"
    path.write_bytes(bytes(8 * PAGE))
    evict([str(path)])
    with path.open("r+b") as opened, mmap.mmap(opened.fileno(), 0) as mapped:
        assert mapped[PAGE] == 0
        left = evict([str(path)])
    assert left is not None
    assert left.cached_bytes > 0


def test_many_files_are_sampled_and_it_says_so(folder: Path) -> None:
    """Residency of 40 files examines 8, the same ones each time, and reports both numbers."""
    paths = [folder / f"many-{number}" for number in range(40)]
    for path in paths:
        path.write_bytes(bytes(PAGE))
    names = [str(path) for path in paths]
    first = measure_residency(names, files_max=8)
    assert first is not None
    assert (first.files, first.of_files, first.total_bytes) == (8, 40, 8 * PAGE)
    assert first == measure_residency(names, files_max=8)
    assert measure_residency(names, seconds=0.0) == first._replace(
        files=1, total_bytes=PAGE, cached_bytes=PAGE
    )


def test_a_table_of_files_is_as_good_as_paths(folder: Path) -> None:
    """Files of an index are taken as they are."""
    (folder / "table").write_bytes(bytes(PAGE))
    files = Files.of(str(folder), ["table"], np.array([PAGE]), np.array([0]))
    assert measure_residency(files) == measure_residency([str(folder / "table")])
    left = evict(files)
    assert left is not None
    assert left.cached_bytes == 0


def test_nothing_is_known_of_what_is_no_file(tmp_path: Path) -> None:
    """Missing files, folders and pipes are left out; the result is None if nothing remains."""
    os.mkfifo(tmp_path / "pipe")
    assert (
        measure_residency([str(tmp_path / "none"), str(tmp_path), str(tmp_path / "pipe")]) is None
    )
    assert measure_residency([]) is None
    with pytest.raises(MissingError, match="none does not exist"):
        evict([str(tmp_path / "none")])


def test_an_empty_file_is_cached_as_a_whole(tmp_path: Path) -> None:
    """No bytes: none are missing."""
    (tmp_path / "empty").touch()
    residency = measure_residency([str(tmp_path / "empty")])
    assert residency is not None
    assert (residency.cached_bytes, residency.total_bytes, residency.fraction) == (0, 0, 1.0)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")
def test_files_of_others_are_not_guessed(folder: Path) -> None:
    """To who may only read a file the kernel calls every page resident: that is no answer."""
    path = folder / "of-root"
    path.write_bytes(bytes(4 * PAGE))
    folder.chmod(0o755)
    path.chmod(0o644)
    evict([str(path)])
    ours, theirs = os.pipe()
    child = os.fork()
    if child == 0:  # pragma: no cover
        try:
            os.setresuid(65534, 65534, 65534)
            os.write(theirs, repr(measure_residency([str(path)])).encode())
        finally:
            os._exit(0)
    os.close(theirs)
    output = os.read(ours, 1000).decode()
    os.close(ours)
    os.waitpid(child, 0)
    # Kernels that let anybody ask by cachestat count rightly; none may claim what is not there.
    assert output == "None" or "cached_bytes=0," in output


@given(
    st.lists(
        st.tuples(st.integers(0, (PAGES - 20) * PAGE), st.integers(1, 20 * PAGE)),
        min_size=1,
        max_size=20,
    )
)
def test_extents_that_were_dropped_are_cold_and_disjoint(
    file: Path, where: list[tuple[int, int]]
) -> None:
    """Extents to be read cold are not cached, come once, and in their sequence."""
    file.read_bytes()
    size = file.stat().st_size
    files = Files.of(str(file.parent), [file.name], np.array([size]), np.array([0]))
    offset, length = (np.array(column, np.int64) for column in zip(*where, strict=True))
    extents = Extents(np.zeros(len(where), np.uint32), offset, length)
    dropped = drop_extents(files, extents, 10.0)
    chosen = list(zip(dropped.offset.tolist(), dropped.length.tolist(), strict=True))
    rest = iter(where)
    assert chosen[0] == where[0]
    assert all(extent in rest for extent in chosen), "in the sequence in which they were given"
    touched: set[int] = set()
    for start, count in chosen:
        pages = set(range(start // PAGE, -(-(start + count) // PAGE)))
        assert not pages & touched
        touched |= pages
    assert resident_pages(file) <= PAGES - len({page for page in touched if page < PAGES})


def test_memory_file_systems_cannot_be_cold() -> None:
    """tmpfs lies in memory: nothing is dropped, and nothing is said to be."""
    mount = find_mount("/dev/shm")
    if mount is None or mount.file_system != "tmpfs":
        pytest.skip("/dev/shm is no tmpfs here")
    with tempfile.NamedTemporaryFile(dir="/dev/shm") as file:
        file.write(bytes(4 * PAGE))
        file.flush()
        left = evict([file.name])
        assert left is None or left.fraction == 1.0
        files = Files.of("/dev/shm", [os.path.basename(file.name)], np.array([1]), np.array([0]))
        extents = Extents(np.zeros(1, np.uint32), np.zeros(1, np.int64), np.array([PAGE]))
        if left is not None:
            assert len(drop_extents(files, extents, 10.0).file) == 0
