"""Layouts of tensors stay as they were on their way from worker processes."""

from __future__ import annotations

from typing import Any

import pytest
import torch.utils.data

import torch
from penstock.torch import DataLoader

IMAGES = torch.arange(2 * 3 * 4 * 5).reshape(2, 3, 4, 5)
LAST = IMAGES.to(memory_format=torch.channels_last)

KEPT: dict[str, torch.Tensor] = {
    "contiguous": IMAGES,
    "channels last": LAST,
    "channels last, of halves": LAST.bfloat16(),
    "channels last, of bytes": LAST.to(torch.float8_e4m3fn),
    "channels last, of a batch of one": LAST[:1].clone(memory_format=torch.channels_last),
    "channels last, of a channel": LAST[:, :1].clone(memory_format=torch.channels_last),
    "channels last in three": torch.ones(2, 3, 4, 5, 6).to(memory_format=torch.channels_last_3d),
    "channels last, from an offset": torch.cat([LAST, LAST])[1:3],
    "axes in another order": IMAGES.permute(3, 1, 0, 2),
    "complex and transposed": torch.ones(3, 4, dtype=torch.complex64).T,
    "truth values": (LAST > 9),
    "expanded": torch.arange(4)[:, None].expand(4, 6),
    "windows": torch.arange(10).unfold(0, 4, 1),
    "a scalar": torch.tensor(3.0),
    "without elements": torch.empty(0, 3),
}
PACKED = {
    "a part of images": IMAGES[:, :, 1:3],
    "a part, channels last": LAST[:, :, 1:3],
    "every second channel": IMAGES[:, ::2],
    "windows with gaps": torch.arange(20).as_strided((3, 2), (5, 3)),
}


def collate(items: list[int]) -> Any:
    return KEPT | PACKED


@pytest.fixture(scope="module")
def batches() -> Any:
    """The same batch by our workers, and by torch's."""
    data: Any = [0, 1]
    others = torch.utils.data.DataLoader(data, 2, num_workers=1, collate_fn=collate)
    torch_batch = next(iter(others))
    loader = DataLoader(data, 2, num_workers=1, collate_fn=collate)
    yield next(iter(loader)), torch_batch
    loader.close()


@pytest.mark.parametrize("name", KEPT)
def test_a_layout_is_kept(batches: Any, name: str) -> None:
    """Values, strides and type are those of the worker's tensor, as torch's workers have them."""
    ours, torchs = batches[0][name], batches[1][name]
    assert ours.dtype == torchs.dtype
    assert ours.stride() == torchs.stride() == KEPT[name].stride()
    assert ours.tolist() == KEPT[name].tolist()


@pytest.mark.parametrize("name", PACKED)
def test_a_part_of_other_memory_is_packed(batches: Any, name: str) -> None:
    """What lies between its elements does not travel; its axes keep their sequence in memory."""
    ours = batches[0][name]
    assert ours.tolist() == PACKED[name].tolist()
    assert ours.stride() == PACKED[name].clone().stride()
    assert ours.untyped_storage().nbytes() < PACKED[name].untyped_storage().nbytes()
