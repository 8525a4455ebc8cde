"""Mixtures: `mix` makes one dataset of several, and draws from each by its weight."""

from __future__ import annotations

import bisect
import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, SupportsIndex

import numpy as np

from .. import limits
from ..arguments import check_whole
from ..errors import UsageError
from ..index import (
    SUMS_FIELD,
    Field,
    JointIndex,
    join_indexes,
    join_unlike_indexes,
    rename_fields,
)
from ..order import (
    Bitmap,
    JointBitmap,
    Mixture,
    MixtureRecipe,
    Ordering,
    Selection,
    Shuffle,
    Unit,
    Weights,
    divide_slots,
)
from .dataset import Dataset
from .decode import Decode, can_take_views
from .sample import LoadedSample
from .selecting import cut

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
) -> MixedDataset:
    """Mix datasets by weights into one that `Loader` and `penstock.torch.DataLoader` take.

    datasets:  pairs of a dataset, which may be a selection, and its weight, a number from 0 on.
               Weights are rounded to 1/4096 of their sum; each 4096 samples in a row, counted from
               where the weights began, hold exactly the rounded shares, in an order drawn from the
               seed.
    samples_per_epoch:  samples that an epoch draws; by default as many as all datasets have,
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

    Each dataset is passed through by itself: all its samples come once before one comes again, in
    an order of that pass. (`pad` repeats samples of an epoch's head.) A batch has "source", the
    dataset's number, and "pass", the pass of that dataset, both int64 (B,); so has a sample that
    `decode` gets, as ints. `Loader.count_draws()` gives the number of samples drawn from each.

    Labels are kept where all datasets have the same classes; else "label" is left out, and decode
    knows classes by "__key__" and "source".

    Raises UsageError if, without `decode`, datasets differ in their fields (name, dtype, shape), or
    only some have labels, if they lie in different stores, or if weights or schedule are invalid.
    """
    pairs = _check_pairs(datasets)
    parts = tuple(dataset for dataset, _ in pairs)
    if schedule is None:
        steps: list[tuple[int, Weights]] = [(0, [weight for _, weight in pairs])]
    else:
        steps = _check_schedule(schedule, len(parts))
    if schedule_unit not in ("steps", "samples"):
        raise UsageError(f"schedule_unit is {schedule_unit!r}: use 'steps' or 'samples'")
    counts = tuple(len(part) for part in parts)
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
    return MixedDataset(parts, recipe, names, decodes)


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
        if not isinstance(dataset, Dataset) or isinstance(dataset, MixedDataset):
            raise UsageError(
                f"dataset {number} is a {type(dataset).__name__}: give what penstock.open() returns"
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
                f"the schedule has {len(weights)} weights from {start} on, and there are {parts} "
                "datasets: give a weight for each"
            )
        steps.append((start, weights))
    starts = [start for start, _ in steps]
    if not starts or starts[0] != 0 or any(a >= b for a, b in itertools.pairwise(starts)):
        raise UsageError(f"the schedule's starts are {starts}: they must ascend from 0")
    return steps


def _choose_own(
    sample: LoadedSample, source: int, fields: Sequence[Field], has_label: bool, raw: Any = bytes
) -> LoadedSample:
    """Return the sample with the fields of its own dataset, named and shaped as there."""
    own = LoadedSample()
    own.stream = sample.stream
    for part in fields:
        value = sample[f"{source}/{part.name}"]
        if part.shape is None:
            own[part.name] = raw(value) if part.dtype == np.uint8 else value
        else:
            rows = bytearray(value) if isinstance(value, bytes) else value
            own[part.name] = np.asarray(rows).reshape(part.shape)
    for name, value in sample.items():
        if "/" not in name and (name != "label" or has_label):
            own[name] = value
    return own


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


