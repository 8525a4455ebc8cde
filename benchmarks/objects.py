"""python -m benchmarks.objects [--quick]: samples from an object store 20 ms away.

A server on the loopback answers each request 20 ms after it came (benchmarks/object_server.py: moto
and its kind take longer than that for an answer and would be what is measured). The same 100 kB
samples lie there as objects, as LitData's chunks and as tar shards. Nobody keeps anything: every
epoch reads all of it again. penstock and the floor read single objects in an exact random order, as
does LitData's raw dataset; LitData's chunks and WebDataset stream whole shards and shuffle nearby,
so their requests are few and large and the 20 ms hardly concern them: their rows say what reading
in any order costs against that. Record: benchmarks/results/objects.json.
"""

from __future__ import annotations

import argparse
import io
import os
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

from . import __main__ as command
from .contender import ROOT, Candidate
from .corpus import Corpora, Sizes
from .object_server import BUCKET, OBJECT_BYTES, Made
from .race import Effort, run_race
from .record import Record
from .suite import Race, Reference, baseline

FEW, MANY = 64, 256
"""Requests in flight: the default, and what it takes to be bound by processors instead."""
BATCH = 64
PER_SHARD = 400


def write_tars(made: Made, folder: Path) -> None:
    """WebDataset shards of 40 MB."""
    folder.mkdir(parents=True)
    for first in range(0, made.count, PER_SHARD):
        path = folder / f"shard-{first // PER_SHARD:03d}.tar"
        with tarfile.open(path, "w", format=tarfile.USTAR_FORMAT) as out:
            for number in range(first, min(made.count, first + PER_SHARD)):
                info = tarfile.TarInfo(f"{number:07d}.bin")
                info.size = made.size
                out.addfile(info, io.BytesIO(made.content(number)))


def write_chunks(made: Made, folder: Path) -> None:
    """LitData's chunks of 64 MB, which is its default."""
    code = (
        "import sys, numpy, litdata\n"
        "from benchmarks.object_server import Made\n"
        "made = Made(int(sys.argv[1]))\n"
        "def sample(number):\n"
        "    return numpy.frombuffer(made.content(number), numpy.uint8)\n"
        "if __name__ == '__main__':\n"
        "    litdata.optimize(sample, list(range(made.count)), sys.argv[2], chunk_bytes='64MB',\n"
        "                     num_workers=1)\n"
    )
    with tempfile.NamedTemporaryFile("w", suffix=".py") as script:
        script.write(code)
        script.flush()
        done = subprocess.run(
            [sys.executable, script.name, str(made.count), str(folder)],
            env=os.environ | {"PYTHONPATH": os.pathsep.join([str(ROOT), *filter(None, sys.path)])},
            capture_output=True,
            text=True,
        )
    if done.returncode:
        raise RuntimeError(f"litdata.optimize failed: {done.stderr.strip().splitlines()[-1:]}")


@contextmanager
def serving(count: int, folder: Path, delay_ms: float) -> Iterator[int]:
    """The port of the server, and s3:// pointed at it."""
    server = subprocess.Popen(
        [sys.executable, "-m", "benchmarks.object_server", "--count", str(count)]
        + ["--folder", str(folder), "--delay-ms", str(delay_ms)],
        cwd=ROOT,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    assert server.stdin is not None
    assert server.stdout is not None
    port = int(server.stdout.readline())
    os.environ |= {
        "AWS_ENDPOINT_URL": f"http://127.0.0.1:{port}",
        "AWS_ALLOW_HTTP": "true",
        "AWS_ACCESS_KEY_ID": "bench",
        "AWS_SECRET_ACCESS_KEY": "bench",
        "AWS_REGION": "us-east-1",
    }
    try:
        yield port
    finally:
        server.stdin.close()
        server.wait()


def races(port: int, count: int, shards: int, seed: int) -> list[Race]:
    """With as many requests in flight as the floor; and with as many as everybody likes."""
    url, web = f"s3://{BUCKET}/data", f"http://127.0.0.1:{port}"
    shape = {"batch": BATCH, "seed": seed}

    def ours(requests: int) -> Candidate:
        label = f"{requests} requests"
        more = {"kind": "files", "requests": requests, **shape}
        return baseline("penstock_loader", label, path=url, **more)

    def bare(module: str, path: str, requests: int) -> Callable[[], list[Candidate]]:
        more = {"workers": requests, "count": count, **shape}
        return lambda: [baseline(module, f"{requests} requests", path=path, **more)]

    def sweep(module: str, path: str, *settings: tuple[int, int]) -> Callable[[], list[Candidate]]:
        return lambda: [
            baseline(module, f"workers={n}, ahead={m}", path=path, workers=n, ahead=m, **shape)
            for n, m in settings
        ]

    tars = f"{web}/tars/shard-{{000..{shards - 1:03d}}}.tar"
    sockets = f"{web}/{BUCKET}"
    # Two workers had 0.8 of the rate of four; of chunks, a worker 0.7 of the rate without.
    raw = sweep("litdata_raw", url, (4, 4))
    chunks = sweep("litdata_chunks", "s3://chunks/", (0, 2))
    streamed = sweep("webdataset_loader", tars, (4, 4), (2, 4))
    return [
        Race(
            f"objects{FEW}",
            lambda: Path("/"),
            lambda _: None,
            lambda: ours(FEW),
            (
                Reference("floor", "floor: plain sockets", bare("object_floor", sockets, FEW), 0.9),
                Reference("floor", "obstore in threads", bare("object_threads", url, FEW)),
            ),
        ),
        Race(
            f"objects{MANY}",
            lambda: Path("/"),
            lambda _: None,
            lambda: ours(MANY),
            (
                Reference("floor", "floor: plain sockets", bare("object_floor", sockets, MANY)),
                Reference("litdata", "LitData, the same objects", raw, 5),
                Reference("litdata", "LitData, chunks", chunks, 5),
                Reference("webdataset", "WebDataset, tar", streamed, 5),
            ),
        ),
    ]


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.objects", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="few samples and pairs")
    parser.add_argument("--only", default="", help="of penstock, floor, litdata, webdataset")
    parser.add_argument("--delay-ms", type=float, default=20.0)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    made = Made(1000 if options.quick else 3200)  # eight whole shards
    is_partial = bool(options.only) or options.delay_ms != 20.0
    name = "objects" + ("-quick" if options.quick else "") + ("-partial" if is_partial else "")
    only = frozenset(filter(None, options.only.split(",")))
    record = Record(name, options.seed, {**vars(options), "count": made.count})
    record.configuration |= {"object_bytes": OBJECT_BYTES, "batch": BATCH, "requests": [FEW, MANY]}
    corpora = Corpora(ROOT / "bench-data" / f"objects-{made.count}", Sizes(), options.seed)
    corpora.made(corpora.folder / "tars", partial(write_tars, made))
    if not only or "litdata" in only:
        corpora.made(corpora.folder / "chunks", partial(write_chunks, made))
    shards = -(-made.count // PER_SHARD)
    with serving(made.count, corpora.folder, options.delay_ms) as port:
        effort = Effort.quick() if options.quick else Effort.full()
        for race in races(port, made.count, shards, options.seed):
            result = run_race(race, effort, only, options.seed)
            record.rows += result.rows
            record.raw[race.name] = result.raw
    command.finish(record)


if __name__ == "__main__":
    main()
