"""Batches: a step's fields, and the samples that they are of."""

from __future__ import annotations

import opcode
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, NoReturn

from .. import limits
from ..budget import Budget
from ..dataset.fields import Ragged, build_fields
from ..dataset.sample import Decode, FieldReader, can_take_views, open_samples
from ..engine.protocol import ReadMethod
from ..errors import UsageError
from ..index.table import Index
from ..order.order import Marks
from ..plan.batch_layout import Ids, PlanSource
from ..plan.steps import StepPlan
from .collate import Arrays, Leaves
from .decode import Collate, DecodedCounts, DecodeJob, LoadedStep, RowDecode, RowReader
from .global_generators import is_same

_marks = ("ids", "step", "epoch", "repeats")
is_compiling: Callable[[], bool] = bool
"""True while torch.compile traces, which cannot look at frames; `penstock.torch` puts it here."""
_unpacking = opcode.opmap["UNPACK_SEQUENCE"], opcode.opmap["UNPACK_EX"]


class Batch(dict[str, Any]):
    """One rank's part of one step: a dict of its fields that also names its samples.

    ids:      uint64 (B,), sample numbers.
    epoch, step: position in the run.
    valid:    bool (B,), False in rows that repeat a sample to fill a padded step (`pad=True`).
    repeats:  number of such rows; they are the last ones.

    Without `decode`, `batch["data"]` is a field: an array (B, L) of uint8, or (B, *shape) of the
    field's dtype if the format has one; `Ragged` if the samples differ in length. `batch["label"]`
    is int64 (B,) if labels are known. With `decode` the fields are the keys of the dict that it, or
    `collate`, returns. The memory belongs to the batch until the last view of it is gone. The
    loaders in `penstock.torch` give tensors, ids as int64. `x, y = batch` is a UsageError: take the
    fields by name, or give the loader `as_tuple=("image", "label")`.

    `len()` is the number of fields, as of any dict; `len(batch.ids)` is the number of samples. A
    copy, `batch | {...}`, `to`, pickles and pinned batches keep ids, step, epoch and repeats. A
    batch that is made of fields alone, as `type(batch)({...})`, has none: some trainers, and
    `jax.tree.map`, make such ones. Equal batches have equal fields, ids, step, epoch and repeats.
    """

    __slots__ = (*_marks, "_mask")
    __hash__ = None

    ids: Any
    step: int
    epoch: int
    repeats: int
    _mask: Any

    def __init__(
        self,
        fields: Mapping[str, Any] | Iterable[tuple[str, Any]] = (),
        *,
        ids: Any = None,
        step: int = 0,
        epoch: int = 0,
        repeats: int = 0,
    ) -> None:
        dict.__init__(self, fields)
        self._mask = None
        if ids is not None:
            self.ids, self.step, self.epoch, self.repeats = ids, step, epoch, repeats
        if not _jax_knows and "jax.tree_util" in sys.modules:
            _register_with_jax()

    @property
    def valid(self) -> Any:
        if self._mask is not None:
            return self._mask
        valid = self.ids >= 0  # an array where ids is one, a tensor on its device where it is one
        valid[len(valid) - self.repeats :] = False
        return valid

    def keep_valid(self, mask: Any) -> None:
        """Keep `valid` in memory, where a captured CUDA graph reads it again at each replay."""
        self._mask = mask

    def replace_fields(self, fields: Mapping[str, Any]) -> Batch:
        """Return a batch of these fields, with the ids, step and epoch of this one."""
        batch = Batch(fields)
        for name in _marks:
            if hasattr(self, name):
                setattr(batch, name, getattr(self, name))
        batch._mask = self._mask
        return batch

    def copy(self) -> Batch:
        return self.replace_fields(self)

    def to(self, device: Any, non_blocking: bool = False) -> Batch:
        """Return the batch with all tensors, ids too, moved to a device of torch."""
        batch = self.replace_fields(
            {name: _move(value, device, non_blocking) for name, value in self.items()}
        )
        if hasattr(batch, "ids"):
            batch.ids = _move(batch.ids, device, non_blocking)
            batch._mask = _move(batch._mask, device, non_blocking)
        return batch

    def __or__(self, other: Any) -> Any:
        return self.replace_fields({**self, **other}) if isinstance(other, dict) else NotImplemented

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, dict) or not is_same(dict(self), dict(other)):
            return False
        if not isinstance(other, Batch):
            return True
        return all(
            is_same(getattr(self, name, None), getattr(other, name, None)) for name in _marks
        )

    def __ne__(self, other: object) -> bool:
        return not self == other

    def __iter__(self) -> Iterator[str]:
        """Iterate over the names of the fields. `x, y = batch` would take names for values."""
        caller = None if is_compiling() else sys._getframe(1)
        if caller is not None and caller.f_code.co_code[caller.f_lasti] in _unpacking:
            names = tuple(self.keys())
            values = ", ".join(f"batch[{name!r}]" for name in names)
            raise UsageError(
                f"a batch is a dict of fields: take {values}, or give the loader as_tuple={names}"
            )
        return dict.__iter__(self)

    def __missing__(self, field: str) -> NoReturn:
        raise KeyError(f"{field!r}: the fields are {', '.join(map(str, self))}")

    def __getattr__(self, name: str) -> NoReturn:
        # Python calls this only for names that are neither a method nor a slot with a value.
        if name in (*_marks, "valid"):
            what = f"this batch was made of fields alone and has no {name}"
            raise AttributeError(f'{what}: read it from the batch of the loader, or keep "__id__"')
        names = ", ".join(map(str, self))
        known = "ids, step, epoch, valid and repeats"
        raise AttributeError(f"no {name!r} among {known}, and fields by batch[name]: {names}")

    def __repr__(self) -> str:
        names = list(self)
        if not hasattr(self, "ids"):
            return f"Batch({names})"
        return f"Batch(epoch={self.epoch}, step={self.step}, {len(self.ids)} samples, {names})"


