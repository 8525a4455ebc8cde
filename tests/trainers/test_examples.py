"""The commands of docs/trainers/: a run that is killed, and one that goes on after it."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

from tests import ROOT

EXAMPLES = ROOT / "examples"
SCRIPTS = sorted(EXAMPLES.glob("trainer_*.py"))
COMMAND = re.compile(r"^ *python (examples/(trainer_\w+)\.py .*)$", re.MULTILINE)
PACKAGES = {"lightning": "pytorch_lightning"}


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda script: script.stem)
def test_killed_and_resumed(script: Path, tmp_path: Path) -> None:
    """The page's two commands print the script's .out file. UPDATE_EXAMPLES=1 writes it anew."""
    trainer = script.stem.removeprefix("trainer_")
    if find_spec(PACKAGES.get(trainer, trainer)) is None:
        pytest.skip(f"{trainer} is not installed")
    page = (ROOT / "docs" / "trainers" / f"{trainer}.md").read_text()
    commands = [found[1] for found in COMMAND.finditer(page) if found[2] == script.stem]
    assert len(commands) == 2, f"docs/trainers/{trainer}.md has {commands}"
    assert commands == [found[1] for found in COMMAND.finditer(script.read_text())]
    (tmp_path / "examples").symlink_to(EXAMPLES)
    output = ""
    for command, code in zip(commands, (1, 0), strict=True):
        done = subprocess.run(
            [sys.executable, *shlex.split(command)],
            cwd=tmp_path,
            # DeepSpeed, which accelerate imports, prints what it chooses by itself.
            env={**os.environ, "OMP_NUM_THREADS": "1", "DS_ACCELERATOR": "cpu"},
            capture_output=True,
            text=True,
            check=False,
            timeout=280,
        )
        assert done.returncode == code, done.stdout + done.stderr
        output += done.stdout
    golden = script.with_suffix(".out")
    if os.environ.get("UPDATE_EXAMPLES"):
        golden.write_text(output)
    assert output == golden.read_text()
