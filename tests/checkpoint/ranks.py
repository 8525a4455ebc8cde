"""Ranks that save together over gloo: each is forked here, and reports its outcome as JSON.

python -m tests.checkpoint.ranks SCENARIO FOLDER RANKS
python -m tests.checkpoint.ranks     # many, as lines of JSON: torch takes long to be imported
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import sys
import tempfile
import traceback
import warnings
from collections.abc import Callable
from dataclasses import asdict
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch.distributed as dist

import torch
from penstock.budget import Budget
from penstock.checkpoint import Checkpoints, LocalTier, background
from penstock.errors import PenstockError, StalledError


def model() -> dict[str, Any]:
    """Make 60 tensors of different sizes, 3.7 MB, equal on all ranks."""
    return {f"w{i}": torch.full((i * 500 + 1,), float(i)) for i in range(60)} | {"n": 7}


def wide() -> dict[str, Any]:
    """Make 60 tensors of different sizes, 20 MB, which are large enough to be divided."""
    return {f"w{i}": torch.full((70_000 + i * 500,), float(i)) for i in range(60)} | {"n": 7}


def replicated(folder: Path, rank: int) -> Any:
    with Checkpoints(folder) as checkpoints:
        checkpoints.save(3, wide(), loader={"step": 3})
        saved = checkpoints.wait()
        assert saved is not None
        found = checkpoints.load()
    wanted = wide()
    same = all(torch.equal(found.state[f"w{i}"], wanted[f"w{i}"]) for i in range(60))
    return [saved.bytes, same and found.state["n"] == 7 and found.loader == {"step": 3}]


def other_shapes(folder: Path, rank: int) -> Any:
    """Give one rank another model: all raise, and the next save succeeds."""
    with Checkpoints(folder) as checkpoints:
        checkpoints.save(1, {"w": torch.ones(3 + rank // 2)})
        try:
            checkpoints.wait()
        except PenstockError as error:
            said = str(error)
        checkpoints.save(2, model())
        checkpoints.wait()
        return [said, checkpoints.steps()]


def unsupported(folder: Path, rank: int) -> Any:
    """Give one rank a value that cannot be saved."""
    said = []
    with Checkpoints(folder) as checkpoints:
        try:
            checkpoints.save(1, {"w": len if rank == 1 else 1})
            checkpoints.wait()
        except PenstockError as error:
            said.append(str(error))
        checkpoints.save(2, model())
        checkpoints.wait()
        return [*said, checkpoints.steps()]


def skipped(folder: Path, rank: int) -> Any:
    """Slow one rank down: all skip."""
    slow = Budget(bytes_per_s=1 if rank == 1 else None)
    with Checkpoints(folder, busy="skip", budget=slow) as checkpoints:
        began = [checkpoints.save(1, model()), checkpoints.save(2, model())]
        checkpoints.budget = Budget()
        checkpoints.wait()
        began.append(checkpoints.save(3, model()))
        checkpoints.wait()
        return [began, checkpoints.skipped, checkpoints.steps()]


def lost(folder: Path, rank: int) -> Any:
    """Kill one rank while all write: the others notice, and nothing is committed."""
    slow = Budget(bytes_per_s=1 if rank == 1 else None)
    checkpoints = Checkpoints(folder, budget=slow)
    checkpoints.save(1, model())
    if rank == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    try:
        checkpoints.wait()
    except PenstockError as error:
        return [type(error).__name__, str(error), checkpoints.steps()]
    return None


def advised(folder: Path, rank: int) -> Any:
    """Slow one rank down: all get the same advice."""
    slow = Budget(bytes_per_s=2e6 if rank == 1 else None)
    with Checkpoints(folder, budget=slow) as checkpoints:
        try:
            checkpoints.advice(3600.0, step_s=1.0)
        except PenstockError as error:
            said = str(error)
        checkpoints.save(1, model())
        found = checkpoints.advice(3600.0, step_s=1.0 + rank, nodes=2)
        last = checkpoints.wait()
        assert last is not None
        return [said, asdict(found), last.blocked_s, last.seconds]


def told(folder: Path, rank: int) -> Any:
    """Save on storage that fails some saves."""
    said = []
    with Checkpoints(folder) as checkpoints:
        for step in (1, 2, 3, 4):
            checkpoints.save(step, wide())
            try:
                checkpoints.wait()
            except PenstockError as error:
                said.append(str(error))
        return [said, checkpoints.steps()]


def stalls(wait: Callable[[float], object], where: str) -> str:
    """Wait until the error names this point as the one at which the save hangs."""
    while True:
        try:
            wait(0.05)
        except StalledError as error:
            if f"about to {where}" in str(error):
                return str(error)
        else:
            return "it went on"


def stalled(folder: Path, rank: int) -> Any:
    """Hang the storage of one rank twice, each time until both ranks have reported that they
    noticed: they wait longer, and then they give up."""
    said = []
    with Checkpoints(folder, busy="skip") as checkpoints:
        for step, mine in enumerate(("sync /", "reserve /")):
            where = mine if rank == 1 else "wait for the other ranks"
            checkpoints.save(step, wide())
            assert not checkpoints.save(9, wide())
            said.append(stalls(checkpoints.wait, where))
            if step == 1:
                said.append(stalls(checkpoints.abandon, where))
            (folder.parent / f"stalled-{step}-{rank}").touch()
            checkpoints.wait()
        checkpoints.save(2, wide())
        checkpoints.wait()
        return [*said, checkpoints.skipped, checkpoints.steps()]


def second(folder: Path, rank: int) -> Any:
    """Let another job have the folder: all ranks raise."""
    try:
        Checkpoints(folder)
    except PenstockError as error:
        return str(error)
    return None


def hosts(folder: Path, rank: int) -> Any:
    """Give each rank a tier of its own, as if on a host of its own, except for the last two, which
    share theirs. However slow one rank drains its saves, the next saves begin."""
    tier = folder.parent / f"tier-{min(rank, dist.get_world_size() - 2)}"
    slow = Budget(bytes_per_s=1 if rank == 1 else None)
    with Checkpoints(folder, local=LocalTier(tier, 1 << 30), budget=slow) as checkpoints:
        for step in range(3):
            checkpoints.save(step, large(step))
        checkpoints.wait(until="held")
        held, before = checkpoints.stats()["held"], checkpoints.steps()
        checkpoints.budget = Budget()
        saved = checkpoints.wait()
        assert saved is not None
        found = checkpoints.load()
        same = all(torch.equal(found.state[f"w{i}"], large(2)[f"w{i}"]) for i in range(4))
    return [held, before, saved.step, checkpoints.steps(), same, saved.bytes]


def large(step: int) -> dict[str, Any]:
    """Make a state of 16 MiB."""
    return {f"w{i}": torch.full((1 << 20,), float(i + step)) for i in range(4)}


def homeless(folder: Path, rank: int) -> Any:
    """Let the repository fail while saves are on their way: all ranks raise at the same calls, and
    the next save drains all of them."""
    away, said = folder.with_name("away"), []
    checkpoints = Checkpoints(folder, local=LocalTier(folder.parent / f"tier-{rank}", 1 << 30))
    moved(rank, folder, away)
    for step in range(1, 9):
        try:
            checkpoints.save(step, model())
            if step % 3 == 0:
                checkpoints.wait()
        except PenstockError as error:
            said.append([step, type(error).__name__])
    with contextlib.suppress(PenstockError):
        checkpoints.wait()
    held = checkpoints.stats()["held"]
    moved(rank, away, folder)
    checkpoints.save(9, model())
    checkpoints.wait()
    checkpoints.close()
    dist.barrier()  # the first one has removed older ones
    return [said, held, checkpoints.steps()]


def moved(rank: int, source: Path, to: Path) -> None:
    """Move a folder by one rank, while all wait."""
    dist.barrier()
    if rank == 0:
        os.rename(source, to)
    dist.barrier()


def partly(folder: Path, rank: int) -> Any:
    """Make one rank's tier too small, so that its shard is in the repository when the first rank
    dies, about to commit."""
    local = LocalTier(folder.parent / f"tier-{rank}", 1000 if rank == 1 else 1 << 30)

    def watcher(what: str) -> None:
        if (
            rank == 0
            and what.startswith(f"write {folder}/step-2.")
            and what.endswith("/index.part")
        ):
            os.kill(os.getpid(), signal.SIGKILL)

    background.watcher = watcher
    with Checkpoints(folder) as before:
        before.save(1, model())
    dist.barrier()
    checkpoints = Checkpoints(folder, local=local)
    checkpoints.save(2, large(2))
    try:
        checkpoints.close()
    except PenstockError as error:
        return [type(error).__name__, checkpoints.stats()["place"]]
    return None


def unlike(folder: Path, rank: int) -> Any:
    """Let ranks of a host name different tiers, two of them the same one."""
    names = ["a"] if rank == 0 else ["b", "a"]
    try:
        Checkpoints(folder, local=[folder.parent / name for name in names])
    except PenstockError as error:
        return str(error)
    return None


SCENARIOS: dict[str, Callable[[Path, int], Any]] = {
    each.__name__: each
    for each in (
        *(replicated, other_shapes, unsupported, skipped, lost),
        *(advised, told, stalled, second),
        *(hosts, homeless, partly, unlike),
    )
}


def rank_main(scenario: str, folder: Path, place: Path, rank: int, ranks: int, told: int) -> None:
    try:
        warnings.simplefilter("ignore")
        os.environ["GLOO_SOCKET_IFNAME"] = "lo"
        store = dist.FileStore(str(place), ranks)
        dist.init_process_group(
            "gloo", store=store, rank=rank, world_size=ranks, timeout=timedelta(seconds=60)
        )
        os.write(told, json.dumps(SCENARIOS[scenario](folder, rank)).encode())
        os._exit(0)
    except BaseException:
        traceback.print_exc()
        os._exit(1)


def job(scenario: str, folder: Path, ranks: int) -> list[Any]:
    """Fork the ranks of a job and collect their reports."""
    place = Path(tempfile.mkdtemp(dir=folder.parent), "store")
    children = []
    for rank in range(ranks):
        heard, told = os.pipe()
        pid = os.fork()
        if pid == 0:
            rank_main(scenario, folder, place, rank, ranks, told)
        os.close(told)
        children.append((pid, heard))
    found = []
    for pid, heard in children:
        with os.fdopen(heard) as pipe:
            said = pipe.read()
        status = os.waitpid(pid, 0)[1]
        found.append(json.loads(said) if said else f"ended with {status}")
    return found


def main() -> None:
    for scenario, folder, ranks in [sys.argv[1:]] if sys.argv[1:] else map(json.loads, sys.stdin):
        print(json.dumps(job(scenario, Path(folder), int(ranks))), flush=True)


if __name__ == "__main__":
    main()
