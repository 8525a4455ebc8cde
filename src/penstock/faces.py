"""Lazy faces: packages that hand out names whose modules are imported at first use."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from typing import Any


def hand_out(package: str, homes: Mapping[str, str]) -> tuple[list[str], Callable[[str], Any]]:
    """Return the `__all__` and the `__getattr__` of a package whose names load lazily.

    homes:  submodule of each name, relative to the package; names are separated by spaces.

    Raises AttributeError for any other name, as a package without a face does.
    """
    home = {name: module for module, names in homes.items() for name in names.split()}

    def find(name: str) -> Any:
        if name not in home:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        module = importlib.import_module(f".{home[name]}", package)
        found = module if home[name].rpartition(".")[2] == name else getattr(module, name)
        vars(importlib.import_module(package))[name] = found
        return found

    return sorted(home), find
