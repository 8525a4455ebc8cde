"""A repository below a prefix of an object store: `prefix_steps` is its protocol."""

from __future__ import annotations

import contextlib
import errno
from collections.abc import Iterator

from .. import limits
from ..engine import (
    Bucket,
    ObjectRefused,
    open_bucket,
    parse_object_url,
    require_whole,
    retry_until,
)
from ..errors import UsageError
from .commits import build_service_error
from .flushing import ShardSource
from .manifest import Memory
from .perform import perform
from .prefix_steps import PrefixSteps
from .repository import Repository
from .repository_steps import CheckpointEntry


class Prefix(Repository):
    """Committed checkpoints below a URL: s3://bucket/prefix, gs:// or az://."""

    readers = limits.checkpoint_requests
    takes_over = True

    def __init__(self, url: str) -> None:
        where = parse_object_url(url.rstrip("/"))
        if where.bucket.startswith("hf://"):
            raise UsageError(
                f"{where.url}: the hub is only read from: use s3://, gs://, az:// or a folder"
            )
        self._bucket = open_bucket(where.bucket)
        if not self._bucket.listable:
            raise UsageError(
                f"{where.url}: web servers are only read from: use s3://, gs://, az:// or a folder"
            )
        self._key = f"{where.key}/" if where.key else ""
        self._prefix = PrefixSteps(where.url, self._bucket, self._key)
        super().__init__(self._prefix)

    def committed_s(self, entry: CheckpointEntry) -> float:
        return perform(self._prefix.find_commit_time(entry))

    @contextlib.contextmanager
    def open_shard(self, path: str) -> Iterator[ShardSource]:
        yield _Object(self._bucket, path, self._key + path.removeprefix(f"{self.path}/"))


class _Object:
    """A shard in an object, open to be read."""

    def __init__(self, bucket: Bucket, url: str, key: str) -> None:
        self._bucket, self._url, self._key = bucket, url, key

    @property
    def bytes(self) -> int:
        try:
            return retry_until(lambda: self._bucket.head(self._key).size, limits.object_deadline_s)
        except ObjectRefused as error:
            raise build_service_error(error, self._url) from None

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

        try:
            return retry_until(ask, limits.object_deadline_s) if len(into) else 0
        except ObjectRefused as error:
            raise build_service_error(error, self._url) from None
