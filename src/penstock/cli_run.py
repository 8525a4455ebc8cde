"""`penstock bench run`: a workload, with any loader."""

from __future__ import annotations

import os
import shlex
import sys
import time
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from .bench.run import Job, Walks
    from .bench.workload import Workload

# What is not needed before the first step is imported later: the first step should come soon.


def run(
    workload: Annotated[
        str, typer.Argument(help="A name of a workload, or the path of a .yaml file of DLIO.")
    ],
    overrides: Annotated[
        list[str] | None,
        typer.Argument(help="Such as reader.batch_size=8, as DLIO takes them."),
    ] = None,
    loader: Annotated[
        list[str] | None,
        typer.Option(
            help="penstock, torch, grain, litdata, webdataset, spdl, none (no reading), or "
            "module:function for your own; repeatable. (default: penstock)"
        ),
    ] = None,
    ranks: Annotated[
        int | None,
        typer.Option(
            min=1, help="Emulated accelerators, where no mpiexec or torchrun starts them."
        ),
    ] = None,
    compat: Annotated[
        bool, typer.Option("--compat", help="As DLIO does: its order of samples, its leniency.")
    ] = False,
    out: Annotated[
        Path | None, typer.Option(help="Folder of the results. (default: bench-results/NAME/TIME)")
    ] = None,
    verify: Annotated[
        bool,
        typer.Option("--verify", help="Compare the checksum of each sample with what is on disk."),
    ] = False,
    limit: Annotated[
        int | None, typer.Option(min=1, help="Steps of an epoch at most, for a first look.")
    ] = None,
    repeat: Annotated[int, typer.Option(min=1, help="Times that each loader runs, in turn.")] = 1,
    stage: Annotated[
        Path | None,
        typer.Option(help="Copy the data to a folder here first; that is timed and removed again."),
    ] = None,
    control: Annotated[
        bool, typer.Option(help="Also take the steps without reading: what could be reached.")
    ] = True,
) -> None:
    """Run a workload of DLIO or MLPerf Storage, with one loader or several, and say what is slow.

    Each step waits for a batch, "computes" as long as the workload says, and meets the other ranks.
    Utilisation is given as it is (raw), as it would be without reading (ceiling), and as their
    quotient (net). Files as DLIO writes them and record.json are in the folder of results.

    Your own loader is any function in a module here that returns batches. It is given those of
    path, batch_size, rank, world_size, seed and epochs that it takes.

    Examples:

      penstock bench run unet3d_h100 dataset.data_folder=/data/unet3d

      penstock bench run mine.yaml --loader penstock --loader torch --ranks 4

      penstock bench run resnet50_h100 --loader train:make_loader --limit 200
    """

    from .bench.contenders import check

    started, load_before = time.time(), os.getloadavg()
    asked, texts = _workload(workload, overrides or [], compat)
    names = loader or ["penstock"]
    for name in names:
        check(name, asked.dataset.format)
    job = _job(asked, compat)
    job = replace(job, limit=limit, control=control, stage=None if stage is None else str(stage))
    if verify:
        job = replace(job, truth=_truth(job))
    results = _Results(out or _folder(asked, started, compat), job, texts)
    for turn in range(repeat):
        for name in names:
            results.measure(replace(job, loader=name), ranks, turn)
    results.write(started, load_before)


def _workload(source: str, texts: Sequence[str], compat: bool) -> tuple[Workload, list[str]]:
    """The workload, and those of the overrides that are of it, in one spelling."""
    from .bench.strict import read_workload

    warnings: list[str] = []
    found = read_workload(source, texts, compat=compat, warn=warnings.append)
    for warning in warnings:
        print(f"penstock: warning: {warning}", file=sys.stderr)
    own = [text for text in texts if not text.lstrip("+~").startswith("hydra.")]
    return found, own


def _job(workload: Workload, compat: bool) -> Job:
    """What is to be run, by whichever loader."""
    from .bench.files import folder_of, found_paths
    from .bench.run import Job

    data, root = workload.dataset, workload.storage.storage_root
    parts = ["train", *(["valid"] if workload.workflow.evaluation and data.num_files_eval else [])]
    reader, seed = workload.reader, workload.train.seed
    if "random" in (reader.file_shuffle, reader.sample_shuffle):
        seed = int.from_bytes(os.urandom(6), "little")  # the record has it
    return Job(
        loader="penstock",
        workload=workload,
        paths={part: found_paths(data, part, root) for part in parts},
        folders={part: os.path.join(folder_of(data, root), part) for part in parts},
        seed=seed,
        compat=compat,
    )


def _truth(job: Job) -> dict[str, frozenset[int]]:
    """The checksum of every sample on disk, by part."""
    from concurrent.futures import ThreadPoolExecutor

    from . import terminal
    from .bench.contenders.samples import opened
    from .bench.delivered import checksum

    data = job.workload.dataset

    def sums(path: str) -> list[int]:
        samples = opened(data, path)
        return [checksum(samples[number]) for number in range(data.num_samples_per_file)]

    found = {}
    for part, paths in job.paths.items():
        with (
            terminal.progress(f"Checksums of {part}") as progress,
            ThreadPoolExecutor(os.cpu_count()) as threads,
        ):
            seen: set[int] = set()
            for done, each in enumerate(threads.map(sums, paths), 1):
                seen.update(each)
                progress(done, len(paths))
            found[part] = frozenset(seen)
    return found


