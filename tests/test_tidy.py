"""Style as a test: layers, names, cycles and limits are checked, lengths are printed.

Everything is read from the syntax tree; nothing of penstock needs to be compiled for it, except
for the list of public names.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import NamedTuple

import pytest

from penstock import limits
from tests import ROOT

PACKAGE = ROOT / "src" / "penstock"

PUBLIC = [
    "Batch",
    "Budget",
    "Cache",
    "ChangedError",
    "CollateError",
    "DataError",
    "Dataset",
    "ForkError",
    "FormatError",
    "Index",
    "LimitError",
    "Loader",
    "MissingError",
    "Order",
    "PenstockError",
    "Ragged",
    "SidecarError",
    "StalledError",
    "StateError",
    "StorageError",
    "UsageError",
    "WorkerError",
    "mix",
    "open",
    "rng",
    "shuffle",
    "shuffle_quality",
]
"""The public names of penstock, sorted. Adding to this list is a decision."""


class Layer(NamedTuple):
    """Modules of one level, and the layers and single modules that they may import."""

    modules: set[str]
    uses: set[str]


LAYERS = {
    "ground": Layer({"errors", "limits", "clock"}, set()),
    "values": Layer(
        {"extent", "budget", "topology", "cursor", "meter", "history", "dispatch", "lease"},
        {"ground"},
    ),
    "data": Layer(
        {"index", "layout", "sidecar", "formats", "order", "_order_numpy", "joint"}
        | {"mixture", "quality", "augmentation", "rows"},
        # a few headers are compressed themselves, or read by libraries that may crash
        {"ground", "values", "codecs", "apart"},
    ),
    "policy": Layer(
        {"placement", "assignment", "plan", "session", "allocation", "schedule", "blocking"}
        | {"cache_blocks", "replication", "explain", "roofline", "throughput", "knapsack", "drift"}
        | {"profiling", "ledger", "tenancy", "holding", "transfers"},
        {"ground", "values", "data"},
    ),
    # Mechanism receives requests as values: it knows neither index nor policy.
    "mechanism": Layer(
        {
            "engine",
            "engine_wrappers",
            "dispatched",
            "probe",
            "page_cache",
            "machine",
            "trace",
            "recorded",
            "native",
            "store",
            "tier",
            "disk_tier",
            "peer",
            "messages",
            "zeromq_peer",
            "mpi_peer",
            "metrics",
            "timeline",
            "collate",
            "decode",
            "pacing",
            "codecs",
            "bucket",
            "apart",
            "example",
            "objects",
            "object_engine",
            "writers",
            "lines",
            "address",
            "link",
        },
        {"ground", "values"},
    ),
    "drivers": Layer(
        {
            "dataset",
            "membership",
            "replicas",
            "addressed",
            "keeper",
            "cache",
            "cached",
            "batch",
            "engines",
            "costs",
            "ceilings",
            "doctor",
            "autoshuffle",
            "mixed",
            "course",
            "epochs",
            "loader",
            "reader",
            "workers",
            "walk",
            "processes",
            "recipes",
            "conversion",
            "convert",
            "convert_lmdb",
            "convert_shards",
        }
        | {"checkpoint", "broker", "tenant", "seat", "watcher", "upstream", "window"},
        {"ground", "values", "data", "policy", "mechanism"},
    ),
    "package": Layer({"__init__"}, {"ground", "values", "data", "policy", "mechanism", "drivers"}),
    "faces": Layer(
        {"torch", "tensors", "resident", "gpu", "_order_triton", "bench"},
        {"ground", "values", "data", "policy", "mechanism", "drivers", "package", "page"},
    ),
    # Pages for people: they know nothing of penstock.
    "page": Layer({"page"}, {"ground"}),
    # The simulator computes time: it knows policy, and nothing that reads, waits or sends.
    "sim": Layer({"sim"}, {"ground", "values", "data", "policy", "page"}),
    "testing": Layer(
        {"testing"}, {"ground", "values", "data", "policy", "mechanism", "drivers", "package"}
    ),
    "command": Layer(
        {
            "cli",
            "cli_bench",
            "cli_broker",
            "cli_calibrate",
            "cli_checkpoint",
            "cli_compare",
            "cli_doctor",
            "cli_generate",
        }
        | {
            "cli_options",
            "cli_plan",
            "cli_replay",
            "cli_run",
            "cli_simulate",
            "cli_top",
            "cli_trace",
            "exits",
            "terminal",
            "__main__",
        },
        {"ground", "values", "data", "policy", "mechanism", "drivers", "package", "faces", "sim"}
        | {"page"},
    ),
}

# Reading, permuting, scanning folders, sharing; the simulators' inner loops.
COMPILED = {"_core", "_sim"}
NATIVE = {"native", "order", "rows", "store", "tier", "sim.parity", "sim.corrected"} | {
    "bench.replay",
    "checkpoint.staging",
    "checkpoint.flushing",
}
TORCH = {"torch", "tensors", "resident", "gpu", "_order_triton"} | {
    "bench.checkpoint_writers",
    "bench.contenders.torch",
    "checkpoint.tensors",
    "checkpoint.dcp",
    "checkpoint.dcp_metadata",
    "checkpoint.dcp_reading",
}
PURE = (
    {
        "order",
        "plan",
        "placement",
        "cache_blocks",
        "assignment",
        "session",
        "allocation",
        "schedule",
    }
    | {"blocking", "replication", "explain", "roofline", "throughput", "knapsack", "drift"}
    | {"mixture", "quality", "augmentation", "profiling", "ledger", "tenancy", "holding"}
    | {"transfers"}
    | {"sim.network", "sim.routed", "sim.closed", "sim.importance", "sim.arguments"}
    | {"bench.workload", "bench.distribution", "bench.schema", "bench.document"}
    | {"bench.overrides", "bench.problems", "bench.checks"}
    | {"bench.sizes", "bench.mesh", "bench.contents"}
    | {"bench.checkpoint_shapes", "bench.checkpoint_contents"}
    | {"sim.contention", "sim.sampled", "sim.sizing", "bench.compare", "bench.headline"}
    | {"checkpoint.manifest", "checkpoint.division", "checkpoint.tree", "checkpoint.placing"}
    | {"checkpoint.interval", "checkpoint.pace"}
    | {"bench.sections", "bench.report", "page.layout", "page.words"}
    | LAYERS["values"].modules
)
EXTENT_OS = {"fsencode", "fsdecode", "path"}
# fmt: off
IMPURE = {
    "asyncio", "concurrent", "ctypes", "datetime", "fcntl", "glob", "io", "logging", "mmap",
    "multiprocessing", "os", "pathlib", "random", "select", "selectors", "shutil", "signal",
    "socket", "subprocess", "tempfile", "threading", "time", "urllib",
}
# fmt: on
KEYED_RANDOM = {"Generator", "Philox", "PCG64", "RandomState", "SFC64", "SeedSequence"}
BANNED_NAMES = {"utils", "util", "common", "helpers", "base", "manager", "factory", "core", "misc"}

FUNCTION_LINES = 70
FILE_LINES = 500


class Import(NamedTuple):
    """`module` is written in full; `line` is where."""

    module: str
    line: int


@cache
def names() -> tuple[str, ...]:
    """Each file of the package, by its dotted name below penstock."""
    found = []
    for path in sorted(PACKAGE.rglob("*.py")):
        parts = path.relative_to(PACKAGE).with_suffix("").parts
        found.append(".".join(parts[:-1] if parts[-1] == "__init__" and len(parts) > 1 else parts))
    return tuple(found)


@cache
def parsed(name: str) -> ast.Module:
    """The syntax tree of a file, which takes some 10 ms: only of what a test asks for."""
    path = path_of(name)
    return ast.parse(path.read_text(), str(path))


def path_of(name: str) -> Path:
    """The file of a dotted name."""
    folder = PACKAGE.joinpath(*name.split("."))
    return folder / "__init__.py" if folder.is_dir() else folder.with_suffix(".py")


def exists(module: str) -> bool:
    """Whether a full module name is a file of the package, or the compiled core."""
    below = module.removeprefix("penstock.")
    return below in names() or below in COMPILED


def executed(tree: ast.AST) -> Iterator[ast.AST]:
    """The nodes of a tree without those that only a type checker reads."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING":
            continue
        yield node
        yield from executed(node)


