"""Batches copied ahead: equal, however late a device works, and counted when they are given."""

from __future__ import annotations

import gc
import itertools
import threading
from collections.abc import Iterator
from random import Random
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from torch.utils._pytree import tree_leaves  # noqa: E402

import penstock  # noqa: E402
from penstock.errors import UsageError  # noqa: E402
from penstock.torch import DataLoader, StepLoader, fill_batch  # noqa: E402
from penstock.torch.device_copies import CopyTransfer  # noqa: E402
from tests.torch.delayed_device import GUARDS, DelayedDevice  # noqa: E402
from tests.torch.test_loader import Numbers, same, structure  # noqa: E402


@pytest.fixture(scope="module")
def records(tmp_path_factory: pytest.TempPathFactory) -> penstock.Dataset:
    """83 records of 16 bytes, of which the first is the number."""
    rows = np.random.default_rng(1).integers(0, 256, (83, 16), np.uint8)
    rows[:, 0] = np.arange(83)
    path = tmp_path_factory.mktemp("records") / "rows.bin"
    rows.tofile(path)
    return penstock.open(path, record_bytes=16)


def copies(loader: DataLoader, device: DelayedDevice) -> DataLoader:
    """The loader, made to copy to a device that this process can have."""
    loader._open_transfer = lambda: CopyTransfer(device)
    return loader


def leaves(batch: Any) -> list[Any]:
    own = [batch.ids, batch.valid] if isinstance(batch, penstock.Batch) else []
    return tree_leaves(batch) + own


def walk(device: DelayedDevice, random: Random, batches: Iterator[Any]) -> Iterator[list[Any]]:
    """Compute with batches as a model does, and say what was read of each: the work is given to
    the stream that is current, memory is taken and given back, and the GPU does it some time."""
    held: list[Any] = []
    while True:
        device.active = random.choice([*device.users, device.active, device.active])
        batch = next(batches, None)
        if batch is None:
            return
        device.work_on(3)
        parts = leaves(batch)
        found = [device.read(part) if isinstance(part, torch.Tensor) else [part] for part in parts]
        likes = [torch.empty_like(part) for part in parts if isinstance(part, torch.Tensor)]
        held = [*held, batch]
        del held[: random.randrange(len(held) + 1)], parts, batch
        given, others = device.active, [stream for stream in device.users if random.random() < 0.5]
        for device.active in others:  # whatever else a program does
            for like in likes:
                device.compute(like)
        device.active = given
        device.work_on(random.choice([0, 3, 12]))
        yield found


def compared(dataset: Any, random: Random, missing: str = "") -> bool:
    """Whether two epochs, and the beginning of one that is given up, are as without a device."""
    device = DelayedDevice(random, missing)
    options: dict[str, Any] = {"batch_size": 8, "shuffle": True, "seed": 3}
    loader, plain = copies(DataLoader(dataset, **options), device), DataLoader(dataset, **options)
    seen, wanted = [], []
    for epoch in range(3):
        count = 2 if epoch == 1 else len(plain)
        wanted += [leaves(batch) for batch in itertools.islice(plain, count)]
        batches = iter(loader)
        seen += list(itertools.islice(walk(device, random, batches), count))
        for loader_ in (loader, plain):
            loader_.set_epoch(epoch + 1)
        likes = [part for part in wanted[-1] if isinstance(part, torch.Tensor)]
        del batches
        gc.collect()
        kept = [device.allocate(like) for like in likes for _ in range(3)]
        likes = [like for like in likes for _ in range(3)]
        for taken, like in zip(kept, likes, strict=True):  # memory of the batch that nobody got
            own = device.borrow(taken)
            device.active.give(lambda own=own, like=like: own.copy_(like))
        device.work_on(20)
        seen.append([device.read(taken) for taken in kept])
        wanted.append(likes)
        device.finish()
    device.finish()
    loader.close()
    assert len(seen) == len(wanted)
    return all(
        same([one for (one,) in found], want) for found, want in zip(seen, wanted, strict=True)
    )


@pytest.mark.parametrize("seed", range(3))
def test_late_devices_give_equal_batches(records: penstock.Dataset, seed: int) -> None:
    """Whatever the sequence in which streams work, and on whichever the user computes."""
    assert compared(records, Random(seed))


