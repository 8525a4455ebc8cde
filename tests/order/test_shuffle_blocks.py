"""Exact or blocked: what the policy makes of measured storage."""

from __future__ import annotations

import dataclasses

from hypothesis import given
from hypothesis import strategies as st

from penstock import Order, limits
from penstock.order.shuffling import (
    ReadCost,
    choose_blocks,
    choose_chunk_blocks,
    window_samples,
)

DISK = ReadCost(latency_ns=5e6, bytes_per_s=150e6, requests=1.0)
FLASH = ReadCost(latency_ns=1e5, bytes_per_s=1e9, requests=8)


def test_fast_storage_keeps_the_exact_order() -> None:
    """If random reads reach nine tenths of the bandwidth, nothing is given up for more."""
    fast = ReadCost(latency_ns=1e5, bytes_per_s=1e9, requests=64)
    chosen = choose_blocks(10**6, 4096, fast, window_samples=10**4)
    assert (chosen.shuffle, chosen.reached) == ("exact", 1.0)
    slower = dataclasses.replace(fast, requests=20)  # 0.82 of it
    assert choose_blocks(10**6, 4096, slower, window_samples=10**4).shuffle == "exact"
    assert "82%" in choose_blocks(10**6, 4096, slower, window_samples=10**4).reason


def test_slow_storage_gets_the_smallest_block_that_is_enough() -> None:
    """12.5 us a read at 1 GB/s cost 8404 bytes beside a record of 4 KiB: nine times that are 19
    records, so 32, not 16."""
    chosen = choose_blocks(10**6, 4096, FLASH, window_samples=16384)
    assert (chosen.shuffle, chosen.block, chosen.group) == ("blocked", 32, 512)
    assert abs(chosen.reached - 32 * 4096 / (32 * 4096 + 8404)) < 1e-9


def test_a_block_is_no_more_than_one_read() -> None:
    """If no read that is made would be enough, a block is the largest that is made."""
    chosen = choose_blocks(10**6, 4096, DISK, window_samples=16384)
    assert (chosen.block, chosen.group) == (limits.run_extents_max, 64)
    assert 0.5 < chosen.reached < 0.6


def test_where_blocks_do_not_help_there_are_none() -> None:
    """Reads that are not merged, and blocks that are dealt to many ranks, leave the order exact."""
    assert choose_blocks(10**6, 4096, DISK, window_samples=10**4, gap_bytes=None).block == 1
    alone = choose_blocks(10**6, 4096, DISK, window_samples=10**4, world_size=1)
    many = choose_blocks(10**6, 4096, DISK, window_samples=10**4, world_size=8)
    tiny = choose_blocks(10**6, 64, DISK, window_samples=10**4, world_size=8)
    assert (alone.shuffle, many.shuffle, tiny.shuffle) == ("blocked", "exact", "blocked")
    assert "8 ranks" in many.reason


@given(
    count=st.integers(1, 2**62),
    mean_bytes=st.floats(0, 1e9),
    measured=st.builds(
        ReadCost,
        latency_ns=st.floats(1, 1e10),
        bytes_per_s=st.floats(1e3, 1e12),
        requests=st.floats(1, 1e4),
    ),
    window=st.integers(1, 1 << 22),
    world=st.integers(1, 64),
)
def test_every_choice_is_an_order(
    count: int, mean_bytes: float, measured: ReadCost, window: int, world: int
) -> None:
    """Whatever is measured: an order can be made, a group fits the window, and a block is one read
    of one rank, no larger than needed."""
    chosen = choose_blocks(count, mean_bytes, measured, window_samples=window, world_size=world)
    Order(count, 0, shuffle=chosen.shuffle, block=chosen.block, group=chosen.group)
    assert 0 <= chosen.reached <= 1
    if chosen.shuffle == "exact":
        return
    assert chosen.block * chosen.group <= min(count, window)
    assert chosen.block <= limits.run_extents_max * world
    size = max(1.0, mean_bytes)
    overhead = measured.latency_ns * 1e-9 / measured.requests * measured.bytes_per_s - size
    half = chosen.block // 2 * size
    assert half / (half + overhead) < 0.9


def test_windows_are_those_of_the_session() -> None:
    """Half a window: by the bytes of the read-ahead, by its steps, or by planning."""
    assert window_samples(4096, 64, 1, 1 << 20) == 64
    assert window_samples(4096, 64, 4, 1 << 20) == 256
    assert window_samples(1, 8, 1, 1 << 30) == limits.readahead_steps_max // 2 * 8 // 2
    assert window_samples(1, 1 << 20, 1, 1 << 40) == limits.window_samples_max // 2
    assert window_samples(1e9, 1, 1, 1) == 1


def test_samples_decoded_together_are_blocks() -> None:
    """A band is a block, and a group is what one step holds."""
    chosen = choose_chunk_blocks(10_000, 100, 512)
    assert (chosen.shuffle, chosen.block, chosen.group) == ("blocked", 100, 5)
    assert choose_chunk_blocks(50, 100, 8).block == 50
    assert choose_chunk_blocks(10_000, 1, 512).shuffle == "exact"
