"""A repository below a prefix of an object store.

    <prefix>/00000007.index               a checkpoint, or the claim of a job that writes there
    <prefix>/step-<N>.<attempt>/          its shards, or the shards of a save under way
        rank-<r>.shard

Shards have names that are used once. An object exists whole or not at all, and it survives once it
exists. So the index is the commit, in one request: it names the shards' folder.

Each numbered object is written once. A job that starts claims the next number. From then on it
knows which number is next, because nobody else writes there: it writes the next object on the
condition that it does not exist, and so on. If another job has started meanwhile, its claim has
taken the number, and the job before can commit nothing any more. This needs no clock, no lock, and
no action of a job that dies. So a job that has claimed a number may delete the leftovers of earlier
jobs: they cannot commit them after that. Services that do not support the condition are detected
when a job starts. With such a service, the last object written is read again before each commit.

A service may perform a request late, though it gave no answer: then the index of a checkpoint that
was deleted comes back, and its shards do not. Such an index counts as deleted.
"""

from __future__ import annotations

import contextlib
import errno
import re
from functools import partial
from typing import NamedTuple

from .. import limits
from ..engine.object_client import ObjectInfo, ObjectRefused
from ..engine.object_store import open_bucket, parse_object_url
from ..errors import FormatError, MissingError, PenstockError, StorageError, UsageError
from .manifest import CheckpointIndex, ShardEntry, seal, unseal
from .repository import CheckpointEntry, Repository, WriteLock, describe_writer
from .retention import KEEP_MIN
from .shards import Flush, ShardContent
from .storage import AGAIN, ObjectStorage, ask_service, build_service_error

_ATTEMPT = re.compile(r"step-\d+\.[0-9a-z]+")
_SHARD = re.compile(r"rank-\d+\.shard")
_NUMBERED = re.compile(r"(\d{8,})\.index")
_HEAD = re.compile(
    rb'penstock checkpoint \d+ \d+ [0-9a-f]{8}\n{"step":(\d+),"attempt":"([0-9a-z]+)"'
)
_HEAD_BYTES = 256
_CLAIM = b"penstock claim "


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
            raise UsageError(f"{where.url} is only read from: use s3://, gs:// or az://")
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
                what = f"{self.index_path(entry)} is of {path}, not {entry.path}"
                raise FormatError(f"{what}: it was damaged on its way; list the checkpoints again")
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
        self, attempt_path: str, name: str, content: ShardContent, flush: Flush
    ) -> ShardEntry:
        url = f"{attempt_path}/{name}"
        upload = partial(self._objects.upload_shard, self._get_key(url), url, content, flush)
        return ask_service(url, upload, AGAIN)

    def commit(self, attempt_path: str, index: CheckpointIndex, lock: WriteLock) -> CheckpointEntry:
        """Commit as `Repository.commit` says. StorageError if the service did not answer: the index
        may exist then, and counts, unless another is committed first."""
        assert isinstance(lock, Claim)
        sizes = self._list_shards(attempt_path)
        for shard in index.shards:
            if sizes.get(shard.file) != shard.bytes:
                size = f"{shard.file} has {sizes.get(shard.file, 0):,} of {shard.bytes:,} bytes"
                remedy = f"do all ranks write to one service? {AGAIN}"
                raise StorageError(f"{attempt_path}: {size}: {remedy}")
        self._maybe_committed.add(attempt_path)
        try:
            number = lock.append(index.encoded)
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


# -- numbered objects, and the right to write them ------------------------------------------------


class NumberedObject(NamedTuple):
    """A numbered object. attempt: "" for a claim; None if the head of the object is damaged."""

    number: int
    step: int
    attempt: str | None
    written_s: float