@pytest.mark.parametrize("seed", range(3))
def test_late_devices_give_every_structure(seed: int) -> None:
    assert compared(Numbers(13, structure), Random(seed))


def test_batches_that_threads_copy() -> None:
    """Large batches: dense tensors as they lie, others laid out anew."""
    large = torch.randint(256, ((5 << 20) + 3,), dtype=torch.uint8)
    square = torch.rand(1000, 900)
    batch = {
        "odd": torch.arange(7, dtype=torch.uint8),
        "large": large,
        "view": large[5:],
        "turned": square.t(),
        "columns": square[:, ::3],
        "expanded": square[:1].expand(30, 900),
        "empty": square[:0],
        "scalar": torch.tensor(3, dtype=torch.bfloat16),
        "text": "text",
    }
    device = DelayedDevice(Random(0))
    transfer = CopyTransfer(device)
    got = transfer.hand_over(transfer.begin(batch))
    found = {name: device.read(part) for name, part in got.items() if name != "text"}
    device.finish()
    for name, (part,) in found.items():
        assert same(part, batch[name]), name
        assert got[name].stride() == torch.empty_like(batch[name]).stride()


@pytest.mark.long
@pytest.mark.parametrize("seed", range(3, 40))
def test_late_devices_in_many_sequences(records: penstock.Dataset, seed: int) -> None:
    assert compared(records, Random(seed))
    assert compared(Numbers(13, structure), Random(seed))


@pytest.mark.parametrize("missing", GUARDS)
def test_each_guard_is_needed(records: penstock.Dataset, missing: str) -> None:
    """Without it some sequence gives other bytes, which shows that the test above would fail."""
    seeds = [6, 1]  # of the first twenty the only one, and one of many, that needs its guard
    assert not all(compared(records, Random(seed), missing) for seed in seeds)


# -- batches ahead are not counted, and nothing of them is left ------------------------------------


def numbers_of(batches: Any, device: DelayedDevice | None = None) -> list[list[int]]:
    """The samples of batches, which the device, if they come from one, has by then."""
    numbers = []
    for batch in batches:
        if device is not None:
            device.finish()
        numbers.append(batch.ids.tolist())
    return numbers


@pytest.mark.parametrize("options", [{}, {"workers": "processes", "num_workers": 1}])
def test_a_state_counts_batches_that_were_given(
    records: penstock.Dataset, options: dict[str, Any]
) -> None:
    """Resumed at each step, in either kind of loader, an epoch goes on with the batch after it."""
    options |= {"batch_size": 20, "shuffle": True, "seed": 1}
    plain = DataLoader(records, **options)
    whole = numbers_of(plain) + numbers_of(plain)
    device = DelayedDevice(Random(0))
    loader = copies(DataLoader(records, **options), device)
    assert len(loader) == len(plain) == 5
    batches, others = iter(loader), iter(plain)
    plain.set_epoch(0)
    for step in range(1, 6):
        next(batches)
        next(others)
        state = loader.state_dict()
        assert state == plain.state_dict()
        own = DelayedDevice(Random(step))
        resumed = copies(DataLoader(records, **options), own)
        resumed.load_state_dict(state)
        rest = numbers_of(resumed, own) + numbers_of(resumed, own)
        assert rest[: len(whole) - step] == whole[step:]
        resumed.close()
    assert next(batches, None) is None
    assert next(others, None) is None
    assert loader.state_dict() == plain.state_dict()
    assert numbers_of(loader, device) == whole[5:]
    loader.close()
    plain.close()


def test_errors_come_at_the_turn_of_their_batch(records: penstock.Dataset) -> None:
    """An error of reading or copying the batch ahead; the call after it gives the next."""

    def make(i: int) -> Any:
        if i in (4, 8):
            raise ArithmeticError(i)
        return torch.tensor(i)

    def decode(sample: dict[str, Any]) -> Any:
        return {"x": make(sample["__id__"])}

    device = DelayedDevice(Random(0))
    for loader in (
        DataLoader(Numbers(10, make), 2),
        DataLoader(records, 2, decode=decode, num_workers=1),
    ):
        batches, steps = iter(copies(loader, device)), []
        for step in range(5):
            if step in (2, 4):
                with pytest.raises(ArithmeticError):
                    next(batches)
            else:
                steps.append(next(batches))
                assert loader.state_dict()["step"] == step + 1
        assert len(steps) == 3
        loader.close()
    loader = copies(DataLoader(records, 2), device)
    batches = iter(loader)
    device.room = 3  # tensors of one batch
    next(batches)
    with pytest.raises(MemoryError):
        next(batches)
    device.room = 1 << 60
    assert numbers_of([next(batches)], device) == [[4, 5]]


