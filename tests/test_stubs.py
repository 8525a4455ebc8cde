"""The stubs of the compiled modules describe the modules that were built."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import penstock

SOURCE = Path(penstock.__file__).parent.parent
PYPROJECT = Path(__file__).parent.parent / "pyproject.toml"


@pytest.mark.parametrize(
    "module", ["penstock._core", "penstock_bench._replay", "penstock_sim._kernels"]
)
def test_stub_agrees_with_the_compiled_module(module: str, tmp_path: Path) -> None:
    """Stubs that are generated from the build are those that lie beside the package."""
    pytest.importorskip("nanobind", reason="writes the stubs")
    ruff = shutil.which("ruff") or str(Path(sys.executable).parent / "ruff")
    path = SOURCE / f"{module.replace('.', '/')}.pyi"
    stub = tmp_path / path.name
    for command in (
        [sys.executable, "-m", "nanobind.stubgen", "-q", "-m", module, "-o", stub],
        [ruff, "format", "-q", "--config", PYPROJECT, stub],
    ):
        subprocess.run(command, check=True, timeout=240)
    assert stub.read_text() == path.read_text(), f"{path} describes another build: run `make stubs`"
