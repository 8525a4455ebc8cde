"""Weather: from 24 hours of a patch to the six behind them, over two years of hourly fields.

A linear model of each place learns to continue a daily wave that travels eastwards; the windows
come in a shuffle of blocks, as neighbours share chunks. Data is made in a temporary folder.
"""

import tempfile
from pathlib import Path

import numpy as np
import zarr

import penstock
import torch

HOURS, LATITUDES, LONGITUDES = 2 * 365 * 24, 16, 32


def write_weather(path: Path) -> None:
    """Write a daily wave, with noise; a chunk is a day."""
    hour, lon = np.arange(HOURS)[:, None, None], np.arange(LONGITUDES)
    wave = np.sin(2 * np.pi * (hour / 24 - lon / LONGITUDES))
    noise = np.random.default_rng(0).normal(0, 0.1, (HOURS, LATITUDES, LONGITUDES))
    group = zarr.open_group(path, mode="w")
    field = group.create_array(
        "t2m",
        shape=noise.shape,
        chunks=(24, LATITUDES, LONGITUDES),
        dtype="float32",
        dimension_names=("time", "lat", "lon"),
    )
    field[:] = (wave + noise).astype("float32")


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        write_weather(Path(folder) / "weather.zarr")
        data = penstock.open(
            Path(folder) / "weather.zarr",
            window={"time": 24, "lat": 8, "lon": 8},
            stride={"time": 6, "lat": 8, "lon": 8},
            target={"time": (24, 30)},
        )
        places = 2 * 4  # windows of each hour
        year = len(data) // 2 // places * places
        train = data.select(range(year))
        held_out = data.select(range(year + 5 * places, len(data)))  # no hour is in both
        torch.manual_seed(0)
        model = torch.nn.Linear(24, 6)
        optimizer = torch.optim.Adam(model.parameters(), 1e-2)

        def measure_loss(batch: penstock.Batch) -> torch.Tensor:
            hours, behind = (batch[name].movedim(1, -1) for name in ("t2m", "t2m_target"))
            return torch.nn.functional.mse_loss(model(hours), behind)

        loader = penstock.torch.DataLoader(train, 64, shuffle="blocked", seed=0)
        for batch in loader:
            loss = measure_loss(batch)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        with torch.no_grad():
            evaluation = penstock.torch.DataLoader(held_out, 256)
            losses = [float(measure_loss(batch)) for batch in evaluation]
        print(f"{len(train):,} windows, {len(held_out):,} held out")
        print(f"error {np.mean(losses) ** 0.5:.2f}, of a wave of 0.71 and noise of 0.10")


if __name__ == "__main__":
    main()
