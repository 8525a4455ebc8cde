"""Files that penstock writes: a planted link has nothing else overwritten, emptied or made."""

from __future__ import annotations

import json
import os
import shutil
import sys
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

import numpy as np
import pytest

import penstock
import penstock.convert
from penstock.cache.disk import DiskTier
from penstock.cli.console import write_text
from penstock.convert.manifest import MANIFEST
from penstock.engine import AtomicFile
from penstock.errors import UsageError
from penstock.index import sidecar
from penstock.own_files import check_private_folder, open_own
from penstock.sharing.broker import _lock_socket
from penstock_bench.checkpoints.files import open_new_file
from penstock_bench.results import record
from penstock_bench.traces.replay import _make_file as synthesize
from penstock_bench.traces.trace_file import TraceWriter

from . import warm


def convert(folder: Path, to: str) -> None:
    """Go on with a conversion whose folder somebody has prepared."""
    records = folder / "records.bin"
    if not records.exists():
        np.arange(64, dtype=np.uint8).tofile(records)
    dataset = penstock.open(records, record_bytes=8, index="memory")
    penstock.convert.convert(dataset, folder / "out", to=to)  # type: ignore[arg-type]


def atomic(path: Path) -> None:
    with AtomicFile(str(path)) as file:
        file.write(b"new")
        file.sync()
        file.commit()


def checkpoint(path: Path) -> None:
    with open_new_file(str(path), fsync=False) as file:
        file.write(b"new")


def lock(path: Path) -> None:
    with ExitStack() as undo:
        _lock_socket(path, undo)


def tier(folder: Path) -> None:
    DiskTier.open(str(folder), 4, 1 << 20, bytes(16)).close()


WRITERS: dict[str, tuple[str, Callable[[Path], object]]] = {
    "atomic": ("x", lambda folder: atomic(folder / "x")),
    "atomic, hidden": (".x.part", lambda folder: atomic(folder / "x")),
    "sidecar": ("x", lambda folder: sidecar.write_sidecar(str(folder / "x"), {}, {})),
    "results": ("x", lambda folder: record.write_text(folder / "x", "new")),
    "record": ("record.json", lambda folder: record.write_record(folder, {})),
    "command": ("x", lambda folder: write_text(folder / "x", "new")),
    "command, hidden": (f".x.{os.getpid()}", lambda folder: write_text(folder / "x", "new")),
    "replay": ("x.partial", lambda folder: synthesize(str(folder / "x"), 8, 1, False)),
    "trace": ("x.partial", lambda folder: TraceWriter(str(folder / "x"), "").close()),
    "checkpoint": (".x.part", lambda folder: checkpoint(folder / "x")),
    "broker": ("x.lock", lambda folder: lock(folder / "x")),
    "tier": ("tier.lock", tier),
    "tier's data": ("tier.data", tier),
    "lmdb": ("out.tmp/data.mdb", lambda folder: convert(folder, "lmdb")),
    "lmdb's lock": ("out.tmp/lock.mdb", lambda folder: convert(folder, "lmdb")),
    "lmdb's digests": ("out.tmp/.digests", lambda folder: convert(folder, "lmdb")),
    "shards": ("out/.out-000000.tar.part", lambda folder: convert(folder, "tar")),
}


def prepare(folder: Path, name: str) -> None:
    """Begin a conversion, of which nothing but the manifest is written yet."""
    made, begun = folder / "out", folder / os.path.dirname(name)
    if begun == folder:
        return
    convert(folder, "lmdb" if begun != made else "tar")
    manifest = json.loads((made / MANIFEST).read_text()) | {"shards": [], "complete": False}
    shutil.rmtree(made)
    begun.mkdir()
    (begun / MANIFEST).write_text(json.dumps(manifest))


