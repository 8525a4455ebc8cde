"""The commands of `penstock`, by name, and those that run without typer and rich.

The table has the commands of the applications too: `penstock --help` imports none of them.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import NamedTuple

from .. import __version__
from ..errors import PenstockError, UsageError, say_install


class LazyCommand(NamedTuple):
    """A command as the help of its group shows it.

    heading:  section of the help.
    summary:  first paragraph of the command's own help.
    module:   dotted module with the command: its function of the command's name, or its `app`.
    extra:    extra of penstock with the packages of the command line and of the module.
    """

    heading: str
    summary: str
    module: str
    extra: str = "cli"


_SUMMARIES = {
    "Data": {
        "inspect": "Show what a data set is: samples, sizes, labels, the state of its index. "
        "Writes nothing.",
        "index": "Find the samples of a data set and save where they are, beside the data.",
        "lengths": "Measure how long each sample of a data set is, and save that beside the index.",
        "stats": "Measure mean, deviation and extrema of each field of numbers, and save that "
        "beside the index.",
        "formats": "List the formats that are read, and the options that each takes.",
        "convert": "Write a data set as tar (WebDataset), TFRecord, records or LMDB, and verify "
        "it.",
        "tokenize": "Write the tokens of texts as Megatron's .bin and .idx, and verify them.",
    },
    "On many machines": {
        "plan-work": "Plan work that many programs share: an index, shards, tokens, lengths, "
        "statistics, a check.",
        "work": "Do tasks of a plan: here one after the other, or on an engine.",
        "commit": "Put the tasks of a plan together, when all are done. Names those that are "
        "missing.",
    },
    "Before a run": {
        "demo": "Show what penstock does: an exact shuffle, kill -9 and an exact resume, a race.",
        "doctor": "Say what will be slow, and why: storage, memory, cores, limits, settings. "
        "Writes nothing.",
        "bench": "DLIO and MLPerf Storage workloads, any loader, one report.",
        "simulate": "Simulate policies of caching and prefetching on a cluster that is described.",
        "plan": "Find the cheapest cluster whose epochs are short enough: nodes, caches and "
        "storage.",
        "schedule": "Plan when jobs transfer through a storage that they share.",
    },
    "During and after": {
        "top": "Show the jobs that share this host: what each holds, brings, and waits for.",
        "broker": "Share this host's cores and storage bandwidth among the jobs on it.",
        "trace": "Record what a job reads, take it from logs, or look at it.",
        "checkpoint": "Checkpoints: list them, verify them, remove old ones; how often to save "
        "one.",
    },
}
_MODULES = {
    "lengths": "index",
    "stats": "index",
    "formats": "inspect",
    "tokenize": "convert",
    "top": "broker",
    "plan-work": "plan_work",
    "commit": "work",
}
_MODULES |= {"demo": "doctor"}
"""Modules of the commands that have none of their name."""
_APPLICATIONS = dict.fromkeys(("bench", "trace"), "bench")
_APPLICATIONS |= dict.fromkeys(("simulate", "plan", "schedule"), "sim")
"""Extras of the applications' commands: bench of penstock_bench, sim of penstock_sim."""


def _make_command(heading: str, name: str, summary: str) -> LazyCommand:
    if extra := _APPLICATIONS.get(name):
        return LazyCommand(heading, summary, f"penstock_{extra}.cli.{name}", extra)
    return LazyCommand(heading, summary, f"penstock.cli.{_MODULES.get(name, name)}")


COMMANDS = {
    name: _make_command(heading, name, summary)
    for heading, summaries in _SUMMARIES.items()
    for name, summary in summaries.items()
}


def explain_missing(module: str | None, arguments: Sequence[str]) -> str:
    """Describe how to install what a command line needs: all that is missing, not one by one."""
    from ..doctor.doctor import list_extras

    name = arguments[0] if arguments else ""
    extra = COMMANDS[name].extra if name in COMMANDS else "cli"
    missing = next((found.missing for found in list_extras() if found.name == extra), ())
    packages = " ".join(missing) or str(module)
    return f"penstock {name} needs {packages}: {say_install(packages, extra)}".replace("  ", " ")


# -- without typer and rich ------------------------------------------------------------------------

_HELP = """\
Training data from storage to accelerators.

  penstock demo       show what penstock does, in about ten seconds; --output PATH keeps the data
  penstock doctor     say what this machine has, and what to install for what you want to do
  penstock --version  the version

The other commands need typer and rich: pip install typer rich (or 'penstock[cli]')"""


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
        case ["demo", "--output" | "-o", folder]:
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
    import tempfile  # not needed by --help

    from ..demo.story import run_demo

    with ExitStack() as stack:
        if folder is None:
            made = tempfile.TemporaryDirectory(prefix="penstock-demo-", ignore_cleanup_errors=True)
            folder = Path(stack.enter_context(made))
        try:
            folder.mkdir(parents=True, exist_ok=True)
            if any(folder.iterdir()):
                raise UsageError(f"--output is {folder}, which is not empty: name a new folder")
            return run_demo(folder.resolve(), say)
        except PenstockError:
            raise
        except OSError as error:
            what = f"cannot write in {folder} ({error.strerror})"
            raise UsageError(f"{what}: give --output with 500 MB free") from None


def show_race(path: str, say: Callable[[str], object]) -> None:
    """Race over the files of a folder."""
    from ..demo.story import race_own_files

    race_own_files(os.path.expanduser(path), say)


def show_host(say: Callable[[str], object]) -> None:
    """List what penstock finds on this machine, and the extras that install what is missing."""
    from ..doctor.doctor import examine_host, list_extras

    for finding in examine_host():
        say(f"{finding.level:8} {finding.about:14} {finding.says}")
    say("# To install for what you want to do")
    for extra in list_extras():
        mark = f"pip install {' '.join(extra.missing)}" if extra.missing else "there"
        say(f"penstock[{extra.name}]".ljust(22) + f"{extra.purpose}: {mark}")
