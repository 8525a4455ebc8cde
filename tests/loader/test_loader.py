"""The loader: batches of real files, states, faults, and nothing left behind."""

from __future__ import annotations

import gc
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import textwrap
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import penstock
from penstock.errors import ChangedError, CollateError, MissingError, StateError, UsageError
from tests import warm

RECORD = 96


@pytest.fixture
def records(tmp_path: Path) -> Path:
    """A file of 101 records that each begin with their number."""
    data = np.random.default_rng(0).integers(0, 256, (101, RECORD)).astype(np.uint8)
    data[:, 0] = np.arange(101)
    path = tmp_path / "records.bin"
    path.write_bytes(data.tobytes())
    return path


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """Two classes of files of different lengths."""
    root = tmp_path / "tree"
    for i in range(20):
        folder = root / ("odd" if i % 2 else "even")
        folder.mkdir(parents=True, exist_ok=True)
        (folder / f"{i:02}.txt").write_bytes(f"file {i} ".encode() * (i + 1))
    return root


def opened(path: Path) -> penstock.Dataset:
    return penstock.open(path, record_bytes=RECORD, index="memory")


def ids_of(loader: Any) -> list[list[int]]:
    return [batch.ids.tolist() for batch in loader]


def test_names_that_are_no_text(tmp_path: Path) -> None:
    """Folders and files whose names are not UTF-8 are read like others."""
    root = Path(os.fsdecode(os.fsencode(tmp_path) + b"/\xff"))
    root.mkdir()
    for number in range(3):
        Path(os.fsdecode(os.fsencode(root) + b"/\xfe%d" % number)).write_bytes(b"%d" % number)
    loader = penstock.Loader(penstock.open(root, index="memory"), 3, shuffle="none")
    (batch,) = loader
    assert batch["data"].tobytes() == b"012"


# -- what batches hold -------------------------------------------------------------------------


@pytest.mark.parametrize("mmap", ["required", "off"])
@pytest.mark.parametrize("io_uring", ["auto", "off"])
@pytest.mark.parametrize("shuffle", ["exact", "blocked", "none"])
def test_fixed_records(records: Path, shuffle: Any, io_uring: Any, mmap: Any) -> None:
    """Rows are the records that `ids` names, and an epoch holds each once."""
    data = np.fromfile(records, np.uint8).reshape(-1, RECORD)
    budget = penstock.Budget(mmap=mmap, io_uring=io_uring)
    loader = penstock.Loader(
        opened(records), 8, shuffle=shuffle, seed=5, budget=budget, block=4, group=3
    )
    seen: list[int] = []
    for step, batch in enumerate(loader):
        assert (batch.step, batch.epoch) == (step, 0)
        assert batch.ids.dtype == np.uint64
        assert batch["data"].dtype == np.uint8
        assert np.array_equal(batch["data"], data[batch.ids.astype(int)])
        assert batch.valid.all()
        seen += batch.ids.tolist()
    assert sorted(seen) == list(range(101))
    assert (seen == list(range(101))) is (shuffle == "none")


def test_ragged_and_labels(tree: Path) -> None:
    """Files of different lengths come as a ragged buffer, with the labels of their folders."""
    ds = penstock.open(tree, index="memory")
    for batch in penstock.Loader(ds, 6, seed=1):
        assert isinstance(batch["data"], penstock.Ragged)
        assert len(batch["data"]) == len(batch.ids) == len(batch["label"])
        for sample, label, content in zip(
            batch.ids.tolist(), batch["label"], batch["data"], strict=True
        ):
            assert content.tobytes() == ds[sample]["data"]
            assert ds.classes is not None
            assert ds.classes[label] == ds.index.key(sample).split("/")[0]
        with pytest.raises(IndexError):
            batch["data"][len(batch.ids)]
        with pytest.raises(AttributeError, match=r"fields by batch\[name\]: data, label"):
            _ = batch.image


def test_npy_is_typed(tmp_path: Path) -> None:
    """Rows of an .npy file come in its dtype and shape."""
    array = np.random.default_rng(0).standard_normal((50, 3, 4)).astype(np.float32)
    np.save(tmp_path / "x.npy", array)
    for batch in penstock.Loader(penstock.open(tmp_path / "x.npy", index="memory"), 7, seed=2):
        assert np.array_equal(batch["data"], array[batch.ids.astype(int)])