@pytest.mark.parametrize("how", ["link", "dangling link", "second name"])
@pytest.mark.parametrize("kind", WRITERS)
def test_nothing_is_written_through_a_planted_link(kind: str, how: str, tmp_path: Path) -> None:
    """The file that it leads to keeps its bytes, or is not made; either the link is replaced, or
    the error names it."""
    name, write = WRITERS[kind]
    folder, target = tmp_path / "folder", tmp_path / "target"
    folder.mkdir()
    prepare(folder, name)
    if how != "dangling link":
        target.write_bytes(b"precious")
    if how == "second name":
        (folder / name).hardlink_to(target)
    else:
        (folder / name).symlink_to(target)
    try:
        write(folder)
    except UsageError as error:
        assert str(folder / name) in str(error)  # noqa: PT017
        assert "nothing is written to it: remove it" in str(error)  # noqa: PT017
    if how == "dangling link":
        assert not target.exists()
    else:
        assert target.read_bytes() == b"precious"


def test_a_conversion_goes_into_no_planted_folder(tmp_path: Path) -> None:
    """The folder that it makes beside its destination is not the one that a link leads to."""
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "out.tmp").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(UsageError, match=r"out\.tmp is a symbolic link: remove it"):
        convert(tmp_path, "lmdb")
    assert os.listdir(tmp_path / "elsewhere") == []


def test_only_regular_files_of_own_folders(tmp_path: Path) -> None:
    """A pipe is refused without waiting for its other end; so are folders that others may write."""
    os.mkfifo(tmp_path / "pipe")
    for flags in (os.O_RDONLY, os.O_WRONLY):
        with pytest.raises(UsageError, match="no regular file, which penstock does not make"):
            open_own(str(tmp_path / "pipe"), flags)
    tmp_path.chmod(0o777)
    with pytest.raises(UsageError, match="every user may write to .* of a test"):
        check_private_folder(str(tmp_path), "a test")
    tmp_path.chmod(0o700)
    check_private_folder(str(tmp_path), "a test")


# -- locks -----------------------------------------------------------------------------------------


def run_unlocked(program: str, *arguments: object) -> str:
    """Run a program in a process in which flock fails; return what it prints."""
    start = "from tests.unlocked import forbid_flock\nforbid_flock()\n"
    done = warm.run(
        [sys.executable, "-c", start + program, *map(str, arguments)],
        capture_output=True,
        text=True,
        cwd=Path(__file__).parents[1],
    )
    assert done.returncode == 0, done.stderr
    return str(done.stdout)


def test_without_flock_a_file_is_the_lock(tmp_path: Path) -> None:
    """Conversions, tokenisers and measurements refuse a second one, and leave nothing behind."""
    program = """
import fcntl, os, sys
import numpy as np
import penstock
from penstock.convert import lock_folder
from penstock.dataset.measuring import MeasuredChunks
from penstock.errors import UsageError

try:
    fcntl.flock(0, fcntl.LOCK_EX)
    raise SystemExit("flock works")
except OSError:
    pass
place = sys.argv[1]
for take in (lambda: lock_folder(place), lambda: MeasuredChunks(place + ".lengths", {}, 8, 8)):
    with take():
        try:
            with take():
                print("both")
        except UsageError as error:
            print(error)
    with take():
        pass
print(sorted(os.listdir(os.path.dirname(place))))
"""
    (tmp_path / "d").mkdir()
    said = run_unlocked(program, tmp_path / "d" / "out")
    folder, lengths, left = said.splitlines()
    assert "another process is converting into" in folder
    assert folder.endswith(f"or remove {tmp_path}/d/out.lock if none runs")
    assert "is in use: wait for the other process, or remove" in lengths
    assert left == "['.out.lengths.part', 'out']"


def test_without_flock_brokers_and_tiers_refuse(tmp_path: Path) -> None:
    """Where they cannot be alone they do not start."""
    program = """
import sys
from penstock.errors import PenstockError
from pathlib import Path
from penstock.sharing.broker import _lock_socket, _refuse_path
from penstock.cache.disk import DiskTier
from contextlib import ExitStack

def serve():
    with ExitStack() as undo, _refuse_path(Path(sys.argv[1], "s")):
        _lock_socket(Path(sys.argv[1], "s"), undo)

for start in (serve, lambda: DiskTier.open(sys.argv[1], 1, 1, b"x" * 16)):
    try:
        start()
    except PenstockError as error:
        print(error)
"""
    said = run_unlocked(program, tmp_path).splitlines()
    assert len(said) == 2, said
    assert all("No locks available" in line for line in said)
