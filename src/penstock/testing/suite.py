"""The base of the conformance suites, and the oracle of reads: what must be in the buffers when a
ticket is reported.

A `EngineRead` lays requests out over buffers full of random bytes, and knows from the contents of
the files which bytes must be where afterwards, and which extents must fail how.
"""

from __future__ import annotations

import errno
import os
import time
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import ClassVar

import numpy as np

from ..engine.protocol import Buffer, Completion, Engine, Failure
from ..extent import Files, Requests


class Suite:
    """Base of the tests of a protocol.

    A direct subclass holds the tests and names its `subject`. Classes below it create the subject,
    and do nothing else. Overriding a test is a defect: the protocol means the same for all, or
    means nothing.
    """

    subject: ClassVar[str]

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        for suite in cls.__mro__[1:]:
            if Suite not in suite.__bases__:
                continue
            for name in dir(suite):
                if name.startswith("test_") and getattr(cls, name) is not getattr(suite, name):
                    raise TypeError(
                        f"{cls.__name__}.{name} overrides a test of {suite.__name__}: mend the"
                        f" {cls.subject}"
                    )


Contents = Sequence[bytes | None]
"""Content of each file; None is a file that vanished after it was indexed."""

Extent = tuple[int, int, int]
"""(file, offset, length)."""

vanished_bytes = 1 << 16
"""Size that `write_files` claims for a file that does not exist."""

second_ns = 1_000_000_000
deadline_s = 60


def write_files(folder: Path, contents: Contents) -> Files:
    """Write each content to a file of its own below `folder`, and return the table of the files.

    None is not written, but is in the table as a file of `vanished_bytes`.
    """
    names = [f"part {number % 3}/{number}-ü.bin" for number in range(len(contents))]
    stats = []
    for name, content in zip(names, contents, strict=True):
        path = folder / name
        path.parent.mkdir(exist_ok=True)
        if content is None:
            stats.append((vanished_bytes, 0))
            continue
        path.write_bytes(content)
        status = os.stat(path)
        stats.append((status.st_size, status.st_mtime_ns))
    size, mtime_ns = np.array(stats, np.int64).reshape(-1, 2).T.copy()
    return Files.of(str(folder), names, size, mtime_ns)


def random_bytes(size: int, seed: int) -> bytes:
    """Return content in which no two stretches are alike."""
    return np.random.default_rng(seed).bytes(size)


class EngineRead:
    """Requests, buffers of random bytes for them, and a check of an engine's result.

    `runs` are lists of extents. Destinations are dealt out in random order over the buffers, with
    a few bytes between them that nobody may touch.
    """

    def __init__(
        self,
        contents: Contents,
        runs: Sequence[Sequence[Extent]],
        buffer_count: int = 1,
        seed: int = 0,
    ) -> None:
        self.contents = list(contents)
        random = np.random.default_rng(seed)
        extents = np.array([extent for run in runs for extent in run], np.int64).reshape(-1, 3)
        count = len(extents)
        buffer = random.integers(0, buffer_count, count)
        target = np.zeros(count, np.int64)
        filled = random.integers(0, 8, buffer_count)
        for number in random.permutation(count):
            target[number] = filled[buffer[number]]
            filled[buffer[number]] += extents[number, 2] + random.integers(0, 8)
        self.requests = Requests(
            extents[:, 0].astype(np.uint32),
            extents[:, 1].copy(),
            extents[:, 2].copy(),
            buffer.astype(np.uint32),
            target,
            np.cumsum([0] + [len(run) for run in runs], dtype=np.int64),
        )
        self.buffers: list[Buffer] = [random.integers(0, 256, size, np.uint8) for size in filled]
        self._expected = [buffer.copy() for buffer in self.buffers]

    def assert_untouched(self) -> None:
        """Assert that nothing was written to the buffers."""
        for buffer, expected in zip(self.buffers, self._expected, strict=True):
            np.testing.assert_array_equal(buffer, expected)

    def assert_done(self, completion: Completion) -> None:
        """Assert that every byte that can arrive has arrived, everything else is untouched, and the
        failures account for the rest."""
        failures = {failure.extent: failure for failure in completion.failures}
        assert len(failures) == len(completion.failures), "an extent is reported twice"
        for number in range(len(self.requests.file)):
            self._assert_extent(number, failures.pop(number, None))
        assert not failures, "failures of extents that were not requested"
        for buffer, expected in zip(self.buffers, self._expected, strict=True):
            np.testing.assert_array_equal(buffer, expected)

    def _assert_extent(self, number: int, failure: Failure | None) -> None:
        """Judge the failure of one extent, and note its bytes in `_expected`."""
        file, offset, length, buffer, target = (
            int(column[number]) for column in self.requests[:-1]
        )
        content = self.contents[file]
        if content is None:
            if length or failure:  # no bytes of a vanished file arrive, or do not
                assert failure == Failure(number, errno.ENOENT, 0)
            arrived = b""
        else:
            arrived = content[offset : offset + length]
            short = Failure(number, 0, len(arrived)) if len(arrived) < length else None
            assert failure == short, f"extent {offset}+{length} of {len(content)} bytes"
        middle, end = target + len(arrived), target + length
        self._expected[buffer][target:middle] = np.frombuffer(arrived, np.uint8)
        self._expected[buffer][middle:end] = self.buffers[buffer][middle:end]  # undefined


def finish(engine: Engine, tickets: Iterable[int]) -> dict[int, Completion]:
    """Poll until all tickets are reported, each once and nothing else."""
    missing = set(tickets)
    done: dict[int, Completion] = {}
    deadline = time.monotonic() + deadline_s
    while missing:
        assert time.monotonic() < deadline, f"{len(missing)} tickets are not reported in time"
        for completion in engine.poll(second_ns):
            assert completion.ticket not in done, "a ticket is reported twice"
            assert completion.ticket in missing, "a ticket is reported that is not outstanding"
            missing.remove(completion.ticket)
            done[completion.ticket] = completion
    assert engine.poll(0) == []
    return done
