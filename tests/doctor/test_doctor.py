"""`penstock doctor`: run as users run it, on data of several kinds and on none."""

from __future__ import annotations

import io
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
import zarr

import penstock
import penstock.cli.app
import penstock.cli.console  # before a test sets COLUMNS, which is read when it is made
from penstock._core import list_kernels
from penstock.arguments import import_function
from penstock.doctor.doctor import PlannedJob, examine
from penstock.engine.host import Machine, read_machine
from penstock.errors import UsageError
from tests import warm

RUN = [sys.executable, "-m", "penstock"]


class Said(NamedTuple):
    """Output and exit code of a command."""

    out: str
    err: str
    code: int


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Callable[..., Said]:
    """The command line in this process, all of it but the start of Python."""
    monkeypatch.setenv("COLUMNS", "100")

    def command(*arguments: object) -> Said:
        monkeypatch.setattr(sys, "argv", ["penstock", *map(str, arguments)])
        code = 0
        try:
            penstock.cli.main()
        except SystemExit as ended:
            code = ended.code if isinstance(ended.code, int) else 0
        return Said(*capsys.readouterr(), code)

    return command


@pytest.fixture
def rows(tmp_path: Path) -> Path:
    """2,000 rows of 16 KiB in a file of NumPy."""
    path = tmp_path / "data" / "rows.npy"
    path.parent.mkdir()
    np.save(path, np.random.default_rng(0).integers(0, 256, (500, 16384), np.uint8))
    return path


@pytest.fixture
def photos(tmp_path: Path) -> Path:
    """40 small photographs in two folders."""
    image = pytest.importorskip("PIL.Image")
    root = tmp_path / "photos"
    for number in range(40):
        path = root / ("cat" if number % 2 else "dog") / f"{number}.jpg"
        path.parent.mkdir(parents=True, exist_ok=True)
        pixels = np.random.default_rng(number).integers(0, 256, (32, 32, 3), np.uint8)
        buffer = io.BytesIO()
        image.fromarray(pixels).save(buffer, "jpeg")
        path.write_bytes(buffer.getvalue())
    (tmp_path / "mine.py").write_text(
        "import io\n"
        "import numpy as np\n"
        "import PIL.Image\n"
        "def decode(sample):\n"
        "    return np.asarray(PIL.Image.open(io.BytesIO(sample['data'])))\n"
        "def broken(sample):\n"
        "    raise ValueError('not today')\n"
        "number = 3\n"
    )
    return root


def strict(text: str) -> dict[str, Any]:
    """JSON without NaN and infinities."""

    def refuse(constant: str) -> None:
        raise AssertionError(f"{constant} is no JSON")

    report: dict[str, Any] = json.loads(text, parse_constant=refuse)
    return report


@pytest.mark.parametrize("words", [(), ("--step-seconds", "1000", "--batch-size", "10")])
def test_it_fits_a_narrow_terminal(
    run: Callable[..., Said], rows: Path, monkeypatch: pytest.MonkeyPatch, words: tuple[str, ...]
) -> None:
    """Sentences are wrapped as tables are; nothing is left out."""
    monkeypatch.setenv("COLUMNS", "400")
    wide = run("doctor", *([rows] if words else []), *words).out
    monkeypatch.setenv("COLUMNS", "40")
    narrow = run("doctor", *([rows] if words else []), *words).out
    assert max(map(len, narrow.splitlines())) <= 40 < max(map(len, wide.splitlines()))
    if not words:  # no measurements, but of memory that is free at the time
        plain, wrapped = (re.sub(r"[0-9.]+", "0", text).split() for text in (wide, narrow))
        assert sorted(wrapped) == sorted(plain)


def findings(report: dict[str, Any]) -> dict[str, str]:
    return {finding["about"]: finding["level"] for finding in report["findings"]}


@pytest.mark.long
def test_rows_of_numpy(rows: Path, run: Callable[..., Said]) -> None:
    """Ceilings, settings, limits, and what binds, for people; nothing is written."""
    before = sorted(rows.parent.parent.rglob("*"))
    result = run("doctor", rows, "--step-seconds", "1000", "--batch-size", 10)
    assert result.code == 0, result.err
    for part in ("npy, 500 samples of 16.0 KiB", "storage, large reads", "shuffle='auto'"):
        assert part in " ".join(result.out.split())
    assert "compute binds at 0.01 samples/s" in result.out
    assert "the accelerator computes for 100% of the time" in result.out
    assert sorted(rows.parent.parent.rglob("*")) == before


