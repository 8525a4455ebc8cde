"""Jobs of several ranks that save and load by torch.distributed.checkpoint over gloo.

Several jobs run one after the other, forked from one process: importing takes longer than they do.

    python -m tests.checkpoint.dcp_programs FOLDER JOB...

A JOB is SCENARIO:NAME:RANKS, and works on FOLDER/NAME.
"""

from __future__ import annotations

import itertools
import json
import os
import resource
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch._dynamo  # DTensor does, in each rank
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_tensor

import torch
from penstock.checkpoint import background
from penstock.checkpoint.dcp import Reader, Storage
from tests.checkpoint import ranks as checkpoint_ranks

ROWS = 37
"""Rows that no number of ranks divides."""


def whole(step: int) -> dict[str, torch.Tensor]:
    """Make the state that is saved, as one process sees it."""
    draw = torch.Generator().manual_seed(step)
    found = {f"w{i}": torch.randn(ROWS, 5, generator=draw) for i in range(3)}
    found["columns"] = torch.randn(4, ROWS, generator=draw).to(torch.bfloat16)
    found["none"] = torch.empty(0, 3)
    found |= {f"r{i}": torch.randn(i * 700 + 1, generator=draw) for i in range(20)}
    return found


def state(step: int) -> dict[str, Any]:
    """Spread the same state over the ranks: shards, DTensors that are replicated, plain tensors,
    numbers."""
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    placed: dict[str, Any] = {}
    for name, value in whole(step).items():
        if name == "w2" and dist.get_world_size() == 4:  # two copies, each in two halves
            pairs = init_device_mesh("cpu", (2, 2))
            placed[name] = distribute_tensor(value, pairs, [Replicate(), Shard(0)])
        elif name.startswith("w"):
            placed[name] = distribute_tensor(value, mesh, [Shard(0)])
        elif name == "columns":
            placed[name] = distribute_tensor(value, mesh, [Shard(1)])
        elif name in ("r3", "r4"):
            placed[name] = distribute_tensor(value, mesh, [Replicate()])
        else:
            placed[name] = value
    return {"model": placed, "step": step, "list": [step, torch.full((3,), float(step))]}


def same(found: dict[str, Any], step: int) -> bool:
    model = {
        name: value.full_tensor() if isinstance(value, DTensor) else value
        for name, value in found["model"].items()
    }
    return (
        all(torch.equal(model[name], value) for name, value in whole(step).items())
        and found["step"] == step
        and found["list"][0] == step
        and torch.equal(found["list"][1], torch.full((3,), float(step)))
    )


def save(folder: Path, rank: int) -> Any:
    """Save synchronously, then behind training, which changes the state meanwhile."""
    with Storage(folder) as storage:
        dcp.save(state(1), storage_writer=storage.writer(1, loader={"at": 1}))
        changing = state(2)
        future = dcp.async_save(changing, storage_writer=storage.writer(2, loader={"at": 2}))
        for value in changing["model"].values():
            (value.to_local() if isinstance(value, DTensor) else value).fill_(9)
        changing["list"][1].fill_(9)
        future.result()
    return None


def load(folder: Path, rank: int) -> Any:
    """Load both steps into tensors of other values."""
    found = []
    for step in (1, 2):
        into, reader = state(7), Reader(folder, step)
        dcp.load(into, storage_reader=reader)
        found.append([same(into, step), reader.loader])
    return found


def stock(folder: Path, rank: int) -> Any:
    """Compare a load by DCP's own writer and reader with ours: equal, byte by byte."""
    theirs, ours = state(8), state(9)
    dcp.save(state(5), storage_writer=dcp.FileSystemWriter(folder / "theirs"))
    dcp.load(theirs, storage_reader=dcp.FileSystemReader(folder / "theirs"))
    with Storage(folder / "ours") as storage:
        dcp.save(state(5), storage_writer=storage.writer(5))
    dcp.load(ours, storage_reader=Reader(folder / "ours"))
    equal = all(
        torch.equal(theirs["model"][n].to_local(), ours["model"][n].to_local())
        if isinstance(theirs["model"][n], DTensor)
        else torch.equal(theirs["model"][n], ours["model"][n])
        for n in theirs["model"]
    )
    return [equal, same(ours, 5), same(theirs, 5)]


