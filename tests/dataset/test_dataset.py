"""Opening data, reading samples one by one, and what happens when the data is not as expected."""

from __future__ import annotations

import multiprocessing
import os
import pickle
import shutil
import stat
import subprocess
import sys
import tempfile
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest

import penstock
from penstock.dataset.sources import locate_data
from penstock.errors import (
    ChangedError,
    FormatError,
    MissingError,
    SidecarError,
    StorageError,
    UsageError,
)
from penstock.index.saved_index import flag_if_racy, list_index_paths
from tests.slices import first

LONG_AGO_NS = 10**18 + 1


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The user's cache folder, for this test only."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache" / "penstock"


def age(path: Path) -> None:
    """Let a folder and all in it have been written long ago, so that no index of it is racy."""
    for folder, _, files in os.walk(path):
        for name in [*files, "."]:
            os.utime(os.path.join(folder, name), ns=(LONG_AGO_NS, LONG_AGO_NS))


@pytest.fixture
def photos(tmp_path: Path) -> Path:
    """Two classes of two files."""
    root = tmp_path / "photos"
    for name in ("cat/1", "cat/2", "dog/1", "dog/2"):
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(name * 10)
    age(root)
    return root


@pytest.fixture
def records(tmp_path: Path) -> Path:
    """Ten records of ten bytes."""
    folder = tmp_path / "bin"
    folder.mkdir()
    path = folder / "x.bin"
    path.write_bytes(bytes(range(100)))
    age(folder)
    return path


def as_nobody(work: Callable[[], object]) -> str:
    """Return what `work` returns or raises in a child process without privileges, as text."""
    receiving, sending = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            if os.geteuid() == 0:
                os.setgroups([])
                os.setgid(65534)
                os.setuid(65534)
            with warnings.catch_warnings():
                warnings.simplefilter("error")
                answer = repr(work())
        except BaseException as error:
            answer = f"{type(error).__name__}: {error}"
        os.write(sending, answer.encode()[:60_000])
        os._exit(0)
    os.close(sending)
    with os.fdopen(receiving, "rb") as answers:
        text = answers.read().decode()
    os.waitpid(child, 0)
    return text


@pytest.fixture
def shared() -> Iterator[Path]:
    """A folder that every user may enter and nobody but its owner may write to."""
    folder = Path(tempfile.mkdtemp())
    folder.chmod(0o755)
    yield folder
    folder.chmod(0o755)
    for inner in folder.iterdir():
        inner.chmod(0o755)
    shutil.rmtree(folder)


# -- reading ---------------------------------------------------------------------------------------


def test_samples_are_read_by_number(photos):
    """Fields, key and label; negative numbers count from the end; the sequence ends."""
    dataset = penstock.open(photos)
    assert len(dataset) == 4
    assert dataset[2] == {"data": b"dog/1" * 10, "__key__": "dog/1", "label": 1}
    assert dataset[np.int64(-1)]["__key__"] == "dog/2"
    assert [sample["__key__"] for sample in dataset] == ["cat/1", "cat/2", "dog/1", "dog/2"]
    for wrong in (4, -5):
        with pytest.raises(IndexError, match="does not exist: there are 4"):
            dataset[wrong]
    with pytest.raises(TypeError):
        dataset[1.5]


def test_the_repr_says_what_it_is(photos):
    """Path, samples, classes, bytes, format."""
    text = repr(penstock.open(photos))
    assert text.endswith("photos': 4 samples, 2 classes, 200 bytes, format tree>")


@pytest.mark.parametrize("index", first(1, ["auto", "memory"]))
def test_a_dataset_travels_to_spawned_processes(photos, index):
    """The pickle of a saved index is small; both kinds read the same samples there."""
    dataset = penstock.open(photos, index=index)
    pickled = pickle.dumps(dataset)
    assert len(pickled) < (500 if index == "auto" else 5000)
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        assert pool.apply(dataset.__getitem__, (1,)) == dataset[1]


