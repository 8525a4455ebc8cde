"""Medical volumes: random patches that touch an organ, with their masks, of a scan a file.

Windows with a fine stride are the patches that there are, each within one scan, whatever its depth;
a shuffle draws from them at random, each once an epoch. Data is made in a temporary folder.
"""

import tempfile
from pathlib import Path

import h5py
import numpy as np

import penstock
import torch

SCANS, SIZE, PATCH, STRIDE = 12, 48, 24, 6


def write_scans(folder: Path) -> None:
    """Write scans of a bright ball in noise, and masks of the balls, in compressed chunks."""
    random = np.random.default_rng(0)
    for scan in range(SCANS):
        shape = int(random.integers(36, 60)), SIZE, SIZE
        voxels = np.moveaxis(np.indices(shape), 0, -1)
        mask = ((voxels - random.uniform(12, np.array(shape) - 12)) ** 2).sum(axis=-1) < 8**2
        arrays = {"image": mask + random.normal(0, 0.5, shape), "mask": mask}
        with h5py.File(folder / f"{scan:02}.h5", "w") as file:
            for name, values in arrays.items():
                array = file.create_dataset(name, shape, "f4", values, compression="gzip")
                for axis, label in enumerate(("z", "y", "x")):
                    array.dims[axis].label = label


def find_organ(folder: Path) -> np.ndarray:
    """Find the patches that hold some of the organ, in the sequence of the windows."""
    found = []
    for path in sorted(folder.glob("*.h5")):
        with h5py.File(path) as file:
            mask = file["mask"][:] > 0
        patches = np.lib.stride_tricks.sliding_window_view(mask, [PATCH] * 3)
        found.append(patches[::STRIDE, ::STRIDE, ::STRIDE].any(axis=(3, 4, 5)).ravel())
    return np.concatenate(found)


def main() -> None:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        write_scans(folder)
        data = penstock.open(
            folder / "*.h5",
            sample="file",  # windows are cut within each file
            window={"z": PATCH, "y": PATCH, "x": PATCH},
            stride={"z": STRIDE, "y": STRIDE, "x": STRIDE},
        )
        organ = data.select(mask=find_organ(folder))
        train, test = organ.select(where="file < 9"), organ.select(where="file >= 9")
        torch.manual_seed(0)
        model = torch.nn.Conv3d(1, 1, 5, padding=2)
        optimizer = torch.optim.Adam(model.parameters(), 1e-2)
        for batch in penstock.torch.DataLoader(train, 8, shuffle=True, seed=0):
            found = model(batch["image"][:, None])
            loss = torch.nn.functional.binary_cross_entropy_with_logits(
                found, batch["mask"][:, None]
            )
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        (batch,) = penstock.torch.DataLoader(test, len(test))
        with torch.no_grad():
            found, truth = model(batch["image"][:, None]) > 0, batch["mask"][:, None] > 0
        dice = 2 * (found & truth).sum() / (found.sum() + truth.sum())
        print(f"{len(data):,} patches; of the organ {len(train)}, and {len(test)} held out")
        print(f"Dice {dice:.2f}")


if __name__ == "__main__":
    main()
