"""Nothing is left behind: dropped objects give back threads, processes, descriptors, sockets and
shared memory."""

from __future__ import annotations

import contextlib
import gc
import itertools
import os
import shutil
import threading
import time
import weakref
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import urlsplit

import numpy as np
import pytest

import penstock
from penstock.checkpoint import Checkpoints, LocalTier
from penstock.errors import PenstockError, WorkerError
from penstock.sharing import Broker, Resources, TransferPermit
from penstock.sharing.client import watch_broker
from penstock.sharing.ledger import Ledger
from tests.cache.test_cache import Gathering
from tests.services import S3, environment, moto
from tests.sharing import tenants

ROWS, WIDTH, BATCH = 48, 64, 8
_patience_s = 60.0  # a guard against hanging, not a measure

Held = Counter[str]
"""Counts of the threads, child processes, descriptors and maps of memory files of this process."""


def held() -> Held:
    gc.collect()
    found: Held = Counter(f"thread {thread.name}" for thread in threading.enumerate())
    for thread in os.listdir("/proc/self/task"):
        with contextlib.suppress(OSError):
            found["system threads"] += 1
            children = Path(f"/proc/self/task/{thread}/children").read_text().split()
            found.update(f"child {child}" for child in children)
    for number in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError):  # the one that lists
            target = os.readlink(f"/proc/self/fd/{number}")
            found[f"descriptor {target.partition(':')[0]}"] += 1  # sockets differ by number only
    for line in Path("/proc/self/maps").read_text().splitlines():
        if "/dev/shm/" in line or "/memfd:" in line:
            found[f"memory {line.split()[5]}"] += 1
    return found


def wait_until(is_as_before: Callable[[Held], bool], before: Held | None = None) -> None:
    """Threads that were told to end do so by themselves: look until they have."""
    event = threading.Event()
    until_s = time.monotonic() + _patience_s
    while time.monotonic() < until_s:
        if is_as_before(now := held()):
            return
        event.wait(0.01)
    raise AssertionError(f"left behind: {(now - (before or Counter())).most_common(20)}")


class Scene(NamedTuple):
    """A place of its own for each object.

    data:    of `ROWS` samples.
    broken:  True if the last file is missing, or what else there is of the kind fails.
    """

    path: Path
    data: penstock.Dataset
    broken: bool

    @staticmethod
    def make(path: Path, broken: bool) -> Scene:
        folder = path / "tree"
        folder.mkdir(parents=True)
        for row in range(ROWS):
            (folder / f"{row:03}.bin").write_bytes(np.full(WIDTH, row, np.uint8).tobytes())
        data = penstock.open(folder, index="memory")
        if broken:
            (folder / f"{ROWS - 1:03}.bin").unlink()
        return Scene(path, data, broken)


class Kind(NamedTuple):
    """Functions that make an object, and use it: for some steps, or to its end."""

    make: Callable[[Scene], Any]
    use: Callable[[Any, int], Any]


def walk(loader: Any, steps: int) -> None:
    for _ in itertools.islice(loader, steps):
        pass


