"""Writes of a shard in turns: at a rate, in a window of the broker, until they are stopped."""

from __future__ import annotations

import errno
import threading
import time
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.budget import Budget
from penstock.checkpoint import Checkpoints, load
from penstock.checkpoint.shards import Flush
from tests.sharing.tenants import broker

MIB = 1 << 20


def turns(flush: Flush, size: int) -> list[int]:
    """Run a whole transfer."""
    return [stop - start for start, stop in flush.take_turns(size)]


@given(st.integers(1, 1 << 30), st.sampled_from([None, 1e18]))
def test_turns_cover_the_transfer(size: int, rate: float | None) -> None:
    with Flush(Budget(bytes_per_s=rate)) as flush:
        found = turns(flush, size)
    assert sum(found) == size
    assert all(turn % MIB == 0 and turn <= 32 * MIB for turn in found[:-1])


def test_a_rate_is_kept() -> None:
    """A transfer keeps its rate, less the bytes of one write at once, and the last write, which
    nobody waits for."""
    with Flush(Budget(bytes_per_s=20 * MIB)) as flush:
        began_s = time.monotonic()
        turns(flush, 10 * MIB)
        assert time.monotonic() - began_s > 0.5 - 0.2 - 0.01


@pytest.mark.parametrize("stopped", [True, False])
def test_waiting_ends(stopped: bool) -> None:
    """At a byte a second, only another rate or a stop ends the wait."""
    with Flush(Budget(bytes_per_s=1)) as flush:
        turns(flush, 1)
        end = flush.stop if stopped else lambda: flush.adopt(Budget())
        threading.Timer(0.05, end).start()
        if stopped:
            with pytest.raises(OSError, match="abandoned") as found:
                turns(flush, 64 * MIB)
            assert found.value.errno == errno.ECANCELED
        else:
            assert turns(flush, 64 * MIB) == [32 * MIB, 32 * MIB]


@pytest.fixture
def socket(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Make the place where this process, too, looks for a broker."""
    path = tmp_path / "broker.sock"
    monkeypatch.setenv("PENSTOCK_BROKER", str(path))
    return path


def test_a_broker_grants_the_rate(socket: Path, tmp_path: Path) -> None:
    """A checkpoint takes its turn on storage that the broker divides."""
    state = {"x": np.zeros(40 * MIB, np.uint8)}
    with broker(socket, "--bytes-per-s", "40MB/s"), Checkpoints(tmp_path / "c") as checkpoints:
        checkpoints.save(1, state)
        saved = checkpoints.wait()
        assert saved is not None
        assert saved.seconds > 0.2  # the first 32 MiB are on credit
    assert load(tmp_path / "c").step == 1


def test_a_save_that_waits_for_the_broker_is_abandoned(socket: Path, tmp_path: Path) -> None:
    """A save whose window opens in a year is given up as fast as any other."""
    with broker(socket, "--bytes-per-s", "1"), Checkpoints(tmp_path / "c") as checkpoints:
        checkpoints.save(1, {"x": np.zeros(80 * MIB, np.uint8)})
        assert checkpoints._save is not None
        while checkpoints._save.flush._permit is None:
            pass
        checkpoints.abandon()
        assert checkpoints.steps() == []
        assert checkpoints.folder.leftovers() == []