def test_batches_keep_their_memory(records: Path) -> None:
    """A batch that the user keeps is never overwritten by later ones."""
    data = np.fromfile(records, np.uint8).reshape(-1, RECORD)
    loader = penstock.Loader(opened(records), 4, seed=1)
    kept = [batch for _ in range(3) for batch in loader]
    assert all(np.array_equal(b["data"], data[b.ids.astype(int)]) for b in kept)


def test_order_of_torch_batches(records: Path) -> None:
    """The samples of a rank are the strided share of the order's sequence."""
    loader = penstock.Loader(opened(records), 5, seed=9, rank=1, world_size=3, drop_last=True)
    loader.set_epoch(4)
    sequence = penstock.Order(101, 9, 4).samples(np.arange(101)).tolist()
    assert ids_of(loader) == [sequence[15 * k + 1 : 15 * k + 15 : 3] for k in range(6)]


# -- epochs and states ---------------------------------------------------------------------------


def test_epochs_count_up_and_set_epoch_wins(records: Path) -> None:
    """Each `for` is the next epoch; `set_epoch` names another; orders differ between epochs."""
    loader = penstock.Loader(opened(records), 10, seed=1)
    first, second = ids_of(loader), ids_of(loader)
    assert first != second
    loader.set_epoch(0)
    assert ids_of(loader) == first
    assert ids_of(loader) == second
    for batch in loader:  # abandoned
        assert batch.epoch == 2
        break
    assert next(iter(loader)).epoch == 3


def test_resume_at_every_step(records: Path) -> None:
    """A state taken after any step continues with exactly the rest, and then the next epoch."""
    ds = opened(records)
    loader = penstock.Loader(ds, 8, seed=3)
    states, batches = [loader.state_dict()], []
    for batch in loader:
        batches.append(batch.ids.tolist())
        states.append(json.loads(json.dumps(loader.state_dict())))
    following = ids_of(loader)
    for step, state in enumerate(states):
        again = penstock.Loader(ds, 8, seed=3)
        again.load_state_dict(state)
        assert again.state_dict() == state
        if step < len(batches):
            assert ids_of(again) == batches[step:]
        assert ids_of(again) == following


def test_set_epoch_keeps_a_restored_place(records: Path) -> None:
    """The usual loop, which calls set_epoch(e) at every epoch, does not lose the place within e."""
    ds = opened(records)
    loader = penstock.Loader(ds, 10, seed=3)
    iterator = iter(loader)
    for _ in range(4):
        next(iterator)
    state = loader.state_dict()
    rest = [batch.ids.tolist() for batch in iterator]
    again = penstock.Loader(ds, 10, seed=3)
    again.load_state_dict(state)
    again.set_epoch(0)
    assert ids_of(again) == rest
    again.load_state_dict(state)
    again.set_epoch(5)
    assert next(iter(again)).step == 0


def test_state_is_small_and_free_of_side_effects(records: Path) -> None:
    """A state has fixed keys, is the same on all ranks, under 1 KiB, and starts no thread."""
    threads = threading.active_count(), len(os.listdir("/proc/self/task"))
    loaders = [
        penstock.Loader(opened(records), 4, rank=rank, world_size=2, seed=1) for rank in range(2)
    ]
    states = [loader.state_dict() for loader in loaders]
    assert states[0] == states[1]
    assert len(json.dumps(states[0])) < 1024
    assert (threading.active_count(), len(os.listdir("/proc/self/task"))) == threads
    keys = list(states[0])
    next(iter(loaders[0]))
    assert list(loaders[0].state_dict()) == keys


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"fingerprint": "00"}, "other data"),
        ({"seed": 4}, "seed=4"),
        ({"global_batch": 16}, "global_batch_size=16"),
        ({"order": "none-1"}, "shuffle"),
        ({"version": 99}, "version 99"),
        ({"epoch": -1}, "epoch"),
        ({"step": 10**9}, "step"),
        ({"step": 1.5}, "step"),
        ({"more": 1}, "no state"),
    ],
)
def test_states_that_do_not_fit(records: Path, change: dict[str, Any], message: str) -> None:
    """A state of other data, seed, order or batch is refused with what to do."""
    loader = penstock.Loader(opened(records), 8, seed=3)
    state = loader.state_dict()
    with pytest.raises(StateError, match=message):
        loader.load_state_dict(state | change)
    assert loader.state_dict() == state


