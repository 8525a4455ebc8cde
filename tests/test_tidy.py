"""Style as a test: folders, faces, names, cycles and limits are checked, lengths are printed.

`tests/tidy.py` measures the structure from syntax trees, and holds the one table of folders.
"""

from __future__ import annotations

import ast
import itertools
import re
import subprocess
import sys
from collections.abc import Iterator

import pytest

from penstock import limits
from tests import ROOT, tidy

PUBLIC = [
    "Balanced",
    "Batch",
    "Buckets",
    "Budget",
    "Cache",
    "Dataset",
    "Index",
    "Loader",
    "Order",
    "PenstockError",
    "Place",
    "Ragged",
    "curriculum",
    "join",
    "mix",
    "open",
    "pack",
    "pad",
    "rng",
]
"""The public names of penstock, sorted. Adding to this list is a decision."""


@pytest.fixture(scope="module", autouse=True)
def _drop_trees() -> Iterator[None]:
    """A million nodes, through which each later `gc.collect` of this process would look."""
    yield
    for function in vars(tidy).values():
        if hasattr(function, "cache_clear"):
            function.cache_clear()


PURE_FOLDERS = {"order", "plan"}
"""Folders whose modules are all pure; elsewhere a module is pure if its docstring says "Pure."."""

OS_NAMES = {
    "penstock.arguments": {"fsencode", "fsdecode", "PathLike"},  # conversions of names
    "penstock.extent": {"fsencode", "fsdecode", "path"},
    "penstock.order.shuffling": {"sched_getaffinity"},  # threads, not values
}
"""Names of `os` that pure modules may use."""

# fmt: off
IMPURE = {
    "asyncio", "concurrent", "ctypes", "datetime", "fcntl", "glob", "io", "logging", "mmap",
    "multiprocessing", "os", "pathlib", "random", "select", "selectors", "shutil", "signal",
    "socket", "subprocess", "tempfile", "threading", "time", "urllib",
}
# fmt: on
KEYED_RANDOM = {
    "default_rng",
    "Generator",
    "Philox",
    "PCG64",
    "RandomState",
    "SFC64",
    "SeedSequence",
}
BANNED_NAMES = {"utils", "util", "common", "helpers", "base", "manager", "factory", "core", "misc"}
OPTIONAL = {
    "torch",
    "jax",
    "grain",
    "keras",
    "torchdata",
    "megatron",
    "triton",
    "pyarrow",
    "h5py",
    "zmq",
    "mpi4py",
    "obstore",
    "scipy",
    "yaml",
} | {
    "pydantic",
    "jinja2",
    "typer",
    "rich",
    "PIL",
    "simplejpeg",
    "numcodecs",
    "zstandard",
    "lmdb",
    "ray",
    "prometheus_client",
    "huggingface_hub",
    "hydra",
    "omegaconf",
}
"""Libraries of extras, which importing penstock must not ask for."""

FUNCTION_LINES = 70
FILE_LINES = 500


def test_a_folder_imports_only_folders_below_it() -> None:
    """The table lists folders lowest first, each with folders above it in the table alone, and no
    import goes beyond it."""
    seen: set[str] = set()
    for folder, uses in tidy.FOLDERS.items():
        assert uses <= seen, f"{folder} is listed before {uses - seen}"
        seen.add(folder)
    folders = {tidy.folder_of(name) for name in tidy.modules()}
    assert folders == tidy.FOLDERS.keys() | tidy.APPLICATIONS.keys(), "other folders"
    assert tidy.imports_upwards() == []


def test_applications_import_faces() -> None:
    """Another package's names come from the `__init__.py` of a folder, which has them."""
    assert tidy.imports_past_faces() == []


def test_no_import_cycles() -> None:
    """The modules can be ordered so that each imports only those before it."""
    assert tidy.import_cycles() == []


def test_lazy_faces_agree_with_what_type_checkers_read() -> None:
    """The table of a lazy face has the names, and the modules, of its imports for type checkers."""
    lazy = 0
    for name, path in tidy.modules().items():
        if "hand_out(" not in path.read_text() or name == "penstock.lazy_exports":
            continue
        lazy += 1
        tree = tidy.parse(name)
        call = next(
            node
            for node in ast.walk(tree)
            if isinstance(node, ast.Call) and ast.unparse(node.func) == "hand_out"
        )
        table = {
            attribute: module
            for module, names in ast.literal_eval(call.args[1]).items()
            for attribute in names.split()
        }
        folders = [ast.literal_eval(word.value) for word in call.keywords if word.arg == "folders"]
        for dotted in itertools.chain.from_iterable(map(str.split, folders)):
            folder, _, attribute = dotted.rpartition(".")
            table[attribute] = folder or attribute
        read = {
            alias.name: "." * (node.level - 1) + (node.module or alias.name)
            for node in top_level(tree)
            if isinstance(node, ast.ImportFrom)
            and node.level >= 1
            and node.module != "lazy_exports"
            for alias in node.names
        }
        assert table == read, path
    assert lazy >= 3


