"""Statistics: against numpy, with the same bits for any number of threads, after kill -9, and of
stale or damaged files."""

from __future__ import annotations

import contextlib
import json
import math
import os
import signal
import sys
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

import penstock
from penstock import limits
from penstock.dataset.moments import choose_dtype, count_bins, join_all, make_edges, sum_up
from penstock.dataset.stats import FieldStats
from penstock.errors import ChangedError, MissingError, SidecarError, UsageError
from tests.command import run as run_command
from tests.warm import run

Array = npt.NDArray[Any]


def draw(dtype: str, count: int = 700, shape: tuple[int, ...] = (3, 20)) -> Array:
    """Numbers of a type that are hard to sum: far from zero, near 2^53 and 2^64, NaN, infinite."""
    random = np.random.default_rng(7)
    size = (count, *shape)
    if dtype == "bool":
        return random.random(size) < 0.3
    if dtype in ("int64", "uint64"):
        base = 2**53 if dtype == "int64" else 2**64 - 1000
        return np.array(base, dtype) + random.integers(0, 999, size).astype(dtype)
    if np.dtype(dtype).kind in "iu":
        ends = np.iinfo(dtype)
        return random.integers(ends.min, ends.max, size, dtype, endpoint=True)
    numbers = random.normal(300, 0.5, size).astype(dtype)
    numbers[5, 1, 2], numbers[6, 0, 3], numbers[7, 2, 4] = np.nan, np.inf, -np.inf
    numbers[:, 1, 7] = np.nan
    return numbers


def check(found: FieldStats, numbers: Array, bins: int = 0) -> None:
    """Compare with sums of whole numbers, or of numpy in float64 over what is finite."""
    flat = numbers.reshape(-1)
    finite = flat[np.isfinite(flat)]
    missing = int(np.isnan(flat).sum())
    counts = found.count, found.missing, found.infinite
    assert counts == (len(flat), missing, len(flat) - len(finite) - missing)
    if not len(finite):
        assert (found.minimum, found.maximum, found.mean, found.sd) == (None,) * 4
        assert found.histogram == ()
        return
    assert (found.minimum, found.maximum) == (finite.min(), finite.max())
    values = finite.astype(object) if finite.dtype.kind in "iu" else finite.astype(np.float64)
    mean, sd = values.mean(), math.sqrt(((values - values.mean()) ** 2).mean())
    if finite.dtype.kind in "iu":  # without rounding: a mean near 2^53 would cost the deviation
        low = int(finite.min())
        moved = np.array([int(value) - low for value in finite], np.float64)
        mean, sd = low + moved.mean(), moved.std()
    assert found.mean == pytest.approx(mean, rel=1e-12, abs=1e-12 * sd)
    assert found.sd == pytest.approx(sd, rel=1e-12)
    if bins:
        expected, _ = np.histogram(finite.astype(np.float64), found.edges)
        assert found.histogram == tuple(expected.tolist())
        assert found.edges[[0, -1]].tolist() == [float(found.minimum), float(found.maximum)]


def write(folder: Path, kind: str, fields: dict[str, Array]) -> Path:
    """Write fields of one shape in a format. Return its path."""
    path = folder / f"x.{kind}"
    if kind == "npy":
        np.save(path, fields["x"])
    elif kind == "npz":
        np.savez(path, **fields)
    elif kind == "h5":
        import h5py

        with h5py.File(path, "w") as file:
            for name, numbers in fields.items():
                chunks = (64, *numbers.shape[1:])
                file.create_dataset(name, data=numbers, chunks=chunks, compression="gzip")
    elif kind == "zarr":
        import zarr

        group = zarr.create_group(path)
        for name, numbers in fields.items():
            group.create_array(name, data=numbers, chunks=(50, *numbers.shape[1:]))
    else:
        import pyarrow as pa
        import pyarrow.parquet as pq

        columns = {
            name: list(numbers.reshape(len(numbers), -1)) for name, numbers in fields.items()
        }
        pq.write_table(pa.table(columns), path, row_group_size=90)
    return path


