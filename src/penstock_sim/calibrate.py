"""Calibration: a scenario for which the corrected model takes as long as a recorded run did.

A run shows the rate of a device only if it waited for it. So a rate is fitted if, with an unlimited
device, the model takes clearly less time than the run; it is the rate at which both take equally
long. Other devices delivered all that was requested of them. For these the observed rate is used,
or one that was measured separately, and `Calibration.sources` says which.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import yaml

from penstock.errors import UsageError

from . import fluid_model
from .closed_forms import Floats, import_scipy
from .policies import NodeTraffic
from .record import EpochRecord, LiveRun
from .scenario import Policy, Scenario
from .workload import BYTES, SimulatedWorkload

_unlimited = 1e9  # MB/s
_hindered = 1.1  # by a device: the run takes so much longer than it would without
_smooth = 0.02  # at most this part of an epoch is waiting, where nothing hinders it
_alike = 0.1  # bytes of the run and of the model, at most so far apart
_network_mb_s = 1250.0
_precise = 1e-4


@dataclass(frozen=True)
class Calibration:
    """A scenario that takes as long as the run did.

    policy:   the simulator's name of the run's policy.
    sources:  for each key that is not simply a setting of the run, the origin of its value.
    """

    scenario: Scenario
    policy: Policy
    sources: Mapping[str, str]

    def yaml(self) -> str:
        """Write the scenario as YAML, with comments that give the origin of its values."""
        lines = [f"# {key}: {source}\n" for key, source in self.sources.items()]
        values = _to_plain(self.scenario.model_dump())
        text: str = yaml.safe_dump(values, sort_keys=False, width=100)
        return "".join(lines) + text


class Measured(NamedTuple):
    """Rates that were measured separately, in MB/s; None if they were not.

    storage:  total rate by the number of hosts that read at once, in reads as the run makes them.
    network:  rate that a host receives from others.
    memory:   rate of copying on a host.
    """

    storage: Mapping[int, float] | None = None
    network: float | None = None
    memory: float | None = None


def calibrate(run: LiveRun, measured: Measured = Measured()) -> Calibration:  # noqa: B008 - immutable
    """Make the scenario of a run. Raises UsageError if the model cannot represent the run."""
    return _Calibrator(run, measured).result()


def resize(
    scenario: Scenario,
    *,
    nodes: int | None = None,
    ram_mb: float | None = None,
    step_s: float | None = None,
    epochs: int | None = None,
) -> Scenario:
    """Change the size of a scenario. Raises UsageError if the result is no valid scenario.

    nodes:   number of nodes; the samples of a step on each node stay.
    ram_mb:  memory of each node.
    step_s:  time that a step computes.
    epochs:  number of epochs.
    """
    values = scenario.model_dump()
    training = values["training"]
    if nodes is not None:
        training |= {"nodes": nodes, "global_batch": nodes * scenario.batch}
    if ram_mb is not None:
        # A tier has some room: less than a byte is as good as none.
        values["system"]["tiers"][0]["capacity_mb"] = max(ram_mb, 0.1 / BYTES)
    if step_s is not None:
        training["compute_mb_s"] = scenario.batch * scenario.data.mean_mb / step_s
    if epochs is not None:
        training["epochs"] = epochs
    return Scenario.of(values, scenario.name)


@dataclass(frozen=True)
class _Device:
    """A device whose rate is to be found.

    put:    sets the rate in a scenario.
    moved:  bytes of an epoch that went through the device.
    waits:  True if an epoch may have waited for the device.
    """

    key: str
    what: str
    put: Callable[[dict[str, Any], float], None]
    moved: Callable[[EpochRecord], float]
    waits: Callable[[EpochRecord], bool]


class _Calibrator:
    """The calibration of one run: its scenario is completed key by key."""

    def __init__(self, run: LiveRun, measured: Measured) -> None:
        self._run, self._measured = run, measured
        self._sources: dict[str, str] = {}
        # A run without a cache is one whose cache holds nothing.
        is_local = run.rank.assignment == "local"
        self._policy: Policy = "penstock_local" if is_local else "penstock"
        self._values = self._unhindered()
        self._traffic: NodeTraffic | None = None

    def result(self) -> Calibration:
        self._overhead()
        for device in self._devices():
            self._find(device)
        storage = self._values["system"]["storage"]
        table = storage["read_mb_s"]
        storage["link_mb_s"] = max(table.values())
        self._sources["system.storage.link_mb_s"] = "assumed: no limit beside that of the storage"
        self._check_bytes()
        return Calibration(self._scenario(), self._policy, self._sources)

    # -- the run's settings ----------------------------------------------------------------------

    def _unhindered(self) -> dict[str, Any]:
        """Make the scenario with unlimited devices, and with the observed computing time."""
        run, rank = self._run, self._run.rank
        nodes = run.hosts
        if rank.global_batch % nodes:
            raise UsageError(
                f"{run.where}: global_batch is {rank.global_batch}, over {nodes} hosts: the model "
                "has as many samples on each; record a run with a multiple of the hosts"
            )
        whole, rest = divmod(rank.samples, rank.global_batch)
        if not whole <= rank.steps <= whole + (rest > 0):
            raise UsageError(
                f"{run.where}: steps is {rank.steps}, and {rank.samples} samples in global batches "
                f"of {rank.global_batch} make {whole}: the model goes through all data once an "
                "epoch; record a run that does, which a mixture does not"
            )
        batch = rank.global_batch // nodes
        step_bytes = batch * rank.mean_bytes
        compute_s = min(epoch.compute_s / epoch.steps for epoch in run.epochs)
        self._sources["training.compute_mb_s"] = "the least time between batches of any rank"
        if rank.hosts is None:
            self._sources["training.nodes"] = "without a cache, each rank is taken for a host"
        if run.recorded_ranks < rank.ranks:
            self._sources["bytes"] = (
                f"{run.recorded_ranks} of {rank.ranks} ranks have a record; others assumed equal"
            )
        memory = self._measured.memory or _unlimited
        measured = "given, or measured by copying" if self._measured.memory else "assumed: no limit"
        self._sources["system.staging.read_mb_s, system.tiers[0].read_mb_s"] = measured
        mine = step_bytes * nodes / rank.ranks  # bytes of a rank's step
        ahead = min(rank.readahead_steps, int(rank.readahead_bytes // mine))
        tiers = [_make_tier("ram", rank.ram_bytes / BYTES, memory)]
        if rank.disk_bytes:
            tiers.append(_make_tier("disk", rank.disk_bytes / BYTES, _unlimited))
        ranks = max(1, rank.ranks // nodes)
        return {
            "name": "recorded",
            "about": f"{run.hosts} hosts, {rank.ranks} ranks, {len(run.epochs)} epochs",
            "data": {
                "samples": rank.samples,
                "mean_mb": rank.mean_bytes / BYTES,
                "sigma_mb": rank.deviation_bytes / BYTES,
                "cache_block": rank.cache_block or 1,
            },
            "training": {
                "nodes": nodes,
                "global_batch": rank.global_batch,
                "epochs": len(run.epochs),
                "compute_mb_s": step_bytes / BYTES / max(compute_s, 1e-9),
                "preprocess_mb_s": _unlimited,
                "step_overhead_s": 0.0,
                "seed": rank.seed % 2**32,
            },
            "system": {
                "network_mb_s": _unlimited,
                "storage": {"link_mb_s": _unlimited, "read_mb_s": {1: _unlimited}},
                # Steps that are read ahead, the one in hand, and a half, so that rounding and
                # samples of varying size do not make them one less.
                "staging": {
                    "capacity_mb": (ahead + 1.5) * step_bytes / BYTES,
                    "threads": max(1, rank.decode_threads) * ranks,
                    "read_mb_s": {1: memory},
                },
                "tiers": tiers,
            },
            "policies": list(dict.fromkeys([self._policy, *_offered])),
        }

    # -- rates from the run's times ----------------------------------------------------------------

    def _overhead(self) -> None:
        """Set the overhead: the time besides computing in epochs that no device delays."""
        key = "training.step_overhead_s"
        waits = [
            self._run.rank.decode_threads > 0 or not self._is_from_memory(epoch)
            for epoch in self._run.epochs
        ]
        model = self._seconds()
        free = [
            (epoch.seconds - took) / epoch.steps
            for epoch, wait, took in zip(self._run.epochs, waits, model, strict=True)
            if not wait or epoch.stall_s <= _smooth * epoch.seconds
        ]
        if not free:
            self._sources[key] = "assumed: no epoch of the run was without waiting"
            return
        self._values["training"]["step_overhead_s"] = max(0.0, min(free))
        self._sources[key] = "what a step took beside computing, in epochs without waiting"

    def _devices(self) -> list[_Device]:
        """List the devices in the sequence in which their rates can be found."""
        nodes, threads = self._run.hosts, self._values["system"]["staging"]["threads"]
        all_bytes = self._run.rank.samples * self._run.rank.mean_bytes
        decoding = self._run.rank.decode_threads > 0

        def kept(epoch: EpochRecord) -> bool:
            return epoch.storage_bytes < 0.01 * all_bytes

        def decode(values: dict[str, Any], rate: float) -> None:
            values["training"]["preprocess_mb_s"] = rate / threads

        def network(values: dict[str, Any], rate: float) -> None:
            values["system"]["network_mb_s"] = rate

        def disk(values: dict[str, Any], rate: float) -> None:
            values["system"]["tiers"][-1]["read_mb_s"] = {1: rate}

        def storage(values: dict[str, Any], rate: float) -> None:
            table = dict(self._measured.storage or {})
            values["system"]["storage"]["read_mb_s"] = table | {nodes: rate * nodes}

        devices = [
            _Device("system.network_mb_s", "peers", network, lambda e: e.peer_bytes, kept),
            _Device(
                "system.storage.read_mb_s",
                "storage",
                storage,
                lambda e: e.storage_bytes,
                lambda _: True,
            ),
        ]
        if self._run.rank.disk_bytes:
            key = "system.tiers[1].read_mb_s"
            devices.insert(0, _Device(key, "the disk", disk, lambda e: e.disk_bytes, kept))
        key = "training.preprocess_mb_s"
        if not decoding:
            self._sources[key] = "nothing was decoded"
            return devices
        return [
            _Device(key, "decoding", decode, lambda _: all_bytes, self._is_from_memory),
            *devices,
        ]

    def _find(self, device: _Device) -> None:
        """Set the rate of a device, for each node.

        It is fitted if the run shows it, else the measured rate, else the observed one.
        """
        epochs = [k for k, e in enumerate(self._run.epochs) if device.moved(e) and device.waits(e)]
        moved_mb = [device.moved(epoch) / BYTES for epoch in self._run.epochs]
        nodes = self._run.hosts  # rates are of each node
        per_s = [mb / e.seconds / nodes for mb, e in zip(moved_mb, self._run.epochs, strict=True)]
        if epochs:
            busiest = max(epochs, key=lambda k: device.moved(self._run.epochs[k]))
            if rate := self._fitted(device, busiest, per_s[busiest]):
                device.put(self._values, rate)
                number = self._run.epochs[busiest].epoch
                self._sources[device.key] = f"from how long epoch {number} waited for {device.what}"
                return
        given = self._given(device)
        if given:
            device.put(self._values, given)
            self._sources[device.key] = "given; the run did not wait for it"
        elif device.what == "peers":
            device.put(self._values, max(_network_mb_s, *per_s))
            self._sources[device.key] = "assumed: 10 Gbit/s; the run did not wait for peers"
        elif seen := max(per_s):
            device.put(self._values, seen)
            self._sources[device.key] = f"assumed: what {device.what} gave, the run did not wait"
        else:
            raise UsageError(
                f"{self._run.where}: no epoch read from {device.what}, so its rate is unknown: "
                "record a run from its first epoch, or give the rate"
            )

    def _given(self, device: _Device) -> float:
        """Measured rate of a device for each node, MB/s; 0 if it was not measured."""
        if device.what == "peers":
            return self._measured.network or 0.0
        if device.what == "storage" and self._measured.storage:
            nodes = self._run.hosts
            points = sorted(self._measured.storage)
            rates = [self._measured.storage[point] for point in points]
            return float(np.interp(nodes, points, rates)) / nodes
        return 0.0

    def _fitted(self, device: _Device, epoch: int, guess: float) -> float | None:
        """Fit the rate at which an epoch takes as long as in the run; None if it hardly matters.

        The search is over 1/rate, in which the time is nearly linear.
        """
        # Samples that fill no step are not in the model.
        scenario = self._scenario()
        wanted = self._run.epochs[epoch].seconds
        if self._run.rank.steps != scenario.steps:
            wanted *= scenario.steps * scenario.training.global_batch / scenario.data.samples

        def too_long(slowness: float) -> float:
            device.put(self._values, 1 / slowness)
            return float(self._seconds()[epoch]) - wanted

        low = 1 / _unlimited
        if wanted < _hindered * (wanted + too_long(low)):
            device.put(self._values, _unlimited)
            return None
        high = 1 / guess
        while too_long(high) <= 0:
            high *= 2
        find_root = import_scipy("optimize").brentq
        return 1 / float(find_root(too_long, low, high, xtol=low, rtol=_precise))

    # -- the model ---------------------------------------------------------------------------------

    def _scenario(self) -> Scenario:
        return Scenario.of(self._values, self._run.where)

    def _flows(self) -> NodeTraffic:
        if self._traffic is None:
            self._traffic = fluid_model.TRAFFIC[self._policy](SimulatedWorkload(self._scenario()))
        return self._traffic

    def _seconds(self) -> Floats:
        """Seconds of each epoch by the model, float64 (epochs,)."""
        scenario = self._scenario()
        ends = fluid_model.run_traffic(scenario, self._flows())
        ends = ends.reshape(scenario.training.epochs, -1)[:, -1]
        seconds: Floats = np.diff(ends, prepend=0) / 1e9
        return seconds

    def _is_from_memory(self, epoch: EpochRecord) -> bool:
        """True if all of an epoch's bytes were in the memory of the host that processed them."""
        total = epoch.ram_bytes + epoch.disk_bytes + epoch.peer_bytes + epoch.storage_bytes
        return epoch.ram_bytes >= 0.99 * total > 0

    def _check_bytes(self) -> None:
        """Note the epochs in which the model does not read as many bytes as the run did."""
        read = self._flows().ring.sum(axis=1).reshape(len(self._run.epochs), -1).sum(axis=1)
        for modelled, epoch in zip(read, self._run.epochs, strict=True):
            least = _alike * self._run.rank.samples * self._run.rank.mean_bytes
            if abs(int(modelled) - epoch.storage_bytes) > least:
                self._sources[f"epoch {epoch.epoch}"] = (
                    f"UNLIKE THE MODEL: {epoch.storage_bytes / BYTES:,.0f} MB came from storage, "
                    f"and {int(modelled) / BYTES:,.0f} MB would from empty caches"
                )


_offered: tuple[Policy, ...] = ("staging", "nopfs", "penstock", "penstock_local", "lower_bound")
"""Policies with which a recorded run is compared."""


def _make_tier(name: str, capacity_mb: float, rate: float) -> dict[str, Any]:
    capacity_mb = max(capacity_mb, 0.1 / BYTES)  # amounts of a scenario are above 0
    return {"name": name, "capacity_mb": capacity_mb, "threads": 1, "read_mb_s": {1: rate}}


def _to_plain(value: Any) -> Any:
    """Convert tuples to lists, at any depth, because YAML has no tuples."""
    if isinstance(value, dict):
        return {key: _to_plain(item) for key, item in value.items()}
    if isinstance(value, (tuple, list)):
        return [_to_plain(item) for item in value]
    return value
