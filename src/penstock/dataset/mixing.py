"""Mixtures and curricula: datasets of several datasets.

`mix` draws from each by its weight; `curriculum` takes views of the same data one after the other.
"""

from __future__ import annotations

import bisect
import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType
from typing import Any, Literal, get_args

import numpy as np

from .. import limits
from ..arguments import check_choice, check_whole
from ..errors import FormatError, UsageError
from ..index.concat import JointIndex, join_indexes, join_unlike_indexes, rename_fields
from ..index.fields import SUMS_FIELD, Field
from ..index.json_fields import LineError
from ..index.table import Index
from ..order.curriculum import Curriculum, StageUnit
from ..order.mixture import Mixture, MixtureRecipe, Unit, Weights, divide_slots
from ..order.order import Ordering
from ..order.selection import Bitmap, JointBitmap, Selection
from .columns import Slice
from .dataset import Dataset, Kind
from .lengths import build_unmeasured_error
from .sample import Decode, LoadedSample, can_take_views
from .selecting import cut
from .weighing import cut_slice

Names = tuple[Mapping[str, str | None] | None, ...]
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
    pairs = _check_pairs("datasets", datasets, "(dataset, weight)")
    if len(pairs) > limits.mixture_slots:
        raise UsageError(f"{len(pairs)} datasets: mix at most {limits.mixture_slots}")
    for number, (dataset, _) in enumerate(pairs):
        check_part(f"dataset {number}", dataset, Kind, "opened data, weighed or selected")
    members = tuple(dataset for dataset, _ in pairs)
    steps: list[tuple[int, Weights]] = [(0, [weight for _, weight in pairs])]
    if schedule is not None:
        steps = _check_pairs("schedule", schedule, "(start, weights)")
    for start, weights in steps:
        if len(weights) != len(members):
            raise UsageError(f"the schedule has {len(weights)} weights from {start}: give one each")
    starts = _check_starts("the schedule", [start for start, _ in steps])
    check_choice("schedule_unit", schedule_unit, get_args(Unit))
    if check_choice("by", by, ("samples", "tokens")) == "tokens":
        means = [_measure_mean(member, number) for number, member in enumerate(members)]
        steps = [(start, _divide(weights, means)) for start, weights in steps]
    slots = tuple(divide_slots(weights) for _, weights in steps)
    counts = tuple(member.samples_per_epoch for member in members)
    number = sum(counts) if samples_per_epoch is None else samples_per_epoch
    length = check_whole("samples_per_epoch", number)
    recipe = MixtureRecipe(counts, starts, slots, length, schedule_unit)
    names = _check_per_dataset("rename", rename, len(members), Mapping, "a dict of names")
    decodes = _check_per_dataset("decode", decode, len(members), Callable, "a function")
    return make_mixture(members, recipe, names, decodes)


def _divide(weights: Weights, means: Sequence[float]) -> list[Any]:
    """Divide weights by mean lengths; `divide_slots` refuses values that are no numbers."""
    return [
        weight / mean
        if isinstance(weight, int | float | np.number) and not isinstance(weight, bool)
        else weight
        for weight, mean in zip(weights, means, strict=True)
    ]


def _measure_mean(data: Dataset, number: int) -> float:
    """Return the mean length of the samples that a pass of a dataset draws."""
    read = data.find_lengths()
    if read is None:
        raise build_unmeasured_error(data.path)
    table = None if data.weighting is None else data.weighting.table
    weights = None if table is None else table.weights
    total, drawn = 0, 0
    for start in range(0, len(data), limits.selection_chunk_samples):
        stop = min(start + limits.selection_chunk_samples, len(data))
        lengths = read(start, stop)
        share = np.ones(len(lengths), np.int64) if weights is None else weights[start:stop]
        total += int(np.dot(lengths.astype(object) if weights is not None else lengths, share))
        drawn += int(share.sum(dtype=np.int64))
    if not total:
        raise UsageError(f"by='tokens': dataset {number}, {data.path}, has no tokens: leave it out")
    return total / drawn


def _check_per_dataset(
    name: str, values: Any, count: int, kind: Any, description: str
) -> tuple[Any, ...] | None:
    """Return one value, or None, for each dataset."""
    if values is None:
        return None
    is_list = isinstance(values, list | tuple) and len(values) == count
    if not is_list or not all(value is None or isinstance(value, kind) for value in values):
        given = f"{name} is {values!r:.100}"
        raise UsageError(f"{given}: give {description}, or None, for each dataset")
    return tuple(values)