@pytest.mark.parametrize("kind", ["npy", "npz", "h5", "zarr", "parquet"])
def test_statistics_are_those_of_numpy(kind: str, tmp_path: Path, monkeypatch: Any) -> None:
    """Statistics of all formats, in small chunks, have the same bits for 1, 2 and 5 threads."""
    monkeypatch.setattr(limits, "lengths_batch_bytes", 1 << 14)
    monkeypatch.setattr(limits, "lengths_chunk_bytes", 1 << 16)
    monkeypatch.setattr(limits, "stats_block_numbers", 1 << 9)
    fields = {"x": draw("float32"), "y": draw("int64"), "z": draw("uint8")}
    fields = {"x": fields["x"]} if kind == "npy" else fields
    dataset = penstock.open(write(tmp_path, kind, fields))
    told: list[tuple[int, int]] = []
    found = dataset.stats(bins=10, threads=1, progress=lambda *done: told.append(done))
    assert told[-1] == (1400, 1400)
    if kind == "parquet":
        fields.pop("z")  # a list of uint8 is bytes
    names = ["data"] if kind == "npy" else list(fields)
    assert sorted(found) == names
    for name, numbers in zip(names, fields.values(), strict=True):
        check(found[name], numbers, 10)
    for threads in (2, 5):
        assert dataset.stats(bins=10, threads=threads, force=True) == found
    assert penstock.open(dataset.path).load_stats() == found
    if kind != "parquet":
        for threads in (1, 5):
            rows = dataset.stats(by_axis=0, threads=threads, force=True)
            for name, numbers in zip(names, fields.values(), strict=True):
                check(rows[name], numbers)
                for place, row in enumerate(rows[name].rows):
                    check(row, numbers[:, place])
        by_last = dataset.stats(by_axis=1)[names[0]].rows
        check(by_last[7], fields["x"][:, :, 7])
        assert len(by_last) == 20


@pytest.mark.parametrize(
    "dtype",
    ["bool", "int8", "uint8", "int16", "uint16", "int32", "int64", "uint64", "float16"]
    + ["float32", "float64", ">f4", ">i8"],
)
def test_all_types_of_numbers(dtype: str) -> None:
    """By any axis, and in blocks of any size."""
    numbers = draw(np.dtype(dtype).name, 100).astype(dtype)
    for block in (4, 60, 1000, 1 << 16):
        with pytest.MonkeyPatch.context() as changed:
            changed.setattr(limits, "stats_block_numbers", block)
            for values in (numbers.reshape(1, 1, -1), numbers, numbers.reshape(-1, 20, 1)):
                moments = sum_up(values)
                assert len(moments) == values.shape[1]
                edges = make_edges(moments["low"].min(), moments["high"].max(), 7)
                finite = values[np.isfinite(values)].astype(np.float64)
                expected = np.histogram(finite, edges)[0].tolist()
                assert count_bins(values, edges).tolist() == expected
                whole = join_all(moments[:, None])[0]
                low, high = whole["low"].item(), whole["high"].item()
                mean = float(whole["mean"]) + float(whole["rest"])
                sd = math.sqrt(whole["squares"] / whole["finite"])
                counts = [int(whole[name]) for name in ("finite", "missing", "infinite")]
                check(FieldStats(sum(counts), *counts[1:], low, high, mean, sd), values)


def test_numbers_at_the_ends_of_float64() -> None:
    """A sum that overflows has a mean; bins between ends whose distance overflows, or is tiny, are
    those of their edges; equal numbers are in the last bin."""
    huge = np.array([1.7e308, 1.6e308, -1.7e308, 1.5e308]).reshape(1, 1, -1)
    moments = sum_up(huge)
    assert moments["mean"][0] == pytest.approx(0.775e308, rel=1e-12)
    assert moments["squares"][0] == np.inf
    far = np.repeat(huge[0, 0], 3).reshape(-1, 1, 1)
    with pytest.MonkeyPatch.context() as changed:
        changed.setattr(limits, "stats_block_numbers", 2)
        assert sum_up(far)["mean"][0] == pytest.approx(0.775e308, rel=1e-12)
    for numbers in (
        huge,
        np.array([1e9, 1e9 + 2e-7, np.nextafter(1e9, 2e9)]),
        np.arange(5) * 5e-324,
        np.array([3.0, 3.0, 3.0]),
        np.array([-5e-324, 0, 1e-310]),
    ):
        edges = make_edges(numbers.min(), numbers.max(), 9)
        assert (np.diff(edges) >= 0).all()
        expected = np.histogram(numbers, edges)[0].tolist()
        assert count_bins(numbers.reshape(1, 1, -1), edges).tolist() == expected
    assert count_bins(np.full((1, 1, 3), 3.0), make_edges(3.0, 3.0, 4)).tolist() == [0, 0, 0, 3]
    wide = np.array([-(2**63), 2**63 - 1, 0], np.int64).reshape(1, 1, -1)
    assert sum_up(wide)["low"][0] == -(2**63)
    assert sum_up(wide)["squares"][0] == pytest.approx(2 * 2.0**126)


