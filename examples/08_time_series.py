"""Time series: 100,000 meters in one table, from 48 hours of each to the six behind them.

Windows overlap by half. The kind of a meter, which is in another file, is joined to its windows by
their number. Data is made in a temporary folder.
"""

import tempfile
from pathlib import Path

import numpy as np

import penstock
import torch

METERS, HOURS = 100_000, 126


def write_meters(folder: Path) -> None:
    """Write a row of hours for each meter: a daily wave, half as high for those of kind 1."""
    random = np.random.default_rng(0)
    kind = random.integers(0, 2, METERS)
    height = np.where(kind == 1, 0.5, 1.0)[:, None].astype("float32")
    phase = random.uniform(0, 2 * np.pi, (METERS, 1)).astype("float32")
    wave = np.sin(np.arange(HOURS, dtype="float32") * np.float32(2 * np.pi / 24) + phase)
    noise = random.standard_normal((METERS, HOURS), "float32")
    np.save(folder / "meters.npy", height * wave + 0.1 * noise)
    np.save(folder / "kinds.npy", kind)


def main() -> None:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        write_meters(folder)
        data = penstock.open(
            folder / "meters.npy",
            window={0: 1, 1: 48},  # one meter, two days
            stride={1: 24},
            target={1: (48, 54)},
        )
        meter = np.arange(len(data)) * METERS // len(data)
        data = penstock.join(data, {"kind": np.load(folder / "kinds.npy")[meter], "meter": meter})
        parts = data.split({"train": 0.9, "test": 0.1}, by="meter")  # no meter is in both
        torch.manual_seed(0)
        model = torch.nn.Linear(48, 6)
        optimizer = torch.optim.Adam(model.parameters(), 1e-2)
        for batch in penstock.torch.DataLoader(parts["train"], 512, shuffle=True, seed=0):
            loss = torch.nn.functional.mse_loss(model(batch["data"]), batch["data_target"])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        print(f"{len(parts['train']):,} windows, {len(parts['test']):,} held out")
        for kind in (0, 1):
            test = parts["test"].select(where=f"kind == {kind}")
            (batch,) = penstock.torch.DataLoader(test, len(test))
            with torch.no_grad():
                error = (model(batch["data"]) - batch["data_target"]).square().mean().sqrt()
            print(f"kind {kind}: error {error:.2f}, of noise of 0.10")


if __name__ == "__main__":
    main()