def test_a_pickle_of_other_data_is_an_error(photos):
    """If the saved index is gone the data decides, and other data is refused."""
    dataset = penstock.open(photos)
    pickled = pickle.dumps(dataset)
    os.unlink(dataset.sidecar)
    assert pickle.loads(pickled).fingerprint == dataset.fingerprint
    (photos / "cat/3").write_text("new")
    with pytest.raises(ChangedError, match="is not the data that was pickled"):
        pickle.loads(pickled)


def test_a_file_that_changed_is_an_error(photos):
    """Shorter, longer, rewritten, vanished: ChangedError names file, offset and sample."""
    dataset = penstock.open(photos)
    path = photos / "cat/2"
    place = r"sample 1: .*cat/2 at byte 0 \(50 bytes\): "
    content = path.read_bytes()
    for change, message in (
        (lambda: path.write_bytes(content[:-1]), "the file has 49 bytes and had 50"),
        (lambda: path.write_bytes(content + b"x"), "the file has 51 bytes"),
        (lambda: path.write_bytes(content), "the file was written to"),
        (path.unlink, "the file vanished"),
    ):
        change()
        with pytest.raises(ChangedError, match=place + message):
            dataset[1]
        assert dataset[0]["label"] == 0


# -- the saved index -------------------------------------------------------------------------------


def test_the_index_is_saved_beside_the_data_and_used(photos):
    """The second open reads the sidecar; its answers are the same."""
    first = penstock.open(photos)
    assert first.sidecar == f"{photos}.penstock"
    before = os.stat(first.sidecar)
    second = penstock.open(photos)
    assert second.fingerprint == first.fingerprint
    assert second[3] == first[3]
    assert os.stat(first.sidecar).st_ino == before.st_ino


@pytest.mark.parametrize(
    "change",
    [
        lambda root: (root / "cat/3").write_text("new"),
        lambda root: (root / "cat/1").unlink(),
        lambda root: (root / "cat/1").rename(root / "cat/9"),
        lambda root: (root / "eel").mkdir(),
        lambda root: shutil.rmtree(root / "dog"),
    ],
    ids=["add", "remove", "rename", "new folder", "folder removed"],
)
def test_a_changed_tree_is_indexed_anew(photos, change):
    """Whatever changes the names is found when the data is opened."""
    first = penstock.open(photos)
    change(photos)
    second = penstock.open(photos)
    assert second.fingerprint != first.fingerprint
    assert second.fingerprint == penstock.open(photos, index="memory").fingerprint


def test_changed_records_are_indexed_anew(records):
    """A file of another size or time is looked at again."""
    assert len(penstock.open(records, record_bytes=10)) == 10
    records.write_bytes(bytes(50))
    assert len(penstock.open(records, record_bytes=10)) == 5


def test_other_options_make_another_index(records):
    """A saved index serves only the options that it was made with, however they are spelled."""
    penstock.open(records, dtype="u1", shape=(10,))
    inode = os.stat(f"{records}.penstock").st_ino
    penstock.open(records, dtype=np.uint8, shape=[np.int64(10)])
    assert os.stat(f"{records}.penstock").st_ino == inode
    assert len(penstock.open(records, record_bytes=20)) == 5


def test_a_scan_close_to_a_change_is_not_trusted_twice(photos):
    """Files that appear within the clock's grain of the scan are found at the next open."""
    dataset = penstock.open(photos)
    flag_if_racy(dataset.index, LONG_AGO_NS + 4_000_000).save(dataset.sidecar)  # scanned 4 ms later
    (photos / "cat/3").write_text("new")
    age(photos)
    assert len(penstock.open(photos)) == 5


def test_memory_and_read_write_nothing(photos):
    """Neither mode leaves a trace; "read" uses what is there."""
    for mode in ("memory", "read"):
        assert penstock.open(photos, index=mode).sidecar is None
        assert not os.path.exists(f"{photos}.penstock")
    saved = penstock.open(photos)
    assert penstock.open(photos, index="read").sidecar == saved.sidecar


