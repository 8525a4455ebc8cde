"""Python for aarch64 on another processor: Debian's packages, unpacked into a folder, under qemu.

Nothing is installed: apt works on a state of its own. It needs a Debian or Ubuntu with
qemu-user-static; `find_refusal` says what is missing elsewhere.
"""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
from pathlib import Path

from . import WORK

ROOT_FOLDER = WORK / "aarch64-root"
PACKAGES = [
    "python3.11-minimal",
    "libpython3.11-minimal",
    "libpython3.11-stdlib",
    "libc6",
    "libexpat1",
    "zlib1g",
    "libssl3",
    "libffi8",
    "libbz2-1.0",
    "liblzma5",
    "libgcc-s1",
    "libstdc++6",
    "libuuid1",
    "libcrypt1",
]


def find_refusal() -> str | None:
    """Say why Python for aarch64 cannot be run here; None if it can."""
    if platform.machine() == "aarch64":
        return None
    for program, package in (
        ("qemu-aarch64-static", "qemu-user-static"),
        ("apt-get", "a Debian system"),
        ("dpkg", "a Debian system"),
    ):
        if shutil.which(program) is None:
            return f"needs {package}"
    release = Path("/etc/os-release").read_text()
    if "VERSION_CODENAME=bookworm" not in release:
        return "needs Debian 12, whose Python is 3.11"
    return None


def prepare_python() -> list[str]:
    """Unpack Python once; the command that runs it."""
    if not (ROOT_FOLDER / "ready").exists():
        shutil.rmtree(ROOT_FOLDER, ignore_errors=True)
        state = ROOT_FOLDER / "apt"
        for folder in ("lists/partial", "archives/partial"):
            (state / folder).mkdir(parents=True)
        (state / "status").touch()
        options = {
            "APT::Architecture": "arm64",
            "APT::Architectures": "arm64",
            "Dir::State::Lists": state / "lists",
            "Dir::State::status": state / "status",
            "Dir::Cache::Archives": state / "archives",
            "Dir::Cache::pkgcache": "",
            "Dir::Cache::srcpkgcache": "",
            "APT::Sandbox::User": "root",
        }
        apt = ["apt-get", "-qq", *(f"-o{name}={value}" for name, value in options.items())]
        subprocess.run([*apt, "update"], check=True, capture_output=True)
        subprocess.run([*apt, "download", *PACKAGES], check=True, cwd=state, capture_output=True)
        for package in state.glob("*.deb"):
            subprocess.run(["dpkg", "-x", str(package), str(ROOT_FOLDER)], check=True)
        shutil.rmtree(state)
        (ROOT_FOLDER / "ready").touch()
    emulator = shutil.which("qemu-aarch64-static")
    assert emulator is not None  # `find_refusal` was asked
    return [emulator, "-L", str(ROOT_FOLDER), str(ROOT_FOLDER / "usr" / "bin" / "python3.11")]


def environment(site: Path) -> dict[str, str]:
    """Variables for that Python, with packages in a folder."""
    return {"PYTHONPATH": str(site), "PATH": "/nowhere", "HOME": os.environ.get("HOME", "/")}