def top_level(tree: ast.Module) -> Iterator[ast.AST]:
    """The statements of a module, with those that only type checkers read; no function's."""
    for node in tree.body:
        yield node
        if isinstance(node, ast.If):
            yield from node.body


def test_a_face_has_no_name_of_a_module_that_is_something_else() -> None:
    """`folder.name` is the same whether the module of that name was imported before or not."""
    for name, path in tidy.modules().items():
        if path.name != "__init__.py":
            continue
        below = {
            other.rpartition(".")[2] for other in tidy.modules() if other.rpartition(".")[0] == name
        }
        for node in tidy.statements(name):
            if isinstance(node, ast.ImportFrom) and node.level == 1 and node.module:
                clash = below & {alias.asname or alias.name for alias in node.names}
                assert not clash, f"{path}: {clash} are modules, too"


def test_libraries_of_extras_are_not_imported_by_faces() -> None:
    """Importing every folder, but those that are faces of a library, asks for numpy alone."""
    folders = [
        f"penstock.{folder}"
        for folder in tidy.FOLDERS
        if folder not in ("", "torch", "testing", "cli")
    ]
    code = (
        "import importlib, sys\n"
        f"for folder in {[*folders, *tidy.APPLICATIONS]}: importlib.import_module(folder)\n"
        "import penstock\n"
        "for name in penstock.__all__: getattr(penstock, name)\n"
        f"print(sorted({OPTIONAL} & sys.modules.keys()))\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (done.stdout, done.returncode) == ("[]\n", 0), done.stdout + done.stderr


def impurities(name: str) -> Iterator[tuple[int, str]]:
    """The lines of a module that touch files, threads, clocks or global random state."""
    for node in ast.walk(tidy.parse(name)):
        if isinstance(node, ast.Import):
            for alias in node.names:
                if alias.name.split(".")[0] in IMPURE and not (
                    name in OS_NAMES and alias.name == "os"
                ):
                    yield node.lineno, f"import {alias.name}"
        elif isinstance(node, ast.ImportFrom) and not node.level:
            if (node.module or "").split(".")[0] in IMPURE:
                yield node.lineno, f"from {node.module} import"
        elif isinstance(node, ast.Call):
            called = ast.unparse(node.func)
            if called == "open" or (called.endswith("default_rng") and not node.args):
                yield node.lineno, f"{called}()"
        elif isinstance(node, ast.Attribute):
            written = ast.unparse(node)
            if written.startswith("os.") and written.split(".")[1] not in OS_NAMES.get(name, ()):
                yield node.lineno, written
            random = re.fullmatch(r"(?:np|numpy)\.random\.(\w+)", written)
            if random is not None and random[1] not in KEYED_RANDOM:
                yield node.lineno, written


def pure_modules() -> list[str]:
    """The modules that are pure, by their folder or by their own word; of a face that says so, all
    of its folder."""
    said = {
        name
        for name in tidy.modules()
        if re.search(r"\bPure[.:;]", ast.get_docstring(tidy.parse(name)) or "")
    }
    faces = {name for name in said if tidy.modules()[name].name == "__init__.py"}
    return sorted(
        name
        for name in tidy.modules()
        if name in said
        or tidy.folder_of(name) in PURE_FOLDERS
        or any(name.startswith(f"{face}.") for face in faces)
    )


def test_pure_modules_are_pure() -> None:
    """Values and policy touch no files, sockets, threads, clocks or unkeyed random numbers."""
    names = pure_modules()
    assert len(names) > 50, "modules no longer say that they are pure"
    problems = [
        f"{tidy.modules()[name]}:{line}: {what}"
        for name in names
        for line, what in impurities(name)
    ]
    assert not problems, "\n".join(problems)


def test_no_class_name_stands_twice() -> None:
    """A class is found by its name alone."""
    assert tidy.classes_that_stand_twice() == {}


def test_docstrings_open_with_what_they_are_about() -> None:
    """Fewer than one docstring in a hundred opens with a word that stands for nothing yet."""
    headless, count = tidy.headless_docstrings(), len(tidy.docstrings())
    assert len(headless) < count / 100, "\n".join(headless)


def test_folders_keep_their_budgets() -> None:
    """A folder has at most the lines of its budget: to add some, take some away (decision 40)."""
    lines = tidy.folder_lines()
    assert tidy.BUDGETS.keys() == lines.keys()
    over = {
        folder: f"{lines[folder]:,} lines, {budget:,} allowed"
        for folder, budget in tidy.BUDGETS.items()
        if lines[folder] > budget
    }
    assert not over


def test_folders_are_not_crowded() -> None:
    """A folder has at most 20 modules; formats have one a container."""
    crowded = {
        folder: count
        for folder, count in tidy.folder_modules().items()
        if count > 20 and not folder.endswith(".formats")
    }
    assert not crowded


def test_imports_draw_in_little() -> None:
    """Importing the loader, or checkpoints, loads what they need and not whole folders."""
    assert tidy.drawn_lines(*tidy.LOADER) <= 30_000
    assert tidy.drawn_lines(*tidy.CHECKPOINTS) <= 16_000


def test_faces_are_small() -> None:
    """A face lists what users and applications call."""
    wide = {
        folder: count
        for folder in tidy.FOLDERS
        if folder and (count := len(tidy.names_of_face(f"penstock.{folder}"))) > 25
    }
    assert not wide


def test_guards_in_proportion() -> None:
    """Few lines of code raise; where files are read, at most one in fourteen."""
    assert tidy.raise_share("penstock") <= 0.052
    assert tidy.raise_share("penstock.index") <= 0.07


def test_plain_phrases() -> None:
    """Docstrings have few of the phrases that make sentences hard to read."""
    rates = list(tidy.phrase_rates().values())
    assert all(rate <= most for rate, most in zip(rates, (2, 2, 10), strict=True)), rates


def test_few_modules_stand_beside_the_folders() -> None:
    """The package's own folder has a dozen files at most; a folder that grows long is printed."""
    assert tidy.folder_modules()[tidy.LIBRARY] <= 12


def test_no_banned_names() -> None:
    """Modules and folders are named by nouns of the field, tests and benchmarks too."""
    for folder in (tidy.SOURCE, ROOT / "tests", ROOT / "benchmarks", ROOT / "cpp"):
        for path in folder.rglob("*"):
            assert path.stem not in BANNED_NAMES, f"{path}: name it by what it holds"


def test_public_names() -> None:
    """The public names are the pinned ones, sorted, and every other name is private."""
    import penstock

    assert list(penstock.__all__) == PUBLIC == sorted(PUBLIC)
    for name in PUBLIC:
        assert getattr(penstock, name) is not None
    with pytest.raises(AttributeError, match="has no attribute 'shuffle'"):
        penstock.shuffle  # noqa: B018


def test_limits_agree_with_the_core() -> None:
    """Every bound of the core's limits.hpp has a twin of the same name and value in limits.py."""
    (header,) = (ROOT / "cpp").rglob("limits.hpp")
    text = header.read_text()
    bounds = re.findall(r"^inline constexpr [\w:]+ (\w+) = (.+);", text, re.MULTILINE)
    assert len(bounds) == text.count("inline constexpr"), "a bound is written in another way"
    for name, expression in bounds:
        assert getattr(limits, name) == value_of(expression), name


def value_of(expression: str) -> int:
    """The value of a constant of C++ that is made of integers, casts, <<, * and +."""
    plain = re.sub(r"[\w:]+\{(\w+)\}", r"\1", expression)
    plain = re.sub(r"\b(\d+)(?:u|ull|ul)\b", r"\1", plain, flags=re.IGNORECASE).replace("'", "")
    assert re.fullmatch(r"[\d\s<*+()]+", plain), f"cannot read {expression!r}"
    return int(eval(plain))


def test_lengths(capsys: pytest.CaptureFixture[str]) -> None:
    """Long functions and files are printed; at twice the orientation value they fail."""
    lengths: list[tuple[str, int, int]] = []
    for name, path in tidy.modules().items():
        lengths.append((str(path), len(path.read_text().splitlines()), FILE_LINES))
        lengths += [
            (f"{path}:{node.lineno} {node.name}", code_lines(node), FUNCTION_LINES)
            for node in tidy.statements(name)
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        ]
    with capsys.disabled():
        for where, lines, orientation in lengths:
            if lines > orientation:
                print(f"\nlong: {where}: {lines} lines, above {orientation}", end="")
    assert [length for length in lengths if length[1] > 2 * length[2]] == []


def code_lines(function: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    """Lines of a function without its docstring."""
    lines = (function.end_lineno or 0) - function.lineno + 1
    if ast.get_docstring(function) is not None:
        docstring = function.body[0]
        lines -= (docstring.end_lineno or 0) - docstring.lineno + 1
    return lines
