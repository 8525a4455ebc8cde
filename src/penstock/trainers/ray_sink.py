"""Ray Data's rows as shards that `penstock.open` opens: whole tasks, committed once."""

from __future__ import annotations

import os
from collections.abc import Iterable
from typing import Any

import ray.data
from ray.data.block import Block, BlockAccessor

from ..convert.manifest import Converted
from ..convert.rows import Columns, RowContainer, RowParts, RowShards
from ..errors import UsageError


class RaySink(ray.data.Datasink[RowParts | None]):
    """A folder of shards for `ray.data.Dataset.write_datasink(penstock.ray.Datasink(path))`.

    path:         folder that all nodes see; it must not exist, or be empty.
    to:           "tar" (WebDataset), "tfrecord" (tf.train.Example) or "records" (fixed size).
    shard_bytes:  a shard is closed before it grows beyond this (256 MiB). A task has shards of its
                  own: larger blocks make fewer of them.
    name:         name of the shards, NAME-000000.tar; by default the folder's.

    A column is a field of the sample: bytes, text, numbers or arrays. "label" (or "cls") of whole
    numbers is the label, "__key__" the name; else it is "__id__", or task and row.

    The folder appears when all tasks are done, with the shards in the order of the tasks; then
    `result` says what was written, and `result.call` how it is opened. After an error there is
    nothing. Tasks may be repeated, and killed.
    """

    result: Converted | None = None

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        to: RowContainer = "tar",
        shard_bytes: int | None = None,
        name: str | None = None,
    ) -> None:
        self._shards = RowShards(path, to, shard_bytes, name)

    def on_write_start(self, schema: Any = None) -> None:
        """Make a hidden folder beside the path: Ray calls this once, in the driver."""
        self._shards.begin()

    def write(self, blocks: Iterable[Block], ctx: Any) -> RowParts | None:
        """Write the rows of a task, and read them back."""
        return self._shards.write(ctx.task_idx, map(_read_columns, blocks))

    def on_write_complete(self, write_result: Any) -> None:
        """Let the folder appear."""
        self.result = self._shards.commit(write_result.write_returns)

    def on_write_failed(self, error: Exception) -> None:
        """Remove what tasks have written."""
        self._shards.discard()


def _read_columns(block: Block) -> Columns:
    table = BlockAccessor.for_block(block).to_arrow()
    for name in table.column_names:
        if table[name].null_count:
            what = (
                f"column {name!r} has {table[name].null_count:,} nulls in {table.num_rows:,} rows"
            )
            raise UsageError(f"{what}: fill or drop them before (map_batches, filter)")
    columns: Columns = BlockAccessor.for_block(table).to_numpy()
    return columns