def test_lists_selections_and_what_has_no_numbers(tmp_path: Path) -> None:
    """Lists count each number; texts and bytes are left out; a selection has its own statistics;
    mixtures, and data without numbers, are refused."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    lists = [[1, 2, 3], [], [4], [10, 20]]
    nested = [[[0.5], []], [], [[1.5, math.nan]], [[2.5]]]
    columns = {"tokens": pa.array(lists, pa.list_(pa.int32())), "text": ["a", "b", "c", "d"]}
    columns |= {"nested": nested, "ready": [True, False, True, True]}
    pq.write_table(pa.table(columns), tmp_path / "x.parquet")
    dataset = penstock.open(tmp_path / "x.parquet")
    with pytest.raises(MissingError, match=r"has no statistics: measure them by `penstock stats"):
        dataset.load_stats()
    found = dataset.stats()
    assert sorted(found) == ["nested", "ready", "tokens"]
    check(found["tokens"], np.concatenate([np.array(row, np.int32) for row in lists]))
    check(found["nested"], np.array([0.5, 1.5, math.nan, 2.5]))
    check(found["ready"], np.array(columns["ready"]))
    some = dataset.select([0, 3])
    with pytest.raises(MissingError):
        some.load_stats()
    check(some.stats()["tokens"], np.array([1, 2, 3, 10, 20], np.int32))
    assert some.load_stats()["tokens"].maximum == 20
    assert dataset.load_stats() == found
    with pytest.raises(UsageError, match="is a mixture: measure each data set itself"):
        penstock.mix([(dataset, 1), (dataset, 1)]).stats()
    with pytest.raises(UsageError, match="no field of .* has it: leave it out"):
        dataset.stats(by_axis=0)
    with pytest.raises(UsageError, match=r"have 300,000 numbers, above 131,072: .* fewer bins"):
        dataset.stats(bins=100_000)
    (tmp_path / "t").mkdir()
    (tmp_path / "t/a.txt").write_text("no numbers")
    with pytest.raises(UsageError, match=r"has no field of numbers, but data \(uint8\)"):
        penstock.open(tmp_path / "t").stats()


def test_no_numbers_and_only_missing_ones(tmp_path: Path) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    np.save(tmp_path / "nan.npy", np.full((4, 2), np.nan))
    nothing = FieldStats(0, 0, 0, None, None, None, None)
    table = pa.table({"x": pa.array([[], []], pa.list_(pa.int32()))})
    pq.write_table(table, tmp_path / "none.parquet")
    dataset = penstock.open(tmp_path / "none.parquet")
    assert dataset.stats(bins=3) == dataset.load_stats() == {"x": nothing}
    missing = penstock.open(tmp_path / "nan.npy").stats(bins=3, by_axis=0)["data"]
    assert (missing.count, missing.missing, missing.mean) == (8, 8, None)
    assert missing.rows[1] == FieldStats(4, 4, 0, None, None, None, None)
    assert not len(missing.edges)


def test_windows_count_as_samples_do(tmp_path: Path) -> None:
    """Numbers that two windows share count twice; other windows have statistics of their own."""
    numbers = draw("float32", 12)
    np.save(tmp_path / "x.npy", numbers)
    windows = penstock.open(tmp_path / "x.npy", window={0: 4}, stride={0: 2})
    found = windows.stats(by_axis=0, bins=4)["data"]
    starts = range(0, 9, 2)
    check(found, np.stack([numbers[start : start + 4] for start in starts]), 4)
    check(found.rows[3], np.stack([numbers[start + 3] for start in starts]))
    with pytest.raises(SidecarError, match="that was saved for data"):
        penstock.open(tmp_path / "x.npy").load_stats()


def test_statistics_of_another_version_or_damaged_ones_are_refused(tmp_path: Path) -> None:
    """Also where sizes are the same; the error names the command, and measuring makes it good."""
    numbers = np.arange(60.0).reshape(20, 3)
    path = tmp_path / "x.npy"
    np.save(path, numbers)
    saved = Path(f"{path}.stats.penstock")
    penstock.open(path).stats()
    np.save(path, numbers + 1)
    os.utime(path, ns=(1, 1))
    dataset = penstock.open(path, index="rebuild")
    message = (
        r"x.npy.stats.penstock is a file of statistics .* another version .*: measure with `pe"
    )
    with pytest.raises(SidecarError, match=message):
        dataset.load_stats()
    assert dataset.stats()["data"].mean == 30.5
    renamed = penstock.open(path, rename={"data": "y"})
    with pytest.raises(SidecarError, match=r"saved for (other fields|data)"):
        renamed.load_stats()
    np.save(path, numbers[:10])
    with pytest.raises(SidecarError, match=r"that was saved for data .*--force"):
        penstock.open(path).load_stats()
    np.save(tmp_path / "y.npy", numbers)
    other = penstock.open(tmp_path / "y.npy")
    other.stats()
    whole = Path(f"{other.path}.stats.penstock").read_bytes()
    for cut in (*range(0, len(whole), 41), len(whole) - 1):
        Path(f"{other.path}.stats.penstock").write_bytes(whole[:cut])
        with pytest.raises(SidecarError):
            other.load_stats()
    for place in range(0, len(whole), 7):
        broken = bytearray(whole)
        broken[place] ^= 0x41
        Path(f"{other.path}.stats.penstock").write_bytes(broken)
        with contextlib.suppress(SidecarError):
            assert other.load_stats()["data"].mean == 29.5  # a byte between sections
    assert other.stats()["data"].mean == 29.5
    penstock.dataset.stats.STATS.save(
        str(saved),
        penstock.open(path).fingerprint,
        {"moments": np.zeros(3, np.int64), "bins": np.zeros(0, np.int64)},
        version=penstock.open(path).index.version,
        by_axis=None,
        bins=0,
        fields=[["data", "<f8", None]],
    )
    with pytest.raises(SidecarError, match=r"is damaged \(ValueError"):
        penstock.open(path).load_stats()


def test_data_that_changes_while_it_is_measured(tmp_path: Path) -> None:
    """Data that changes is an error of the data, not of its statistics; nothing is saved."""
    np.save(tmp_path / "x.npy", np.ones((40, 3)))
    dataset = penstock.open(tmp_path / "x.npy")
    np.save(tmp_path / "x.npy", np.zeros((40, 4)))
    with pytest.raises(ChangedError, match=r"x.npy.*indexed"):
        dataset.stats()
    assert not list(tmp_path.glob("*.stats.penstock"))


@pytest.mark.parametrize("bins", [0, 6])
def test_measuring_goes_on_after_kill(bins: int, tmp_path: Path) -> None:
    """Killed in the middle of a pass, it leaves no result; the same call measures what is missing,
    with the same bits as without a kill."""
    numbers = draw("float32", 400)
    np.save(tmp_path / "x.npy", numbers)
    path = tmp_path / "x.npy"
    program = f"""