def cache(**options: Any) -> penstock.Cache:
    return penstock.Cache(ram_bytes=ROWS * WIDTH // 2, cache_block_bytes=4 * WIDTH, **options)


def make_loader(scene: Scene, **options: Any) -> penstock.Loader:
    return penstock.Loader(scene.data, BATCH, rank=0, world_size=1, **options)


def make_mirrored(scene: Scene) -> penstock.Loader:
    places = [scene.path / "tree", scene.path / "mirror"]
    shutil.copytree(*places)
    data = penstock.open(places[0], index="memory", mirrors=[places[1]])
    for place in places if scene.broken else []:
        (place / "000.bin").unlink()
    return make_loader(scene._replace(data=data))


def walk_recorded(loader: penstock.Loader, steps: int) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PENSTOCK_TRACE", os.fspath(Path(loader.dataset.path).parent / "reads"))
        walk(loader, steps)


def make_torch(scene: Scene, name: str = "DataLoader", **options: Any) -> Any:
    torch = pytest.importorskip("penstock.torch")
    return getattr(torch, name)(scene.data, batch_size=BATCH, **options)


def fail_to_decode(sample: dict[str, Any]) -> Any:
    raise ValueError("decode fails")


def make_hosts(scene: Scene) -> list[penstock.Loader]:
    pytest.importorskip("zmq")
    gathering = Gathering(2)
    return [
        penstock.Loader(
            scene.data,
            BATCH,
            cache=cache(host=str(rank), listen="127.0.0.1", gather=gathering.of(rank)),
            rank=rank,
            world_size=2,
            assignment="strided",
        )
        for rank in range(2)
    ]


def walk_hosts(loaders: list[penstock.Loader], steps: int) -> None:
    with ThreadPoolExecutor(2) as threads:
        for done in [threads.submit(walk, loader, steps) for loader in loaders]:
            done.result()


def make_served(scene: Scene) -> Any:
    pytest.importorskip("prometheus_client")
    loader = make_loader(scene)
    return loader, penstock.loader.serve(loader)


def use_served(pair: Any, steps: int) -> None:
    import urllib.request

    loader, endpoint = pair
    with contextlib.closing(urllib.request.urlopen(endpoint.url)) as page:
        assert b"penstock_" in page.read()
    walk(loader, steps)


def make_traced(scene: Scene) -> Any:
    loader = make_loader(scene)
    return loader, penstock.loader.trace(loader, scene.path / "trace.json")


def walk_traced(pair: Any, steps: int) -> None:
    walk(pair[0], steps)
    pair[0].run_record()


def make_checkpoints(scene: Scene, **options: Any) -> Any:
    return scene, Checkpoints(scene.path / "checkpoints", **options)


def save(pair: Any, steps: int) -> None:
    scene, checkpoints = pair
    for step in range(min(steps, 3)):
        checkpoints.save(step, {"weights": np.arange(1000.0)})
    if steps > 1:
        checkpoints.load()
    if scene.broken:
        checkpoints.save(9, {"weights": object()})


def make_broker(scene: Scene) -> Any:
    path = scene.path / "broker" / "socket"
    return scene, path, Broker(path, Ledger(Resources(cores=4, bytes_per_s=1e8)))


@contextlib.contextmanager
def serve_objects(path: Path) -> Iterator[None]:
    """Have s3:// mean moto's S3 on the loopback."""
    for module in ("obstore", "moto"):
        pytest.importorskip(module)
    with moto() as port, pytest.MonkeyPatch.context() as patch:
        for name, value in environment(port).items():
            patch.setenv(name, value)
        yield


def make_objects(scene: Scene, **options: Any) -> penstock.Loader:
    port = urlsplit(os.environ["AWS_ENDPOINT_URL"]).port
    assert port is not None
    bucket = S3(port, f"dropped-{time.monotonic_ns()}")
    bucket.put("rows.bin", bytes(ROWS * WIDTH))
    data = penstock.open(f"s3://{bucket.name}/rows.bin", record_bytes=WIDTH, index="memory")
    if scene.broken:
        bucket.delete("rows.bin")
    return make_loader(scene._replace(data=data), **options)


@contextlib.contextmanager
def serve_leases(path: Path) -> Iterator[None]:
    """Have loaders find a process of `penstock broker`."""
    socket = path / "broker" / "socket"
    with tenants.broker(socket, "--bytes-per-s", "1GB/s"), pytest.MonkeyPatch.context() as patch:
        patch.setenv("PENSTOCK_BROKER", str(socket))
        yield


def make_leased(scene: Scene) -> Any:
    states = watch_broker(Path(os.environ["PENSTOCK_BROKER"]))
    return make_loader(scene), TransferPermit(1 << 40), states


def use_leased(parts: Any, steps: int) -> None:
    loader, permit, states = parts
    next(states)
    permit.wait(1)
    assert permit.bytes_per_s
    walk(loader, steps)


def use_broker(parts: Any, steps: int) -> None:
    """The broker's clients are dropped while it serves."""
    scene, path, broker = parts
    thread = threading.Thread(target=broker.serve)
    thread.start()
    try:
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("PENSTOCK_BROKER", str(path))
            loader, permit = make_loader(scene), TransferPermit(1 << 40)
            states = watch_broker(path)
            next(states)
            permit.wait(1)
            assert permit.bytes_per_s
            walk(loader, steps)
            if scene.broken:
                Broker(path, Ledger(Resources(cores=4)))
    finally:
        broker.stop()
        thread.join()


KINDS = {
    "dataset": Kind(
        lambda scene: scene.data,
        lambda data, steps: [data[-1 - row] for row in range(min(steps, ROWS))],
    ),
    "arrays": Kind(make_loader, walk),
    "decoded": Kind(lambda scene: make_loader(scene, decode=lambda sample: 1), walk),
    "failing": Kind(
        lambda scene: make_loader(scene, decode=fail_to_decode, decode_threads=2), walk
    ),
    "mixed": Kind(
        lambda scene: penstock.Loader(penstock.mix([(scene.data, 1), (scene.data, 2)]), BATCH), walk
    ),
    "memory": Kind(lambda scene: make_loader(scene, cache=cache()), walk),
    "memory, decoded": Kind(
        lambda scene: make_loader(scene, cache=cache(), decode=lambda sample: 1), walk
    ),
    "disk": Kind(
        lambda scene: make_loader(
            scene, cache=cache(disk_path=str(scene.path / "disk"), disk_bytes=1 << 20)
        ),
        walk,
    ),
    "no disk": Kind(
        lambda scene: make_loader(
            scene, cache=cache(disk_path=str(scene.path / "tree/000.bin"), disk_bytes=1 << 20)
        ),
        walk,
    ),
    "mirrored": Kind(make_mirrored, walk),
    "recorded": Kind(make_loader, walk_recorded),
    "objects": Kind(make_objects, walk),
    "objects in memory": Kind(lambda scene: make_objects(scene, cache=cache()), walk),
    "two hosts": Kind(make_hosts, walk_hosts),
    "torch": Kind(make_torch, walk),
    "worker processes": Kind(
        lambda scene: make_torch(scene, num_workers=2, workers="processes"), walk
    ),
    "device": Kind(lambda scene: make_torch(scene, "DeviceLoader", device="cpu"), walk),
    "served": Kind(make_served, use_served),
    "traced": Kind(make_traced, walk_traced),
    "checkpoints": Kind(make_checkpoints, save),
    "checkpoints on tiers": Kind(
        lambda scene: make_checkpoints(scene, local=[LocalTier(scene.path / "tier", 1 << 20)]), save
    ),
    "broker": Kind(make_broker, use_broker),
    "clients of a broker": Kind(make_leased, use_leased),
}

SERVICES: dict[str, Callable[[Path], contextlib.AbstractContextManager[None]]] = {
    "objects": serve_objects,
    "objects in memory": serve_objects,
    "clients of a broker": serve_leases,
}
"""Processes that live on while clients of theirs are dropped."""

USES = {
    "unused": (0, False),
    "used in part": (1, False),
    "used": (100, False),
    "failed": (100, True),
}
ALWAYS_FAILING = ("failing", "no disk")
SLOW = (
    "torch",
    "device",
    "memory",
    "memory, decoded",
    "checkpoints",
    "decoded",
    "mixed",
    "recorded",
    "objects in memory",
    "clients of a broker",
)
FAILURES = (PenstockError, ValueError, TypeError)


@pytest.mark.parametrize(
    "kind",
    [pytest.param(kind, marks=[pytest.mark.long] * (kind in SLOW)) for kind in KINDS],
)
def test_a_dropped_object_leaves_nothing(kind: str, tmp_path: Path) -> None:
    """Without close: threads, processes, descriptors and memory are those of before."""
    numbers = itertools.count()

    def use(steps: int, broken: bool) -> None:
        scene = Scene.make(tmp_path / str(next(numbers)), broken)
        made = KINDS[kind].make(scene)
        del scene
        if steps:
            try:
                KINDS[kind].use(made, steps)
            except FAILURES:
                assert broken or kind in ALWAYS_FAILING
            else:
                assert not broken
                assert kind not in ALWAYS_FAILING

    with SERVICES.get(kind, lambda path: contextlib.nullcontext())(tmp_path):
        for name in ("used", "failed"):  # what libraries start once in a process
            use(*USES[name])
        wait_until(lambda now: not any(name.startswith("thread penstock") for name in now))
        before = held()
        for name in USES:
            use(*USES[name])
            wait_until(lambda now: now <= before, before)  # what others left may end meanwhile


@pytest.mark.parametrize(
    "kind",
    [
        pytest.param(kind, marks=[pytest.mark.long] * (kind in (*SLOW, *SERVICES)))
        for kind in KINDS
        if KINDS[kind].use in (walk, walk_recorded) and kind != "no disk"
    ],
)
def test_a_loader_that_failed_goes_at_once(kind: str, tmp_path: Path) -> None:
    """Not when the collector runs: its disk tier would be in use until then."""

    def fail() -> weakref.ref[Any]:
        loader = KINDS[kind].make(Scene.make(tmp_path / "scene", True))
        with contextlib.suppress(*FAILURES):
            KINDS[kind].use(loader, 100)
            raise AssertionError("no error")
        return weakref.ref(loader)

    with SERVICES.get(kind, lambda path: contextlib.nullcontext())(tmp_path):
        gc.collect()
        gc.disable()
        try:
            assert fail()() is None
        finally:
            gc.enable()


def test_a_broker_that_is_told_to_end_leaves_nothing(tmp_path: Path) -> None:
    """No socket; its clients go on with their own budget, and leave nothing."""
    socket = tmp_path / "broker" / "socket"

    def use() -> None:
        with tenants.broker(socket, "--bytes-per-s", "1MB/s") as process:
            loader = make_loader(Scene.make(tmp_path / str(time.monotonic_ns()), False))
            states, permit = watch_broker(socket), TransferPermit(1 << 40)
            batches = iter(loader)
            next(batches)
            permit.wait(1)
            assert permit.bytes_per_s
            assert len(next(states)["jobs"]) == 1
            process.terminate()
            assert process.wait(_patience_s) == 0
        assert {file.name for file in socket.parent.iterdir()} == {"socket.lock"}
        permit.wait(1 << 40)
        permit.wait(1)  # for days, at the rate of before
        assert permit.bytes_per_s is None
        assert len([*batches]) == ROWS // BATCH - 1
        with pytest.raises(WorkerError, match="has ended"):
            list(states)

    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PENSTOCK_BROKER", str(socket))
        use()
        wait_until(lambda now: not any(name.startswith("thread penstock") for name in now))
        before = held()
        use()
        wait_until(lambda now: now <= before, before)


def test_a_batch_outlives_its_loader(tmp_path: Path) -> None:
    """Its memory stays while it is used, and goes with it."""

    def use() -> None:
        loader = make_loader(Scene.make(tmp_path / str(time.monotonic_ns()), False), cache=cache())
        batch = next(iter(loader))
        del loader
        gc.collect()
        assert (batch["data"][:, 0] == batch.ids).all()

    use()
    wait_until(lambda now: not any(name.startswith("thread penstock") for name in now))
    before = held()
    use()
    wait_until(lambda now: now <= before)
