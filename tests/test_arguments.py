"""Absurd arguments of the public API: each is refused with its name and value, or it works."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import penstock
from penstock.errors import FormatError, LimitError, PenstockError, UsageError
from tests import warm

ABSURD: list[Any] = [0, -1, True, 2.5, float("nan"), float("inf"), 1 << 63, 10**30, 10**400]
ABSURD += ["3", "\ud800", b"3", None, [3], np.array([3]), np.float64(3), np.True_, object()]
WANTED = [1, 3, np.int64(3), np.uint8(3)]


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An array of 30 rows of 8 bytes."""
    path = tmp_path_factory.mktemp("arguments") / "x.npy"
    np.save(path, np.arange(240, dtype=np.uint8).reshape(30, 8))
    return path


def load(data: Path, **arguments: Any) -> object:
    """Return the first batch of a loader."""
    loader = penstock.Loader(penstock.open(data, index="memory"), **arguments)
    try:
        return next(iter(loader))
    finally:
        loader.close()


def load_budget(data: Path, **arguments: Any) -> object:
    return load(data, budget=penstock.Budget(**arguments))


def load_decoded(data: Path, **arguments: Any) -> object:
    return load(data, decode=lambda _: 0, **arguments)


def load_cached(data: Path, **arguments: Any) -> object:
    return penstock.Cache(**({"ram_bytes": 1 << 20, "gather": lambda own: [own]} | arguments))


def load_disk(data: Path, disk_bytes: Any) -> object:
    return penstock.Cache(ram_bytes=1 << 20, disk_path="unused", disk_bytes=disk_bytes)


def set_epoch(data: Path, epoch: Any) -> object:
    penstock.Loader(penstock.open(data, index="memory")).set_epoch(epoch)
    return epoch


def open_records(data: Path, **arguments: Any) -> object:
    raw = data.with_name("raw")
    raw.write_bytes(bytes(240))
    known = {"record_bytes": 24} if arguments.keys() <= {"header_bytes"} else {}
    return penstock.open(raw, index="memory", **(known | arguments))


def mix(data: Path, **arguments: Any) -> object:
    dataset = penstock.open(data, index="memory")
    weight = arguments.pop("weight", 1)
    return penstock.mix([(dataset, weight), (dataset, 1)], **arguments)


Call = Callable[..., object]
NUMBERS: list[tuple[str, Call]] = [
    *((name, load) for name in ("batch_size", "global_batch_size", "seed")),
    ("rank", partial(load, world_size=4)),
    ("world_size", partial(load, rank=0)),
    *((name, partial(load, shuffle="blocked")) for name in ("block", "group")),
    ("decode_threads", load_decoded),
    *((name, load_budget) for name in penstock.Budget.__dataclass_fields__),
    *((name, load_cached) for name in ("ram_bytes", "cache_block_bytes")),
    ("disk_bytes", load_disk),
    ("epoch", set_epoch),
    *((name, open_records) for name in ("record_bytes", "header_bytes")),
    ("shape", partial(open_records, dtype="u1")),
    ("window", partial(open_records, format="tokens", dtype="u1")),
    *((name, mix) for name in ("samples_per_epoch", "weight")),
    ("count", lambda _, count: penstock.Order(count, 0)),
    *((name, lambda _, **given: penstock.Order(9, **({"seed": 0} | given))) for name in ("seed",)),
    *(
        (name, lambda _, **given: penstock.rng(**({"seed": 0, "epoch": 0, "sample": 0} | given)))
        for name in ("seed", "epoch", "sample")
    ),
]


@pytest.mark.parametrize(("name", "call"), NUMBERS)
def test_absurd_numbers_are_named(name: str, call: Call, data: Path) -> None:
    """Each is taken or is an error of penstock that begins with the argument and its value, in a
    line that can be read."""
    refused = 0
    for value in ABSURD:
        try:
            call(data, **{name: value})
        except PenstockError as error:
            refused += 1
            message = str(error)
            assert len(message) < 800, message[:99]
            if isinstance(error, UsageError) and not isinstance(value, int):
                assert name in message, (value, message)
    assert refused >= len(ABSURD) // 2, "it takes nearly anything"


