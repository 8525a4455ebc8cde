"""Ten lines: write a file of records, open it, and walk through an epoch."""

import tempfile
from pathlib import Path

import numpy as np

import penstock

with tempfile.TemporaryDirectory() as folder:
    path = Path(folder) / "records.bin"
    np.arange(1000 * 8, dtype=np.float32).reshape(1000, 8).tofile(path)

    dataset = penstock.open(path, dtype="float32", shape=(8,))
    loader = penstock.Loader(dataset, batch_size=256, seed=0)
    for batch in loader:
        data = batch["data"]
        print(f"step {batch.step}: {data.shape} {data.dtype}, first {batch.ids[:4]}")
    loader.close()
