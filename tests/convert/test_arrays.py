"""`penstock convert --to zarr`: arrays in other chunks, compared with what other libraries read."""

from __future__ import annotations

import base64
import errno
import gc
import json
import os
import signal
import struct
import subprocess
import sys
from pathlib import Path
from typing import Any

import h5py
import numcodecs
import numpy as np
import pytest
import zarr

import penstock
import penstock.cli
from penstock.convert import arrays, convert_arrays
from penstock.errors import FormatError, MissingError, StorageError, UsageError
from tests import warm

SHAPE = 31, 14, 20
NAMES = "time", "lat", "lon"
VALUES = np.random.default_rng(0).normal(size=SHAPE).astype("float32")
VALUES[3, 2, 1] = np.nan
TIME = np.arange(31, dtype="int64")
CHUNKS = {"time": 7, "lat": 14, "lon": 3}


def write(path: Path, kind: str) -> Path:
    """A weather of one field and a coordinate, in some container."""
    if kind == "hdf5":
        with h5py.File(path, "w") as file:
            made = file.create_dataset("t", data=VALUES, chunks=(4, 14, 20), compression="gzip")
            file["time"] = TIME
            file["lat"] = np.arange(14.0)
            file["crs"] = 5
            file["crs"].attrs["grid"] = "latlon"
            for axis, name in enumerate(NAMES[:2]):
                file[name].make_scale(name)
                made.dims[axis].attach_scale(file[name])
            made.dims[2].label = "lon"
            made.attrs["units"], made.attrs["_FillValue"] = "K", np.array([-9999], "float32")
            file.attrs["title"] = np.bytes_("weather")
        return path
    version = 2 if kind == "zarr2" else 3
    group = zarr.open_group(path, mode="w", zarr_format=version, attributes={"title": "weather"})
    more: dict[str, Any] = {}
    if version == 2:
        more = {
            "dtype": ">f4",
            "order": "F",
            "compressors": numcodecs.Zlib(),
            "fill_value": -9999.0,
        }
    else:
        more = {"dtype": "f4", "dimension_names": NAMES, "shards": (8, 14, 20)}
    names = {"_ARRAY_DIMENSIONS": list(NAMES)} if version == 2 else {}
    made = group.create_array(
        "t", shape=SHAPE, chunks=(4, 14, 20), attributes={"units": "K", **names}, **more
    )
    made[:] = VALUES
    for name, values in (("time", TIME), ("lat", np.arange(14.0))):
        axes = {"attributes": {"_ARRAY_DIMENSIONS": [name]}} if version == 2 else {}
        more = {"dimension_names": (name,)} if version == 3 else {}
        one = group.create_array(name, shape=values.shape, dtype=values.dtype, **axes, **more)
        one[:] = values
    for name, value in (("crs", 5), ("none", 0)):  # zarr writes no chunk for what the fill has
        scalar = group.create_array(
            name, shape=(), dtype="int32", fill_value=0, attributes={"grid": "latlon"}
        )
        scalar[...] = value
    return path


def read(path: Path) -> dict[str, tuple[Any, ...]]:
    """The arrays of a group, as zarr reads them: values, chunks, names of axes, attributes."""
    group = zarr.open_group(path, mode="r")
    described = {}
    for name, one in group.arrays():
        names = one.metadata.dimension_names  # type: ignore[union-attr]
        described[name] = one[...], one.chunks, names, dict(one.attrs)
    return described