def _move(value: Any, device: Any, non_blocking: bool) -> Any:
    """Return the value with its tensors on the device."""
    if isinstance(value, dict):
        return type(value)({name: _move(one, device, non_blocking) for name, one in value.items()})
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return type(value)(*(_move(one, device, non_blocking) for one in value))
    if isinstance(value, list | tuple):
        return type(value)(_move(one, device, non_blocking) for one in value)
    if isinstance(value, Ragged) and not hasattr(value.values, "to"):
        return value
    return value.to(device, non_blocking=non_blocking) if hasattr(value, "to") else value


_jax_knows = False


def _register_with_jax() -> None:
    """Register Batch as a JAX pytree of its fields.

    Ids, step and epoch are left out: as leaves they could not be sharded as the fields are, and as
    constants they would make jit compile again at each step.
    """
    global _jax_knows
    tree_util: Any = sys.modules["jax.tree_util"]
    if not hasattr(tree_util, "register_pytree_with_keys"):
        return  # jax is being imported right now
    _jax_knows = True

    def flatten_with_keys(batch: Batch) -> tuple[list[tuple[Any, Any]], tuple[str, ...]]:
        names = tuple(sorted(batch))
        return [(tree_util.DictKey(name), batch[name]) for name in names], names

    def flatten(batch: Batch) -> tuple[list[Any], tuple[str, ...]]:
        names = tuple(sorted(batch))
        return [batch[name] for name in names], names

    tree_util.register_pytree_with_keys(
        Batch,
        flatten_with_keys,
        lambda names, parts: Batch(zip(names, parts, strict=True)),
        flatten,
    )
    tree_util.register_pytree_node(
        Ragged,
        lambda ragged: ((ragged.values, ragged.offsets), None),
        lambda _, parts: Ragged(*parts),
    )


def mark_batch(value: Any, planned: StepPlan, epoch: int) -> Any:
    """Return what collation gave; a dict becomes a `Batch` that knows its samples.

    Other mappings, tuples, lists and arrays stay as they are, as with torch's default_collate.
    """
    if type(value) is not dict:
        return value
    return Batch(
        value, ids=planned.row_ids, step=planned.step, epoch=epoch, repeats=planned.repeats
    )


def choose_readahead(choice: ReadMethod, budget: Budget, step_bytes: float) -> tuple[int, int]:
    """Return the most bytes and steps that may be requested or ready at once.

    step_bytes:  bytes of a rank's step.

    Both are smaller if the data is in the page cache, because reading is then only copying.
    """
    budget_bytes = budget.readahead_bytes
    if not choice.cached:
        return budget_bytes, limits.readahead_steps_max
    enough_bytes = max(limits.readahead_cached_bytes_max, int(4 * step_bytes))
    return min(budget_bytes, enough_bytes), limits.readahead_cached_steps_max


def pick_fields(
    names: Sequence[str], batch: Any, finish: Callable[[Any], Any] | None = None
) -> tuple[Any, ...]:
    """Return these fields of a batch as a tuple; UsageError if the batch has none by name.

    finish:  makes the batch of what is given.
    """
    batch = batch if finish is None else finish(batch)
    if not isinstance(batch, Mapping):
        what = f"as_tuple picks fields, and the batch is a {type(batch).__name__}"
        raise UsageError(f"{what}: let decode return a dict, or leave out as_tuple")
    return tuple(batch[name] for name in names)


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
