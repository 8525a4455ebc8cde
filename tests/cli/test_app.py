"""The command line."""

from __future__ import annotations

import gzip
import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import typer

import penstock
from penstock.cli import app
from penstock.cli.app import LazyGroup
from penstock.index.formats import FORMATS
from penstock_bench.cli import bench
from tests.command import run
from tests.slices import first


@pytest.fixture
def photos(tmp_path: Path) -> Path:
    """Three files in two classes, written long ago."""
    root = tmp_path / "photos"
    for number, name in enumerate(("cat/1.jpg", "cat/2.jpg", "dog/1.jpg")):
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"x" * 1000 * (number + 1))
    for folder in (root, root / "cat", root / "dog"):
        os.utime(folder, ns=(10**18 + 1, 10**18 + 1))
    return root


def test_as_a_process():
    """Standard output, standard error and the exit code are what the other tests find in theirs."""
    for arguments, code in ((("formats", "--json"), 0), (("inspect", "none"), 1)):
        command = [sys.executable, "-m", "penstock", *arguments]
        done = subprocess.run(command, capture_output=True, text=True)
        assert (done.stdout, done.stderr, done.returncode) == run(*arguments, code=code)


@pytest.mark.parametrize("arguments", first(1, [["formats"], ["--help"], ["formats", "--json"]]))
def test_a_full_disk_is_one_line(arguments):
    """Of the file that the output goes to."""
    command = [sys.executable, "-m", "penstock", *arguments]
    with open("/dev/full", "w") as full:
        done = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, text=True)
    assert done.returncode == 1
    assert done.stderr == (
        "penstock: cannot write the output: No space left on device: make room for it\n"
    )


@pytest.mark.parametrize("arguments", first(1, [["inspect", "é"], ["--help"], ["formats"]]))
def test_any_output_takes_any_text(tmp_path, arguments):
    """Outputs that are closed, of a small encoding, or whose reader has left after a line."""
    (tmp_path / "é").mkdir()
    (tmp_path / "é" / os.fsdecode(b"\xff.bin")).write_bytes(b"x")
    command = [sys.executable, "-m", "penstock", *arguments]
    for closed in ([1], [2], [1, 2]):
        done = subprocess.run(
            command, cwd=tmp_path, preexec_fn=lambda closed=closed: [os.close(fd) for fd in closed]
        )
        assert done.returncode == 0
    for encoding in ("ascii", "latin-1", "utf-8"):
        environment = {**os.environ, "PYTHONIOENCODING": encoding}
        done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True)
        assert (done.returncode, done.stderr) == (0, b"")
        assert done.stdout
    reading, writing = os.pipe()
    os.close(reading)
    done = subprocess.run(command, cwd=tmp_path, stdout=writing, stderr=subprocess.PIPE)
    os.close(writing)
    assert (done.returncode, done.stderr) == (128 + signal.SIGPIPE, b"")


def test_version():
    """The version alone, for scripts and reports of faults."""
    assert run("--version").stdout == f"penstock {penstock.__version__}\n"


def test_index_saves_once_and_says_so(photos):
    """The first run makes the index, the second finds it fresh, --force makes it anew."""
    first = run("index", photos).stdout
    assert "photos: tree, 3 samples, 2 classes, 5.9 KiB in 3 files" in first
    assert f"s: {photos}.penstock" in first
    assert "index is up to date" in run("index", photos).stdout
    assert "index made in" in run("index", photos, "--force").stdout


def test_records_are_indexed_anew_as_they_were(tmp_path):
    """The record size need be said once; --force repairs a damaged sidecar where it is said."""
    path = tmp_path / "x.bin"
    path.write_bytes(bytes(120))
    assert "30 samples" in run("index", path, "--dtype", "float32").stdout
    path.write_bytes(bytes(240))
    assert "60 samples" in run("index", path).stdout
    Path(f"{path}.penstock").write_bytes(b"damaged" * 20)
    assert "record_bytes=" in run("index", path, "--force", code=1).stderr
    done = run("index", path, "--record-bytes", 40, "--force")
    assert "6 samples" in done.stdout
    assert "120 samples" not in done.stderr


def test_inspect_shows_and_writes_nothing(photos):
    """Samples, sizes, labels, the first samples, and that no index is saved."""
    text = run("inspect", photos).stdout
    for part in ("3 samples", "fingerprint", "sizes", "labels: 2", "cat/1.jpg", "not saved"):
        assert part in text
    assert not os.path.exists(f"{photos}.penstock")