def test_nothing_is_left_of_an_iterator_that_is_dropped(records: penstock.Dataset) -> None:
    """No thread, no memory of the device, no pinned memory; the next epoch is whole."""
    device = DelayedDevice(Random(0))
    loader = copies(DataLoader(records, 8, shuffle=True), device)
    batches = iter(loader)
    batch = next(batches)
    threads = threading.active_count()
    for _ in range(3):
        batches = iter(loader)
        batch = next(batches)
        assert len(device.lent) == 6  # of this batch and the next
        assert threading.active_count() == threads
    del batches, batch
    gc.collect()
    assert not device.lent
    assert not device._pinned
    device.finish()
    assert sum(map(len, numbers_of(loader, device))) == 83
    loader.close()


def test_memory_of_a_dropped_batch_is_not_lent_too_early(records: penstock.Dataset) -> None:
    """Somebody else's tensors stay what they are while the copy that nobody wants is made late."""
    device = DelayedDevice(Random(0))
    batches = iter(copies(DataLoader(records, 8), device))
    parts = leaves(next(batches))
    del batches
    gc.collect()
    own = [device.allocate(part) for part in parts]
    for part in map(device.borrow, own):
        device.active.give(lambda part=part: part.fill_(1))
    device.hurry()
    assert all((part == 1).all() for part in own)
    device.finish()
    assert all((part == 1).all() for part in own)


class OwnClass(torch.Tensor):
    pass


def test_what_is_no_plain_tensor(records: penstock.Dataset) -> None:
    """Tensors of the device stay, other kinds are moved at once, strings and objects stay."""
    device = DelayedDevice(Random(0))
    there = device.allocate(torch.zeros(3))
    kinds = {
        "sparse": torch.eye(3).to_sparse(),
        "class": torch.zeros(2).as_subclass(OwnClass),
        "graph": torch.zeros(2, requires_grad=True),
        "there": there,
        "text": "text",
        "strings": np.array(["a", "b"]),
    }
    transfer = CopyTransfer(device)
    moving = transfer.begin(kinds)
    got = transfer.hand_over(moving)
    assert all(got[name] is kind for name, kind in kinds.items())
    with torch.inference_mode():
        moving = transfer.begin({"x": torch.ones(2, 3).t()})
        found = device.read(transfer.hand_over(moving)["x"])
    device.finish()
    assert found[0].tolist() == torch.ones(3, 2).tolist()
    assert not transfer.hand_over(moving)["x"].is_inference()
    assert transfer.hand_over(moving)["x"].stride() == (1, 3)  # as `to` has it


def test_step_loader(records: penstock.Dataset) -> None:
    """The batches of a StepLoader come from the device; seeking drops the batch ahead."""
    loader = StepLoader(records, 20, shuffle=True)
    device = DelayedDevice(Random(0))
    copies(loader.loader, device)
    whole = numbers_of(DataLoader(records, 20, shuffle=True))
    assert numbers_of(loader, device) == whole
    batches = loader.steps
    loader.set_epoch(0)
    taken = (batches[step] for step in (3, 1, 2, 4))
    assert numbers_of(taken, device) == [whole[step] for step in (3, 1, 2, 4)]
    loader.loader.close()


@pytest.mark.parametrize("device", ["meta", "xpu", "gpu", "", True, 1.5, "mps"])
def test_devices_that_are_refused(device: Any) -> None:
    with pytest.raises(UsageError, match="use 'cuda', 'cuda:1', 'cpu'") as refused:
        DataLoader(Numbers(4), device=device)
    assert repr(device) in str(refused.value)


def test_devices_that_are_not_there() -> None:
    with pytest.raises(UsageError, match=r"'cuda:99', of \d+ CUDA devices: use"):
        DataLoader(Numbers(4), device="cuda:99")
    loader = DataLoader(Numbers(4), device="cpu")
    assert loader.device == torch.device("cpu")
    with pytest.raises(ValueError, match="is fixed: make another loader"):
        loader.device = None


