"""From a recorded run to a scenario: rates for which the corrected model takes as long as it did.

A run tells the rate of a device only where it waited for it. So a rate is looked for where, with an
unlimited device, the model takes clearly less than the run did; it is the one for which both take
as long. Of other devices the run says that they gave what was asked of them: that, or what
was measured by itself, is used, and `Calibration.sources` says which.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import yaml

from ..errors import UsageError
from . import corrected
from .devices import Floats
from .policies import NodeTraffic
from .record import EpochRecord, RecordedRun
from .scenario import Policy, Scenario
from .workload import BYTES, SimulatedWorkload

_unlimited = 1e9  # MB/s
_hindered = 1.1  # by a device: the run takes so much longer than it would without
_smooth = 0.02  # at most this part of an epoch is waiting, where nothing hinders it
_alike = 0.1  # bytes of the run and of the model, at most so far apart
_network_mb_s = 1250.0
_precise = 1e-4
_tries = 40


@dataclass(frozen=True)
class Calibration:
    """A scenario that takes as long as the run did.

    policy:   what the run did, as the simulator calls it.
    sources:  of each key that was not simply what the run was given, where its value is from.
    """

    scenario: Scenario
    policy: Policy
    sources: Mapping[str, str]

    def yaml(self) -> str:
        """The scenario as a file, which says where its values are from."""
        lines = [f"# {key}: {source}\n" for key, source in self.sources.items()]
        told = _to_plain(self.scenario.model_dump())
        text: str = yaml.safe_dump(told, sort_keys=False, width=100)
        return "".join(lines) + text


class Measured(NamedTuple):
    """Rates that were measured by themselves, in MB/s; None where they were not.

    storage:  by how many hosts read at once, all together, in reads as the run makes them.
    network:  that a host receives from others.
    memory:   of copying on a host.
    """

    storage: Mapping[int, float] | None = None
    network: float | None = None
    memory: float | None = None


def calibrate(run: RecordedRun, measured: Measured = Measured()) -> Calibration:  # noqa: B008 - immutable
    """The scenario of a run. Raises UsageError where the run cannot be one of the model."""
    return _Calibrator(run, measured).result()


def resize(
    scenario: Scenario,
    *,
    nodes: int | None = None,
    ram_mb: float | None = None,
    step_s: float | None = None,
    epochs: int | None = None,
) -> Scenario:
    """The same on so many nodes, with as many samples a step on each; with so much memory on each;
    with steps that compute so long. UsageError where that is no scenario."""
    told = scenario.model_dump()
    training = told["training"]
    if nodes is not None:
        training |= {"nodes": nodes, "global_batch": nodes * scenario.batch}
    if ram_mb is not None:
        # A tier has some room: less than a byte is as good as none.
        told["system"]["tiers"][0]["capacity_mb"] = max(ram_mb, 0.1 / BYTES)
    if step_s is not None:
        training["compute_mb_s"] = scenario.batch * scenario.data.mean_mb / step_s
    if epochs is not None:
        training["epochs"] = epochs
    return Scenario.of(told, scenario.name)


@dataclass(frozen=True)
class _Device:
    """A rate to be found. put: a scenario with this rate; moved: bytes of an epoch through it."""

    key: str
    what: str
    put: Callable[[dict[str, Any], float], None]
    moved: Callable[[EpochRecord], float]
    waits: Callable[[EpochRecord], bool]


class _Calibrator:
    """Works a scenario out, key by key."""

    def __init__(self, run: RecordedRun, measured: Measured) -> None:
        self._run, self._measured = run, measured
        self._sources: dict[str, str] = {}
        self._policy = _name_policy(run)
        self._told = self._unhindered()
        self._traffic: NodeTraffic | None = None

    def result(self) -> Calibration:
        self._overhead()
        for device in self._devices():
            self._find(device)
        storage = self._told["system"]["storage"]
        table = storage["read_mb_s"]
        storage["link_mb_s"] = max(table.values())
        self._sources["system.storage.link_mb_s"] = "assumed: no limit beside that of the storage"
        self._check_bytes()
        return Calibration(self._scenario(), self._policy, self._sources)

    # -- what the run was given ------------------------------------------------------------------

    def _unhindered(self) -> dict[str, Any]:
        """The scenario with unlimited devices, and computing as it was seen."""
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
        if run.told < rank.ranks:
            self._sources["bytes"] = f"{run.told} of {rank.ranks} ranks told; others taken alike"
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

    # -- what it tells -----------------------------------------------------------------------------

    def _overhead(self) -> None:
        """What epochs that nothing hinders take longer than computing does."""
        key = "training.step_overhead_s"
        waits = [
            self._run.rank.decode_threads > 0 or not self._from_memory(epoch)
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
        self._told["training"]["step_overhead_s"] = max(0.0, min(free))
        self._sources[key] = "what a step took beside computing, in epochs without waiting"

    def _devices(self) -> list[_Device]:
        """In the sequence in which they can be told apart."""
        nodes, threads = self._run.hosts, self._told["system"]["staging"]["threads"]
        all_bytes = self._run.rank.samples * self._run.rank.mean_bytes
        decoding = self._run.rank.decode_threads > 0

        def kept(epoch: EpochRecord) -> bool:
            return epoch.storage_bytes < 0.01 * all_bytes

        def decode(told: dict[str, Any], rate: float) -> None:
            told["training"]["preprocess_mb_s"] = rate / threads

        def network(told: dict[str, Any], rate: float) -> None:
            told["system"]["network_mb_s"] = rate

        def disk(told: dict[str, Any], rate: float) -> None:
            told["system"]["tiers"][-1]["read_mb_s"] = {1: rate}

        def storage(told: dict[str, Any], rate: float) -> None:
            table = dict(self._measured.storage or {})
            told["system"]["storage"]["read_mb_s"] = table | {nodes: rate * nodes}

        devices = [
            _Device("system.network_mb_s", "peers", network, lambda e: e.peer_bytes, kept),
            _Device(
                "system.storage.read_mb_s",
                "storage",
                storage,
                lambda e: e.storage_bytes,
                _accept_any,
            ),
        ]
        if self._run.rank.disk_bytes:
            key = "system.tiers[1].read_mb_s"
            devices.insert(0, _Device(key, "the disk", disk, lambda e: e.disk_bytes, kept))
        key = "training.preprocess_mb_s"
        if decoding:
            device = _Device(key, "decoding", decode, lambda _: all_bytes, self._from_memory)
            devices.insert(0, device)
        else:
            self._sources[key] = "nothing was decoded"
        return devices

    def _find(self, device: _Device) -> None:
        """The rate of a device, of each node, where the run tells it, or something has measured it;
        else that which was seen."""
        epochs = [k for k, e in enumerate(self._run.epochs) if device.moved(e) and device.waits(e)]
        per_s = [self._per_s(device, k) for k in range(len(self._run.epochs))]
        if epochs:
            busiest = max(epochs, key=lambda k: device.moved(self._run.epochs[k]))
            if rate := self._fitted(device, busiest, per_s[busiest]):
                device.put(self._told, rate)
                number = self._run.epochs[busiest].epoch
                self._sources[device.key] = f"from how long epoch {number} waited for {device.what}"
                return
        given = self._given(device)
        if given:
            device.put(self._told, given)
            self._sources[device.key] = "given; the run did not wait for it"
        elif device.what == "peers":
            device.put(self._told, max(_network_mb_s, *per_s))
            self._sources[device.key] = "assumed: 10 Gbit/s; the run did not wait for peers"
        elif seen := max(per_s):
            device.put(self._told, seen)
            self._sources[device.key] = f"assumed: what {device.what} gave, the run did not wait"
        else:
            raise UsageError(
                f"{self._run.where}: no epoch read from {device.what}, so its rate cannot be told: "
                "record a run from its first epoch, or give the rate"
            )

    def _given(self, device: _Device) -> float:
        """Of each node."""
        if device.what == "peers":
            return self._measured.network or 0.0
        if device.what == "storage" and self._measured.storage:
            nodes = self._run.hosts
            points = sorted(self._measured.storage)
            rates = [self._measured.storage[point] for point in points]
            return float(np.interp(nodes, points, rates)) / nodes
        return 0.0

    def _per_s(self, device: _Device, epoch: int) -> float:
        """MB/s that the device gave each node in an epoch."""
        seen = self._run.epochs[epoch]
        return device.moved(seen) / BYTES / seen.seconds / self._run.hosts

    def _fitted(self, device: _Device, epoch: int, guess: float) -> float | None:
        """The rate for which an epoch takes as long as it did; None where it hardly matters.

        Found by secants over 1/rate, of which the time is nearly a straight line, within bounds
        that are halved where secants would leave them.
        """
        wanted = self._run.epochs[epoch].seconds * self._part()

        def too_long(slowness: float) -> float:
            device.put(self._told, 1 / slowness)
            return float(self._seconds()[epoch]) - wanted

        low, at_low = 1 / _unlimited, too_long(1 / _unlimited)
        if wanted < _hindered * (wanted + at_low):
            device.put(self._told, _unlimited)
            return None
        high, at_high = 1 / guess, too_long(1 / guess)
        while at_high <= 0:
            high *= 2
            at_high = too_long(high)
        for turn in range(_tries):
            found = low + (high - low) * at_low / (at_low - at_high)
            if turn % 3 == 2:
                found = (low + high) / 2
            at_found = too_long(found)
            if abs(at_found) <= _precise * wanted:
                break
            if at_found > 0:
                high, at_high = found, at_found
            else:
                low, at_low = found, at_found
        return 1 / found

    # -- the model ---------------------------------------------------------------------------------

    def _scenario(self) -> Scenario:
        return Scenario.of(self._told, self._run.where)

    def _flows(self) -> NodeTraffic:
        if self._traffic is None:
            self._traffic = corrected.TRAFFIC[self._policy](SimulatedWorkload(self._scenario()))
        return self._traffic

    def _seconds(self) -> Floats:
        """What each epoch takes, float64 (epochs,)."""
        scenario = self._scenario()
        ends = corrected.run_traffic(scenario, self._flows())
        ends = ends.reshape(scenario.training.epochs, -1)[:, -1]
        seconds: Floats = np.diff(ends, prepend=0) / 1e9
        return seconds

    def _part(self) -> float:
        """Of an epoch of the run, what the model has: it leaves out what does not fill a step."""
        scenario = self._scenario()
        if self._run.rank.steps == scenario.steps:
            return 1.0
        return scenario.steps * scenario.training.global_batch / scenario.data.samples

    def _from_memory(self, epoch: EpochRecord) -> bool:
        """Whether all of an epoch's bytes were in the memory of the host that processed them."""
        total = epoch.ram_bytes + epoch.disk_bytes + epoch.peer_bytes + epoch.storage_bytes
        return epoch.ram_bytes >= 0.99 * total > 0

    def _check_bytes(self) -> None:
        """The model must read what the run has read, or it is of something else."""
        read = self._flows().ring.sum(axis=1).reshape(len(self._run.epochs), -1).sum(axis=1)
        for modelled, epoch in zip(read, self._run.epochs, strict=True):
            least = _alike * self._run.rank.samples * self._run.rank.mean_bytes
            if abs(int(modelled) - epoch.storage_bytes) > least:
                self._sources[f"epoch {epoch.epoch}"] = (
                    f"UNLIKE THE MODEL: {epoch.storage_bytes / BYTES:,.0f} MB came from storage, "
                    f"and {int(modelled) / BYTES:,.0f} MB would from empty caches"
                )


_offered: tuple[Policy, ...] = ("staging", "nopfs", "penstock", "penstock_local", "lower_bound")
"""What a recorded run is compared with."""


def _accept_any(_: EpochRecord) -> bool:
    return True


def _name_policy(run: RecordedRun) -> Policy:
    # Without a cache it is one that holds nothing.
    return "penstock_local" if run.rank.assignment == "local" else "penstock"


def _make_tier(name: str, capacity_mb: float, rate: float) -> dict[str, Any]:
    capacity_mb = max(capacity_mb, 0.1 / BYTES)
    return {"name": name, "capacity_mb": capacity_mb, "threads": 1, "read_mb_s": {1: rate}}


def _to_plain(value: Any) -> Any:
    """The same in lists and mappings, which YAML has."""
    if isinstance(value, dict):
        return {key: _to_plain(each) for key, each in value.items()}
    if isinstance(value, (tuple, list)):
        return [_to_plain(each) for each in value]
    return value
