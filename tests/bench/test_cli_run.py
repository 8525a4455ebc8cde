"""`penstock bench run`, as users type it."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest

import penstock
from penstock_bench.contenders import FORMATS, NO_SAMPLES, PACKAGES
from penstock_bench.data import data_paths
from penstock_bench.data.generate import generate_data
from penstock_bench.ranks import launch
from penstock_bench.results import dlio, record
from penstock_bench.results.dlio import read_dlio
from penstock_bench.run import run_workload as measured
from penstock_bench.workload.distribution import Distribution
from penstock_bench.workload.reading import as_dict, preset_names, read_workload
from tests import warm
from tests.bench.small import job
from tests.command import Ran
from tests.command import run as in_process
from tests.slices import first

SOURCE = str(Path(penstock.__file__).parents[1])

WORKLOAD = """
model: {name: small}
framework: pytorch
workflow: {generate_data: true, train: true}
dataset: {data_folder: DATA, format: npz, num_files_train: 12, record_length_bytes: 256,
          num_samples_per_file: 4}
reader: {data_loader: pytorch, batch_size: 4, read_threads: 0, sample_shuffle: seed}
train: {epochs: 2, computation_time: 0.001}
"""


def command(*arguments: object) -> list[str]:
    return [sys.executable, "-m", "penstock", "bench", "run", *map(str, arguments)]


def run(*arguments: object, code: int = 0, folder: Path | None = None):
    done = warm.run(
        command(*arguments),
        capture_output=True,
        text=True,
        cwd=folder,
        env={**os.environ, "COLUMNS": "200", "TERM": "dumb", "PYTHONPATH": SOURCE},
    )
    assert done.returncode == code, done.stdout + done.stderr
    assert "Traceback" not in done.stderr
    return done


def here(*arguments: object, code: int = 0) -> Ran:
    """The same in this process."""
    return in_process("bench", "run", *arguments, code=code, COLUMNS="200")


@pytest.fixture
def small(tmp_path: Path) -> Path:
    path = tmp_path / "small.yaml"
    path.write_text(WORKLOAD.replace("DATA", str(tmp_path / "data")))
    return path


@pytest.mark.long
def test_two_loaders_on_two_ranks(small, tmp_path):
    """Data is generated, each loader runs, every sample is compared, the table names both."""
    out = tmp_path / "out"
    loaders = ("--loader", "penstock", "--loader", "torch")
    done = run(small, "--ranks", 2, "--verify", "--no-verdict", *loaders, "--output", out)
    assert "small, 2 ranks" in done.stdout
    values = json.loads((out / "record.json").read_text())
    assert values["command"].startswith("penstock bench run ")
    assert values["workload"]["dataset"]["num_files_train"] == 12
    assert [each["loader"] for each in values["runs"]] == ["penstock", "torch"]
    for each in values["runs"]:
        assert each["verified"] is True
        assert [epoch["samples"] for epoch in each["epochs"]] == [48, 48]
        assert [epoch["bytes"] for epoch in each["epochs"]] == [48 * 256] * 2
        assert 0 < each["au"]["ceiling"] <= 1
    names = {"record.json", "report.html", "penstock", "torch"}
    assert {path.name for path in out.iterdir()} == names


@pytest.mark.long
@pytest.mark.parametrize("name", [name for name in PACKAGES if name not in NO_SAMPLES])
def test_every_loader_that_is_installed(small, tmp_path, name):
    """Delivers what is on disk, all of it, in each epoch; those that convert it, after that."""
    missing = [package for package in PACKAGES[name] if find_spec(package) is None]
    if missing:
        pytest.skip(f"--loader {name} needs {missing[0]}: pip install {missing[0]}")
    (format,) = FORMATS.get(name, ("npz",))
    out, changed = tmp_path / "out", f"++workload.dataset.format={format}"
    run(
        small,
        changed,
        "--loader",
        name,
        "--verify",
        "--no-verdict",
        "--no-control",
        "--output",
        out,
    )
    (found,) = json.loads((out / "record.json").read_text())["runs"]
    assert found["verified"] is True
    assert [epoch["samples"] for epoch in found["epochs"]] == [48, 48]
    assert [epoch["bytes"] for epoch in found["epochs"]] == [48 * 256] * 2


@pytest.mark.parametrize("name", NO_SAMPLES)
def test_nothing_to_verify(small, tmp_path, name):
    """A loader that delivers no decoded samples is refused before anything is read."""
    done = run(small, "--loader", name, "--verify", "--output", tmp_path / "out", code=1)
    assert f"--verify compares decoded samples, which --loader {name} does not" in done.stderr
    assert not (tmp_path / "out").exists()


def test_bytes_as_they_are_stored(small, tmp_path):
    """All bytes of all files, in each epoch; files of several samples are refused."""
    out, changed = tmp_path / "out", "++workload.dataset.num_samples_per_file=1"
    options = ("--loader", "penstock-bytes", "--no-verdict", "--no-control", "--output", out)
    assert "files of 4 samples" in run(small, *options, code=1).stderr
    shutil.rmtree(out, ignore_errors=True)
    run(small, changed, f"++workload.dataset.data_folder={tmp_path}/one", "--generate", *options)
    (found,) = json.loads((out / "record.json").read_text())["runs"]
    stored = sum(path.stat().st_size for path in (tmp_path / "one").rglob("*.npz"))
    assert [epoch["samples"] for epoch in found["epochs"]] == [12, 12]
    assert [epoch["bytes"] for epoch in found["epochs"]] == [stored] * 2


LARGE = {"torch", "scipy", "h5py", "pyarrow", "mpi4py", "matplotlib", "pandas", "zmq", "PIL"}
"""Modules that take long to import. (DLIO takes 4 s to start, and has to have MPI: defect 23.)"""


@pytest.mark.long
@pytest.mark.parametrize(("format", "wanted"), first(1, [("npz", set()), ("hdf5", {"h5py"})]))
def test_only_what_a_workload_wants_is_imported(small, tmp_path, format, wanted):
    """No large module more is imported, from the command to the page of results."""
    for package in wanted:
        pytest.importorskip(package)
    arguments = [small, f"++workload.dataset.format={format}", "--output", tmp_path / "out"]
    python, *words = command(*arguments)
    done = subprocess.run(
        [python, "-X", "importtime", *words],
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": SOURCE},
    )
    assert done.returncode == 0, done.stderr
    lines = [line for line in done.stderr.splitlines() if line.startswith("import time:")]
    imported = {line.rpartition("|")[2].strip().partition(".")[0] for line in lines}
    assert "numpy" in imported
    assert imported & LARGE == wanted


@pytest.mark.long
def test_the_verdict_is_said(small, tmp_path):
    """The machine is measured, and what binds is named."""
    assert "binds at" in run(small, "--output", tmp_path / "out").stdout
    (each,) = json.loads((tmp_path / "out" / "record.json").read_text())["runs"]
    assert each["roofline"]["bound"] in {c["resource"] for c in each["roofline"]["ceilings"]}


@pytest.mark.long
def test_overrides_repeats_and_staging(small, tmp_path):
    near, out = tmp_path / "near", tmp_path / "out"
    run(small, "++workload.train.epochs=1", "--repeat", 2, "--stage", near, "--limit", 4,
        "--no-control", "--no-verdict", "--output", out)  # fmt: skip
    values = json.loads((out / "record.json").read_text())
    assert values["overrides"] == ["++workload.train.epochs=1"]
    assert [each["repeat"] for each in values["runs"]] == [1, 2]
    for each in values["runs"]:
        assert each["staging_s"] > 0
        assert each["au"]["ceiling"] is None
        (epoch,) = each["epochs"]
        assert len(epoch["ranks"][0]["wait_s"]) == 4
    assert list(near.iterdir()) == []


@pytest.mark.parametrize("cache", ["cold", "as-is"])
def test_cold_copies_are_not_in_memory(small, tmp_path, cache):
    """Fresh copies are read from the disk if the page cache is to be cold."""
    run(small, "++workload.train.epochs=1", "--stage", tmp_path / "near", "--limit", 4,
        "--cache", cache, "--no-control", "--no-verdict", "--output", tmp_path / "out")  # fmt: skip
    (each,) = json.loads((tmp_path / "out" / "record.json").read_text())["runs"]
    cached = each["epochs"][0]["cached_before"]
    assert (cached["cached_bytes"] == 0) == (cache == "cold"), cached


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--loader", "tensorflow"), "--loader is 'tensorflow': use one of penstock, torch"),
        (
            ("++workload.reader.batch_size=100",),
            "0 steps of train: 12 files x 4",
        ),
        (("++workload.dataset.num_files_train=13",), "13 files expected"),
        (("++workload.reader.batchsize=1",), "did you mean 'reader.batch_size'?"),
    ],
)
def test_what_cannot_run_is_one_message(small, tmp_path, arguments, message):
    """And no results."""
    generate_data(read_workload(small).dataset, ["train"])
    arguments = ("++workload.workflow.generate_data=false", *arguments)
    done = here(small, *arguments, "--output", tmp_path / "out", code=1)
    assert message in done.stderr
    assert not (tmp_path / "out").exists()


def test_data_that_are_not_there(small, tmp_path):
    """The error has the whole command that writes them; --generate does it, too."""
    off = "++workload.workflow.generate_data=false"
    done = here(small, off, "--output", tmp_path / "out", code=1)
    assert f"or generate the data: penstock bench generate {small} {off}\n" in done.stderr
    quick = ("--no-control", "--no-verdict", "--generate")
    told = here(small, off, *quick, "--repeat", 2, "--output", tmp_path / "out").stdout
    assert f"page: {tmp_path / 'out' / 'report.html'}" in told
    assert re.search("- penstock(, run 2)? delivers", told)
    assert (tmp_path / "out" / "penstock-2").is_dir()


def test_results_that_cannot_be_written(small, tmp_path):
    """One message, before anything is generated or measured; a file in the way counts."""
    (tmp_path / "file").write_text("")
    done = here(small, "--output", tmp_path / "file" / "out", code=1)
    assert f"{tmp_path / 'file' / 'out'} cannot be written: Not a directory" in done.stderr
    assert not (tmp_path / "out").exists()


def test_a_full_disk_is_one_message(small, tmp_path, small_disk):
    """The results so far are shown all the same."""
    (small_disk / "x").write_bytes(bytes(os.statvfs(small_disk).f_bavail * 4096 - 8192))
    done = here(small, "--no-verdict", "--output", small_disk / "out", code=1)
    assert "samples/s" in done.stdout
    assert "No space left on device: make room there" in done.stderr


def test_access_keys_are_not_written(small, tmp_path):
    """Neither as overrides nor in the command; the configuration lies where hydra.* wants it. A
    whole number of seconds is a time as any."""
    out, quick = tmp_path / "out", "++workload.train.computation_time=0"
    key = "++workload.storage.storage_options.secret_access_key=HUSH"
    here(small, quick, key, "++hydra.output_subdir=dlio_config", "--no-verdict", "--output", out)
    written = [path for path in out.rglob("*") if path.is_file()]
    assert out / "dlio_config" / "config.yaml" in written
    assert not any("HUSH" in path.read_text() for path in written)


@pytest.mark.long
@pytest.mark.parametrize("heeds", first(1, [False, True]))
def test_ending_a_run_ends_all_of_it(small, tmp_path, heeds):
    """SIGTERM leaves neither ranks nor staged data, nor do ranks that have to be killed."""
    near = tmp_path / "near"
    (tmp_path / "slow_of_test.py").write_text(
        "import signal, time\n"
        "def loader():\n"
        + ("" if heeds else "    signal.signal(signal.SIGTERM, signal.SIG_IGN)\n")
        + "    print('begun', flush=True)\n"
        "    time.sleep(60)\n"
        "    return []\n"
    )
    process = warm.Popen(
        command(small, "--loader", "slow_of_test:loader", "--ranks", 2, "--stage", near),
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": SOURCE},
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    assert process.stdout.read(5) == "begun"
    process.send_signal(signal.SIGTERM)
    assert process.wait(240) == 143
    assert "Traceback" not in process.stdout.read()  # all that had it open have ended
    assert list(near.iterdir()) == []


TRAINING = [name for name in preset_names() if not name.startswith("llama_")]


@pytest.mark.parametrize("name", first(3, TRAINING))
def test_results_of_every_bundled_workload_are_read_again(tmp_path, name):
    """DLIO's post-processor crashes on DLIO's own output, and `data_loader: synthetic` crashes
    (defect 15). Here: the steps without data, and what they leave read as DLIO's."""
    found = read_workload(name, warn=lambda text: None)
    assert found.workflow.train
    nothing = Distribution.constant(0.0001)
    found = replace(
        found,
        workflow=replace(found.workflow, checkpoint=False, evaluation=False),
        train=replace(found.train, computation_time=nothing, epochs=2, total_training_steps=None),
    )
    paths = data_paths(replace(found.dataset, num_files_train=1), "train")
    given = replace(job(found, paths, "none"), limit=4)
    walks = launch(2, lambda crew: measured(given, crew))
    assert walks is not None
    values = record.make_run(given, walks)
    dlio.write(tmp_path, given, walks, values, config=as_dict(found), overrides=[])
    again = read_dlio(tmp_path)
    (imported,) = again["runs"]
    assert again["ranks"] == 2
    assert again["workload"]["model"]["name"] == found.model.name
    # Its clock goes from the first step's end to that of the block, of each epoch's slowest rank.
    epochs = zip(*([walked.stamps for walked in rank.epochs] for rank in walks), strict=True)
    spent = sum(max((s.ended - s.computed[0]) * 1e-9 for s in epoch) for epoch in epochs)
    expected = 2 * found.reader.batch_size * 3 * 2 / spent
    assert imported["samples_per_s"] == pytest.approx(expected, rel=0.05)
    steps = [len(rank["wait_s"]) for epoch in imported["epochs"] for rank in epoch["ranks"]]
    assert steps == [4] * 4
    assert np.isfinite(values["dlio"]["train_au_mean_percentage"])


