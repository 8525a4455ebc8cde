"""`penstock bench run`: a workload, with any loader."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import typer

from penstock import limits
from penstock.arguments import check_choice
from penstock.cli import explain_interrupt, setting
from penstock.errors import MissingError, PenstockError, UsageError

from .bench import complete_loader, complete_workload

if TYPE_CHECKING:
    from ..ranks import Crew
    from ..run import BenchJob, Walks
    from ..workload import DlioWorkload

T = TypeVar("T")

# What is not needed before the first step is imported later: the first step should come soon.


@explain_interrupt(
    "no results were written; data that were generated stay, and the same command uses them"
)
def run(
    workload: Annotated[
        str,
        typer.Argument(
            help="A name that `penstock bench list` shows, or the path of a .yaml file of DLIO.",
            autocompletion=complete_workload,
        ),
    ],
    overrides: Annotated[
        list[str] | None,
        typer.Argument(help="Such as ++workload.reader.batch_size=8, as DLIO takes them."),
    ] = None,
    loader: list[str] | None = setting(
        None,
        "penstock, penstock-bytes (nothing decoded), torch, grain, litdata, webdataset, spdl, "
        "ffcv, none (no reading), or module:function for your own; may be repeated.",
        show_default="penstock; of objects penstock-bytes, too",
        autocompletion=complete_loader,
    ),
    ranks: int | None = setting(
        None, "Emulated accelerators, where no mpiexec or torchrun starts them.", min=1
    ),
    compat: bool = setting(False, "As DLIO does: its order of samples, its leniency.", "--compat"),
    output: Path | None = setting(
        None, "Folder of the results.", "--output", "-o", show_default="bench-results/NAME/TIME"
    ),
    verify: bool = setting(
        False, "Compare the checksum of each sample with what is on disk.", "--verify"
    ),
    limit: int | None = setting(None, "Steps of an epoch at most, for a first look.", min=1),
    repeat: int = setting(1, "Times that each loader runs, in turn.", min=1),
    stage: Path | None = setting(
        None, "Copy the data to a folder here first; that is timed and removed again."
    ),
    cache: str | None = setting(
        None,
        "The page cache before each loader: cold (data and copies put out of it), warm "
        "(read once) or as-is.",
        metavar="STATE",
        show_default="cold with several loaders or --repeat, else as-is",
    ),
    writer: str = setting(
        "auto",
        "What saves checkpoints: torch, numpy, penstock, or module:name for your own.",
        show_default="torch where it is installed, else numpy",
    ),
    scale: float = setting(1.0, "Shrink the tensors of checkpoints; the record says so."),
    control: bool = setting(True, "Also take the steps without reading: what could be reached."),
    verdict: bool = setting(True, "Measure the machine afterwards (3 s) and say what binds."),
    generate: bool = setting(
        False, "Write the data first, or what is missing of it.", "--generate"
    ),
    yes: bool = setting(
        False, f"With --generate: also more than {limits.generated_bytes_max / 1e9:g} GB.", "--yes"
    ),
) -> None:
    """Run a workload of DLIO or MLPerf Storage, with one loader or several, and say what is slow.

    Each step waits for a batch, "computes" as long as the workload says, and meets the other ranks.
    Utilisation is given as it is (raw), as it would be without reading (ceiling), and as their
    quotient (net). The folder of results has a page (report.html), record.json and DLIO's files.

    Your own loader is any function in a module here that returns batches. It is given what it
    takes by name: path, batch_size, rank, world_size, seed and epochs.

    Examples:

      penstock bench run default --generate ++workload.train.epochs=2

      penstock bench run unet3d_h100 --generate --yes ++workload.dataset.data_folder=/data/unet3d

      penstock bench run mine.yaml --loader penstock --loader torch --ranks 4

      penstock bench run resnet50_h100 --loader train:make_loader --limit 200
    """

    from ..contenders import check
    from ..data.places import set_environment
    from ..workload import hide_secrets, read_workload

    started, load_before = time.time(), os.getloadavg()
    texts, warnings = overrides or [], list[str]()
    asked = read_workload(workload, texts, compat=compat, warn=warnings.append)
    for warning in warnings:
        print(f"penstock: warning: {warning}", file=sys.stderr)
    for option, path in (("--output", output), ("--stage", stage)):
        if path is not None and re.match(r"\w+:/", str(path)):  # a Path has made // to /
            raise UsageError(f"{option} is {path}: that is a URL: give a folder")
    is_remote = asked.storage.storage_type == "s3"
    set_environment(asked.storage)  # here: ranks are forks of this process
    is_plain = asked.dataset.num_samples_per_file == 1
    names = loader or ["penstock", *(["penstock-bytes"] if is_remote and is_plain else [])]
    for option, given in (("--stage", stage), ("--verify", verify), ("--cache", cache)):
        if is_remote and given:
            raise UsageError(f"{option} is for files, and the data are objects: leave it out")
    if cache is not None:
        check_choice("--cache", cache, ("cold", "warm", "as-is"))
    # Whoever comes second must not find what the first one has read.
    cached = cache or ("cold" if len(names) * repeat > 1 and not is_remote else "as-is")
    for name in names:
        check(name, asked.dataset.format, objects=is_remote, verify=verify)
    if generate:
        asked = replace(asked, workflow=replace(asked.workflow, generate_data=True))
    _run_before_ranks(partial(_generate_parts, asked, yes), is_remote)
    folder = output or _choose_folder(asked, started, compat)
    results = _Results(folder, texts, started, load_before)
    if not asked.workflow.train:
        if asked.workflow.checkpoint:
            results.checkpoints(asked, ranks, compat, verify=verify, writer=writer, scale=scale)
        return
    try:
        job = _run_before_ranks(partial(_make_job, asked, compat, verify), is_remote)
    except MissingError as error:
        command = shlex.join(["penstock", "bench", "generate", workload, *hide_secrets(texts)])
        raise MissingError(f"{error}: {command}") from None
    job = replace(job, limit=limit, control=control, stage=None if stage is None else str(stage))
    job = replace(job, writer=writer, scale=scale, cold=cached == "cold")
    from .replay import prepare_page_cache

    paths = [path for files in job.paths.values() for path in files]
    for turn in range(repeat):
        for name in names:
            if cached != "as-is":
                _run_before_ranks(lambda _: prepare_page_cache(paths, cached))
            results.measure(replace(job, loader=name), ranks, turn)
    results.write(verdict)


def _run_before_ranks(work: Callable[[Callable[[], None] | None], T], is_remote: bool = False) -> T:
    """Do the work of each process before there are ranks.

    Under a launcher the work gets the barrier of its processes, so that one that fails ends the
    others. Else ranks are forked from this process, which may not use an object store before: such
    work is done in a process of its own.
    """
    from ..ranks import detect_launch, launch

    if detect_launch(os.environ) is None:
        if not is_remote:
            return work(None)
        import multiprocessing
        from concurrent.futures import ProcessPoolExecutor

        with ProcessPoolExecutor(1, multiprocessing.get_context("fork")) as process:
            return process.submit(work, None).result()
    done: list[T] = []
    launch(None, lambda crew: done.append(work(crew.barrier)))
    return done[0]


def _make_job(
    workload: DlioWorkload, compat: bool, verify: bool, barrier: Callable[[], None] | None = None
) -> BenchJob:
    """Make the job that each loader runs."""
    del barrier  # nothing is written
    from ..data import find_paths, folder_of
    from ..run import BenchJob

    data, root = workload.dataset, workload.storage.data_root
    parts = ["train", *(["valid"] if workload.workflow.evaluation and data.num_files_eval else [])]
    reader, seed = workload.reader, workload.train.seed
    if "random" in (reader.file_shuffle, reader.sample_shuffle):
        seed = int.from_bytes(os.urandom(6), "little")  # the record has it
    job = BenchJob(
        loader="penstock",
        workload=workload,
        paths={part: find_paths(data, part, root) for part in parts},
        folders={part: os.path.join(folder_of(data, root), part) for part in parts},
        seed=seed,
        compat=compat,
    )
    return replace(job, truth=_checksum_data(job)) if verify else job


def _checksum_data(job: BenchJob) -> dict[str, frozenset[int]]:
    """Compute the checksum of every sample on disk, by part."""
    from penstock.cli import console
    from penstock.engine import ThreadPool

    from ..contenders import open_samples
    from ..contenders.delivery import compute_checksum

    data = job.workload.dataset

    def sums(path: str) -> list[int]:
        samples = open_samples(data, path)
        return [compute_checksum(samples[number]) for number in range(data.num_samples_per_file)]

    checksums: dict[str, set[int]] = {part: set() for part in job.paths}
    for part, paths in job.paths.items():
        with (
            console.show_progress(f"Checksums of {part}") as progress,
            ThreadPool(os.cpu_count()) as threads,
        ):
            for done, file_sums in enumerate(threads.map(sums, paths), 1):
                checksums[part].update(file_sums)
                progress(done, len(paths))
    return {part: frozenset(sums) for part, sums in checksums.items()}


def _choose_folder(workload: DlioWorkload, started: float, compat: bool) -> Path:
    if workload.output.folder is not None:
        return Path(workload.output.folder)
    when = time.strftime("%Y-%m-%d-%H-%M-%S", time.localtime(started))
    return Path("hydra_log" if compat else "bench-results") / workload.model.name / when


def _generate_parts(workload: DlioWorkload, yes: bool, barrier: Callable[[], None] | None) -> None:
    """Generate the data that the workload wants, or the missing part of it: each rank its share."""
    if workload.workflow.generate_data:
        from .generate import generate_parts

        generate_parts(workload, yes, barrier=barrier)
        if barrier is not None:
            barrier()


class _Results:
    """Results measured so far, and the folder that they are written to."""

    def __init__(
        self, folder: Path, overrides: list[str], started: float, load: Sequence[float]
    ) -> None:
        self._folder, self._overrides = folder, overrides
        self._started, self._load = started, load
        self._runs: list[dict[str, Any]] = []
        self._measured: list[tuple[BenchJob, list[Walks]]] = []
        above = (folder.absolute(), *folder.absolute().parents)
        there = next(path for path in above if path.exists())
        with self._storing(), tempfile.TemporaryFile(dir=there):
            pass  # said before hours of measuring, not after; nothing is left

    def _storing(self) -> AbstractContextManager[None]:
        from penstock.engine import storage_errors

        return storage_errors(str(self._folder), "run it again, or give another folder (--output)")

    def measure(self, job: BenchJob, ranks: int | None, turn: int) -> None:
        """Run a loader; on the first rank, keep what was measured."""
        from ..ranks import launch
        from ..run import run_workload

        try:
            walks = launch(ranks, partial(run_workload, job))
        finally:  # a rank that was killed has not removed what was staged
            shutil.rmtree(os.path.join(job.near, job.room), ignore_errors=True)
        if walks is None:
            return
        from ..results.record import make_run

        self._runs.append(make_run(job, walks) | {"repeat": turn + 1})
        self._measured.append((job, walks))

    def checkpoints(
        self, workload: DlioWorkload, ranks: int | None, compat: bool, **options: Any
    ) -> None:
        """Save and load checkpoints alone."""
        from ..checkpoints.run import run_checkpoints
        from ..ranks import launch

        def work(crew: Crew) -> tuple[dict[str, Any], int, int]:
            measured = run_checkpoints(workload, crew, compat=compat, **options)
            return measured, crew.ranks, crew.hosts

        done = launch(ranks, work)
        if done is None:
            return
        measured, count, hosts = done
        from penstock.cli import console

        for name, value in measured["dlio"].items():
            console.show(f"{name}: {value:,.4f}")
        run = {"loader": "checkpoints", "epochs": [], **measured}
        folder = workload.checkpoint.checkpoint_folder
        seed = workload.train.seed
        self._record(
            workload, folder, runs=[run], compat=compat, seed=seed, ranks=count, hosts=hosts
        )

    def write(self, verdict: bool) -> None:
        """Show what was found; write record.json and the files that DLIO leaves."""
        if not self._runs:
            return

        from ..results import dlio
        from ..workload import as_dict, parse_overrides

        job, walks = self._measured[0]
        config, where = as_dict(job.workload), job.folders["train"]
        if verdict:
            self._judge(job, len(walks))
        # Shown first: it is not lost where it cannot be written.
        _show_runs(job.workload.model.name, len(walks), self._runs)
        first, ranks = walks[0], len(walks)
        self._record(
            job.workload, where, runs=self._runs, compat=job.compat, seed=first.seed, ranks=ranks,
            hosts=first.hosts,
        )  # fmt: skip
        repeated = any(run["repeat"] > 1 for run in self._runs)
        for (measured, walked), run in zip(self._measured, self._runs, strict=True):
            name = str(run["loader"]).replace(":", ".")
            name = f"{name}-{run['repeat']}" if repeated else name
            folder = self._folder / name if len(self._measured) > 1 else self._folder
            with self._storing():
                dlio.write(
                    folder,
                    measured,
                    walked,
                    run,
                    config=config,
                    overrides=self._list_overrides(),
                    subfolder=parse_overrides(self._overrides).subfolder,
                )

    def _judge(self, job: BenchJob, ranks: int) -> None:
        """Add to each run the resource that binds it, if that can be measured."""
        from penstock.cli import console

        from ..results.record import Verdicts

        try:
            with console.show_progress("Measuring this machine", "measurements"):
                verdicts = Verdicts(job, ranks)
            for run in self._runs:
                run["roofline"] = verdicts.of(run)
        except PenstockError as error:
            console.say(f"no verdict: {error}")

    def _record(self, workload: DlioWorkload, where: str, **found: Any) -> None:
        """Say what the results mean, and write the record and the page.

        found: runs, compat, seed, ranks and hosts, to record.
        """
        from penstock.cli import console

        from ..results.record import make_record, write_record, write_text
        from ..results.recorded import records
        from ..results.report import conclude, render_page
        from ..workload import as_dict, hide_secrets

        about = {
            "command": shlex.join(["penstock", *hide_secrets(sys.argv[1:])]),
            "workload": as_dict(workload),
            "overrides": self._list_overrides(),
            "started": self._started,
            "ended": time.time(),
        }
        values = make_record(about | found, where, self._load)
        headline = conclude(records([values]))
        for sentence in (*headline.said, *headline.advice, *headline.cautions):
            console.show(f"- {console.escape(sentence)}")
        with self._storing():
            path = write_record(self._folder, values)
            page = path.with_name("report.html")
            write_text(page, render_page([values]))
        console.show(f"page: {console.escape(str(page))}")
        console.show(f"results: {console.escape(str(path))}")

    def _list_overrides(self) -> list[str]:
        """Overrides of the workload, as they may be written."""
        from ..workload import hide_secrets

        overrides = [text for text in self._overrides if not text.lstrip("+~").startswith("hydra.")]
        return hide_secrets(overrides)


def _show_runs(name: str, ranks: int, runs: list[dict[str, Any]]) -> None:
    """Show a column for each loader, of several runs the one of median throughput."""
    from penstock.cli import console
    from penstock.cli.quantities import counted

    loaders = list(dict.fromkeys(run["loader"] for run in runs))
    headings = [console.escape(loader) for loader in loaders]
    title = f"{console.escape(name)}, {counted(ranks, 'rank')}"
    table = console.make_table("", *headings, right=headings, title=title)
    columns = [_format_runs([run for run in runs if run["loader"] == loader]) for loader in loaders]
    for line in (line for line in columns[0] if any(column[line] for column in columns)):
        table.add_row(line, *(column[line] for column in columns))
    console.out.print(table)


def _format_runs(runs: list[dict[str, Any]]) -> dict[str, str]:
    """Format the figures of a loader's runs."""
    from penstock.cli import console

    from ..results.metrics import interval

    run = sorted(runs, key=lambda repeat: repeat["samples_per_s"])[(len(runs) - 1) // 2]
    au, shares, waits = run["au"], run["decomposition"], run["stall_s"]
    low, high = interval([repeat["samples_per_s"] for repeat in runs])
    return {
        "samples/s": f"{run['samples_per_s']:,.1f}",
        "95 % of repeats": f"{low:,.1f} to {high:,.1f}" if len(runs) > 1 else "",
        "bytes/s": f"{console.format_bytes(run['bytes_per_s'])}/s",
        "accelerators compute, % of time": _percent(au["raw"]),
        "the same from the start on, %": _percent(au["from_start"]),
        "the same without reading, %": _percent(au["ceiling"]),
        "share of that which is reached, %": _percent(au["net"]),
        "waiting for data, % of time": _percent(shares["storage_wait"]),
        "waiting for other ranks, %": _percent(shares["barrier"]),
        "other work between steps, %": _percent(shares["other"]),
        "wait for a batch, median, ms": f"{1e3 * waits['p50']:,.2f}",
        "wait for a batch, 99th percentile, ms": f"{1e3 * waits['p99']:,.2f}",
        "from start to first batch, s": f"{run['startup_s'] + run['first_batch_s']:,.2f}",
        "copying or converting first, s": f"{run['staging_s']:,.2f}",
        "CPU seconds for 1,000 samples": f"{run['cpu_s_per_1000'] or 0:,.2f}",
    }


def _percent(share: float | None) -> str:
    return "" if share is None else f"{100 * share:.1f}"
