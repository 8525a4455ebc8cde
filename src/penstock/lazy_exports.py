"""Lazy faces: packages that hand out names whose modules are imported at first use."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Mapping
from typing import Any


def hand_out(
    package: str, homes: Mapping[str, str], folders: str = ""
) -> tuple[list[str], Callable[[str], Any]]:
    """Return the `__all__` and the `__getattr__` of a package whose names load lazily.

    homes:    the names of each submodule, separated by spaces; its own name stands for itself.
    folders:  subpackages that are attributes as well without being public names; "a.b" is the
              attribute b.

    The `__getattr__` raises AttributeError for any other name, as every module does.
    """
    home = {name: module for module, names in homes.items() for name in names.split()}
    modules = {name: name for name, module in home.items() if name == module}
    modules |= {path.rpartition(".")[2]: path for path in folders.split()}

    def find(name: str) -> Any:
        if name not in home and name not in modules:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        module = importlib.import_module(f".{modules.get(name) or home[name]}", package)
        value = module if name in modules else getattr(module, name)
        setattr(sys.modules[package], name, value)
        return value

    return sorted(home), find
