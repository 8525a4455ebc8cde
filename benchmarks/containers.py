"""python -m benchmarks.containers [--quick]: containers against fixed records of the same sizes.

The same random records in each container and in one file of fixed records, warm, exact shuffle: how
much an index of explicit extents costs beside arithmetic. Record: benchmarks/results/formats.json.
"""

from __future__ import annotations

import argparse
import io
import json
import struct
import tarfile
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path

from . import __main__ as command
from . import indexing
from .contender import ROOT
from .corpus import Corpora, Sizes, make_warm
from .race import Effort, run_race
from .record import Record
from .suite import Race, Reference, baseline

WANTED, OF_MDS = 0.9, 0.95
RECORD_BYTES = (4096, 12_288)


def records_of(source: Path, record_bytes: int) -> Iterator[bytes]:
    """The records of a file of fixed records."""
    with source.open("rb") as file:
        while record := file.read(record_bytes):
            yield record


def write_tar(source: Path, record_bytes: int, to: Path) -> None:
    """A WebDataset shard: one member a sample."""
    with tarfile.open(to, "w", format=tarfile.USTAR_FORMAT) as out:
        for number, record in enumerate(records_of(source, record_bytes)):
            info = tarfile.TarInfo(f"{number:08d}.bin")
            info.size = len(record)
            out.addfile(info, io.BytesIO(record))


def write_tfrecord(source: Path, record_bytes: int, to: Path) -> None:
    """TFRecord: length, its masked CRC-32C, the data and its."""
    from google_crc32c import value as crc32c

    def masked(data: bytes) -> bytes:
        crc = crc32c(data)
        return struct.pack("<I", ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF)

    with to.open("wb") as out:
        for record in records_of(source, record_bytes):
            length = struct.pack("<Q", len(record))
            out.write(length + masked(length) + record + masked(record))


def write_lmdb(source: Path, record_bytes: int, to: Path) -> None:
    """LMDB as Caffe's converters write it: zero-padded keys, a commit every 1000 records."""
    import lmdb

    env = lmdb.open(str(to), map_size=4 * source.stat().st_size + (1 << 26), subdir=True)
    txn = env.begin(write=True)
    for number, record in enumerate(records_of(source, record_bytes)):
        txn.put(b"%08d" % number, record)
        if number % 1000 == 999:
            txn.commit()
            txn = env.begin(write=True)
    txn.commit()
    env.close()


def write_mds(source: Path, record_bytes: int, to: Path) -> None:
    """MosaicML shards of 64 MiB, one column of bytes."""
    to.mkdir()
    records = list(records_of(source, record_bytes))
    per_shard = max(1, (64 << 20) // (record_bytes + 8))
    shards = []
    columns = {"column_names": ["data"], "column_encodings": ["bytes"], "column_sizes": [None]}
    config = {**columns, "compression": None, "format": "mds", "hashes": [], "size_limit": 1 << 26}
    for first in range(0, len(records), per_shard):
        held = records[first : first + per_shard]
        text = json.dumps(config, sort_keys=True).encode()
        start = 4 + 4 * (len(held) + 1) + len(text)
        ends = [start + n * (record_bytes + 4) for n in range(len(held) + 1)]
        name = f"shard.{len(shards):05d}.mds"
        with (to / name).open("wb") as out:
            out.write(struct.pack(f"<I{len(ends)}I", len(held), *ends) + text)
            for record in held:
                out.write(struct.pack("<I", len(record)) + record)
        raw = {"basename": name, "bytes": ends[-1], "hashes": {}}
        shards.append(
            {**config, "samples": len(held), "raw_data": raw, "zip_data": None, "version": 2}
        )
    (to / "index.json").write_text(json.dumps({"version": 2, "shards": shards}))


def write_recordio(source: Path, record_bytes: int, to: Path) -> None:
    """MXNet RecordIO; a record that holds the magic at a multiple of 4 is cut there."""
    magic = struct.pack("<I", 0xCED7230A)
    with to.open("wb") as out:
        for record in records_of(source, record_bytes):
            words = range(0, len(record), 4) if magic in record else ()
            cuts = [at for at in words if record[at : at + 4] == magic]
            starts = [0, *(at + 4 for at in cuts)]
            parts = [record[a:b] for a, b in zip(starts, [*cuts, len(record)], strict=True)]
            for number, part in enumerate(parts):
                first, last = number == 0, number == len(parts) - 1
                flag = 0 if first and last else 1 if first else 3 if last else 2
                out.write(magic + struct.pack("<I", flag << 29 | len(part)) + part)
                out.write(bytes(-len(part) % 4))


WRITERS: dict[str, tuple[str, Callable[[Path, int, Path], None]]] = {
    "tar": (".tar", write_tar),
    "tfrecord": (".tfrecord", write_tfrecord),
    "lmdb": (".lmdb", write_lmdb),
    "mds": (".mds", write_mds),
    "recordio": (".rec", write_recordio),
}


def race(corpora: Corpora, container: str, record_bytes: int) -> Race:
    """penstock over a container, held against penstock over fixed records."""
    suffix, write = WRITERS[container]
    shape = {"batch": 256, "seed": corpora.seed, "record_bytes": record_bytes}

    def fixed() -> Path:
        return corpora.records(record_bytes)

    def path() -> Path:
        source = fixed()
        to = source.with_suffix(suffix)
        return corpora.made(to, partial(write, source, record_bytes))

    return Race(
        f"{container}{record_bytes}",
        path,
        lambda at: (make_warm(at), make_warm(fixed())),
        lambda: baseline("penstock_loader", container, path=path(), kind="files", **shape),
        (
            Reference(
                "floor",
                "penstock over fixed records",
                lambda: [baseline("penstock_loader", "records", path=fixed(), **shape)],
                OF_MDS if container == "mds" else WANTED,
            ),
        ),
    )


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.containers", description=__doc__)
    parser.add_argument("containers", nargs="*", help=f"of {', '.join(WRITERS)}; all if none")
    parser.add_argument("--quick", action="store_true", help="small data and few pairs")
    parser.add_argument("--data", default=str(ROOT / "bench-data"), help="folder of the corpora")
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    names = options.containers or list(WRITERS)
    sizes = Sizes.quick() if options.quick else Sizes()
    corpora = Corpora(Path(options.data).resolve(), sizes, options.seed)
    suffix = ("-quick" if options.quick else "") + ("-partial" if options.containers else "")
    record = Record(f"formats{suffix}", options.seed, {**vars(options), "containers": names})
    effort = Effort.quick() if options.quick else Effort.full()
    for record_bytes in RECORD_BYTES:
        fewer = replace(corpora, sizes=replace(sizes, records=sizes.records * 2048 // record_bytes))
        for name in names:
            result = run_race(race(fewer, name, record_bytes), effort, frozenset(), options.seed)
            record.rows += result.rows
            record.raw[f"{name}{record_bytes}"] = result.raw
            record.write()
    if not options.containers:
        size = 200_000_000 if options.quick else 1_000_000_000
        folder = Path(options.data).resolve()
        found, raw = indexing.rows(folder, size, 3 if options.quick else 6, options.seed)
        record.rows += found
        record.raw["index"] = raw
    command.finish(record)


if __name__ == "__main__":
    main()