def test_splits_are_listed_and_indexed(tmp_path, monkeypatch):
    """inspect lists the splits of a folder and their sizes; each choice has its own index."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    for name in ("train-0", "train-1", "test-0"):
        (tmp_path / "data").mkdir(exist_ok=True)
        (tmp_path / f"data/{name}.jsonl").write_text('{"a": 1}\n')
        os.utime(tmp_path / f"data/{name}.jsonl", (1, 1))
    os.utime(tmp_path / "data", (1, 1))
    said = " ".join(run("inspect", tmp_path / "data", code=1).stderr.split())
    assert "has the splits test (1 file, 9 bytes), train (2 files, 18 bytes)" in said
    assert "2 samples" in run("inspect", tmp_path / "data", "--option", "split=train").stdout
    for split, done in (("train", "made in"), ("test", "made in"), ("train", "is up to date")):
        text = run("index", tmp_path / "data", "--option", f"split={split}").stdout
        assert f"index {done}" in text
    assert ": fresh" in run("inspect", tmp_path / "data", "--option", "split=train").stdout


def test_inspect_says_what_is_unpacked_together(tmp_path):
    """Of compressed lines the bytes are those stored, and the lines of a frame come together."""
    (tmp_path / "x.jsonl.gz").write_bytes(gzip.compress(b'{"a": 1}\n' * 900))
    text = " ".join(run("inspect", tmp_path / "x.jsonl.gz").stdout.split())
    assert "a sample on average as stored; 900 are unpacked together, for one as well" in text


def test_inspect_as_json(photos, tmp_path):
    """The same as one JSON object."""
    run("index", photos)
    report = json.loads(run("inspect", photos, "--json").stdout)
    assert report["samples"] == 3
    assert report["samples_per_label"] == {"cat": 2, "dog": 1}
    assert report["sidecars"] == {f"{photos}.penstock": "fresh"}
    np.save(tmp_path / "x.npy", np.zeros((5, 2, 3), np.float32))
    report = json.loads(run("inspect", tmp_path / "x.npy", "--json").stdout)
    assert report["fields"] == [{"name": "data", "dtype": "<f4", "shape": [2, 3]}]


def test_verify_finds_changed_files(photos):
    """A file rewritten in place does not change its folder; --verify compares each file."""
    run("index", photos)
    assert "verified: 3 files" in run("inspect", photos, "--verify").stdout
    (photos / "cat/2.jpg").write_bytes(b"y" * 2000)
    assert "cat/2.jpg is not as it was indexed" in run("inspect", photos, "--verify", code=1).stderr


def test_verify_finds_a_damaged_sidecar(photos):
    """The damage is named, and the exit code says so too."""
    run("index", photos)
    sidecar = Path(f"{photos}.penstock")
    content = bytearray(sidecar.read_bytes())
    content[-1] ^= 255
    sidecar.write_bytes(content)
    assert "damaged: " in run("inspect", photos, "--verify", code=1).stdout


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["index", "none"], "none does not exist"),
        (["inspect", "none"], "none does not exist"),
        (["index", "x.bin", "--record-bytes", "7"], "3 bytes are left over"),
        (["index", "x.bin", "--dtype", "u1", "--shape", "3,b"], "--shape is '3,b'"),
        (["index", "x.bin", "--format", "recrods"], "did you mean 'records'"),
        (["index", "empty"], "holds no files"),
    ],
)
def test_errors_are_one_message(arguments, message, tmp_path):
    """Exit code 1, one line on standard error, nothing on standard output, nothing written."""
    (tmp_path / "x.bin").write_bytes(bytes(10))
    (tmp_path / "empty").mkdir()
    done = run(*arguments, folder=tmp_path, code=1)
    assert message in done.stderr
    assert done.stderr.startswith("penstock: ")
    assert done.stderr.count("\n") == 1
    assert done.stdout == ""
    assert sorted(os.listdir(tmp_path)) == ["empty", "x.bin"]


def test_a_misspelled_option_is_refused_with_a_hint(photos):
    """Exit code 2, as usual for wrong usage."""
    assert "--force" in run("index", photos, "--forse", code=2).stderr


def test_formats_are_listed():
    """Every format with what it is and its options, as a table and as JSON."""
    text = run("formats").stdout
    listed = json.loads(run("formats", "--json").stdout)
    assert [each["name"] for each in listed] == list(FORMATS)
    for name, entry in FORMATS.items():
        assert name in text
        assert list(entry.options) == next(e for e in listed if e["name"] == name)["options"]


def test_options_of_a_format_by_name(tmp_path):
    """--option passes any option on; what is no NAME=VALUE, or twice there, is refused."""
    path = tmp_path / "x.bin"
    path.write_bytes(bytes(120))
    assert "4 samples" in run("inspect", path, "--option", "record_bytes=30").stdout
    assert "NAME=VALUE" in run("inspect", path, "--option", "record_bytes", code=1).stderr
    twice = ["--record-bytes", 30, "--option", "record_bytes=30"]
    assert "given twice" in run("inspect", path, *twice, code=1).stderr


@pytest.mark.parametrize("command", [[], ["index"], ["inspect"]])
def test_help_teaches(command):
    """Every page has a sentence, and every command examples."""
    text = run(*command, "--help").stdout
    assert "penstock index /data" in text or "inspect" in text


def test_names_that_are_no_text_or_look_like_markup_are_shown(tmp_path):
    """Bytes that are no UTF-8 and square brackets neither crash nor vanish."""
    folder = tmp_path / "[bold]x"
    folder.mkdir()
    Path(os.fsdecode(os.fsencode(folder) + b"/\xff[red]")).write_text("a")
    text = run("inspect", folder).stdout
    assert "[bold]x" in text
    assert "[red]" in text
    assert json.loads(run("inspect", folder, "--json").stdout)["samples"] == 1


def test_inspect_shows_samples_of_chunks_and_pieces(tmp_path):
    """Where a sample lies is said in words if it has no extent of its own: row groups, frames, and
    rows of lists."""
    columns = pa.table({"messages": [[{"role": "user"}], []], "input_ids": [[1, 2], [3]]})
    pq.write_table(columns, tmp_path / "x.parquet")
    with pa.ipc.new_stream(tmp_path / "x.arrow", columns.schema) as writer:
        writer.write_table(columns)
    (tmp_path / "x.jsonl.gz").write_bytes(gzip.compress(b'{"a": 1}\n{"a": 2}\n'))
    for name in ("x.parquet", "x.arrow", "x.jsonl.gz"):
        text = run("inspect", tmp_path / name).stdout
        assert f"/{name} at byte " in text
        if name != "x.jsonl.gz":
            assert "field 'input_ids': lists of int64, " in text


def test_interrupting_leaves_nothing_half_written(tmp_path):
    """Ctrl-C while listing: exit code 130, no sidecar and no temporary file."""
    root = tmp_path / "many"
    for number in range(400):
        (root / str(number)).mkdir(parents=True)
        (root / str(number) / "x").touch()
    code = (
        "import os, signal, penstock.cli.app, penstock.engine.store as s\n"
        "scan = s._core.scan_folder\n"
        "class Core:\n"
        "    stat_files = staticmethod(s._core.stat_files)\n"
        "    def scan_folder(self, *a):\n"
        "        os.kill(os.getpid(), signal.SIGINT)\n"
        "        return scan(*a)\n"
        "s._core = Core()\n"
        "penstock.cli.main()\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, "index", str(root)], capture_output=True, text=True
    )
    assert done.returncode in (130, -signal.SIGINT), done.stderr
    assert "Traceback" not in done.stderr
    assert os.listdir(tmp_path) == ["many"]


@pytest.mark.parametrize("words", [(), ("bench",)])
def test_help_of_a_group_says_what_the_help_of_each_command_begins_with(words):
    """The summaries that stand beside the names are the first paragraphs of the commands' help."""
    group = typer.main.get_group(bench.app if words else app.app)
    assert isinstance(group, LazyGroup)
    assert set(group.list_commands(None)) == set(group.lazy)
    for name, command in group.lazy.items():
        loaded = group.load(name)
        assert " ".join(loaded.help.split("\n\n")[0].split()) == command.summary
        assert name in run(*words, "--help").stdout


