"""Mixtures: `mix` makes one dataset of several, and draws from each by its weight."""

from __future__ import annotations

import bisect
import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType
from typing import Any, Literal

import numpy as np

from .. import limits
from ..arguments import check_whole
from ..errors import FormatError, UsageError
from ..index.concat import JointIndex, join_indexes, join_unlike_indexes, rename_fields
from ..index.fields import SUMS_FIELD, Field
from ..index.json_fields import JsonFields, LineError
from ..index.table import Index
from ..order.mixture import Mixture, MixtureRecipe, Unit, Weights, divide_slots
from ..order.order import Ordering
from ..order.selection import Bitmap, JointBitmap, Selection
from ..order.weighted import WeightTable
from .columns import Slice
from .dataset import Dataset, Kind
from .lengths import build_unmeasured_error
from .sample import Decode, LoadedSample, can_take_views
from .selecting import cut
from .weighing import cut_slice

Names = tuple[Mapping[str, str | None] | None, ...]
_marks = ("source", "pass")
Schedule = Sequence[tuple[int, Weights]]


def mix(
    datasets: Sequence[tuple[Dataset, float]],
    *,
    samples_per_epoch: int | None = None,
    schedule: Schedule | None = None,
    schedule_unit: Unit = "steps",
    rename: Sequence[Mapping[str, str | None] | None] | None = None,
    decode: Sequence[Decode | None] | None = None,
    by: Literal["samples", "tokens"] = "samples",
) -> Dataset:
    """Mix datasets by weights into one that `Loader` and `penstock.torch.DataLoader` take.

    datasets:  pairs of a dataset, or a selection, and its weight, a number from 0 on.
               Weights are rounded to 1/4096 of their sum; each 4096 samples in a row, counted from
               where the weights began, hold exactly the rounded shares, in an order drawn from the
               seed.
    samples_per_epoch:  samples that an epoch draws; by default as many as all datasets have (or
               draw in an epoch of theirs, if they have weights),
               with `drop_last` rounded down to whole global batches. The next epoch goes on where
               it ended.
    schedule:  [(0, weights), (start, weights), ...]: weights that change, in place of those in
               `datasets` (which then do not matter). Starts ascend from 0 and count, over all
               epochs, steps of the global batch, or samples with schedule_unit="samples".
    rename:    for each dataset {its field: the common name}, or None; a field of name None is left
               out: rename=[{"jpg": "image", "txt": None}, {"data": "image"}].
    decode:    for each dataset a function of its samples, or None, in place of one for all: their
               fields may then differ, and the results are mixed. They must have one structure. A
               `decode` of the loader gets these results.

    by:        "tokens" takes the weights as shares of all tokens (of lengths, see
               `Dataset.lengths`), and not of samples: each is divided by the mean length of its
               dataset's samples.

    Each dataset is passed through alone: all its samples come once before one comes again, in
    an order of that pass. (`pad` repeats samples of an epoch's head.) A batch has "source", the
    dataset's number, and "pass", the pass of that dataset, both int64 (B,); so has a sample that
    `decode` gets, as ints. `Loader.count_draws()` gives the number of samples drawn from each.

    Labels are kept where all datasets have the same classes; else "label" is left out, and decode
    knows classes by "__key__" and "source".

    Raises UsageError if, without `decode`, datasets differ in their fields (name, dtype, shape), or
    only some have labels, if they are in different stores, or if weights or schedule are invalid.
    """
    pairs = _check_pairs(datasets)
    parts = tuple(dataset for dataset, _ in pairs)
    if schedule is None:
        steps: list[tuple[int, Weights]] = [(0, [weight for _, weight in pairs])]
    else:
        steps = _check_schedule(schedule, len(parts))
    if schedule_unit not in ("steps", "samples"):
        raise UsageError(f"schedule_unit is {schedule_unit!r}: use 'steps' or 'samples'")
    if by not in ("samples", "tokens"):
        raise UsageError(f"by is {by!r}: use 'samples' or 'tokens'")
    if by == "tokens":
        means = [_measure_mean(part, number) for number, part in enumerate(parts)]
        steps = [
            (start, [_divide(weight, mean) for weight, mean in zip(weights, means, strict=True)])
            for start, weights in steps
        ]
    counts = tuple(part.samples_per_epoch for part in parts)
    length = (
        sum(counts)
        if samples_per_epoch is None
        else check_whole("samples_per_epoch", samples_per_epoch)
    )
    starts = tuple(start for start, _ in steps)
    slots = tuple(divide_slots(weights) for _, weights in steps)
    recipe = MixtureRecipe(counts, starts, slots, length, schedule_unit)
    names = _check_per_dataset("rename", rename, len(parts), Mapping, "a dict of names")
    decodes = _check_per_dataset("decode", decode, len(parts), Callable, "a function")
    return make_mixture(parts, recipe, names, decodes)