class NumberedObjects:
    """The numbered objects below a key. The key ends with a slash, or is empty. url: the key in
    messages."""

    def __init__(self, storage: ObjectStorage, key: str, url: str) -> None:
        self.storage, self._key, self.url = storage, key, url
        self._known: dict[ObjectInfo, NumberedObject] = {}

    def get_url(self, number: int) -> str:
        """Return the URL of a numbered object."""
        return f"{self.url}/{number:08}.index"

    def _get_key(self, number: int) -> str:
        return f"{self._key}{number:08}.index"

    def list_all(self) -> tuple[list[str], list[NumberedObject]]:
        """Return the names of the folders beside the numbered objects, and the objects in order.
        Only the head of each object is read, once; again if it is damaged, perhaps on its way."""
        folders, objects = ask_service(self.url, lambda: self.storage.list_objects(self._key))
        numbered = sorted(
            (int(match[1]), info)
            for info in objects
            if (match := _NUMBERED.fullmatch(info.name[len(self._key) :]))
        )
        new = [pair for pair in numbered if pair[1] not in self._known]
        keys = [self._get_key(number) for number, _ in new]
        heads: list[bytes | None] = []
        if keys:
            heads = ask_service(self.url, lambda: self.storage.fetch_objects(keys, _HEAD_BYTES))
        known: dict[ObjectInfo, NumberedObject | None] = dict(self._known)
        for (number, info), head in zip(new, heads, strict=True):
            known[info] = None
            if head is not None:
                step, attempt = -1, "" if is_claim(head) else None
                if parsed := _HEAD.match(head):
                    step, attempt = int(parsed[1]), parsed[2].decode()
                known[info] = NumberedObject(number, step, attempt, info.written_s)
        listed = {info: commit for _, info in numbered if (commit := known[info])}
        self._known = {info: one for info, one in listed.items() if one.attempt is not None}
        return sorted(folders), [*listed.values()]

    def forget(self) -> None:
        """Forget the heads that were read: one was damaged on its way."""
        self._known = {}

    def find_last_number(self) -> int:
        """Return the highest number; 0 if there is no numbered object."""
        _, objects = self.list_all()
        return max((numbered.number for numbered in objects), default=0)

    def read(self, number: int) -> bytes | None:
        """Read a numbered object; None if it does not exist."""
        keys = [self._get_key(number)]
        url = self.get_url(number)
        return ask_service(url, lambda: self.storage.fetch_objects(keys, 1 << 62))[0]

    def read_whole(self, number: int) -> bytes | None:
        """Read a numbered object; StorageError if it is damaged, perhaps on its way, because then
        its writer is unknown."""
        data = self.read(number)
        if data is not None:
            url = self.get_url(number)
            try:
                unseal("claim" if is_claim(data) else "checkpoint", data, url)
            except FormatError as error:
                raise StorageError(f"{error!s}, and {AGAIN}") from None
        return data

    def write(self, number: int, data: bytes, *, new: bool = True) -> bool:
        """Write a numbered object. Returns False if it holds other data.

        new:  True if it must not exist.
        """
        # A request whose answer was lost may have written it.
        return self.put(number, data, new) or self.read_whole(number) == data

    def put(self, number: int, data: bytes, new: bool) -> bool:
        """Put a numbered object; False if it must be new and is not."""
        try:
            self.storage.put_object(self._get_key(number), data, new)
        except ObjectRefused as error:
            if error.code != errno.EEXIST:
                raise build_service_error(error, self.get_url(number), AGAIN) from None
            return False
        return True

    def delete(self, number: int) -> None:
        """Delete a numbered object if it exists."""
        keys = [self._get_key(number)]
        url = self.get_url(number)
        ask_service(url, lambda: self.storage.delete_objects(keys), "try again")

    def delete_old_claims(self) -> None:
        """Delete old claims. Enough stay that a job which was suspended finds its number taken; an
        object that it wrote after more claims than these would be an older checkpoint, and
        damaged."""
        _, objects = self.list_all()
        claims = [numbered.number for numbered in objects if numbered.attempt == ""]
        for number in claims[: -limits.checkpoint_claims]:
            self.delete(number)


def is_claim(data: bytes) -> bool:
    """Return True for the claim of a job, or its head."""
    return data.startswith(_CLAIM)


class Claim:
    """The right of the job with the last claim to write below a prefix."""

    def __init__(
        self, objects: NumberedObjects, number: int, data: bytes, is_conditional: bool
    ) -> None:
        self._objects, self._is_conditional = objects, is_conditional
        self._number, self._data = number, data  # what was written last
        self._unsure: list[bytes] = []
        """Data that may still become the next object: requests without an answer may be late."""

    @classmethod
    def take(cls, objects: NumberedObjects, session: str) -> Claim:
        """Become the job that writes here: the job before can commit nothing any more."""
        data = seal("claim", {"session": session})
        while True:
            number = objects.find_last_number() + 1
            try:
                if not objects.write(number, data):
                    continue  # another job has just taken it
                # Some services overwrite it.
                is_conditional = not objects.put(number, data, new=True)
            except StorageError as error:
                if error.errno != errno.ENOTSUP:
                    raise
                is_conditional = False
                objects.write(number, data, new=False)
            if not is_conditional:
                what = f"{objects.url}: the service does not support If-None-Match"
                remedy = "two jobs might commit at once: let one job at a time write there"
                objects.storage.warn(f"{what}, so {remedy}")
            return cls(objects, number, data, is_conditional)

    def check(self) -> None:
        """Raise UsageError if another job has taken over."""
        last = self._objects.find_last_number()
        if last == self._number + 1 and (data := self._find_ours(last)) is not None:
            self._number, self._data, self._unsure = last, data, []
        elif last != self._number or not (
            self._is_conditional or self._objects.read(last) == self._data
        ):
            raise self._build_lost_error(last)

    def append(self, data: bytes) -> int:
        """Write the next numbered object and return its number. UsageError if another job has taken
        over.

        StorageError if it is not known whether the object was written: the next call finds out.
        """
        while True:
            self.check()
            if data == self._data:
                return self._number  # an earlier call has written it, and got no answer
            number = self._number + 1
            try:
                is_taken = not self._objects.write(number, data, new=self._is_conditional)
            except StorageError:
                self._unsure.append(data)
                raise
            if not is_taken:
                self._number, self._data, self._unsure = number, data, []
                return number
            if self._find_ours(number) is None:
                raise self._build_lost_error(number)

    def _find_ours(self, number: int) -> bytes | None:
        """Return the data of an object if earlier calls may have written it."""
        data = self._objects.read_whole(number) if self._unsure else None
        return data if data in self._unsure else None

    def _build_lost_error(self, number: int) -> UsageError:
        data = self._objects.read(number)
        if number < self._number or data is None:
            how = f"the last object of this job, {self._number:08}.index, was removed"
        else:
            try:
                claim = unseal("claim", data, "")
                holder = str(dict(claim)["session"]).strip()
            except (FormatError, LookupError, TypeError, ValueError):
                holder = "it has committed a checkpoint since"
            how = f"another job has taken it over ({holder})"
        what = f"{self._objects.url}: {how}: nothing was committed"
        return UsageError(f"{what}; let one job write to it")

    def close(self) -> None:
        """Do nothing: the next job claims the prefix, as it does after a job that was killed."""
