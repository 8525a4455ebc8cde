"""The corrected model, of bytes that flow: nodes divide shared bandwidth (cpp/sim/fluid.hpp).

`policies` decide which bytes go where, and the core computes when. This module connects the two and
states the bound that no policy can beat.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, get_args

import numpy as np

from penstock.arguments import check_choice
from penstock.errors import UsageError

from . import _kernels, contention, frequency, importance, policies
from .closed_forms import Floats
from .importance import Value, fedcase
from .policies import NodeTraffic
from .scenario import SAMPLED, SOURCES, ImportanceSampling, Policy, Result, Scenario
from .workload import BYTES, Ints, SimulatedWorkload

TRAFFIC: dict[str, Callable[[SimulatedWorkload], NodeTraffic]] = {
    "naive": policies.naive,
    "staging": policies.staging,
    "deepio": policies.deepio,
    "deepio_opportunistic": policies.deepio_opportunistic,
    "parallel_staging": policies.parallel_staging,
    "lbann_dynamic": policies.lbann_dynamic,
    "lbann_preloading": policies.lbann_preloading,
    "locality_aware": policies.locality_aware,
    "nopfs": frequency.nopfs,
    "nopfs_published": partial(frequency.nopfs, fill_from_peers=False),
    "penstock": policies.penstock,
    "penstock_local": policies.penstock_local,
}

_ns = 1e9  # of a second
_bytes_per_ns = BYTES / _ns  # of a rate of 1 MB/s


def simulate(scenario: Scenario, policy: str, value: Value = fedcase) -> Result:
    """Simulate one policy by the corrected model. Raises UsageError if the policy cannot run.

    value: worth of samples, if sampling draws them by it.
    """
    check_choice("policy", policy, get_args(Policy))
    if isinstance(scenario.sampling, ImportanceSampling) and policy not in SAMPLED:
        raise UsageError(
            f"{policy} cannot run in {scenario.name}: it depends on the order, which is not known "
            "beforehand where sampling draws each batch by the losses of those before; use one of "
            f"{', '.join(SAMPLED)}, or leave sampling out"
        )
    workload = SimulatedWorkload(scenario)
    epochs = scenario.training.epochs
    notes: dict[str, Any] = {}
    if policy == "lower_bound":
        need = policies.staging(workload).need  # strided
        ends, setup = bound_epochs(workload, need), 0
        moved = np.zeros((epochs, len(SOURCES)))
    else:
        if isinstance(scenario.sampling, ImportanceSampling):
            traffic, notes = importance.sample_traffic(workload, scenario.sampling, policy, value)
        elif policy in TRAFFIC:
            traffic = TRAFFIC[policy](workload)
        else:
            raise UsageError(
                f"{policy} cannot run in {scenario.name}: it keeps what is drawn often, and each "
                "epoch uses every sample once; give sampling.kind importance, or use fixed owners, "
                "such as penstock's"
            )
        reads = (traffic.ring, traffic.demand, traffic.ahead)
        spare = contention.find_remaining(
            scenario,
            peers=bool(traffic.received.any()),
            storage=any(amounts.any() for amounts in reads),
        )
        times = run_traffic(scenario, traffic, spare)
        setup = int(times[0]) if traffic.setup else 0
        ends = times[traffic.setup :].reshape(epochs, -1)[:, -1]
        need, moved = traffic.need[traffic.setup :], _sum_moved(scenario, traffic)
        if spare != contention.ALL:
            notes["network"] = spare._asdict()
    took = np.diff(ends, prepend=setup)
    stall = took - _time_computing(scenario, need)
    times_s = (float(ends[-1]) / _ns, setup / _ns, took / _ns, stall / _ns)
    return Result(scenario.name, policy, "corrected", *times_s, moved, notes)


def run_traffic(
    scenario: Scenario, traffic: NodeTraffic, spare: contention.RemainingBandwidth = contention.ALL
) -> Ints:
    """Run the traffic; return the time at which each step ends, int64 (steps,), in ns."""
    training, system = scenario.training, scenario.system
    nodes = training.nodes
    window = int(system.staging.capacity_mb * BYTES) if traffic.staged else 0
    if traffic.staged:
        check_staging(scenario, int(traffic.need.max()))
    empty = np.empty(0, np.int64)  # stands for amounts that are 0 everywhere
    names = ("ring", "demand", "ahead", "tiers", "sent", "received")
    flows = [(name, getattr(traffic, name)) for name in names]
    ends: Ints = _kernels.run_fluid(
        nodes=nodes,
        window=window if traffic.known else 0,
        serial=not traffic.staged,
        setup=traffic.setup,
        overhead=_overhead_ns(scenario),
        epoch=scenario.steps if traffic.by_epoch else 0,
        compute=training.compute_mb_s * _bytes_per_ns,
        stage=stage_mb_s(scenario, traffic.staged) * _bytes_per_ns,
        link=system.network_mb_s * spare.peers * _bytes_per_ns,
        storage_shares=system.storage.shares(nodes) * spare.storage * _bytes_per_ns,
        tier_rates=np.array([tier.rate_mb_s for tier in system.tiers]) * _bytes_per_ns,
        need=traffic.need.reshape(-1),
        **{name: amounts.reshape(-1) if amounts.any() else empty for name, amounts in flows},
    )
    return ends


def check_staging(scenario: Scenario, most_bytes: int) -> None:
    """Raise UsageError unless staging memory holds a node's part of a step, the largest one."""
    room_mb = scenario.system.staging.capacity_mb
    if most_bytes > int(room_mb * BYTES):
        raise UsageError(
            f"{scenario.name}: system.staging.capacity_mb is {room_mb:g}, and a node's part of a "
            f"step has up to {most_bytes / BYTES:g} MB: give it more, or use smaller batches"
        )