def _check_pairs(name: str, pairs: Any, form: str) -> list[tuple[Any, Any]]:
    """Return the pairs of a list; `form` is of one, for messages."""
    if not isinstance(pairs, Sequence) or not pairs:
        raise UsageError(f"{name} is {pairs!r:.100}: give a list of {form}")
    for pair in pairs:
        if not isinstance(pair, tuple | list) or len(pair) != 2:
            raise UsageError(f"{name} has {pair!r}: give {form}")
    return [(first, second) for first, second in pairs]


def check_part(name: str, dataset: Any, refused: Any, remedy: str) -> None:
    """Check a dataset that is to be part of another, and is of no kind that is refused."""
    if not isinstance(dataset, Dataset) or isinstance(dataset.kind, refused):
        is_ours = isinstance(dataset, Dataset) and dataset.kind is not None
        noun = dataset.kind.noun if is_ours else f"a {type(dataset).__name__}"
        raise UsageError(f"{name} is {noun}: give {remedy}")
    if not len(dataset):
        raise UsageError(f"{name} ({dataset.path}) has no samples: leave it out")


def _check_starts(name: str, given: Sequence[Any]) -> tuple[int, ...]:
    starts = tuple(check_whole(f"a start of {name}", start, 0) for start in given)
    if starts[0] != 0 or any(a >= b for a, b in itertools.pairwise(starts)):
        raise UsageError(f"{name} starts at {list(starts)}: starts must ascend from 0")
    return starts


def _refuse_marks(name: str, index: Index, marks: set[str]) -> None:
    """Refuse data with fields that have the names of columns that the order gives."""
    if taken := {made.name for made in index.made} & marks:
        raise UsageError(f"{name} has a field {taken.pop()!r}, as batches: use mix(rename=)")


