"""`penstock broker`: serve a host's budget to the jobs on it; `penstock top`: show them, live."""

from __future__ import annotations

import math
import os
import signal
from collections.abc import Callable, Sequence
from contextlib import closing
from pathlib import Path
from socket import gethostname
from typing import Any

import rich.box
import rich.console
import rich.live
import rich.measure
import rich.table
import rich.text

from ..engine.host import read_machine
from ..errors import UsageError
from ..sharing.allocation import UNITS, Resources
from ..sharing.broker import Broker
from ..sharing.client import find_socket, watch_broker
from ..sharing.connection import Address, read_key
from ..sharing.federation import Upstream
from ..sharing.ledger import Ledger
from . import console
from .console import explain_interrupt, say
from .options import AsJson, Socket, setting
from .quantities import counted, format_bytes, parse_amount


@explain_interrupt("jobs take their own budgets again, until a broker serves here")
def broker(
    cores: float | None = setting(
        None, "Cores that loaders share.", show_default="all that may be used here"
    ),
    bytes_per_s: str | None = setting(
        None, "Rate of storage, such as 1GB/s.", metavar="RATE", show_default="not limited"
    ),
    socket: Socket = None,
    group: str | None = setting(None, "A group whose members may join, too."),
    objective: str = setting("utilisation", "What to maximise: utilisation, samples or makespan."),
    floor: float = setting(1.0, "Share of an even split that each job keeps: 0.01 to 1."),
    listen: str | None = setting(
        None, "Where brokers of other hosts join: tcp://0.0.0.0:7077.", metavar="ADDRESS"
    ),
    upstream: str | None = setting(
        None, "The broker that divides storage: tcp://storage-1:7077.", metavar="ADDRESS"
    ),
    key_file: Path | None = setting(
        None, "What both sides of --listen and --upstream have in common."
    ),
    name: str | None = setting(
        None, "Name of this host, for --upstream.", show_default="its host name"
    ),
) -> None:
    """Share this host's cores and storage bandwidth among the jobs on it.

    Loaders find it by themselves, also running ones. They report what they can do and what a
    sample costs them, and are leased what brings the accelerators most work together; nobody gets
    less than an even split would bring. When the broker ends, each goes on with its own budget.

    Jobs of this user may join. The socket is $PENSTOCK_BROKER, else in $XDG_RUNTIME_DIR, else
    below /tmp; loaders look there, too. PENSTOCK_BROKER=off keeps a job out of it. Members of a
    --group may join a broker that serves in a folder which they can enter; PENSTOCK_BROKER names
    it to them.

    Hosts that share storage divide its bandwidth with a broker for all of them (--listen), of which
    each host's broker is a job (--upstream). --bytes-per-s of a host is then what it takes at most.
    Every line carries a code made with the key, so nobody joins without it; lines are not
    encrypted. Make the key with `(umask 077; openssl rand -hex 32 > key)`. While the broker above
    is away, a host takes no more than its floor: its part of an even split when it last heard.

    Examples:

      penstock broker --cores 8 --bytes-per-s 1GB/s

      penstock broker --cores 32 --group research --socket /run/penstock/broker.sock

      penstock broker --listen tcp://0.0.0.0:7077 --key-file key --bytes-per-s 10GB/s

      penstock broker --upstream tcp://storage-1:7077 --key-file key --cores 32
    """
    path = find_broker(socket)
    cores = read_machine().usable_cores if cores is None else cores
    rate = math.inf if bytes_per_s is None else parse_amount("--bytes-per-s", bytes_per_s, "1GB/s")
    resources = Resources(cores=cores, bytes_per_s=rate)
    ledger = Ledger(resources, objective, floor)  # type: ignore[arg-type]  # checked there
    outer = above = None
    if (key_file is None) != (listen is None and upstream is None):
        raise UsageError("--key-file is for --listen and --upstream, and they need it: give both")
    if key_file is not None:
        key = read_key(key_file)
        outer = None if listen is None else (Address(listen), key)
        if upstream is not None:
            host = gethostname() if name is None else name
            above = Upstream(Address(upstream), key, host, resources.bytes_per_s)
    with Broker(path, ledger, group=group, listen=outer, upstream=above) as serving:
        for end in {signal.SIGTERM, signal.SIGHUP}:
            if signal.getsignal(end) != signal.SIG_IGN:  # as nohup ignores the latter
                signal.signal(end, lambda *_: serving.stop())
        limit = "" if bytes_per_s is None else f" and {resources.bytes_per_s / 1e6:,.0f} MB/s"
        say(f"dividing {resources.cores:g} cores{limit} among jobs, at {path}")
        serving.serve()