def _divide(weight: Any, mean: float) -> Any:
    is_number = isinstance(weight, int | float | np.number) and not isinstance(weight, bool)
    return weight / mean if is_number else weight  # `divide_slots` refuses what is none


def _measure_mean(part: Dataset, number: int) -> float:
    """Return the mean length of the samples that a pass of a dataset draws."""
    read = part.find_lengths()
    if read is None:
        raise build_unmeasured_error(part.path)
    weights = None if part.weighting is None else part.weighting.table.weights
    total, drawn = 0, 0
    for start in range(0, len(part), limits.selection_chunk_samples):
        stop = min(start + limits.selection_chunk_samples, len(part))
        lengths = read(start, stop)
        share = np.ones(len(lengths), np.int64) if weights is None else weights[start:stop]
        total += int(np.dot(lengths.astype(object) if weights is not None else lengths, share))
        drawn += int(share.sum(dtype=np.int64))
    if not total:
        raise UsageError(f"by='tokens': dataset {number}, {part.path}, has no tokens: leave it out")
    return total / drawn


def _list_tables(parts: Sequence[Dataset]) -> tuple[WeightTable | None, ...]:
    """Return the weights of each dataset's samples; () if none has any."""
    weightings = [part.weighting for part in parts]
    tables = tuple(None if weighting is None else weighting.table for weighting in weightings)
    return tables if any(table is not None for table in tables) else ()


def _check_per_dataset(
    name: str, values: Any, count: int, kind: Any, description: str
) -> tuple[Any, ...] | None:
    """Return one value, or None, for each dataset."""
    if values is None:
        return None
    if not isinstance(values, list | tuple) or len(values) != count:
        raise UsageError(f"{name} is {values!r}: give a list of {description} for each dataset")
    for number, value in enumerate(values):
        if value is not None and not isinstance(value, kind):
            raise UsageError(f"{name}[{number}] is {value!r}: give {description}, or None")
    return tuple(values)


def _check_pairs(datasets: Sequence[tuple[Dataset, float]]) -> list[tuple[Dataset, float]]:
    pairs = []
    if not isinstance(datasets, Sequence):
        raise UsageError(f"datasets is {datasets!r}: give a list of (dataset, weight)")
    for number, pair in enumerate(datasets):
        if not isinstance(pair, (tuple, list)) or len(pair) != 2:
            raise UsageError(f"datasets[{number}] is {pair!r}: give (dataset, weight)")
        dataset, weight = pair
        if not isinstance(dataset, Dataset):
            raise UsageError(f"dataset {number} is a {type(dataset).__name__}: give an opened one")
        if dataset.kind is not None:
            raise UsageError(
                f"dataset {number} is {dataset.kind.noun}: mix opened data, and make a curriculum "
                "of mixtures"
            )
        if not len(dataset):
            raise UsageError(f"dataset {number} ({dataset.path}) has no samples")
        pairs.append((dataset, weight))
    if not pairs:
        raise UsageError("there is nothing to mix: give at least one (dataset, weight)")
    if len(pairs) > limits.mixture_slots:
        raise UsageError(f"{len(pairs)} datasets: at most {limits.mixture_slots} can be mixed")
    return pairs


def _check_schedule(schedule: Schedule, parts: int) -> list[tuple[int, Weights]]:
    steps: list[tuple[int, Weights]] = []
    if not isinstance(schedule, Sequence):
        raise UsageError(f"schedule is {schedule!r}: give a list of (start, weights)")
    for entry in schedule:
        if not isinstance(entry, (tuple, list)) or len(entry) != 2:
            raise UsageError(f"the schedule has {entry!r}: give (start, weights)")
        start = check_whole("a start of the schedule", entry[0], 0)
        weights = list(entry[1])
        if len(weights) != parts:
            raise UsageError(
                f"the schedule has {len(weights)} weights from {start} on: give {parts}"
            )
        steps.append((start, weights))
    starts = [start for start, _ in steps]
    if not starts or starts[0] != 0 or any(a >= b for a, b in itertools.pairwise(starts)):
        raise UsageError(f"the schedule's starts are {starts}: they must ascend from 0")
    return steps


