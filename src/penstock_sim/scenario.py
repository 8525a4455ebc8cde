"""Scenarios: a cluster, a data set and a training run, from YAML, checked strictly.

Sizes are MB (10^6 bytes) and rates MB/s. Tables of rates give the total rate by the number of
clients or threads. An unknown key, a key given twice, a missing or an impossible value is a
UsageError that names file, key, value and remedy: nothing in a scenario is ignored.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal, Self, get_args

import numpy as np
import numpy.typing as npt

from penstock.arguments import check_path, suggest, suggest_path
from penstock.errors import UsageError, missing_library

from .closed_forms import Floats

try:
    import pydantic
    import yaml
    from pydantic import BaseModel, ConfigDict, Field, model_validator
except ModuleNotFoundError:
    raise missing_library("pydantic pyyaml", "sim", "the simulator") from None


Ordered = Literal[
    "naive",
    "staging",
    "deepio",
    "deepio_opportunistic",
    "parallel_staging",
    "lbann_dynamic",
    "lbann_preloading",
    "locality_aware",
    "nopfs",
    "nopfs_published",
    "penstock",
    "penstock_local",
    "lower_bound",
]
Drawn = Literal["by_value", "recent", "fixed"]
Policy = Literal[Ordered, Drawn]
"""Policies that can be simulated; see docs/simulator/policies.md."""

POLICIES: tuple[Policy, ...] = get_args(Ordered)
"""Policies for epochs that use every sample once, in an order that is known."""

SAMPLED: tuple[Policy, ...] = ("naive", *get_args(Drawn))
"""Policies for batches drawn by importance, when nothing is known beforehand."""

Count = Annotated[int, Field(ge=1, le=2**40)]
Amount = Annotated[float, Field(gt=0, le=1e15, allow_inf_nan=False)]
Spread = Annotated[float, Field(ge=0, le=1e15, allow_inf_nan=False)]
Table = Annotated[dict[Count, Amount], Field(min_length=1)]


def interpolate_rates(rates: Mapping[int, float], readers: npt.ArrayLike) -> Floats:
    """Interpolate the total rate of `readers` readers, MB/s.

    Linear between measured points, constant outside them.
    """
    points = sorted(rates)
    return np.interp(np.asarray(readers, np.float64), points, [rates[point] for point in points])


class StrictModel(BaseModel):
    """A mapping in a file: unknown keys are refused, values are not converted and do not change."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)
    content: ClassVar[str] = "a scenario"  # of the file, in errors

    @classmethod
    def of(cls, given: object, where: str) -> Self:
        """Make the value of a mapping; `where` is its name in errors. Raises UsageError."""
        try:
            return cls.model_validate(given)
        except pydantic.ValidationError as error:
            lines = (_explain_error(where, flaw, cls.content) for flaw in error.errors())
            raise UsageError("\n".join(lines)) from None


class DataSpec(StrictModel):
    """The data set: samples of normally distributed size; negative sizes are drawn again.

    cache_block:  neighbouring samples in storage that penstock reads and keeps together; see
                  `penstock.plan`. Other policies, and samples that no node keeps, have cache blocks
                  of one sample.
    """

    samples: Count
    mean_mb: Amount
    sigma_mb: Spread = 0.0
    cache_block: Count = 1


class TrainingSpec(StrictModel):
    """The training: one worker a node; samples that do not fill a global batch are left out.

    compute_mb_s:     rate of stored data at which one node trains.
    preprocess_mb_s:  rate of stored data at which one thread decodes and augments.
    step_overhead_s:  time of each step besides computing: the framework's, and waiting for others.
    seed:             of order, sizes and placement.
    """

    nodes: Annotated[int, Field(ge=1, le=2**20)]
    global_batch: Count
    epochs: Annotated[int, Field(ge=1, le=100_000)]
    compute_mb_s: Amount
    preprocess_mb_s: Amount
    step_overhead_s: Spread = 0.0
    seed: Annotated[int, Field(ge=0, lt=2**32)] = 42


class EpochSampling(StrictModel):
    """Sampling in epochs: every sample once, in an order that is known."""

    kind: Literal["epochs"] = "epochs"