@pytest.mark.parametrize("option", [(), ("--option", 'window={"0": 5}')])
def test_more_samples_than_chunks(
    tmp_path: Path, run: Callable[..., Said], option: tuple[str, ...]
) -> None:
    """The chunks of compressed data are probed, of which there are fewer than samples."""
    array = zarr.create_array(tmp_path / "a.zarr", shape=(200, 16), chunks=(50, 16), dtype="f4")
    array[...] = np.random.default_rng(0).normal(size=(200, 16))
    report = strict(run("doctor", tmp_path / "a.zarr", *option, "--json").out)
    assert report["samples"] == (40 if option else 200)
    assert report["files"] == 4


def test_the_same_as_json(rows: Path, run: Callable[..., Said]) -> None:
    """All of it, strictly JSON, and what it says of the data is true."""
    report = strict(run("doctor", rows, "--json").out)
    assert (report["format"], report["samples"], report["files"]) == ("npy", 500, 1)
    assert report["bytes"] == 500 * 16384
    assert report["demand"]["reads"] == 1
    assert set(report["supplies"]) == {"bandwidth", "iops", "metadata", "copy"}
    assert report["first"]["bound"] in report["supplies"]
    assert report["later"]["bound"] == "copy"
    assert report["machine"]["cores"] == len(os.sched_getaffinity(0))
    assert {setting["name"] for setting in report["settings"]} >= {
        "backend",
        "cache",
        "decode_threads",
    }
    assert findings(report)["open files"] == findings(report)["/dev/shm"] == "good"


@pytest.mark.long
def test_photos_with_their_decoder(photos: Path) -> None:
    """A user's call works: the function is found in the current folder, and bounds later epochs."""
    done = warm.run(
        [*RUN, "doctor", str(photos), "--decode", "mine:decode", "--json"],
        capture_output=True,
        text=True,
        cwd=photos.parent,
        env={**os.environ, "PYTHONPATH": str(Path(penstock.__file__).parents[1])},
    )
    assert done.returncode == 0, done.stderr
    report = strict(done.stdout)
    assert report["samples"] == 40
    assert "decode, " in report["supplies"]["decode"]["how"]
    copied = report["demand"]["copied_bytes"]
    assert copied == pytest.approx(report["mean_bytes"] + 32 * 32 * 3, rel=0.01)
    assert {ceiling["resource"] for ceiling in report["later"]["ceilings"]} == {"decode", "copy"}
    assert "file of its own" in json.dumps(report["settings"])


@pytest.mark.parametrize(
    ("named", "message"),
    [
        ("penstock.cli.app:nothing", "cannot be had"),
        ("penstock.limits:MIB", "name a function"),
        ("nothing_here:decode", "No module named 'nothing_here'"),
        ("penstock.cli.app", "use module:function"),
        (":main", "use module:function"),
    ],
)
def test_functions_that_cannot_be(named: str, message: str) -> None:
    """The error names the option, its value, and the expected form."""
    with pytest.raises(UsageError, match=f"--decode is '{named}'.*{message}"):
        import_function("--decode", named)


def test_a_decode_function_that_fails(rows: Path, run: Callable[..., Said]) -> None:
    """One line that names the function and the sample."""
    result = run("doctor", rows, "--decode", "json:loads")
    assert result.code == 1
    assert "decode function loads failed for sample" in result.err
    assert result.err.count("\n") == 1


def test_an_empty_folder_and_its_disk(tmp_path: Path, run: Callable[..., Said]) -> None:
    """Nothing is written unless it is asked for, and nothing is left then either."""
    report = strict(run("doctor", tmp_path, "--json").out)
    assert (report["samples"], report["first"], report["written"]) == (0, None, None)
    assert findings(report)["room"] == "good"
    output = run("doctor", tmp_path, "--write").out
    assert "an empty folder" in output
    assert "storage, writing" in output
    assert list(tmp_path.iterdir()) == []


