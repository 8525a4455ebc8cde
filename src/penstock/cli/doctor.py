"""`penstock doctor`: what will be slow, before a run; `penstock demo`: a first look."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import rich.table
import typer

from ..arguments import import_function
from . import console
from .commands import show_demo, show_host, show_race
from .console import explain_interrupt
from .options import (
    AsJson,
    FormatOptions,
    hide_credentials,
    open_data,
    setting,
    takes_format_options,
)
from .quantities import counted, format_bytes, parse_amount

if TYPE_CHECKING:
    from ..doctor.doctor import Examination, Finding
    from ..doctor.roofline import Resource, Roofline

_MARKS = {"good": "[green]good[/]", "note": "[cyan]note[/]", "warning": "[yellow]warning[/]"}


@takes_format_options
@explain_interrupt()
def doctor(
    path: Annotated[
        str | None,
        typer.Argument(
            help="Data of any format that is read, or an empty folder for it; without it, what the "
            "machine has and what there is to install."
        ),
    ] = None,
    *,
    step_seconds: float | None = setting(
        None, "What a rank computes on a batch: says whether data keeps up."
    ),
    batch_size: int = setting(256, "Samples of a step of one rank.", min=1),
    ranks: int = setting(1, "Ranks on this host.", min=1),
    workers: int = setting(0, "Worker processes of each rank; 0 decodes in threads.", min=0),
    readahead: str = setting("256MiB", "Budget.readahead_bytes of each loader.", metavar="SIZE"),
    decode: str | None = setting(
        None,
        "module:function, as Loader(decode=) takes it: timed in place of penstock.images.",
        metavar="FUNCTION",
    ),
    write: bool = setting(False, "Time writing, by a temporary file in the data's folder."),
    options: FormatOptions,
    as_json: AsJson = False,
) -> None:
    """Say what will be slow, and why: storage, memory, cores, limits, settings. Writes nothing.

    Takes 2 to 3 seconds once the data is open. What is read is dropped from the page cache first,
    and only that, so that storage is measured and not memory.

    Without data, what this machine has, and what to install for what you want to do.

    Examples:

      penstock doctor

      penstock doctor /data/imagenet/train

      penstock doctor /data/imagenet/train --step-seconds 0.25 --batch-size 256 --ranks 8

      penstock doctor /data/imagenet/train --ranks 8 --workers 4 --readahead 1GiB

      penstock doctor /data/photos --decode mytrain.data:decode

      penstock doctor /new/storage --write

      penstock doctor /data/shards --json | jq .first.bound
    """
    from ..doctor.doctor import PlannedJob, examine, examine_folder, is_empty

    if path is None:
        _show_host(as_json)
        return
    function = None if decode is None else import_function("--decode", decode)
    if is_empty(path):
        result = examine_folder(path, write=write)
    else:
        dataset = open_data(path, options, "read")
        job = PlannedJob(
            batch_size=batch_size,
            ranks=ranks,
            workers=workers,
            readahead_bytes=int(parse_amount("--readahead", readahead, "256MiB")),
            step_s=step_seconds,
            decode=function,
        )
        with console.show_progress(f"Measuring {hide_credentials(path)}", "measurements") as seen:
            result = examine(dataset, job, write=write, seen=seen)
    if as_json:
        console.print_json(result.as_json())
    else:
        _show(result)


def _show(result: Examination) -> None:
    described = console.escape(_describe_examined(result))
    console.show(f"[bold]{console.escape(result.path)}[/]: {described}")
    _show_supplies(result)
    if result.settings:
        rows = [(setting.name, setting.value, setting.why) for setting in result.settings]
        _show_table("what penstock chooses", ("setting", "value", "why"), rows)
    _show_findings(result.findings)
    if result.first is not None:
        heading = "verdict" if result.later is None else "verdict: an epoch that reads storage"
        _show_verdict(heading, result.first)
    if result.later is not None:
        _show_verdict("verdict: an epoch from the page cache", result.later)
    if result.extras:
        extras = console.escape(", ".join(result.extras))
        console.show(f"\nto install for this data: pip install {extras}")


def _show_host(as_json: bool) -> None:
    from ..doctor.doctor import examine_host, list_extras

    if as_json:
        findings = [finding._asdict() for finding in examine_host()]
        console.print_json({"findings": findings, "extras": [e._asdict() for e in list_extras()]})
    else:
        show_host(console.show_line)


def _show_findings(findings: Sequence[Finding]) -> None:
    table = rich.table.Table.grid(padding=(0, 2))
    for finding in findings:
        cells = console.escape(finding.about), console.escape(finding.says)
        table.add_row(_MARKS[finding.level], *cells)
    console.show("")
    console.out.print(table)


def _describe_examined(result: Examination) -> str:
    if result.dataset is None:
        return "an empty folder" + ("" if result.written else "; --write measures writing to it")
    index = result.dataset.index
    samples, files = counted(index.count, "sample"), counted(len(index.files), "file")
    return (
        f"{index.format}, {samples} of {format_bytes(index.mean_bytes)}, "
        f"{format_bytes(index.total_bytes)} in {files}"
    )


def _show_supplies(result: Examination) -> None:
    units: dict[Resource, tuple[str, Any]] = {
        "bandwidth": ("storage, large reads", _format_rate),
        "iops": ("storage, reads of samples", lambda rate: f"{rate:,.0f} reads/s"),
        "metadata": ("storage, opening files", lambda rate: f"{rate:,.0f} opens/s"),
        "copy": ("memory, copying", _format_rate),
        "decode": ("decoding, all cores", lambda rate: f"{rate:,.0f} samples/s"),
        "compute": ("compute", lambda rate: f"{rate:,.0f} samples/s"),
    }
    rows = [
        (name, said(result.supplies[resource].per_s), result.supplies[resource].how)
        for resource, (name, said) in units.items()
        if resource in result.supplies
    ]
    if result.latency_ns is not None:
        rows.insert(2, ("storage, one read alone", f"{result.latency_ns / 1e3:,.0f} us", "median"))
    if result.written is not None:
        rows.append(("storage, writing", _format_rate(result.written.per_s), result.written.how))
    if result.link is not None:
        rows.append(("network", _format_rate(result.link.per_s), result.link.how))
    _show_table("what there is", ("resource", "gives", "measured"), rows)


def _format_rate(rate: float) -> str:
    return f"{rate / 1e9:,.2f} GB/s" if rate >= 1e9 else f"{rate / 1e6:,.3g} MB/s"


def _show_table(title: str, headings: tuple[str, ...], rows: Sequence[tuple[str, ...]]) -> None:
    table = console.make_table(*headings, title=title)
    for row in rows:
        table.add_row(*(console.escape(cell) for cell in row))
    console.show("")
    console.out.print(table)


def _show_verdict(heading: str, roofline: Roofline) -> None:
    rows = []
    for ceiling in roofline.ceilings:
        rate = ceiling.samples_per_s
        multiple = f"{rate / roofline.samples_per_s:,.1f}x"
        binds = "binds" if ceiling is roofline.ceilings[0] else multiple
        rows.append((ceiling.resource, f"{rate:,.0f} samples/s", binds))
    _show_table(heading, ("resource", "allows", "of the lowest"), rows)
    for sentence in roofline.advice:
        console.show(f"- {console.escape(sentence)}")
    if roofline.utilisation is not None:
        busy = f"{roofline.utilisation:.0%}"
        console.show(f"- the accelerator computes for {busy} of the time, at most")


# -- demo ------------------------------------------------------------------------------------------


@explain_interrupt("the data were removed, unless --output keeps them: name another folder then")
def demo(
    path: Annotated[
        str | None, typer.Argument(help="A folder of your images: race over them instead.")
    ] = None,
    output: Path | None = setting(
        None, "Keep the data in this folder, empty or new.", "--output", "-o"
    ),
) -> None:
    """Show what penstock does: an exact shuffle, kill -9 and an exact resume, a race.

    Draws 2,400 small images and 105 MB of records, trains on them in numpy, and takes about ten
    seconds on two cores. Needs no other package and no compiler. Exit code 1 if a promise fails.
    With PATH it only races over your files, and writes nothing.

    Examples:

      penstock demo

      penstock demo --output /data/penstock-demo

      penstock demo ~/pictures
    """
    if path is not None:
        show_race(path, console.show_line)
    elif not show_demo(output, console.show_line):
        raise typer.Exit(1)
