"""The structure of the three packages, measured: `make tidy` prints it, test_tidy.py holds it.

Everything is read from syntax trees; nothing of penstock is imported.
"""

from __future__ import annotations

import ast
import io
import re
import sys
import tokenize
from collections import defaultdict
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import NamedTuple

from tests import ROOT

SOURCE = ROOT / "src"
LIBRARY = "penstock"
COMPILED = {
    "penstock._core": {"", "order", "engine", "index", "plan", "cache", "checkpoint", "images"}
    | {"torch"},
    "penstock_bench._replay": {"penstock_bench"},
    "penstock_sim._kernels": {"penstock_sim"},
}
"""The compiled modules, and the folders of the library, or the application, that import each."""

APPLICATIONS = {"penstock_bench": {LIBRARY}, "penstock_sim": {LIBRARY, "penstock_bench"}}
"""The applications and the packages whose faces each may import; the library imports neither."""

FOLDERS = {
    "": set(),
    "ranks": {""},
    "order": {""},
    "engine": {""},
    "index": {"", "order", "engine"},
    "plan": {"", "ranks", "order", "index"},
    "dataset": {"", "ranks", "order", "engine", "index", "plan"},
    "cache": {"", "ranks", "engine", "index", "plan"},
    "sharing": {"", "ranks", "plan"},
    "loader": {"", "ranks", "order", "engine", "index", "plan", "dataset", "cache", "sharing"},
    "images": {"", "ranks", "order", "engine", "index", "plan", "dataset", "loader"},
    "torch": {"", "ranks", "order", "plan", "cache", "sharing", "dataset", "loader", "images"},
    "checkpoint": {"", "ranks", "engine", "cache", "sharing"},
    "doctor": {"", "ranks", "order", "engine", "index", "plan", "dataset", "loader", "images"},
    "demo": {"", "dataset", "loader", "checkpoint"},
    "convert": {"", "ranks", "order", "engine", "index", "dataset", "loader", "images"},
    "trainers": {"", "ranks", "dataset", "loader", "torch", "convert"},
    "tasks": {"", "engine", "index", "dataset", "images", "convert"},
    "testing": {
        "",
        "ranks",
        "order",
        "engine",
        "index",
        "plan",
        "dataset",
        "cache",
        "sharing",
        "loader",
        "checkpoint",
        "tasks",
    },
    "cli": {
        "",
        "ranks",
        "engine",
        "index",
        "dataset",
        "sharing",
        "loader",
        "images",
        "checkpoint",
        "doctor",
    }
    | {"demo", "convert", "tasks"},
}
"""The folders of the library that each folder may import, lowest first; "" is the modules beside
them."""

BUDGETS = {
    "": 1_842,
    "cache": 4_029,
    "checkpoint": 6_531,
    "cli": 2_911,
    "convert": 3_844,
    "dataset": 6_296,
    "demo": 452,
    "doctor": 1_732,
    "engine": 5_869,
    "images": 2_055,
    "index": 18_625,
    "loader": 6_837,
    "order": 2_640,
    "penstock_bench": 13_296,
    "penstock_sim": 7_028,
    "plan": 3_802,
    "ranks": 600,
    "sharing": 3_674,
    "tasks": 1_495,
    "testing": 1_694,
    "torch": 2_985,
    "trainers": 1_126,
}
"""Lines of Python that each folder of the library, and each application, may have.

To add lines, take lines away; or raise the budget, with a sentence in a decision record that says
what was bought (decision 40).
"""

HEADLESS = {"What", "Of", "Those", "Who", "As", "It", "That", "From", "Which"} | {
    "Whether",
    "Where",
    "How",
    "When",
}
"""Words that open a docstring without the thing that it is about."""

PHRASES = {
    '"that of", "those of"': r"\b(?:that|those) of\b",
    '"lies", "stands"': r"\b(?:lies?|lay|stands?|stood)\b",
    '", which"': r", which\b",
}
"""Phrases that are counted in docstrings."""

VAGUE_NAMES = {"each", "part", "found", "own", "held", "left"}
"""Names that do not say what a value is."""


class Import(NamedTuple):
    """An import: the dotted module, the name taken from it or None, the line."""

    module: str
    name: str | None
    line: int


