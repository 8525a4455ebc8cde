"""The program that test_places starts as every process: it takes part in some process groups, one
after the other, with a loader in each whose place is a mesh or names who reads."""

from __future__ import annotations

import json
import os
import sys
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh

import penstock
from penstock.testing import same_batch


def make_place(job: dict[str, Any], number: int) -> Any:
    """A mesh, which all ranks make; or a place."""
    if "place" not in job:
        return init_device_mesh("cpu", job["shape"], mesh_dim_names=job["names"])
    ranks, world, readers = (job["place"][name] for name in ("ranks", "world", "readers"))
    return penstock.Place(ranks[number], world, readers=readers)


def make_loader(job: dict[str, Any], number: int, place: Any) -> penstock.Loader:
    cache = None
    if job.get("ram_bytes"):
        host = job["hosts"][number] if "hosts" in job else None
        cache = penstock.Cache(ram_bytes=job["ram_bytes"], host=host, listen="127.0.0.1")
    return penstock.Loader(
        penstock.open(job["path"], index="memory"),
        place=place,
        cache=cache,
        seed=job["seeds"][number] if "seeds" in job else 3,
        check_peers=job.get("check_peers"),
        **job["loader"],
    )


def walk(job: dict[str, Any], number: int) -> dict[str, Any]:
    """The samples of each step and the bytes from storage; the error, if there was one."""
    found: dict[str, Any] = {"steps": []}
    try:
        place = make_place(job, number)
        if number in job.get("idle", []):
            return found
        with make_loader(job, number, place) as loader:
            check = same_batch(dist.new_group()) if job.get("same_batch") else None
            found["place"] = loader.place.rank, loader.place.world_size
            for batch in loader:
                found["steps"].append(batch.ids.tolist())
                if check is not None:
                    check(batch)
            stats = loader.stats()
            found |= {
                name: stats.get(name, 0) for name in ("bytes", "loaded_bytes", "direct_bytes")
            }
    except penstock.PenstockError as error:
        found["error"] = f"{type(error).__name__}: {error}"
    return found


def main() -> None:
    told = json.loads(sys.argv[1])
    number, output = told["number"], Path(told["output"])
    for name, job in told["jobs"].items():
        world = job["world"]
        if number >= world:
            continue
        store = dist.FileStore(str(output / f"store-{name}"), world)
        dist.init_process_group(
            "gloo", store=store, rank=number, world_size=world, timeout=timedelta(seconds=60)
        )
        if "wait_s" in job:
            dist.distributed_c10d._get_default_store().set_timeout(timedelta(seconds=job["wait_s"]))
        (output / f"{name}-{number}.json").write_text(json.dumps(walk(job, number)))
        dist.barrier()
        dist.destroy_process_group()


if __name__ == "__main__":
    main()
    os._exit(0)  # a thread of gloo may outlive Python, and torch aborts then
