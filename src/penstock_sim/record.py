"""Records of real runs, as `Loader.run_record` gives them, read strictly and merged to a job.

A file holds the record of one rank, or a list of them. If a rank's record is missing, its timings
are assumed to equal the others'.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, ClassVar, Literal

from pydantic import Field

from penstock.errors import UsageError

from .scenario import Amount, Count, Spread, StrictModel, read_file

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
    """The record of one rank. hosts, cache_block: null if there is no cache."""

    content: ClassVar[str] = "a record"
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
    assignment: Literal["strided", "contiguous", "local", "balanced"]
    cache_block: Count | None
    ram_bytes: Number
    disk_bytes: Number
    readahead_bytes: Count
    readahead_steps: Count
    decode_threads: Number
    epochs: tuple[EpochRecord, ...] = Field(strict=False)


@dataclass(frozen=True)
class LiveRun:
    """The record of a job.

    where:   its files, for messages.
    epochs:  epochs that all ranks have recorded. Seconds are the slowest rank's; stall_s and
             compute_s the fastest rank's in computing: it waited for no other.
    """

    where: str
    rank: RankRecord
    recorded_ranks: int  # ranks that have a record
    epochs: tuple[EpochRecord, ...]

    @property
    def hosts(self) -> int:
        """Number of hosts. Without a cache ranks do not know it, and each counts as one host."""
        return self.rank.hosts or self.rank.ranks


def load_run(paths: Sequence[str | Path]) -> LiveRun:
    """Load the job whose records are in these files. Raises UsageError."""
    return merge_ranks([rank for path in paths for rank in _load_ranks(Path(path))])


def merge_ranks(ranks: Sequence[tuple[str, RankRecord]]) -> LiveRun:
    """Merge the records of a job's ranks, each with its name in errors. Raises UsageError."""
    if not ranks:
        raise UsageError("there is no record of a rank: give what Loader.run_record() returned")
    first_where, first = ranks[0]
    seen: dict[int, str] = {}
    differing = {"rank", "epochs", "ram_bytes", "disk_bytes", "readahead_bytes", "readahead_steps"}
    for where, rank in ranks:
        if rank.rank in seen or rank.rank >= rank.ranks:
            other = f", which {seen[rank.rank]} is too" if rank.rank in seen else ""
            raise UsageError(
                f"{where}: rank is {rank.rank} of {rank.ranks}{other}: give one record of each rank"
            )
        seen[rank.rank] = where
        for key in RankRecord.model_fields.keys() - differing:
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
    return LiveRun(first_where, first, len(ranks), epochs)


def _load_ranks(path: Path) -> list[tuple[str, RankRecord]]:
    try:
        values = json.loads(read_file(path, "record"))
    except (json.JSONDecodeError, RecursionError) as error:
        raise UsageError(f"cannot read record {path} ({error}): give a file of JSON") from None
    if not isinstance(values, list):
        return [(str(path), parse_rank(values, str(path)))]
    names = [f"{path}, record {number}" for number in range(len(values))]
    return [(name, parse_rank(value, name)) for name, value in zip(names, values, strict=True)]


def parse_rank(given: object, where: str) -> RankRecord:
    """Parse a record from JSON values; `where` is its name in errors."""
    if not isinstance(given, dict) or "penstock_run" not in given:
        raise UsageError(
            f"{where} is no record of a run: give what Loader.run_record() returned, as JSON"
        )
    if given["penstock_run"] != VERSION:
        raise UsageError(
            f"{where}: penstock_run is {given['penstock_run']!r}, and this penstock reads version "
            f"{VERSION}: use the version that wrote it, or record again"
        )
    return RankRecord.of(given, where)


def _merge_epochs(ranks: Sequence[RankRecord], scale: float) -> tuple[EpochRecord, ...]:
    """Merge the whole epochs of all ranks; `scale` multiplies bytes, for ranks without record."""
    by_rank = [{e.epoch: e for e in rank.epochs if e.steps == rank.steps} for rank in ranks]
    merged = []
    for number in by_rank[0]:
        if not all(number in epochs for epochs in by_rank):
            continue
        of_ranks = [epochs[number] for epochs in by_rank]
        fastest = min(of_ranks, key=lambda epoch: epoch.compute_s)
        sums = {
            name: round(scale * sum(getattr(epoch, name) for epoch in of_ranks))
            for name in EpochRecord.model_fields
            if name.endswith("_bytes")
        }
        seconds = max(epoch.seconds for epoch in of_ranks)
        merged.append(fastest.model_copy(update={"seconds": seconds, **sums}))
    return tuple(merged)