@pytest.mark.parametrize("kind", ["zarr3", "zarr2", "hdf5"])
def test_all_of_a_group_is_kept(kind: str, tmp_path: Path) -> None:
    """Values, names of axes, attributes, coordinates and scalars, as zarr reads them."""
    done = convert_arrays(
        write(tmp_path / "data", kind), tmp_path / "out", CHUNKS, fill=kind != "hdf5"
    )
    assert done.written == done.regions == 3
    found = read(tmp_path / "out")
    values, chunks, names, attributes = found.pop("t")
    assert values.tobytes() == VALUES.tobytes()
    assert (chunks, names, attributes.pop("units")) == ((7, 14, 3), NAMES, "K")
    if kind != "zarr3":  # as xarray spells it
        spelt = base64.b64encode(struct.pack("<d", -9999)).decode()
        assert attributes == {"_FillValue": spelt}
    assert np.array_equal(found["time"][0], TIME)
    assert found["time"][1:3] == ((31,), ("time",))
    assert np.array_equal(found["lat"][0], np.arange(14.0))
    assert found["crs"][0] == 5
    assert found["crs"][3]["grid"] == "latlon"
    assert "none" not in found or found["none"][0] == 0
    assert zarr.open_group(tmp_path / "out").attrs["title"] == "weather"
    assert not [name for name in os.listdir(tmp_path / "out") if name.startswith(".")]
    assert sorted(os.listdir(tmp_path)) == ["data", "out"]
    data = penstock.open(tmp_path / "out", window={"time": 7}, index="memory")
    assert np.array_equal(data[1]["t"], VALUES[7:14], equal_nan=True)


@pytest.mark.parametrize("dtype", ["b1", "i1", "u2", ">i8", "u8", "f2", "<f8", ">c8", "c16"])
def test_types_of_numbers(dtype: str, tmp_path: Path) -> None:
    """Each type of numbers is what it was, bit by bit; axes without names have numbers."""
    values = np.frombuffer(np.random.default_rng(1).bytes(7 * 5 * 16), "u1").reshape(7, 5, 16)
    values = (values > 99) if dtype == "b1" else values.view(dtype)
    np.save(tmp_path / "a.npy", values)
    convert_arrays(tmp_path / "a.npy", tmp_path / "out", {"0": 3, "1": 5})
    found = read(tmp_path / "out")["data"][0]
    assert found.dtype == np.dtype(dtype).newbyteorder("<")
    assert found.tobytes() == values.astype(found.dtype).tobytes()


@pytest.mark.long
def test_regions_and_reads_that_are_bounded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An array of rows becomes one of columns, region by region, in reads of a few chunks; what is
    said of decodes is what the shapes give."""
    values = np.random.default_rng(2).integers(0, 9, (211, 40, 310)).astype("float64")
    group = zarr.open_group(tmp_path / "rows", mode="w")
    made = group.create_array("x", shape=values.shape, chunks=(1, 40, 310), dtype="f8")
    made[:] = values
    monkeypatch.setattr(arrays, "_READ_BYTES", 100_000)
    monkeypatch.setattr(arrays, "_WORKERS_MAX", 2)
    done = convert_arrays(
        tmp_path / "rows", tmp_path / "out", {"0": 211, "1": 3, "2": 10}, memory_bytes=1 << 26
    )
    assert np.array_equal(read(tmp_path / "out")["x"][0], values)
    assert done.regions > 2
    assert done.decoded["x"] == done.regions


CHILD = """
import os, signal, sys
from penstock.convert import convert_arrays
source, destination, number = sys.argv[1:]
seen = 0
def event(name, arguments):
    global seen
    if name in ("open", "os.rename", "os.mkdir", "os.remove") and destination in str(arguments[0]):
        seen += 1
        if seen == int(number):
            os.kill(os.getpid(), signal.SIGKILL)
