"""The CPython interpreters of this machine, one of each version."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass

from . import STABLE_FROM

OLDEST, NEWEST = 11, 15  # minor versions of Python 3 that are looked for

_FACTS = """
import json, sys, sysconfig
print(json.dumps([list(sys.version_info[:2]), bool(sysconfig.get_config_var("Py_GIL_DISABLED")),
                  sys.implementation.name, sysconfig.get_path("include")]))
"""


@dataclass(frozen=True, order=True)
class Interpreter:
    """A CPython that can be run here; `threaded` is one without the global lock."""

    version: tuple[int, int]
    threaded: bool
    path: str

    @property
    def name(self) -> str:
        """The version as people write it: 3.13, or 3.13t without the global lock."""
        return f"{self.version[0]}.{self.version[1]}{'t' * self.threaded}"

    @property
    def tag(self) -> str:
        """The interpreter's own tag in names of wheels."""
        return f"cp{self.version[0]}{self.version[1]}"

    @property
    def is_stable(self) -> bool:
        """Whether one wheel for the stable ABI serves it, together with other versions."""
        return self.version >= STABLE_FROM and not self.threaded


def find_interpreters() -> list[Interpreter]:
    """The interpreters on PATH and those that pyenv and uv have, one a version, oldest first."""
    found: dict[str, Interpreter] = {}
    for path in list_candidates():
        interpreter = describe_interpreter(path)
        if interpreter is not None and interpreter.version >= (3, OLDEST):
            found.setdefault(interpreter.name, interpreter)
    return sorted(found.values())


def describe_interpreter(path: str) -> Interpreter | None:
    """Ask an interpreter what it is; None if it does not run, or is no CPython."""
    try:
        done = subprocess.run([path, "-I", "-c", _FACTS], capture_output=True, timeout=60)
        version, threaded, implementation, _ = json.loads(done.stdout)
    except (OSError, ValueError, subprocess.TimeoutExpired):
        return None
    if implementation != "cpython":
        return None
    return Interpreter((version[0], version[1]), threaded, path)


def list_candidates(oldest: int = OLDEST) -> Iterator[str]:
    """Paths at which interpreters may be, from Python 3.`oldest` on; some may not run."""
    yield sys.executable
    names = [f"3.{minor}{kind}" for minor in range(oldest, NEWEST + 1) for kind in ("", "t")]
    for name in names:
        if path := shutil.which(f"python{name}"):
            yield path
    if shutil.which("pyenv"):
        for version in _ask("pyenv", "versions", "--bare"):
            for prefix in _ask("pyenv", "prefix", version):
                yield f"{prefix}/bin/python"
    if shutil.which("uv"):
        for name in names:
            yield from _ask("uv", "python", "find", "--offline", name)


def _ask(*command: str) -> list[str]:
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    return done.stdout.split() if done.returncode == 0 else []
