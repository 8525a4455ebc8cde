"""Ten-minute trials: what people do who try a loader, as scripts, counted.

A trial is a script in `trial_scripts`, one command a line, run in a new environment with Python and
nothing else: no compiler, nothing of this checkout but a wheel. It passes if each command ends
well, what it promises is printed, nothing warns, and there are at most five commands. The page
docs/start/ten-minutes.md is one: all of its code, from installing on, prints what the page shows.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from importlib.metadata import distributions
from pathlib import Path
from typing import Literal

from docsite.blocks import make_program

from . import ROOT

COMMANDS_MAX = 5
SCRIPTS = Path(__file__).parent / "trial_scripts"
TORCH_ABORTS = "terminate called without an active exception"
"""What torch says when a thread of its gloo outlives Python: on a busy machine one exit in a
hundred of ranks that import torch alone ends so. Such a command is run once more."""
PROGRAMS = ("sh", "bash", "sed", "cat", "ls", "dirname", "readlink", "uname")
"""What a bare container has that commands use."""


@dataclass(frozen=True)
class Trial:
    """A trial: its script, what lies in the folder beforehand, and what its output ends with.

    prepare:     writes what lies in the folder, given that and the environment's Python.
    with_torch:  it is the environment of someone who has torch and what comes with it;
                 "alone": and nothing else, so that installing torch finds it.
    """

    name: str
    promise: str
    prepare: Callable[[Path, Path], None] = lambda folder, python: None
    with_torch: bool | Literal["alone"] = False


@dataclass(frozen=True)
class Result:
    """What a trial took; `fault` says why it did not pass."""

    name: str
    commands: int
    seconds: float
    words: int
    warnings: int
    fault: str

    @property
    def passed(self) -> bool:
        """Whether it did what it should without a warning and in few commands."""
        return not self.fault


def _write_documents(folder: Path, python: Path) -> None:
    """JSON lines, and a tokenizer that knows their words."""
    words = [f"word{number}" for number in range(500)]
    with open(folder / "documents.jsonl", "w") as file:
        for number in range(2_000):
            text = " ".join(words[(number * 7 + step * step) % 500] for step in range(number % 90))
            print(json.dumps({"text": text, "source": "trial"}), file=file)
    special = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False}
    vocabulary = {"<|endoftext|>": 0, "<unk>": 1} | {word: n + 2 for n, word in enumerate(words)}
    tokenizer = {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [{"id": 0, "content": "<|endoftext|>", "special": True, **special}],
        "normalizer": None,
        "pre_tokenizer": {"type": "Whitespace"},
        "post_processor": None,
        "decoder": None,
        "model": {"type": "WordLevel", "vocab": vocabulary, "unk_token": "<unk>"},
    }
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer))
    shutil.copy(SCRIPTS / "train_tokens.py", folder / "train.py")


_DRAW = """
import pathlib, numpy as np
from PIL import Image
random = np.random.default_rng(0)
for number in range(150):
    name = ("green", "red", "blue")[number % 3]
    height, width = (int(side) for side in random.integers(40, 120, 2))
    pixels = random.integers(0, 80, (height, width, 3)).astype(np.uint8)
    pixels[:, :, ("red", "green", "blue").index(name)] += 120
    path = pathlib.Path("pictures", name, f"{number:03}.jpg")
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(pixels).save(path, quality=90)
"""


def _draw_pictures(folder: Path, python: Path) -> None:
    """JPEG files of three classes, of different sizes."""
    subprocess.run([python, "-c", _DRAW], check=True, cwd=folder)
    shutil.copy(SCRIPTS / "train_pictures.py", folder / "train.py")


def _write_torch_script(folder: Path, python: Path) -> None:
    shutil.copy(SCRIPTS / "train_torch.py", folder / "train.py")


def _write_page(folder: Path, python: Path) -> None:
    """The code of the page, as one program that compares what it prints."""
    page = "docs/start/ten-minutes.md"
    program = make_program(page, (ROOT / page).read_text(), everything=True)
    (folder / "page.py").write_text(program)


TRIALS = (
    Trial("page", r"next: epoch 1 step 0\n\Z", _write_page, with_torch="alone"),
    Trial("demo", r"All held, in \d+ s\."),
    Trial(
        "pictures",
        r"epoch 2: 2 ranks, \[75, 75\] pictures, each once: True",
        _draw_pictures,
        with_torch=True,
    ),
    Trial("tokens", r"1 epoch: [1-9]\d* batches of 4 x 64 tokens", _write_documents),
    Trial("torch", r"epoch 2: 1000 of 1000 samples once", _write_torch_script, with_torch=True),
    Trial("report", r"report\.html", with_torch=True),
)


def run_all(wheel: Path, python: str) -> list[Result]:
    """Run all trials with a wheel; print a line each."""
    results = []
    for trial in TRIALS:
        result = run_trial(trial, wheel, python)
        told = f"{result.commands} commands, {result.seconds:.0f} s, {result.words} words"
        print(f"trial {trial.name}: {result.fault or 'passed'} ({told})", flush=True)
        results.append(result)
    return results


def run_trial(trial: Trial, wheel: Path, python: str) -> Result:
    """Run one trial in an environment of its own, with a wheel for that Python."""
    lines = (SCRIPTS / f"{trial.name}.sh").read_text().splitlines()
    commands = [line for line in lines if line and not line.startswith("#")]
    with tempfile.TemporaryDirectory(prefix="penstock-trial-") as scratch:
        folder = Path(scratch)
        packages = find_torch(python) if trial.with_torch else None
        if trial.with_torch and packages is None:
            return Result(trial.name, 0, 0.0, 0, 0, "no torch here: make setup")
        variables = _prepare_environment(folder, python, packages, trial.with_torch == "alone")
        work = folder / "work"
        (work / "dist").mkdir(parents=True)
        (work / "dist" / wheel.name).symlink_to(wheel.resolve())
        trial.prepare(work, folder / "env" / "bin" / "python")
        output, fault, started = "", "", time.monotonic()
        for command in commands:
            if command.startswith("pip install"):  # what an index would have under that name
                command = command.replace("penstock", str(wheel.resolve()))
            done = _run(command, work, variables)
            if done.returncode and TORCH_ABORTS in done.stdout:
                done = _run(command, work, variables)
            output += done.stdout
            if done.returncode != 0:
                fault = f"`{command}` ended with {done.returncode}:\n{done.stdout[-3000:]}"
                break
        seconds = time.monotonic() - started
    warnings = re.findall(r"(?im)^.*warning.*$", output)
    if not fault and not re.search(trial.promise, output):
        fault = f"its output has no {trial.promise!r}:\n{output[-3000:]}"
    if not fault and warnings:
        fault = f"it warns: {warnings[0]}"
    if not fault and len(commands) > COMMANDS_MAX:
        fault = f"it takes {len(commands)} commands"
    words = len(output.split())
    return Result(trial.name, len(commands), seconds, words, len(warnings), fault)


def _run(command: str, folder: Path, variables: dict[str, str]) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        ["sh", "-ec", command],
        cwd=folder,
        env=variables,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        stdin=subprocess.DEVNULL,
        text=True,
        timeout=600,
    )


def _prepare_environment(
    folder: Path, python: str, packages: Path | None, alone: bool
) -> dict[str, str]:
    environment, programs = folder / "env", folder / "bin"
    subprocess.run([python, "-m", "venv", environment], check=True)
    programs.mkdir()
    for name in PROGRAMS:
        if path := shutil.which(name):
            (programs / name).symlink_to(path)
    if packages is not None:
        _lend_packages(packages, folder / "lent", environment, alone)
    return {
        "PATH": f"{environment / 'bin'}:{programs}",
        "HOME": str(folder),
        "TMPDIR": str(folder),
        "TERM": "dumb",
        "LANG": "C.UTF-8",
        # pip says nothing of itself and of this machine's settings.
        "PIP_DISABLE_PIP_VERSION_CHECK": "1",
        "PIP_EXTRA_INDEX_URL": "",
        **{name: os.environ[name] for name in ("PIP_INDEX_URL", "PIP_CERT") if name in os.environ},
    }


def find_torch(python: str) -> Path | None:
    """The packages of the environment of `make setup`, if it has torch for that Python."""
    command = [python, "-c", "import sysconfig; print(sysconfig.get_python_version())"]
    version = subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()
    packages = ROOT / ".venv" / "lib" / f"python{version}" / "site-packages"
    return packages if (packages / "torch").is_dir() else None


def _lend_packages(packages: Path, lent: Path, environment: Path, alone: bool) -> None:
    """Give an environment packages of another one, without penstock: all, or torch and what it
    needs."""
    lent.mkdir()
    names = find_files_of_torch(packages) if alone else None
    for entry in packages.iterdir():
        name = entry.name.lower()
        if names is not None and entry.name not in names:
            continue
        if "penstock" not in name and not name.endswith(".pth") and not name.startswith("_"):
            (lent / entry.name).symlink_to(entry)
    (site,) = environment.glob("lib/python*/site-packages")
    (site / "lent.pth").write_text(f"{lent}\n")


def find_files_of_torch(packages: Path) -> set[str]:
    """The names in a folder of packages that belong to torch and what it needs, numpy left out."""
    found = {
        each.name.lower().replace("_", "-"): each for each in distributions(path=[str(packages)])
    }
    wanted, names = ["torch"], set[str]()
    for name in wanted:
        if name in found:
            names |= {file.parts[0] for file in found[name].files or () if file.parts[0] != ".."}
            needed = [each for each in found[name].requires or () if ";" not in each]
            wanted += {re.split(r"[^\w.-]", each)[0].lower() for each in needed} - {*wanted}
    return names