def test_cpu(records: penstock.Dataset) -> None:
    """On the CPU batches are those without a device, and none is read before its turn."""
    for batch, plain in zip(
        DataLoader(records, 8, device="cpu"), DataLoader(records, 8), strict=True
    ):
        assert batch == plain
    buffer = torch.zeros(2, dtype=torch.int64)

    def collate(samples: list[int]) -> Any:
        return buffer.copy_(torch.tensor(samples))  # the same memory again, as torch allows

    batches = DataLoader(Numbers(6), 2, collate_fn=collate, device="cpu")
    assert [batch.tolist() for batch in batches] == [[0, 1], [2, 3], [4, 5]]


# -- CUDA graphs and torch.compile -----------------------------------------------------------------


def test_fill_batch(records: penstock.Dataset) -> None:
    """Tensors are filled where they lie, ids and valid too; the rest is replaced."""

    def collate(samples: list[Any]) -> Any:
        data = torch.stack([torch.tensor(sample["x"]) for sample in samples])
        return {"x": data, "more": (data + 1, [str(int(data[0, 0]))])}

    def decode(sample: dict[str, Any]) -> Any:
        return {"x": np.frombuffer(sample["data"], np.uint8).copy()}

    device = DelayedDevice(Random(0))
    options: dict[str, Any] = {"decode": decode, "collate_fn": collate, "rank": 3, "world_size": 4}
    loader = copies(DataLoader(records, 7, **options), device)
    target = next(iter(DataLoader(records, 7, **options)))
    target.keep_valid(target.valid)  # as batches of a device have it
    addresses = [part.data_ptr() for part in leaves(target) if isinstance(part, torch.Tensor)]
    for batch in loader:
        device.finish()
        assert fill_batch(target, batch) is target
        assert target == batch
        assert torch.equal(target.valid, batch.valid)
        found = [part.data_ptr() for part in leaves(target) if isinstance(part, torch.Tensor)]
        assert found == addresses
    assert int(target.valid.sum()) == 6  # of 83 - 2 * 28 = 27 samples, on four ranks
    loader.close()


def test_batches_that_cannot_be_filled(records: penstock.Dataset) -> None:
    """The error comes before anything is copied."""
    first, *_, last = DataLoader(records, 8)
    kept = first["data"].clone()
    with pytest.raises(UsageError, match=r"drop_last=True"):
        fill_batch(first, last)
    with pytest.raises(UsageError, match="structure"):
        fill_batch(first, penstock.Batch({"other": kept}))
    with pytest.raises(AttributeError, match="made of fields alone"):
        fill_batch(first, penstock.Batch({"data": kept + 1}))
    ragged = [penstock.Ragged(torch.arange(n), torch.tensor([0, 1, n])) for n in (3, 4)]
    with pytest.raises(UsageError, match=r"penstock\.pad"):
        fill_batch({"x": ragged[0]}, {"x": ragged[1]})
    with pytest.raises(UsageError, match="make dicts of tensors"):
        fill_batch({"x": np.zeros(2)}, {"x": DelayedTensor()})
    with torch.inference_mode():
        inferred = torch.zeros(2, 3)
    unwritable = {
        "several of its elements": torch.zeros(1, 3).expand(2, 3),
        r"unfold\): fill its clone": torch.zeros(4).unfold(0, 3, 1),
        r"fill its detach\(\)": torch.zeros(2, 3, requires_grad=True),
        "inference mode": inferred,
    }
    for words, tensor in unwritable.items():
        with pytest.raises(UsageError, match=words):
            fill_batch(
                {"data": first["data"], "x": tensor}, {"data": kept + 1, "x": torch.ones(2, 3)}
            )
    assert torch.equal(first["data"], kept)
    writable = [torch.zeros(3, 2).T, torch.zeros(2, 6)[:, ::2], torch.zeros(1, 3).expand(2, 3)[:1]]
    for tensor in writable:
        fill_batch([tensor], [torch.ones(tensor.shape)])
        assert tensor.min() == 1


class DelayedTensor:
    def to(self, device: Any) -> Any:
        return self


