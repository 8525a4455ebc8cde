"""`penstock bench replay`: the reads of a recorded job, done again."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

from penstock.cli import AsJson, console, explain_interrupt, setting
from penstock.errors import UsageError

from ..page.quantities import latency
from .trace import Traces

if TYPE_CHECKING:
    from ..traces.replay import ReplayOutcome
    from ..traces.replay_engine import Merged
    from ..traces.trace_file import Trace


@explain_interrupt("files that --synthesize made stay, and the same command uses them")
def replay(
    paths: Traces,
    speed: str = setting(
        "recorded",
        "recorded: pauses between a thread's reads as in the job; 2x: half as long; max: none.",
        metavar="SPEED",
    ),
    root: list[str] | None = setting(
        None, "Files below FROM are below TO here; may be repeated.", metavar="FROM=TO"
    ),
    synthesize: str | None = setting(
        None, "Make files of the same sizes in this folder, and read those.", metavar="PATH"
    ),
    sparse: bool = setting(False, "With --synthesize: files without data; no device is read."),
    cache: str = setting(
        "cold",
        "The page cache before each replay: cold (files are put out of it), warm (read"
        " before), or as-is.",
        metavar="STATE",
    ),
    by: str = setting("both", "pread: as the job did; penstock: by its engine; both."),
    as_json: AsJson = False,
) -> None:
    """Do a recorded job's reads again: here, elsewhere, faster, and by penstock.

    A thread for each thread of the job does the same opens, stats, reads and closes in the same
    order. With speed "recorded" the job's pauses are kept, and reads take what they take here: the
    time in all is what the job would take on this storage. Only reads; writes nothing but what
    --synthesize asks for.

    Examples:

      penstock bench replay job.trace

      penstock bench replay job.trace --root /data=/mnt/candidate/data

      penstock bench replay job.trace --synthesize /mnt/candidate/try --speed max
    """
    from ..traces import replay as replays
    from ..traces import replay_engine
    from ..traces import trace_file as traces

    pace = _parse_speed(speed)
    if by not in ("pread", "penstock", "both"):
        raise UsageError(f"--by is {by!r}: use pread, penstock or both")
    if cache not in ("cold", "warm", "as-is"):
        raise UsageError(f"--cache is {cache!r}: use cold, warm or as-is")
    if sparse and synthesize is None:
        raise UsageError("--sparse is for files that --synthesize makes: give it a folder")
    trace = traces.load(*paths)
    if trace.count == 0:
        raise UsageError(f"{paths[0]} holds no operations: there is nothing to replay")
    files = _place_files(trace, root or [], synthesize, sparse)
    results: dict[str, Any] = {"recorded": replays.collect_recorded(trace)}
    resident: dict[str, float] = {}
    if by != "penstock":
        resident["pread"] = prepare_page_cache(files, cache)
        with console.show_progress("Replaying by pread", "operations") as progress:
            results["pread"] = replays.replay(trace, files, speed=pace, progress=progress)
    if by != "pread":
        resident["penstock"] = prepare_page_cache(files, cache)
        with console.show_progress("Replaying by penstock", "operations") as progress:
            results["penstock"] = replay_engine.replay_merged(
                trace, files, speed=pace, progress=progress
            )
    if as_json:
        console.print_json(_replay_values(trace, speed, cache, results, resident))
    else:
        _show(trace, speed, results, resident)
    here = results.get("pread")
    if here is not None and here.failed:
        raise SystemExit(1)


def _parse_speed(text: str) -> float | None:
    if text == "max":
        return None
    try:
        speed = 1.0 if text == "recorded" else float(text.removesuffix("x"))
    except ValueError:
        speed = 0.0
    if not 0 < speed < float("inf"):
        raise UsageError(f"--speed is {text!r}: use recorded, max, or a factor such as 2x or 0.5x")
    return speed


def _place_files(trace: Trace, roots: list[str], synthesize: str | None, sparse: bool) -> list[str]:
    """Paths of the job's files here; MissingError unless all that it found are there."""
    from ..traces import replay as replays

    names = [trace.names[number] for number in range(len(trace.names))]
    paths = replays.map_paths(names, [replays.parse_root(root) for root in roots])
    wanted, read = replays.find_used(trace)
    if synthesize is not None:
        paths = replays.place_below(paths, synthesize)
        with console.show_progress(f"Making files in {synthesize}", "bytes") as progress:
            replays.synthesize(paths, trace.sizes, wanted, sparse=sparse, progress=progress)
    replays.check_files(paths, read)
    return paths