def _choose_own(
    sample: LoadedSample, source: int, fields: Sequence[Field], has_label: bool, raw: Any = bytes
) -> LoadedSample:
    """Return the sample with the fields of its dataset, named and shaped as there."""
    chosen = LoadedSample()
    chosen.stream = sample.stream
    for part in fields:
        value = sample[f"{source}/{part.name}"]
        if part.parser is not None:
            chosen |= _parse_line(part.parser, value, sample)
        elif part.shape is None:
            is_raw = part.dtype == np.uint8 and not part.nesting
            chosen[part.name] = raw(value) if is_raw else value
        else:
            rows = bytearray(value) if isinstance(value, bytes) else value
            chosen[part.name] = np.asarray(rows).reshape(part.shape)
    for name, value in sample.items():
        if "/" not in name and (name != "label" or has_label):
            chosen[name] = value
    return chosen


def _parse_line(parser: JsonFields, line: Any, sample: LoadedSample) -> dict[str, Any]:
    """Parse the fields of a sample that is a line of JSON; FormatError if it is broken."""
    try:
        return parser.parse_line(line)
    except LineError as error:
        raise FormatError(
            f"sample {sample['__id__']:,} of the mixture, {sample['__key__']}: {error}"
        ) from None


class _SourceDecode:
    """Function that calls the decode function of a sample's dataset, and another one after it."""

    takes_views = True  # it copies what a function without that mark gets

    def __init__(
        self,
        first: Sequence[int],
        decodes: Sequence[Decode | None],
        fields: Sequence[Sequence[Field]],
        has_labels: Sequence[bool],
        then: Decode | None,
    ) -> None:
        self._first = first
        self._decodes, self._fields, self._has_labels = decodes, fields, has_labels
        self._then = then

    def __call__(self, sample: dict[str, Any]) -> Any:
        assert isinstance(sample, LoadedSample)
        # A sampler of the user does not say the source.
        source = bisect.bisect_right(self._first, sample["__id__"]) - 1
        decode = self._decodes[source]
        fields = self._fields[source]
        if fields and f"{source}/{fields[0].name}" in sample:  # else it was chosen by number
            raw = memoryview if decode is not None and can_take_views(decode) else bytes
            sample = _choose_own(sample, source, fields, self._has_labels[source], raw)
        value: Any = sample if decode is None else decode(sample)
        return value if self._then is None else self._then(value)


