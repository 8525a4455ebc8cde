"""Random transforms: equal runs give equal bits, or are refused, in threads and processes."""

from __future__ import annotations

import importlib.util
import random
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")

import penstock  # noqa: E402
from penstock.errors import UsageError  # noqa: E402
from penstock.torch.loader import DataLoader  # noqa: E402
from tests.slices import first, thinned  # noqa: E402

# ruff: noqa: NPY002 (numpy's global generator is what users draw from)
COUNT = 96


def draw_python(pixels: torch.Tensor) -> torch.Tensor:
    return pixels.roll(random.randint(0, 99)) * random.gauss(1, 0.1)


def draw_numpy(pixels: torch.Tensor) -> torch.Tensor:
    return pixels + torch.from_numpy(np.random.normal(size=tuple(pixels.shape)))


def draw_torch(pixels: torch.Tensor) -> torch.Tensor:
    return torch.nn.functional.dropout(pixels.flip(0) if torch.rand(()) < 0.5 else pixels, 0.3)


def draw_rarely(pixels: torch.Tensor) -> torch.Tensor:
    """One sample in twelve draws, and most of a worker's first samples do not."""
    return draw_numpy(pixels) * random.random() if int(pixels[0]) % 12 == 11 else pixels


def draw_torchvision(pixels: torch.Tensor) -> torch.Tensor:
    from torchvision.transforms import v2  # type: ignore[import-not-found]

    transform = v2.Compose(
        [v2.RandomResizedCrop(3, antialias=True), v2.RandomHorizontalFlip(), v2.ColorJitter(0.4)]
    )
    return transform(pixels.reshape(1, 4, 4).expand(3, 4, 4) / 255)


TRANSFORMS = [draw_rarely, draw_python, draw_numpy, draw_torch]
if importlib.util.find_spec("torchvision"):
    TRANSFORMS.append(draw_torchvision)


class Decode:
    """A decode that applies a transform; picklable, as spawned workers need it."""

    def __init__(self, transform: Callable[[torch.Tensor], torch.Tensor]) -> None:
        self._transform = transform

    def __call__(self, sample: Any) -> Any:
        pixels = torch.frombuffer(bytearray(sample["data"]), dtype=torch.uint8).double()
        return {"image": self._transform(pixels)}


class Items:
    """The same samples as a torch dataset."""

    def __init__(self, records: penstock.Dataset, decode: Decode) -> None:
        self._records, self._decode = records, decode

    def __len__(self) -> int:
        return len(self._records)

    def __getitem__(self, i: int) -> Any:
        return self._decode(self._records[i])


@pytest.fixture(scope="module")
def records(tmp_path_factory: Any) -> penstock.Dataset:
    path: Path = tmp_path_factory.mktemp("draws") / "records.bin"
    path.write_bytes(b"".join(bytes([i]) + bytes(range(15)) for i in range(COUNT)))
    return penstock.open(path, record_bytes=16)


def walk(loader: DataLoader, state: Any = None, stop: int | None = None) -> tuple[list[bytes], Any]:
    """The images of the rest of an epoch, or up to a step; and the state there."""
    if state is not None:
        loader.load_state_dict(state)
    images = []
    try:
        for step, batch in enumerate(loader):
            images.append(batch["image"].numpy().tobytes())
            if step + 1 == stop:
                break
        return images, loader.state_dict()
    finally:
        loader.close()
        for thread in threading.enumerate():  # one that draws holds a lock, and the next test forks
            if thread.name.startswith("penstock-worker"):
                thread.join()


KINDS: dict[str, dict[str, Any]] = {
    "processes": {"workers": "processes", "num_workers": 2},
    "inline": {"workers": "processes"},
    "threads": {},
    "threads of a sampler": {"workers": "threads", "num_workers": 2},
}


def run(records: penstock.Dataset, transform: Any, kind: str, seed: int, ours: bool) -> list[bytes]:
    """An epoch in one run, and in another that is resumed at a random step: the same images."""
    decode, choice = Decode(transform), random.Random(f"{transform.__name__} {seed}")
    size = choice.choice([3, 8, 16])

    def make() -> DataLoader:
        options = KINDS[kind] | {"seed": seed}
        if not ours:
            return DataLoader(Items(records, decode), size, shuffle=True, **options)
        if kind == "threads of a sampler":
            return DataLoader(records, size, sampler=list(range(COUNT)), decode=decode, **options)
        return DataLoader(records, size, shuffle=True, decode=decode, **options)

    images, _ = walk(make())
    head, state = walk(make(), stop=choice.randrange(1, COUNT // size))
    rest, _ = walk(make(), state)
    assert head + rest == images
    return images


@pytest.mark.wide
@pytest.mark.parametrize("seed", [*thinned(range(20))])
@pytest.mark.parametrize("ours", [True, False])
@pytest.mark.parametrize("transform", first(1, TRANSFORMS))
def test_equal_runs(records: penstock.Dataset, transform: Any, ours: bool, seed: int) -> None:
    """What workers' processes draw is what the calling process draws, resumed or not; in threads a
    draw is refused."""
    images = run(records, transform, "processes", seed, ours)
    assert run(records, transform, "inline", seed, ours) == images
    for kind in ("threads", "threads of a sampler"):
        if ours or kind != "threads":
            with pytest.raises(UsageError, match=r"draws from .* global generator.*processes"):
                run(records, transform, kind, seed, ours)


def test_processes_and_inline(records: penstock.Dataset) -> None:
    """No number of workers changes what is drawn."""
    found = [
        walk(
            DataLoader(records, 8, seed=1, decode=Decode(draw_rarely), workers="processes", **more)
        )
        for more in ({}, {"num_workers": 1}, {"num_workers": 3})
    ]
    assert found[0] == found[1] == found[2]


class Unlucky:
    """Items that cannot be made with the number that the process's generator gives next."""

    def __init__(self) -> None:
        state = torch.get_rng_state()
        self.number = self.draw()
        torch.set_rng_state(state)

    def draw(self) -> int:
        return int(torch.randint(1 << 62, ()))

    def __len__(self) -> int:
        return 4

    def __getitem__(self, index: int) -> int:
        if self.draw() == self.number:
            raise ValueError("an unlucky draw")
        return index


def test_a_draw_without_a_seed_is_no_fault() -> None:
    """The first batch that draws is made again with seeds, also where it failed without them."""
    loader = DataLoader(Unlucky(), batch_size=2)
    assert [batch.tolist() for batch in loader] == [[0, 1], [2, 3]]
    loader.close()
