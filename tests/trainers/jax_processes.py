"""The program that test_jax starts as two processes of JAX, of four devices each: it writes what
each scenario gives."""

from __future__ import annotations

import functools
import itertools
import json
import os
import sys
import warnings
from pathlib import Path
from typing import Any

os.environ["XLA_FLAGS"] = "--xla_force_host_platform_device_count=4"
os.environ["JAX_PLATFORMS"] = "cpu"

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

import penstock
from penstock.ranks.place import choose_place


def shardings() -> dict[str, NamedSharding]:
    """Shardings of arrays whose first axis is the batch, on meshes of several orders."""
    devices = np.array(jax.devices())
    turned = devices.reshape(2, 2, 2).transpose(1, 0, 2).reshape(-1)
    return {
        "data": NamedSharding(Mesh(devices, ("data",)), P("data")),
        "data, model within": NamedSharding(Mesh(devices.reshape(4, 2), ("d", "m")), P("d")),
        "model over both": NamedSharding(Mesh(devices.reshape(2, 4).T, ("d", "m")), P("d", "m")),
        "intervals": NamedSharding(Mesh(turned, ("data",)), P("data")),
        "all model": NamedSharding(Mesh(devices, ("m",)), P(None, "m")),
        "two axes": NamedSharding(Mesh(devices.reshape(2, 2, 2), ("a", "b", "m")), P(("a", "b"))),
    }


def refused() -> dict[str, NamedSharding]:
    devices = np.array(jax.devices())
    return {
        "uneven": NamedSharding(Mesh(devices[[0, 1, 2, 4]], ("d",)), P("d")),
        "outside": NamedSharding(Mesh(devices[:4], ("d",)), P("d")),
        "no share": NamedSharding(
            Mesh(devices[[0, 1, 4, 5, 2, 6, 3, 7]].reshape(4, 2), ("d", "m")), P("d")
        ),
    }


def find_coordinates() -> dict[str, Any]:
    """The place of this process under each sharding, and by JAX's map the rows of all."""
    found = {}
    for name, sharding in shardings().items():
        place = choose_place(sharding, None, None, None)
        rows: dict[int, set[int]] = {}
        for device, (first, *_) in sharding.devices_indices_map((16, 16)).items():
            rows.setdefault(device.process_index, set()).update(range(16)[first])
        assert place is not None
        found[name] = place.rank, place.world_size, [sorted(rows[k]) for k in sorted(rows)]
    return found


_count = jax.jit(lambda valid: valid.sum())
_total = jax.jit(lambda rows, valid: (rows * valid[:, None]).sum())


def describe(batch: dict[str, Any]) -> dict[str, Any]:
    """A batch as its samples, on the devices of this process, and as a sum that all compute."""
    rows = {
        range(*shard.index[0].indices(len(batch["__id__"]))): np.asarray(shard.data).tolist()
        for shard in batch["__id__"].addressable_shards
    }
    own = [
        sample for _, part in sorted(rows.items(), key=lambda row: row[0].start) for sample in part
    ]
    return {
        "ids": own,
        "shape": batch["data"].shape,
        "sum": int(_total(batch["data"], batch["__valid__"])),
        "valid": int(batch["__valid__"].sum()),
    }


def load_everything(path: str) -> dict[str, Any]:
    """Three epochs under each sharding, and the rest of the epoch after each step's state."""
    data = penstock.open(path, index="memory")
    found: dict[str, Any] = {}
    for name, sharding in shardings().items():
        loader = penstock.jax.Loader(data, global_batch_size=16, sharding=sharding, seed=4)
        epochs = [[describe(batch) for batch in loader] for _ in range(2)]
        loader.close()
        found[name] = {"len": len(loader), "epochs": epochs}
    sharding = shardings()["model over both"]
    loader = penstock.jax.Loader(data, global_batch_size=16, sharding=sharding, seed=4)
    rests = []
    for step in range(len(loader) + 1):
        loader.set_epoch(1)
        taken = [describe(batch) for batch in itertools.islice(loader, step)]
        state = loader.get_state()
        other = penstock.jax.Loader(data, global_batch_size=16, sharding=sharding, seed=4)
        other.set_state(state)
        rest = [describe(batch) for batch in other]
        rests.append(taken + rest if step < len(loader) else taken)
        other.close()
    loader.close()
    found["rests"] = rests
    return found


def say(call: Any) -> str:
    try:
        return repr(call())
    except penstock.PenstockError as error:
        return f"{type(error).__name__}: {error}"


def meet_errors(path: str) -> dict[str, Any]:
    data = penstock.open(path, index="memory")
    said = {
        name: say(functools.partial(choose_place, at, None, None, None))
        for name, at in refused().items()
    }
    sharding = shardings()["data"]
    said["division"] = say(lambda: penstock.jax.Loader(data, 6, sharding=sharding))
    said["axes"] = say(lambda: penstock.Loader(data, 6, place=sharding, data_axes="data"))
    said["mesh"] = say(lambda: penstock.Loader(data, 6, place=sharding.mesh))
    return said


def share_cache(path: str) -> dict[str, Any]:
    """A cache whose ranks meet in the store of jax.distributed, and peers that are compared."""
    data = penstock.open(path, index="memory")
    cache = penstock.Cache(ram_bytes=1 << 22)
    sharding = shardings()["model over both"]
    with penstock.Loader(data, 18, place=sharding, cache=cache, check_peers=2) as loader:
        ids = [batch.ids.tolist() for batch in loader]
        bytes_read = loader.stats()["bytes"]
    seed = 3 + jax.process_index()
    with penstock.Loader(data, 18, place=sharding, seed=seed, check_peers=2) as loader:
        said = say(lambda: [batch.ids for batch in loader])
    return {"ids": ids, "bytes": bytes_read, "unequal": said}


def main() -> None:
    told = json.loads(sys.argv[1])
    output = Path(told["output"])
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        alone = penstock.Loader(penstock.open(told["path"], index="memory"), 30)
        for _ in range(2):
            list(alone)
        alone.close()
    found = {"warnings": [str(each.message) for each in warned]}
    jax.distributed.initialize(told["address"], 2, told["number"])
    found["detected"] = str(penstock.Loader(penstock.open(told["path"], index="memory"), 9).place)
    found["coordinates"] = find_coordinates()
    found["loaded"] = load_everything(told["path"])
    found["errors"] = meet_errors(told["path"])
    found["cache"] = share_cache(told["path"])
    first = next(iter(penstock.jax.Loader(penstock.open(told["path"], index="memory"), 9)))
    few = penstock.open(told["path"], index="memory").select(range(81))
    loader = penstock.jax.Loader(few, 8, sharding=shardings()["data"])
    found["valid"] = [int(_count(batch["__valid__"])) for batch in loader]
    found["own device"] = first["data"].devices() == {jax.local_devices()[0]}
    (output / f"{told['number']}.json").write_text(json.dumps(found))


if __name__ == "__main__":
    main()
