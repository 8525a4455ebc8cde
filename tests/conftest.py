"""Settings of the whole suite."""

import gc
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import settings

from tests import ROOT

# Time limits belong to benchmarks: a shared machine may pause a test for a second.
# PENSTOCK_EXAMPLES=1000 looks longer for what breaks a property.
examples = int(os.environ.get("PENSTOCK_EXAMPLES", "20"))
settings.register_profile("penstock", deadline=None, print_blob=True, max_examples=examples)
settings.load_profile("penstock")

# Hundreds of processes start. Each would compile what it imports, which takes as long as all else
# that it does, where the environment forbids to keep the outcome.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
sys.dont_write_bytecode = False

os.environ["PENSTOCK_BROKER"] = "/nowhere/broker.sock"  # whatever serves this machine
# Programs that tests start import what tests share.
os.environ["PYTHONPATH"] = os.pathsep.join(
    filter(None, [str(ROOT), os.environ.get("PYTHONPATH", "")])
)
os.environ.pop("COLUMNS", None)  # however wide a terminal this was started in
# Kernels are compiled where there is a GPU, and interpreted elsewhere, which Triton is told before
# it is imported.
if not any(map(os.path.exists, ("/dev/nvidiactl", "/dev/kfd"))):
    os.environ.setdefault("TRITON_INTERPRET", "1")


def pytest_collection_finish() -> None:
    """Garbage is looked for among what tests make, not in the libraries and thousands of tests."""
    gc.collect()
    gc.freeze()


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 96 KiB, where this user may mount one."""
    folder = tmp_path / "disk"
    folder.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=96k", "penstock-test", str(folder)]
    if shutil.which("mount") is None or subprocess.run(mount, capture_output=True).returncode:
        pytest.skip("file systems cannot be mounted here")
    try:
        yield folder
    finally:
        subprocess.run(["umount", str(folder)], check=True)