def prepare_page_cache(paths: list[str], cache: str) -> float:
    """Prepare the page cache as asked; return the cached share of the files, -1 if unknown."""
    from penstock.engine import page_cache

    from ..traces import replay as replays

    there = [path for path in paths if os.path.isfile(path)]  # the replay says which are not
    if cache == "warm":
        with console.show_progress("Reading files once") as progress:
            replays.read_once(there, progress)
    cached = page_cache.evict(there) if cache == "cold" else page_cache.measure_residency(there)
    return -1.0 if cached is None else cached.fraction


def _replay_values(
    trace: Trace, speed: str, cache: str, results: dict[str, Any], resident: dict[str, float]
) -> dict[str, Any]:
    def of(outcome: ReplayOutcome | Merged) -> dict[str, Any]:
        values = dict(vars(outcome))
        if "took" in values:
            values["took"] = {kind: took.values() for kind, took in values["took"].items()}
            late = values["late"]
            values["late"] = None if late is None else late.values()
            values["reads"] = values["took"]["read"]["count"]
        return values

    return {
        "source": trace.source,
        "speed": speed,
        "cache": cache,
        "resident_before": resident,
        **{name: of(outcome) for name, outcome in results.items()},
    }


def _show(trace: Trace, speed: str, results: dict[str, Any], resident: dict[str, float]) -> None:
    recorded: ReplayOutcome = results["recorded"]
    here: ReplayOutcome | None = results.get("pread")
    merged: Merged | None = results.get("penstock")
    title = f"{trace.source}: {recorded.reads:,} reads by {recorded.threads:,} threads"
    columns = ["in the job"]
    columns += ["by pread"] * (here is not None) + ["by penstock"] * (merged is not None)
    table = console.make_table("", *columns, right=columns, title=console.escape(title))
    rows: list[tuple[str, Any]] = [
        ("seconds", lambda run: f"{run.seconds:,.3f}"),
        ("waited for data, s, all threads", lambda run: f"{run.waited_s:,.3f}"),
        ("read", lambda run: console.format_bytes(run.bytes)),
        ("read/s", lambda run: f"{console.format_bytes(run.bytes / (run.seconds or 1))}/s"),
        ("reads/s", lambda run: f"{run.reads / (run.seconds or 1):,.0f}"),
        ("reads that storage saw", lambda run: f"{getattr(run, 'runs', run.reads):,}"),
    ]
    for kind in ("read", "open", "stat", "close"):
        if recorded.took[kind].count:
            heads = {50: "median", 99: "99 %", 100: "longest"}
            rows += [(f"{kind}, {head}", _percentile(kind, at)) for at, head in heads.items()]
    for name, cell in rows:
        cells = [cell(run) for run in (recorded, here, merged) if run is not None]
        table.add_row(name, *cells)
    console.out.print(table)
    for name, share in resident.items():
        if share >= 0:
            console.show(f"before the replay by {name}, {share:.0%} was in the page cache")
    if merged is not None:
        more = merged.run_bytes / merged.bytes - 1 if merged.bytes else 0.0
        console.show(
            f"penstock: {merged.how}; {merged.reads:,} reads as {merged.runs:,}, with {more:.0%}"
            " more bytes; it knows what comes next, as it does of its own orders"
        )
    if here is not None:
        _show_fidelity(trace, speed, recorded, here)


def _percentile(kind: str, percent: int) -> Any:
    def cell(outcome: Any) -> str:
        if not hasattr(outcome, "took"):
            return ""
        took = outcome.took[kind]
        return latency(took.max_ns * 1e-9 if percent == 100 else took.percentile_s(percent))

    return cell


def _show_fidelity(trace: Trace, speed: str, recorded: ReplayOutcome, here: ReplayOutcome) -> None:
    """Show how far the replay did what the job did."""
    done = sum(took.count for took in here.took.values())
    others = here.failed + here.short + here.differed
    same = "all" if not others else f"{done - others:,}"
    console.show(f"faithful: {same} of {done:,} operations came out as in the job")
    if here.late is not None:
        late = here.late
        console.show(
            f"faithful: operations began {latency(late.percentile_s(50))} (median),"
            f" {latency(late.percentile_s(99))} (99 %),"
            f" {latency(late.max_ns * 1e-9)} (most) late;"
            f" {100 * late.share_within(1e-3):.1f} % within 1 ms"
        )
        if late.percentile_s(99) > 0.01:
            console.say(
                "the job did more than this machine can replay on time: read the times as those of"
                " a busy machine"
            )
    if trace.timing == "shared":
        console.say("how long a single read took in the job is an estimate: compare sums")
    if recorded.took["map"].count:
        console.say("what the job read through maps is not replayed: nobody saw it")
    if here.short:
        console.say(f"{here.short:,} reads gave less than in the job: the files here are smaller")
    if here.failed or here.differed:
        console.say(
            f"{here.failed:,} reads and {here.differed:,} opens and stats failed here and not in"
            f" the job; the first: {here.first_failure}"
        )
