"""Conversion into an LMDB environment: written in DESTINATION.tmp commit by commit, then renamed.

The environment itself tells how far it got: as many samples as it has entries. The samples'
digests are in a file beside it, made durable before each commit. A conversion that was
interrupted and resumed gives the same entries on the same pages. Only bytes of unused pages may
differ, because liblmdb does not clear them.
"""

from __future__ import annotations

import contextlib
import errno
import os
from typing import Any

import numpy as np
import numpy.typing as npt

from .. import limits
from ..engine.atomic_file import storage_errors, sync_folder
from ..engine.storage_queue import PROCESS_QUEUE
from ..errors import StorageError, UsageError, import_library
from ..own_files import check_private_folder, open_own
from .encoding import StoredSample
from .manifest import (
    DATA,
    DIGESTS,
    LOCK,
    Conversion,
    Converted,
    lock_folder,
    mismatch_error,
    read_digests,
)

_PAGE = 4096
_DIGEST = np.dtype([("low", "<u8"), ("high", "<u8")])


class LmdbConversion(Conversion):
    """A conversion into one LMDB environment."""

    def run(self) -> Converted:
        """Write the samples that are missing."""
        self._lmdb = lmdb = import_library("lmdb", "lmdb", "writing LMDB")
        folder, data = f"{self.path}.tmp", os.path.join(self.path, DATA)
        if os.path.lexists(self.path):
            with lock_folder(self.path):
                if self.take_up(self.path):
                    return self.summarize((data,), 0)
        if os.path.islink(folder):
            raise UsageError(f"{folder} is a symbolic link: remove it, or convert to another place")
        with lock_folder(folder):
            check_private_folder(folder, "a conversion")
            if not self.take_up(folder):
                self.manifest.save(folder)
            before = self.count
            if not self.manifest.complete:
                try:
                    before = self._write(folder)
                except lmdb.Error as error:
                    raise self._storage_failure(error) from None
                self.write_labels(folder, self._compare(folder))
                size = os.path.getsize(os.path.join(folder, DATA))
                self.manifest.shards = [
                    {"name": DATA, "first": 0, "end": self.count, "bytes": size}
                ]
                self.manifest.complete = True  # only tidying up is left to do
                self.manifest.save(folder)
            self._rename(folder)
        return self.summarize((data,), self.count - before)

    # -- writing -------------------------------------------------------------------------------

    def _write(self, folder: str) -> int:
        """Write from the last commit on; return the number of samples that it held."""
        for name in (DATA, LOCK):  # by its library, which follows links
            os.close(self._open_own(folder, name))
        environment = self._lmdb.open(folder, map_size=self._compute_map_bytes(), max_dbs=0)
        try:
            start = int(environment.stat()["entries"])
            self.report(start)
            with storage_errors(folder), open(self._open_own(folder, DIGESTS), "ab") as digests:
                if os.fstat(digests.fileno()).st_size < 16 * start:
                    raise mismatch_error(folder, "the digests of what is committed are missing")
                digests.truncate(16 * start)
                done, pending, pending_bytes = start, list[StoredSample](), 0
                for batch in self.read_samples(start) if start < self.count else ():
                    for sample in batch:
                        # Copied, so that no sample keeps its batch alive.
                        parts = tuple((name, bytes(data)) for name, data in sample.parts)
                        pending.append(sample._replace(parts=parts))
                        pending_bytes += len(parts[0][1])
                        if (
                            pending_bytes >= limits.commit_bytes_max
                            or len(pending) >= limits.commit_samples_max
                        ):
                            self._commit(environment, digests, pending)
                            done += len(pending)
                            self.report(done)
                            pending, pending_bytes = [], 0
                self._commit(environment, digests, pending)
                self.report(done + len(pending))
            environment.sync(True)
            entries = int(environment.stat()["entries"])
            if entries != self.count:
                raise mismatch_error(folder, f"it has {entries:,} of {self.count:,} samples")
            return start
        finally:
            environment.close()

    def _open_own(self, folder: str, name: str) -> int:
        path = os.path.join(folder, name)
        with storage_errors(path):
            return open_own(path, os.O_RDWR | os.O_CREAT | os.O_APPEND)

    def _commit(self, environment: Any, digests: Any, pending: list[StoredSample]) -> None:
        if not pending:
            return
        digests.write(b"".join(sample.digest() for sample in pending))
        digests.flush()
        os.fsync(digests.fileno())  # before the samples: none may be committed without its digest
        size = sum(len(data) for sample in pending for _, data in sample.parts)
        while True:
            try:
                with (
                    PROCESS_QUEUE.put("write", "convert", size),
                    environment.begin(write=True) as transaction,
                ):
                    for sample in pending:
                        self._put(transaction, sample)
                return
            except self._lmdb.MapFullError:
                environment.set_mapsize(2 * environment.info()["map_size"])

    def _put(self, transaction: Any, sample: StoredSample) -> None:
        key = sample.key.encode("utf-8", "surrogateescape")
        # Keys that begin with numbers come in ascending order, and fill pages better so.
        append = self.options["keys"] != "names"
        if not transaction.put(key, sample.parts[0][1], overwrite=False, append=append):
            raise mismatch_error(self.path, f"the key {sample.key!r} occurs twice")

    def _compute_map_bytes(self) -> int:
        """Compute the size of the map: address space, not disk, enough for every sample whatever
        the pages waste."""
        index = self.source.index
        sample_bytes = _PAGE if index.mean_bytes > _PAGE // 4 else 256
        wanted = 2 * index.total_bytes + index.count * (2 * sample_bytes + 64) + 64 * limits.MIB
        return -(-wanted // _PAGE) * _PAGE

    def _storage_failure(self, error: Exception) -> StorageError:
        # A write that found room for a part only is an input/output error to liblmdb.
        status = os.statvfs(os.path.dirname(self.path))
        free = status.f_bavail * status.f_frsize
        full = isinstance(error, self._lmdb.DiskError) or free < limits.commit_bytes_max
        remedy = "make room there" if full else "check the folder and its file system"
        failed = StorageError(
            f"{self.path}.tmp cannot be written: {error} ({free:,} bytes are free): {remedy}, and "
            f"run it again: it goes on after the last commit"
        )
        failed.errno = errno.ENOSPC if full else errno.EIO
        return failed

    # -- verifying -----------------------------------------------------------------------------

    def _compare(self, folder: str) -> npt.NDArray[np.int64] | None:
        """Read everything back and compare. Returns the position of each entry, or None if the
        entries, which are in order of keys, are also in the order of writing."""
        written = np.fromfile(os.path.join(folder, DIGESTS), _DIGEST)
        digests = np.frombuffer(b"".join(read_digests(self.recipe, folder, self.count)), _DIGEST)
        positions = None
        if self.options["keys"] == "names":
            by_digest = np.argsort(written, order=_DIGEST.names)
            entries = np.argsort(digests, order=_DIGEST.names)
            positions = np.empty(self.count, np.int64)
            positions[entries] = by_digest
            written = written[positions]
        wrong = written != digests
        if wrong.any():
            os.unlink(os.path.join(folder, DATA))
            raise mismatch_error(folder, f"sample {int(np.argmax(wrong)):,} of it differs")
        return positions

    def _rename(self, folder: str) -> None:
        with storage_errors(self.path):
            for name in (DIGESTS, LOCK):
                with contextlib.suppress(FileNotFoundError):
                    os.unlink(os.path.join(folder, name))
            os.rename(folder, self.path)
        sync_folder(os.path.dirname(self.path))
