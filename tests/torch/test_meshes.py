"""Data coordinates in meshes of torch, on ranks that exist in its fake process group alone."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest

import penstock
from penstock.errors import UsageError
from penstock.ranks.place import Place, choose_place

torch = pytest.importorskip("torch")
import torch.distributed as dist  # noqa: E402
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh  # noqa: E402
from torch.testing._internal.distributed.fake_pg import FakeStore  # noqa: E402

WORLD = 16
NAMES = ("a", "b", "c", "d")


@contextmanager
def fake_rank(rank: int, world: int = WORLD) -> Iterator[None]:
    """Make this process a rank of a group whose other ranks do not exist."""
    dist.init_process_group("fake", rank=rank, world_size=world, store=FakeStore())
    try:
        yield
    finally:
        dist.destroy_process_group()


def make_mesh(names: tuple[str, ...] = NAMES, shape: tuple[int, ...] = (2, 2, 2, 2)) -> Any:
    return init_device_mesh("cpu", shape, mesh_dim_names=names)


SUBSETS = [axes for count in range(1, 5) for axes in itertools.combinations(NAMES, count)]


def test_coordinates_are_those_of_the_flattened_submesh() -> None:
    """All subsets of the axes of 2 x 2 x 2 x 2, on all 16 ranks; each coordinate is that of as many
    ranks as any other."""
    found: dict[tuple[str, ...], list[int]] = {axes: [] for axes in SUBSETS}
    for rank in range(WORLD):
        with fake_rank(rank):
            mesh = make_mesh()
            for axes in SUBSETS:
                submesh = mesh[axes]
                flat = submesh if len(axes) == 1 else submesh._flatten("flat_" + "".join(axes))
                place = choose_place(mesh, axes[::-1], None, None)
                assert place is not None
                assert (place.rank, place.world_size) == (flat.get_local_rank(), flat.size())
                assert place.readers == tuple(range(WORLD))
                found[axes].append(place.rank)
    for axes, ranks in found.items():
        assert np.bincount(ranks).tolist() == [WORLD >> len(axes)] * (1 << len(axes))


@pytest.mark.parametrize("sizes", [(2, 2, 1, 2, 2), (2, 1, 2, 2, 2), (1, 4, 1, 2, 2)])
def test_megatron_order(sizes: tuple[int, ...]) -> None:
    """Megatron numbers ranks tp-cp-ep-dp-pp, the first one fastest; experts are data parallel to
    all but their own weights, so that dp and ep split the batch."""
    order = dict(zip(("tp", "cp", "ep", "dp", "pp"), sizes, strict=True))
    for rank in range(WORLD):
        rest, numbers = rank, {}
        for name, size in order.items():
            rest, numbers[name] = divmod(rest, size)
        data_rank = numbers["ep"] + order["ep"] * numbers["dp"]  # mpu's, without context parallel
        with fake_rank(rank):
            mesh = make_mesh(tuple(order)[::-1], sizes[::-1])
            place = choose_place(mesh, ("dp", "ep"), None, None)
            assert place is not None
            assert (place.rank, place.world_size) == (data_rank, order["dp"] * order["ep"])


@pytest.mark.long
@pytest.mark.filterwarnings("ignore")
def test_megatron_groups() -> None:
    """Coordinates are the numbers in the data-parallel groups that Megatron itself makes."""
    generator = pytest.importorskip("megatron.core.parallel_state").RankGenerator
    groups = generator(tp=2, ep=1, dp=2, pp=2, cp=2, order="tp-cp-ep-dp-pp").get_ranks("dp")
    mpu = {rank: number for group in groups for number, rank in enumerate(group)}
    for rank in range(WORLD):
        with fake_rank(rank):
            mesh = make_mesh(("pp", "dp", "cp", "tp"))
            place = choose_place(mesh, None, None, None)
            assert place is not None
            assert (place.rank, place.world_size) == (mpu[rank], 2)


def test_default_axes() -> None:
    """The axes of FSDP, torchtitan and accelerate that split the batch are found by their names."""
    with fake_rank(13):
        for names, axes in (
            (("pp", "dp_replicate", "dp_shard", "tp"), ("dp_replicate", "dp_shard")),
            (("pp", "batch", "cp", "tp"), ("batch",)),
            (("dp_replicate", "dp_shard", "cp", "tp"), ("dp_replicate", "dp_shard")),
            (("data", "x", "y", "z"), ("data",)),
        ):
            mesh = make_mesh(names)
            assert choose_place(mesh, None, None, None) == choose_place(mesh, axes, None, None)


def test_readers_of_a_submesh() -> None:
    """A stage of a pipeline that reads by itself is named by its part of the mesh."""
    with fake_rank(13):
        mesh = make_mesh(("pp", "dp", "cp", "tp"))
        place = choose_place(mesh["dp", "cp", "tp"], None, None, None)
        assert place == Place(1, 2, "mesh axes dp", None, range(8, 16))
        assert choose_place(mesh, (), None, None) == Place(0, 1, "mesh axes none", None, range(16))


def test_loaders_of_peers_give_equal_batches(tmp_path: Any) -> None:
    """On 2 x 2 x 2 ranks each of 4 data coordinates has two ranks with the same samples, and all
    coordinates share the epoch, in every kind of loader."""
    from penstock.torch import DataLoader, DeviceLoader, StepLoader

    np.save(tmp_path / "rows.npy", np.arange(40))
    data = penstock.open(tmp_path / "rows.npy", index="memory")
    shares: dict[int, list[list[list[int]]]] = {}
    for rank in range(8):
        with fake_rank(rank, 8):
            mesh = make_mesh(("dp_replicate", "tp", "dp_shard"), (2, 2, 2))
            own = []
            with penstock.Loader(data, 5, seed=3, place=mesh) as loader:
                assert len(loader) == 2
                assert loader.place.rank == (rank // 4) * 2 + rank % 2
                own.append([batch.ids.tolist() for batch in loader])
            for kind in (DataLoader, DeviceLoader):
                options = {"device": "cpu"} if kind is DeviceLoader else {}
                other = kind(data, 5, shuffle=True, seed=3, place=mesh, **options)
                own.append([batch.ids.tolist() for batch in other])
                other.close()
            foreign = DataLoader(list(range(40)), 5, shuffle=True, seed=3, place=mesh)
            own.append([batch.tolist() for batch in foreign])
            foreign.close()
            assert own[0] == own[1] == own[2]
            dealt = StepLoader(data, 5, shuffle=True, seed=3, place=mesh)
            numbers = range(loader.place.rank, len(dealt), loader.place.world_size)
            assert [dealt.dataset[k].ids.tolist() for k in numbers] == own[0]
            dealt.close()
            shares.setdefault(loader.place.rank, []).append(own)
    assert sorted(shares) == [0, 1, 2, 3]
    assert all(first == second for first, second in shares.values())
    for kind in (0, 3):
        seen = itertools.chain(*(itertools.chain(*found[0][kind]) for found in shares.values()))
        assert sorted(seen) == list(range(40))


def test_state_goes_by_data_coordinates(tmp_path: Any) -> None:
    """A run of dp 2 x tp 4 goes on as dp 8, and has the same global batches."""
    np.save(tmp_path / "rows.npy", np.arange(48))
    data = penstock.open(tmp_path / "rows.npy", index="memory")

    def walk(shape: tuple[int, int], state: Any, steps: int) -> tuple[list[list[int]], Any]:
        batches: list[list[int]] = [[] for _ in range(steps)]
        for rank in range(8):
            with fake_rank(rank, 8):
                mesh = make_mesh(("dp", "tp"), shape)
                loader = penstock.Loader(data, global_batch_size=16, seed=1, place=mesh)
                loader.load_state_dict(state)
                for step, batch in enumerate(itertools.islice(loader, steps)):
                    if mesh.get_local_rank("tp") == 0:
                        batches[step] += batch.ids.tolist()
                found = loader.state_dict()
                loader.close()
        return [sorted(batch) for batch in batches], found

    alone = penstock.Loader(data, global_batch_size=16, seed=1, place=Place(0, 1))
    right = [sorted(batch.ids.tolist()) for batch in alone]
    first, state = walk((2, 4), alone.state_dict() | {"epoch": 0, "step": 0}, 1)
    rest, _ = walk((8, 1), state, 2)
    alone.close()
    assert first + rest == right


@pytest.mark.parametrize(
    ("names", "axes", "said"),
    [
        (("x", "y"), None, r"has the axes x, y: .* data_axes="),
        (("fsdp", "tp"), None, "has the axes fsdp, tp: .* data_axes="),
        (("dp_replicate", "fsdp"), None, "dp_replicate, fsdp: .* data_axes="),
        (("dp", "tp"), ("dp", "cp"), r"data_axes names 'cp', and the mesh has the axes dp, tp"),
        (None, None, r"shape \(2, 2\) has no names: .* mesh_dim_names="),
        (None, ("dp",), r"shape \(2, 2\) has no names"),
    ],
)
def test_meshes_that_do_not_say_it(names: Any, axes: Any, said: str) -> None:
    with fake_rank(0, 4):
        mesh = DeviceMesh("cpu", [[0, 1], [2, 3]], mesh_dim_names=names)
        with pytest.raises(UsageError, match=said):
            choose_place(mesh, axes, None, None)


def test_a_process_outside_the_mesh() -> None:
    """A process outside the mesh is told so, and does not become rank 0."""
    with fake_rank(3, 4):
        mesh = DeviceMesh("cpu", [[0], [1]], mesh_dim_names=("dp", "tp"))
        with pytest.raises(UsageError, match=r"this process is outside"):
            choose_place(mesh, None, None, None)


def test_a_place_and_ranks() -> None:
    with fake_rank(0, 4), pytest.raises(UsageError, match=r"rank=1 and world_size=None are given"):
        choose_place(make_mesh(("dp", "tp"), (2, 2)), None, 1, None)
