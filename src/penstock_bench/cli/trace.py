"""`penstock trace`: what a job reads, recorded, taken from logs, and looked at."""

from __future__ import annotations

import os
import shlex
import shutil
import signal
import subprocess
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from penstock.cli import (
    AsJson,
    HelpedCommand,
    HelpedGroup,
    check_writable,
    console,
    explain_interrupt,
)
from penstock.cli.quantities import counted
from penstock.errors import UsageError

from ..page.quantities import latency

if TYPE_CHECKING:
    from ..traces.trace_file import Trace

app = typer.Typer(
    cls=HelpedGroup,
    help="""Record what a job reads, take it from logs, or look at it.

    Examples:

      penstock trace record -o job.trace -- python train.py --epochs 2

      penstock trace show job.trace
    """,
    no_args_is_help=True,
    rich_markup_mode="rich",
)

Target = Annotated[Path, typer.Option("--output", "-o", help="The trace to write.")]
Under = Annotated[
    list[str] | None,
    typer.Option(
        help="Keep what lies below this folder, and nothing else; may be repeated.", metavar="PATH"
    ),
]
All = Annotated[
    bool, typer.Option("--all", help="Keep all files: those of the system and of Python, too.")
]
Traces = Annotated[
    list[str], typer.Argument(help="A trace; several, such as those of the ranks, are one job.")
]

_SHOWN = 8
_FULL = 30  # columns of the longest bar
_TIMES = 12  # rows of the rate over time


@app.callback()
def _commands() -> None:
    """Record what a job reads, take it from logs, or look at it."""


@app.command(cls=HelpedCommand, context_settings={"ignore_unknown_options": True})
def record(
    command: Annotated[list[str], typer.Argument(help="The job, after --.")],
    output: Target = Path("job.trace"),
    under: Under = None,
    everything: All = False,
) -> None:
    """Run a command under strace and write down what it reads, with all its processes.

    Nothing of the job is changed, but strace makes its system calls slower (by 30 µs each),
    and does not see reads through maps and io_uring: a job that reads by penstock records itself,
    without strace, where PENSTOCK_TRACE=job.trace is set. The exit code is the command's.

    Examples:

      penstock trace record -o job.trace -- python train.py --epochs 2

      penstock trace record --under /data -- torchrun --nproc-per-node 4 train.py
    """
    from ..traces import strace as trace_strace

    strace = shutil.which("strace")
    if strace is None:
        raise UsageError(
            "recording needs strace, which is not here: apt-get install strace, or set"
            " PENSTOCK_TRACE=job.trace for a job that reads by penstock"
        )
    check_writable(output)
    with tempfile.TemporaryDirectory(prefix=".trace-", dir=output.absolute().parent) as folder:
        log = os.path.join(folder, "strace.log")
        code = _run_command([strace, "-o", log, *trace_strace.FLAGS, "--", *command])
        if not os.path.exists(log) or os.path.getsize(log) == 0:
            raise UsageError(
                "strace recorded nothing: it needs to be allowed to trace (ptrace), and to be 5.6"
                " or later"
            )
        trace = _import_trace([log], output, under, everything, shlex.join(command))
    _show_result(trace, output)
    raise SystemExit(code)


@app.command("import", cls=HelpedCommand)
@explain_interrupt()
def import_(
    logs: Annotated[
        list[str],
        typer.Argument(help="What strace, darshan-dxt-parser or a spreadsheet wrote; traces."),
    ],
    output: Target = Path("job.trace"),
    under: Under = None,
    everything: All = False,
) -> None:
    """Make a trace of logs, or of parts of traces.

    Reads: strace -f -ttt -T -y; the text of darshan-dxt-parser; CSV with the columns pid, time, op,
    path, offset, length, duration (seconds; op: read, open, stat, close); traces.

    Examples:

      penstock trace import strace.log -o job.trace

      darshan-dxt-parser job.darshan > job.dxt; penstock trace import job.dxt

      penstock trace import job.trace --under /data/train -o train.trace
    """
    check_writable(output)
    if str(output) in logs:
        raise UsageError(f"{output} would be read and written: give another name with -o")
    trace = _import_trace(logs, output, under, everything)
    _show_result(trace, output)


@app.command(cls=HelpedCommand)
@explain_interrupt()
def show(paths: Traces, as_json: AsJson = False) -> None:
    """Show what a trace holds: how much was read, again, how large, when, in which order.

    Examples:

      penstock trace show job.trace

      penstock trace show run.*.trace --json | jq .reread
    """
    from ..traces import trace_file as traces
    from ..traces.summary import summarise

    trace = traces.load(*paths)
    with console.show_progress("Looking at the trace", "operations") as progress:
        seen = summarise(trace, progress)
    if as_json:
        notes = list(trace.notes)
        about = {"source": trace.source, "timing": trace.timing, "notes": notes}
        console.print_json(about | seen.values())
    else:
        _show(trace, seen)