def find_broker(socket: str | None) -> Path:
    """Return the path of the broker's socket: the option, or the usual one."""
    path = Path(socket) if socket is not None else find_socket(os.environ)
    if path is None:
        raise UsageError("PENSTOCK_BROKER is 'off': unset it, or give --socket")
    return path


# -- top -------------------------------------------------------------------------------------------

State = dict[str, Any]

_STANDINGS = {"measured": "green", "unmeasured": "cyan", "silent": "yellow", "doubted": "red"}
_REFUSALS = {
    "strangers": "callers who may not join",
    "crowded": "callers for whom there was no room",
    "absurd": "reports that cannot be true",
}
"""Why callers and their lines are refused, in words."""
_WAITS = {"model": "its model", "workers": "cores", "bandwidth": "MB/s"}
_shown_members = 4
_name_columns = 24
_any_columns = 10_000


def top(
    once: bool = setting(False, "Print one table, and end.", "--once"),
    as_json: AsJson = False,
    socket: Socket = None,
) -> None:
    """Show the jobs that share this host: what each holds, brings, and waits for.

    One row a job, updated with the broker: leased cores and MB/s, predicted and measured samples/s
    of its share, how busy that keeps its accelerators (of what its model takes), the share of time
    in which they stalled, and what binds it. Shares of a job that is unmeasured, silent or doubted
    are even ones. Below: what one more core, and 100 MB/s more, would be worth.

    Ctrl-C ends it. Where standard output is no terminal, one table is printed. Exit code 1: no
    broker serves, or it has ended.

    Examples:

      penstock top

      penstock top --once --socket /run/penstock/broker.sock

      penstock top --json | jq '.jobs[] | {job, measured, stall}'
    """
    with closing(watch_broker(find_broker(socket))) as states:  # type: ignore[type-var]  # it is a generator
        state = next(states)
        if as_json:
            console.print_json(state)
        elif once or not console.out.is_terminal:
            if not console.out.is_terminal and "COLUMNS" not in os.environ:
                console.out.width = _any_columns  # all of it goes into a pipe
            console.out.print(render_state(state, console.out.width))
        else:
            # Drawn when the broker has answered: a thread of rich's would draw old numbers again.
            with rich.live.Live(
                console=console.out, screen=True, auto_refresh=False, vertical_overflow="ellipsis"
            ) as live:
                while True:
                    live.update(render_state(state, console.out.width), refresh=True)
                    state = next(states)


def render_state(state: State, width: int) -> rich.console.RenderableType:
    """Render the state as a table of at most so many columns of text, with lines below it."""
    jobs = state["jobs"]
    blocks: list[rich.console.RenderableType] = []
    if jobs:
        blocks.append(_make_table(jobs, width))
    blocks += [rich.text.Text(line) for line in describe_state(state)]
    return rich.console.Group(*blocks)


_Cell = Callable[[dict[str, Any]], str]
_COLUMNS: Sequence[tuple[str, int, _Cell]] = (
    # The higher its number, the sooner a column is left out where there is little room.
    ("job", 0, lambda job: _escape_name(job["job"])),
    ("its reports", 4, lambda job: f"[{_STANDINGS[job['standing']]}]{job['standing']}[/]"),
    ("ranks", 6, lambda job: _join_numbers([member["rank"] for member in job["members"]])),
    ("processes", 9, lambda job: _join_numbers([member["pid"] for member in job["members"]])),
    ("cores", 1, lambda job: _format_number(job["cores"])),
    ("MB/s", 1, lambda job: _format_rate(job["bytes_per_s"])),
    ("predicted/s", 7, lambda job: _format_number(job["predicted_least"], job["predicted"])),
    ("samples/s", 0, lambda job: _format_number(job["measured"])),
    ("busy", 3, lambda job: _format_percent(_busy_share(job))),
    ("stall", 5, lambda job: _format_percent(job["stall"])),
    ("waits for", 2, lambda job: _WAITS.get(job["binding"], "-")),
)
"""Heading, what it may be left out before, and what it shows of a job."""