def imports(name: str) -> Iterator[Import]:
    """What a file imports, anywhere in it; relative imports and submodules are resolved."""
    here = ["penstock", *name.split(".")] if name != "__init__" else ["penstock"]
    package = here if path_of(name).name == "__init__.py" else here[:-1]
    for node in executed(parsed(name)):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield Import(alias.name, node.lineno)
        elif isinstance(node, ast.ImportFrom):
            parts = package[: len(package) - node.level + 1] if node.level else []
            source = ".".join([*parts, node.module] if node.module else parts)
            for alias in node.names:
                submodule = f"{source}.{alias.name}"
                yield Import(submodule if exists(submodule) else source, node.lineno)


def own(module: str) -> str | None:
    """The part of a full module name below penstock; None for other packages."""
    if module == "penstock":
        return "__init__"
    return module.removeprefix("penstock.") if module.startswith("penstock.") else None


def layer_of(name: str) -> str:
    """The layer that a dotted name belongs to."""
    top = name.split(".")[0]
    for layer, (modules, _) in LAYERS.items():
        if top in modules:
            return layer
    raise AssertionError(f"penstock.{top} is in no layer: add it to LAYERS in tests/test_tidy.py")


@pytest.mark.parametrize("name", names())
def test_imports_lower_layers_only(name: str) -> None:
    """A module imports its own layer and those that its layer may use."""
    layer = layer_of(name)
    allowed = LAYERS[layer].uses | {layer}
    for module, line in imports(name):
        target = own(module)
        if target is None or target in COMPILED:
            continue
        top = target.split(".")[0]
        assert layer_of(target) in allowed or top in allowed, (
            f"{path_of(name)}:{line}: {layer} does not import penstock.{target} of"
            f" {layer_of(target)}"
        )


