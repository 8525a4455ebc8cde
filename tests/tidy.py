"""The structure of the package, measured: `make tidy` prints it, test_tidy.py holds it.

Everything is read from syntax trees; nothing of penstock is imported.
"""

from __future__ import annotations

import ast
import re
from collections import defaultdict
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import NamedTuple

from tests import ROOT

PACKAGE = ROOT / "src" / "penstock"
COMPILED = {"_core", "_sim"}

FOLDERS = {
    "": set(),
    "order": {""},
    "engine": {""},
    "index": {"", "order", "engine"},
    "plan": {"", "order", "index"},
    "cache": {"", "engine", "index", "plan"},
    "sharing": {"", "plan"},
    "loader": {"", "order", "engine", "index", "plan", "cache", "sharing"},
    "images": {"", "order", "engine", "index", "plan", "loader"},
    "torch": {"", "order", "plan", "cache", "sharing", "loader"},
    "trainers": {"", "loader", "torch"},
    "checkpoint": {"", "engine", "cache", "sharing"},
    "doctor": {"", "order", "engine", "index", "plan", "loader"},
    "demo": {"", "loader", "checkpoint"},
    "page": {""},
    "sim": {"", "order", "engine", "index", "plan", "page"},
    "convert": {"", "order", "engine", "index", "loader", "images"},
    "bench": {"", "order", "engine", "index", "loader"}
    | {"checkpoint", "doctor", "page", "convert"},
    "testing": {"", "order", "engine", "index", "plan", "cache", "sharing", "loader", "checkpoint"},
    "cli": {"", "engine", "index", "sharing", "loader", "images", "checkpoint", "doctor", "page"}
    | {"demo", "sim", "convert", "bench"},
}
"""The folders that each folder may import, lowest first; "" is the modules beside them."""

NATIVE_FOLDERS = {
    "_core": {"order", "engine", "index", "plan", "cache", "checkpoint", "images", "torch"},
    "_sim": {"sim", "bench"},
}
"""The folders that may import each compiled module."""

HEADLESS = {"What", "Of", "Those", "Who", "As", "It", "That", "From", "Which"} | {
    "Whether",
    "Where",
    "How",
    "When",
}
"""Words that open a docstring without the thing that it is about."""


class Import(NamedTuple):
    """An import: the dotted module below penstock, the name taken from it or None, the line."""

    module: str
    name: str | None
    line: int


