"""A repository below a prefix of an object store: its objects, and how shards are written there.

    <prefix>/00000007.index               a checkpoint: the seventh number; see `commits`
    <prefix>/step-<N>.<attempt>/          its shards, or those of a save under way
        rank-<r>.shard

Shards have names that are used once. An object exists whole or not at all, and it survives once it
exists. So the index, which names the shards' folder, is the commit, in one request.
"""

from __future__ import annotations

import contextlib
import errno
import os
import re
from collections.abc import Iterable, Iterator, Sequence

from .. import limits
from ..engine import ObjectRefused, open_bucket, parse_object_url, require_whole, storage_errors
from ..errors import FormatError, PenstockError, StorageError, UsageError
from . import repository
from .array_leaves import Memory
from .commits import Claim, Commits, ask_service, build_service_error
from .fault_points import mark_done, mark_point
from .flushing import Flush, ShardSource
from .folder_repository import translate_read_errors
from .manifest import (
    CheckpointIndex,
    Piece,
    ShardEntry,
    decode_index,
    encode_index,
    encode_manifest,
)
from .repository import AGAIN, CheckpointEntry, Repository, describe_writer

_ATTEMPT = re.compile(r"step-\d+\.[0-9a-z]+")
_SHARD = re.compile(r"rank-\d+\.shard")