def test_what_is_not_there(tmp_path: Path, run: Callable[..., Said]) -> None:
    """One line, as every command says it."""
    result = run("doctor", tmp_path / "none")
    assert "none does not exist: check the path" in result.err
    assert (result.err.count("\n"), result.out, result.code) == (1, "", 1)


def test_samples_without_bytes(tmp_path: Path, run: Callable[..., Said]) -> None:
    """There is no storage to measure, and no verdict."""
    (tmp_path / "empty.txt").touch()
    report = strict(run("doctor", tmp_path, "--json").out)
    assert (report["samples"], report["first"], report["later"]) == (1, None, None)


def test_records_are_opened_as_they_were_indexed(tmp_path: Path, run: Callable[..., Said]) -> None:
    """The record size need not be said again; and that the index is not saved is noted."""
    path = tmp_path / "x.bin"
    path.write_bytes(bytes(12_000))
    report = strict(run("doctor", path, "--record-bytes", 120, "--json").out)
    assert findings(report)["index"] == "note"
    run("index", path, "--record-bytes", 120)
    report = strict(run("doctor", path, "--json").out)
    assert report["samples"] == 100
    assert "index" not in findings(report)


@pytest.fixture
def public() -> Iterator[Path]:
    """A folder that every user can reach."""
    path = Path(tempfile.mkdtemp())
    path.chmod(0o755)
    yield path
    shutil.rmtree(path)


AS_NOBODY = """
import contextlib, io, json, os, sys
import penstock.cli.app

def said(*arguments):
    sys.argv = ["penstock", "doctor", *arguments]
    out, err, code = io.StringIO(), io.StringIO(), 0
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        try:
            penstock.cli.main()
        except SystemExit as ended:
            code = ended.code or 0
    return out.getvalue(), err.getvalue(), code

root = sys.argv[1]
said(root, "--json")  # once as root, so that all is imported: the other user may not be able to
os.chdir("/")
os.setgroups([]); os.setresgid(65534, 65534, 65534); os.setresuid(65534, 65534, 65534)
asked = [("closed", "--json"), ("closed.npy", "--json"), ("open", "--write"), ("open", "--json")]
print(json.dumps([said(f"{root}/{name}", option) for name, option in asked]))
"""


@pytest.mark.long
@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")
def test_without_permission(public: Path) -> None:
    """Files of another user are named, with the remedy; read permission is enough to examine a
    folder."""
    (public / "closed").mkdir(mode=0o700)
    (public / "closed" / "x.bin").write_bytes(b"1")
    (public / "open").mkdir(mode=0o755)
    np.save(public / "closed.npy", np.zeros((10, 10)))
    (public / "closed.npy").chmod(0o600)
    done = subprocess.run(
        [sys.executable, "-c", AS_NOBODY, str(public)],
        capture_output=True,
        text=True,
        env={
            **os.environ,
            "PYTHONPATH": str(Path(penstock.__file__).parents[1]),
            "HOME": "/nonexistent",
            "TERM": "dumb",
        },
    )
    assert done.returncode == 0, done.stderr
    *refused, allowed = (Said(*result) for result in json.loads(done.stdout))
    messages = (
        "closed cannot be read: permission denied",
        "closed.npy cannot be read: permission denied",
        "open cannot be written to: Permission denied",
    )
    for refusal, message in zip(refused, messages, strict=True):
        assert message in refusal.err
        assert (refusal.err.count("\n"), refusal.out, refusal.code) == (1, "", 1)
    assert allowed.code == 0
    assert findings(strict(allowed.out))["room"] == "warning"


# -- limits that bite ------------------------------------------------------------------------------


def said_of(dataset: penstock.Dataset, job: PlannedJob | None = None) -> dict[str, tuple[str, str]]:
    examination = examine(dataset, job or PlannedJob())
    return {finding.about: (finding.level, finding.says) for finding in examination.findings}


WITH_FEW_FILES = """
import resource, sys
import penstock
from penstock.doctor.doctor import PlannedJob, examine
from penstock.engine.read_method import compute_open_files_max

_, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
resource.setrlimit(resource.RLIMIT_NOFILE, (100, hard))
assert compute_open_files_max() == 25
for finding in examine(penstock.open(sys.argv[1], index="memory"), PlannedJob()).findings:
    if finding.about == "open files":
        print(finding.level, finding.says)
"""


