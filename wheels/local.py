"""A wheel of this checkout for this Python, with the modules that are built already.

Tests try what a wheel's users see with it. It is for no other machine: `build.py` makes those.
"""

from __future__ import annotations

import base64
import hashlib
import subprocess
import sys
import sysconfig
import zipfile
from pathlib import Path

import penstock._core
import penstock_bench._replay
import penstock_sim._kernels

from . import ROOT


def make_local_wheel(folder: Path) -> Path:
    """Make the wheel in a folder; nothing is compiled. Takes seconds."""
    command = [sys.executable, "-m", "pip", "wheel", "-q", "--disable-pip-version-check"]
    command += ["--no-deps", "--no-build-isolation", "-C", "wheel.cmake=false"]
    command += ["-C", f"build-dir={folder / 'build'}", "-w", str(folder / "pure"), str(ROOT)]
    subprocess.run(command, check=True, capture_output=True)
    (pure,) = (folder / "pure").glob("*.whl")
    tag = f"cp{sys.version_info[0]}{sys.version_info[1]}"
    tag = f"{tag}-{tag}-{sysconfig.get_platform().replace('-', '_').replace('.', '_')}"
    name, version = pure.stem.split("-")[:2]
    wheel = folder / f"{name}-{version}-{tag}.whl"
    with zipfile.ZipFile(pure) as source:
        contents = {entry: source.read(entry) for entry in source.namelist()}
    about = f"{name}-{version}.dist-info"
    for module in (penstock._core, penstock_bench._replay, penstock_sim._kernels):
        path = Path(str(module.__file__))
        contents[f"{path.parent.name}/{path.name}"] = path.read_bytes()
    lines = contents[f"{about}/WHEEL"].decode().splitlines()
    kept = [line for line in lines if not line.startswith(("Tag:", "Root-Is-Purelib:"))]
    marks = [*kept, "Root-Is-Purelib: false", f"Tag: {tag}"]
    contents[f"{about}/WHEEL"] = "".join(f"{line}\n" for line in marks if line).encode()
    del contents[f"{about}/RECORD"]
    record = "".join(
        f"{entry},sha256={_digest(content)},{len(content)}\n" for entry, content in contents.items()
    )
    contents[f"{about}/RECORD"] = f"{record}{about}/RECORD,,\n".encode()
    with zipfile.ZipFile(wheel, "w", zipfile.ZIP_DEFLATED) as archive:
        for entry, content in contents.items():
            archive.writestr(entry, content)
    return wheel


def _digest(content: bytes) -> str:
    return base64.urlsafe_b64encode(hashlib.sha256(content).digest()).rstrip(b"=").decode()
