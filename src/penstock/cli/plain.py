"""`penstock` without typer and rich: `demo`, `doctor` without data, `--version`."""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

from .. import __version__
from ..errors import PenstockError, UsageError
from .commands import explain_missing

_HELP = """\
Training data from storage to accelerators.

  penstock demo       show what penstock does, in about ten seconds; --folder PATH keeps the data
  penstock doctor     say what this machine has, and what to install for what you want to do
  penstock --version  the version

The other commands need typer and rich: pip install 'penstock[cli]'"""


def run_plain(arguments: list[str], missing: str) -> int:
    """Run the command that the arguments name; `missing` is a package that is not installed."""
    match arguments:
        case [] | ["--help"]:
            print(_HELP)
            return 0
        case ["--version"]:
            print(f"penstock {__version__}")
            return 0
        case ["demo"]:
            return 0 if show_demo(None, print_line) else 1
        case ["demo", "--folder", folder]:
            return 0 if show_demo(Path(folder), print_line) else 1
        case ["demo", path]:
            show_race(path, print_line)
            return 0
        case ["doctor"]:
            show_host(print_line)
            return 0
    print(explain_missing(missing, arguments), file=sys.stderr)
    return 1


def print_line(line: str) -> None:
    """Print a line at once; a heading with a blank line before it."""
    print(f"\n{line[2:]}" if line.startswith("# ") else line, flush=True)


def show_demo(folder: Path | None, say: Callable[[str], object]) -> bool:
    """Run the demonstration in an empty folder, or in a temporary one that is removed."""
    from ..demo.story import run_demo

    with ExitStack() as stack:
        if folder is None:
            made = tempfile.TemporaryDirectory(prefix="penstock-demo-", ignore_cleanup_errors=True)
            folder = Path(stack.enter_context(made))
        try:
            folder.mkdir(parents=True, exist_ok=True)
            if any(folder.iterdir()):
                raise UsageError(f"--folder is {folder}, which is not empty: name a new folder")
            return run_demo(folder.resolve(), say)
        except PenstockError:
            raise
        except OSError as error:
            raise UsageError(
                f"cannot write in {folder} ({error.strerror}): give --folder with 500 MB free"
            ) from None


def show_race(path: str, say: Callable[[str], object]) -> None:
    """Race over the files of a folder."""
    from ..demo.story import race_own_files

    race_own_files(os.path.expanduser(path), say)


def show_host(say: Callable[[str], object]) -> None:
    """List what penstock finds on this machine, and the extras that install what is missing."""
    from ..doctor.doctor import examine_host
    from ..doctor.extras import list_extras

    for finding in examine_host():
        say(f"{finding.level:8} {finding.about:14} {finding.says}")
    say("# To install for what you want to do")
    for extra in list_extras():
        mark = "there" if not extra.missing else f"needs {', '.join(extra.missing)}"
        say(f"penstock[{extra.name}]".ljust(22) + f"{extra.purpose}: {mark}")
