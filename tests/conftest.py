"""Settings of the whole suite."""

from __future__ import annotations

import gc
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

from tests import ROOT, warm

# Time limits belong to benchmarks: a shared machine may pause a test for a second, and be slow.
_patient = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow], print_blob=True)

# Each property is tried with the same examples every time. PENSTOCK_EXAMPLES=200 tries more.
examples = int(os.environ.get("PENSTOCK_EXAMPLES", "6"))
settings.register_profile("fixed", _patient, max_examples=examples, derandomize=True, database=None)
# With others every time: explore.py.
settings.register_profile("explore", _patient, max_examples=examples, database=None)
settings.load_profile(os.environ.get("PENSTOCK_PROFILE", "fixed"))

# Hundreds of processes start. Each would compile what it imports, which takes as long as all else
# that it does, where the environment forbids to keep the outcome.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
sys.dont_write_bytecode = False

# Shells start commands in the background with SIGINT ignored, which all processes inherit.
signal.signal(signal.SIGINT, signal.default_int_handler)

# Several workers share the cores, and threads of numpy or torch would only wait for each other.
for library in ("OMP", "OPENBLAS", "MKL"):
    os.environ.setdefault(f"{library}_NUM_THREADS", "1")
# Workers and the processes that they start iterate over sets in the same order every time.
os.environ.setdefault("PYTHONHASHSEED", "0")

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


def pytest_configure(config: pytest.Config) -> None:
    """Start the server of warm.py, once for all workers."""
    if not hasattr(config, "workerinput"):
        stack = ExitStack()
        config.add_cleanup(stack.close)
        folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="penstock-tests-"))
        os.environ["XDG_CACHE_HOME"] = folder  # nothing is left in the user's own, nor read there
        stack.enter_context(warm.serving(Path(folder) / "warm"))
        if workers := config.getoption("tx", None):
            command = f"popen//python={sys.executable} {warm.__file__}"
            config.option.tx = [command if each == "popen" else each for each in workers]


def pytest_runtest_setup() -> None:
    """A search ends in time: explore.py."""
    if time.monotonic() > float(os.environ.get("PENSTOCK_EXPLORE_UNTIL", "inf")):
        pytest.skip("the time of the search is over")


class _FailureNames:
    """Names a test as it fails: a run that is cut off has no summary."""

    def __init__(self, reporter: pytest.TerminalReporter) -> None:
        self.reporter = reporter

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.failed:
            self.reporter.write_line(f" {report.nodeid}")


def pytest_sessionstart(session: pytest.Session) -> None:
    """Name failures as they come."""
    if reporter := session.config.pluginmanager.get_plugin("terminalreporter"):
        session.config.pluginmanager.register(_FailureNames(reporter))


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """A search that ends early has tried others than the last one."""
    for item in items:
        if getattr(item, "originalname", "") in ("test_truncated", "test_damaged"):
            item.add_marker("wide")  # of FormatSuite, which has no marks of ours
    if seed := os.environ.get("PENSTOCK_EXPLORE_SEED"):
        random.Random(seed).shuffle(items)


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