import os, signal
import penstock
from penstock import limits
limits.lengths_chunk_bytes = limits.lengths_batch_bytes = 2400

def end(done, total):
    if done >= {120 if not bins else 520}:
        os.kill(os.getpid(), signal.SIGKILL)

penstock.open({str(path)!r}).stats(bins={bins}, threads=2, progress=end)
"""
    done = run([sys.executable, "-c", program], lean=True, capture_output=True, timeout=60)
    assert done.returncode == -signal.SIGKILL, done.stderr
    assert not Path(f"{path}.stats.penstock").exists()
    told: list[tuple[int, int]] = []
    with pytest.MonkeyPatch.context() as changed:
        changed.setattr(limits, "lengths_chunk_bytes", 2400)
        changed.setattr(limits, "lengths_batch_bytes", 2400)
        dataset = penstock.open(path)
        found = dataset.stats(bins=bins, progress=lambda *done: told.append(done))
        assert told[0] == ((400, 800) if bins else (120, 400))
        first = [begun for begun, _ in told if begun > told[0][0]]
        assert (520 in first) == bool(bins)
        assert dataset.stats(bins=bins, force=True) == found
    check(found["data"], numbers, bins)
    assert not list(tmp_path.glob(".*.part"))


def test_the_command(tmp_path: Path) -> None:
    """The command shows rows and bins, and JSON with null for what is not there."""
    numbers = draw("float32", 50)
    np.save(tmp_path / "x.npy", numbers)
    done = run_command("stats", tmp_path / "x.npy", "--by-axis", 0, "--bins", 5)
    assert "x.npy: 50 samples" in done.stdout
    assert "data[2]" in done.stdout
    assert done.stdout.count("█ ") == 5
    told = json.loads(run_command("stats", tmp_path / "x.npy", "--json").stdout)["fields"]["data"]
    assert told["missing"] == 51
    assert told["mean"] == pytest.approx(
        float(np.nanmean(numbers[np.isfinite(numbers)], dtype="f8"))
    )
    assert (told["histogram"], told["rows"]) == ([], [])
    assert penstock.open(tmp_path / "x.npy").load_stats()["data"].mean == told["mean"]
    assert choose_dtype(np.dtype(bool))["low"] == np.uint64
    run_command("stats", tmp_path / "none.npy", code=1)
