"""Tensors that only an optimizer changes are copied behind training, and are saved as they were at
the call of `save`."""

from __future__ import annotations

import copy
import threading
from pathlib import Path
from typing import Any

import pytest

import torch
from penstock.checkpoint import Checkpoints
from penstock.checkpoint.pytree import split_state
from penstock.checkpoint.staging import Cut, Fence
from penstock.errors import UsageError

Optimizer = torch.optim.Optimizer


def model() -> torch.nn.Module:
    torch.manual_seed(0)
    return torch.nn.Sequential(
        torch.nn.Linear(64, 512), torch.nn.BatchNorm1d(512), torch.nn.Linear(512, 64)
    )


def train(network: torch.nn.Module, optimizer: Optimizer) -> None:
    network(torch.ones(4, 64)).square().sum().backward()
    optimizer.step()
    optimizer.zero_grad()


def same(one: Any, other: Any) -> bool:
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(same(one[key], other[key]) for key in one)
    if isinstance(one, list | tuple):
        return len(one) == len(other) and all(map(same, one, other))
    return torch.equal(one, other) if isinstance(one, torch.Tensor) else bool(one == other)


def waits(fence: Fence, state: Any) -> set[str]:
    """List the blocks that need not be copied at once."""
    blocks = split_state(state).blocks
    cuts = [Cut(number, 0, block.bytes) for number, block in enumerate(blocks)]
    now, later = fence.divide_cuts(blocks, cuts)
    assert sorted(now + later) == cuts
    return {blocks[cut.block].name for cut in later}


@pytest.mark.parametrize("kind", [torch.optim.Adam, torch.optim.SGD])
def test_what_waits(kind: Any) -> None:
    """The copy of parameters and of the optimizer's state for them may wait; that of tensors that a
    forward pass changes may not, nor others' memory, nor views of a part of a parameter."""
    network = model()
    optimizer = kind(network.parameters(), lr=0.1)
    train(network, optimizer)
    state = {
        "model": network.state_dict(),
        "optimizer": optimizer.state_dict(),
        "average": copy.deepcopy(network.state_dict()),
    }
    fence = Fence()
    assert waits(fence, state) == set()
    fence.attach(optimizer)
    wanted = {f"model.{name}" for name, _ in network.named_parameters()}
    kept = {"exp_avg", "exp_avg_sq", "step"} if kind is torch.optim.Adam else set()
    wanted |= {f"optimizer.state.{i}.{name}" for i in range(6) for name in kept}
    assert waits(fence, state) == wanted
    weight = network[0].weight  # type: ignore[union-attr]
    assert waits(fence, {"part": weight.detach()[1:], "turned": weight.detach().T}) == set()  # type: ignore[operator, index]
    fence.detach()
    assert waits(fence, state) == set()


def test_saved_as_it_was(tmp_path: Path) -> None:
    """If steps follow each save at once, each save is of its own moment, buffers included."""
    torch.manual_seed(0)
    network = torch.nn.Sequential(torch.nn.Linear(1024, 4096), torch.nn.BatchNorm1d(4096))
    optimizer = torch.optim.Adam(network.parameters(), lr=0.1)
    x = torch.ones(2, 1024)
    with Checkpoints(tmp_path, keep=9) as checkpoints:
        checkpoints.attach(optimizer)
        checkpoints.attach(optimizer)  # is no second hook
        wanted = []
        for step in range(5):
            network(x).square().sum().backward()
            state = {"model": network.state_dict(), "optimizer": optimizer.state_dict()}
            wanted.append(copy.deepcopy(state))
            checkpoints.save(step, state)
            optimizer.step()
            with torch.no_grad():
                network(x)  # changes the running mean
        checkpoints.fence()
        saved = checkpoints.wait()
        assert saved is not None
        assert saved.step == 4
        for step, state in enumerate(wanted):
            assert same(checkpoints.load(step).state, state)


def test_the_fence_holds_a_step() -> None:
    """A step waits until another thread takes the fence down; then steps are as free as before."""
    network = model()
    optimizer = torch.optim.SGD(network.parameters(), lr=0.1)
    fence = Fence()
    fence.attach(optimizer)
    train(network, optimizer)
    assert fence.waited_s == 0
    fence.put_up()
    begun, ended = threading.Event(), threading.Event()

    def step() -> None:
        begun.set()
        train(network, optimizer)
        ended.set()

    thread = threading.Thread(target=step)
    thread.start()
    begun.wait()
    assert not ended.wait(0.05)
    fence.take_down()
    thread.join()
    assert fence.waited_s > 0
    fence.put_up()
    fence.detach()
    train(network, optimizer)  # is not held any more


def test_a_failed_save_leaves_no_fence(tmp_path: Path) -> None:
    network = model()
    optimizer = torch.optim.SGD(network.parameters(), lr=0.1)
    with Checkpoints(tmp_path) as checkpoints:
        checkpoints.attach(optimizer)
        with pytest.raises(UsageError, match="state.bad"):
            checkpoints.save(1, {"model": network.state_dict(), "bad": object()})
        train(network, optimizer)
        with pytest.raises(UsageError, match="register_step_pre_hook"):
            checkpoints.attach(network)