def replicated(folder: Path, rank: int) -> Any:
    """Save a model that all ranks have: one tensor is large, and the rest come in an order that a
    greedy division gets wrong."""
    model = {f"s{i}": torch.full((1000,), float(i)) for i in range(40)}
    model["large"] = torch.arange(9 << 20, dtype=torch.float32)
    with Storage(folder) as storage:
        dcp.save(model, storage_writer=storage.writer(1))
    into = {name: torch.zeros_like(value) for name, value in model.items()}
    dcp.load(into, storage_reader=Reader(folder))
    return all(torch.equal(into[name], value) for name, value in model.items())


def again(folder: Path, rank: int) -> Any:
    """Save with a planner that keeps old plans: it is refused, and nothing is left of the save."""
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    value = torch.arange(1000.0)
    model = {"r": distribute_tensor(value, mesh, [Replicate()])}
    into = {"r": distribute_tensor(torch.zeros(1000), mesh, [Replicate()])}
    caching = dcp.DefaultSavePlanner(enable_plan_caching=True)
    said = ""
    with Storage(folder) as storage:
        dcp.save(model, storage_writer=storage.writer(1), planner=caching)
        try:
            dcp.save(model, storage_writer=storage.writer(2), planner=caching)
        except CheckpointException as error:
            said = str(error)
        dcp.save(model, storage_writer=storage.writer(3))
    dcp.load(into, storage_reader=Reader(folder, 3))
    return [torch.equal(into["r"].to_local(), value), "enable_plan_caching" in said]


def _cut_off(folder: Path, dies: Callable[[str], bool]) -> str:
    """Commit step 1; this rank may die while it saves step 2."""
    storage = Storage(folder)
    dcp.save(state(1), storage_writer=storage.writer(1, loader={"at": 1}))
    second, writer = state(2), storage.writer(2, loader={"at": 2})

    def watcher(what: str) -> None:
        if dies(what):
            os.kill(os.getpid(), signal.SIGKILL)

    background.watcher = watcher
    try:
        dcp.save(second, storage_writer=writer)
    except (CheckpointException, RuntimeError):
        return "heard"
    return "committed"


def killed(folder: Path, rank: int) -> Any:
    """Kill the last rank while it writes step 2: the others notice."""
    last = rank == dist.get_world_size() - 1
    return _cut_off(folder, lambda what: last and what.startswith("sync "))


def killed_at(folder: Path, rank: int) -> Any:
    """Kill the rank that the folder's name gives, at the boundary that it gives."""
    victim, at = map(int, folder.name.split("-"))
    passed = itertools.count()
    return _cut_off(folder, lambda _: rank == victim and next(passed) == at)


def refused(folder: Path, rank: int) -> Any:
    """Let the system refuse the last rank's bytes: no rank commits; after room is made, the next
    save succeeds."""
    last = rank == dist.get_world_size() - 1
    with Storage(folder) as storage:
        dcp.save({"n": torch.ones(8)}, storage_writer=storage.writer(1))
        said = ""
        if last:
            resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 200_000))
        large = torch.ones(100_000 if last else 8)
        future = dcp.async_save({f"own{rank}": large}, storage_writer=storage.writer(2))
        try:
            future.result()
        except CheckpointException as error:
            said = str(error)
        dcp.save({"n": torch.ones(9)}, storage_writer=storage.writer(3))
    dist.barrier()
    left = sorted(path.name for path in folder.iterdir())
    return ["File too large" in said, left]


def unequal(folder: Path, rank: int) -> Any:
    """Save models of which a large tensor differs, and one of which small values differ alone."""
    said = []
    with Storage(folder) as storage:
        for step in (1, 2, 3):
            large = torch.arange(1 << 17) * (1 if step == 3 else 1 + rank)
            model = {"large": large, "mean": torch.full((8,), rank), "n": rank}
            try:
                if step == 2:
                    dcp.async_save(model, storage_writer=storage.writer(step)).result()
                else:
                    dcp.save(model, storage_writer=storage.writer(step))
            except CheckpointException as error:
                said.append(str(error))
    into = {"large": torch.zeros(1 << 17, dtype=torch.int64), "mean": torch.ones(8) * 9, "n": 9}
    dcp.load(into, storage_reader=Reader(folder))
    return [said, into["large"][-1].item(), into["mean"].tolist(), into["n"]]


SCENARIOS: dict[str, Callable[[Path, int], Any]] = {
    each.__name__: each
    for each in (save, load, stock, replicated, again, killed, killed_at, refused, unequal)
}

if __name__ == "__main__":
    checkpoint_ranks.SCENARIOS = SCENARIOS
    said = []
    for each in sys.argv[2:]:
        scenario, name, ranks = each.split(":")
        said.append(checkpoint_ranks.job(scenario, Path(sys.argv[1], name), int(ranks)))
    print(json.dumps(said))
