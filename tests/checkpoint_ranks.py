"""Ranks that save together over gloo: each is forked here, and says what came of it as JSON.

python tests/checkpoint_ranks.py SCENARIO FOLDER RANKS
"""

from __future__ import annotations

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

import torch
import torch.distributed as dist

from penstock.budget import Budget
from penstock.checkpoint import Checkpoints
from penstock.errors import PenstockError, StalledError


def model(rank: int = 0) -> dict[str, Any]:
    """60 tensors of different sizes, 3.7 MB, equal on all ranks."""
    return {f"w{i}": torch.full((i * 500 + 1,), float(i)) for i in range(60)} | {"n": 7}


def replicated(folder: Path, rank: int) -> Any:
    with Checkpoints(folder) as checkpoints:
        checkpoints.save(3, model(), loader={"step": 3})
        saved = checkpoints.wait()
        assert saved is not None
        found = checkpoints.load()
    same = all(torch.equal(found.state[f"w{i}"], model()[f"w{i}"]) for i in range(60))
    return [saved.bytes, same and found.state["n"] == 7 and found.loader == {"step": 3}]


def other_shapes(folder: Path, rank: int) -> Any:
    """One rank has another model: all hear of it, and the next save is well."""
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
    """One rank has something that cannot be saved."""
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
    """One rank is slow: all skip."""
    slow = Budget(bytes_per_s=1 if rank == 1 else None)
    with Checkpoints(folder, busy="skip", budget=slow) as checkpoints:
        began = [checkpoints.save(1, model()), checkpoints.save(2, model())]
        checkpoints.budget = Budget()
        checkpoints.wait()
        began.append(checkpoints.save(3, model()))
        checkpoints.wait()
        return [began, checkpoints.skipped, checkpoints.steps()]


def lost(folder: Path, rank: int) -> Any:
    """One rank dies while all write: the others hear of it, and nothing is committed."""
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
    """One rank is slow: all are told the same."""
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
    """Storage fails some saves."""
    said = []
    with Checkpoints(folder) as checkpoints:
        for step in (1, 2, 3, 4):
            checkpoints.save(step, model())
            try:
                checkpoints.wait()
            except PenstockError as error:
                said.append(str(error))
        return [said, checkpoints.steps()]


def stalls(wait: Callable[[float], object], where: str) -> str:
    """Waits until it is heard that it is there that the save stands."""
    while True:
        try:
            wait(0.05)
        except StalledError as error:
            if f"about to {where}" in str(error):
                return str(error)
        else:
            return "it went on"


def stalled(folder: Path, rank: int) -> Any:
    """The storage of one rank hangs, twice, each time until both have said that they noticed: they
    wait on, and then they give up."""
    said = []
    with Checkpoints(folder, busy="skip") as checkpoints:
        for step, mine in enumerate(("sync /", "reserve /")):
            where = mine if rank == 1 else "hear of the other ranks"
            checkpoints.save(step, model())
            assert not checkpoints.save(9, model())
            said.append(stalls(checkpoints.wait, where))
            if step == 1:
                said.append(stalls(checkpoints.abandon, where))
            (folder.parent / f"stalled-{step}-{rank}").touch()
            checkpoints.wait()
        checkpoints.save(2, model())
        checkpoints.wait()
        return [*said, checkpoints.skipped, checkpoints.steps()]


def second(folder: Path, rank: int) -> Any:
    """Another job has the folder: all ranks hear of it."""
    try:
        Checkpoints(folder)
    except PenstockError as error:
        return str(error)
    return None


SCENARIOS: dict[str, Callable[[Path, int], Any]] = {
    each.__name__: each
    for each in (
        *(replicated, other_shapes, unsupported, skipped, lost),
        *(advised, told, stalled, second),
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
    """Fork the ranks of a job; what each of them said."""
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
    scenario, folder, ranks = sys.argv[1:]
    print(json.dumps(job(scenario, Path(folder), int(ranks))))


if __name__ == "__main__":
    main()
