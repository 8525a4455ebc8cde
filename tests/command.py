"""`penstock ...` in the process of a test: all of it but its start, which takes longer than most
commands. Tests of the process itself (signals, imports, a terminal, other users) start one.
"""

from __future__ import annotations

import io
import sys
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path
from typing import NamedTuple

import pytest

from penstock.__main__ import main


class Ran(NamedTuple):
    """The output of a command, and its exit code."""

    stdout: str
    stderr: str
    returncode: int


def run(*arguments: object, folder: Path | None = None, code: int = 0, **environ: str) -> Ran:
    """The command as it ended, with this exit code.

    folder:   where it runs.
    environ:  variables of the environment that are other than here.
    """
    words = ["penstock", *map(str, arguments)]
    out, err = _written(), _written()
    with (
        pytest.MonkeyPatch.context() as changed,
        redirect_stdout(out),
        redirect_stderr(err),
        pytest.raises(SystemExit) as ended,
    ):
        changed.setattr(sys, "argv", words)
        for name, value in {"COLUMNS": "200", "TERM": "dumb", **environ}.items():
            changed.setenv(name, value)
        if folder is not None:
            changed.chdir(folder)
        main()
    found = ended.value.code or 0
    assert isinstance(found, int)
    ran = Ran(_read(out), _read(err), found)
    assert ran.returncode == code, ran.stdout + ran.stderr
    return ran


def _written() -> io.TextIOWrapper:
    """A stream that behaves as a pipe does to its writer."""
    return io.TextIOWrapper(io.BytesIO(), "utf-8", line_buffering=True, write_through=True)


def _read(stream: io.TextIOWrapper) -> str:
    stream.flush()
    buffer = stream.buffer
    assert isinstance(buffer, io.BytesIO)
    return buffer.getvalue().decode()