@cache
def modules() -> dict[str, Path]:
    """The files of the packages by dotted name."""
    files = {}
    for path in sorted(SOURCE.rglob("*.py")):
        parts = path.relative_to(SOURCE).with_suffix("").parts
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
    collected: list[ast.stmt] = []
    bodies: list[list[ast.stmt]] = [parse(name).body]
    while bodies:
        for statement in bodies.pop():
            collected.append(statement)
            branches = [*getattr(statement, "handlers", ()), *getattr(statement, "cases", ())]
            for branch in (statement, *branches):
                bodies += (getattr(branch, key, []) for key in ("body", "orelse", "finalbody"))
    return collected


def is_face(name: str) -> bool:
    """Tell whether a module is the `__init__.py` of a folder."""
    return modules()[name].name == "__init__.py"


def folder_of(name: str) -> str:
    """The folder of the library that a module is in, "" for the modules beside the folders; the
    package for a module of an application."""
    package, *below = name.split(".")
    if package != LIBRARY:
        return package
    return below[0] if len(below) > 1 or (below and is_face(name)) else ""


def directory_of(name: str) -> list[str]:
    """The package and folders that a module is in, outermost first."""
    parts = name.split(".")
    return parts if is_face(name) else parts[:-1]


@cache
def imports(name: str) -> list[Import]:
    """The imports of a module within the packages, anywhere in it; for type checkers alone, too."""
    return list(_imports(name))


def _imports(name: str) -> Iterator[Import]:
    for node in statements(name):
        if isinstance(node, ast.Import):
            for alias in node.names:
                if alias.name.partition(".")[0] in {LIBRARY, *APPLICATIONS}:
                    yield Import(alias.name, None, node.lineno)
        elif isinstance(node, ast.ImportFrom):
            source = _source(name, node)
            if source is None:
                continue
            for alias in node.names:
                submodule = f"{source}.{alias.name}"
                if submodule in modules() or submodule in COMPILED:
                    yield Import(submodule, None, node.lineno)
                else:
                    yield Import(source, alias.name, node.lineno)


def _source(name: str, node: ast.ImportFrom) -> str | None:
    """The module that an import takes names from; None for other packages."""
    if not node.level:
        module = node.module or ""
        return module if module.partition(".")[0] in {LIBRARY, *APPLICATIONS} else None
    package = directory_of(name)
    parts = package[: len(package) - node.level + 1]
    return ".".join([*parts, node.module] if node.module else parts)


def imports_upwards() -> list[str]:
    """The imports of a folder, or a package, that the tables do not allow."""
    problems = []
    for name in modules():
        source = folder_of(name)
        package = name.partition(".")[0]
        for module, _, line in imports(name):
            where = f"{modules()[name]}:{line}"
            if module in COMPILED:
                if source not in COMPILED[module]:
                    problems.append(f"{where}: {module} is not for this folder")
                continue
            target = module.partition(".")[0]
            if target != package:
                if target not in APPLICATIONS.get(package, ()):
                    problems.append(f"{where}: {package} does not import {target}")
                continue
            if package != LIBRARY or name in (LIBRARY, "penstock.__main__"):
                continue  # the package itself and its program hand out what is above
            folder = folder_of(module)
            if folder != source and folder not in FOLDERS[source]:
                problems.append(f"{where}: {source} does not import {folder}")
    return problems


def imports_past_faces() -> list[str]:
    """The imports of an application that reach into another package instead of asking a face.

    Modules beside the folders are faces of their own.
    """
    problems = []
    for name in modules():
        package = name.partition(".")[0]
        for module, attribute, line in imports(name):
            if module.partition(".")[0] == package or module in COMPILED:
                continue
            where = f"{modules()[name]}:{line}"
            face, _, below = module.rpartition(".")
            if module in modules() and (is_face(module) or face == LIBRARY):
                if is_face(module) and attribute and attribute not in names_of_face(module):
                    problems.append(f"{where}: {module} does not hand out {attribute}")
            elif not (face in modules() and is_face(face) and below in names_of_face(face)):
                problems.append(f"{where}: {module} is past the face of {face}")
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
    return (entry for entry in imports(name) if entry.line not in hidden)


