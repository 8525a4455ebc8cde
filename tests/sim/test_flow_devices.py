"""Devices in virtual time: against the corrected model's core, and for what holds of any flow."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock_sim import _kernels
from penstock_sim.event_queue import EventQueue
from penstock_sim.event_rank import Device, Flow, SharedStorage
from tests.slices import first


@pytest.mark.parametrize("seed", first(5, range(50)))
def test_storage_is_that_of_the_core(seed: int) -> None:
    """Steps are there when the core says, to a nanosecond a read, whatever rate readers have."""
    random = np.random.default_rng(seed)
    nodes, steps = int(random.integers(1, 6)), int(random.integers(1, 30))
    shares = random.uniform(0.1, 2) * np.sort(random.uniform(0.2, 1, nodes))[::-1]
    sizes = random.integers(0, 10_000, (steps, nodes)) * random.integers(0, 2, (steps, nodes))
    queue = EventQueue()
    storage = SharedStorage(queue, shares)
    ends = np.zeros(steps, np.int64)

    def note(step: int) -> None:
        ends[step] = max(ends[step], queue.now_ns)

    for node in range(nodes):
        for step in range(steps):
            if sizes[step, node]:
                size, turn = int(sizes[step, node]), step
                storage.read(node, size, turn, lambda _, step=step: note(step))
    while queue.step():
        pass
    none = np.empty(0, np.int64)
    wanted = _kernels.run_fluid(
        nodes=nodes, window=1 << 60, serial=False, setup=False, overhead=0, epoch=0,
        compute=1e18, stage=1e18, link=1.0, storage_shares=shares, tier_rates=np.empty(0),
        need=sizes.reshape(-1), ring=sizes.reshape(-1), demand=none, ahead=none, tiers=none,
        sent=none, received=none,
    )  # fmt: skip
    got = np.maximum.accumulate(ends)
    assert abs(got - wanted).max() <= steps * nodes + 2 * steps


@given(
    st.floats(1e-3, 10),
    st.lists(st.tuples(st.integers(0, 1000), st.integers(0, 500), st.integers(0, 500)), max_size=9),
)
def test_bytes_pass_as_they_come(rate: float, given_flows: list[tuple[int, int, int]]) -> None:
    """Nothing has passed before it came, nor faster than the device, and flows follow each
    other."""
    device, free_ns = Device(rate), 0
    for size_bytes, begun_ns, takes_ns in given_flows:
        flow = Flow(begun_ns, begun_ns + takes_ns)
        passed = device.take(size_bytes, flow)
        assert passed.begun_ns == max(free_ns, flow.begun_ns)
        free_ns = passed.begun_ns + math.ceil(size_bytes / rate)
        assert passed.ended_ns == max(free_ns, flow.ended_ns)
