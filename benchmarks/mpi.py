"""The start of ranks of MPI."""

from __future__ import annotations

import importlib.util
import os
import shutil
import subprocess
import sys
from pathlib import Path


def launch() -> tuple[str, ...]:
    """The mpiexec of this Python, or of the system; nothing where there is none, or no mpi4py."""
    if importlib.util.find_spec("mpi4py") is None:
        return ()
    beside = Path(sys.executable).parent
    found = shutil.which("mpiexec", path=f"{beside}{os.pathsep}{os.environ['PATH']}")
    if found is None:
        return ()
    version = subprocess.run([found, "--version"], capture_output=True, text=True, check=True)
    is_open = "Open" in version.stdout  # it wants to be told that this is meant
    return (found, *(["--allow-run-as-root", "--oversubscribe"] if is_open else []))