def test_state_of_grown_data(records: Path) -> None:
    """A dataset that grew by one record does not continue a run on the old one."""
    state = penstock.Loader(opened(records), 8).state_dict()
    with records.open("ab") as file:
        file.write(bytes(RECORD))
    with pytest.raises(StateError, match="other data"):
        penstock.Loader(opened(records), 8).load_state_dict(state)


def test_two_iterators_at_once(records: Path) -> None:
    """Two iterators of one loader go on side by side, each through its own epoch."""
    loader = penstock.Loader(opened(records), 10, seed=1)
    first, second = iter(loader), iter(loader)
    pairs = [(a.ids.tolist(), b.ids.tolist()) for a, b in zip(first, second, strict=True)]
    again = penstock.Loader(opened(records), 10, seed=1)
    assert [a for a, _ in pairs] == ids_of(again)
    assert [b for _, b in pairs] == ids_of(again)


# -- decode --------------------------------------------------------------------------------------


def test_decode_and_collate(tree: Path) -> None:
    """Decoded samples are collated as torch does, and know their key and label."""
    ds = penstock.open(tree, index="memory")

    def decode(sample: dict[str, Any]) -> dict[str, Any]:
        return {
            "length": len(sample["data"]),
            "head": np.frombuffer(sample["data"], np.uint8, 4).astype(np.float32),
            "key": sample["__key__"],
            "pair": (sample["label"], 0.5),
        }

    loader = penstock.Loader(ds, 6, seed=2, decode=decode, decode_threads=3)
    keys: list[str] = []
    for batch in loader:
        assert batch["length"].dtype == np.int64
        assert batch["head"].shape == (len(batch["key"]), 4)
        assert batch["pair"][1].dtype == np.float64
        for key, length, label in zip(batch["key"], batch["length"], batch["pair"][0], strict=True):
            assert length == (tree / key).stat().st_size
            assert label == (key.split("/")[0] == "odd")
        keys += batch["key"]
    assert sorted(keys) == sorted(ds.index.key(i) for i in range(20))


def test_decode_threads_do_not_change_the_order(tree: Path) -> None:
    """Any number of threads gives the same batches."""
    ds = penstock.open(tree, index="memory")

    def run(threads: int) -> list[list[str]]:
        loader = penstock.Loader(
            ds, 3, seed=4, decode=lambda s: s["__key__"], decode_threads=threads
        )
        return list(loader)

    assert run(1) == run(2) == run(7)


def test_custom_collate(tree: Path) -> None:
    """A collate function gets the list of decoded samples in batch order."""
    ds = penstock.open(tree, index="memory")
    plain = ids_of(penstock.Loader(ds, 4, seed=1))
    loader = penstock.Loader(ds, 4, seed=1, decode=lambda s: s["__key__"], collate=tuple)
    assert list(loader) == [tuple(ds.index.key(i) for i in ids) for ids in plain]


def test_decode_error_names_the_sample(tree: Path) -> None:
    """An exception of decode arrives in its turn, with its own type and a note on the sample; the
    next call gives the next batch, as in torch."""
    ds = penstock.open(tree, index="memory")
    ids = ids_of(penstock.Loader(ds, 5, seed=1))
    bad = ds.index.key(ids[2][3])

    def decode(sample: dict[str, Any]) -> str:
        if sample["__key__"] == bad:
            raise ZeroDivisionError("bad pixel")
        return str(sample["__key__"])

    loader = penstock.Loader(ds, 5, seed=1, decode=decode)
    iterator = iter(loader)
    found = [next(iterator), next(iterator)]
    with pytest.raises(ZeroDivisionError, match="bad pixel") as caught:
        next(iterator)
    assert bad in "".join(caught.value.__notes__)
    assert loader.state_dict()["step"] == 2
    found += iterator
    assert found == [[ds.index.key(i) for i in ids[step]] for step in (0, 1, 3)]


