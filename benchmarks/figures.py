"""Measure all that docs/performance.md quotes, in one go, from one commit.

    python -m benchmarks.figures                    # all, then the pages
    python -m benchmarks.figures --only share bench # some records
    python -m benchmarks.figures --list

A tree with uncommitted changes is refused: a record names the commit that it is of. What is
computed runs first, two at a time: `share` quotes the record of `schedules`. What is timed runs
alone, and waits for a quiet machine. A study that cannot run here, fails or takes too long leaves a
record with the rows that it wrote, if any, which says why: an old one never stays in its place. The
order is the same in each run. Where studies would take more than 75 minutes together, by what they
took before, each row has less time to settle; inputs are made once, and count as well.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections import deque
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

from . import record
from .contender import ROOT
from .pairing import ROW_S, ROW_VARIABLE
from .record import LOAD_MAX, Record, count_busy_cores, find_reasons, read_record

WHOLE_S = 75 * 60.0
"""Time for all studies whose inputs, films and archives and the like, are there from before."""
ROW_S_LEAST = 0.5
QUIET_S = 180
"""Longest wait for a quiet machine before a study; its record names the load in any case."""
GENERATED = (
    *("benchmarks/results", "docs/performance.md", "docs/speed.svg"),
    *("docs/scale", "docs/sizes.svg"),
)
"""Paths that a run writes itself, so that they may have changed."""


class Study(NamedTuple):
    """A record, and the command that makes it.

    minutes:   at most; then the study is ended.
    needs:     what the machine must have, "root" and "fuse", and what must be given, "photos" and
               "wheel", which are put into the command.
    is_timed:  False if its rows are computed, so that another may run beside it.
    room_gb:   of the disk, for its files: checkpoints, containers, films.
    """

    record: str
    command: str
    minutes: float
    needs: tuple[str, ...] = ()
    is_timed: bool = True
    room_gb: float = 15


STUDIES = (
    Study("bench", "benchmarks", 15),
    Study("lmdb", "benchmarks.lmdb_study", 8, ("root", "fuse")),
    Study("image-folder", "benchmarks.image_folder --photos {photos}", 7, ("photos",)),
    Study("images", "benchmarks.images --photos {photos}", 5, ("photos",)),
    Study("text", "benchmarks.text", 4),
    Study("formats", "benchmarks.containers", 6),
    Study("engines", "benchmarks.engines --rounds 3 --tokens-mb 72", 12),
    Study("clips", "benchmarks.clips", 25),
    Study("lerobot", "benchmarks.lerobot", 8),
    Study("audio", "benchmarks.audio", 8),
    Study("cluster", "benchmarks.cluster", 11, ("root", "fuse")),
    Study("share", "benchmarks.share", 12, ("root", "fuse")),
    Study("checkpoint", "benchmarks.checkpoint", 7),
    Study("asynchrony", "benchmarks.asynchrony", 3),
    Study("foreign", "benchmarks.foreign", 7),
    Study("skewed", "benchmarks.skewed", 4),
    Study("wheel", "benchmarks.from_wheel {wheel} --photos {photos}", 7, ("wheel", "photos")),
    Study("sizes", "benchmarks.sizes", 6),
    Study("objects", "benchmarks.objects", 5),
    Study("tokenizing", "benchmarks.tokenizing", 6),
    Study("columns", "benchmarks.columns", 1),
    Study("annotations", "benchmarks.annotations", 4),
    Study("selecting", "benchmarks.selecting", 2),
    Study("step_loader", "benchmarks.step_loader --pairs 11", 1),
    Study("shuffling", "benchmarks.shuffling", 4),
    Study("packing", "benchmarks.packing", 2),
    Study("bench-bench", "benchmarks.bench", 4),
    Study("sim-live", "benchmarks.simulate_live", 4, ("root", "fuse")),
    Study("survey", "benchmarks.survey --files 300_000", 5),
    Study("arrays", "benchmarks.arrays", 14),
    Study("scale", "benchmarks.scale", 12),
    Study("schedules", "benchmarks.schedules", 12, is_timed=False),
    Study("sim", "benchmarks.sim", 10, is_timed=False),
)


def list_changes() -> list[str]:
    """Files that differ from the commit, but for those that a run writes."""
    command = ["git", "status", "--porcelain", "--untracked-files=all"]
    lines = subprocess.check_output(command, cwd=ROOT, text=True).splitlines()
    return [line[3:] for line in lines if not line[3:].startswith(GENERATED)]


Given = Mapping[str, Path | None]
"""Paths that the user has given, by need."""


def find_lack(study: Study, given: Given) -> str:
    """The first need of a study that the machine lacks; empty if it can run."""
    lacks = {
        "root": os.geteuid() != 0 and "root may mount its storage, and this is another user",
        "fuse": not os.path.exists("/dev/fuse") and "there is no /dev/fuse",
        "photos": not given.get("photos") and "no photographs were given: --photos FOLDER",
        "wheel": not given.get("wheel") and "no wheel was given: --wheel FILE",
    }
    if lack := next((lack for need in study.needs if (lack := lacks[need])), ""):
        return lack
    free_gb = shutil.disk_usage(ROOT).free / 1e9
    if free_gb >= study.room_gb:
        return ""
    return f"{free_gb:.0f} GB of room on the disk are not {study.room_gb:g}: empty bench-data"


def leave_out(study: Study, why: str) -> None:
    """Replace the record of a study by one that says why it was not measured."""
    print(f"{study.record}: left out: {why}", flush=True)
    Record(study.record, 0, {"note": f"not measured: {why}"}).write()


def find_written(study: Study) -> int:
    """When the record of a study was written, in nanoseconds; 0 if there is none."""
    path = record.RESULTS / f"{study.record}.json"
    return path.stat().st_mtime_ns if path.exists() else 0


def wait_for_quiet() -> None:
    """Wait until few enough cores are busy for a verdict, or `QUIET_S` have passed."""
    until = time.monotonic() + QUIET_S
    while count_busy_cores() > LOAD_MAX and time.monotonic() < until:
        pass


class Run:
    """A study that runs, in a process group of its own; its output goes to a file."""

    def __init__(self, study: Study, given: Given, logs: Path, row_s: float = ROW_S) -> None:
        self.study, self.began, self.written = study, time.monotonic(), find_written(study)
        self.log = logs / f"{study.record}.log"
        words = study.command.format_map(given).split(" ")
        environment = {**os.environ, ROW_VARIABLE: f"{row_s:.2f}"}
        if "foreign" in words[0]:
            environment["OMP_NUM_THREADS"] = "1"
        with open(self.log, "wb") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-m", *words],
                cwd=ROOT,
                env=environment,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    def wait(self) -> None:
        """Wait for the end, and say what there is."""
        left = self.began + 60 * self.study.minutes - time.monotonic()
        try:
            code = self.process.wait(max(left, 0))
        except subprocess.TimeoutExpired:
            self.stop()
            self.keep_rows(f"it took more than {self.study.minutes:g} minutes")
            return
        if code:
            last = self.log.read_text(errors="replace").strip().rpartition("\n")[2]
            self.keep_rows(f"it ended with code {code}: {last:.200}")
        else:
            print(summarize(self.study.record), flush=True)

    def keep_rows(self, why: str) -> None:
        """Keep the rows that a study wrote before its end, if any, and say why it ended."""
        if find_written(self.study) == self.written:
            leave_out(self.study, why)
            return
        found = read_record(self.study.record)
        found["configuration"]["note"] = f"later rows were not measured: {why}"
        path = record.RESULTS / f"{self.study.record}.json"
        path.write_text(json.dumps(found, indent=1) + "\n")
        print(f"{summarize(self.study.record)}; {why}", flush=True)

    def stop(self) -> None:
        """End the study with all that it started."""
        os.killpg(self.process.pid, signal.SIGTERM)
        try:
            self.process.wait(20)
        except subprocess.TimeoutExpired:
            os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait()


def summarize(name: str) -> str:
    """One line on a record: its rows with a target, by verdict."""
    found = read_record(name)
    rows = [row for row in found["rows"] if row["target"] is not None]
    unstable = [row for row in rows if find_reasons(row, found)]
    missed = [row for row in rows if row not in unstable and row["met"] is False]
    met = [row for row in rows if row not in unstable and row["met"]]
    counts = f"{len(met)} met, {len(missed)} missed"
    return f"{name}: {found['seconds']:.0f} s, {counts}, {len(unstable)} unstable"


def find_usual_s(study: Study) -> float:
    """The seconds that a study took when its record was made; 0 if it was not."""
    seconds: float = read_record(study.record).get("seconds", 0) if find_written(study) else 0
    return seconds


def choose_row_s(left_s: float, usual_s: float) -> float:
    """The seconds for the turns of a row: all of `ROW_S` if studies that usually take `usual_s` fit
    into what is left, else less, as long as they do not. Most of a study does not shrink with its
    rows, so these shrink by more."""
    share = 1.0 if left_s >= usual_s else max(0.0, left_s / usual_s) ** 3
    return max(ROW_S_LEAST, ROW_S * share)


def run_studies(studies: list[Study], given: Given, logs: Path) -> None:
    """Run studies: those that are computed two at a time, then those that are timed one by one."""
    beside: deque[Run] = deque()
    usual_s = {study.record: find_usual_s(study) for study in studies if study.is_timed}
    until = time.monotonic() + WHOLE_S
    for number, study in enumerate(sorted(studies, key=lambda one: one.is_timed), 1):
        while len(beside) > (not study.is_timed):
            beside.popleft().wait()
        if lack := find_lack(study, given):
            leave_out(study, lack)
            continue
        if study.is_timed:
            wait_for_quiet()
        row_s = choose_row_s(until - time.monotonic(), sum(usual_s.values()))
        usual_s.pop(study.record, None)
        print(f"[{number}/{len(studies)}] {study.record} ({row_s:.1f} s a row) ...", flush=True)
        beside.append(Run(study, given, logs, row_s))
    while beside:
        beside.popleft().wait()


def _resolve(path: str) -> Path:
    return Path(path).resolve()


def main() -> None:
    """Measure, and write the pages."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.figures", description=__doc__)
    parser.add_argument("--only", nargs="+", metavar="RECORD", help="these records alone")
    parser.add_argument("--photos", type=_resolve, help="folder of JPEG files")
    parser.add_argument("--wheel", type=_resolve, help="of this tree, as `make wheels` builds it")
    parser.add_argument("--list", action="store_true", help="list the studies, and run none")
    options = parser.parse_args()
    names = [study.record for study in STUDIES]
    if unknown := sorted({*(options.only or ())} - {*names}):
        parser.error(f"no record {', '.join(unknown)}: there are {', '.join(names)}")
    studies = [one for one in STUDIES if options.only is None or one.record in options.only]
    if options.list:
        for one in studies:
            print(f"{one.record:14} {one.minutes:4g} min  python -m {one.command}")
        return
    if changes := list_changes():
        sys.exit(f"{changes[0]} and {len(changes) - 1} more are not committed: commit them first")
    began = time.monotonic()
    logs = ROOT / "build" / "figures"
    logs.mkdir(parents=True, exist_ok=True)
    run_studies(studies, {"photos": options.photos, "wheel": options.wheel}, logs)
    subprocess.run([sys.executable, "-m", "benchmarks.report"], cwd=ROOT, check=True)
    print(f"{(time.monotonic() - began) / 60:.0f} minutes; logs are in {logs.relative_to(ROOT)}")


if __name__ == "__main__":
    main()