@pytest.mark.long
@pytest.mark.parametrize("read", ["data", "ids", "valid"])
def test_compiled_once(records: penstock.Dataset, read: str) -> None:
    """torch.compile compiles a step once, not once a batch, whichever tensor it reads."""
    from torch._dynamo.testing import CompileCounter

    counter = CompileCounter()
    torch._dynamo.reset()

    def step(batch: Any) -> Any:
        part = batch[read] if read == "data" else getattr(batch, read)
        return part.double().sum()

    compiled = torch.compile(step, backend=counter)
    device = DelayedDevice(Random(0))
    loader = copies(DataLoader(records, 8, shuffle=True, drop_last=True), device)
    for _ in range(2):
        for batch in loader:
            device.finish()
            assert compiled(batch) == step(batch)
    assert counter.frame_count == 1
    loader.close()


# -- a real GPU ------------------------------------------------------------------------------------

on_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")


@on_gpu
@pytest.mark.parametrize("workers", [0, 2])
def test_gpu_batches_are_equal(records: penstock.Dataset, workers: int) -> None:
    """On the current stream and on others, while the GPU is busy with the batches before."""
    for dataset in (records, Numbers(40, structure)):
        options: dict[str, Any] = {"batch_size": 4, "shuffle": True, "num_workers": workers}
        loader, plain = (
            DataLoader(dataset, **options, device="cuda"),
            DataLoader(dataset, **options),
        )
        busy, streams = torch.rand(2048, 2048, device="cuda"), [torch.cuda.Stream() for _ in "ab"]
        for _ in range(2):
            kept, batches = [], iter(loader)
            for number, want in enumerate(plain):
                with torch.cuda.stream(streams[number // 3 % 2]):
                    parts = leaves(next(batches))
                    busy @ busy
                    kept.append([p.clone() if isinstance(p, torch.Tensor) else p for p in parts])
                    assert all(p.is_cuda for p in parts if isinstance(p, torch.Tensor))
                    parts = [torch.full_like(p, 1) for p in parts if isinstance(p, torch.Tensor)]
                kept[-1].append(leaves(want))
            torch.cuda.synchronize()
            for *parts, want in kept:
                assert same([p.cpu() if isinstance(p, torch.Tensor) else p for p in parts], want)
        loader.close()
        plain.close()


@on_gpu
def test_gpu_dropped_iterators(records: penstock.Dataset) -> None:
    """Memory of a batch that nobody got is not written to later."""
    loader = DataLoader(records, 8, device="cuda")
    for _ in range(100):
        torch.rand(1024, 1024, device="cuda") @ torch.rand(1024, 1024, device="cuda")
        batches = iter(loader)
        next(batches)
        del batches
        own = torch.full((8, 16), 7, dtype=torch.uint8, device="cuda")
        torch.cuda.synchronize()
        assert (own == 7).all()


@on_gpu
def test_gpu_graph(records: penstock.Dataset) -> None:
    """A captured graph gets each batch, and asking for one during the capture is refused."""
    options: dict[str, Any] = {"batch_size": 8, "shuffle": True, "drop_last": True}
    batches = iter(DataLoader(records, **options, device="cuda"))
    static = next(batches)
    warming = torch.cuda.Stream()
    warming.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(warming):
        (static["data"].double().sum(1) * static.valid).clone()
    torch.cuda.current_stream().wait_stream(warming)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        found = static["data"].double().sum(1) * static.valid
        with pytest.raises(UsageError, match="captures no batches"):
            next(batches)
    plain = iter(DataLoader(records, **options))
    results, wanted = [], [next(plain)["data"].double().sum(1)]
    graph.replay()
    results.append(found.clone())
    for batch, want in zip(batches, plain, strict=True):
        fill_batch(static, batch)
        graph.replay()
        results.append(found.clone())
        wanted.append(want["data"].double().sum(1))
    assert torch.equal(torch.stack(results).cpu(), torch.stack(wanted))


@on_gpu
def test_gpu_compiled_with_graphs(records: penstock.Dataset) -> None:
    """torch.compile with CUDA graphs of its own gives what the function gives."""
    compiled = torch.compile(lambda data: data.double().sum(1), mode="reduce-overhead")
    loader = DataLoader(records, 8, shuffle=True, drop_last=True, device="cuda")
    for _ in range(2):
        for batch in loader:
            assert torch.equal(compiled(batch["data"]).clone(), batch["data"].double().sum(1))