class ImportanceSampling(StrictModel):
    """Sampling by value, with replacement; see `importance.draw_batches`.

    An epoch has as many steps as it would have in `EpochSampling`.

    floor:  added to the value of each sample.
    decay:  exponent of the assumed losses, because a simulation has none: after k uses of sample i,
            counted from 0, the loss is 1/(i + 1)/(k + 1)^decay.
    """

    kind: Literal["importance"]
    floor: Amount = 0.01
    decay: Annotated[float, Field(ge=0, le=100)] = 0.5


Sampling = Annotated[EpochSampling | ImportanceSampling, Field(discriminator="kind")]


class SharedStorageSpec(StrictModel):
    """The shared storage: total rate by the number of nodes, and the rate of a node's link."""

    link_mb_s: Amount
    read_mb_s: Table

    def shares(self, clients: int) -> Floats:
        """Rate of each of 1, 2, ... clients, MB/s, by their own links: float64 (clients,)."""
        readers = np.arange(1, clients + 1)
        return np.minimum(self.link_mb_s, interpolate_rates(self.read_mb_s, readers) / readers)


class StagingSpec(StrictModel):
    """Memory in which batches are staged ahead, and the threads that fill it."""

    capacity_mb: Amount
    threads: Annotated[int, Field(ge=1, le=65_536)]
    read_mb_s: Table

    @property
    def rate_mb_s(self) -> float:
        """Rate of all its threads together, MB/s."""
        return float(interpolate_rates(self.read_mb_s, self.threads))


class TierSpec(StagingSpec):
    """A tier in which a node may keep samples."""

    name: str


class IdealSpec(StrictModel):
    """A network that nothing limits except the nodes' own links."""

    kind: Literal["ideal"] = "ideal"


class FatTreeSpec(StrictModel):
    """A `network.FatTree`. Nodes fill one leaf after the other; storage is attached to the core."""

    kind: Literal["fat-tree"]
    leaf_nodes: Annotated[int, Field(ge=1, le=2**20)] = 32
    oversubscription: Annotated[float, Field(ge=1, le=1e6)] = 1.0


class RoutedSpec(StrictModel):
    """A `networks.RoutedNetwork`.

    link_mb_s:     of a link between switches, each way.
    switch_nodes:  terminals of a switch; each holds a node, or a gateway.
    gateways:      terminals that storage is reached through, spread evenly over all.
    """

    link_mb_s: Amount
    switch_nodes: Annotated[int, Field(ge=1, le=2**20)]
    gateways: Annotated[int, Field(ge=1, le=2**20)]
    routing: Literal["minimal", "valiant", "ugal"] = "ugal"
    split: Literal["pair", "common"] = "pair"

    @property
    def terminals(self) -> int:
        """Nodes and gateways that it has room for."""
        raise NotImplementedError


class DragonflySpec(RoutedSpec):
    """A `networks.Dragonfly`."""

    kind: Literal["dragonfly"]
    group_switches: Annotated[int, Field(ge=1, le=1024)]
    global_links: Annotated[int, Field(ge=1, le=1024)]

    @property
    def terminals(self) -> int:
        """Nodes and gateways that it has room for."""
        groups = self.group_switches * self.global_links + 1
        return groups * self.group_switches * self.switch_nodes

    @model_validator(mode="after")
    def _has_a_way_around(self) -> DragonflySpec:
        if self.group_switches * self.global_links < 2:
            raise ValueError(
                "system.network.group_switches and global_links are 1: two groups leave no way "
                "around; use more"
            )
        return self


class TorusSpec(RoutedSpec):
    """A `networks.Torus`."""

    kind: Literal["torus"]
    dims: Annotated[
        tuple[Annotated[int, Field(ge=1, le=2**20)], ...],
        Field(strict=False, min_length=1, max_length=8),
    ]

    @property
    def terminals(self) -> int:
        """Nodes and gateways that it has room for."""
        return math.prod(self.dims) * self.switch_nodes


Network = Annotated[
    IdealSpec | FatTreeSpec | DragonflySpec | TorusSpec, Field(discriminator="kind")
]