@cache
def eager_imports(name: str) -> frozenset[str]:
    """The modules that importing a module draws in, itself included.

    Imports inside functions and for type checkers alone are left out; the faces of the folders that
    an imported module is in are run as well.
    """
    closure: set[str] = set()
    waiting = [name]
    while waiting:
        module = waiting.pop()
        if module in closure or module not in modules():
            continue
        closure.add(module)
        waiting += [
            ".".join(module.split(".")[:depth]) for depth in range(1, module.count(".") + 1)
        ]
        inside = {
            line
            for node in statements(module)
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
            for line in range(node.lineno, (node.end_lineno or node.lineno) + 1)
        }
        for entry in _executed_imports(module):
            if entry.line not in inside:
                waiting += [entry.module, _home_of(entry)]
    return frozenset(closure)


def count_lines(names: frozenset[str] | list[str]) -> int:
    """The lines of these modules together."""
    return sum(modules()[name].read_text().count("\n") for name in names)


def _home_of(entry: Import) -> str:
    """The module that a lazy face loads for a name that is imported from it; else the face."""
    if entry.name is not None and entry.module in modules() and is_face(entry.module):
        for face_import in imports(entry.module):
            if (
                face_import.name == entry.name
                or face_import.module == f"{entry.module}.{entry.name}"
            ):
                return face_import.module
    return entry.module


def drawn_lines(*names: str) -> int:
    """The lines that importing these modules draws in."""
    return count_lines(frozenset().union(*map(eager_imports, names)))


LOADER = ("penstock.dataset.dataset", "penstock.loader.loader")
"""The modules of `penstock.open` and `penstock.Loader`."""

CHECKPOINTS = ("penstock.checkpoint.checkpoints",)
"""The module of `penstock.checkpoint.Checkpoints`."""


def folder_lines() -> dict[str, int]:
    """The lines of each folder of the library, and of each application."""
    lines: dict[str, int] = defaultdict(int)
    for name in modules():
        lines[folder_of(name)] += count_lines([name])
    return dict(lines)


def folder_modules() -> dict[str, int]:
    """The number of modules in each directory of the packages, without its face."""
    count: dict[str, int] = defaultdict(int)
    for name in modules():
        count[".".join(directory_of(name))] += not is_face(name)
    return dict(count)


@cache
def lines_by_kind(name: str) -> dict[str, int]:
    """The lines of a module that are code, comments (also behind code) and raise statements.

    A line of code has a token that belongs to no docstring and no comment.
    """
    text = modules()[name].read_text()
    doc_lines: set[int] = set()
    raises = 0
    for node in ast.walk(parse(name)):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
            if isinstance(node.value.value, str):
                doc_lines |= set(range(node.lineno, (node.end_lineno or node.lineno) + 1))
        elif isinstance(node, ast.Raise):
            raises += (node.end_lineno or node.lineno) - node.lineno + 1
    code: set[int] = set()
    comments: set[int] = set()
    blank = {tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT, tokenize.ENDMARKER}
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type == tokenize.COMMENT:
            comments.add(token.start[0])
        elif token.type not in blank:
            code |= set(range(token.start[0], token.end[0] + 1)) - doc_lines
    return {"code": len(code), "comments": len(comments), "raises": raises}


def raise_share(prefix: str) -> float:
    """The share of lines of code in a folder that belong to raise statements."""
    kinds = [lines_by_kind(name) for name in modules() if f"{name}.".startswith(f"{prefix}.")]
    return sum(kind["raises"] for kind in kinds) / sum(kind["code"] for kind in kinds)


def comment_share() -> float:
    """The share of all lines that have a comment."""
    commented = sum(lines_by_kind(name)["comments"] for name in modules())
    return commented / count_lines(list(modules()))


@cache
def docstring_texts(prefix: str = "penstock") -> str:
    """The docstrings of modules, classes, functions and values whose names start so, joined."""
    texts = []
    for name in modules():
        if name.startswith(prefix):
            texts += [
                node.value.value
                for node in ast.walk(parse(name))
                if isinstance(node, ast.Expr)
                and isinstance(node.value, ast.Constant)
                and isinstance(node.value.value, str)
            ]
    return "\n\n".join(texts)


