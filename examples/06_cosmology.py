"""Cosmology: volumes of galaxies at four redshifts, a file each, with their parameters in a CSV.

A small network learns density and clustering of matter. Data is made in a temporary folder.
"""

import tempfile
from pathlib import Path

import h5py
import numpy as np

import penstock
import torch


def write_simulations(folder: Path) -> None:
    """Write 256 volumes of counts, and a CSV that has the parameters of each by its name."""
    random = np.random.default_rng(0)
    growth = np.reshape([0.4, 0.6, 0.8, 1.0], (4, 1, 1, 1))  # of structure, at each redshift
    rows = ["name,omega_m,sigma_8"]
    (folder / "volumes").mkdir()
    for number in range(256):
        omega_m, sigma_8 = random.uniform(0.1, 0.5), random.uniform(0.5, 1.0)
        density = omega_m * np.exp(sigma_8 * growth * random.normal(size=(4, 16, 16, 16)))
        name = f"sim{number:03}.h5"
        with h5py.File(folder / "volumes" / name, "w") as file:
            file["counts"] = random.poisson(20 * density).astype("int16")
        rows.append(f"{name},{omega_m:.4f},{sigma_8:.4f}")
    (folder / "parameters.csv").write_text("\n".join(rows))


def main() -> None:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        write_simulations(folder)
        data = penstock.open(folder / "volumes", sample="file")
        data = penstock.join(data, folder / "parameters.csv", on="name")
        parts = data.split({"train": 0.8, "test": 0.2})
        torch.manual_seed(0)
        model = torch.nn.Sequential(
            torch.nn.Conv3d(4, 16, 2, stride=2),
            torch.nn.ReLU(),
            torch.nn.AdaptiveAvgPool3d(1),
            torch.nn.Flatten(),
            torch.nn.Linear(16, 2),
        )
        optimizer = torch.optim.Adam(model.parameters(), 3e-2)

        def measure_loss(batch: penstock.Batch) -> torch.Tensor:
            counts = batch["counts"].float().log1p() - 2  # about 0 on average
            truth = torch.stack([batch["omega_m"], batch["sigma_8"]], 1).float()
            return torch.nn.functional.mse_loss(model(counts), truth)

        loader = penstock.torch.DataLoader(parts["train"], 16, shuffle=True, seed=0)
        for _ in range(10):
            for batch in loader:
                loss = measure_loss(batch)
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
        (batch,) = penstock.torch.DataLoader(parts["test"], len(parts["test"]))
        with torch.no_grad():
            error = measure_loss(batch).sqrt()
        print(f"{len(parts['train'])} volumes, {len(parts['test'])} held out")
        print(f"error {error:.2f}, of parameters that vary by 0.13")


if __name__ == "__main__":
    main()
