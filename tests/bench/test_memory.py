"""The memory of a run: what the kernel says a process had at most, with few files and many."""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import penstock

SOURCE = str(Path(penstock.__file__).parents[1])
MIB = 1 << 20
FILE_BYTES = 256
"""The most memory that a file more may cost: its path and its row in the index. (DLIO formats the
whole list of its samples for each one that it reads: defect 2.)"""
NOISE = 3 * MIB
"""By how much runs of the same differ, and their results."""


def written(folder: Path, files: int, side: int) -> Path:
    """Files of a sample of side x side bytes, and the workload that reads them."""
    text = io.BytesIO()
    np.savez(text, x=np.zeros((side, side, 1), np.uint8), y=np.zeros(1, np.int64))
    (folder / "train").mkdir(parents=True)
    for number in range(files):
        path = folder / "train" / f"img_{number:05d}_of_{files}.npz"
        path.write_bytes(text.getvalue())
    workload = folder / "workload.yaml"
    workload.write_text(
        f"""
        framework: pytorch
        dataset: {{data_folder: {folder}, format: npz, num_files_train: {files},
                   record_length_bytes: {side**2}}}
        reader: {{data_loader: pytorch, batch_size: 4, read_threads: 0, sample_shuffle: seed}}
        train: {{computation_time: 0}}
        """
    )
    return workload


def peak_bytes(workload: Path, loader: str, *more: str) -> int:
    """The most memory of `penstock bench run` at a time, as the kernel tells the parent."""
    command = [
        sys.executable, "-m", "penstock", "bench", "run", str(workload), "--loader", loader,
        "--no-control", "--no-verdict", "--output", str(workload.parent / "out"), *more,
    ]  # fmt: skip
    environment = {**os.environ, "PYTHONPATH": SOURCE}
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, env=environment)
    _, status, used = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    assert process.returncode == 0
    return used.ru_maxrss * 1024


LOADERS = ["penstock", pytest.param("torch", marks=pytest.mark.long)]


@pytest.mark.long
@pytest.mark.parametrize("loader", LOADERS)
def test_files_that_are_not_read_cost_little(tmp_path, loader):
    """50 steps among 1,000 files, and among 8,000."""
    few, many = (
        peak_bytes(written(tmp_path / str(files), files, 8), loader, "--limit", "50")
        for files in (1000, 8000)
    )
    assert many - few <= 7000 * FILE_BYTES + NOISE


@pytest.mark.long
@pytest.mark.parametrize("loader", LOADERS)
def test_what_was_read_is_let_go(tmp_path, loader):
    """An epoch of 100 files of 256 KiB, and one of 800, which are 175 MiB more."""
    peaks = []
    for files in (100, 800):
        peaks.append(peak_bytes(written(tmp_path / str(files), files, 512), loader))
        values = json.loads((tmp_path / str(files) / "out" / "record.json").read_text())
        assert values["runs"][0]["epochs"][0]["bytes"] == files * 512**2
    assert peaks[1] - peaks[0] <= 8 * MIB
