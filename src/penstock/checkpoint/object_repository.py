"""A prefix of an object store, with checkpoints: what is committed, and how one gets there.

    <prefix>/00000007.index               a checkpoint: the seventh number; see `commits`
    <prefix>/step-<N>.<attempt>/          its shards, or those of one on its way
        rank-<r>.shard

Shards have names that are used once. An object is there whole or not at all, and then to stay; so
the index, which names the shards' folder, is the commit, in one request.
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
from .commits import Claim, Commits, asked, failed
from .fault_points import reached
from .flushing import Flush, ShardSource
from .folder import reading
from .manifest import CheckpointIndex, Piece, Shard, ending, index_bytes, index_of
from .repository import AGAIN, CheckpointEntry, Repository

_ATTEMPT = re.compile(r"step-\d+\.[0-9a-z]+")
_SHARD = re.compile(r"rank-\d+\.shard")


class Prefix(Repository):
    """Committed checkpoints below a URL: s3://bucket/prefix, gs:// or az://."""

    readers = limits.checkpoint_requests
    takes_over = True

    def __init__(self, url: str) -> None:
        where = parse_object_url(url.rstrip("/"))
        self.path = where.url
        self._bucket = open_bucket(where.bucket)
        if not self._bucket.listable:
            raise UsageError(
                f"{self.path}: web servers are only read from: use s3://, gs://, az:// or a folder"
            )
        self._key = f"{where.key}/" if where.key else ""
        self._commits = Commits(self._bucket, self._key, self.path)
        self._kept: set[str] = set()  # what may be committed, whatever this process has heard

    def entries(self) -> list[CheckpointEntry]:
        """Of each index only the beginning is read, and that once. Where that is damaged, the step
        is -1; `index` says the rest."""
        return self._listed()[1]

    def _listed(self) -> tuple[list[str], list[CheckpointEntry]]:
        """Folders of shards, and what is committed."""
        folders, commits = self._commits.level()
        entries = [
            CheckpointEntry(
                each.number,
                each.step,
                self._commits.name(each.number)
                if each.attempt is None
                else f"{self.path}/step-{each.step}.{each.attempt}",
            )
            for each in commits
            if each.attempt != ""
        ]
        return [each for each in folders if _ATTEMPT.fullmatch(each)], entries

    # -- committing --------------------------------------------------------------------------------

    def begin(self, step: int, attempt: str) -> str:
        return f"{self.path}/step-{step}.{attempt}"

    def write(
        self, begun: str, name: str, memory: Memory, pieces: Sequence[Piece], flush: Flush
    ) -> Shard:
        end, crc = ending(pieces, len(memory))
        size = len(memory) + len(end)

        def turns() -> Iterator[memoryview]:
            at = 0
            while at < len(memory):
                stop = at + flush.turn(len(memory) - at)
                yield memory[at:stop].data
                at = stop
            yield memoryview(end)

        self._upload(f"{begun}/{name}", turns(), size)
        return Shard(name, size, crc)

    def put(self, begun: str, name: str, file: str, flush: Flush) -> None:
        with reading(file), open(file, "rb", buffering=0) as source:
            size = os.fstat(source.fileno()).st_size

            def turns() -> Iterator[bytes]:
                at = 0
                while at < size:
                    stop = at + flush.turn(size - at)
                    while at < stop:
                        part = os.pread(source.fileno(), stop - at, at)
                        if not part:
                            raise StorageError(f"{file} became shorter while it was copied")
                        yield part
                        at += len(part)

            self._upload(f"{begun}/{name}", turns(), size)

    def _upload(self, url: str, data: Iterable[bytes | memoryview], size: int) -> None:
        with storage_errors(url, AGAIN):
            self._sent(url, self._key_of(url), data, size)

    def _sent(self, url: str, key: str, data: Iterable[bytes | memoryview], size: int) -> None:
        reached(f"put {url}")
        if size <= limits.object_part_bytes:
            whole_data = b"".join(data)
            asked(url, lambda: self._bucket.put(key, whole_data), AGAIN)
        else:
            try:
                self._bucket.upload(key, data, size)
            except ObjectRefused as error:
                if not self._is_there(key, size):
                    raise failed(error, url, AGAIN) from None
        reached(f"was put {url}")

    def _is_there(self, key: str, size: int) -> bool:
        """Whether an upload was finished by a request whose answer was lost. Nobody else uses its
        name."""
        try:
            return self._bucket.head(key).size == size
        except ObjectRefused:
            return False

    def commit(
        self, begun: str, index: CheckpointIndex, lock: repository.RepositoryLock
    ) -> CheckpointEntry:
        """StorageError where the service did not answer: the index may be there then, and counts,
        unless another is committed first."""
        assert isinstance(lock, Claim)
        sizes = self._shards(begun)
        for shard in index.shards:
            if sizes.get(shard.file) != shard.bytes:
                raise StorageError(
                    f"{begun}: {shard.file} has {sizes.get(shard.file, 0):,} bytes, and"
                    f" {shard.bytes:,} were written: do all ranks write to one service? Save"
                    " again: nothing was committed"
                )
        self._kept.add(begun)
        try:
            number = lock.append(index_bytes(index))
        except UsageError:
            self._kept.discard(begun)
            raise
        reached(f"committed {begun}")
        return CheckpointEntry(number, index.step, begun)

    def abandon(self, begun: str) -> None:
        if begun in self._kept:
            return
        reached(f"abandon {begun}")
        with contextlib.suppress(PenstockError):
            self._clear(begun)

    # -- removing ----------------------------------------------------------------------------------

    def remove(self, entry: CheckpointEntry) -> None:
        self._commits.remove(entry.sequence)
        self._kept.discard(entry.path)
        if entry.step >= 0:
            with contextlib.suppress(PenstockError):  # no checkpoint any more, and told by list
                self._clear(entry.path)
        reached(f"removed {entry.path}")

    def leftovers(self) -> list[str]:
        """None where an index is damaged: it might have named them."""
        folders, entries = self._listed()
        named = {entry.path for entry in entries}
        if any(entry.step < 0 for entry in entries):
            return []
        return [url for each in folders if (url := f"{self.path}/{each}") not in named]

    def collect(self) -> list[str]:
        gone = []
        with contextlib.suppress(PenstockError):
            for url in self.leftovers():
                reached(f"collect {url}")
                self._clear(url)
                gone.append(url)
            self._commits.thin()
        return gone

    def _clear(self, url: str) -> None:
        keys = [f"{self._key_of(url)}/{name}" for name in self._shards(url)]
        for at in range(0, len(keys), 1000):
            part = keys[at : at + 1000]
            asked(url, lambda part=part: self._bucket.delete(part), "try again")  # type: ignore[misc]

    def _shards(self, url: str) -> dict[str, int]:
        """The shards of a folder, with their sizes."""
        key = f"{self._key_of(url)}/"
        found = asked(url, lambda: self._bucket.level(key)[1])
        sizes = {each.name[len(key) :]: each.size for each in found}
        return {name: size for name, size in sizes.items() if _SHARD.fullmatch(name)}

    def lock(self, session: str) -> Claim:
        return self._commits.claim(session)

    # -- reading -----------------------------------------------------------------------------------

    def index(self, entry: CheckpointEntry) -> CheckpointIndex:
        url = self.index_path(entry)
        data = self._commits.read(entry.sequence)
        if data is None:
            raise failed(ObjectRefused(errno.ENOENT, "404"), url)
        index = index_of(data, url)
        if index.step != entry.step:
            raise FormatError(f"{url} was of step {entry.step}, and is of step {index.step} now")
        return index

    def index_path(self, entry: CheckpointEntry) -> str:
        return self._commits.name(entry.sequence)

    def committed_s(self, entry: CheckpointEntry) -> float:
        found = {each.number: each.written_s for each in self._commits.level()[1]}
        return found.get(entry.sequence, 0.0)

    @contextlib.contextmanager
    def opened(self, path: str) -> Iterator[ShardSource]:
        yield _Object(self, path)

    def _key_of(self, url: str) -> str:
        return self._key + url.removeprefix(f"{self.path}/")


class _Object:
    """A shard in an object."""

    def __init__(self, prefix: Prefix, url: str) -> None:
        self._bucket, self._url, self._key = prefix._bucket, url, prefix._key_of(url)

    @property
    def bytes(self) -> int:
        return asked(self._url, lambda: self._bucket.head(self._key).size)

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

        return asked(self._url, ask) if len(into) else 0
