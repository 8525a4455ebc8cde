"""Curricula: `curriculum` makes one dataset of views of the same data that follow each other."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from types import MappingProxyType
from typing import Any, get_args

from .. import limits
from ..arguments import check_whole
from ..errors import UsageError
from ..order.curriculum import Curriculum, StageUnit
from .dataset import Dataset, Kind
from .mixing import MixtureKind
from .sample import Decode, LoadedSample

_marks = {"stage", "pass"}


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
    pairs = _check_stages(stages, unit)
    starts = tuple(start for start, _ in pairs)
    views = tuple(view for _, view in pairs)
    longest = max(view.samples_per_epoch for view in views)
    length = (
        longest
        if samples_per_epoch is None
        else check_whole("samples_per_epoch", samples_per_epoch, 1, limits.order_count_max)
    )
    return _make_curriculum(views, starts, unit, length)


def _check_stages(stages: Sequence[tuple[int, Dataset]], unit: str) -> list[tuple[int, Dataset]]:
    if unit not in get_args(StageUnit):
        raise UsageError(f"unit is {unit!r}: use one of {', '.join(get_args(StageUnit))}")
    if not isinstance(stages, Sequence) or not stages:
        raise UsageError(f"stages is {stages!r:.100}: give a list of (start, dataset)")
    pairs = []
    for number, entry in enumerate(stages):
        if not isinstance(entry, tuple | list) or len(entry) != 2:
            raise UsageError(f"stages[{number}] is {entry!r:.100}: give (start, dataset)")
        start = check_whole(f"the start of stage {number}", entry[0], 0, limits.order_count_max)
        view = entry[1]
        if not isinstance(view, Dataset) or isinstance(view.kind, CurriculumKind):
            noun = view.kind.noun if isinstance(view, Dataset) else f"a {type(view).__name__}"
            raise UsageError(
                f"stage {number} is {noun}: give what open(), mix(), select() or weigh() returns"
            )
        if not len(view):
            raise UsageError(f"stage {number} ({view.path}) has no samples")
        pairs.append((start, view))
    starts = [start for start, _ in pairs]
    if starts[0] != 0 or any(a >= b for a, b in itertools.pairwise(starts)):
        raise UsageError(f"the stages start at {starts} ({unit}): starts must ascend from 0")
    _check_alike([view for _, view in pairs])
    return pairs


def _check_alike(views: Sequence[Dataset]) -> None:
    first = views[0]
    for number, view in enumerate(views):
        if (
            type(view.kind) is not type(first.kind)
            or view.index.fingerprint != first.index.fingerprint
        ):
            raise UsageError(
                f"stage {number} is of {view.path}, and stage 0 of {first.path}: make the stages "
                "of one "
                "opened dataset by select() and weigh(), or of mixtures of the same datasets"
            )
        if isinstance(view.kind, MixtureKind) and len(view.kind.recipe.starts) > 1:
            raise UsageError(f"stage {number} is a mixture with a schedule: make it several stages")
    taken = {made.name for part in first.index.fields for made in part.made} & _marks
    if taken:
        raise UsageError(f"the data has a field {taken.pop()!r}: rename it by mix(rename=)")


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
