"""A repository below a prefix of an object store.

    <prefix>/00000007.index               a checkpoint: the seventh number; see `write_lock`
    <prefix>/step-<N>.<attempt>/          its shards, or the shards of a save under way
        rank-<r>.shard

Shards have names that are used once. An object exists whole or not at all, and it survives once it
exists. So the index is the commit, in one request: it names the shards' folder.

A service may perform a request late, though it gave no answer: then the index of a checkpoint that
was deleted comes back, and its shards do not. Such an index counts as deleted.
"""

from __future__ import annotations

import contextlib
import errno
import re
from collections.abc import Sequence
from functools import partial
from typing import NamedTuple

from ..engine.atomic_file import storage_errors
from ..engine.object_client import ObjectRefused
from ..engine.object_store import open_bucket, parse_object_url
from ..errors import FormatError, MissingError, PenstockError, StorageError, UsageError
from .flushing import Flush
from .manifest import CheckpointIndex, Memory, Piece, ShardEntry, encode_index
from .repository import KEEP_MIN, CheckpointEntry, Repository
from .storage import ObjectStorage, ask_service, build_service_error
from .write_lock import AGAIN, Claim, NumberedObjects, WriteLock, describe_writer, is_claim

_ATTEMPT = re.compile(r"step-\d+\.[0-9a-z]+")
_SHARD = re.compile(r"rank-\d+\.shard")


class _Listing(NamedTuple):
    """Objects below a prefix.

    paths:    of folders of shards.
    entries:  the committed checkpoints.
    deleted:  checkpoints that were deleted, and whose index was written late.
    """

    paths: set[str]
    entries: list[CheckpointEntry]
    deleted: list[CheckpointEntry]

    def find_dead_attempts(self) -> list[str]:
        """Return the folders that no index names; none if an index is damaged."""
        if any(entry.step < 0 for entry in self.entries):
            return []
        return sorted(self.paths - {entry.path for entry in self.entries})


