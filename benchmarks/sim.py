"""python -m benchmarks.sim [--quick]: the simulator against what was published, and what it takes.

Run times of the published simulator, reproduced; penstock's policy against the bound, over the run
and in the first epoch, and against NoPFS in the corrected model, scenario by scenario; every policy
by both models; and time and memory for 1,024 nodes, 1.28 million samples and 90 epochs, in a
process of their own.

NoPFS's nodes read the next epoch while one ends, penstock's loader does not. `nopfs` rows compare
who keeps what: nodes of both read across ends of epochs. penstock may be behind by one step of the
run, in which policies fill their pipelines differently. `loop` rows have penstock as its loader is.
"""

from __future__ import annotations

import argparse
import os
import resource
import subprocess
import sys
import time
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace

from penstock.errors import UsageError
from penstock_sim import POLICIES, Scenario, list_scenarios, load_scenario, simulate
from penstock_sim.fluid_model import run_traffic
from penstock_sim.policies import penstock
from penstock_sim.workload import SimulatedWorkload

from . import __main__ as command
from .published_simulator import ROWS
from .record import Record, Row

LARGE = "imagenet-1k-lassen"
SECONDS, GIGABYTES = 60.0, 4.0
OF_BOUND = 1.03
CLOSE = 1e-9
PARITY_ACCESSES = 1e7  # times nodes: above, the published simulator takes a minute or more
QUICK = ("s1", "s2-15", "s3", "s4")


def parity_rows() -> list[Row]:
    """Run times beside the published program's."""
    rows = []
    for name, policies in ROWS.items():
        for policy, row in policies.items():
            took = simulate(load_scenario(name), policy, "parity").total_s
            ratio = took / row.run_s
            close = abs(ratio - 1) <= CLOSE
            note = f"printed {row.printed_s:g}"
            rows.append(
                Row(f"parity {name} {policy}", took, "s", row.run_s, ratio, 1.0, close, note=note)
            )
    return rows


def models_rows(scenario: Scenario, raw: dict[str, object]) -> list[Row]:
    """Every policy by both models: what correcting the faults changes."""
    rows = []
    for policy in POLICIES:
        found = {}
        for model in ("parity", "corrected"):
            try:
                result = simulate(scenario, policy, model)
            except UsageError as error:
                raw[f"{scenario.name} {policy} {model}"] = str(error)
                continue
            found[model] = result.total_s
            raw[f"{scenario.name} {policy} {model}"] = {
                "total_s": result.total_s,
                "setup_s": result.setup_s,
                "epochs_s": result.epochs_s.tolist(),
                "moved_mb": result.moved_mb.sum(axis=0).tolist(),
            }
        new, old = found.get("corrected"), found.get("parity")
        ratio = new / old if new is not None and old is not None else None
        rows.append(
            Row(f"models {scenario.name} {policy}", new, "s", old, ratio, note="floor: parity")
        )
    return rows


def penstock_rows(scenario: Scenario) -> list[Row]:
    """penstock's policy against the bound, and against NoPFS with peers and as published."""
    traffic = penstock(SimulatedWorkload(scenario))
    ends_s = run_traffic(scenario, traffic).reshape(scenario.training.epochs, -1)[:, -1] / 1e9
    least = simulate(scenario, "lower_bound")
    room = sum(tier.capacity_mb for tier in scenario.system.tiers) * scenario.training.nodes
    fits = room >= scenario.data.samples * scenario.data.mean_mb
    pairs = (
        ("bound", float(ends_s[-1]), least.total_s),
        ("first epoch", float(ends_s[0]), float(least.epochs_s[0])),
    )
    rows = []
    for what, took, floor in pairs:
        ratio = took / floor
        target, met = (OF_BOUND, ratio <= OF_BOUND) if fits else (None, None)
        rows.append(Row(f"{what} {scenario.name}", took, "s", floor, ratio, target, met))
    joined = float(run_traffic(scenario, replace(traffic, by_epoch=False))[-1]) / 1e9
    step = 1 / len(traffic.need)
    for policy in ("nopfs", "nopfs_published"):
        theirs = simulate(scenario, policy).total_s
        against = joined / theirs
        name = f"{policy} {scenario.name}"
        met = against <= 1 + step
        note = "target: within one step of the run"
        rows.append(Row(name, joined, "s", theirs, against, 1 + step, met, note=note))
        name = f"loop, {name}"
        rows.append(Row(name, float(ends_s[-1]), "s", theirs, float(ends_s[-1]) / theirs))
    return rows


def scenario_rows(name: str) -> tuple[list[Row], dict[str, object]]:
    """The rows of a scenario, and what was simulated for both models."""
    scenario = load_scenario(name)
    runs: dict[str, object] = {}
    if "penstock" not in scenario.policies:
        return [], runs  # its samples are drawn by what nobody knows beforehand
    rows = penstock_rows(scenario)
    training = scenario.training
    if scenario.data.samples * training.epochs * training.nodes <= PARITY_ACCESSES:
        rows += models_rows(scenario, runs)
    return rows, runs


def large_rows() -> list[Row]:
    """The cost of the two policies of a thousand nodes together: time, CPU time and memory."""
    program = (
        "from penstock_sim import load_scenario, simulate\n"
        f"scenario = load_scenario('{LARGE}')\n"
        "for policy in ('penstock', 'nopfs'): simulate(scenario, policy)"
    )
    before = time.perf_counter()
    subprocess.run([sys.executable, "-c", program], check=True)
    took = time.perf_counter() - before
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    cpu, held = used.ru_utime + used.ru_stime, used.ru_maxrss * 1024 / 1e9
    note = f"{os.cpu_count()} cores; {cpu:.1f} s of CPU"
    return [
        Row(
            "1,024 nodes time", took, "s", SECONDS, took / SECONDS, 1.0, took <= SECONDS, note=note
        ),
        Row("1,024 nodes memory", held, "GB", GIGABYTES, held / GIGABYTES, 1.0, held <= GIGABYTES),
    ]


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.sim", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="without the large scenarios")
    options = parser.parse_args()
    record = Record("sim" + ("-quick" if options.quick else ""), 42, vars(options))
    runs: dict[str, object] = {}
    large = [] if options.quick else large_rows()  # first: the largest child is measured
    record.rows += parity_rows()
    with ProcessPoolExecutor(2) as processes:  # its own cores, once what runs beside has ended
        names = QUICK if options.quick else list_scenarios()
        for rows, found in processes.map(scenario_rows, names):
            record.rows += rows
            runs |= found
    record.rows = [replace(row, is_computed=True) for row in record.rows] + large
    record.raw["sim"] = {"runs": runs}
    command.finish(record)


if __name__ == "__main__":
    main()
