"""The import of penstock: systems that it does not run on are refused in one sentence, and packages
hand out names whose modules are imported at first use.

It is read by Pythons and on systems that nothing else here supports, before anything else is
imported: it has the syntax of old Pythons, and asks nothing that Windows would not answer.
"""

from __future__ import annotations

import importlib.machinery
import sys
from collections.abc import Callable, Mapping
from typing import Any

PYTHON_MIN = (3, 11)

COMPILED = ("penstock._core", "penstock_bench._replay", "penstock_sim._kernels")
"""The compiled modules."""

_ELSEWHERE = "use a Linux machine, a container or WSL 2, or torch's DataLoader here"


def find_platform_fault(
    system: str = sys.platform,
    version: tuple[int, ...] = sys.version_info[:2],
    pointer_max: int = sys.maxsize,
    byte_order: str = sys.byteorder,
    multiarch: str = getattr(sys.implementation, "_multiarch", ""),
    implementation: str = sys.implementation.name,
) -> str | None:
    """Return the sentence for a system that is not supported, None for one that is."""
    if system != "linux":
        name = {"darwin": "macOS", "win32": "Windows", "cygwin": "Cygwin"}.get(system, system)
        return f"penstock needs Linux and this is {name}: {_ELSEWHERE}"
    if version < PYTHON_MIN:
        wanted, actual = (".".join(map(str, numbers[:2])) for numbers in (PYTHON_MIN, version))
        return (
            f"penstock needs Python {wanted} or later and this is {actual}: "
            f"make an environment of a newer one, python{wanted} -m venv"
        )
    if implementation != "cpython":
        return f"penstock needs CPython and this is {implementation}: use an environment of CPython"
    if pointer_max < 2**32:
        return (
            "penstock needs a 64-bit Python and this one has 32 bits: use a 64-bit Python on a "
            "64-bit Linux"
        )
    if byte_order != "little":
        return "penstock needs a little-endian processor and this is none: use x86-64 or aarch64"
    if multiarch.endswith("musl"):
        return (
            "penstock needs glibc 2.28 or later and this Python is built for musl, as on Alpine: "
            "use an image of Debian, Ubuntu, Fedora or Rocky, such as python:3.12-slim"
        )
    return None


def explain_import_error(name: str, reason: str) -> str:
    """Return the sentence for a compiled module that is there and cannot be loaded, or is not
    there."""
    if "GLIBC" in reason or "CXXABI" in reason:
        return (
            f"penstock needs glibc 2.28 or later and this system's is older ({reason}): use "
            f"Debian 10, Ubuntu 20.04, RHEL 8 or later"
        )
    if "the compiled part" in reason:
        return reason  # said already
    python = ".".join(map(str, sys.version_info[:3]))
    return (
        f"{name}, the compiled part of penstock, cannot be loaded by Python {python} "
        f"({reason}): install penstock again with this Python, "
        f"python -m pip install --force-reinstall --no-deps penstock"
    )


def hand_out(
    package: str, homes: Mapping[str, str], folders: str = ""
) -> tuple[list[str], Callable[[str], Any]]:
    """Return the `__all__` and the `__getattr__` of a package whose names load lazily.

    homes:    the names of each submodule, separated by spaces; its own name is the module itself.
    folders:  subpackages that are attributes as well without being public names; "a.b" is the
              attribute b, and `import package.b` imports it.

    The `__getattr__` raises AttributeError for any other name, as every module does.
    """
    home = {name: module for module, names in homes.items() for name in names.split()}
    modules = {name: name for name, module in home.items() if name == module}
    modules |= {path.rpartition(".")[2]: path for path in folders.split()}
    if "." in folders:
        sys.meta_path.append(_AliasFinder(package, modules))

    def find(name: str) -> Any:
        if name not in home and name not in modules:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        try:
            module = importlib.import_module(f".{modules.get(name) or home[name]}", package)
        except ImportError as error:
            if error.name not in COMPILED:
                raise
            raise ImportError(
                explain_import_error(error.name, error.msg), name=error.name
            ) from None
        value = module if name in modules else getattr(module, name)
        setattr(sys.modules[package], name, value)
        return value

    return sorted(home), find


class _AliasFinder:
    """Finds the module `package.b` where it is, at `package.a.b`: one module of two names."""

    def __init__(self, package: str, modules: Mapping[str, str]) -> None:
        paths = {name: path for name, path in modules.items() if "." in path}
        self._homes = {f"{package}.{name}": f"{package}.{path}" for name, path in paths.items()}

    def find_spec(self, name: str, *_: object) -> Any:
        loader: Any = self
        return importlib.machinery.ModuleSpec(name, loader) if name in self._homes else None

    def create_module(self, spec: Any) -> Any:
        module = importlib.import_module(self._homes[spec.name])
        spec.loader_state = module.__spec__
        return module

    def exec_module(self, module: Any) -> None:
        module.__spec__ = module.__spec__.loader_state  # the import has put its own there