def phrase_rates(prefix: str = "penstock") -> dict[str, float]:
    """Each phrase's count in 10,000 words of docstrings."""
    text = re.sub(r"\s+", " ", docstring_texts(prefix))
    words = max(1, len(text.split()))
    return {
        phrase: len(re.findall(pattern, text)) * 10_000 / words
        for phrase, pattern in PHRASES.items()
    }


def vague_names() -> dict[str, int]:
    """How often each vague name is bound to a value."""
    counts: dict[str, int] = defaultdict(int)
    for name in modules():
        for node in ast.walk(parse(name)):
            if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
                if node.id in VAGUE_NAMES:
                    counts[node.id] += 1
            elif isinstance(node, ast.arg) and node.arg in VAGUE_NAMES:
                counts[node.arg] += 1
    return dict(counts)


def classes_that_stand_twice() -> dict[str, list[str]]:
    """The class names that several modules define, with those modules."""
    places = defaultdict(list)
    for name in modules():
        for node in statements(name):
            if isinstance(node, ast.ClassDef):
                places[node.name].append(name)
    return {name: homes for name, homes in sorted(places.items()) if len(homes) > 1}


@cache
def docstrings() -> list[tuple[Path, int, str]]:
    """The docstrings of the packages, tests, benchmarks and examples: file, line and text.

    Found in the text, where a string begins a line: trees of all these files take seconds.
    """
    collected = []
    for top in (SOURCE, *(ROOT / name for name in ("tests", "benchmarks", "examples"))):
        for path in sorted(top.rglob("*.py")):
            source = path.read_text()
            collected += [
                (path, source.count("\n", 0, string.start()) + 1, string[1])
                for string in re.finditer(r'^[ \t]*r?"""([\w`].*)', source, re.MULTILINE)
            ]
    return collected


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
    library = [name for name in modules() if name.partition(".")[0] == LIBRARY]
    crowded = {
        folder: number
        for folder, number in folder_modules().items()
        if number > 20 and not folder.endswith("formats")
    }
    faces = {folder: len(names_of_face(f"penstock.{folder}")) for folder in FOLDERS if folder}
    vague = ", ".join(f"{name} {number}" for name, number in sorted(vague_names().items()))
    table = {
        "modules directly in src/penstock (at most 12)": str(
            folder_modules()[LIBRARY],
        ),
        "imports that the tables of folders do not allow (0)": str(len(imports_upwards())),
        "imports of applications past a face (0)": str(len(imports_past_faces())),
        "modules in import cycles (0)": str(len(import_cycles())),
        "lines of Python: the library (62,000); all (90,000)": f"{count_lines(library):,}; "
        f"{count_lines(list(modules())):,}",
        "files of Python (330)": str(len(modules())),
        "folders of more than 20 modules (0)": str(crowded or 0),
        "lines that open and Loader draw in (30,000)": f"{drawn_lines(*LOADER):,}",
        "lines that Checkpoints draws in (16,000)": f"{drawn_lines(*CHECKPOINTS):,}",
        "names of the faces (25 each)": ", ".join(f"{key} {value}" for key, value in faces.items()),
        "raise statements in code: library (5 %), index (7 %)": f"{raise_share('penstock'):.1%}, "
        f"{raise_share('penstock.index'):.1%}",
        "lines with a comment": f"{comment_share():.1%}",
        "vague names of values": vague,
        "class names that stand twice (0)": str(len(classes_that_stand_twice())),
        "docstrings that open headless (below 1 %)": f"{headless} of {count:,}"
        f" ({headless / count:.1%})",
        "words of README.md (at most 900)": str(len((ROOT / "README.md").read_text().split())),
    }
    for phrase, rate in phrase_rates().items():
        table[f"{phrase} in 10,000 words of docstrings"] = f"{rate:.1f}"
    for folder, lines in sorted(folder_lines().items()):
        table[f"lines of {folder or 'the modules beside the folders'}"] = f"{lines:,}"
    return table


if __name__ == "__main__":
    if len(sys.argv) > 1:  # the phrases and raise statements of one folder, as penstock.order
        for phrase, rate in phrase_rates(sys.argv[1]).items():
            print(f"{phrase:<56} {rate:.1f}")
        print(f"{'raise statements in code':<56} {raise_share(sys.argv[1]):.1%}")
    else:
        for question, answer in figures().items():
            print(f"{question:<56} {answer}")