def test_decode_results_that_do_not_fit(tree: Path) -> None:
    """Results of different shapes are refused with the shapes and a remedy."""
    ds = penstock.open(tree, index="memory")
    loader = penstock.Loader(ds, 5, decode=lambda s: np.frombuffer(s["data"], np.uint8))
    with pytest.raises(CollateError, match="one shape"):
        list(loader)


def test_empty_share_keeps_the_structure(tree: Path) -> None:
    """A rank without samples in the last step gets a batch of no rows in the usual structure."""
    ds = penstock.open(tree, index="memory")
    loaders = [
        penstock.Loader(
            ds,
            global_batch_size=6,
            rank=rank,
            world_size=3,
            decode=lambda s: {"n": len(s["data"]), "x": np.zeros(2, np.float32)},
        )
        for rank in range(3)
    ]
    last = [list(loader)[-1] for loader in loaders]
    assert [len(batch["n"]) for batch in last] == [1, 1, 0]
    assert last[2]["x"].shape == (0, 2)
    raw = [penstock.Loader(ds, global_batch_size=6, rank=r, world_size=3) for r in range(3)]
    assert [len(list(loader)[-1].ids) for loader in raw] == [1, 1, 0]


def test_padding_is_marked(records: Path) -> None:
    """With pad=True all ranks have equal shares, and repeats are not valid."""
    seen: list[int] = []
    for rank in range(4):
        loader = penstock.Loader(opened(records), 8, rank=rank, world_size=4, pad=True, seed=1)
        batches = list(loader)
        assert [len(b.ids) for b in batches] == [8, 8, 8, 2]
        seen += [i for b in batches for i in b.ids[b.valid].tolist()]
    assert sorted(seen) == list(range(101))


# -- faults --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "budget", [{"mmap": "required"}, {"mmap": "off"}, {"io_uring": "off", "mmap": "off"}]
)
def test_truncated_file(records: Path, budget: dict[str, Any]) -> None:
    """A file cut after indexing is an error naming file, sample and remedy, on every backend."""
    ds = opened(records)
    os.truncate(records, 50 * RECORD + 7)
    loader = penstock.Loader(ds, 4, seed=0, budget=penstock.Budget(**budget))
    with pytest.raises(ChangedError, match=r"records\.bin.*penstock index --force"):
        list(loader)


def test_truncated_while_open(records: Path) -> None:
    """A file cut while it is mapped and read is an error, never a signal; what comes before the
    missing bytes is right."""
    ds = opened(records)
    data = np.fromfile(records, np.uint8).reshape(-1, RECORD)
    loader = penstock.Loader(ds, 2, seed=0, budget=penstock.Budget(mmap="required"))
    iterator = iter(loader)
    next(iterator)
    os.truncate(records, 0)
    with pytest.raises(ChangedError, match="cut short|another size"):
        for batch in iterator:
            assert np.array_equal(batch["data"], data[batch.ids.astype(int)])


def test_vanished_file(tree: Path) -> None:
    """A file removed after indexing is a MissingError that names it and the sample."""
    ds = penstock.open(tree, index="memory")
    (tree / "odd" / "07.txt").unlink()
    with pytest.raises(MissingError, match=r"07\.txt.*sample"):
        list(penstock.Loader(ds, 4))


def test_changed_file(tree: Path) -> None:
    """A file rewritten after indexing is a ChangedError, also where its size is the same."""
    ds = penstock.open(tree, index="memory")
    path = tree / "odd" / "07.txt"
    path.write_bytes(path.read_bytes().upper())
    os.utime(path, ns=(0, 0))
    with pytest.raises(ChangedError, match=r"07\.txt"):
        list(penstock.Loader(ds, 4))