def test_a_damaged_sidecar_is_a_warning_and_made_anew(photos):
    """The data is there, so the job goes on; the warning names the file."""
    sidecar = Path(penstock.open(photos).sidecar)
    sidecar.write_bytes(sidecar.read_bytes()[:-9])
    with pytest.warns(RuntimeWarning, match=r"photos\.penstock: truncated.*made again"):
        assert len(penstock.open(photos)) == 4
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        penstock.open(photos)


def test_an_index_may_be_named(photos, records, tmp_path):
    """A saved index elsewhere is used if it fits, and else refused with the reason."""
    dataset = penstock.open(photos)
    dataset.index.save(tmp_path / "mine")
    assert penstock.open(photos, index=tmp_path / "mine").fingerprint == dataset.fingerprint
    with pytest.raises(MissingError, match="none does not exist"):
        penstock.open(photos, index=tmp_path / "none")
    with pytest.raises(SidecarError, match=r"made with \{\}, not with"):
        penstock.open(photos, index=tmp_path / "mine", extensions=["jpg"])
    with pytest.raises(SidecarError, match="it is of"):
        penstock.open(records, index=tmp_path / "mine")
    (photos / "cat/3").write_text("new")
    with pytest.raises(SidecarError, match=r"cat was written to.*penstock index --force"):
        penstock.open(photos, index=tmp_path / "mine")
    (tmp_path / "mine").write_text("something else, and long enough for the first fields")
    with pytest.raises(SidecarError, match="not a sidecar"):
        penstock.open(photos, index=tmp_path / "mine")


def test_a_moved_dataset_keeps_its_index(photos, tmp_path):
    """Data and sidecar moved together need no scan: names are relative."""
    penstock.open(photos)
    (tmp_path / "new").mkdir()
    os.rename(photos, tmp_path / "new/photos")
    os.rename(f"{photos}.penstock", tmp_path / "new/photos.penstock")
    inode = os.stat(tmp_path / "new/photos.penstock").st_ino
    dataset = penstock.open(tmp_path / "new/photos")
    assert dataset[0]["data"] == b"cat/1" * 10
    assert os.stat(tmp_path / "new/photos.penstock").st_ino == inode


def test_where_the_data_cannot_be_written_to_the_cache_is_used(shared, monkeypatch):
    """Another user's data is indexed in one's own cache, and that index is used again."""
    (shared / "data").mkdir()
    (shared / "data/a").write_text("a")
    age(shared)
    cache = shared / "cache"
    cache.mkdir()
    cache.chmod(0o777)
    monkeypatch.setenv("XDG_CACHE_HOME", str(cache))
    shared.chmod(0o555)
    expected = list_index_paths(locate_data(str(shared / "data"))[0])[1]
    assert expected.startswith(f"{cache}/penstock/")
    for _ in range(2):
        assert as_nobody(lambda: penstock.open(shared / "data").sidecar) == repr(expected)
    assert not (shared / "data.penstock").exists()


def test_where_nothing_can_be_written_the_index_stays_in_memory(shared, monkeypatch):
    """A warning says so; the data is read all the same."""
    (shared / "data").mkdir()
    (shared / "data/a").write_text("a")
    monkeypatch.setenv("XDG_CACHE_HOME", str(shared / "none"))
    shared.chmod(0o555)

    def work() -> tuple[int, str]:
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            return len(penstock.open(shared / "data")), str(caught[0].message)

    answer = as_nobody(work)
    assert answer.startswith("(1, ")
    assert "the index could not be saved" in answer


