"""Map-style datasets over the benchmarks' corpora, for torch's loader and those that imitate it."""

from __future__ import annotations

import os

import numpy as np

import torch
from benchmarks.baselines.jpeg_decode import decode_jpeg


class Records(torch.utils.data.Dataset[torch.Tensor]):
    """Fixed-size records of one file, one `os.pread` per sample: what most people write."""

    def __init__(self, path: str, record_bytes: int) -> None:
        self.path, self.record_bytes = path, record_bytes
        self.count = os.stat(path).st_size // record_bytes
        self.file = os.open(path, os.O_RDONLY)

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> torch.Tensor:
        data = os.pread(self.file, self.record_bytes, index * self.record_bytes)
        return torch.frombuffer(data, dtype=torch.uint8)


class BatchedRecords(Records):
    """The same records, tuned by hand: one tensor a batch, read into row by row with `preadv`."""

    def __getitems__(self, indices: list[int]) -> torch.Tensor:
        batch = torch.empty((len(indices), self.record_bytes), dtype=torch.uint8)
        size, file, preadv = self.record_bytes, self.file, os.preadv
        view = memoryview(batch.numpy()).cast("B")
        for row, index in enumerate(indices):
            preadv(file, [view[row * size : (row + 1) * size]], index * size)
        return batch


class Tokens(torch.utils.data.Dataset[torch.Tensor]):
    """Windows of a flat file of uint16 tokens, each with the token after it, from a memory map."""

    def __init__(self, path: str, window: int) -> None:
        self.tokens, self.window = np.memmap(path, np.uint16, "r"), window

    def __len__(self) -> int:
        return (len(self.tokens) - 1) // self.window

    def __getitem__(self, index: int) -> torch.Tensor:
        start = index * self.window
        return torch.from_numpy(self.tokens[start : start + self.window + 1].astype(np.int64))


class BatchedTokens(Tokens):
    """The same windows, tuned by hand: one tensor a batch, filled row by row."""

    def __getitems__(self, indices: list[int]) -> torch.Tensor:
        batch = np.empty((len(indices), self.window + 1), np.int64)
        for row, index in zip(batch, indices, strict=True):
            row[:] = self.tokens[index * self.window :][: self.window + 1]
        return torch.from_numpy(batch)


class Files(torch.utils.data.Dataset[torch.Tensor]):
    """One sample a file, all of one size: open, read, close."""

    def __init__(self, folder: str) -> None:
        found = (entry.path for entry in os.scandir(folder))
        self.paths = sorted(path for path in found if path.endswith((".bin", ".jpg")))
        self.bytes = os.stat(self.paths[0]).st_size

    def __len__(self) -> int:
        return len(self.paths)

    def __getitem__(self, index: int) -> torch.Tensor:
        file = os.open(self.paths[index], os.O_RDONLY)
        data = os.read(file, self.bytes)
        os.close(file)
        return torch.frombuffer(data, dtype=torch.uint8)


class Images(Files):
    """The same, decoded and resized."""

    def __getitem__(self, index: int) -> torch.Tensor:
        with open(self.paths[index], "rb", buffering=0) as file:
            return torch.from_numpy(decode_jpeg(file.read()))


def rows(batch: torch.Tensor) -> np.ndarray:
    """A batch as the touch wants it: one sample a row, no copy."""
    return batch.numpy().reshape(len(batch), -1)