def test_unreadable_file(tree: Path) -> None:
    """A file without permission is a StorageError with its errno (as an unprivileged user)."""
    if os.geteuid() != 0:
        pytest.skip("needs root to become another user")
    # Not below pytest's folder, which every session closes to others again.
    with tempfile.TemporaryDirectory(dir="/tmp") as open_folder:
        Path(open_folder).chmod(0o755)
        copy = Path(shutil.copytree(tree, Path(open_folder) / "tree"))
        (copy / "odd" / "07.txt").chmod(0)
        done = python(f"""
            import os, penstock
            ds = penstock.open({str(copy)!r}, index="memory")
            list(penstock.Loader(ds, 4))  # modules that the other user may not read
            os.setuid(65534)
            try:
                list(penstock.Loader(ds, 4))
            except penstock.errors.StorageError as error:
                print(error.errno, error)
        """)
    assert done.stdout.startswith("13 "), done
    assert "07.txt" in done.stdout


def test_earlier_batches_come_before_the_fault(tree: Path) -> None:
    """A fault is raised at the step that it concerns; steps before it are handed over."""
    ds = penstock.open(tree, index="memory")
    ids = ids_of(penstock.Loader(ds, 4, seed=1))
    (tree / ds.index.key(ids[3][0])).unlink()
    for budget in (penstock.Budget(mmap="required"), penstock.Budget(mmap="off")):
        loader = penstock.Loader(ds, 4, seed=1, budget=budget)
        seen = []
        with pytest.raises(MissingError):
            for batch in loader:
                seen.append(batch.ids.tolist())  # noqa: PERF401
        assert seen == ids[:3]
        assert loader.state_dict()["step"] == 3


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"batch_size": 0}, "batch_size is 0"),
        ({"batch_size": -3}, "batch_size is -3"),
        ({"batch_size": 2.5}, "batch_size is 2.5"),
        ({"batch_size": float("nan")}, "nan"),
        ({"batch_size": True}, "batch_size is True"),
        ({"global_batch_size": 0}, "global_batch_size is 0"),
        ({"batch_size": 4, "global_batch_size": 8}, "choose one"),
        ({"seed": -1}, "seed"),
        ({"seed": 1.0}, "seed"),
        ({"shuffle": "yes"}, "shuffle"),
        ({"drop_last": 1}, "drop_last"),
        ({"drop_last": True, "batch_size": 102}, "no batch"),
        ({"drop_last": True, "pad": True, "batch_size": 2}, "exclude"),
        ({"rank": 2, "world_size": 2}, r"rank \(from arguments\) is 2: .* from 0 to 1"),
        ({"rank": 0}, "both or neither"),
        ({"rank": 0, "world_size": 102}, "102 ranks share 101 samples"),
        ({"assignment": "local"}, "give cache="),
        ({"decode_threads": 0, "decode": len}, "decode_threads is 0"),
        ({"collate": list}, "decode"),
    ],
)
def test_bad_arguments(records: Path, arguments: dict[str, Any], message: str) -> None:
    """Arguments that cannot be are refused at once, with the value and what would be accepted."""
    with pytest.raises(UsageError, match=message):
        penstock.Loader(opened(records), **arguments)


def test_no_batch_is_told_at_construction_of_a_world(records: Path, monkeypatch: Any) -> None:
    """A world from the environment whose global batch exceeds the data is an error at first use."""
    monkeypatch.setenv("RANK", "0")
    monkeypatch.setenv("WORLD_SIZE", "3")
    loader = penstock.Loader(opened(records), 50, drop_last=True)
    with pytest.raises(UsageError, match="no batch"):
        next(iter(loader))


# -- nothing left behind ---------------------------------------------------------------------------


def left_behind() -> tuple[int, int, int]:
    """Threads, descriptors and shared memory of this process."""
    gc.collect()
    return (
        len(os.listdir("/proc/self/task")),
        len(os.listdir("/proc/self/fd")),
        Path("/proc/self/maps").read_text().count("/dev/shm"),
    )


@pytest.mark.parametrize("decode", [None, lambda s: s["__key__"]])
def test_nothing_is_left_behind(records: Path, decode: Any) -> None:
    """A loader that is dropped in mid-epoch, closed or exhausted leaves no thread and no file."""
    ds = opened(records)
    before = left_behind()
    for _ in range(5):
        loader = penstock.Loader(ds, 4, decode=decode)
        next(iter(loader))
        del loader
        with penstock.Loader(ds, 4, decode=decode) as loader:
            list(loader)
            iterator = iter(loader)
            next(iterator)
        del loader, iterator
    # Others' threads may end meanwhile.
    assert all(now <= then for now, then in zip(left_behind(), before, strict=True))