def _folder(workload: Workload, started: float, compat: bool) -> Path:
    if workload.output.folder is not None:
        return Path(workload.output.folder)
    when = time.strftime("%Y-%m-%d-%H-%M-%S", time.localtime(started))
    return Path("hydra_log" if compat else "bench-results") / workload.model.name / when


class _Results:
    """What was measured so far, and where it goes."""

    def __init__(self, folder: Path, job: Job, overrides: Sequence[str]) -> None:
        self._folder, self._job, self._overrides = folder, job, overrides
        self._runs: list[dict[str, Any]] = []
        self._measured: list[tuple[Job, list[Walks]]] = []

    def measure(self, job: Job, ranks: int | None, turn: int) -> None:
        """Run a loader; on the first rank, keep what was measured."""
        from .bench.ranks import launch
        from .bench.run import run as measured

        walks = launch(ranks, partial(measured, job))
        if walks is None:
            return
        from .bench.record import as_run

        self._runs.append(as_run(job, walks) | {"repeat": turn + 1})
        self._measured.append((job, walks))

    def write(self, started: float, load_before: Sequence[float]) -> None:
        """Write record.json and the files that DLIO leaves, and show what was found."""
        if not self._runs:
            return
        from .bench import outputs, record
        from .bench.strict import as_dict

        job, walks = self._measured[0]
        config = as_dict(job.workload)
        for number, (each, found) in enumerate(self._measured):
            name = self._name(number)
            folder = self._folder / name if len(self._measured) > 1 else self._folder
            outputs.write(
                folder, each, found, self._runs[number], config=config, overrides=self._overrides
            )
        values = record.whole(
            command=shlex.join(["penstock", *sys.argv[1:]]),
            workload=config,
            overrides=self._overrides,
            compat=job.compat,
            seed=walks[0].seed,
            started=started,
            ended=time.time(),
            ranks=len(walks),
            hosts=walks[0].hosts,
            load_before=load_before,
            path=job.folders["train"],
            runs=self._runs,
        )
        path = outputs.write_record(self._folder, values)
        _show(values)
        from . import terminal

        terminal.show(f"results: {terminal.escaped(str(path))}")

    def _name(self, number: int) -> str:
        run = self._runs[number]
        repeated = any(each["repeat"] > 1 for each in self._runs)
        loader = str(run["loader"]).replace(":", ".")
        return f"{loader}-{run['repeat']}" if repeated else loader


def _show(record: dict[str, Any]) -> None:
    """The table: a column for each loader, the run of middling throughput where there are more."""
    import rich.box
    import rich.table

    from . import terminal

    ranks = f"{record['ranks']} rank" + "s" * (record["ranks"] > 1)
    table = rich.table.Table(
        box=rich.box.SIMPLE_HEAD,
        pad_edge=False,
        title=f"{terminal.escaped(record['workload']['model']['name'])}, {ranks}",
        title_justify="left",
    )
    table.add_column("", no_wrap=True)
    columns = []
    for loader in dict.fromkeys(run["loader"] for run in record["runs"]):
        table.add_column(terminal.escaped(loader), justify="right")
        columns.append(_column([run for run in record["runs"] if run["loader"] == loader]))
    for name in columns[0]:
        table.add_row(name, *(column[name] for column in columns))
    terminal.out.print(table)


def _column(runs: list[dict[str, Any]]) -> dict[str, str]:
    """The figures of a loader's runs, as people read them."""
    from . import terminal
    from .bench.metrics import interval

    rates = [run["samples_per_s"] for run in runs]
    run = sorted(runs, key=lambda each: each["samples_per_s"])[(len(runs) - 1) // 2]
    au, parts, waits = run["au"], run["decomposition"], run["stall_s"]
    rate = f"{run['samples_per_s']:,.1f}"
    if len(runs) > 1:
        low, high = interval(rates)
        rate += f" ({low:,.1f} to {high:,.1f})"
    return {
        "samples/s": rate,
        "bytes/s": f"{terminal.size(run['bytes_per_s'])}/s",
        "utilisation, %": _percent(au["raw"]),
        "without reading, %": _percent(au["ceiling"]),
        "of that, %": _percent(au["net"]),
        "waits for storage, %": _percent(parts["storage_wait"]),
        "waits for ranks, %": _percent(parts["barrier"]),
        "else, %": _percent(parts["other"]),
        "a batch: median, ms": f"{1e3 * waits['p50']:,.2f}",
        "99th percentile, ms": f"{1e3 * waits['p99']:,.2f}",
        "start, s": f"{run['startup_s'] + run['first_batch_s']:,.2f}",
        "staging, s": f"{run['staging_s']:,.2f}",
        "CPU s/1000 samples": f"{run['cpu_s_per_1000'] or 0:,.2f}",
    }


def _percent(share: float | None) -> str:
    return "" if share is None else f"{100 * share:.1f}"