def _choose_fields(
    sample: LoadedSample, source: int, fields: Sequence[Field], has_label: bool, raw: Any = bytes
) -> LoadedSample:
    """Return the sample with the fields of its dataset, named and shaped as there."""
    chosen = LoadedSample()
    chosen.stream = sample.stream
    for field in fields:
        value = sample[f"{source}/{field.name}"]
        if field.parser is not None:
            try:
                chosen |= field.parser.parse_line(value)
            except LineError as error:
                at = f"sample {sample['__id__']:,} of the mixture, {sample['__key__']}"
                raise FormatError(f"{at}: {error}") from None
        elif field.shape is None:
            is_raw = field.dtype == np.uint8 and not field.nesting
            chosen[field.name] = raw(value) if is_raw else value
        else:
            rows = bytearray(value) if isinstance(value, bytes) else value
            chosen[field.name] = np.asarray(rows).reshape(field.shape)
    for name, value in sample.items():
        if "/" not in name and (name != "label" or has_label):
            chosen[name] = value
    return chosen


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
            sample = _choose_fields(sample, source, fields, self._has_labels[source], raw)
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
        datasets: tuple[Dataset, ...],
        recipe: MixtureRecipe,
        names: Names | None,
        decodes: tuple[Decode | None, ...] | None,
        indexes: Sequence[Index],
        joint: JointIndex,
        subset: JointBitmap | None,
    ) -> None:
        self.parts, self.recipe = datasets, recipe
        self._names, self._decodes = names, decodes
        self.samples_per_epoch = recipe.length
        self._fields = [
            [field for field in index.fields if field.name != SUMS_FIELD] for index in indexes
        ]
        self._first: list[int] = joint.first.tolist()
        self._samples, self._subset = len(joint if subset is None else subset), subset
        if recipe.unit == "steps" and len(recipe.starts) > 1:
            self.steps = "mixture's schedule is", 'schedule_unit="samples"'

    def keep_field(self, name: str) -> Dataset:
        """Return the mixture of the same samples with one field, by its common name."""
        names: list[Mapping[str, str | None]] = []
        for number, dataset in enumerate(self.parts):
            common = dict((self._names and self._names[number]) or {})
            for made in dataset.index.made:
                if made.name != SUMS_FIELD and common.get(made.name, made.name) != name:
                    common[made.name] = None
            names.append(common)
        return make_mixture(self.parts, self.recipe, tuple(names))

    def compose_decode(self, decode: Decode | None) -> Decode | None:
        """Return the function that calls the `decode` of a sample's dataset, then this one."""
        if self._decodes is None:
            return decode
        has_labels = [dataset.index.label_column is not None for dataset in self.parts]
        return _SourceDecode(self._first, self._decodes, self._fields, has_labels, decode)

    def make_order(self, seed: int, **options: Any) -> Ordering:
        order = Mixture(self.recipe, seed, **options)
        return order if self._subset is None else Selection(order, self._subset)

    def weigh(self, values: Slice) -> Dataset:
        """Return the mixture of the parts, each weighed by the weights of its samples.

        How much comes from each part does not change: that is for the mixture's own weights.
        """
        weighed, stop = [], 0
        for number, dataset in enumerate(self.parts):
            start, stop = stop, stop + len(dataset)
            try:
                weighed.append(dataset._weigh(cut_slice(values, start), dataset.samples_per_epoch))
            except UsageError as error:
                raise UsageError(f"dataset {number} ({dataset.path}): {error}") from None
        return self._remake(weighed)

    def keep(self, chosen: Bitmap) -> Dataset:
        """Return the mixture of the chosen samples of each part, by the same weights."""
        narrowed, stop = [], 0
        for number, dataset in enumerate(self.parts):
            start, stop = stop, stop + len(dataset)
            chosen_of_part = cut(chosen, start, stop)
            if not len(chosen_of_part):
                where = f"dataset {number} ({dataset.path})"
                raise UsageError(f"no sample of {where} is selected: mix selections of the others")
            narrowed.append(dataset._keep(chosen_of_part))
        return self._remake(narrowed)

    def open_whole(self) -> Dataset:
        return self._remake([dataset.open_whole() for dataset in self.parts])

    def _remake(self, datasets: Sequence[Dataset]) -> Dataset:
        """Return the mixture of other parts.

        An epoch draws as many samples as there are, if it did so before; else as many as before.
        """
        counts = tuple(dataset.samples_per_epoch for dataset in datasets)
        drew_all = self.recipe.length == sum(self.recipe.counts)
        length = sum(counts) if drew_all else self.recipe.length
        recipe = replace(self.recipe, counts=counts, length=length)
        return make_mixture(tuple(datasets), recipe, self._names, self._decodes)

    def finish_sample(self, sample: LoadedSample) -> LoadedSample:
        """Return the sample with its source, and pass 0, because no order is involved here."""
        source = bisect.bisect_right(self._first, sample.stream[2]) - 1
        if self._decodes is not None:
            has_label = self.parts[source].index.label_column is not None
            sample = _choose_fields(sample, source, self._fields[source], has_label)
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
    datasets: tuple[Dataset, ...],
    recipe: MixtureRecipe,
    names: Names | None = None,
    decodes: tuple[Decode | None, ...] | None = None,
) -> Dataset:
    """Make the dataset of a mixture, whose samples are the parts' one after the other."""
    indexes = [data.index for data in datasets]
    if names is not None:
        renaming = zip(indexes, names, strict=True)
        indexes = [rename_fields(index, common or {}) for index, common in renaming]
    for number, index in enumerate(indexes):
        _refuse_marks(f"dataset {number}", index, {"source", "pass"})
    joint = join_indexes(indexes) if decodes is None else join_unlike_indexes(indexes)
    subset = None
    if any(data.subset is not None for data in datasets):
        counts = tuple(index.count for index in indexes)
        subset = JointBitmap(counts, tuple(data.subset for data in datasets))
    weightings = [data.weighting for data in datasets]
    if any(weighting is not None and weighting.table is None for weighting in weightings):
        raise UsageError("weigh() without weights is not mixed: give samples_per_epoch= to mix()")
    tables = tuple(None if weighting is None else weighting.table for weighting in weightings)
    recipe = replace(recipe, tables=tables if any(table is not None for table in tables) else ())
    kind = MixtureKind(datasets, recipe, names, decodes, indexes, joint, subset)
    return Dataset(" + ".join(data.path for data in datasets), joint, subset=subset, kind=kind)