def test_too_few_open_files_are_warned_of(photos: Path) -> None:
    """With the limit that would do, in a process that holds no other files."""
    command = [sys.executable, "-c", WITH_FEW_FILES, str(photos)]
    done = warm.run(command, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("warning ")
    assert "`ulimit -n 160`" in done.stdout


def test_batches_that_do_not_fit_into_shared_memory(rows: Path) -> None:
    """The memory that worker processes would hold is compared with the free memory."""
    machine = read_machine()
    if machine.shm_bytes is None:
        pytest.skip("there is no /dev/shm")
    dataset = penstock.open(rows, index="memory")
    batch = machine.shm_bytes // 16384
    level, says = said_of(dataset, PlannedJob(batch_size=batch))["/dev/shm"]
    assert level == "warning"
    assert "--shm-size" in says


@pytest.mark.parametrize(
    ("ahead", "workers", "steps", "lent"),
    [(256 << 20, 0, 1, 0), (1 << 20, 0, 2, 0), (256 << 20, 4, 4, 12), (16 << 20, 4, 8, 12)],
)
def test_the_memory_of_loaders(
    run: Callable[..., Said], rows: Path, ahead: int, workers: int, steps: int, lent: int
) -> None:
    """The bound of docs/limits/memory.md: read-ahead, divided among workers, and steps of each."""
    batch = 128 * 16384
    asked = ("--batch-size", 128, "--ranks", 2, "--workers", workers, "--readahead", f"{ahead}B")
    report = strict(run("doctor", rows, *asked, "--json").out)
    (says,) = (each["says"] for each in report["findings"] if each["about"] == "loaders' memory")
    total = 2 * (ahead + steps * batch * 9 / 8 + lent * batch)
    assert says.startswith(f"{total / 1e6:,.4g} MB at most = 2 ranks x (readahead_bytes "), says
    assert f"{steps} x step" in says


def test_the_kernels_in_use_are_listed(run: Callable[..., Said]) -> None:
    """With data and without: what each part of the core uses on this processor."""
    report = strict(run("doctor", "--json").out)
    (says,) = (each["says"] for each in report["findings"] if each["about"] == "kernels")
    assert says == ", ".join(f"{part} {kernel}" for part, kernel in list_kernels().items())
    assert "JPEG" in says


def test_quotas_and_limits_are_reckoned_with() -> None:
    """Room is the least of what is free and of what groups leave; cores the least of both."""
    machine = Machine(8, 2.5, 64 << 30, 60 << 30, 16 << 30, 4 << 30, 1 << 30, 1024, {})
    assert (machine.usable_cores, machine.room_bytes) == (2.5, 12 << 30)
    free = machine._replace(cpu_quota=None, memory_limit_bytes=None)
    assert (free.usable_cores, free.room_bytes) == (8.0, 60 << 30)


def test_progress_is_told(rows: Path) -> None:
    """Progress is reported from none of the measurements to all."""
    seen: list[tuple[int, int]] = []
    examination = examine(
        penstock.open(rows, index="memory"), PlannedJob(), seen=lambda *counts: seen.append(counts)
    )
    assert seen[0][0] == 0
    assert seen[-1][0] == seen[-1][1]
    assert [done for done, _ in seen] == sorted(done for done, _ in seen)
    assert examination.settings


def test_images_are_decoded_unless_something_else_is_timed(photos: Path) -> None:
    """Copying 100 times as many is no promise: what decoding allows binds, by default."""
    examined = examine(penstock.open(photos, index="memory"), PlannedJob())
    assert "Decode()" in examined.supplies["decode"].how
    assert "--decode times yours" in examined.supplies["decode"].how
    assert examined.later is not None
    assert examined.later.bound == "decode"


@pytest.mark.parametrize("head", [b"fLaC", b"\x89PNG\r\n\x1a\nbroken"])
def test_what_cannot_be_decoded_is_said(tmp_path: Path, head: bytes) -> None:
    """Damage, or a missing package: a warning in place of a promise."""
    (tmp_path / "0.sample").write_bytes(head.ljust(5000, b"\0"))
    level, says = said_of(penstock.open(tmp_path, index="memory"))["decoding"]
    assert level == "warning"
    assert "may bind: time yours by --decode" in says