def _make_table(jobs: Sequence[dict[str, Any]], width: int) -> rich.table.Table:
    """Make a table with as many columns as fit the width."""
    for least in sorted({rank for _, rank, _ in _COLUMNS}, reverse=True):
        table = rich.table.Table(box=rich.box.SIMPLE_HEAD, pad_edge=False)
        columns = [column for column in _COLUMNS if column[1] <= least]
        for heading, _, _ in columns:
            is_text = heading in ("job", "its reports", "ranks", "processes", "waits for")
            table.add_column(
                heading,
                justify="left" if is_text else "right",
                no_wrap=True,
                max_width=_name_columns if heading == "job" else None,
            )
        for job in jobs:
            table.add_row(*(cell(job) for _, _, cell in columns))
        room = console.out.options.update(max_width=_any_columns)
        if rich.measure.Measurement.get(console.out, room, table).maximum <= width:
            break
    return table


def describe_state(state: State) -> list[str]:
    """Lines below the table, on all jobs together."""
    jobs = state["jobs"]
    if jobs:
        loaders = counted(sum(len(job["members"]) for job in jobs), "loader")
        resources = _describe_resources(state)
        lines = [f"{counted(len(jobs), 'job')} of {loaders} on {resources}"]
    else:
        lines = [f"no jobs yet; there are {_describe_resources(state)}"]
    if jobs and state["value"] is not None:
        lines.append(
            f"predicted together: {state['value']:.3g} {UNITS[state['objective']]}; nobody below "
            f"{state['floors']:.0%} of an even split"
        )
    worth = state["worth"]
    if worth is not None:
        lines.append(
            f"one more core is worth {worth['core']:.3g}, 100 MB/s more "
            f"{1e8 * worth['byte_per_s']:.3g} {UNITS[state['objective']]}"
        )
    for transfer in state["transfers"]:
        rate = "as fast as it can"
        if (limit := transfer["bytes_per_s"]) is not None:
            rate = f"at {_format_rate(transfer['measured'])} of {_format_rate(limit)} MB/s"
        lines.append(
            f"{_make_printable(transfer['job'])} transfers {format_bytes(transfer['moved'])} of "
            f"{format_bytes(transfer['bytes'])} {rate}"
        )
    above = state["upstream"]
    if above is not None:
        now = "leases storage from" if above["leased"] else "has no lease now of"
        lines.append(f"this host {now} {above['address']}")
    if state["refused"]:
        refusals = sorted(state["refused"].items())
        lines.append(
            "turned away: "
            + ", ".join(f"{count:,} {_REFUSALS.get(why, why)}" for why, count in refusals)
        )
    return lines


def _describe_resources(state: State) -> str:
    """Describe the cores and the bandwidth that the jobs share."""
    rate = state["bytes_per_s"]
    limit = "as many MB/s as there are" if rate is None else f"{_format_rate(rate)} MB/s"
    return f"{_format_number(state['cores'])} cores, {limit}"


def _busy_share(job: dict[str, Any]) -> float | None:
    """Share that the job gets of the rate that its model takes."""
    if job["measured"] is None or job["predicted"] is None or job["idle"] == 1:
        return None
    return min(1.0, float(job["measured"] / (job["predicted"] / (1 - job["idle"]))))


def _join_numbers(numbers: Sequence[int]) -> str:
    """Join the first few different numbers."""
    ordered = sorted(set(numbers))
    more = f" +{len(ordered) - _shown_members}" if len(ordered) > _shown_members else ""
    return ",".join(map(str, ordered[:_shown_members])) + more


def _escape_name(name: str) -> str:
    """Escape a name for a table, which has markup."""
    return console.escape(_make_printable(name))


def _make_printable(name: str) -> str:
    """Replace characters of a foreign name that could move the cursor."""
    return "".join(letter if letter.isprintable() else "?" for letter in name)


def _format_number(*ends: float | None) -> str:
    """Write a number, or an interval by its ends."""
    shown = ("-" if end is None else f"{end:,.0f}" if end >= 100 else f"{end:.3g}" for end in ends)
    return "..".join(dict.fromkeys(shown))


def _format_rate(value: float | None) -> str:
    return "-" if value is None else _format_number(value / 1e6)


def _format_percent(share: float | None) -> str:
    return "-" if share is None else f"{share:.0%}"
