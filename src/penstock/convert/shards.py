"""Conversion into shards: files that are written, verified and named one after the other."""

from __future__ import annotations

import itertools
import os
from typing import Any

from .. import limits
from ..engine.atomic_file import AtomicFile
from ..errors import LimitError, UsageError
from .encoding import StoredSample
from .manifest import LABELS, REPORTED_EVERY, Conversion, Converted, lock_folder, mismatch_error


class ShardsConversion(Conversion):
    """A conversion into NAME-000000.suffix and so on, below the destination."""

    def run(self) -> Converted:
        """Write the shards that are missing."""
        with lock_folder(self.path):
            if self.take_up(self.path):
                self._check_finished()
            else:
                self.manifest.save(self.path)
            before = self.manifest.samples
            self.report(before)
            if not self.manifest.complete:
                self._write(before)
                self._check_all()
                self.write_labels(self.path)
                self.report(self.count)
                self.manifest.complete = True
                self.manifest.save(self.path)
        return self._summarize(before)

    # -- writing -------------------------------------------------------------------------------

    def _write(self, start: int) -> None:
        if start == self.count:
            return
        samples = itertools.chain.from_iterable(self.read_samples(start))
        first = next(samples, None)
        while first is not None:
            first = self._write_shard(first, samples)

    def _write_shard(self, first: StoredSample, samples: Any) -> StoredSample | None:
        """Write one shard, from its first sample on; return the first sample of the next one."""
        number, start = len(self.manifest.shards), self.manifest.samples
        if number >= limits.shards_max:
            raise LimitError(
                f"limits.shards_max, {limits.shards_max:,}, is reached after {start:,} samples: "
                f"start over (--force) with a larger shard_bytes"
            )
        path = self._get_path(number)
        most, ends_at = self.options["shard_bytes"], self._compute_end(number)
        digests = bytearray()
        held: StoredSample | None = first
        done = start
        with AtomicFile(path) as part:
            while held is not None and done < ends_at:
                pieces = self.recipe.encode_sample(held)
                size = part.size + sum(map(len, pieces))
                if most and done > start and size + len(self.recipe.encode_end(size)) > most:
                    break
                part.write(*pieces)
                digests += held.digest()
                done += 1
                if not done % REPORTED_EVERY:
                    self.report(done)
                held = next(samples, None)
            part.write(self.recipe.encode_end(part.size))
            part.sync()
            self._compare(part.temporary, digests)
            part.commit()
        name = os.path.basename(path)
        self.manifest.shards.append(
            {"name": name, "first": start, "end": done, "bytes": part.size, "crc32": part.crc32}
        )
        self.manifest.save(self.path)
        return held

    def _get_path(self, number: int) -> str:
        return os.path.join(self.path, f"{self.options['name']}-{number:06d}{self.recipe.suffix}")

    def _compute_end(self, number: int) -> int:
        """Return the last possible end of a shard."""
        shards = self.options["shards"]
        return self.count if shards is None else (number + 1) * self.count // int(shards)

    # -- verifying -----------------------------------------------------------------------------

    def _compare(self, path: str, digests: bytearray) -> None:
        for at, digest in enumerate(self.read_back(path, len(digests) // 16)):
            if digest != digests[16 * at : 16 * at + 16]:
                raise mismatch_error(path, f"sample {at:,} of it differs")

    def _check_finished(self) -> None:
        """Raise UsageError unless the finished shards are still there, with their sizes."""
        for shard in self.manifest.shards:
            path = os.path.join(self.path, shard["name"])
            size = os.path.getsize(path) if os.path.isfile(path) else None
            if size != shard["bytes"]:
                now = "is gone" if size is None else f"has {size:,} bytes, not {shard['bytes']:,}"
                raise UsageError(f"{path} {now}: put it back, or start over with force=True")

    def _check_all(self) -> None:
        """Raise StorageError unless the shards together hold all samples."""
        if self.manifest.samples != self.count:
            raise mismatch_error(self.path, f"{self.manifest.samples:,} of {self.count:,} samples")
        self._check_finished()
        count = len(self.open_written(list(self._list_files())))
        if count != self.count:
            raise mismatch_error(self.path, f"it has {count:,} of {self.count:,} samples")

    def _list_files(self) -> tuple[str, ...]:
        return tuple(os.path.join(self.path, shard["name"]) for shard in self.manifest.shards)

    def _summarize(self, before: int) -> Converted:
        labels = os.path.join(self.path, LABELS)
        return Converted(
            self.path,
            self._list_files(),
            self.count,
            sum(int(shard["bytes"]) for shard in self.manifest.shards),
            dict(self.recipe.user_options),
            labels if self.recipe.has_label_file else None,
            self.count - before,
        )