@pytest.mark.long
def test_checkpoints_alone(tmp_path):
    """A workload that does not train saves and loads checkpoints."""
    path = tmp_path / "saves.yaml"
    path.write_text(
        f"""
        model: {{name: saves, model_size_bytes: 5000}}
        framework: pytorch
        workflow: {{train: false, checkpoint: true}}
        checkpoint: {{checkpoint_folder: {tmp_path / "saved"}, num_checkpoints_write: 2,
                      num_checkpoints_read: 2, time_between_checkpoints: 0}}
        """
    )
    out = tmp_path / "out"
    done = run(path, "--ranks", 2, "--verify", "--output", out)
    assert "save_checkpoint_io_mean_GB_per_second: " in done.stdout
    (found,) = json.loads((out / "record.json").read_text())["runs"]
    assert [each["verified"] for each in found["checkpoints"]["loads"]] == [True, True]
    assert len(list((tmp_path / "saved").iterdir())) == 2


@pytest.mark.long
def test_ranks_that_mpiexec_starts(small, tmp_path):
    """The first writes what all have measured; each generates its share."""
    mpiexec = shutil.which("mpiexec", path=str(Path(sys.executable).parent)) or "mpiexec"
    out = tmp_path / "out"
    done = subprocess.run(
        [mpiexec, "-n", "2", *command(small, "--no-verdict", "--verify", "--output", out)],
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": SOURCE},
        timeout=100,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("small, 2 ranks") == 1
    values = json.loads((out / "record.json").read_text())
    assert values["ranks"] == 2
    (each,) = values["runs"]
    assert [epoch["samples"] for epoch in each["epochs"]] == [48, 48]