@pytest.mark.parametrize(
    ("name", "call"), [row for row in NUMBERS if row[0] in ("batch_size", "seed", "epoch", "count")]
)
@pytest.mark.parametrize("value", WANTED)
def test_integers_of_any_library_are_taken(
    name: str, call: Call, value: object, data: Path
) -> None:
    call(data, **{name: value})


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"batch_size": 10**30}, f"batch_size is {10**30}: use a whole number from 1 to "),
        ({"batch_size": 10**5000}, "batch_size is a number of 16,610 bits: use"),
        (
            {"batch_size": 1 << 62, "rank": 0, "world_size": 2},
            "batch_size is 4611686018427387904 on 2 ranks: a global batch has at most 2^62",
        ),
        (
            {"decode_threads": 10**6},
            "decode_threads is 1000000: use a whole number from 1 to 4,096",
        ),
        ({"rank": np.array([3]), "world_size": 4}, "rank (from arguments) is array([3]): use a"),
    ],
)
def test_what_a_loader_says(data: Path, arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError) as caught:
        load(data, **arguments)
    assert str(caught.value).startswith(message)


@pytest.mark.parametrize("name", ["path", "index", "mirrors", "extensions"])
def test_lone_surrogates_are_no_names(data: Path, name: str) -> None:
    """A text that no file name can be is refused with its place in the text."""
    bad = f"{data.parent}/\ud800x"
    given: dict[str, Any] = {"path": data, "index": "memory"}
    given[name] = [bad] if name in ("mirrors", "extensions") else bad
    with pytest.raises(UsageError, match="is a lone surrogate") as caught:
        penstock.open(given.pop("path"), **given)
    str(caught.value).encode()  # the message itself can be printed


def test_a_cache_names_its_arguments() -> None:
    with pytest.raises(UsageError, match=r"Cache\.disk_bytes is 4611686018427387904: use a whole"):
        penstock.Cache(ram_bytes=0, disk_path="x", disk_bytes=1 << 62)
    for wrong in (3, "\ud800"):
        with pytest.raises(UsageError, match=r"Cache\.disk_path is"):
            penstock.Cache(ram_bytes=0, disk_path=wrong, disk_bytes=1)  # type: ignore[arg-type]


@pytest.mark.parametrize("dimensions", [64, 65, 1000])
def test_too_many_dimensions(tmp_path: Path, dimensions: int) -> None:
    """An array of more dimensions than numpy has is refused where it is opened."""
    (tmp_path / "x").write_bytes(bytes(8))
    with pytest.raises(FormatError, match="no array can hold a batch of field 'data'"):
        penstock.open(tmp_path / "x", dtype="u1", shape=(1,) * dimensions, index="memory")


def test_a_sample_beyond_the_memory(tmp_path: Path) -> None:
    """A sample that the machine cannot hold is refused before memory is taken."""
    with (tmp_path / "x").open("wb") as file:
        file.truncate(1 << 43)
    dataset = penstock.open(tmp_path, index="memory")
    with pytest.raises(LimitError, match=r"sample 0: .*/x at byte 0 .*: no memory for its 8,796,0"):
        dataset[0]
    with pytest.raises(LimitError, match="no memory for a batch of 8,796,093,022,208 bytes"):
        next(iter(penstock.Loader(dataset)))


def test_threads_that_the_system_refuses(data: Path) -> None:
    """The error says how many threads there were to be, and which limit to raise; those that had
    started end."""
    program = f"""
import resource, threading
import penstock
used_bytes = int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize()
resource.setrlimit(resource.RLIMIT_AS, (used_bytes + (512 << 20),) * 2)  # 8 MiB of stack each
loader = penstock.Loader(
    penstock.open({str(data)!r}, index="memory"), decode=len, decode_threads=400
)
try:
    next(iter(loader))
except penstock.errors.LimitError as error:
    print(error)
for thread in threading.enumerate():
    if thread.name.startswith("penstock-decode"):
        thread.join(60)
print(sum(thread.name.startswith("penstock-decode") for thread in threading.enumerate()), "left")
"""
    done = warm.run(
        [warm.sys.executable, "-c", program], lean=True, capture_output=True, text=True, timeout=60
    )
    assert "of 400, did not start: can't start new thread: the limit of processes" in done.stdout
    assert "0 left" in done.stdout, done
