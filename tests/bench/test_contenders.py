"""Contenders deliver the samples that a workload asks for, in its order, as real bytes."""

from __future__ import annotations

import itertools
import struct
import sys
from collections import Counter
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.errors import UsageError
from penstock_bench.contenders import check, make
from penstock_bench.contenders.delivery import (
    DeliveryTask,
    compute_checksum,
    compute_checksums,
    count_batch,
)
from penstock_bench.contenders.samples import open_samples
from penstock_bench.data import find_paths
from penstock_bench.data.generate import generate_data
from penstock_bench.measurement import measure_use
from penstock_bench.workload.distribution import Distribution
from penstock_bench.workload.sections import DatasetSpec, DlioWorkload, Hdf5Layout
from tests.bench.small import content, identity, reading, task, workload, write

LOADERS = ["penstock", "torch"]


def walked(name: str, given: DeliveryTask, epochs: int = 1) -> list[list[np.ndarray]]:
    """The samples of each epoch, in the sequence in which they were delivered."""
    contender = make(name, given)
    try:
        found = []
        for epoch in range(epochs):
            batches = [
                batch
                for _, batch in zip(range(given.steps), contender.batches(epoch), strict=False)
            ]
            assert len(batches) == given.steps
            found.append([np.asarray(sample) for batch in batches for sample in batch])
        return found
    finally:
        contender.close()


@pytest.mark.parametrize("name", LOADERS)
@pytest.mark.parametrize("per_file", [1, 4])
def test_epochs_are_shuffled_anew_and_whole(tmp_path, name, per_file):
    """DLIO's torch path reads every epoch in ascending order, whatever is shuffled (defect 1), and
    gives each rank the same stretch in every epoch (defect 24)."""
    paths = write(tmp_path, 12, per_file)
    load = workload(
        tmp_path, 12, per_file, reader=reading(file_shuffle="seed", sample_shuffle="seed")
    )
    every = {(file, sample) for file in range(12) for sample in range(per_file)}
    ranks = [walked(name, task(load, paths, rank, 2), 3) for rank in range(2)]
    again = [walked(name, task(load, paths, rank, 2), 3) for rank in range(2)]
    parts = []
    for epoch in range(3):
        found = [list(map(identity, rank[epoch])) for rank in ranks]
        assert found == [list(map(identity, rank[epoch])) for rank in again]
        assert Counter(found[0] + found[1]) == Counter(every)
        parts.append(found)
    assert parts[0] != parts[1] != parts[2]
    assert {*parts[0][0]} != {*parts[1][0]}, "the ranks' parts stay the same"
    other = walked(name, task(load, paths, 0, 2, seed=6))[0]
    assert list(map(identity, other)) != parts[0][0]
    for sample in ranks[0][0]:
        file, number = identity(sample)
        np.testing.assert_array_equal(sample, content(file, per_file)[..., number])


@pytest.mark.parametrize("name", LOADERS)
def test_the_seed_may_stay(tmp_path, name):
    """seed_change_epoch False gives each epoch the order of the first."""
    paths = write(tmp_path)
    load = workload(tmp_path, reader=reading(sample_shuffle="seed"))
    load = replace(load, train=replace(load.train, seed_change_epoch=False))
    first, second = walked(name, task(load, paths), 2)
    assert list(map(identity, first)) == list(map(identity, second))
    assert list(map(identity, first)) != sorted(map(identity, first))


@pytest.mark.parametrize("name", LOADERS)
@pytest.mark.parametrize("per_file", [1, 4])
def test_off_is_off(tmp_path, name, per_file):
    """In DLIO `file_shuffle: off` turns shuffling on, `sample_shuffle: off` raises (defect 12)."""
    paths = write(tmp_path, 6, per_file)
    load = workload(tmp_path, 6, per_file)
    for found in walked(name, task(load, paths), 2):
        assert list(map(identity, found)) == [(f, k) for f in range(6) for k in range(per_file)]


@pytest.mark.parametrize("name", LOADERS)
def test_compat_has_the_stretches_of_dlio(tmp_path, name):
    """Rank r has the ids from r * N/R on, ascending, in each epoch; only there (defect 24)."""
    paths = write(tmp_path)
    load = workload(tmp_path, reader=reading(file_shuffle="seed", sample_shuffle="seed"))
    for rank in range(2):
        for found in walked(name, task(load, paths, rank, 2, compat=True), 2):
            assert [file for file, _ in map(identity, found)] == list(range(6 * rank, 6 * rank + 6))