class Prefix(Repository):
    """Committed checkpoints below a URL: s3://bucket/prefix, gs:// or az://."""

    readers = limits.checkpoint_requests
    takes_over = True

    def __init__(self, url: str) -> None:
        where = parse_object_url(url.rstrip("/"))
        self.path = where.url
        if where.bucket.startswith("hf://"):
            raise UsageError(
                f"{self.path}: the hub is only read from: use s3://, gs://, az:// or a folder"
            )
        self._bucket = open_bucket(where.bucket)
        if not self._bucket.listable:
            raise UsageError(
                f"{self.path}: web servers are only read from: use s3://, gs://, az:// or a folder"
            )
        self._key = f"{where.key}/" if where.key else ""
        self._commits = Commits(self._bucket, self._key, self.path)
        self._maybe_committed: set[str] = set()
        """Attempts that may be committed, whatever the service answered."""

    def entries(self) -> list[CheckpointEntry]:
        """List the checkpoints as `Repository.entries` says. Only the beginning of each index is
        read, and only once. If that is damaged, the step is -1; `index` raises the error that says
        more."""
        return self._list_all()[1]

    def _list_all(self) -> tuple[list[str], list[CheckpointEntry]]:
        """List the folders of shards, and the committed checkpoints."""
        folders, commits = self._commits.list_commits()
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
        return [folder for folder in folders if _ATTEMPT.fullmatch(folder)], entries

    # -- committing --------------------------------------------------------------------------------

    def begin(self, step: int, attempt: str) -> str:
        return f"{self.path}/step-{step}.{attempt}"

    def write(
        self, attempt_path: str, name: str, memory: Memory, pieces: Sequence[Piece], flush: Flush
    ) -> ShardEntry:
        end, crc = encode_manifest(pieces, len(memory))
        size = len(memory) + len(end)

        def read_turns() -> Iterator[memoryview]:
            for at, stop in flush.take_turns(len(memory)):
                yield memory[at:stop].data
            yield memoryview(end)

        self._upload(f"{attempt_path}/{name}", read_turns(), size)
        return ShardEntry(name, size, crc)

    def put(self, attempt_path: str, name: str, file: str, flush: Flush) -> None:
        with translate_read_errors(file), open(file, "rb", buffering=0) as source:
            size = os.fstat(source.fileno()).st_size

            def read_turns() -> Iterator[bytes]:
                for start, stop in flush.take_turns(size):
                    at = start
                    while at < stop:
                        part = os.pread(source.fileno(), stop - at, at)
                        if not part:
                            raise StorageError(f"{file} became shorter while it was copied")
                        yield part
                        at += len(part)

            self._upload(f"{attempt_path}/{name}", read_turns(), size)

    def _upload(self, url: str, data: Iterable[bytes | memoryview], size: int) -> None:
        key = self._get_key(url)
        with storage_errors(url, AGAIN):
            mark_point(f"put {url}")
            if size <= limits.object_part_bytes:
                whole_data = b"".join(data)
                ask_service(url, lambda: self._bucket.put(key, whole_data), AGAIN)
            else:
                try:
                    self._bucket.upload(key, data, size)
                except ObjectRefused as error:
                    if not self._is_there(key, size):
                        raise build_service_error(error, url, AGAIN) from None
            mark_done(f"uploaded {url}")

    def _is_there(self, key: str, size: int) -> bool:
        """True if an upload was finished by a request whose answer was lost. Nobody else uses its
        name."""
        try:
            return self._bucket.head(key).size == size
        except ObjectRefused:
            return False

    def commit(
        self, attempt_path: str, index: CheckpointIndex, lock: repository.RepositoryLock
    ) -> CheckpointEntry:
        """Commit as `Repository.commit` says. StorageError if the service did not answer: the index
        may exist then, and counts, unless another is committed first."""
        assert isinstance(lock, Claim)
        sizes = self._list_shards(attempt_path)
        for shard in index.shards:
            if sizes.get(shard.file) != shard.bytes:
                raise StorageError(
                    f"{attempt_path}: {shard.file} has {sizes.get(shard.file, 0):,} bytes, but"
                    f" {shard.bytes:,} were written: do all ranks write to one service? Save"
                    " again: nothing was committed"
                )
        self._maybe_committed.add(attempt_path)
        try:
            number = lock.append(encode_index(index))
        except UsageError:
            self._maybe_committed.discard(attempt_path)
            raise
        mark_done(f"committed {attempt_path}")
        return CheckpointEntry(number, index.step, attempt_path)

    def abandon(self, attempt_path: str) -> None:
        if attempt_path in self._maybe_committed:
            return
        mark_point(f"abandon {attempt_path}")
        with contextlib.suppress(PenstockError):
            self._clear(attempt_path)

    # -- removing ----------------------------------------------------------------------------------

    def remove(self, entry: CheckpointEntry) -> None:
        self._commits.remove(entry.sequence)
        self._maybe_committed.discard(entry.path)
        if entry.step >= 0:
            with contextlib.suppress(PenstockError):  # `leftovers` lists what is left of it
                self._clear(entry.path)
        mark_done(f"removed {entry.path}")

    def leftovers(self) -> list[str]:
        """List leftovers as `Repository.leftovers` says; none if an index is damaged, because it
        might have named them."""
        folders, entries = self._list_all()
        named = {entry.path for entry in entries}
        if any(entry.step < 0 for entry in entries):
            return []
        return [url for folder in folders if (url := f"{self.path}/{folder}") not in named]

    def collect(self, lock: repository.RepositoryLock) -> None:
        with contextlib.suppress(PenstockError):
            left = self.leftovers()
            lock.check()  # no other job had begun when these were listed: none of them is its own
            for url in left:
                mark_point(f"collect {url}")
                self._clear(url)
            self._commits.thin()

    def _clear(self, url: str) -> None:
        keys = [f"{self._get_key(url)}/{name}" for name in self._list_shards(url)]
        for at in range(0, len(keys), 1000):
            part = keys[at : at + 1000]
            ask_service(url, lambda part=part: self._bucket.delete(part), "try again")  # type: ignore[misc]

    def _list_shards(self, url: str) -> dict[str, int]:
        """List the shards of a folder, with their sizes."""
        key = f"{self._get_key(url)}/"
        objects = ask_service(url, lambda: self._bucket.level(key)[1])
        sizes = {info.name[len(key) :]: info.size for info in objects}
        return {name: size for name, size in sizes.items() if _SHARD.fullmatch(name)}

    def lock(self, session: str = "") -> Claim:
        return self._commits.claim(describe_writer(session))

    # -- reading -----------------------------------------------------------------------------------

    def index(self, entry: CheckpointEntry) -> CheckpointIndex:
        url = self.index_path(entry)
        data = self._commits.read(entry.sequence)
        if data is None:
            raise build_service_error(ObjectRefused(errno.ENOENT, "404"), url)
        index = decode_index(data, url)
        if index.step != entry.step:
            raise FormatError(f"{url} was of step {entry.step}, and is of step {index.step} now")
        return index

    def index_path(self, entry: CheckpointEntry) -> str:
        return self._commits.get_url(entry.sequence)

    def committed_s(self, entry: CheckpointEntry) -> float:
        written_s = {commit.number: commit.written_s for commit in self._commits.list_commits()[1]}
        return written_s.get(entry.sequence, 0.0)

    @contextlib.contextmanager
    def open_shard(self, path: str) -> Iterator[ShardSource]:
        yield _Object(self, path)

    def _get_key(self, url: str) -> str:
        return self._key + url.removeprefix(f"{self.path}/")


class _Object:
    """A shard in an object, open to be read."""

    def __init__(self, prefix: Prefix, url: str) -> None:
        self._bucket, self._url, self._key = prefix._bucket, url, prefix._get_key(url)

    @property
    def bytes(self) -> int:
        return ask_service(self._url, lambda: self._bucket.head(self._key).size)

    def read(self, into: Memory, at: int) -> int:
        stop = at + len(into)

        def ask() -> int:
            try:
                data = require_whole(self._bucket.fetch(self._key, at, stop), at, stop).data
            except ObjectRefused as error:
                if error.code == errno.ERANGE:
                    return 0
                raise
            into[: len(data)].data[:] = data
            return len(data)

        return ask_service(self._url, ask) if len(into) else 0
