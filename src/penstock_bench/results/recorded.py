"""Results as values: records of this benchmark, as `record.json` has them.

A value that a record does not have is None or NaN here, never a guess: readers leave it out.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from penstock.arguments import suggest_path
from penstock.errors import FormatError, MissingError

VERSION = 1
"""Version of the records that are understood."""

Floats = npt.NDArray[np.float64]
Values = Mapping[str, Any]


class RecordedSave(NamedTuple):
    """A saved checkpoint: the step before it, its seconds, and the bytes of all ranks."""

    epoch: int
    step: float | None
    seconds: float | None
    bytes: float | None


class Limit(NamedTuple):
    """Most that a resource allows, and how that was measured."""

    resource: str
    samples_per_s: float
    how: str


@dataclass(frozen=True)
class RecordedEpoch:
    """An epoch, of "train" or "eval". Times by step are ranks x steps, NaN where there is none.

    wait_s:     until the batch was there.
    compute_s:  what the workload asks for; computed_s: what it took.
    barrier_s:  until all ranks had computed.
    cached_*:   the share of the data in the page cache.
    ranks:      figures of each, as recorded.
    """

    number: int
    kind: str
    seconds: float | None
    samples: float | None
    bytes: float | None
    wait_s: Floats
    compute_s: Floats
    computed_s: Floats
    barrier_s: Floats
    ranks: tuple[Values, ...]
    checkpoints: tuple[RecordedSave, ...]
    cached_before: float | None
    cached_after: float | None

    @property
    def steps(self) -> int:
        return int(self.wait_s.shape[1])

    @cached_property
    def by_rank_s(self) -> Floats:
        """Ranks x steps x 4: computing, waiting, at the barrier, other; 0 is what is not known."""
        nominal = np.where(np.isnan(self.compute_s), self.computed_s, self.compute_s)
        took = np.where(np.isnan(self.computed_s), nominal, self.computed_s)
        computing = np.minimum(nominal, took)
        columns = [computing, self.wait_s, self.barrier_s, took - computing]
        return np.asarray(np.nan_to_num(np.stack(columns, axis=-1)))

    @cached_property
    def parts_s(self) -> Floats:
        """Steps x 4: the same, means of the ranks that took the step."""
        took = np.maximum(self.by_rank_s.any(axis=-1).sum(axis=0), 1)
        return np.asarray(self.by_rank_s.sum(axis=0) / took[:, None])

    def total(self, name: str) -> float | None:
        """The sum of the ranks' figures of this name."""
        return _sum(figure(rank, name) for rank in self.ranks)


@dataclass(frozen=True)
class RecordedRun:
    """One loader under one workload. values: all of it, as recorded. skipped: steps at the start
    and at the end of each epoch that are not measured."""

    label: str
    values: Values
    epochs: tuple[RecordedEpoch, ...]
    skipped: tuple[int, int]

    @property
    def loader(self) -> str:
        return str(self.values.get("loader", "?"))

    @cached_property
    def trained(self) -> tuple[RecordedEpoch, ...]:
        """The measured epochs: of training, or of evaluation if nothing is trained."""
        trained = tuple(epoch for epoch in self.epochs if epoch.kind == "train" and epoch.steps)
        return trained or tuple(epoch for epoch in self.epochs if epoch.steps)

    def measured(self, epoch: RecordedEpoch) -> slice:
        """The steps of an epoch without the skipped ones; all of them if that would leave none."""
        start, end = self.skipped
        return slice(start, epoch.steps - end) if start + end < epoch.steps else slice(None)

    def get(self, *path: str) -> float | None:
        """A figure of the run, such as get("au", "raw")."""
        return figure(self.values, *path)

    @cached_property
    def stalls_s(self) -> Floats:
        """Waits of ranks for batches, in measured steps."""
        waits = [epoch.wait_s[:, self.measured(epoch)].ravel() for epoch in self.trained]
        joined = np.concatenate([*waits, np.zeros(0)])
        return np.asarray(joined[~np.isnan(joined)])

    def total(self, name: str) -> float | None:
        """The sum of all epochs' and ranks' figures of this name."""
        return _sum(epoch.total(name) for epoch in self.epochs)

    @property
    def delivered_bytes(self) -> float | None:
        return _sum(epoch.bytes for epoch in self.epochs)

    @property
    def checkpoints(self) -> tuple[RecordedSave, ...]:
        return tuple(saved for epoch in self.epochs for saved in epoch.checkpoints)

    @property
    def mean_saving_s(self) -> float | None:
        """Mean seconds of the checkpoints that are known."""
        known = [save.seconds for save in self.checkpoints if save.seconds is not None]
        return sum(known) / len(known) if known else None

    @property
    def advice(self) -> tuple[str, ...]:
        """Advice of the run's roofline."""
        lines = list_at(mapping_at(self.values, "roofline"), "advice")
        return tuple(line for line in lines if isinstance(line, str))

    @property
    def limits(self) -> list[Limit]:
        """Ceilings of the run's roofline: the one that binds, then the others from the lowest."""
        roofline = mapping_at(self.values, "roofline")
        limits = [
            Limit(str(ceiling.get("resource")), rate, str(ceiling.get("how") or ""))
            for ceiling in _mappings(roofline, "ceilings")
            if (rate := figure(ceiling, "samples_per_s")) is not None and rate > 0
        ]
        bound = roofline.get("bound")
        return sorted(limits, key=lambda limit: (limit.resource != bound, limit.samples_per_s))


