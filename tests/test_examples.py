"""The examples run, and print what stands beside them."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parent.parent / "examples"
SCRIPTS = sorted(EXAMPLES.glob("[0-9]*.py"))


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda script: script.stem)
def test_example(script: Path) -> None:
    """Each script prints exactly its .out file. UPDATE_EXAMPLES=1 writes those anew."""
    done = subprocess.run(
        [sys.executable, "-W", "error", script], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    golden = script.with_suffix(".out")
    if os.environ.get("UPDATE_EXAMPLES"):
        golden.write_text(done.stdout)
    assert done.stdout == golden.read_text()
    assert done.stderr == ""


def test_every_example_has_its_output() -> None:
    """No script without a golden output, and none without its script."""
    assert [script.stem for script in SCRIPTS] == sorted(p.stem for p in EXAMPLES.glob("*.out"))
