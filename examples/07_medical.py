"""Medical volumes: random patches that touch an organ, with their masks, of scans in HDF5.

Windows with a fine stride are the patches that there are; a shuffle draws from them at random, each
once an epoch. Data is made in a temporary folder.
"""

import tempfile
from pathlib import Path

import h5py
import numpy as np

import penstock
import torch

SCANS, SIZE, PATCH, STRIDE = 12, 48, 24, 6


def write_scans(path: Path) -> None:
    """Write scans of a bright ball in noise, and masks of the balls, in compressed chunks."""
    random = np.random.default_rng(0)
    voxels = np.moveaxis(np.indices((SIZE, SIZE, SIZE)), 0, -1)
    with h5py.File(path, "w") as file:
        for name in ("image", "mask"):
            shape, chunks = (SCANS, SIZE, SIZE, SIZE), (1, PATCH, PATCH, PATCH)
            array = file.create_dataset(name, shape, "f4", chunks=chunks, compression="gzip")
            for axis, label in enumerate(("scan", "z", "y", "x")):
                array.dims[axis].label = label
        for scan in range(SCANS):
            center = random.uniform(12, SIZE - 12, 3)
            mask = ((voxels - center) ** 2).sum(axis=-1) < 8**2
            file["mask"][scan] = mask
            file["image"][scan] = mask + random.normal(0, 0.5, mask.shape)


def find_organ(path: Path) -> np.ndarray:
    """Find the patches that hold some of the organ, in the sequence of the windows."""
    with h5py.File(path) as file:
        masks = file["mask"][:] > 0
    patches = np.lib.stride_tricks.sliding_window_view(masks, [PATCH] * 3, axis=(1, 2, 3))
    return patches[:, ::STRIDE, ::STRIDE, ::STRIDE].any(axis=(4, 5, 6)).ravel()


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "scans.h5"
        write_scans(path)
        data = penstock.open(
            path,
            window={"scan": 1, "z": PATCH, "y": PATCH, "x": PATCH},
            stride={"z": STRIDE, "y": STRIDE, "x": STRIDE},
        )
        organ, scan = find_organ(path), np.arange(len(data)) * SCANS // len(data)
        train, test = data.select(mask=organ & (scan < 9)), data.select(mask=organ & (scan >= 9))
        torch.manual_seed(0)
        model = torch.nn.Conv3d(1, 1, 5, padding=2)
        optimizer = torch.optim.Adam(model.parameters(), 1e-2)
        for batch in penstock.torch.DataLoader(train, 8, shuffle=True, seed=0):
            found = model(batch["image"])
            loss = torch.nn.functional.binary_cross_entropy_with_logits(found, batch["mask"])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        (batch,) = penstock.torch.DataLoader(test, len(test))
        with torch.no_grad():
            found, truth = model(batch["image"]) > 0, batch["mask"] > 0
        dice = 2 * (found & truth).sum() / (found.sum() + truth.sum())
        print(f"{len(data):,} patches; of the organ {len(train)}, and {len(test)} held out")
        print(f"Dice {dice:.2f}")


if __name__ == "__main__":
    main()
