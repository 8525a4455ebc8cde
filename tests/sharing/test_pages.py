"""The commands of docs/sharing that need hosts, a group or Slurm: as printed, on this host.

Names of hosts become addresses of this one, the group is one of ours, and `srun` is left out.
"""

from __future__ import annotations

import contextlib
import grp
import os
import re
import shutil
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from docsite.blocks import find_blocks

from tests import ROOT
from tests.sharing.tenants import Job, environ

pytestmark = pytest.mark.page
FILE = Path(__file__).relative_to(ROOT)
JOB = "import os, socket; socket.socket(socket.AF_UNIX).connect(os.environ['PENSTOCK_BROKER'])"


def read_blocks(page: str, stand_ins: dict[str, str]) -> list[list[str]]:
    """The lines of the blocks that a page leaves to this file, with stand-ins for other things."""
    blocks = find_blocks((ROOT / "docs" / "sharing" / page).read_text())
    texts = [block.text for block in blocks if block.ran_by == str(FILE)]
    for name, stand_in in stand_ins.items():
        assert any(name in text for text in texts), f"{page} no longer says {name}"
        texts = [text.replace(name, stand_in) for text in texts]
    return [[re.sub(r" &? *(#.*)?$", "", line) for line in text.splitlines()] for text in texts]


@contextlib.contextmanager
def serve(command: str, folder: Path) -> Iterator[None]:
    """A broker that a line starts, serving."""
    with subprocess.Popen(
        ["bash", "-c", f"exec {command}"],
        stderr=subprocess.PIPE,
        text=True,
        cwd=folder,
        env=variables(),
    ) as process:
        try:
            assert process.stderr is not None
            said = process.stderr.readline()
            assert "dividing" in said, said + process.stderr.read()
            yield
        finally:
            process.kill()


def execute(lines: list[str], folder: Path) -> None:
    """Run lines that end."""
    subprocess.run(["bash", "-ec", "\n".join(lines)], cwd=folder, env=variables(), check=True)


def variables() -> dict[str, str]:
    """The environment of the commands: that of an installed penstock."""
    return environ(PATH=os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]]))


@pytest.fixture
def folder() -> Iterator[Path]:
    """A folder that members of a group can enter."""
    folder = Path(tempfile.mkdtemp(prefix="penstock-test-", dir="/tmp"))
    folder.chmod(0o755)
    yield folder
    shutil.rmtree(folder)


@pytest.mark.skipif(not shutil.which("openssl"), reason="no openssl, which makes the page's key")
def test_hosts_join_the_broker_of_the_storage(folder: Path) -> None:
    """A job of a host is leased what its broker has been leased of the storage."""
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{found.getsockname()[1]}"
    places = {"0.0.0.0:7077": address, "storage-1:7077": address, "/run/penstock": str(folder)}
    ((key, storage, host),) = read_blocks("hosts.md", places)
    execute([key], folder)
    with serve(storage, folder), serve(f"{host} --socket {folder}/host.sock", folder):
        wants = {"samples_per_s": 20e3, "cpu_s": 1e-6, "storage_bytes": 1e6}
        job = Job(folder / "host.sock", "much", wants)
        try:
            job.until(lambda lease: lease is not None and lease["bytes_per_s"] == 4e9)
        finally:
            job.end()


def test_a_group_and_an_allocation_find_their_broker(folder: Path) -> None:
    """A broker serves a group where they know it; the jobs of an allocation connect to its own."""
    group = f"group {grp.getgrgid(os.getgid()).gr_name}"
    places = {"/run/penstock": f"{folder}/run", "/tmp/penstock-$SLURM_JOB_ID": str(folder)}
    slurm = {"srun --overlap --ntasks-per-node=1 ": "", "srun ": "", "group research": group}
    shared, allocation = read_blocks("set-up.md", {**places, **slurm})
    (folder / "run").mkdir(mode=0o755)
    with serve(shared[0], folder):
        assert (folder / "run" / "broker.sock").is_socket()
    for name in ("a.py", "b.py"):
        (folder / name).write_text(JOB)
    with serve(allocation[0], folder):
        execute(allocation[1:], folder)
