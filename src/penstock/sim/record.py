"""Records of real runs, as `Loader.run_record` gives them: read strictly, put together to a job.

A file holds the record of one rank, or a list of them. Ranks of which there is no record are taken
to have fared like the others.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

import pydantic
from pydantic import Field

from ..errors import UsageError
from .scenario import Amount, Count, StrictModel, Spread, explain_validation_error

Number = Annotated[int, Field(ge=0, le=2**62)]

VERSION = 1


class EpochRecord(StrictModel):
    """One epoch of a rank, or of all ranks together; see `Loader.run_record`."""

    epoch: Number
    steps: Count
    seconds: Amount
    stall_s: Spread
    compute_s: Spread
    storage_bytes: Number
    ram_bytes: Number
    disk_bytes: Number
    peer_bytes: Number


class RankRecord(StrictModel):
    """What one rank says. hosts, cache block: null where there is no cache."""

    penstock_run: Literal[1]
    rank: Number
    ranks: Count
    hosts: Count | None
    samples: Count
    mean_bytes: Amount
    deviation_bytes: Spread
    global_batch: Count
    steps: Count
    seed: Number
    assignment: Literal["strided", "contiguous", "local"]
    cache_block: Count | None
    ram_bytes: Number
    disk_bytes: Number
    readahead_bytes: Count
    readahead_steps: Count
    decode_threads: Number
    epochs: tuple[EpochRecord, ...] = Field(strict=False)


@dataclass(frozen=True)
class RecordedRun:
    """A job. where: its files, for messages; epochs: of all ranks, those that all have recorded;
    seconds are those of the slowest, stall_s and compute_s those of the fastest in computing, which
    waited for no other."""

    where: str
    rank: RankRecord
    told: int  # ranks of which there is a record
    epochs: tuple[EpochRecord, ...]

    @property
    def hosts(self) -> int:
        """Without a cache ranks do not know their hosts: each is then one by itself."""
        return self.rank.hosts or self.rank.ranks


def load_run(paths: Sequence[str | Path]) -> RecordedRun:
    """The job that these files are the records of. Raises UsageError."""
    ranks: list[tuple[str, RankRecord]] = []
    for path in paths:
        ranks += _load_ranks(Path(path))
    return merge_ranks(ranks)


def merge_ranks(ranks: Sequence[tuple[str, RankRecord]]) -> RecordedRun:
    """The job of these ranks, each with what errors call it. Raises UsageError."""
    if not ranks:
        raise UsageError("there is no record of a rank: give what Loader.run_record() returned")
    first_where, first = ranks[0]
    seen: dict[int, str] = {}
    own = {"rank", "epochs", "ram_bytes", "disk_bytes", "readahead_bytes", "readahead_steps"}
    for where, rank in ranks:
        if rank.rank in seen or rank.rank >= rank.ranks:
            other = f", which {seen[rank.rank]} is too" if rank.rank in seen else ""
            raise UsageError(
                f"{where}: rank is {rank.rank} of {rank.ranks}{other}: give one record of each rank"
            )
        seen[rank.rank] = where
        for key in RankRecord.model_fields.keys() - own:
            if getattr(rank, key) != getattr(first, key):
                raise UsageError(
                    f"{where}: {key} is {getattr(rank, key)!r}, and {getattr(first, key)!r} in "
                    f"{first_where}: give records of one job"
                )
    epochs = _merge_epochs([rank for _, rank in ranks], first.ranks / len(ranks))
    if not epochs:
        raise UsageError(
            f"{first_where}: epochs holds none that was walked through from its first step to the "
            "end, on all ranks given: call run_record() after an epoch"
        )
    return RecordedRun(first_where, first, len(ranks), epochs)


def _load_ranks(path: Path) -> list[tuple[str, RankRecord]]:
    try:
        given = json.loads(path.read_text())
    except (OSError, ValueError, RecursionError) as error:
        raise UsageError(f"cannot read record {path}: {error}") from None
    several = isinstance(given, list)
    found = []
    for number, each in enumerate(given if several else [given]):
        where = f"{path}, record {number}" if several else str(path)
        found.append((where, parse_rank(each, where)))
    return found


def parse_rank(given: object, where: str) -> RankRecord:
    """A record from JSON values; `where` is what errors call it."""
    if not isinstance(given, dict) or "penstock_run" not in given:
        raise UsageError(
            f"{where} is no record of a run: give what Loader.run_record() returned, as JSON"
        )
    if given["penstock_run"] != VERSION:
        raise UsageError(
            f"{where}: penstock_run is {given['penstock_run']!r}, and this penstock reads version "
            f"{VERSION}: use the version that wrote it, or record again"
        )
    try:
        return RankRecord.model_validate(given)
    except pydantic.ValidationError as error:
        lines = (explain_validation_error(where, each, "a record") for each in error.errors())
        raise UsageError("\n".join(lines)) from None


def _merge_epochs(ranks: Sequence[RankRecord], scale: float) -> tuple[EpochRecord, ...]:
    """The whole epochs of all ranks; bytes are multiplied by `scale`, for ranks without record."""
    by_rank = [{e.epoch: e for e in rank.epochs if e.steps == rank.steps} for rank in ranks]
    found = []
    for number in by_rank[0]:
        if not all(number in epochs for epochs in by_rank):
            continue
        each = [epochs[number] for epochs in by_rank]
        fastest = min(each, key=lambda epoch: epoch.compute_s)
        sums = {
            name: round(scale * sum(getattr(epoch, name) for epoch in each))
            for name in EpochRecord.model_fields
            if name.endswith("_bytes")
        }
        found.append(fastest.model_copy(update={"seconds": max(e.seconds for e in each), **sums}))
    return tuple(found)