def test_close_and_use_again(records: Path) -> None:
    """A closed loader may be iterated again; an iterator that was closed ends."""
    loader = penstock.Loader(opened(records), 10, seed=1)
    iterator = iter(loader)
    next(iterator)
    loader.close()
    assert list(iterator) == []
    assert sum(len(batch.ids) for batch in loader) == 101


def python(script: str, **options: Any) -> subprocess.CompletedProcess[str]:
    return warm.run(
        [sys.executable, "-c", textwrap.dedent(script)],
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
        **options,
        lean=True,
    )


def test_fork_after_use_is_refused(records: Path) -> None:
    """A loader used before a fork says so in the child, and the child ends in peace."""
    script = f"""
        import os, penstock
        ds = penstock.open({str(records)!r}, record_bytes={RECORD}, index="memory")
        loader = penstock.Loader(ds, 4, decode=lambda s: 1)
        unused = penstock.Loader(ds, 4)
        iterator = iter(loader)
        next(iterator)
        pid = os.fork()
        if pid == 0:
            for use in (lambda: next(iterator), lambda: next(iter(loader))):
                try:
                    use()
                except penstock.errors.ForkError as error:
                    print("refused", "spawn" in str(error), flush=True)
            print(sum(len(b.ids) for b in unused), flush=True)
            raise SystemExit(0)
        _, status = os.waitpid(pid, 0)
        print("child", status, flush=True)
        print("parent", sum(1 for _ in iterator))
    """
    done = python(script)
    assert done.stdout.split("\n")[:5] == [
        "refused True",
        "refused True",
        "101",
        "child 0",
        "parent 25",
    ], done


def test_interrupt_ends_at_once(tmp_path: Path) -> None:
    """Ctrl-C while waiting for storage that does not answer raises KeyboardInterrupt."""
    script = f"""
        import penstock
        for decode in (None, lambda s: 1):
            ds = penstock.open({str(tmp_path / "x.bin")!r}, record_bytes=4, index="memory")
            budget = penstock.Budget(bytes_per_s=1e-3)
            loader = penstock.Loader(ds, 4, budget=budget, decode=decode)
            iterator = iter(loader)
            next(iterator)
            try:
                print("waiting", flush=True)
                next(iterator)
                next(iterator)
            except KeyboardInterrupt:
                print("interrupted", flush=True)
    """
    (tmp_path / "x.bin").write_bytes(bytes(4000))
    process = warm.Popen(
        [sys.executable, "-c", textwrap.dedent(script)],
        stdout=subprocess.PIPE,
        text=True,
        lean=True,
    )
    assert process.stdout is not None
    for _ in range(2):
        assert process.stdout.readline() == "waiting\n"
        process.send_signal(signal.SIGINT)
        assert process.stdout.readline() == "interrupted\n"
    assert process.wait(240) == 0


def test_exit_with_a_live_iterator(records: Path) -> None:
    """The interpreter ends at once while an iterator is half-way and threads are at work."""
    script = f"""
        import penstock
        ds = penstock.open({str(records)!r}, record_bytes={RECORD}, index="memory")
        raw, decoded = penstock.Loader(ds, 4), penstock.Loader(ds, 4, decode=lambda s: 1)
        a, b = iter(raw), iter(decoded)
        next(a), next(b)
        print("end", flush=True)
    """
    done = python(script)
    assert (done.returncode, done.stdout, done.stderr) == (0, "end\n", "")


# -- budget ------------------------------------------------------------------------------------