@cache
def modules() -> dict[str, Path]:
    """The files of the package by dotted name below penstock; "" is its own `__init__.py`."""
    files = {}
    for path in sorted(PACKAGE.rglob("*.py")):
        parts = path.relative_to(PACKAGE).with_suffix("").parts
        files[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return files


@cache
def parse(name: str) -> ast.Module:
    """The syntax tree of a module."""
    path = modules()[name]
    return ast.parse(path.read_text(), str(path))


@cache
def statements(name: str) -> list[ast.stmt]:
    """The statements of a module, at any depth; expressions are most of a tree, and left out."""
    found: list[ast.stmt] = []
    bodies: list[list[ast.stmt]] = [parse(name).body]
    while bodies:
        for statement in bodies.pop():
            found.append(statement)
            branches = [*getattr(statement, "handlers", ()), *getattr(statement, "cases", ())]
            for part in (statement, *branches):
                bodies += (getattr(part, each, []) for each in ("body", "orelse", "finalbody"))
    return found


def folder_of(name: str) -> str:
    """The top folder of a module; "" for the modules beside the folders."""
    top = name.split(".")[0]
    return top if top in FOLDERS or modules()[name].name == "__init__.py" or "." in name else ""


def directory_of(name: str) -> list[str]:
    """The folders that a module lies in, outermost first."""
    parts = name.split(".") if name else []
    return parts if modules()[name].name == "__init__.py" else parts[:-1]


@cache
def imports(name: str) -> list[Import]:
    """The imports of a module within penstock, anywhere in it; for type checkers alone, too."""
    return list(_imports(name))


def _imports(name: str) -> Iterator[Import]:
    for node in statements(name):
        if isinstance(node, ast.Import):
            for alias in node.names:
                if alias.name.split(".")[0] == "penstock":
                    yield Import(alias.name[9:], None, node.lineno)
        elif isinstance(node, ast.ImportFrom):
            source = _source(name, node)
            if source is None:
                continue
            for alias in node.names:
                submodule = f"{source}.{alias.name}".lstrip(".")
                if submodule in modules() or submodule in COMPILED:
                    yield Import(submodule, None, node.lineno)
                else:
                    yield Import(source, alias.name, node.lineno)


def _source(name: str, node: ast.ImportFrom) -> str | None:
    """The module below penstock that an import takes names from; None for other packages."""
    if not node.level:
        top, _, below = (node.module or "").partition(".")
        return below if top == "penstock" else None
    package = directory_of(name)
    parts = package[: len(package) - node.level + 1]
    return ".".join([*parts, node.module] if node.module else parts)


def imports_upwards() -> list[str]:
    """The imports of a folder that the table does not allow."""
    problems = []
    for name in modules():
        if not name or name == "__main__":
            continue  # the package itself and its program hand out what lies above
        for module, _, line in imports(name):
            if module in COMPILED:
                if folder_of(name) not in NATIVE_FOLDERS[module]:
                    problems.append(f"{modules()[name]}:{line}: {module} is not for this folder")
                continue
            source, target = folder_of(name), folder_of(module)
            if target != source and target not in FOLDERS[source]:
                problems.append(f"{modules()[name]}:{line}: {source} does not import {target}")
    return problems


def imports_past_faces() -> list[str]:
    """The imports that reach into a folder instead of asking its face."""
    problems = []
    for name in modules():
        here = directory_of(name)
        for module, attribute, line in imports(name):
            if module in COMPILED or not module:
                continue
            where = f"{modules()[name]}:{line}"
            there = directory_of(module)
            common = 0
            while common < min(len(here), len(there)) and here[common] == there[common]:
                common += 1
            if common == len(there):
                continue  # the module's own folder, or one that it lies in
            face = ".".join(there[: common + 1])
            if module == face:
                if attribute is not None and attribute not in names_of_face(face):
                    problems.append(f"{where}: penstock.{face} does not hand out {attribute}")
            elif not (
                module.rpartition(".")[0] == face
                and module.rpartition(".")[2] in names_of_face(face)
            ):
                problems.append(f"{where}: penstock.{module} is past the face of {face}")
    return problems


@cache
def names_of_face(face: str) -> frozenset[str]:
    """The names that a folder hands out."""
    names: set[str] = set()
    for node in ast.walk(parse(face)):
        if isinstance(node, ast.ImportFrom) and node.level == 1:
            names |= {alias.asname or alias.name for alias in node.names}
        elif isinstance(node, ast.FunctionDef | ast.ClassDef):
            names.add(node.name)
        elif isinstance(node, ast.Assign):
            names |= {target.id for target in node.targets if isinstance(target, ast.Name)}
    return frozenset(names)


def import_cycles() -> list[str]:
    """The modules that import each other, or one that does."""
    graph = {
        name: {module for module, _, _ in _executed_imports(name) if module != name}
        for name in modules()
    }
    while leaves := [name for name, targets in graph.items() if not targets & graph.keys()]:
        for name in leaves:
            del graph[name]
    return sorted(graph)


def _executed_imports(name: str) -> Iterator[Import]:
    """The imports that are executed: those for type checkers are left out."""
    hidden = {
        line
        for node in statements(name)
        if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"
        for child in node.body
        for line in range(child.lineno, (child.end_lineno or child.lineno) + 1)
    }
    return (each for each in imports(name) if each.line not in hidden)


def classes_that_stand_twice() -> dict[str, list[str]]:
    """The class names that several modules define, with those modules."""
    places = defaultdict(list)
    for name in modules():
        for node in statements(name):
            if isinstance(node, ast.ClassDef):
                places[node.name].append(name)
    return {name: found for name, found in sorted(places.items()) if len(found) > 1}


@cache
def docstrings() -> list[tuple[Path, int, str]]:
    """The docstrings of the package, its tests, benchmarks, examples and demo: file, line and text.

    Found in the text, where a string begins a line: trees of all these files take seconds.
    """
    found = []
    for top in (PACKAGE, *(ROOT / name for name in ("tests", "benchmarks", "examples", "demo"))):
        for path in sorted(top.rglob("*.py")):
            source = path.read_text()
            found += [
                (path, source.count("\n", 0, string.start()) + 1, string[1])
                for string in re.finditer(r'^[ \t]*r?"""([\w`].*)', source, re.MULTILINE)
            ]
    return found


def headless_docstrings() -> list[str]:
    """The docstrings that open with a word of `HEADLESS`."""
    return [
        f"{path}:{line}: {text}"
        for path, line, text in docstrings()
        if (word := re.match(r"\w+", text)) and word[0] in HEADLESS
    ]


def figures() -> dict[str, str]:
    """The figures of the structure, by what they say."""
    count = len(docstrings())
    headless = len(headless_docstrings())
    lines = sum(len(path.read_text().splitlines()) for path in modules().values())
    return {
        "modules directly in src/penstock (at most 12)": str(len(list(PACKAGE.glob("*.py")))),
        "imports that the table of folders does not allow (0)": str(len(imports_upwards())),
        "imports past a folder's face (0)": str(len(imports_past_faces())),
        "modules in import cycles (0)": str(len(import_cycles())),
        "lines of Python (58,000 was given up: decision 30)": f"{lines:,}",
        "class names that stand twice (0)": str(len(classes_that_stand_twice())),
        "docstrings that open headless (below 1 %)": f"{headless} of {count:,}"
        f" ({headless / count:.1%})",
        "words of README.md (at most 1,600)": str(len((ROOT / "README.md").read_text().split())),
    }


if __name__ == "__main__":
    for question, answer in figures().items():
        print(f"{question:<56} {answer}")
