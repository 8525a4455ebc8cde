"""Pages of the reference that mkdocstrings fills: one for each module that has public names."""

from __future__ import annotations

import ast
import importlib
from functools import cache
from pathlib import Path
from typing import Any

from docsite import ROOT

SOURCE = ROOT / "src"
TRAINERS = SOURCE / "penstock" / "trainers"

MODULES = {
    "penstock": "Open data, iterate over batches, resume: the names that most programs need.",
    "penstock.dataset": "Datasets and what is made of them.",
    "penstock.loader": "The loaders and what belongs to them.",
    "penstock.torch": "PyTorch's loaders.",
    "penstock.images": "Images, decoded, cropped and resized in the core.",
    "penstock.torch.gpu": "Orders on GPUs.",
    "penstock.order": "The order of samples, as a function.",
    "penstock.checkpoint": "The state of a job, saved behind training.",
    "penstock.checkpoint.dcp": "Storage for torch.distributed.checkpoint.",
    "penstock.convert": "From one container into another; tokens of texts.",
    "penstock.sharing": "Several jobs on one host or file system.",
    "penstock_sim.schedule": "Transfers that are planned beforehand.",
    "penstock_sim": "What policies take on a cluster that is described.",
    "penstock.errors": "The exceptions.",
    "penstock.tasks": "Work that many programs share: plan, work, commit.",
    "penstock.testing": "Conformance suites for what you implement.",
    "penstock.composer": "Under Composer.",
    "penstock.grain": "Under Grain.",
    "penstock.jax": "Under JAX.",
    "penstock.keras": "Under Keras.",
    "penstock.lightning": "Under Lightning.",
    "penstock.megatron": "Under Megatron-LM.",
    "penstock.ray": "Under Ray.",
    "penstock.torchdata": "Under torchdata's nodes.",
    "penstock.torchtitan": "Under torchtitan.",
    "penstock.transformers": "Under transformers' Trainer.",
    "penstock.engine": "Engines, stores and requests: for those who write one.",
    "penstock.index": "The table of extents: for those who add a format.",
    "penstock.plan": "Steps, placement and assignment: for those who read the source.",
    "penstock.cache": "The cache of a job's hosts.",
}
"""The modules with a page, and what each is for."""

FIRST = {
    "penstock": "open Loader Dataset Batch Budget",
    "penstock.dataset": "open Dataset",
    "penstock.loader": "Loader Batch",
    "penstock.torch": "DataLoader StepLoader DeviceLoader",
    "penstock.images": "RandomResizedCrop CenterCrop Resize Decode from_torchvision",
    "penstock.order": "Order",
    "penstock.errors": "PenstockError",
    "penstock.index": "Index",
    "penstock.cache": "Cache",
}
"""The names that a page begins with; the others follow by the alphabet."""

COMPILED = {
    "penstock._core": "The data path in C++. Nothing outside penstock calls it.",
    "penstock_bench._replay": "The replay of traces, in C++.",
    "penstock_sim._kernels": "The kernels of the simulator, in C++.",
}
"""The compiled modules, whose pages are made of their stubs."""


def write_pages() -> dict[str, str]:
    """The pages of the modules by name, and the list of them."""
    rows = ["# Reference of the Python interface", "", "| module | what it is for |", "|---|---|"]
    pages = {}
    for module, purpose in {**MODULES, **COMPILED}.items():
        pages[f"reference/python/{module}.md"] = write_page(module, purpose)
        rows.append(f"| [`{module}`]({module}.md) | {purpose} |")
    rows += ["", "Pages are made of the docstrings, those of compiled modules of their stubs.", ""]
    return {"reference/python/index.md": "\n".join(rows), **pages}


def write_page(module: str, purpose: str) -> str:
    """The page of one module: a directive for each name."""
    lines = [f"# {module}", "", purpose, ""]
    if module in COMPILED:
        return "\n".join([*lines, f"::: {module}", "    options: {show_root_heading: false}", ""])
    first = FIRST.get(module, "").split()
    names = sorted(
        public_names(module),
        key=lambda name: [*first, name.rpartition(".")[2]].index(name.rpartition(".")[2]),
    )
    if module != "penstock":
        real = source_name(module)
        lines += [f"::: {real}", "    options: {members: false, show_root_heading: false}", ""]
    for name in names:
        lines += describe_name(module, name)
    return "\n".join(lines)


def describe_name(module: str, name: str) -> list[str]:
    """The lines for one name: an anchor under the name that users write, and the directive."""
    public = f"{module}.{name.rpartition('.')[2]}"
    target = definition(name)
    lines = [] if public == target else [f'<a id="{public}"></a>', ""]
    if target is None:
        return [f"## {public} {{ #{public} }}", "", "A constant.", ""]
    return [*lines, f"::: {target}", f"    options: {{heading: {public}}}", ""]


@cache
def load_source(package: str) -> Any:
    """A package as griffe reads it: from the source, nothing imported."""
    import griffe  # mkdocstrings brings it

    return griffe.load(package, search_paths=[str(SOURCE)], allow_inspection=False)


def definition(name: str) -> str | None:
    """The path of the object that a name stands for; None where the source does not show it."""
    from griffe import GriffeError

    try:
        package, _, below = name.partition(".")
        found = load_source(package)[below]
        while found.is_alias or (found.is_attribute and str(found.value or "").isidentifier()):
            if found.is_alias:
                found = found.final_target
            elif str(found.value) in found.parent.members:
                found = found.parent[str(found.value)]
            else:
                break
    except (KeyError, GriffeError):
        return None
    return str(found.path)


def source_name(module: str) -> str:
    """The name of the module where it lies: trainers are handed out from `penstock` itself."""
    last = module.removeprefix("penstock.")
    return f"penstock.trainers.{last}" if (TRAINERS / f"{last}.py").exists() else module


@cache
def public_names(module: str) -> list[str]:
    """The dotted names of a module that are public and are no modules."""
    real = source_name(module)
    tree = ast.parse(find_source(real).read_text())
    listed = literal_all(tree)
    if listed is None and has_lazy_names(tree):
        listed = list(importlib.import_module(real).__all__)
    names = own_names(tree) if listed is None else listed
    return [f"{real}.{name}" for name in sorted(names) if not is_module(real, name)]


def find_source(module: str) -> Path:
    """The file of a module."""
    path = SOURCE.joinpath(*module.split("."))
    return path / "__init__.py" if path.is_dir() else path.with_suffix(".py")


def literal_all(tree: ast.Module) -> list[str] | None:
    """The value of `__all__` where it is a list in the source."""
    for node in tree.body:
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "__all__":
            return list(ast.literal_eval(node.value))
    return None


def has_lazy_names(tree: ast.Module) -> bool:
    """True if the module hands out names by `hand_out`."""
    return any(isinstance(node, ast.Name) and node.id == "hand_out" for node in ast.walk(tree))


def own_names(tree: ast.Module) -> list[str]:
    """The names that a face without `__all__` imports from its folder or defines."""
    names = []
    for node in tree.body:
        if isinstance(node, ast.ImportFrom) and node.level == 1 and node.module:
            names += [alias.asname or alias.name for alias in node.names]
        elif isinstance(node, ast.FunctionDef | ast.ClassDef):
            names.append(node.name)
    return [name for name in names if not name.startswith("_")]


def is_module(module: str, name: str) -> bool:
    """True if a name is a submodule: it has a page, or is inside."""
    path = SOURCE.joinpath(*module.split("."))
    if module == "penstock" and (TRAINERS / f"{name}.py").exists():
        return True
    return (path / name).is_dir() or (path / f"{name}.py").exists()