def test_a_full_disk_is_a_warning(tmp_path):
    """ENOSPC while saving leaves no file, and the dataset works."""
    disk = tmp_path / "disk"
    disk.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", str(disk)]
    if subprocess.run(mount, capture_output=True).returncode:
        pytest.skip("mounting a small tmpfs needs privileges")
    try:
        (disk / "data").mkdir()
        (disk / "data/x").write_bytes(b"")
        (disk / "fill").write_bytes(bytes(60_000))
        for number in range(200):
            (tmp_path / f"target{number}").touch()
            (disk / f"data/{'n' * 200}{number}").symlink_to(tmp_path / f"target{number}")
        with pytest.warns(RuntimeWarning, match="No space left"):
            dataset = penstock.open(disk / "data")
        assert len(dataset) == 201
        assert sorted(os.listdir(disk)) == ["data", "fill"]
    finally:
        subprocess.run(["umount", "-l", str(disk)], check=True)


# -- errors ----------------------------------------------------------------------------------------


def test_a_path_that_is_not_there_is_an_error(tmp_path):
    """Missing, empty, impossible: each says so."""
    with pytest.raises(MissingError, match="none does not exist: check the path") as caught:
        penstock.open(tmp_path / "none")
    assert isinstance(caught.value, FileNotFoundError)
    with pytest.raises(UsageError, match="path is empty"):
        penstock.open("")
    with pytest.raises(UsageError, match="zero byte"):
        penstock.open("a\0b")
    with pytest.raises(UsageError, match="neither a file nor a folder"):
        penstock.open("/dev/null")


def test_a_folder_or_file_that_may_not_be_read_is_an_error(shared):
    """The message names the path and the remedy, and errno is set."""
    (shared / "data/secret").mkdir(parents=True)
    (shared / "data/a").write_text("a")
    (shared / "data/secret").chmod(0)
    answer = as_nobody(lambda: penstock.open(shared / "data", index="memory"))
    assert answer.startswith(
        f"StorageError: {shared}/data/secret cannot be read: permission denied"
    )
    (shared / "data/secret").rmdir()
    (shared / "data/a").chmod(0)
    answer = as_nobody(lambda: penstock.open(shared / "data", index="memory")[0])
    assert answer.startswith(f"StorageError: {shared}/data/a cannot be read: permission denied")
    answer = as_nobody(lambda: penstock.open(shared / "data/a", record_bytes=1, index="memory"))
    assert "data/a cannot be read: permission denied" in answer
    (shared / "data").chmod(stat.S_IRUSR)
    answer = as_nobody(lambda: penstock.open(shared / "data/a", record_bytes=1))
    assert "cannot be read: permission denied" in answer or "does not exist" in answer


def test_errors_of_the_system_keep_their_number(tmp_path):
    """A StorageError carries errno, so that callers may decide by it."""
    (tmp_path / "loop").symlink_to("loop")
    with pytest.raises(StorageError, match="too many links") as caught:
        penstock.open(tmp_path / "loop")
    assert caught.value.errno == 40


def test_content_decides_the_format(tmp_path, photos):
    """An array, a list, a folder and records are told apart; the unknown is refused."""
    np.save(tmp_path / "a.npy", np.zeros((3, 2)))
    os.rename(tmp_path / "a.npy", tmp_path / "array")
    (tmp_path / "list").write_text("photos/cat/1\n")
    (tmp_path / "binary").write_bytes(b"\0" * 12)
    assert penstock.open(tmp_path / "array").index.format == "npy"
    assert penstock.open(tmp_path / "list").index.format == "listing"
    assert penstock.open(photos).index.format == "tree"
    assert penstock.open(tmp_path / "binary", record_bytes=4).index.format == "records"
    assert penstock.open(tmp_path / "list", format="records", record_bytes=13)[0]["data"].any()
    with pytest.raises(FormatError, match="no format that penstock knows"):
        penstock.open(tmp_path / "binary", index="memory")
    with pytest.raises(UsageError, match="'pny': did you mean 'npy'"):
        penstock.open(tmp_path / "array", format="pny")
    with pytest.raises(UsageError, match="header_bytes= is of records"):
        penstock.open(tmp_path / "array", header_bytes=3)
    with pytest.raises(FormatError, match="npy header is damaged"):
        penstock.open(tmp_path / "binary", format="npy")


