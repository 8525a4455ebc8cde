"""python -m benchmarks.columns [--quick]: token lists of Arrow, as `datasets` saves them.

A folder of `datasets` with documents of the web, tokenised: batches of their token lists against
batches of fixed records of as many bytes, in an exact shuffle, in the same run and by turns. The
rates are those of processor time. Record: benchmarks/results/columns.json.
"""

from __future__ import annotations

import argparse
import json
import os
from functools import partial
from pathlib import Path

import numpy as np
import pyarrow as pa

import penstock

from .__main__ import finish
from .contender import ROOT
from .record import Record
from .text import BATCH, WEB_MEDIAN, WEB_SIGMA, make_row, processor_s, take_turns


def write_documents(folder: Path, count: int) -> Path:
    """A saved dataset of tokenised documents, made if it is not there."""
    if (folder / "state.json").exists():
        return folder
    folder.mkdir(parents=True, exist_ok=True)
    random = np.random.default_rng(1)
    schema = pa.schema([("input_ids", pa.list_(pa.int32()))])
    name = "data-00000-of-00001.arrow"
    with pa.ipc.new_stream(str(folder / name), schema) as writer:
        for _ in range(count // 1000):
            lengths = random.lognormal(np.log(WEB_MEDIAN), WEB_SIGMA, 1000).astype(int)
            ends = np.concatenate([[0], np.cumsum(np.clip(lengths, 1, 100_000))]).astype(np.int32)
            values = random.integers(0, 32_000, ends[-1]).astype(np.int32)
            lists = pa.ListArray.from_arrays(ends, values)
            writer.write_batch(pa.record_batch([lists], ["input_ids"]))
    (folder / "state.json").write_text(json.dumps({"_data_files": [{"filename": name}]}))
    return folder


def write_records(path: Path, count: int, tokens: int) -> Path:
    """Records of so many tokens."""
    if not path.exists():
        part = path.with_suffix(".part")
        np.random.default_rng(1).integers(0, 32_000, count * tokens).astype(np.int32).tofile(part)
        os.rename(part, path)
    return path


def time_epoch(loader: penstock.Loader, field: str, expected: int) -> float:
    """Processor seconds of an epoch, which has to give all bytes."""
    began = processor_s()
    found = sum(batch[field].nbytes for batch in loader)
    spent = processor_s() - began
    assert found == expected, f"{found:,} bytes, not {expected:,}"
    return spent


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.columns", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="small data and few pairs")
    parser.add_argument("--data", default=str(ROOT / "bench-data"), help="folder of the corpora")
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    count, rounds = (20_000, 5) if options.quick else (100_000, 20)
    folder = Path(options.data).resolve()
    record = Record("columns-quick" if options.quick else "columns", options.seed, vars(options))
    lists = penstock.open(write_documents(folder / f"tokens-{count}", count), index="memory")
    mean = round(lists.index.total_bytes / count / 4)
    path = write_records(folder / f"records-{count}-{mean}.bin", count, mean)
    records = penstock.open(path, index="memory", dtype="int32", shape=(mean,))
    loaders = [
        penstock.Loader(data, BATCH, seed=options.seed, rank=0, world_size=1)
        for data in (lists, records)
    ]
    epochs = [
        partial(time_epoch, loader, data.fields[0].name, data.index.total_bytes)
        for loader, data in zip(loaders, (lists, records), strict=True)
    ]
    for epoch in epochs:
        epoch()
    pairs = take_turns(epochs[0], epochs[1], rounds)
    name = "Arrow token lists / fixed records"
    note = f"{mean * 4:,} bytes a sample on average; of processor time"
    amount = lists.index.total_bytes / 1e9
    record.rows.append(make_row(name, pairs, amount, "GB/s", 0.85, options.seed, note))
    record.raw[name] = {"seconds": pairs, "samples": count}
    finish(record)


if __name__ == "__main__":
    main()
