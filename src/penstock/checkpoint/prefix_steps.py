"""The protocol of a repository below a prefix of an object store: its objects, and how shards are
written there, as steps. Pure.

    <prefix>/00000007.index               a checkpoint: the seventh number; see `commits`
    <prefix>/step-<N>.<attempt>/          its shards, or those of a save under way
        rank-<r>.shard

Shards have names that are used once. An object exists whole or not at all, and it survives once it
exists. So the index, which names the shards' folder, is the commit, in one request.

A service may perform a request late, though it gave no answer: then the index of a checkpoint that
was removed comes back, and its shards do not. Such an index counts as removed.
"""

from __future__ import annotations

import contextlib
import errno
import re
from collections.abc import Sequence
from typing import Any, NamedTuple

from ..engine import ObjectRefused, storage_errors
from ..errors import FormatError, MissingError, PenstockError, StorageError, UsageError
from .actions import DeleteObjects, ListObjects, Steps, UploadFile, UploadShard
from .commits import Claim, Commits, ask_service, build_service_error, is_claim
from .manifest import CheckpointIndex, Memory, Piece, ShardEntry, encode_index
from .repository_steps import AGAIN, KEEP_MIN, CheckpointEntry, RepositoryLock, RepositorySteps

_ATTEMPT = re.compile(r"step-\d+\.[0-9a-z]+")
_SHARD = re.compile(r"rank-\d+\.shard")


class _Listing(NamedTuple):
    """What is below a prefix.

    paths:    of folders of shards.
    entries:  the committed checkpoints.
    removed:  those that were removed, and whose index was written late.
    """

    paths: set[str]
    entries: list[CheckpointEntry]
    removed: list[CheckpointEntry]

    def find_dead_attempts(self) -> list[str]:
        """List the folders that no index names; none if an index is damaged."""
        if any(entry.step < 0 for entry in self.entries):
            return []
        return sorted(self.paths - {entry.path for entry in self.entries})


