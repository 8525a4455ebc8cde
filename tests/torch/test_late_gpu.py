"""Batches copied to a GPU whose streams are late, and kept so by purpose: their bits are those of
the CPU, and without any one of the guards they are not."""

from __future__ import annotations

from random import Random
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")

import penstock  # noqa: E402
from penstock.torch import DataLoader, StepLoader  # noqa: E402
from penstock.torch.device_copies import CopyTransfer, CudaStreams  # noqa: E402
from tests.torch.delayed_device import GUARDS  # noqa: E402

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")

LATE = 1 << 22
"""Cycles of the GPU's clock by which a copy is late: 2 ms and more."""
RECORD_BYTES, RECORDS, BATCH = 1 << 20, 26, 4
JUNK = 0xEE


class LateEvent:
    """Event of the copies, which waits only where its guard is there."""

    def __init__(self, event: Any, missing: str) -> None:
        self._event, self._missing = event, missing

    def wait(self, stream: Any) -> None:
        if self._missing != "wait":
            self._event.wait(stream)

    def synchronize(self) -> None:
        if self._missing != "synchronize":
            self._event.synchronize()


class LateStreams(CudaStreams):
    """A GPU whose copies begin late; `missing` takes one of the guards away."""

    def __init__(self, missing: str) -> None:
        super().__init__(torch.device("cuda"))
        self.missing = missing

    def follow(self, stream: Any) -> None:
        if self.missing != "follow":
            super().follow(stream)

    def copy(self, target: Any, source: Any) -> None:
        with torch.cuda.stream(self._copies):
            torch.cuda._sleep(LATE)
        super().copy(target, source)

    def record(self) -> Any:
        return LateEvent(super().record(), self.missing)

    def keep(self, tensor: Any, stream: Any = None) -> None:
        if self.missing != ("keep for copies" if stream is None else "keep for the user"):
            super().keep(tensor, stream)


@pytest.fixture(scope="module")
def records(tmp_path_factory: pytest.TempPathFactory) -> penstock.Dataset:
    """26 records of 1 MiB."""
    path = tmp_path_factory.mktemp("large") / "rows.bin"
    rows = np.random.default_rng(1).integers(0, 256, (RECORDS, RECORD_BYTES), np.uint8)
    rows.tofile(path)
    return penstock.open(path, record_bytes=RECORD_BYTES)


def write_junk(stream: Any, shape: Any) -> list[Any]:
    """Take memory of a stream for three tensors of bytes, and write to it."""
    with torch.cuda.stream(stream):
        return [torch.full(shape, JUNK, dtype=torch.uint8, device="cuda") for _ in range(3)]


def compare_epoch(dataset: penstock.Dataset, streams: CudaStreams, seed: int) -> bool:
    """Tell whether an epoch, read on two streams in a drawn sequence, has the bits of the CPU, and
    whether memory of a batch in motion that is dropped keeps what its next owner writes."""
    random, options = Random(seed), {"batch_size": BATCH, "shuffle": True, "seed": seed}
    plain, loader = DataLoader(dataset, **options), DataLoader(dataset, **options, device="cuda")
    loader._open_transfer = lambda: CopyTransfer(streams)
    users = [torch.cuda.Stream(), torch.cuda.Stream()]
    batches, found, wanted = iter(loader), [], []
    for want in plain:
        user, other = random.sample(users, 2)
        with torch.cuda.stream(user):
            batch = next(batches)
            if random.random() < 0.5:
                torch.cuda._sleep(16 * LATE)  # the GPU is busy with the steps before
            found.append([part.clone() for part in (batch["data"], batch.ids, batch.valid)])
            shape = batch["data"].shape
            del batch
        write_junk(other, shape)
        wanted.append([want["data"], want.ids, want.valid])
    assert next(batches, None) is None
    torch.cuda.synchronize()
    with torch.cuda.stream(users[0]):
        batches = iter(loader)
        shape = next(batches)["data"].shape
        del batches
    owned = write_junk(users[0], shape)
    torch.cuda.synchronize()
    loader.close()
    plain.close()
    return all(bool((tensor == JUNK).all()) for tensor in owned) and all(
        torch.equal(part.cpu(), torch.as_tensor(like))
        for parts, likes in zip(found, wanted, strict=True)
        for part, like in zip(parts, likes, strict=True)
    )


@pytest.mark.parametrize("seed", range(3))
def test_late_copies_are_equal(records: penstock.Dataset, seed: int) -> None:
    """Large batches that are copied late, and used later still, on one stream and on another."""
    assert compare_epoch(records, LateStreams(""), seed)


@pytest.mark.parametrize("missing", GUARDS)
def test_each_guard_is_needed_on_a_gpu(records: penstock.Dataset, missing: str) -> None:
    """Without it the GPU gives other bytes, which shows that the test above would fail."""
    assert not all(compare_epoch(records, LateStreams(missing), seed) for seed in range(5))


@pytest.mark.parametrize("kind", [DataLoader, StepLoader])
@pytest.mark.parametrize("options", [{}, {"num_workers": 2, "workers": "processes"}])
def test_large_batches_are_equal(
    records: penstock.Dataset, kind: Any, options: dict[str, Any]
) -> None:
    """Take batches as fast as they come, beside a GPU that computes."""
    options |= {"batch_size": BATCH, "shuffle": True}
    plain, loader = DataLoader(records, **options), kind(records, **options, device="cuda")
    square, found = torch.rand(2048, 2048, device="cuda"), []
    for batch in loader:
        square @ square
        found.append([batch["data"].clone(), batch.ids.clone()])
    wanted = [[batch["data"], batch.ids] for batch in plain]
    assert len(found) == len(wanted)
    for parts, likes in zip(found, wanted, strict=True):
        for part, like in zip(parts, likes, strict=True):
            assert part.is_cuda
            assert torch.equal(part.cpu(), torch.as_tensor(like))