def test_budget_changes_while_running(records: Path) -> None:
    """A new budget takes effect in the middle of an epoch and changes no batch."""
    ds = opened(records)
    expected = ids_of(penstock.Loader(ds, 4, seed=1))
    loader = penstock.Loader(ds, 4, seed=1, budget=penstock.Budget(threads=1, mmap="off"))
    seen = []
    for step, batch in enumerate(loader):
        seen.append(batch.ids.tolist())
        if step == 5:
            loader.budget = penstock.Budget(threads=4, io_uring="off", mmap="off")
        if step == 10:
            loader.budget = penstock.Budget(mmap="required", readahead_bytes=1)
    assert seen == expected
    assert loader.stats()["backend"] == "mmap"
    assert loader.stats()["batches"] == len(expected)


def test_backend_follows_the_page_cache(tmp_path: Path) -> None:
    """Cold data is not read through a map; the next epoch, with the data in the page cache, is."""
    path = tmp_path / "big.bin"
    path.write_bytes(os.urandom(4096 * 2000))
    descriptor = os.open(path, os.O_RDONLY)
    os.fsync(descriptor)
    os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
    os.close(descriptor)
    ds = penstock.open(path, record_bytes=4096, index="memory")
    loader = penstock.Loader(ds, 100)
    iterator = iter(loader).begin()
    if loader.stats()["backend"] == "mmap":
        pytest.skip("this file system keeps the file in memory (tmpfs)")
    cold = {i for batch in iterator for i in batch.ids.tolist()}
    cached = {i for batch in loader for i in batch.ids.tolist()}
    assert loader.stats()["backend"] == "mmap"
    assert cold == cached == set(range(2000))


def test_files_of_one_length_are_an_array(tmp_path: Path) -> None:
    """If all files have one length the field is (B, L); samples of the dataset are bytes."""
    for i in range(10):
        (tmp_path / f"{i}").write_bytes(bytes([i]) * 24)
    ds = penstock.open(tmp_path, index="memory")
    for batch in penstock.Loader(ds, 4, seed=1):
        assert batch["data"].shape == (len(batch.ids), 24)
        assert np.array_equal(batch["data"][:, 5], batch.ids)
    assert ds[3]["data"] == bytes([3]) * 24
    raw = penstock.Loader(ds, 4, seed=1, decode=lambda s: bytes(s["data"]))
    assert sorted(part for batch in raw for part in batch) == [bytes([i]) * 24 for i in range(10)]


@pytest.mark.parametrize(
    "budget", [{}, {"mmap": "off"}, {"mmap": "off", "io_uring": "off"}, {"mmap": "required"}]
)
def test_change_in_place_between_epochs(tmp_path: Path, budget: dict[str, Any]) -> None:
    """A file rewritten in place after it was read once, at the same size, is an error in the next
    epoch, on every backend, although its descriptor stayed open."""
    paths = [tmp_path / "data" / f"{i}.bin" for i in range(6)]
    paths[0].parent.mkdir()
    for path in paths:
        path.write_bytes(b"1" * 50_000)
    ds = penstock.open(paths[0].parent, index="memory")
    loader = penstock.Loader(ds, 2, budget=penstock.Budget(**budget))
    assert all((batch["data"] == ord("1")).all() for batch in loader)
    with paths[3].open("r+b") as file:
        file.write(b"7" * 50_000)
    os.utime(paths[3], ns=(0, 0))
    coarse = 6  # CLOCK_MONOTONIC_COARSE, which time does not name
    tick = time.clock_gettime_ns(coarse)
    while time.clock_gettime_ns(coarse) == tick:
        os.sched_yield()  # files are looked at once in a tick
    with pytest.raises(ChangedError, match=r"3\.bin"):
        list(loader)


def test_process_group_started_after_first_use(records: Path, monkeypatch: Any) -> None:
    """A loader whose length was asked for before the ranks were known shares the epoch with them
    all the same; in the middle of an epoch a changed world is an error."""
    loader = penstock.Loader(opened(records), 10, seed=1)
    assert len(loader) == 11
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setenv("WORLD_SIZE", "2")
    iterator = iter(loader).begin()
    assert len(loader) == 6
    whole = penstock.Loader(opened(records), 20, seed=1, rank=0, world_size=1)
    assert next(iterator).ids.tolist() == next(iter(whole)).ids.tolist()[1::2]
    monkeypatch.setenv("WORLD_SIZE", "3")
    with pytest.raises(UsageError, match=r"rank 1 of 2 .* now rank 1 of 3"):
        next(iter(loader))


