"""python -m benchmarks.dlio_parity [--dlio COMMAND]: DLIO beside `penstock bench run --compat`.

Both run the same workload files over the same data, in turns (A B, B A, ...), and what each says of
its utilisation is held against the other's. The cases are those in which DLIO measures what it says
(PyTorch's loader, one sample a file, steps long against its own work between them), with storage
that keeps up, and storage or preparation that does not. Slow storage is emulated (see `emulation`),
which needs root and libfuse 3; without, those cases are left out and said to be.

DLIO is no dependency: give the command of an environment that has it. It is in the package index
(docs/bench/beside-dlio.md has the words that install it), and is started as its users start it.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from penstock_bench.results.dlio import read_dlio

from . import __main__ as command
from . import emulation
from .contender import ROOT
from .race import say
from .record import Record, Row

POINTS = 1.0
"""The most that utilisation may be from DLIO's, in percent of the time."""

LOADERS = ("torch", "penstock")
"""DLIO's loader is PyTorch's, so that agreement is asked of the first; the other is beside it."""

ORDER = ("dlio", *LOADERS)

QUIET = {"OMP_NUM_THREADS": "1", "DFTRACER_ENABLE": "0"}
"""Environment of both: torch's threads spin where others are at work too, which is not storage's
(torchrun sets the same), and DLIO's tracing is on in 2.0.0 and off by default since."""

