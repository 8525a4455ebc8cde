"""Faces hand adapters out lazily: a trainer is imported by whoever uses its adapter."""

from __future__ import annotations

import subprocess
import sys

import pytest

from tests.tidy import SOURCE

TRAINERS = {"accelerate", "grain", "jax", "keras", "lightning", "megatron", "pytorch_lightning"} | {
    "ray",
    "torch",
    "torchdata",
    "torchtitan",
    "transformers",
}


def run(code: str) -> str:
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_importing_penstock_imports_no_trainer() -> None:
    code = "import penstock, penstock.trainers, sys\n"
    assert run(f"{code}print(sorted({TRAINERS} & sys.modules.keys()))") == "[]\n"


@pytest.mark.long
def test_an_adapter_is_an_attribute_and_a_name() -> None:
    """`penstock.x` and `from penstock import x` are one module, without its trainer."""
    code = "import penstock, sys\npenstock.megatron\nfrom penstock import megatron\n"
    code += "print(megatron is penstock.megatron, megatron.__name__)\n"
    code += f"print(sorted({TRAINERS} & sys.modules.keys()))"
    assert run(code) == "True penstock.trainers.megatron\n['torch']\n"


@pytest.mark.long
def test_an_adapter_is_imported_as_it_reads() -> None:
    """`import penstock.x` and `from penstock.x import y` find the one module."""
    code = "import importlib, pkgutil, sys, penstock.trainers\n"
    code += "from penstock.megatron import iterator\nimport penstock.megatron\n"
    code += "assert sys.modules['penstock.trainers.megatron'] is penstock.megatron\n"
    code += "for found in pkgutil.iter_modules(penstock.trainers.__path__):\n"
    code += "    if found.name.startswith('ray_'): continue\n"  # what penstock.ray hands out
    code += "    try: module = importlib.import_module('penstock.' + found.name)\n"
    code += "    except ModuleNotFoundError as no: assert 'penstock.' + found.name != no.name\n"
    code += "    else: print(module.__spec__.name == 'penstock.trainers.' + found.name)\n"
    code += "try: import penstock.nothing\n"
    code += "except ModuleNotFoundError as error: print(error)\n"
    *found, missing = run(code).splitlines()
    assert set(found) == {"True"}
    assert missing == "No module named 'penstock.nothing'"


def test_adapters_are_small() -> None:
    """An adapter translates: what needs more lines belongs to the loader."""
    for path in (SOURCE / "penstock" / "trainers").glob("*.py"):
        assert len(path.read_text().splitlines()) <= 120, path