@dataclass(frozen=True)
class Record:
    """The record of one command. values: all of it, as recorded."""

    name: str
    values: Values
    runs: tuple[RecordedRun, ...]

    @property
    def workload(self) -> Values:
        return mapping_at(self.values, "workload")

    @property
    def title(self) -> str:
        """The name of the workload."""
        return str(mapping_at(self.workload, "model").get("name") or "workload")

    @property
    def asked(self) -> float | None:
        """The utilisation that the workload asks for, a fraction."""
        return figure(self.workload, "metric", "au")

    @property
    def ranks(self) -> int | None:
        count = figure(self.values, "ranks")
        return None if count is None else int(count)


def read_json(path: Path) -> Any:
    """The values of a file of JSON, NaN and Infinity accepted."""
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise MissingError(
            f"{path} does not exist{suggest_path(str(path))}: name a record.json"
        ) from None
    except OSError as error:
        raise MissingError(f"cannot read {path}: {error.strerror}") from None
    except ValueError as error:
        raise FormatError(f"{path} is no JSON ({error}): name a record.json") from None


def check_record(values: Any, where: str) -> Values:
    """Return the values; FormatError unless they are of a record that is understood."""
    if not isinstance(values, Mapping) or "penstock_bench" not in values:
        raise FormatError(
            f"{where} is no record of penstock bench: it has no 'penstock_bench'; name the "
            "record.json of a run"
        )
    if (version := values["penstock_bench"]) != VERSION:
        raise FormatError(f"{where} is a record of version {version!r}, and {VERSION} is read here")
    runs = values.get("runs")
    if not isinstance(runs, list) or not all(isinstance(run, Mapping) for run in runs):
        raise FormatError(f"{where}: 'runs' is no list of runs: the record is damaged")
    return values


def records(values: Sequence[Values], names: Sequence[str] = ()) -> tuple[Record, ...]:
    """Make records of values, and give their runs labels that tell them apart.

    names: of the records, for labels if a loader is in several of them.
    """
    names = [*names, *(str(1 + number) for number in range(len(names), len(values)))]
    loaders = []
    for record, name in zip(values, names, strict=False):
        runs_of = check_record(record, name)["runs"]
        loaders += [str(run.get("loader", "?")) for run in runs_of]
    made = []
    taken: set[str] = set()
    for record, name in zip(values, names, strict=False):
        ends = ("exclude_start_steps", "exclude_end_steps")
        given = [figure(record, "workload", "output", "metric", end) for end in ends]
        start, end = (int(steps) if steps is not None and steps >= 0 else None for steps in given)
        skipped = 1 if start is None else start, end or 0
        runs = []
        for run in record["runs"]:
            loader = str(run.get("loader", "?"))
            plain = loader if len(values) == 1 else f"{loader} ({name})"
            label, count = plain if loaders.count(loader) > 1 and len(values) > 1 else loader, 1
            while label in taken:
                count += 1
                label = f"{plain}, run {count}"
            taken.add(label)
            epochs = enumerate(_mappings(run, "epochs"), start=1)
            recorded = tuple(_make_epoch(epoch, number) for number, epoch in epochs)
            runs.append(RecordedRun(label, run, recorded, skipped))
        made.append(Record(name, record, tuple(runs)))
    return tuple(made)


def figure(values: Any, *path: str) -> float | None:
    """The number at a path of keys; None if there is none, or it is not finite."""
    for key in path:
        values = values.get(key) if isinstance(values, Mapping) else None
    known = isinstance(values, int | float) and not isinstance(values, bool)
    return float(values) if known and math.isfinite(values) else None


# -- from JSON -------------------------------------------------------------------------------------


def _make_epoch(values: Values, number: int) -> RecordedEpoch:
    ranks = list(_mappings(values, "ranks"))
    number = int(figure(values, "epoch") or number)
    names = ("wait_s", "compute_s", "computed_s", "barrier_s")
    steps = max((len(list_at(rank, name)) for rank in ranks for name in names), default=0)
    times = {name: _pad([list_at(rank, name) for rank in ranks], steps) for name in names}
    saved = _mappings(values, "checkpoints")
    return RecordedEpoch(
        number=number,
        kind=str(values.get("kind", "train")),
        seconds=figure(values, "seconds"),
        samples=figure(values, "samples"),
        bytes=figure(values, "bytes"),
        **times,
        ranks=tuple(ranks),
        checkpoints=tuple(
            RecordedSave(number, *(figure(save, name) for name in ("step", "seconds", "bytes")))
            for save in saved
        ),
        cached_before=_cached_share(mapping_at(values, "cached_before")),
        cached_after=_cached_share(mapping_at(values, "cached_after")),
    )


def _pad(rows: Sequence[Sequence[Any]], steps: int) -> Floats:
    """Make one array of rows; None, infinity, and missing ends are NaN."""
    padded = np.full((len(rows), steps), np.nan)
    for row, values in zip(padded, rows, strict=True):
        try:
            row[: len(values)] = values
        except (TypeError, ValueError) as error:
            raise FormatError(
                f"times of steps are no numbers ({error}): the record is damaged"
            ) from None
    padded[np.isinf(padded)] = np.nan
    return padded


def _cached_share(cached: Values) -> float | None:
    size, total = figure(cached, "cached_bytes"), figure(cached, "total_bytes")
    return min(1.0, max(0.0, size / total)) if size is not None and total else None


def mapping_at(values: Any, key: str) -> Values:
    """The mapping at a key; an empty one if there is none."""
    inner = values.get(key) if isinstance(values, Mapping) else None
    return inner if isinstance(inner, Mapping) else {}


def list_at(values: Values, key: str) -> list[Any]:
    """The list at a key; an empty one if there is none."""
    inner = values.get(key)
    return inner if isinstance(inner, list) else []


def _mappings(values: Values, key: str) -> Iterator[Values]:
    return (item for item in list_at(values, key) if isinstance(item, Mapping))


def _sum(values: Iterator[float | None] | Any) -> float | None:
    known = [value for value in values if value is not None]
    return float(sum(known)) if known else None