def test_help_needs_none_of_the_packages_of_commands():
    """The help of all commands is there without numpy, and without the core."""
    code = (
        "import sys\n"
        "sys.modules |= dict.fromkeys(['numpy', 'pydantic', 'yaml', 'penstock._core'])\n"
        "import penstock.cli\n"
        "penstock.cli.main()\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, "--help"], capture_output=True, text=True, check=True
    )
    assert "checkpoint" in done.stdout


def test_without_its_packages_the_command_line_says_what_to_install():
    """No traceback where typer is missing."""
    code = "import sys; sys.modules['typer'] = None; import penstock.cli.app"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 1
    assert done.stderr == "penstock needs typer: pip install typer (or 'penstock[cli]')\n"
    done = subprocess.run([sys.executable, "-c", code, "bench"], capture_output=True, text=True)
    assert done.stderr == "penstock bench needs typer: pip install typer (or 'penstock[bench]')\n"


def test_inspect_says_which_shuffle(tmp_path: Path) -> None:
    """--shuffle prints what "auto" would choose, why, and the quality of it."""
    (tmp_path / "rows.bin").write_bytes(bytes(64 * 500))
    asked = ["inspect", str(tmp_path / "rows.bin"), "--record-bytes", "64", "--shuffle"]
    said = run(*asked)
    assert 'auto chose shuffle="' in said.stdout
    assert "shuffle quality" in said.stdout
    found = json.loads(run(*asked, "--batch-size", "8", "--ranks", "2", "--json").stdout)["shuffle"]
    assert found["shuffle"] in ("exact", "blocked")
    assert 0 <= found["quality"] <= 1