sys.addaudithook(event)
convert_arrays(source, destination, {"time": 7, "lon": 9})
print(seen)
"""


def child(source: Path, destination: Path, number: int) -> subprocess.CompletedProcess[str]:
    """A conversion in a process of its own, killed at an event of the file system."""
    path = str(Path(penstock.__file__).parents[1])
    return warm.run(
        [sys.executable, "-c", CHILD, str(source), str(destination), str(number)],
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": path},
    )


def files_of(folder: Path) -> dict[str, bytes]:
    names = (path for path in folder.rglob("*") if path.is_file())
    return {str(path.relative_to(folder)): path.read_bytes() for path in names}


@pytest.mark.long
def test_killed_and_resumed(tmp_path: Path) -> None:
    """Killed at any operation on files, it ends up as one that was not, byte by byte, and until
    then has not its name."""
    source = write(tmp_path / "data.h5", "hdf5")
    whole = child(source, tmp_path / "whole", 0)
    assert whole.returncode == 0, whole.stderr
    total = int(whole.stdout)
    expected = files_of(tmp_path / "whole")
    random = np.random.default_rng(total)
    for point in sorted({1, 2, 3, total, total - 1, total - 2, *random.integers(1, total, 9)}):
        out = tmp_path / f"out{point}"
        killed = child(source, out, int(point))
        assert killed.returncode == -signal.SIGKILL, killed.stderr
        if out.exists():  # only hidden files were still to be removed
            found = files_of(out)
            assert {n: found[n] for n in found if not n.startswith(".")} == expected
            continue
        resumed = child(source, out, 0)
        assert resumed.returncode == 0, resumed.stderr
        assert files_of(out) == expected


def interrupt(source: Path, out: Path, **options: Any) -> None:
    """Convert until the first region is compared."""

    def stop(done: int, total: int) -> None:
        if done > total // 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        convert_arrays(source, out, CHUNKS, progress=stop, **options)
    assert not out.exists()


@pytest.mark.parametrize("how", ["flipped", "empty", "lost"])
def test_what_was_damaged_meanwhile_is_written_again(how: str, tmp_path: Path) -> None:
    """A chunk that does not read back is an error, and the next run makes up for it."""
    source, out = write(tmp_path / "data", "zarr3"), tmp_path / "out"
    interrupt(source, out, fill=True)
    chunk = tmp_path / "out.tmp/t/c/1/0/2"
    data = bytearray(chunk.read_bytes())
    data[20] ^= 1
    chunk.write_bytes(b"" if how == "empty" else data)
    if how == "lost":
        chunk.unlink()
    with pytest.raises(StorageError, match="does not read back"):
        convert_arrays(source, out, CHUNKS, fill=True)
    assert not out.exists()
    done = convert_arrays(source, out, CHUNKS, fill=True)
    assert 0 < done.written <= done.regions
    assert read(out)["t"][0].tobytes() == VALUES.tobytes()


def test_another_conversion_is_not_continued(tmp_path: Path) -> None:
    """Other chunks, or data that changed, need force; then nothing of it is left."""
    source, out = write(tmp_path / "data", "zarr3"), tmp_path / "out"
    interrupt(source, out, fill=True)
    with pytest.raises(UsageError, match=r"a conversion with chunks=.*'lon': 3.*--force"):
        convert_arrays(source, out, {"time": 31}, fill=True)
    zarr.open_group(source)["t"][0, 0, 0] = 7.0
    with pytest.raises(UsageError, match="files of .* that were written to since"):
        convert_arrays(source, out, CHUNKS, fill=True)
    convert_arrays(source, out, {"time": 31, "lat": 14, "lon": 20}, fill=True, force=True)
    assert len(list((out / "t/c").rglob("*"))) == 3
    assert read(out)["t"][0][0, 0, 0] == 7


@pytest.mark.long
def test_full_disk(small_disk: Path, tmp_path: Path) -> None:
    """A full disk is named as such, and once there is room, it goes on."""
    filler, out = small_disk / "filler", small_disk / "out"
    filler.write_bytes(bytes(50_000))
    source = write(tmp_path / "data.h5", "hdf5")
    with pytest.raises(StorageError, match="make room there") as caught:
        convert_arrays(source, out, {"time": 31})
    assert caught.value.errno == errno.ENOSPC
    assert not out.exists()
    del caught
    gc.collect()  # its frames have mapped a file of this disk
    filler.unlink()
    convert_arrays(source, out, {"time": 31})
    assert read(out)["t"][0].tobytes() == VALUES.tobytes()


def test_calls_that_cannot_be(tmp_path: Path) -> None:
    """Each is an error of one line that says what to do, and leaves nothing."""
    source, out = write(tmp_path / "data", "zarr3"), tmp_path / "out"
    nested = zarr.open_group(tmp_path / "nested", mode="w")
    nested.create_array("x", shape=(3,), dtype="i4")[:] = 1
    nested.create_group("more")
    with h5py.File(tmp_path / "nested.h5", "w") as file:
        file["x"], file["more/y"] = [1], [2]
    with h5py.File(tmp_path / "text.h5", "w") as file:
        file["x"] = np.array([b"one", b"two"])
    (tmp_path / "tar").mkdir()
    (tmp_path / "tar/a.jpg").write_bytes(b"picture")
    calls: list[tuple[Path, Path, Any, dict[str, Any], str]] = [
        (source, out, {"depth": 3}, {}, r"along 'depth'.*has the axes .*'time' \(31\)"),
        (source, out, {"time": 32}, {}, "chunks of 32 along 'time'"),
        (source, out, {"time": 0}, {}, "use a whole number"),
        (source, out, {}, {}, "give {axis: elements}"),
        (source, out, CHUNKS, {"fields": ["u"]}, "has no array 'u', but crs, lat"),
        (source, out, CHUNKS, {"memory_bytes": 5}, "memory_bytes is 5"),
        (source, source, CHUNKS, {}, "exists: choose another"),
        (source, source / "out", CHUNKS, {}, "inside the source"),
        (tmp_path / "nested", out, {"0": 1}, {}, "has a group 'more'"),
        (tmp_path / "nested.h5", out, {"0": 1}, {}, "'more' at its root"),
        (tmp_path / "text.h5", out, {"0": 1}, {}, "choose arrays of numbers"),
        (tmp_path / "tar", out, {"0": 1}, {}, "is tree: arrays of one Zarr"),
    ]
    for start, to, chunks, options, message in calls:
        with pytest.raises((UsageError, FormatError), match=message) as caught:
            convert_arrays(start, to, chunks, **{"fill": True, **options})
        assert "\n" not in str(caught.value)
    with pytest.raises(UsageError, match="write to a folder"):
        convert_arrays(source, "s3://bucket/x", CHUNKS)
    os.unlink(source / "t/c/2/0/0")
    with pytest.raises(MissingError, match="a chunk was lost"):
        convert_arrays(source, out, CHUNKS)
    assert not out.exists()
    assert not (tmp_path / "out.tmp").exists()


def test_command_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """What the doctor says of an array is a command that makes it good."""
    values = np.random.default_rng(3).normal(size=(96, 40, 64)).astype("f4")
    with h5py.File(tmp_path / "a.h5", "w") as file:
        made = file.create_dataset("t", data=values, chunks=values.shape, compression="gzip")
        for axis, name in enumerate(NAMES):
            made.dims[axis].label = name
    window = ["--option", f"window={json.dumps({'time': 48, 'lat': 8})}"]

    def run(*arguments: str) -> str:
        monkeypatch.setattr(sys, "argv", ["penstock", *arguments])
        with pytest.raises(SystemExit) as ended:
            penstock.cli.main()
        assert not ended.value.code
        return capsys.readouterr().out

    def examine(path: str) -> str:
        found = json.loads(run("doctor", path, *window, "--json"))["findings"]
        (says,) = (one["says"] for one in found if one["about"] == "chunks of t")
        return str(says)

    says = examine(f"{tmp_path}/a.h5")
    assert "decodes 10 times" in says
    command = says.split("`")[1].split()
    out = f"{tmp_path}/a-chunks.zarr"
    assert command[:5] == ["penstock", "convert", f"{tmp_path}/a.h5", out, "--to"]
    assert "1 array in 10 chunks; verified" in " ".join(run(*command[1:]).split())
    assert np.array_equal(read(Path(out))["t"][0], values)
    assert "decodes 1 times its bytes" in examine(out)