def curriculum(
    stages: Sequence[tuple[int, Dataset]],
    *,
    unit: StageUnit = "epochs",
    samples_per_epoch: int | None = None,
) -> Dataset:
    """Make a dataset whose samples, and how often they come, change at named places of a run.

    stages:  [(0, dataset), (start, dataset), ...]: from each start on the samples of that dataset:
             the opened data, a selection of it or with weights; or mixtures of the same datasets.
             Starts ascend from 0.
    unit:    of the starts, counted over all epochs: "epochs", "steps" of the global batch, or
             "samples".
    samples_per_epoch:  samples that an epoch draws; by default as many as an epoch of the stage
             with the most, with `drop_last` rounded down to whole global batches.

    Each epoch has as many steps, so that trainers and learning rates need not know of stages. From
    its start on, a stage's passes follow each other, each with all its samples once (or as its
    weights say); they go on across epochs, and the next stage's start cuts the last one short. Give
    samples_per_epoch, or starts in samples, where passes are to be whole.

    A batch has "stage", the number of its samples' stage, and "pass", the stage's pass (in a
    mixture, the pass of the sample's dataset), both int64 (B,). A state names the stages, by start
    and content; it continues under the same ones only, on any number of ranks.

    Raises UsageError if starts do not ascend, or if stages are not of the same data.
    """
    check_choice("unit", unit, get_args(StageUnit))
    pairs = _check_pairs("stages", stages, "(start, dataset)")
    starts = _check_starts("the curriculum", [start for start, _ in pairs])
    views = tuple(view for _, view in pairs)
    remedy = "what open(), mix(), select() or weigh() returns"
    for number, view in enumerate(views):
        check_part(f"stage {number}", view, CurriculumKind, remedy)
        data, first = (one.index.identity for one in (view, views[0]))
        if type(view.kind) is not type(views[0].kind) or data != first:
            where = f"stage {number} is of {view.path}, and stage 0 of {views[0].path}"
            raise UsageError(f"{where}: select and weigh one dataset, or mix the same ones")
        if isinstance(view.kind, MixtureKind) and len(view.kind.recipe.starts) > 1:
            raise UsageError(f"stage {number} is a mixture with a schedule: make it several stages")
    _refuse_marks("the data", views[0].index, {"stage", "pass"})
    longest = max(view.samples_per_epoch for view in views)
    number = longest if samples_per_epoch is None else samples_per_epoch
    length = check_whole("samples_per_epoch", number, 1, limits.order_count_max)
    return _make_curriculum(views, starts, unit, length)


class CurriculumKind(Kind):
    """Views of one dataset that follow each other; an order decides when each sample comes."""

    noun = "a curriculum"
    refusals = MappingProxyType(
        {
            "select": "select from its stages",
            "split": "split the data, and make a curriculum of a part",
            "weigh": "weigh its stages",
        }
    )

    def __init__(
        self,
        data: Dataset,
        stages: tuple[Dataset, ...],
        starts: tuple[int, ...],
        unit: StageUnit,
        length: int,
    ) -> None:
        self._data, self._stages, self._starts, self._unit = data, stages, starts, unit
        self.parts, self.samples_per_epoch = data.parts, length
        if unit == "steps":
            self.steps = "curriculum's starts are", 'unit="samples"'

    def make_order(self, seed: int, *, stream: int = 0, **options: Any) -> Curriculum:
        orders = tuple(
            view.order(seed, stream=stream + (number << 32), **options)
            for number, view in enumerate(self._stages)
        )
        return Curriculum(orders, self._starts, self._unit, self.samples_per_epoch)

    def compose_decode(self, decode: Decode | None) -> Decode | None:
        return self._data.compose_decode(decode)

    def finish_sample(self, sample: LoadedSample) -> LoadedSample:
        """Return the sample with stage and pass 0, because no order is involved here."""
        if self._data.kind is not None:
            sample = self._data.kind.finish_sample(sample)
        sample.update({"stage": 0, "pass": 0})
        return sample

    def rebuild(self) -> tuple[Callable[..., Dataset], tuple[Any, ...]]:
        return _make_curriculum, (self._stages, self._starts, self._unit, self.samples_per_epoch)

    def describe(self) -> str:
        shown = ", ".join(
            f"{self._unit} {start}: {view!r}"
            for start, view in zip(self._starts, self._stages, strict=True)
        )
        return (
            f"<penstock.Dataset, a curriculum, {self.samples_per_epoch:,} samples an epoch, of "
            f"{shown}>"
        )


def _make_curriculum(
    stages: tuple[Dataset, ...], starts: tuple[int, ...], unit: StageUnit, length: int
) -> Dataset:
    """Make the dataset of a curriculum, whose samples, by number, are the opened data's."""
    data = stages[0].open_whole()
    return Dataset(data.path, data.index, kind=CurriculumKind(data, stages, starts, unit, length))