@pytest.mark.parametrize("late", [False, True], ids=["before loading", "after loading"])
def test_a_state_holds_for_the_ranks_there_are_then(
    late: bool, records: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A loader that stopped within an epoch on other ranks goes on from a state, whether that is
    loaded before or after the world has changed."""
    loader = penstock.Loader(opened(records), global_batch_size=20, seed=1)
    for _ in range(2):
        reading = iter(loader)
        next(reading), next(reading)
        state = loader.state_dict()
        if late:
            loader.load_state_dict(state)
        world = loader.place.world_size + 1
        monkeypatch.setenv("RANK", "1")
        monkeypatch.setenv("WORLD_SIZE", f"{world}")
        if not late:
            loader.load_state_dict(state)
        other = penstock.Loader(
            opened(records), global_batch_size=20, seed=1, rank=1, world_size=world
        )
        other.load_state_dict(state)
        assert [each.ids.tolist() for each in loader] == [each.ids.tolist() for each in other]


def test_an_epoch_that_cannot_begin_is_not_lost(tmp_path: Path) -> None:
    """If `iter` fails, here for batches that no memory holds, the epoch is not used up."""
    path = tmp_path / "huge.bin"
    with path.open("wb") as file:
        file.truncate(8 << 40)
    ds = penstock.open(path, record_bytes=1 << 40, index="memory")
    loader = penstock.Loader(ds, 2)
    loader.load_state_dict(loader.state_dict() | {"epoch": 2, "step": 3})
    with pytest.raises(MemoryError, match="lower batch_size"):
        next(iter(loader))
    assert loader.cursor.begin() == (2, 3)


def test_batches_are_mappings(records: Path) -> None:
    """A batch knows its fields, and a wrong name is answered with them."""
    batch = next(iter(penstock.Loader(opened(records), 4)))
    assert list(batch) == list(batch.keys()) == ["data"]
    assert "data" in batch
    assert "label" not in batch
    assert dict(batch)["data"] is batch["data"]
    with pytest.raises(KeyError, match="the fields are data"):
        batch["lable"]


def test_interrupted_wait_ends_every_iterator(records: Path, monkeypatch: Any) -> None:
    """An interrupt while waiting may lose reports of other iterators: they say so and end, nobody
    hangs, and the loader goes on."""
    loader = penstock.Loader(opened(records), 2, budget=penstock.Budget(bytes_per_s=50_000))
    first, second = iter(loader).begin(), iter(loader).begin()
    next(first)
    poll = loader._engine.poll  # type: ignore[union-attr]

    def interrupted(timeout_ns: int) -> Any:
        poll(timeout_ns)
        raise KeyboardInterrupt

    monkeypatch.setattr(loader._engine, "poll", interrupted)
    with pytest.raises(KeyboardInterrupt):
        list(first)
    monkeypatch.undo()
    with pytest.raises(UsageError, match="the rest of epoch 1 was dropped"):
        next(second)
    assert list(second) == []
    loader.budget = penstock.Budget()
    assert sum(len(batch.ids) for batch in loader) == 101


def test_collate_of_nothing(records: Path) -> None:
    """A collate function that cannot take an empty list is told about by rank and remedy."""
    loader = penstock.Loader(
        opened(records),
        global_batch_size=20,
        rank=1,
        world_size=2,
        decode=lambda s: np.zeros(2),
        collate=np.stack,
    )
    with pytest.raises(CollateError, match=r"rank 1 .* pad=True"):
        list(loader)


@pytest.mark.parametrize("decode", [None, lambda s: {"x": np.zeros(9), "n": (1, s["__key__"])}])
def test_memory_comes_back_without_the_cycle_collector(records: Path, decode: Any) -> None:
    """Dropped batches return their blocks at once: nothing holds them in a reference cycle."""
    loader = penstock.Loader(opened(records), 4, decode=decode)
    gc.collect()
    gc.disable()
    try:
        for batch in loader:
            del batch
        assert loader._threads is None or not loader._threads.close()
        assert loader._arena is not None
        assert loader._arena.lent_bytes == 0
    finally:
        gc.enable()