def test_importing_penstock_does_no_work():
    """Neither the command line's packages nor torch are imported."""
    code = (
        "import sys, penstock; "
        "print([m for m in ('typer', 'rich', 'torch', 'click') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


# -- integers --------------------------------------------------------------------------------------


@pytest.mark.parametrize("as_dtype", ["int64", "int32"])
def test_integers_in_another_type(tmp_path: Path, as_dtype: str) -> None:
    """nanoGPT's train.bin is opened by window and dtype, in the type that embeddings take, by
    number, in batches, in decode and after pickling."""
    stored = np.arange(1000, dtype=np.uint16) + 60_000
    stored.tofile(tmp_path / "train.bin")
    plain = penstock.open(tmp_path / "train.bin", window=24, dtype="uint16")
    assert plain.index.format == "tokens"
    dataset = penstock.open(tmp_path / "train.bin", window=24, dtype="uint16", as_dtype=as_dtype)
    assert dataset.fingerprint == plain.fingerprint
    assert dataset.fields[0].dtype == plain.fields[0].dtype == np.uint16
    for opened in (dataset, pickle.loads(pickle.dumps(dataset))):
        for decode in (None, lambda sample: {"tokens": sample["tokens"]}):
            with penstock.Loader(opened, 7, decode=decode) as loader:
                for batch in loader:
                    assert batch["tokens"].dtype == as_dtype
                    expected = stored[batch.ids[:, None].astype(int) * 24 + np.arange(25)]
                    assert np.array_equal(batch["tokens"], expected)
        assert opened[3]["tokens"].dtype == as_dtype
        assert np.array_equal(opened[3]["tokens"], plain[3]["tokens"])


def test_integers_that_cannot_be_converted(tmp_path: Path) -> None:
    """A type that does not hold all values, or is none of integers, is refused by name."""
    np.arange(100, dtype=np.uint32).tofile(tmp_path / "t.bin")
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "a.jpg").write_bytes(b"x")
    for as_dtype, match in (
        ("int32", "as_dtype is int32, and 'tokens' is uint32"),
        ("float32", "use integers"),
        ("nonsense", "use integers"),
    ):
        with pytest.raises(UsageError, match=match):
            penstock.open(tmp_path / "t.bin", window=4, dtype="uint32", as_dtype=as_dtype)
    with pytest.raises(UsageError, match="has no field of integers"):
        penstock.open(tmp_path / "folder", as_dtype="int64")
    tokens = penstock.open(tmp_path / "t.bin", window=4, dtype="uint32", as_dtype="int64")
    with pytest.raises(UsageError, match="without as_dtype"):
        penstock.convert.convert(tokens, tmp_path / "out", to="tar")


def test_a_window_over_a_file_of_another_format(tmp_path: Path) -> None:
    """A window does not make tokens of a file whose contents show another format."""
    np.save(tmp_path / "x.npy", np.arange(100, dtype=np.uint16))
    with pytest.raises(UsageError, match="dtype= is of records, tokens: leave it out"):
        penstock.open(tmp_path / "x.npy", window=4, dtype="uint16")
    with pytest.raises(UsageError, match="window is 4: give {axis: elements}"):
        penstock.open(tmp_path / "x.npy", window=4)


def test_a_local_path_needs_no_hub(tmp_path: Path) -> None:
    """Opening and reading a file loads no module of the hub's client."""
    np.save(tmp_path / "x.npy", np.arange(6).reshape(3, 2))
    code = (
        "import sys, penstock\n"
        f"penstock.open({str(tmp_path / 'x.npy')!r})[0]\n"
        "print([name for name in sys.modules if name.startswith('penstock.engine.hub')])\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"