@pytest.mark.parametrize("name", names())
def test_only_few_import_core_and_torch(name: str) -> None:
    """The compiled core and torch each have their few importers."""
    for module, line in imports(name):
        where = f"{path_of(name)}:{line}"
        assert own(module) not in COMPILED or name in NATIVE, f"{where}: only {NATIVE} import it"
        assert module.split(".")[0] != "torch" or name in TORCH, (
            f"{where}: only {TORCH} import torch"
        )
        assert module.split(".")[0] != "triton" or name == "_order_triton", (
            f"{where}: only _order_triton imports triton"
        )


def impurities(name: str) -> Iterator[tuple[int, str]]:
    """Where a module touches files, threads, clocks or global random state."""
    for module, line in imports(name):
        top = module.split(".")[0]
        if top in IMPURE and not (name == "extent" and module == "os"):
            yield line, f"import {module}"
    for node in ast.walk(parsed(name)):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
            if node.func.id == "open":
                yield node.lineno, "open()"
        elif isinstance(node, ast.Attribute):
            written = ast.unparse(node)
            if written.startswith("os.") and written.split(".")[1] not in EXTENT_OS:
                yield node.lineno, written
            random = re.match(r"(?:np|numpy)\.random\.(\w+)", written)
            if random is not None and random[1] not in KEYED_RANDOM:
                yield node.lineno, written


@pytest.mark.parametrize("name", [name for name in names() if {name, name.split(".")[0]} & PURE])
def test_pure_modules_are_pure(name: str) -> None:
    """Values and policy touch no files, sockets, threads, clocks or unkeyed random numbers."""
    found = [f"{path_of(name)}:{line}: {what}" for line, what in impurities(name)]
    assert not found, "\n".join(found)


def test_no_import_cycles() -> None:
    """The modules can be ordered so that each imports only those before it."""
    graph = {
        name: {
            target
            for module, _ in imports(name)
            if (target := own(module)) in names() and target != name
        }
        for name in names()
    }
    while leaves := [name for name, targets in graph.items() if not targets & graph.keys()]:
        for name in leaves:
            del graph[name]
    assert not graph, f"these modules import each other, or one that does: {sorted(graph)}"


def test_no_banned_names() -> None:
    """Modules and folders are named by nouns of the field, tests and benchmarks too."""
    for folder in (PACKAGE, ROOT / "tests", ROOT / "benchmarks", ROOT / "cpp"):
        for path in folder.rglob("*"):
            assert path.stem not in BANNED_NAMES, f"{path}: name it by what it holds"


def test_public_names() -> None:
    """The public names are the pinned ones, sorted, and every other name is private."""
    import penstock

    assert list(getattr(penstock, "__all__", [])) == PUBLIC == sorted(PUBLIC)
    for name in PUBLIC:
        assert getattr(penstock, name) is not None


def test_limits_agree_with_the_core() -> None:
    """Every bound of cpp/ground/limits.hpp has a twin of the same name and value in limits.py."""
    header = (ROOT / "cpp" / "ground" / "limits.hpp").read_text()
    bounds = re.findall(r"^inline constexpr [\w:]+ (\w+) = (.+);", header, re.MULTILINE)
    assert len(bounds) == header.count("inline constexpr"), "a bound is written in another way"
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
    long: list[tuple[str, int, int]] = []
    for name in names():
        tree = parsed(name)
        path = path_of(name)
        long.append((str(path), len(path.read_text().splitlines()), FILE_LINES))
        long += [
            (f"{path}:{node.lineno} {node.name}", code_lines(node), FUNCTION_LINES)
            for node in ast.walk(tree)
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        ]
    with capsys.disabled():
        for where, lines, orientation in long:
            if lines > orientation:
                print(f"\nlong: {where}: {lines} lines, above {orientation}", end="")
    assert [each for each in long if each[1] > 2 * each[2]] == []


def code_lines(function: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    """Lines of a function without its docstring."""
    lines = (function.end_lineno or 0) - function.lineno + 1
    if ast.get_docstring(function) is not None:
        docstring = function.body[0]
        lines -= (docstring.end_lineno or 0) - docstring.lineno + 1
    return lines
