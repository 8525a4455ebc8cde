"""`penstock broker`: serves a host's budget to the jobs on it."""

from __future__ import annotations

import math
import os
import signal
from pathlib import Path
from socket import gethostname
from typing import Annotated

from ..engine.host import read_machine
from ..errors import UsageError
from ..sharing.allocation import Resources
from ..sharing.broker import Broker
from ..sharing.client import find_socket
from ..sharing.connection import Address, read_key
from ..sharing.federation import Upstream
from ..sharing.ledger import Ledger
from .console import explain_interrupt, say
from .options import Socket, option
from .quantities import parse_bytes


@explain_interrupt("jobs take their own budgets again, until a broker serves here")
def broker(
    cores: Annotated[
        float | None, option("That loaders share. (default: all that may be used here)")
    ] = None,
    bytes_per_s: Annotated[
        str | None, option("Of storage, such as 1GB/s. (default: not limited)")
    ] = None,
    socket: Socket = None,
    group: Annotated[str | None, option("Whose members may join, too.")] = None,
    objective: Annotated[
        str, option("What to maximise: utilisation, samples or makespan.")
    ] = "utilisation",
    floor: Annotated[
        float, option("Of what an even split would bring: what each job keeps, 0.01..1.")
    ] = 1.0,
    listen: Annotated[
        str | None, option("Where brokers of other hosts join: tcp://0.0.0.0:7077.")
    ] = None,
    upstream: Annotated[
        str | None, option("The broker that divides storage: tcp://storage-1:7077.")
    ] = None,
    key_file: Annotated[
        str | None, option("What both sides of --listen and --upstream have in common.")
    ] = None,
    name: Annotated[
        str | None, option("Of this host, for --upstream. (default: its host name)")
    ] = None,
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
    resources = Resources(
        cores=read_machine().usable_cores if cores is None else cores,
        bytes_per_s=math.inf if bytes_per_s is None else parse_rate("--bytes-per-s", bytes_per_s),
    )
    ledger = Ledger(resources, objective, floor)  # type: ignore[arg-type]  # checked there
    outer = above = None
    if (key_file is None) != (listen is None and upstream is None):
        raise UsageError("--key-file is for --listen and --upstream, and they need it: give both")
    if key_file is not None:
        key = read_key(Path(key_file))
        outer = None if listen is None else (Address(listen), key)
        if upstream is not None:
            host = gethostname() if name is None else name
            above = Upstream(Address(upstream), key, host, resources.bytes_per_s)
    with Broker(path, ledger, group=group, listen=outer, upstream=above) as serving:
        signal.signal(signal.SIGTERM, lambda *_: serving.stop())
        limit = "" if bytes_per_s is None else f" and {resources.bytes_per_s / 1e6:,.0f} MB/s"
        say(f"dividing {resources.cores:g} cores{limit} among jobs, at {path}")
        serving.serve()


def find_broker(socket: str | None) -> Path:
    """Return the path of the broker's socket: the option, or the usual one."""
    path = Path(socket) if socket is not None else find_socket(os.environ)
    if path is None:
        raise UsageError("PENSTOCK_BROKER is 'off': unset it, or give --socket")
    return path


def parse_rate(option: str, text: str) -> float:
    """Parse bytes a second: 1GB/s, 250 MiB/s, 1e9."""
    try:
        return parse_bytes(text)
    except ValueError:
        raise UsageError(f"{option} is {text!r}: use a rate such as 1GB/s or 250MiB/s") from None