@given(
    st.integers(1, 40), st.integers(1, 5), st.integers(1, 5), st.integers(1, 4),
    st.sampled_from(["off", "seed"]), st.sampled_from(["off", "seed"]), st.booleans(),
    st.sampled_from(["npz", "hdf5"]), st.integers(0, 3),
)  # fmt: skip
def test_the_ranks_share_each_epoch(files, per_file, batch, ranks, of_files, of_samples, compat,
                                    format, epoch):  # fmt: skip
    """No sample twice, as many for each rank; whole files keep their samples together."""
    read = reading(batch_size=batch, file_shuffle=of_files, sample_shuffle=of_samples)
    load = DlioWorkload(dataset=DatasetSpec(format=format, num_files_train=files,
                                 num_samples_per_file=per_file), reader=read)  # fmt: skip
    given = [
        DeliveryTask(workload=load, part="train", paths=[""] * files, folder="", rank=rank,
                     ranks=ranks, steps=load.steps(ranks), compat=compat)
        for rank in range(ranks)
    ]  # fmt: skip
    found = [each.ids(epoch).tolist() for each in given]
    assert {len(ids) for ids in found} == {load.steps(ranks) * batch}
    together = [each for ids in found for each in ids]
    assert len(set(together)) == len(together)
    assert {*together} <= set(range(files * per_file))
    if given[0].by_file:
        for ids in found:
            runs = 1 + sum(a // per_file != b // per_file for a, b in itertools.pairwise(ids))
            assert not ids or runs == len({each // per_file for each in ids})


@pytest.mark.parametrize("name", LOADERS)
@pytest.mark.parametrize("shuffle", ["off", "seed"])
def test_a_file_of_many_samples_is_read_once(tmp_path, name, shuffle):
    """DLIO reads a file again for each of its samples (defect 13)."""
    paths = []
    (tmp_path / "train").mkdir()
    for number in range(6):
        path = tmp_path / "train" / f"img_{number}_of_6.npz"
        np.savez(path, x=content(number, 16, (64, 80)), y=np.zeros(16, np.int64))
        paths.append(str(path))
    read = reading(batch_size=5, sample_shuffle=shuffle)
    given = task(workload(tmp_path, 6, 16, reader=read), paths)
    first = make(name, given)  # modules are imported with its batches
    assert next(iter(first.batches(0))) is not None
    first.close()
    contender = make(name, given)
    before = measure_use()
    delivered = sum(count_batch(batch, 5)[0] for batch in contender.batches(0))
    spent = measure_use().since(before).read_bytes
    contender.close()
    size = sum(Path(path).stat().st_size for path in paths)
    assert delivered >= 95
    noise = 20_000  # what asking for this costs
    assert spent <= 1.02 * size + noise < 2 * size


def calls_per_step(given: DeliveryTask) -> float:
    """Functions that are called for a step, of Python's and others'."""
    contender = make("penstock", given)
    list(contender.batches(0))
    count = 0

    def seen(frame, event, argument):
        nonlocal count
        count += event in ("call", "c_call")

    sys.setprofile(seen)
    try:
        steps = sum(1 for _ in contender.batches(1))
    finally:
        sys.setprofile(None)
    contender.close()
    return count / steps


@pytest.mark.long
def test_the_work_for_a_step_does_not_grow_with_the_files(tmp_path):
    """DLIO formats its whole index for each sample: 822 samples/s of 1,000 files, 138 of 4,000
    (defect 2)."""
    few, many = tmp_path / "few", tmp_path / "many"
    counts = [
        calls_per_step(task(workload(folder, files, reader=reading(sample_shuffle="seed")),
                            write(folder, files)))
        for folder, files in ((few, 100), (many, 1000))
    ]  # fmt: skip
    assert counts[1] <= 1.1 * counts[0]


@pytest.mark.parametrize("size", [257, 400])
@pytest.mark.parametrize("name", LOADERS)
def test_large_batches_end(tmp_path, name, size):
    """DLIO's iterative reader pads batches above 256 for ever (defect 20)."""
    paths = write(tmp_path, 3, 300)
    given = task(workload(tmp_path, 3, 300, reader=reading(batch_size=size)), paths)
    assert len(walked(name, given)[0]) == given.steps * size


def _png(image: np.ndarray) -> bytes:
    import io

    import PIL.Image

    text = io.BytesIO()
    PIL.Image.fromarray(image).save(text, "png")
    return text.getvalue()


def _jpeg(image: np.ndarray) -> bytes:
    import simplejpeg

    return simplejpeg.encode_jpeg(image[..., None], colorspace="GRAY")


def _record(text: bytes) -> bytes:
    """A record of TFRecord."""
    from google_crc32c import value

    def masked(part: bytes) -> bytes:
        crc = value(part)
        return struct.pack("<I", ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF)

    head = struct.pack("<Q", len(text))
    return head + masked(head) + text + masked(text)


def made(folder: Path, format: str, **data) -> tuple[DlioWorkload, list[str]]:
    """Four files of a format, of three samples where it can hold several; written by hand."""
    per_file = 1 if format in ("jpeg", "png") else 3
    place = folder / "train"
    place.mkdir()
    paths = []
    for number in range(4):
        path = place / f"img_{number}_of_4.{format}"
        paths.append(str(path))
        samples = np.moveaxis(content(number, per_file), -1, 0)
        match format:
            case "npy":
                np.save(path, content(number, per_file))
            case "npz":
                save = np.savez_compressed if data.get("compression") else np.savez
                save(path, x=content(number, per_file), y=np.zeros(per_file))
            case "png":
                path.write_bytes(_png(samples[0]))
            case "jpeg":
                path.write_bytes(_jpeg(samples[0]))
            case "csv":
                path.write_text("".join(",".join(map(str, s.ravel())) + "\n" for s in samples))
            case "tfrecord":
                path.write_bytes(b"".join(_record(sample.tobytes()) for sample in samples))
            case "indexed_binary":
                path.write_bytes(samples.tobytes())
                size = np.full(3, 35, "<u8")
                size.tofile(f"{path}.sz.idx")
                restarted = np.array([0, 35, 0], "<u8")  # as DLIO leaves them (defect 14)
                restarted.tofile(f"{path}.off.idx")
            case "hdf5":
                import h5py

                with h5py.File(path, "w", libver="latest") as file:
                    file["records_0"] = samples
                    file["labels"] = np.zeros(per_file, np.int64)
    load = workload(folder, 4, per_file, reader=reading(sample_shuffle="seed"))
    changed = replace(load.dataset, format=format, **data)
    return replace(load, dataset=changed), paths


@pytest.mark.parametrize("name", LOADERS)
@pytest.mark.parametrize(
    ("format", "data"),
    [
        ("npy", {}), ("npz", {}), ("npz", {"compression": "zip"}), ("png", {}), ("jpeg", {}),
        ("csv", {}), ("tfrecord", {}), ("indexed_binary", {}), ("hdf5", {}),
    ],
)  # fmt: skip
def test_every_format_is_delivered_as_it_is_on_disk(tmp_path, name, format, data):
    """DLIO throws away what it reads and hands over a constant (defect 22): here each sample has
    the checksum of one on disk."""
    load, paths = made(tmp_path, format, **data)
    given = task(load, paths)
    truth = Counter(
        compute_checksum(samples[k])
        for path in paths for samples in [open_samples(load.dataset, path)]
        for k in range(load.dataset.num_samples_per_file)
    )  # fmt: skip
    contender = make(name, given)
    found: Counter[int] = Counter()
    samples = size = 0
    for _, batch in zip(range(given.steps), contender.batches(0), strict=False):
        found.update(compute_checksums(batch, 2))
        count, length = count_batch(batch, 2)
        samples, size = samples + count, size + length
    contender.close()
    assert found == truth
    assert samples == len(paths) * load.dataset.num_samples_per_file
    assert size >= 35 * samples


def test_preparation_is_waited_for(tmp_path):
    """reader.preprocess_time is spent for each sample."""
    paths = write(tmp_path, 4)
    slow = Distribution.constant(0.01)
    given = task(workload(tmp_path, 4, reader=reading(preprocess_time=slow)), paths)
    import time

    for name in LOADERS:
        started = time.monotonic()
        assert len(walked(name, given)[0]) == 4
        assert time.monotonic() - started >= 0.04 / (1 if name == "torch" else 4)


def test_worker_processes_deliver_the_same(tmp_path):
    """torch's workers, each with files of its own."""
    paths = write(tmp_path, 6, 4)
    read = reading(read_threads=2, sample_shuffle="seed")
    given = task(workload(tmp_path, 6, 4, reader=read), paths)
    found = Counter(map(identity, walked("torch", given)[0]))
    assert found == Counter((file, sample) for file in range(6) for sample in range(4))


MODULE = """
import numpy as np
calls = []

class Loader:
    def __init__(self): self.epochs = []
    def set_epoch(self, epoch): self.epochs.append(epoch)
    def __iter__(self): return iter([np.zeros((3, 2))] * 4)

def loader(path, batch_size, seed=0):
    calls.append((path, batch_size, seed))
    return Loader()

def once(rank, world_size, epochs):
    calls.append((rank, world_size, epochs))
    yield from [{"a": np.zeros((3, 2)), "b": b"12"}] * 4

def wants(path, colour):
    return []

def number():
    return 7
"""


@pytest.fixture
def module(tmp_path, monkeypatch):
    """A module of the user's, in the folder that he is in."""
    (tmp_path / "mine_of_test.py").write_text(MODULE)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    yield "mine_of_test"
    sys.modules.pop("mine_of_test", None)


def test_the_users_own_loader(tmp_path, module):
    """Is called with what it takes, told of epochs, and made anew where it is used up."""
    given = task(workload(tmp_path, reader=reading(batch_size=3)), ["/data/train/x"], 1, 2)
    mine = make(f"{module}:loader", given)
    assert [len(list(mine.batches(epoch))) for epoch in (0, 1)] == [4, 4]
    assert mine._loader.epochs == [0, 1]
    once = make(f"{module}:once", given)
    assert [len(list(once.batches(epoch))) for epoch in (0, 1)] == [4, 4]
    assert sys.modules[module].calls == [("/data/train", 3, 5), (1, 2, 1), (1, 2, 1)]


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("mine_of_test:nothing", "has no function 'nothing'; it has loader, once, wants, number"),
        ("mine_of_test:wants", "wants 'colour', which is not known here: give it a default"),
        ("mine_of_test:number", "returned a int, which cannot be iterated"),
        ("not_there:loader", "there is no module 'not_there' here"),
    ],
)
def test_a_wrong_loader_is_an_error(tmp_path, module, name, message):
    with pytest.raises(UsageError, match=message):
        make(name, task(workload(tmp_path), ["/data/train/x"]))


def test_contenders_that_cannot_run_say_so():
    for name, format, message in (
        ("tensorflow", "npz", "--loader is 'tensorflow': use one of penstock, torch, "),
        ("webdataset", "npz", "reads tar, and dataset.format is 'npz'"),
    ):
        with pytest.raises(UsageError, match=message):
            check(name, format)


@pytest.mark.parametrize(
    ("batch", "expected", "samples", "size"),
    [
        (np.zeros((4, 3), np.float32), 4, 4, 48),
        ([np.zeros((4, 3)), np.zeros(4)], 4, 4, 128),
        ([np.zeros((7, 3), np.uint8), np.zeros((5, 3), np.uint8)], 2, 2, 36),
        ([b"abc", b"de"], 2, 2, 5),
        ({"image": np.zeros((2, 8), np.uint8), "text": ["ab", "c"]}, 2, 2, 19),
        ((np.zeros((2, 8)), np.zeros(2)), 2, 2, 144),
        ([], 4, 1, 0),
    ],
)
def test_what_batches_hold(batch, expected, samples, size):
    assert count_batch(batch, expected) == (samples, size)


@pytest.mark.parametrize(
    ("format", "more"),
    [
        ("npz", {"num_subfolders_train": 2}), ("npy", {}), ("csv", {}), ("tfrecord", {}),
        ("csv", {"compression": "gzip"}), ("hdf5", {"compression": "gzip"}),
        ("hdf5", {"record_dims": (8, 4), "hdf5": Hdf5Layout(num_dset_per_record=2)}),
        ("jpeg", {"num_samples_per_file": 1}), ("png", {"num_samples_per_file": 1}),
        ("mmap_indexed_binary", {}), ("tar", {}), ("lmdb", {}), ("parquet", {}),
    ],
)  # fmt: skip
def test_generated_data_is_delivered(tmp_path, format, more):
    """Both loaders deliver what `penstock bench generate` writes, checked sample by sample."""
    data = DatasetSpec(
        format=format, num_files_train=4, num_samples_per_file=6, record_length_bytes=64,
        data_folder=str(tmp_path),
    )  # fmt: skip
    data = replace(data, **more)
    generate_data(data, ["train"])
    paths = find_paths(data, "train")
    load = replace(workload(tmp_path), dataset=data, reader=reading(file_shuffle="seed"))
    per_file = data.num_samples_per_file
    truth = Counter(
        compute_checksum(samples[k]) for path in paths for samples in [open_samples(data, path)]
        for k in range(per_file)
    )  # fmt: skip
    assert sum(truth.values()) == 4 * per_file
    for name in LOADERS:
        given = replace(task(load, paths), folder=str(tmp_path / "train"))
        contender = make(name, given)
        found: Counter[int] = Counter()
        for _, batch in zip(range(given.steps), contender.batches(0), strict=False):
            found.update(compute_checksums(batch, 2))
        contender.close()
        assert found == truth, name
