"""The conformance suite of formats: `FormatSuite`."""

from __future__ import annotations

import itertools
import os
import pickle
import tempfile
import tracemalloc
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
from hypothesis import settings

from .. import limits
from ..budget import Budget
from ..dataset.dataset import Dataset
from ..dataset.dataset import open as open_dataset
from ..errors import ChangedError, PenstockError
from ..loader.loader import Loader
from ..tasks.work_plan import plan_work
from .suite import Suite

Values = Sequence[bytes | np.ndarray[Any, Any]]
"""A field of all samples: bytes, or arrays (1-D ones of any length where lengths vary)."""


@dataclass(frozen=True)
class Written:
    """Data written by a format's own library, for penstock to read back.

    path:     the argument of `open`: a path, or several.
    fields:   the fields by name, each with a value for every sample.
    options:  options of `penstock.open`.
    labels:   of each sample, if there are any; keys likewise; None leaves them unchecked.
    """

    path: Path | list[Path]
    fields: Mapping[str, Values]
    options: Mapping[str, Any] = field(default_factory=dict)
    labels: Sequence[int] | None = None
    keys: Sequence[str] | None = None

    @property
    def count(self) -> int:
        """The number of samples."""
        return len(next(iter(self.fields.values())))

    def opened(self, index: str = "memory") -> Dataset:
        """Open the data set."""
        return open_dataset(self.path, index=index, **self.options)

    def assert_sample(self, number: int, sample: Mapping[str, Any]) -> None:
        """Assert that a sample, by number or as `decode` gets it, is the one that was written."""
        assert set(sample) - {"__key__", "__id__", "__epoch__", "label"} == set(self.fields) - {
            "label"
        }
        for name, values in self.fields.items():
            assert_same(sample[name], values[number], f"field {name!r} of sample {number}")
        if self.labels is not None:
            assert sample["label"] == self.labels[number]
        if self.keys is not None:
            assert sample["__key__"] == self.keys[number]


def assert_same(value: Any, expected: bytes | np.ndarray[Any, Any], what: str) -> None:
    """Assert the same bytes, and, if an array was written, the same dtype and shape."""
    if isinstance(expected, np.ndarray):
        # A row of one number is a scalar where decode gets it.
        assert isinstance(value, np.ndarray if expected.ndim else np.ndarray | np.generic), what
        assert (value.dtype, value.shape) == (expected.dtype, expected.shape), what
        assert value.tobytes() == np.ascontiguousarray(expected).tobytes(), what
    else:
        assert bytes(value) == expected, what


_past_ns = 10**18 + 1
"""Time at which the data was written: long ago, so that a saved index of it is kept."""

_damaged_peak_bytes = 64 * limits.MIB
"""Most memory that parsing a damaged file, of a few KiB, may allocate."""

_budgets = {
    "default": Budget(),
    "pread": Budget(io_uring="off", mmap="off"),
    "mmap": Budget(io_uring="off", mmap="required"),
}


