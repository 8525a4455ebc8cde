"""Clips through a loader: frames are the films' on any world, however it is resumed."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import penstock
from penstock.dataset.dataset import Dataset
from penstock.index.chunked import Packets
from penstock.index.codecs import film as film_codec
from tests.index.formats.films import OPEN, Film, take_clip, write_film

FRAMES, EVERY, STRIDE, BATCH = 6, 2, 5, 6
FILMS = (40, 57, 33)


def write(folder: Path) -> list[Film]:
    return [
        write_film(folder / f"{n}", count, options=OPEN, seed=n) for n, count in enumerate(FILMS)
    ]


def open_clips(folder: Path, **options: Any) -> Dataset:
    clips = {"frames": FRAMES, "every": EVERY, "stride": STRIDE, "short": "pad"}
    return penstock.open(folder, clips=clips | options, index="memory")


def check(batch: penstock.Batch, data: Dataset, films: list[Film]) -> None:
    origins = data.origins(batch.ids)
    for row, (film, first) in enumerate(zip(*origins.values(), strict=True)):
        expected = take_clip(films[film], int(first), FRAMES, EVERY)
        assert np.array_equal(batch["frames"][row], expected)


def make_loaders(data: Dataset, world: int, decoded_bytes: int) -> list[penstock.Loader]:
    budget = penstock.Budget(decoded_bytes=decoded_bytes)
    how: dict[str, Any] = {"global_batch_size": BATCH, "seed": 3, "budget": budget}
    return [penstock.Loader(data, rank=rank, world_size=world, **how) for rank in range(world)]


@pytest.mark.parametrize("decoded_bytes", [0, 200_000, 1 << 26])
def test_a_run_resumes_on_any_world(tmp_path: Path, decoded_bytes: int) -> None:
    """From every step, on 1, 2 and 3 ranks, clips go on in the same sequence, frame by frame."""
    films = write(tmp_path)
    data = open_clips(tmp_path)

    def take_steps(world: int, state: Any = None) -> list[list[int]]:
        loaders = make_loaders(data, world, decoded_bytes)
        for loader in loaders if state is not None else ():
            loader.load_state_dict(state)
        steps = []
        for batches in zip(*loaders, strict=True):
            for batch in batches:
                check(batch, data, films)
            steps.append(sorted(np.concatenate([batch.ids for batch in batches]).tolist()))
        for loader in loaders:
            loader.close()
        return steps

    whole = take_steps(1)
    assert sorted(itertools.chain(*whole)) == list(range(len(data)))
    worlds = itertools.cycle((2, 3, 1))
    for step, (world, other) in zip(range(len(whole)), itertools.pairwise(worlds), strict=False):
        first = make_loaders(data, world, decoded_bytes)
        for batches in itertools.islice(zip(*first, strict=True), step):
            del batches
        (state,) = {str(loader.state_dict()): loader.state_dict() for loader in first}.values()
        for loader in first:
            loader.close()
        assert take_steps(other, state) == whole[step:]


@pytest.fixture
def decoded(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Groups whose packets are decoded."""
    groups: list[int] = []
    list_packets = Packets.list_packets

    def counted(packets: Packets, numbers: Any) -> Any:
        groups.extend(numbers.tolist())
        return list_packets(packets, numbers)

    monkeypatch.setattr(Packets, "list_packets", counted)
    return groups


def test_groups_are_decoded_as_seldom_as_memory_allows(
    tmp_path: Path, decoded: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """With memory for all frames each group is decoded once, or never again; without, only the
    frames that clips have are made arrays."""
    most, decode = [0], film_codec.decode_groups

    def counted(*given: Any) -> Any:
        most.append(int(np.bincount(given[4].group).max()))
        return decode(*given)

    monkeypatch.setattr(film_codec, "decode_groups", counted)
    write(tmp_path)
    data = open_clips(tmp_path)
    groups = data.index.layouts[0].chunks.count
    for decoded_bytes in (1 << 26, 0):
        decoded.clear()
        budget = penstock.Budget(decoded_bytes=decoded_bytes)
        with penstock.Loader(data, 1, budget=budget) as loader:
            for _ in itertools.chain(loader, loader):
                pass
        if decoded_bytes:
            assert sorted(decoded) == list(range(groups))
            most.clear()
        else:
            assert len(decoded) > 2 * groups
            assert 0 < max(most) <= 6


def test_neighbours_share_a_group(tmp_path: Path, decoded: list[int]) -> None:
    """Clips of one batch that meet in a group have it read and decoded once."""
    write(tmp_path)
    data = open_clips(tmp_path, stride=1)
    budget = penstock.Budget(decoded_bytes=0)
    with penstock.Loader(data, 8, shuffle="none", budget=budget) as loader:
        next(iter(loader))
    assert sorted(decoded[:2]) == [0, 1]


def test_decode_gets_frames(tmp_path: Path) -> None:
    """A function of the user gets each clip's frames and times, and batches what it returns."""
    films = write(tmp_path)
    data = open_clips(tmp_path)

    def shrink(sample: dict[str, Any]) -> dict[str, Any]:
        return {"small": sample["frames"][:, ::2, ::2], "start": sample["time"][0]}

    with penstock.Loader(data, 4, seed=1, decode=shrink) as loader:
        for batch in loader:
            film, first = data.origins(batch.ids).values()
            for row in range(len(batch.ids)):
                clip = take_clip(films[film[row]], int(first[row]), FRAMES, EVERY)
                assert np.array_equal(batch["small"][row], clip[:, ::2, ::2])
                assert batch["start"][row] == films[film[row]].times[first[row]]