class PrefixSteps(RepositorySteps):
    """Committed checkpoints below a URL. key: of the prefix in the bucket; it ends with a slash, or
    is empty."""

    def __init__(self, url: str, bucket: Any, key: str) -> None:
        self.path, self._bucket, self._key = url, bucket, key
        self._commits = Commits(bucket, key, url)
        self._maybe_committed: set[str] = set()
        """Attempts that may be committed, whatever the service answered."""

    def entries(self) -> Steps[list[CheckpointEntry]]:
        """List the checkpoints as `RepositorySteps.entries` says. Only the beginning of each index
        is read, and only once. If that is damaged, the step is -1; `index` raises the error that
        says more."""
        listing = yield from self._list_all()
        return listing.entries

    def _list_all(self) -> Steps[_Listing]:
        folders, commits = yield from self._commits.list_commits()
        entries = [
            CheckpointEntry(
                commit.number,
                commit.step,
                self._commits.get_url(commit.number)
                if commit.attempt is None
                else f"{self.path}/step-{commit.step}.{commit.attempt}",
            )
            for commit in commits
            if commit.attempt != ""
        ]
        paths = {f"{self.path}/{folder}" for folder in folders if _ATTEMPT.fullmatch(folder)}
        # The last ones are not removed: if they lost their shards, that is damage, and is said.
        whole = [entry for entry in entries if entry.path in paths]
        last_s = [entry.sequence for entry in whole[-KEEP_MIN:]]
        first = last_s[0] if len(last_s) == KEEP_MIN else 0
        removed = [
            entry
            for entry in entries
            if entry.sequence < first and entry.step >= 0 and entry.path not in paths
        ]
        return _Listing(paths, [entry for entry in entries if entry not in removed], removed)

    # -- committing --------------------------------------------------------------------------------

    def begin(self, step: int, attempt: str) -> Steps[str]:
        yield from ()
        return f"{self.path}/step-{step}.{attempt}"

    def write(
        self, attempt_path: str, name: str, memory: Memory, pieces: Sequence[Piece], flush: Any
    ) -> Steps[ShardEntry]:
        url = f"{attempt_path}/{name}"
        key = self._get_key(url)
        with storage_errors(url, AGAIN):
            upload = UploadShard(self._bucket, key, url, memory, pieces, flush)
            entry: ShardEntry = yield from ask_service(url, upload, AGAIN)
        return entry

    def put(self, attempt_path: str, name: str, file: str, flush: Any) -> Steps[None]:
        url = f"{attempt_path}/{name}"
        upload = UploadFile(self._bucket, self._get_key(url), url, file, flush)
        yield from ask_service(url, upload, AGAIN)

    def commit(
        self, attempt_path: str, index: CheckpointIndex, lock: RepositoryLock
    ) -> Steps[CheckpointEntry]:
        """Commit as `RepositorySteps.commit` says. StorageError if the service did not answer: the
        index may exist then, and counts, unless another is committed first."""
        assert isinstance(lock, Claim)
        sizes = yield from self._list_shards(attempt_path)
        for shard in index.shards:
            if sizes.get(shard.file) != shard.bytes:
                raise StorageError(
                    f"{attempt_path}: {shard.file} has {sizes.get(shard.file, 0):,} bytes, but"
                    f" {shard.bytes:,} were written: do all ranks write to one service? Save"
                    " again: nothing was committed"
                )
        self._maybe_committed.add(attempt_path)
        try:
            number = yield from lock.append(encode_index(index))
        except UsageError:
            self._maybe_committed.discard(attempt_path)
            raise
        return CheckpointEntry(number, index.step, attempt_path)

    def abandon(self, attempt_path: str) -> Steps[None]:
        if attempt_path in self._maybe_committed:
            return
        with contextlib.suppress(PenstockError):
            yield from self._clear(attempt_path)

    # -- removing ----------------------------------------------------------------------------------

    def remove(self, entry: CheckpointEntry) -> Steps[None]:
        """Remove a checkpoint as `RepositorySteps.remove` says. Shards whose index is damaged stay:
        `leftovers` lists them."""
        try:
            yield from self.index(entry)
            names_shards = True
        except FormatError:
            names_shards = False
        except MissingError:
            return
        yield from self._commits.remove(entry.sequence)
        self._maybe_committed.discard(entry.path)
        if names_shards:
            with contextlib.suppress(PenstockError):  # `leftovers` lists what is left of it
                yield from self._clear(entry.path)

    def leftovers(self) -> Steps[list[str]]:
        """List leftovers as `RepositorySteps.leftovers` says; no attempts if an index is damaged,
        because it might have named them."""
        listing = yield from self._list_all()
        late = [self.index_path(entry) for entry in listing.removed]
        return late + listing.find_dead_attempts()

    def collect(self, lock: RepositoryLock) -> Steps[None]:
        with contextlib.suppress(PenstockError):
            listing = yield from self._list_all()
            yield from lock.check()  # no other job had begun when these were listed
            dead = listing.find_dead_attempts()
            if dead or listing.removed:
                for entry in [*listing.removed, *listing.entries]:
                    yield from self.index(entry)  # a damaged one might name any attempt
            for entry in listing.removed:
                yield from self._commits.remove(entry.sequence)
            for url in dead:
                yield from self._clear(url)
            yield from self._commits.thin()

    def _clear(self, url: str) -> Steps[None]:
        shards = yield from self._list_shards(url)
        keys = [f"{self._get_key(url)}/{name}" for name in shards]
        for at in range(0, len(keys), 1000):
            delete = DeleteObjects(self._bucket, keys[at : at + 1000])
            yield from ask_service(url, delete, "try again")

    def _list_shards(self, url: str) -> Steps[dict[str, int]]:
        """List the shards of a folder, with their sizes."""
        key = f"{self._get_key(url)}/"
        _, objects = yield from ask_service(url, ListObjects(self._bucket, key))
        sizes = {info.name[len(key) :]: info.size for info in objects}
        return {name: size for name, size in sizes.items() if _SHARD.fullmatch(name)}

    def lock(self, session: bytes) -> Steps[Claim]:
        return (yield from self._commits.claim(session.decode()))

    # -- reading -----------------------------------------------------------------------------------

    def index(self, entry: CheckpointEntry) -> Steps[CheckpointIndex]:
        """Read an index as `RepositorySteps.index` says; FormatError, too, if its beginning, which
        has no checksum of its own, was damaged when it was listed: `entry` has another path."""
        try:
            index = yield from super().index(entry)
            path = self.locate_shards(entry, index)
            if path != entry.path:
                raise FormatError(
                    f"{self.index_path(entry)} is of {path}, and was listed as of {entry.path}: it"
                    " was damaged on its way; list the checkpoints again"
                )
        except FormatError:
            self._commits.forget()
            raise
        return index

    def locate_shards(self, entry: CheckpointEntry, index: CheckpointIndex) -> str:
        return f"{self.path}/step-{index.step}.{index.attempt}"

    def read_index(self, entry: CheckpointEntry) -> Steps[bytes]:
        data = yield from self._commits.read(entry.sequence)
        url = self.index_path(entry)
        if data is None:
            raise build_service_error(ObjectRefused(errno.ENOENT, "404"), url)
        if is_claim(data):  # whose beginning was damaged on its way when it was listed
            raise MissingError(f"{url} is no checkpoint, but the claim of a job: list them again")
        return data

    def index_path(self, entry: CheckpointEntry) -> str:
        return self._commits.get_url(entry.sequence)

    def find_commit_time(self, entry: CheckpointEntry) -> Steps[float]:
        """Find the time of a commit, in seconds since 1970; 0 if it is not known."""
        _, commits = yield from self._commits.list_commits()
        return {commit.number: commit.written_s for commit in commits}.get(entry.sequence, 0.0)

    def _get_key(self, url: str) -> str:
        return self._key + url.removeprefix(f"{self.path}/")