def _overhead_ns(scenario: Scenario) -> int:
    return round(scenario.training.step_overhead_s * 1e9)


def stage_mb_s(scenario: Scenario, staged: bool = True) -> float:
    """Rate at which a node decodes and stores, MB/s, with all its staging threads or with one."""
    staging = scenario.system.staging
    threads = staging.threads if staged else 1
    together = staging.rate_mb_s / staging.threads * threads
    return min(scenario.training.preprocess_mb_s * threads, together)


def _time_computing(scenario: Scenario, need: Ints) -> Ints:
    """Time that the slowest nodes of the steps compute, by epoch: int64 (epochs,), in ns."""
    rate = scenario.training.compute_mb_s * _bytes_per_ns
    slowest = np.ceil(need.max(axis=1) / rate).astype(np.int64) + _overhead_ns(scenario)
    summed: Ints = slowest.reshape(scenario.training.epochs, -1).sum(axis=1)
    return summed


def bound_epochs(workload: SimulatedWorkload, need: Ints) -> Ints:
    """Earliest time at which each epoch can end, whatever the policy: int64 (epochs,), in ns.

    need:  bytes that each node processes in each step.

    Three things bound the time, from cold caches, if every epoch uses each of its samples once and
    all of its uses come before the next epoch's:

    - computing: a step takes as long as its slowest node computes, and steps follow each other;
    - storage: let D be all memory and disks of the cluster, staging included, and U_e the bytes
      that epoch e uses. Of what epoch e+1 uses at most D bytes are in the cluster when it begins,
      so max(0, U_{e+1} - D) are read from storage after that; and epoch 1 reads U_1. So at its end
      epoch e has read R_e = U_1 + sum_{2..e} max(0, U - D), at most at T, the most that any number
      of clients reads together. What is computed in later epochs comes after that:
      end_e >= max_{f <= e} (R_f / T + computing of epochs f+1..e);
    - staging: each node decodes and stores all that it processes.

    The bound depends on the assignment: another assignment has another slowest node. Policies that
    replace samples by others that are at hand are not bound by storage.
    """
    scenario = workload.scenario
    training, system = scenario.training, scenario.system
    computing = _time_computing(scenario, need)
    used = need.sum(axis=1).reshape(training.epochs, -1).sum(axis=1)
    room = system.staging.capacity_mb + sum(tier.capacity_mb for tier in system.tiers)
    room *= training.nodes * BYTES
    read = np.cumsum(np.append(used[0], np.maximum(0, used[1:] - room)))
    clients = np.arange(1, training.nodes + 1)
    best = float((system.storage.shares(training.nodes) * clients).max())
    by_storage = read / (best * _bytes_per_ns)
    staged = need.reshape(training.epochs, -1, training.nodes).sum(axis=1).cumsum(axis=0)
    by_staging = staged.max(axis=1) / (stage_mb_s(scenario, staged=True) * _bytes_per_ns)
    least = np.floor(np.maximum(by_storage, by_staging)).astype(np.int64)
    ends = np.empty(training.epochs, np.int64)
    end = 0
    for epoch in range(training.epochs):
        end = max(end + int(computing[epoch]), int(least[epoch]))
        ends[epoch] = end
    return ends


def _sum_moved(scenario: Scenario, traffic: NodeTraffic) -> Floats:
    """Sum the MB of each epoch from storage, peers and own tiers; the first row has the setup's."""
    storage = (traffic.ring + traffic.demand + traffic.ahead).sum(axis=1)
    moved = np.stack([storage, traffic.received.sum(axis=1), traffic.own], axis=1) / BYTES
    rows: Floats = moved[traffic.setup :].reshape(scenario.training.epochs, -1, 3).sum(axis=1)
    if traffic.setup:
        rows[0] += moved[0]
    return rows