class Prefix(Repository):
    """Committed checkpoints below a URL: s3://bucket/prefix, gs:// or az://.

    key:  of the prefix in the bucket; it ends with a slash, or is empty.
    """

    takes_over = True

    def __init__(self, url: str, key: str, storage: ObjectStorage) -> None:
        super().__init__(url, storage)
        self._objects, self._key = storage, key
        self._numbered = NumberedObjects(storage, key, url)
        self._maybe_committed: set[str] = set()
        """Attempts that may be committed, whatever the service answered."""

    @classmethod
    def open(cls, url: str) -> Prefix:
        """Open a URL; UsageError if it is only for reading."""
        where = parse_object_url(url.rstrip("/"))
        bucket = None if where.bucket.startswith("hf://") else open_bucket(where.bucket)
        if bucket is None or not bucket.listable:
            raise UsageError(
                f"{where.url}: hubs and web servers are only read from: use s3://, gs:// or az://"
            )
        key = f"{where.key}/" if where.key else ""
        return cls(where.url, key, ObjectStorage(bucket, where.url, key))

    # -- reading -----------------------------------------------------------------------------------

    def entries(self) -> list[CheckpointEntry]:
        """List the checkpoints as `Repository.entries` says. Only the head of each index is read,
        once. If that is damaged, the step is -1; `read_index` raises the error that says more."""
        return self._list_all().entries

    def _list_all(self) -> _Listing:
        folders, objects = self._numbered.list_all()
        entries = [
            CheckpointEntry(
                commit.number,
                commit.step,
                self._numbered.get_url(commit.number)
                if commit.attempt is None
                else f"{self.path}/step-{commit.step}.{commit.attempt}",
            )
            for commit in objects
            if commit.attempt != ""
        ]
        paths = {f"{self.path}/{folder}" for folder in folders if _ATTEMPT.fullmatch(folder)}
        # The last ones are not deleted: if they lost their shards, that is damage, and is said.
        whole = [entry.sequence for entry in entries if entry.path in paths][-KEEP_MIN:]
        first = whole[0] if len(whole) == KEEP_MIN else 0
        deleted = [
            entry
            for entry in entries
            if entry.sequence < first and entry.step >= 0 and entry.path not in paths
        ]
        return _Listing(paths, [entry for entry in entries if entry not in deleted], deleted)

    def read_index(self, entry: CheckpointEntry) -> CheckpointIndex:
        """Read an index as `Repository.read_index` says; FormatError, too, if its head was damaged
        when it was listed, because a head has no checksum: `entry` has another path."""
        try:
            index = super().read_index(entry)
            path = self.locate_shards(entry, index)
            if path != entry.path:
                raise FormatError(
                    f"{self.index_path(entry)} is of {path}, not {entry.path}: it was damaged on"
                    " its way; list the checkpoints again"
                )
        except FormatError:
            self._numbered.forget()
            raise
        return index

    def read_index_bytes(self, entry: CheckpointEntry) -> bytes:
        data = self._numbered.read(entry.sequence)
        url = self.index_path(entry)
        if data is None:
            raise build_service_error(ObjectRefused(errno.ENOENT, "404"), url)
        if is_claim(data):  # its head was damaged on its way when it was listed
            raise MissingError(f"{url} is no checkpoint, but the claim of a job: list them again")
        return data

    def index_path(self, entry: CheckpointEntry) -> str:
        return self._numbered.get_url(entry.sequence)

    def committed_s(self, entry: CheckpointEntry) -> float:
        _, objects = self._numbered.list_all()
        return {commit.number: commit.written_s for commit in objects}.get(entry.sequence, 0.0)

    def locate_shards(self, entry: CheckpointEntry, index: CheckpointIndex) -> str:
        return f"{self.path}/step-{index.step}.{index.attempt}"

    # -- committing --------------------------------------------------------------------------------

    def lock(self, writer: bytes | None = None) -> Claim:
        return Claim.take(self._numbered, (writer or describe_writer()).decode())

    def start_attempt(self, step: int, attempt: str) -> str:
        return f"{self.path}/step-{step}.{attempt}"

    def write_shard(
        self, attempt_path: str, name: str, memory: Memory, pieces: Sequence[Piece], flush: Flush
    ) -> ShardEntry:
        url = f"{attempt_path}/{name}"
        key = self._get_key(url)

        def upload() -> ShardEntry:
            return self._objects.upload_shard(key, url, memory, pieces, flush)

        with storage_errors(url, AGAIN):
            return ask_service(url, upload, AGAIN)

    def copy_shard(self, attempt_path: str, name: str, file: str, flush: Flush) -> None:
        url = f"{attempt_path}/{name}"
        key = self._get_key(url)
        ask_service(url, lambda: self._objects.upload_file(key, url, file, flush), AGAIN)

    def commit(self, attempt_path: str, index: CheckpointIndex, lock: WriteLock) -> CheckpointEntry:
        """Commit as `Repository.commit` says. StorageError if the service did not answer: the index
        may exist then, and counts, unless another is committed first."""
        assert isinstance(lock, Claim)
        sizes = self._list_shards(attempt_path)
        for shard in index.shards:
            if sizes.get(shard.file) != shard.bytes:
                raise StorageError(
                    f"{attempt_path}: {shard.file} has {sizes.get(shard.file, 0):,} of"
                    f" {shard.bytes:,} bytes: do all ranks write to one service? {AGAIN}"
                )
        self._maybe_committed.add(attempt_path)
        try:
            number = lock.append(encode_index(index))
        except UsageError:
            self._maybe_committed.discard(attempt_path)
            raise
        return CheckpointEntry(number, index.step, attempt_path)

    def abandon(self, attempt_path: str) -> None:
        if attempt_path in self._maybe_committed:
            return
        with contextlib.suppress(PenstockError):
            self._clear(attempt_path)

    # -- deleting ----------------------------------------------------------------------------------

    def delete(self, entry: CheckpointEntry) -> None:
        """Delete a checkpoint as `Repository.delete` says. Shards whose index is damaged stay:
        `leftovers` lists them."""
        try:
            self.read_index(entry)
            names_shards = True
        except FormatError:
            names_shards = False
        except MissingError:
            return
        self._numbered.delete(entry.sequence)
        self._maybe_committed.discard(entry.path)
        if names_shards:
            with contextlib.suppress(PenstockError):  # `leftovers` lists the rest
                self._clear(entry.path)

    def leftovers(self) -> list[str]:
        """List leftovers as `Repository.leftovers` says; no attempts if an index is damaged,
        because it might have named them."""
        listing = self._list_all()
        late = [self.index_path(entry) for entry in listing.deleted]
        return late + listing.find_dead_attempts()

    def delete_leftovers(self, lock: WriteLock) -> None:
        with contextlib.suppress(PenstockError):
            listing = self._list_all()
            lock.check()  # no other job had started when these were listed
            dead = listing.find_dead_attempts()
            if dead or listing.deleted:
                for entry in [*listing.deleted, *listing.entries]:
                    self.read_index(entry)  # a damaged one might name any attempt
            for entry in listing.deleted:
                self._numbered.delete(entry.sequence)
            for url in dead:
                self._clear(url)
            self._numbered.delete_old_claims()

    def _clear(self, url: str) -> None:
        keys = [f"{self._get_key(url)}/{name}" for name in self._list_shards(url)]
        for at in range(0, len(keys), 1000):
            delete = partial(self._objects.delete_objects, keys[at : at + 1000])
            ask_service(url, delete, "try again")

    def _list_shards(self, url: str) -> dict[str, int]:
        """Return the sizes of the shards in a folder, by name."""
        key = f"{self._get_key(url)}/"
        _, objects = ask_service(url, lambda: self._objects.list_objects(key))
        sizes = {info.name[len(key) :]: info.size for info in objects}
        return {name: size for name, size in sizes.items() if _SHARD.fullmatch(name)}

    def _get_key(self, url: str) -> str:
        return self._key + url.removeprefix(f"{self.path}/")