def _run_command(command: list[str]) -> int:
    """Run a command and return its exit code. Ctrl-C ends the command; its records are kept."""
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        child = subprocess.Popen(
            command, preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL)
        )
        code = child.wait()
    except OSError as error:
        raise UsageError(f"cannot run {command[0]}: {error.strerror}") from None
    finally:
        signal.signal(signal.SIGINT, before)
    return code if code >= 0 else 128 - code  # a shell shows signals so


def _import_trace(
    logs: list[str],
    output: Path,
    under: list[str] | None,
    everything: bool,
    command: str | None = None,
) -> Trace:
    """Import logs as a trace.

    command:  the one that ran here just now, so that its files are as it saw them.
    """
    from ..traces import logs as trace_logs

    if under and everything:
        raise UsageError("--under and --all: give one of them")
    keep = trace_logs.filter_below(under) if under else trace_logs.is_job_data
    with console.show_progress(f"Reading {logs[0]}", "bytes") as progress:
        return trace_logs.import_logs(
            logs, str(output), trace_logs.keep_everything if everything else keep,
            seen=progress, command=command,
        )  # fmt: skip


def _show_result(trace: Trace, output: Path) -> None:
    what = f"{trace.count:,} operations on {len(trace.names):,} files"
    threads = counted(len(trace.threads), "thread")
    console.show(f"[bold]{console.escape(str(output))}[/]: {what} by {threads}")
    _show_notes(trace)
    console.show(f"look at it: penstock trace show {console.escape(shlex.quote(str(output)))}")
    console.show(f"do it again: penstock bench replay {console.escape(shlex.quote(str(output)))}")


def _show_notes(trace: Trace) -> None:
    for note in trace.notes:
        console.say(note)
    if trace.timing == "shared":
        console.say(
            "requests were timed, not each read: how long a single read took is an estimate"
        )


def _show(trace: Trace, seen: Any) -> None:
    show = console.show
    threads = counted(seen.threads, "thread")
    show(f"[bold]{console.escape(trace.source)}[/]: {seen.seconds:,.2f} s, {threads}")
    counts = ", ".join(f"{n:,} {kind}" for kind, n in seen.counts.items() if n)
    show(f"operations: {counts or 'none'}" + (f"; {seen.failed:,} failed" * bool(seen.failed)))
    _show_notes(trace)
    if seen.counts["read"] == 0:
        return
    show(
        f"read: {console.format_bytes(seen.bytes)}, of which"
        f" {console.format_bytes(seen.unique_bytes)} different"
        f" (each {seen.reread:.2f} times); {100 * seen.sequential:.0f} % sequential"
    )
    reads = seen.file_reads[seen.file_reads > 0]
    show(
        f"files: {len(reads):,} read, with {int(reads.min()):,} to {int(reads.max()):,} reads each"
        f" (on average {reads.mean():,.1f})"
    )
    if seen.passes is not None:
        all_seen = seen.passes.reads >= seen.counts["read"] - seen.sizes[0] - seen.failed
        note = "" if all_seen else f" (seen in its first {seen.passes.reads:,} reads)"
        show(f"passes over the data: {seen.passes.said}{note}")
    took = seen.took
    show(
        f"a read took {latency(took.percentile_s(50))} (median),"
        f" {latency(took.percentile_s(99))}"
        f" (99 %), {latency(took.max_ns * 1e-9)} (longest)"
    )
    if seen.seconds:
        show(
            f"on average {console.format_bytes(seen.bytes / seen.seconds)}/s,"
            f" {seen.counts['read'] / seen.seconds:,.0f} reads/s,"
            f" {seen.busy_s / seen.seconds:.2f} operations at a time"
        )
    _show_sizes(seen)
    _show_rate(seen)
    _show_files(trace, seen)


def _show_sizes(seen: Any) -> None:
    console.show("\nsizes of reads")
    for bits, count in enumerate(seen.sizes.tolist()):
        if count:
            label = "nothing" if bits == 0 else f"{console.format_bytes(1 << (bits - 1))} on"
            share = 100 * count / seen.sizes.sum()
            console.show(
                f"{label:>13} {console.draw_bar(count, seen.sizes.max(), _FULL)} {share:.1f} %"
            )


def _show_rate(seen: Any) -> None:
    console.show("\nrate over time")
    rates = seen.rate.reshape(_TIMES, -1).sum(axis=1)
    width_s = seen.seconds / _TIMES
    for number, count in enumerate(rates.tolist()):
        rate = console.format_bytes(count / width_s if width_s else 0)
        when = f"{number * width_s:,.3g} s"
        console.show(f"{when:>13} {console.draw_bar(count, rates.max(), _FULL)} {rate}/s")


def _show_files(trace: Trace, seen: Any) -> None:
    console.show("\nfiles")
    ranked = [file for file in seen.file_bytes.argsort()[::-1].tolist() if seen.file_bytes[file]]
    for file in ranked[:_SHOWN]:
        size = console.format_bytes(int(seen.file_bytes[file]))
        name = console.escape(trace.names[file])
        console.show(f"{size:>13} in {seen.file_reads[file]:,} reads: {name}")
    if len(ranked) > _SHOWN:
        console.show(f"{'...':>13} and {len(ranked) - _SHOWN:,} more")