class FormatSuite(Suite):
    """The tests that every format passes.

    A subclass, named Test..., defines `write`, and sets the two facts below where they differ.
    To override a test is a defect: mend the format.

    several:  several files make one data set.
    framed:   what is left of a file that was cut is an error or some of the samples; not so
              where a file is a sample, whatever its size.
    """

    subject = "format"

    several: ClassVar[bool] = True
    framed: ClassVar[bool] = True

    def write(self, folder: Path, counts: Sequence[int], random: np.random.Generator) -> Written:
        """Write a data set of several files, with so many samples each; all of it below `folder`.

        With one count, a data set that is opened as users would open a single one. Samples should
        be small, differ from each other, and have all lengths that are legal, 0 among them.
        """
        raise NotImplementedError("a FormatSuite says how to write its format")

    @contextmanager
    def written(self, *counts: int) -> Iterator[tuple[Written, Path]]:
        """Write a data set; yield it and its folder, and remove the folder afterwards."""
        with tempfile.TemporaryDirectory(prefix="penstock-") as parent:
            folder = Path(parent) / "data"
            folder.mkdir()
            data = self.write(folder, counts, np.random.default_rng(sum(counts)))
            for path in [*folder.rglob("*"), folder]:
                os.utime(path, ns=(_past_ns, _past_ns))
            yield data, folder

    @property
    def _counts(self) -> tuple[int, ...]:
        return (9, 1, 14, 7) if self.several else (31,)

    # -- bytes -------------------------------------------------------------------------------

    def test_samples(self) -> None:
        """Every field, label and key of every sample, one by one, is what was written."""
        for counts in ((1,), (20,)):
            with self.written(*counts) as (written, _):
                dataset = written.opened()
                assert len(dataset) == written.count
                for number, sample in enumerate(dataset):
                    written.assert_sample(number, sample)

    def test_several_files(self) -> None:
        """Several files are one data set, in their order."""
        if not self.several:
            pytest.skip("one file a data set")
        with self.written(*self._counts) as (written, _):
            dataset = written.opened()
            assert len(dataset) == written.count
            for number, sample in enumerate(dataset):
                written.assert_sample(number, sample)

    @pytest.mark.parametrize("budget", _budgets)
    def test_batches(self, budget: str) -> None:
        """Shuffled batches hold each sample once, right in every field, however they are read."""
        with self.written(*self._counts) as (written, _):
            dataset = written.opened()
            loader = Loader(dataset, 7, seed=3, rank=0, world_size=1, budget=_budgets[budget])
            seen: list[int] = []
            for batch in loader:
                for row, number in enumerate(batch.ids.tolist()):
                    seen.append(number)
                    for name, values in written.fields.items():
                        what = f"field {name!r} of sample {number}"
                        expected = values[number]
                        if isinstance(expected, np.ndarray) and not expected.ndim:
                            expected, value = expected.reshape(1), batch[name][row : row + 1]
                        else:
                            value = batch[name][row]
                        assert_same(value, expected, what)
                    if written.labels is not None:
                        assert batch["label"][row] == written.labels[number]
            assert sorted(seen) == list(range(written.count))
            assert seen != sorted(seen)

    def test_decoded(self) -> None:
        """The sample that `decode` gets is the one written, with its key and label."""
        with self.written(*self._counts) as (written, _):
            by_key: dict[int, bool] = {}

            def checked(sample: dict[str, Any]) -> int:
                number = numbers[sample["__key__"]]
                written.assert_sample(number, sample)
                by_key[number] = True
                return number

            dataset = written.opened()
            numbers = {dataset.index.key(i): i for i in range(len(dataset))}
            assert len(numbers) == len(dataset), "keys are not unique"
            for _ in Loader(dataset, 7, rank=0, world_size=1, decode=checked):
                pass
            assert len(by_key) == written.count

    def test_resume(self) -> None:
        """A run that is resumed at any step goes on as if it had not been interrupted."""
        with self.written(*self._counts) as (written, _):
            dataset = written.opened()

            def loader() -> Loader:
                return Loader(dataset, 4, seed=5, rank=0, world_size=1)

            whole = [batch.ids.tolist() for batch in loader()]
            for step in range(len(whole)):
                first, second = loader(), loader()
                for _ in itertools.islice(first, step):
                    pass
                second.load_state_dict(first.state_dict())
                assert [batch.ids.tolist() for batch in second] == whole[step:]

    # -- the index -----------------------------------------------------------------------------

    def test_saved_index(self) -> None:
        """A saved index is found fresh, taken, and gives the same samples and fingerprint."""
        with self.written(*self._counts) as (written, folder):
            before = os.environ.get("XDG_CACHE_HOME")
            os.environ["XDG_CACHE_HOME"] = str(folder.parent / "cache")
            try:
                first = written.opened("auto")
                assert first.sidecar is not None
                stamp = os.stat(first.sidecar).st_mtime_ns
                second = written.opened("auto")
                assert second.sidecar == first.sidecar
                assert os.stat(first.sidecar).st_mtime_ns == stamp, "it was made anew"
                fresh = written.opened("memory")
            finally:
                if before is None:
                    del os.environ["XDG_CACHE_HOME"]
                else:
                    os.environ["XDG_CACHE_HOME"] = before
            assert first.fingerprint == second.fingerprint == fresh.fingerprint
            assert second.index.fields == fresh.index.fields or _list_fields(
                second
            ) == _list_fields(fresh)
            for number, sample in enumerate(second):
                written.assert_sample(number, sample)

    def test_shared_work(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """The index that many make, some files each, has the bytes of that one process makes."""
        monkeypatch.setattr(limits, "task_bytes", 1)
        with self.written(*self._counts) as (written, folder):
            saved = written.opened("rebuild").sidecar
            assert saved is not None
            expected = Path(saved).read_bytes()
            os.unlink(saved)
            options: Any = {"open_options": dict(written.options)}
            plan = plan_work("index", written.path, folder.parent / "work", **options)
            for task in plan.list_missing():
                assert plan.do(task)
            plan.commit()
            assert Path(saved).read_bytes() == expected
            again = plan_work("index", written.path, folder.parent / "work", **options)
            assert not again.list_missing()

    def test_copy(self) -> None:
        """The same data written elsewhere has the same fingerprint, other data another."""
        with self.written(*self._counts) as (one, _), self.written(*self._counts) as (two, _):
            assert one.opened().fingerprint == two.opened().fingerprint
        with self.written(5) as (one, _), self.written(6) as (two, _):
            assert one.opened().fingerprint != two.opened().fingerprint

    def test_pickle(self) -> None:
        """A pickled data set is the same one, with a saved index and without."""
        with self.written(*self._counts) as (written, folder):
            dataset = written.opened()
            again = pickle.loads(pickle.dumps(dataset))
            assert again.fingerprint == dataset.fingerprint
            dataset.index.save(folder.parent / "saved.penstock")
            saved = written.opened(str(folder.parent / "saved.penstock"))
            (folder.parent / "saved.penstock").unlink()  # so that it is made anew
            again = pickle.loads(pickle.dumps(saved))
            for number, sample in enumerate(again):
                written.assert_sample(number, sample)

    # -- change and damage ---------------------------------------------------------------------

    def test_changed_files(self) -> None:
        """Data written to after it was indexed is ChangedError, not wrong bytes."""
        with self.written(*self._counts) as (written, _):
            dataset = written.opened()
            for file in range(len(dataset.index.files)):
                os.utime(dataset.index.files.path(file), ns=(_past_ns + 1, _past_ns + 1))
            paths = [dataset.index.files.path(file) for file in range(len(dataset.index.files))]
            caught: list[str] = []
            for number in range(written.count):
                try:
                    written.assert_sample(number, dataset[number])
                except ChangedError as error:
                    caught.append(str(error))
                else:  # samples of no bytes are not read
                    assert all(len(bytes(v[number])) == 0 for v in written.fields.values())
            assert caught
            assert all(any(path in message for path in paths) for message in caught)
            with pytest.raises(ChangedError):
                for _ in Loader(dataset, 7, rank=0, world_size=1):
                    pass

    def test_truncated(self) -> None:
        """A file cut anywhere is an error, or gives samples that are all right.

        Every nth length where hypothesis makes fewer than 200 examples, and those next to the end.
        """
        if not self.framed:
            pytest.skip("files do not show that they were cut")
        with self.written(5) as (written, folder):
            step = max(1, 200 // settings().max_examples)
            for number, path in enumerate(_list_files(folder)):
                whole = path.read_bytes()
                lengths = _choose_cuts(len(whole))
                for length in dict.fromkeys([*lengths[number % step :: step], *lengths[-2:]]):
                    path.write_bytes(whole[:length])
                    try:
                        dataset = written.opened()
                        assert len(dataset) <= written.count
                        for number, sample in enumerate(dataset):
                            written.assert_sample(number, sample)
                    except PenstockError:
                        pass
                path.write_bytes(whole)
            assert len(written.opened()) == 5

    def test_damaged(self) -> None:
        """Any bytes changed: no error but penstock's, no crash, no large allocation.

        Twice as many changes as hypothesis makes examples: watching allocations is slow.
        """
        with self.written(5) as (written, folder):
            random = np.random.default_rng(1)
            tracemalloc.start()
            try:
                files = _list_files(folder)
                damages_max = -(-2 * settings().max_examples // len(files))
                for path in files:
                    whole = path.read_bytes()
                    for at, length, other in _draw_damages(whole, random)[:damages_max]:
                        path.write_bytes(whole[:at] + other + whole[at + length :])
                        try:
                            dataset = written.opened()
                            for number in range(min(len(dataset), 10)):
                                dataset[number]
                        except PenstockError:
                            pass
                    path.write_bytes(whole)
                _, peak = tracemalloc.get_traced_memory()
            finally:
                tracemalloc.stop()
            assert peak < _damaged_peak_bytes

    def test_empty_file(self) -> None:
        """A file of no bytes is no crash: an error that names it, or no samples of its own."""
        with self.written(5) as (written, folder):
            messages = []
            for path in _list_files(folder):
                whole = path.read_bytes()
                path.write_bytes(b"")
                try:
                    dataset = written.opened()
                    assert len(dataset) <= written.count
                    list(dataset)
                except PenstockError as error:
                    messages.append(str(error))
                path.write_bytes(whole)
            assert all(str(folder) in message for message in messages)


def _list_fields(dataset: Dataset) -> list[Any]:
    """Return the fields, with codecs by value."""
    return [
        (item.name, item.dtype, item.shape, item.codec and (item.codec.name, item.codec.options))
        for item in dataset.fields
    ]


def _list_files(folder: Path) -> list[Path]:
    return sorted(path for path in folder.rglob("*") if path.is_file())


def _choose_cuts(size: int) -> list[int]:
    """Return every length of a small file; of a larger one those near both ends, and some
    between."""
    if size <= 1200:
        return list(range(size))
    ends = {*range(300), *range(size - 300, size)}
    return sorted(ends | set(np.linspace(0, size - 1, 300).astype(int).tolist()))


def _draw_damages(whole: bytes, random: np.random.Generator) -> list[tuple[int, int, bytes]]:
    """Draw damages: bytes set to critical values, words to large ones, stretches repeated or left
    out. Each is an offset, a number of bytes, and their replacement."""
    size = len(whole)
    if not size:
        return []
    damages: list[tuple[int, int, bytes]] = []
    near = list(range(min(size, 96))) + list(range(max(size - 96, 0), size))
    values = (0x00, 0x01, 0x7F, 0x80, 0xFF)
    for at in (*near, *random.integers(0, size, 100).tolist()):
        telling = (*values, whole[at] ^ 1, whole[at] ^ 0x80)[at % 2 :: 2]
        damages += [(at, 1, bytes([value])) for value in telling if whole[at] != value]
    words = (b"\xff" * 4, b"\xff" * 8, b"\xff\xff\xff\x7f", b"\xff" * 7 + b"\x7f")
    for at in (*near[::4], *random.integers(0, size, 40).tolist()):
        damages += [(at, len(word), word[: size - at]) for word in words]
    for at, length in zip(
        random.integers(0, size, 30).tolist(), random.integers(1, 64, 30).tolist(), strict=True
    ):
        damages.append((at, length, b""))
        damages.append((at, 0, whole[at : at + length]))
    random.shuffle(damages)
    return damages