class MixedDataset(Dataset):
    """Mixture of datasets, as `mix` returns it.

    Its samples, by number, are those of one dataset after the other. `order` decides how often and
    when each comes.
    """

    index: JointIndex

    def __init__(
        self,
        parts: tuple[Dataset, ...],
        recipe: MixtureRecipe,
        names: tuple[Mapping[str, str | None] | None, ...] | None = None,
        decodes: tuple[Decode | None, ...] | None = None,
    ) -> None:
        indexes = [part.index for part in parts]
        if names is not None:
            renaming = zip(indexes, names, strict=True)
            indexes = [rename_fields(index, own or {}) for index, own in renaming]
        for number, index in enumerate(indexes):
            taken = {made.name for part in index.fields for made in part.made} & set(_marks)
            if taken:
                raise UsageError(
                    f"dataset {number} has a field {taken.pop()!r}, the name of a column that a "
                    "mixture adds to say where a sample is from: rename the field"
                )
        joint = join_indexes(indexes) if decodes is None else join_unlike_indexes(indexes)
        subset = None
        if any(part.subset is not None for part in parts):
            counts = tuple(index.count for index in indexes)
            subset = JointBitmap(counts, tuple(part.subset for part in parts))
        super().__init__(" + ".join(part.path for part in parts), joint, subset=subset)
        self.parts = parts
        self.recipe = recipe
        self._names = names
        self._decodes = decodes
        self._part_fields = [
            [part for part in index.fields if part.name != SUMS_FIELD] for index in indexes
        ]

    def compose_decode(self, decode: Decode | None) -> Decode | None:
        """Return the function that calls the `decode` of a sample's dataset, then this one."""
        if self._decodes is None:
            return decode
        has_labels = [part.index.label_column is not None for part in self.parts]
        first: list[int] = self.index.first.tolist()
        return _SourceDecode(first, self._decodes, self._part_fields, has_labels, decode)

    def order(
        self, seed: int, *, shuffle: Shuffle = "exact", block: int = 256, group: int = 64
    ) -> Ordering:
        """Return the order of epoch 0, as loaders draw it."""
        order = Mixture(self.recipe, seed, shuffle=shuffle, block=block, group=group)
        return order if self.subset is None else Selection(order, self.subset)

    def _keep(self, chosen: Bitmap) -> MixedDataset:
        """Return the mixture of the chosen samples of each part, by the same weights.

        An epoch draws as many samples as there are, if it did so before; else as many as before.
        """
        parts, stop = [], 0
        for number, part in enumerate(self.parts):
            start, stop = stop, stop + len(part)
            own = cut(chosen, start, stop)
            if not len(own):
                raise UsageError(
                    f"none of the samples of dataset {number} ({part.path}) is selected: a mixture "
                    "draws from all of its datasets, so select from the others and mix these"
                )
            parts.append(part._keep(own))
        counts = tuple(len(part) for part in parts)
        drew_all = self.recipe.length == sum(self.recipe.counts)
        length = sum(counts) if drew_all else self.recipe.length
        recipe = replace(self.recipe, counts=counts, length=length)
        return MixedDataset(tuple(parts), recipe, self._names, self._decodes)

    def __getitem__(self, sample: SupportsIndex) -> LoadedSample:
        """Return one sample by its number, with "pass" 0, because no order is involved here."""
        fields = super().__getitem__(sample)
        number = fields.stream[2]
        source = int(np.searchsorted(self.index.first, number, side="right")) - 1
        if self._decodes is not None:
            has_label = self.parts[source].index.label_column is not None
            fields = _choose_own(fields, source, self._part_fields[source], has_label)
        fields.update({"source": source, "pass": 0})
        return fields

    def __reduce__(self) -> tuple[Any, ...]:
        return MixedDataset, (self.parts, self.recipe, self._names, self._decodes)

    def __repr__(self) -> str:
        return (
            f"<penstock.MixedDataset of {len(self.parts)}: {len(self):,} samples, "
            f"{self.recipe.length:,} an epoch>"
        )