class SystemSpec(StrictModel):
    """The cluster, of equal nodes.

    network_mb_s:  rate of each node's link to the others, each way.
    network:       network between these links; see `contention`.
    tiers:         tiers of each node, the fastest first.
    """

    network_mb_s: Amount
    network: Network = IdealSpec()
    storage: SharedStorageSpec
    staging: StagingSpec
    tiers: Annotated[tuple[TierSpec, ...], Field(strict=False, min_length=1, max_length=8)]


class Scenario(StrictModel):
    """A cluster, a data set and a training run to simulate.

    policies:  policies to simulate; by default all that can run with this sampling.
    """

    name: str
    about: str = ""
    data: DataSpec
    training: TrainingSpec
    sampling: Sampling = EpochSampling()
    system: SystemSpec
    policies: Annotated[tuple[Policy, ...], Field(strict=False, min_length=1)] = POLICIES

    @model_validator(mode="before")
    @classmethod
    def _policies_of_its_sampling(cls, given: Any) -> Any:
        sampling = given.get("sampling") if isinstance(given, dict) else None
        drawn = isinstance(sampling, dict) and sampling.get("kind") == "importance"
        return {"policies": SAMPLED, **given} if drawn else given

    @model_validator(mode="after")
    def _fits_together(self) -> Scenario:
        nodes, batch = self.training.nodes, self.training.global_batch
        if batch % nodes:
            raise ValueError(
                f"training.global_batch is {batch}, for {nodes} nodes: use a multiple of the nodes"
            )
        if self.data.samples < batch:
            raise ValueError(
                f"data.samples is {self.data.samples}, and training.global_batch {batch}: an epoch "
                "holds no step; use a smaller batch"
            )
        network = self.system.network
        if isinstance(network, RoutedSpec) and network.terminals < nodes + network.gateways:
            raise ValueError(
                f"system.network has {network.terminals} terminals, for {nodes} nodes and "
                f"{network.gateways} gateways: use more switches, or more switch_nodes"
            )
        if len(set(self.policies)) < len(self.policies):
            raise ValueError(f"policies names one twice: {', '.join(self.policies)}")
        return self

    def refuse_other_parts(self, keys: Mapping[str, bool], remedy: str) -> None:
        """Raise UsageError if the scenario has parts that a model has not.

        keys:    True for each key that is given and not modelled.
        remedy:  the name of the model with its verb, and what to do.
        """
        if given := ", ".join(key for key, is_given in keys.items() if is_given):
            raise UsageError(f"{self.name} has {given}, which {remedy}")

    @property
    def steps(self) -> int:
        """Number of steps of an epoch."""
        return self.data.samples // self.training.global_batch

    @property
    def batch(self) -> int:
        """Number of samples of a step on one node."""
        return self.training.global_batch // self.training.nodes


_shipped = resources.files(__package__) / "scenarios"


def list_scenarios() -> list[str]:
    """List the names of the scenarios that come with penstock."""
    return sorted(path.name[: -len(".yaml")] for path in _shipped.iterdir() if path.is_file())


def load_scenario(source: str | Path) -> Scenario:
    """Load the scenario of this name (see `list_scenarios`), or in this file.

    A system may be written out, or be the name of one that comes with penstock. Raises UsageError.
    """
    path = Path(check_path("source", source))
    if path.suffix in {".yaml", ".yml"}:
        return parse_scenario(read_file(path, "scenario"), str(path))
    known = list_scenarios()
    if str(source) not in known:
        raise UsageError(
            f"there is no scenario {str(source)!r}{suggest(str(source), known)}: use one of "
            f"{', '.join(known)}, or the path of a .yaml file"
        )
    return parse_scenario((_shipped / f"{source}.yaml").read_text(), f"scenario {source}")


def read_file(path: Path, what: str, bytes_max: int = 1 << 26) -> str:
    """Read a text; `what` is its content, in errors. Raises UsageError."""
    try:
        if (size := path.stat().st_size) > bytes_max:
            raise UsageError(f"{what} {path} has {size:,} bytes, above {bytes_max:,}: shorten it")
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or error
        near = suggest_path(str(path)) if isinstance(error, FileNotFoundError) else ""
        raise UsageError(f"cannot read {what} {path} ({reason}){near}: check the path") from None


