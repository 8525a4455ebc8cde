"""Completion of commands and options, for the shells that have it."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests import warm
from tests.slices import first

SHELLS = ("bash", "zsh", "fish")


def complete(shell: str, *words: str) -> str:
    """Return the words that completion offers for the last one."""
    variables = {"_PENSTOCK_COMPLETE": f"complete_{shell}"}
    line = " ".join(("penstock", *words))
    variables |= {"COMP_WORDS": line, "COMP_CWORD": str(len(words))}
    variables |= {"_TYPER_COMPLETE_ARGS": line, "_TYPER_COMPLETE_FISH_ACTION": "get-args"}
    code = "import sys; sys.argv[0] = 'penstock'; from penstock.cli import main; main()"
    done = warm.run(
        [sys.executable, "-c", code],
        env=os.environ | variables,
        capture_output=True,
        text=True,
        lean=True,
    )
    return done.stdout


@pytest.mark.parametrize("shell", first(1, SHELLS))
def test_commands_and_options_are_completed(shell: str) -> None:
    """A command by its beginning, and an option of a command whose module is not loaded yet."""
    assert "inspect" in complete(shell, "insp")
    assert "checkpoint" not in complete(shell, "insp")
    assert "--format" in complete(shell, "inspect", "--fo")


@pytest.mark.parametrize("shell", SHELLS)
@pytest.mark.long
def test_the_shell_takes_the_script(shell: str, tmp_path: Path) -> None:
    """The script that --show-completion prints is one of that shell, if it is installed."""
    program = shutil.which(shell)
    if program is None:
        pytest.skip(f"{shell} is not installed")
    code = "import sys; sys.argv[0] = 'penstock'; from penstock.cli import main; main()"
    done = subprocess.run(
        [sys.executable, "-c", code],
        env=os.environ | {"_PENSTOCK_COMPLETE": f"source_{shell}"},
        capture_output=True,
        text=True,
        check=True,
    )
    script = tmp_path / "script"
    script.write_text(done.stdout)
    assert "_PENSTOCK_COMPLETE" in done.stdout
    subprocess.run([program, "-n", script], check=True)


@pytest.mark.parametrize(
    ("words", "offered", "other"),
    [
        (("bench", "run", "unet3d_"), "unet3d_h100", "resnet50_h100"),
        (("bench", "run", "unet3d_h100", "--loader", "li"), "litdata", "torch"),
        (("simulate", "imagenet-"), "imagenet-1k", "openimages"),
        (("simulate", "s1", "--policy", "nop"), "nopfs", "naive"),
        (("plan", "open"), "openimages", "imagenet-1k"),
        (("inspect", "data", "--format", "tf"), "tfrecord", "tree"),
    ],
)
@pytest.mark.long
def test_names_are_completed(words: tuple[str, ...], offered: str, other: str) -> None:
    """Names that begin as the word does are offered, and no others."""
    found = complete("bash", *words).split()
    assert offered in found
    assert other not in found
