"""Stand-ins for the compiled modules, made of their stubs, where they have not been built.

The commands and the table of formats are described by the modules that define them, and these
import the core. No function of it is called for that.
"""

from __future__ import annotations

import ast
import importlib
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

from docsite import ROOT
from docsite.api import COMPILED


def stand_in() -> None:
    """Find the packages in the source, and register stand-ins for modules that are not built."""
    sys.path.insert(0, str(ROOT / "src"))
    for name in COMPILED:
        try:
            importlib.import_module(name)
        except ImportError:
            stub = ROOT.joinpath("src", *name.split(".")).with_suffix(".pyi")
            package, _, last = name.rpartition(".")
            sys.modules[name] = make_stand_in(name, stub)
            setattr(importlib.import_module(package), last, sys.modules[name])


def make_stand_in(name: str, stub: Path) -> ModuleType:
    """A module with the names of a stub: functions that return None, and classes of nothing."""
    module = ModuleType(name)
    for node in ast.parse(stub.read_text()).body:
        if isinstance(node, ast.FunctionDef):
            setattr(module, node.name, return_none)
        elif isinstance(node, ast.ClassDef):
            setattr(module, node.name, type(node.name, (), {"__init__": return_none}))
        elif isinstance(node, ast.AnnAssign):
            setattr(module, ast.unparse(node.target), None)
    return module


def return_none(*_: Any, **__: Any) -> None:
    """Do nothing."""