def parse_scenario(text: str, where: str) -> Scenario:
    """Parse the scenario written in this YAML; `where` is its name in errors."""
    given = parse_mapping(text, where, "begin with name, data, training and system")
    system = given.get("system")
    if isinstance(system, str):
        known = sorted(path.name[: -len(".yaml")] for path in (_shipped / "systems").iterdir())
        if system not in known:
            raise UsageError(
                f"{where}: system is {system!r}: use one of {', '.join(known)}, or write it out"
            )
        text = (_shipped / "systems" / f"{system}.yaml").read_text()
        given["system"] = parse_mapping(text, system, "")
    return Scenario.of(given, where)


def parse_mapping(text: str, where: str, begin: str) -> dict[Any, Any]:
    """Parse the mapping written in this YAML; no key may be given twice. Raises UsageError.

    begin:  advice for a text that holds something else.
    """
    try:
        given = yaml.load(text, _UniqueKeysLoader)
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        at = getattr(error, "problem_mark", None)
        line = f", line {at.line + 1}" if at else ""
        reason = getattr(error, "problem", None) or error
        raise UsageError(f"{where} is not YAML ({reason}{line}): {begin}") from None
    if not isinstance(given, dict):
        raise UsageError(f"{where} holds {type(given).__name__}, not a mapping: {begin}")
    return given


class _UniqueKeysLoader(yaml.SafeLoader):  # type: ignore[misc]
    """A loader that refuses a key given twice, of which YAML would take the last."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        seen = set()
        for key, _ in node.value:
            if (name := (key.tag, str(key.value))) in seen:
                raise yaml.MarkedYAMLError(
                    problem=f"{key.value!r} is given twice: leave one", problem_mark=key.start_mark
                )
            seen.add(name)
        keys: dict[Any, Any] = super().construct_mapping(node, deep)
        return keys


def _explain_error(where: str, error: Any, what: str) -> str:
    """Explain one of pydantic's errors in plain words; `what` names the expected content."""
    # pydantic puts the kind behind a key whose value is one of several.
    loc = zip(("", *error["loc"]), error["loc"], strict=False)
    key = ".".join(
        str(name)
        for before, name in loc
        if name != "[key]" and before not in {"network", "sampling"}
    )
    value = error["input"]
    match error["type"]:
        case "extra_forbidden":
            return f"{where}: {key} is no key of {what}: leave it out, or mend its name"
        case "missing":
            return f"{where}: {key} is missing: give it"
        case "union_tag_not_found":
            return f"{where}: {key}.kind is missing: give it"
        case "union_tag_invalid":
            ctx = error["ctx"]
            return f"{where}: {key}.kind is {ctx['tag']!r}: use one of {ctx['expected_tags']}"
        case "value_error" if isinstance(value, dict | BaseModel):  # it names its keys
            return f"{where}: {error['ctx']['error']!s}"
        case "value_error":
            return f"{where}: {key} is {value!r}: {error['ctx']['error']!s}"
    rule = error["msg"].removeprefix("Input should be ").removeprefix("a ")
    return f"{where}: {key} is {value!r}: use {rule}"


SOURCES = ("storage", "peers", "local")
"""Sources of bytes: shared storage, the caches of other nodes, the node's own."""


@dataclass(frozen=True, slots=True)
class Result:
    """Result of one policy in one scenario.

    scenario, policy, model:  their names.
    total_s:   time of the run, including the setup.
    setup_s:   time before the first step, in which caches are filled.
    epochs_s:  float64 (epochs,), time of each epoch, without the setup.
    stall_s:   float64 (epochs,), the part of it spent waiting for data.
    moved_mb:  float64 (epochs, 3), MB read in each epoch, by `SOURCES`. Reading ahead counts where
               it is asked for (parity) or due (corrected); the setup's reading is in the first row.
    notes:     counters of one model only.

    Equal inputs give equal results, to the last bit, on every machine of one architecture.
    """

    scenario: str
    policy: str
    model: str
    total_s: float
    setup_s: float
    epochs_s: Floats
    stall_s: Floats
    moved_mb: Floats
    notes: dict[str, Any]
