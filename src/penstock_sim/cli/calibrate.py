"""`penstock simulate --from-run`: the scenario of a recorded run, or of another size of it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from penstock.cli import console, write_text
from penstock.engine import measure_copying
from penstock.errors import UsageError


def calibrate_scenario(
    files: list[Path],
    *,
    nodes: int | None = None,
    ram_mb: float | None = None,
    storage: str | None = None,
    network_mb_s: float | None = None,
    write: Path | None = None,
) -> Any:
    """Calibrate with the records in these files; say where each value is from.

    nodes, ram_mb:  of the cluster to be simulated; as in the run, unless given.
    storage:        rates that were measured, such as 1=95,8=600: MB/s by hosts.
    write:          where the scenario goes as a file, too.
    """
    from .. import calibrate, record

    memory = measure_copying() / 1e6
    measured = calibrate.Measured(_parse_rates(storage), network_mb_s, memory)
    found = calibrate.calibrate(record.load_run(files), measured)
    wanted = calibrate.resize(found.scenario, nodes=nodes, ram_mb=ram_mb)
    found = calibrate.Calibration(wanted, found.policy, found.sources)
    for key, source in found.sources.items():
        console.say(f"{key}: {source}")
    console.say(f"the run was of the policy {found.policy}")
    if write is not None:
        write_text(write, found.yaml())
    return wanted


def _parse_rates(given: str | None) -> dict[int, float] | None:
    """Parse text such as 1=95,8=600."""
    if given is None:
        return None
    found = {}
    for part in given.split(","):
        hosts, _, rate = part.partition("=")
        try:
            found[int(hosts)] = float(rate)
        except ValueError:
            found[0] = 0.0
    if min(found) < 1 or min(found.values()) <= 0:
        raise UsageError(f"--storage is {given!r}: use MB/s by hosts, such as 1=95,8=600")
    return found
