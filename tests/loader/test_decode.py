"""Jobs: what the user's decode and collate raise, and threads that come late."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import penstock
from penstock.errors import CollateError
from penstock.loader.batch import BatchReader
from penstock.loader.decode import DecodeJob


def job_of(
    decode: Callable[[dict[str, Any]], Any], collate: Callable[[list[Any]], Any] | None = None
) -> DecodeJob:
    """A job of nine samples that are numbered."""

    def opened() -> Callable[[int], dict[str, Any]]:
        return lambda row: {"row": row, "__key__": f"sample {row}"}

    return DecodeJob(9, opened, decode, collate, lambda size: np.empty(size, np.uint8))


def stopped(_: Any) -> Any:
    return next(iter(()))


def notes(error: BaseException) -> str:
    return "".join(getattr(error, "__notes__", []))


def test_stop_iteration() -> None:
    """A StopIteration of decode or collate is a RuntimeError, and decode's names the sample."""
    for job in (job_of(stopped), job_of(lambda sample: sample["row"], stopped)):
        job.run()
        with pytest.raises(RuntimeError, match="StopIteration") as caught:
            job.result()
        assert isinstance(caught.value.__cause__, StopIteration)
    job = job_of(lambda sample: stopped(sample.pop("__key__")))
    job.run()
    with pytest.raises(RuntimeError) as caught:
        job.result()
    assert "decode for sample 'sample 0'" in notes(caught.value)


def test_failed_job_stops() -> None:
    """Once a job has failed no further row is decoded, and late threads do not open the step."""
    rows, opens = [], []

    def opened() -> Callable[[int], dict[str, Any]]:
        opens.append(1)
        return lambda row: {"row": row}

    def decode(sample: dict[str, Any]) -> int:
        rows.append(sample["row"])
        job.fail(LookupError("enough"))
        return 0

    job = DecodeJob(9, opened, decode, None, lambda size: np.empty(size, np.uint8))
    for _ in range(3):
        job.run()
    assert (rows, opens) == ([0], [1])
    with pytest.raises(LookupError, match="enough"):
        job.result()


def test_finished_job_is_not_opened_again() -> None:
    """A thread that comes after the last row leaves the result as it is."""
    job = job_of(lambda sample: sample["row"])
    for _ in range(2):
        job.run()
        assert job.result().tolist() == list(range(9))


@pytest.mark.parametrize(
    ("value", "kind"), [("four", CollateError), (2**64, OverflowError)], ids=["kind", "size"]
)
def test_collating_names_the_sample(value: Any, kind: type[Exception]) -> None:
    """A value that does not go with the first sample's names the sample it belongs to."""
    job = job_of(lambda sample: value if sample["row"] == 4 else 0)
    job.run()
    with pytest.raises(kind) as caught:
        job.result()
    assert "collating for sample 'sample 4'" in notes(caught.value)


@pytest.mark.parametrize("kind", [bytes, bytearray, lambda raw: memoryview(bytearray(raw))])
def test_bytes_like_values(kind: Callable[[bytes], Any]) -> None:
    """Bytes-like values of any kind and length become bytes in a list."""
    job = job_of(lambda sample: {"raw": kind(bytes(range(sample["row"])))})
    job.run()
    rows = job.result()["raw"]
    assert all(type(row) is bytes for row in rows)
    assert rows == [bytes(range(n)) for n in range(9)]


def test_interrupted_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A read after one that was interrupted waits for its own bytes."""
    rows = np.arange(20 * 64).reshape(20, 64).astype(np.uint8)
    rows.tofile(tmp_path / "rows.bin")
    dataset = penstock.open(tmp_path / "rows.bin", record_bytes=64, index="memory")
    reader = BatchReader(dataset.index)

    def interrupted(timeout_ns: int) -> Any:
        raise KeyboardInterrupt

    reader.read(np.array([0], np.uint64))
    monkeypatch.setattr(reader._reader._engine, "poll", interrupted)
    with pytest.raises(KeyboardInterrupt):
        reader.read(np.array([1, 2], np.uint64))
    monkeypatch.undo()
    for ids in ([3, 4], [5, 0]):
        assert (reader.read(np.array(ids, np.uint64))["data"] == rows[ids]).all()
    reader.close()


def test_threads_do_not_idle_while_a_sample_takes_long(tmp_path: Path) -> None:
    """Steps further ahead than at first are decoded while one is waited for; the order stays."""
    np.save(tmp_path / "numbers.npy", np.arange(64))
    data = penstock.open(tmp_path / "numbers.npy", index="memory")
    far = threading.Event()

    def decode(sample: dict[str, Any]) -> int:
        number = int(sample["data"])
        if number == 20:
            assert far.wait(120)
        elif number == 30:
            far.set()
        return number

    with penstock.Loader(data, 1, shuffle="none", decode=decode, decode_threads=2) as loader:
        assert [int(batch[0]) for batch in loader] == list(range(64))