MISSING = (
    "pip install dlio_benchmark in an environment of its own (docs/bench/beside-dlio.md), and "
    "give --dlio its command"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """A workload, shrunk until it takes some ten seconds.

    step_s, prepare_s:  of a step's computation; of each sample's preparation in a worker.
    mb_per_s:           what all ranks get from storage together; None: the page cache.
    """

    name: str
    files: int
    record_bytes: int
    batch: int
    threads: int
    step_s: float
    ranks: int = 1
    epochs: int = 2
    prepare_s: float = 0.0
    mb_per_s: float | None = None

    def write(self, path: Path, data: str) -> None:
        """The workload file, of keys that every version of DLIO reads; see `dlio` for one."""
        sections = {
            "model": {"name": "parity"},
            "framework": "pytorch",
            "workflow": {"generate_data": False, "train": True, "checkpoint": False},
            "dataset": {
                "data_folder": data,
                "format": "npz",
                "num_files_train": self.files,
                "num_samples_per_file": 1,
                "record_length_bytes": self.record_bytes,
            },
            "reader": {
                "data_loader": "pytorch",
                "batch_size": self.batch,
                "read_threads": self.threads,
                "prefetch_size": 2,
                "preprocess_time": self.prepare_s,
            },
            "train": {"epochs": self.epochs, "computation_time": self.step_s},
        }
        path.write_text(json.dumps(sections, indent=1))  # which is YAML, too


# Little data, so that the processor is not what binds; few files, since DLIO formats the whole list
# of them for each sample (defect 2); and one worker where storage binds, since of several whoever
# is first decides how much of the waiting is in the first step, which is not measured.
UNET = {"record_bytes": 512**2, "batch": 7, "step_s": 0.323}
RESNET = {"record_bytes": 338**2, "batch": 32, "step_s": 0.224}
SLOW = {"mb_per_s": 3.75, **UNET}
CASES = (
    Case(name="unet3d", files=84, threads=4, **UNET),
    Case(name="unet3d, 2 ranks", files=168, threads=2, ranks=2, **UNET),
    Case(name="unet3d, no workers", files=84, threads=0, **UNET),
    Case(name="resnet50, a file a sample", files=384, threads=2, **RESNET),
    Case(name="unet3d, 3.75 MB/s", files=84, threads=1, **SLOW),
    Case(name="unet3d, 3.75 MB/s, 2 ranks", files=84, threads=1, ranks=2, **SLOW),
    Case(name="unet3d, 3.75 MB/s, no workers", files=84, threads=0, **SLOW),
    Case(name="unet3d, 0.15 s a sample to prepare", files=84, threads=2, prepare_s=0.15, **UNET),
)


class Result(NamedTuple):
    """The figures of one run: utilisation in percent as the program itself has it; and utilisation
    and samples a second worked out of its step times, in the same way for both programs."""

    said: float
    au: float
    rate: float


Runs = dict[str, list[Result]]
"""The runs of a case, by turn: DLIO's ("dlio"), and penstock's by loader."""


def main(arguments: Sequence[str] | None = None) -> None:
    options = parse(arguments)
    program = shutil.which(options.dlio)
    if program is None:
        sys.exit(f"--dlio: there is no command {options.dlio!r}: {MISSING}")
    version = probe(program)
    record = Record("dlio-parity", 0, {"dlio": version, "turns": options.turns})
    cases = [case for case in CASES if options.only in case.name]
    absent = emulation.usable()
    able = [case for case in cases if case.mb_per_s is None or absent is None]
    left_out = [Row(case.name, None, "%", note=f"absent: {absent}")
                for case in cases if case not in able]  # fmt: skip
    found: dict[str, Runs] = {case.name: {name: [] for name in ORDER} for case in able}
    with tempfile.TemporaryDirectory(prefix="dlio-parity-", dir=options.data) as folder:
        for turn in range(options.turns):
            for case in able:
                take(program, case, Path(folder), turn, found[case.name])
            rows = [row for case in able for row in rows_of(case, found[case.name])]
            record.rows = rows + left_out
            record.raw["parity"] = {"runs": plain(found)}
            record.write()
    print(f"DLIO {version}")
    command.finish(record)


def plain(found: Mapping[str, Runs]) -> dict[str, Any]:
    """The runs as a record has them."""
    return {
        case: {name: [run._asdict() for run in each] for name, each in runs.items()}
        for case, runs in found.items()
    }


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.dlio_parity", description=__doc__)
    parser.add_argument("--dlio", default="dlio_benchmark", help="the command of DLIO")
    parser.add_argument("--turns", type=int, default=3, help="of each program and case")
    parser.add_argument("--only", default="", help="cases with this in their names")
    parser.add_argument("--data", default=None, help="where data is made; removed afterwards")
    return parser.parse_args(arguments)


def probe(program: str) -> str:
    """The version of DLIO behind a command; exits where it does not start."""
    done = subprocess.run([program, "--help"], capture_output=True, text=True, check=False)
    if done.returncode != 0:
        said = (done.stderr or done.stdout).strip().splitlines() or ["it says nothing"]
        sys.exit(f"{program} does not start ({said[-1]}): {MISSING}")
    asked = "import importlib.metadata as m; print(m.version('dlio_benchmark'))"
    python = str(Path(program).with_name("python"))
    told = subprocess.run([python, "-c", asked], capture_output=True, text=True, check=False)
    return told.stdout.strip() or "of unknown version"


def take(program: str, case: Case, place: Path, turn: int, found: Runs) -> None:
    """One run of each program, in the other sequence every other turn."""
    data = place / f"{case.files}x{case.record_bytes}"
    workload = place / "config" / "workload" / "parity.yaml"
    workload.parent.mkdir(parents=True, exist_ok=True)
    if not data.exists():
        case.write(workload, str(data))
        penstock("generate", str(workload))
    out = place / "out"
    with stored(case, data) as folder:
        case.write(workload, folder)
        for name in ORDER if turn % 2 == 0 else reversed(ORDER):
            if name == "dlio":
                dlio(program, case, workload.parent.parent, out)
            else:
                penstock(
                    "run", str(workload), "--compat", "--loader", name, "--no-control",
                    "--no-verdict", "--output", str(out), ranks=case.ranks,
                )  # fmt: skip
            found[name].append(result(out))
            shutil.rmtree(out)
    last = ", ".join(f"{name} {each[-1].au:.2f} %" for name, each in found.items())
    say(f"{case.name}, turn {turn + 1}: {last}")


@contextlib.contextmanager
def stored(case: Case, data: Path) -> Iterator[str]:
    """The folder that both programs read: as it is, its pages in memory, or as slow storage whose
    pages are forgotten when a file is closed."""
    if case.mb_per_s is None:
        for path in data.glob("*/*.npz"):
            path.read_bytes()
        yield str(data)
        return
    with emulation.Shared(bytes_per_s=case.mb_per_s * 1e6, calibrate=True) as storage:
        yield storage.mount(data).path


def dlio(program: str, case: Case, config: Path, out: Path) -> None:
    """DLIO, as its documentation starts it. Its releases up to 2.0.0 know the size of a record by
    another name, which later ones ignore."""
    words = [program, "--config-dir", str(config), "workload=parity", f"hydra.run.dir={out}"]
    words.append(f"++workload.dataset.record_length={case.record_bytes}")
    called([*of_ranks(program, case.ranks), *words])


def penstock(*arguments: str, ranks: int = 1) -> None:
    """`penstock bench` of this tree."""
    words = [sys.executable, "-m", "penstock", "bench", *arguments]
    called([*of_ranks(sys.executable, ranks), *words])


def of_ranks(program: str, ranks: int) -> list[str]:
    """The words before a command of several ranks: both programs are started by MPI."""
    if ranks == 1:
        return []
    beside = f"{Path(program).parent}{os.pathsep}{os.environ['PATH']}"
    mpiexec = shutil.which("mpiexec", path=beside)
    if mpiexec is None:
        sys.exit(f"there is no mpiexec for {program} on several ranks: pip install mpi4py mpich")
    return [mpiexec, "-n", str(ranks)]


def called(words: Sequence[str]) -> None:
    done = subprocess.run(
        words, capture_output=True, text=True, check=False, cwd=ROOT, env=os.environ | QUIET
    )
    if done.returncode != 0:
        sys.exit(f"{' '.join(words)} failed:\n{done.stdout[-2000:]}{done.stderr[-2000:]}")


def result(folder: Path) -> Result:
    """The result of a run, from DLIO's files, which both programs write."""
    (run,) = read_dlio(folder)["runs"]
    said = json.loads((folder / "summary.json").read_text())["metric"]["train_au_mean_percentage"]
    return Result(said, 100 * run["au"]["raw"], run["samples_per_s"])


def rows_of(case: Case, runs: Runs) -> list[Row]:
    """A row a loader: its utilisation beside DLIO's, and how far apart they are, turn by turn.
    Where others are at work on the machine, best turns say more."""
    found = []
    theirs = runs["dlio"]
    spread = [run.au for run in theirs]
    for name in LOADERS:
        pairs = list(zip(runs[name], theirs, strict=True))
        apart = [ours.au - other.au for ours, other in pairs]
        said = statistics.median(ours.said - other.said for ours, other in pairs)
        rate = statistics.median(ours.rate / other.rate for ours, other in pairs)
        asked = name == LOADERS[0]
        middle = statistics.median(apart)
        found.append(
            Row(
                f"{case.name}, --loader {name}",
                statistics.median(run.au for run in runs[name]),
                "%",
                floor=statistics.median(spread),
                target=POINTS if asked else None,
                met=abs(middle) <= POINTS if asked else None,
                note=f"{middle:+.2f} points ({min(apart):+.2f}..{max(apart):+.2f}), as each says "
                f"{said:+.2f}; best turns {max(run.au for run in runs[name]):.2f} and "
                f"{max(spread):.2f}; samples/s x{rate:.3f}",
            )
        )
    return found


if __name__ == "__main__":
    main()