class MixtureKind(Kind):
    """Mixture of datasets: an order draws from each by its weight.

    recipe:   the weights, and the samples of each dataset.
    names:    common names of fields, for each dataset.
    decodes:  function of each dataset's samples.
    fields:   of each dataset, as its function gets them.
    """

    noun = "a mixture"
    refusals = MappingProxyType(
        {"samples_per_epoch": "give it to mix(), or weigh the datasets before they are mixed"}
    )

    def __init__(
        self,
        parts: tuple[Dataset, ...],
        recipe: MixtureRecipe,
        names: Names | None,
        decodes: tuple[Decode | None, ...] | None,
        indexes: Sequence[Index],
        joint: JointIndex,
        subset: JointBitmap | None,
    ) -> None:
        self.parts, self.recipe = parts, recipe
        self._names, self._decodes = names, decodes
        self.samples_per_epoch = recipe.length
        self._fields = [
            [part for part in index.fields if part.name != SUMS_FIELD] for index in indexes
        ]
        self._first: list[int] = joint.first.tolist()
        self._samples, self._subset = len(joint if subset is None else subset), subset
        if recipe.unit == "steps" and len(recipe.starts) > 1:
            self.steps = "mixture's schedule is", 'schedule_unit="samples"'

    def keep_field(self, name: str) -> Dataset:
        """Return the mixture of the same samples with one field, by its common name."""
        names: list[Mapping[str, str | None]] = []
        for number, part in enumerate(self.parts):
            common = dict((self._names and self._names[number]) or {})
            for made in part.index.made:
                if made.name != SUMS_FIELD and common.get(made.name, made.name) != name:
                    common[made.name] = None
            names.append(common)
        return make_mixture(self.parts, self.recipe, tuple(names))

    def compose_decode(self, decode: Decode | None) -> Decode | None:
        """Return the function that calls the `decode` of a sample's dataset, then this one."""
        if self._decodes is None:
            return decode
        has_labels = [part.index.label_column is not None for part in self.parts]
        return _SourceDecode(self._first, self._decodes, self._fields, has_labels, decode)

    def make_order(self, seed: int, **options: Any) -> Ordering:
        order = Mixture(self.recipe, seed, **options)
        return order if self._subset is None else Selection(order, self._subset)

    def weigh(self, values: Slice) -> Dataset:
        """Return the mixture of the parts, each weighed by the weights of its samples.

        How much comes from each part does not change: that is for the mixture's own weights.
        """
        parts, stop = [], 0
        for number, part in enumerate(self.parts):
            start, stop = stop, stop + len(part)
            try:
                parts.append(part._weigh(cut_slice(values, start), part.samples_per_epoch))
            except UsageError as error:
                raise UsageError(f"dataset {number} ({part.path}): {error}") from None
        return self._remake(parts)

    def keep(self, chosen: Bitmap) -> Dataset:
        """Return the mixture of the chosen samples of each part, by the same weights."""
        parts, stop = [], 0
        for number, part in enumerate(self.parts):
            start, stop = stop, stop + len(part)
            chosen_of_part = cut(chosen, start, stop)
            if not len(chosen_of_part):
                raise UsageError(
                    f"no sample of dataset {number} ({part.path}) is selected: select from the "
                    "other datasets, and mix these"
                )
            parts.append(part._keep(chosen_of_part))
        return self._remake(parts)

    def open_whole(self) -> Dataset:
        return self._remake([part.open_whole() for part in self.parts])

    def _remake(self, parts: Sequence[Dataset]) -> Dataset:
        """Return the mixture of other parts.

        An epoch draws as many samples as there are, if it did so before; else as many as before.
        """
        counts = tuple(part.samples_per_epoch for part in parts)
        drew_all = self.recipe.length == sum(self.recipe.counts)
        length = sum(counts) if drew_all else self.recipe.length
        recipe = replace(self.recipe, counts=counts, length=length)
        return make_mixture(tuple(parts), recipe, self._names, self._decodes)

    def finish_sample(self, sample: LoadedSample) -> LoadedSample:
        """Return the sample with its source, and pass 0, because no order is involved here."""
        source = bisect.bisect_right(self._first, sample.stream[2]) - 1
        if self._decodes is not None:
            has_label = self.parts[source].index.label_column is not None
            sample = _choose_own(sample, source, self._fields[source], has_label)
        sample.update({"source": source, "pass": 0})
        return sample

    def rebuild(self) -> tuple[Callable[..., Dataset], tuple[Any, ...]]:
        recipe = replace(self.recipe, tables=())  # the parts have them
        return make_mixture, (self.parts, recipe, self._names, self._decodes)

    def describe(self) -> str:
        return (
            f"<penstock.Dataset, a mixture of {len(self.parts)}: {self._samples:,} samples, "
            f"{self.recipe.length:,} an epoch>"
        )


def make_mixture(
    parts: tuple[Dataset, ...],
    recipe: MixtureRecipe,
    names: Names | None = None,
    decodes: tuple[Decode | None, ...] | None = None,
) -> Dataset:
    """Make the dataset of a mixture, whose samples are the parts' one after the other."""
    indexes = [part.index for part in parts]
    if names is not None:
        renaming = zip(indexes, names, strict=True)
        indexes = [rename_fields(index, common or {}) for index, common in renaming]
    for number, index in enumerate(indexes):
        taken = {made.name for made in index.made} & set(_marks)
        if taken:
            raise UsageError(
                f"dataset {number} has a field {taken.pop()!r}, as a mixture: rename the field"
            )
    joint = join_indexes(indexes) if decodes is None else join_unlike_indexes(indexes)
    subset = None
    if any(part.subset is not None for part in parts):
        counts = tuple(index.count for index in indexes)
        subset = JointBitmap(counts, tuple(part.subset for part in parts))
    recipe = replace(recipe, tables=_list_tables(parts))
    kind = MixtureKind(parts, recipe, names, decodes, indexes, joint, subset)
    return Dataset(" + ".join(part.path for part in parts), joint, subset=subset, kind=kind)
