"""A reader of given samples: one batch at a time, with an engine of its own.

It serves worker processes, which cannot share the engine of their parent, and samples that a
sampler of the user chooses. For penstock's own order `Loader` reads ahead and merges reads.
"""

from __future__ import annotations

from typing import Any

from ..budget import Budget
from ..dataset.fields import build_fields
from ..dataset.reading import FieldReader
from ..dataset.sample import Decode, can_take_views, open_samples
from ..index import Index
from ..order import Marks
from ..plan import Ids, PlanSource
from .batch import mark_batch
from .collate import Arrays, Leaves
from .decode import Collate, DecodeJob
from .row_decode import DecodedCounts, LoadedStep, RowDecode, RowReader


class BatchReader:
    """Reader and decoder of the samples that each call names.

    Without `decode` a batch is a `Batch`; with it, the same value that `Loader` makes of the same
    arguments. Engine and memory are taken at the first batch.

    path:  of the data, if files beside it may help a `RowDecode`.
    """

    def __init__(
        self,
        index: Index,
        *,
        decode: Decode | None = None,
        collate: Collate | None = None,
        leaves: Leaves | None = None,
        budget: Budget | None = None,
        path: str | None = None,
    ) -> None:
        self._index = index
        self._decode = decode
        self._collate = collate
        self._rows: RowReader | None = None
        if isinstance(decode, RowDecode) and collate is None:
            self._rows = decode.open_data(index, path, leaves or Arrays())
        self._cropped: tuple[tuple[int, int], PlanSource | None] = ((-1, -1), None)
        self._counts = DecodedCounts()
        self._leaves = leaves
        self._reader = FieldReader(index, budget)

    def read(
        self,
        ids: Ids,
        *,
        epoch: int = 0,
        step: int = 0,
        repeats: int = 0,
        marks: Marks | None = None,
        seed: int = 0,
        by_row: bool = False,
    ) -> Any:
        """Read these samples, in this order, and return their batch.

        seed, by_row:  decide the samples' random numbers; see `open_samples`.
        """
        index, take = self._index, self._reader.arena.take
        cropped = None if by_row else self._crop_reads(seed, epoch)
        planned, buffer = self._reader.read_step(
            ids, step=step, repeats=repeats, marks=marks, source=cropped
        )
        if self._decode is None:
            return mark_batch(build_fields(index, planned, buffer), planned, epoch)
        decode = self._decode
        if self._rows is not None:
            step_rows = LoadedStep(
                index,
                planned,
                build_fields(index, planned, buffer),
                epoch,
                seed,
                take,
                self._leaves or Arrays(),
                self._counts.add,
                cropped is not None,
                by_row,
            )
            rows = self._rows.open_rows(step_rows)
            rows.decode(0, len(ids))
            return mark_batch(rows.result(), planned, epoch)
        job = DecodeJob(
            len(ids),
            lambda: open_samples(
                index,
                planned,
                build_fields(index, planned, buffer),
                epoch,
                seed,
                by_row,
                can_take_views(decode),
            ),
            decode,
            self._collate,
            take,
            self._leaves,
        )
        job.run()
        return mark_batch(job.result(), planned, epoch)

    def close(self) -> None:
        """End the engine's threads; the next batch starts them again."""
        self._reader.close()

    def _crop_reads(self, seed: int, epoch: int) -> PlanSource | None:
        """Return the data with the bytes alone that an epoch needs, if they are fewer."""
        if self._rows is None:
            return None
        if self._cropped[0] != (seed, epoch):
            self._cropped = (seed, epoch), self._rows.crop_reads(self._index, seed, epoch)
        return self._cropped[1]
