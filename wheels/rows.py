"""The quick rows, by the penstock of a folder: `python -S rows.py SITE DATA PACKAGES`.

Its input has one line a row, `NAME REPEATS`; each is answered by the processor seconds of a repeat.
The first line of output is JSON: the kernels in use.
"""

from __future__ import annotations

import json
import os
import re
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any


def open_rows(data: Path) -> dict[str, Callable[[], object]]:
    """The work of each row, on what `speed.write_data` wrote."""
    import numpy as np

    import penstock
    from penstock import _core, images

    random = np.random.default_rng(1)
    settings: dict[str, Any] = {"rank": 0, "world_size": 1, "seed": 1}

    def read(dataset: Any, field: str = "data", **options: Any) -> Callable[[], object]:
        loader = penstock.Loader(dataset, 256, **settings, **options)
        return lambda: sum(len(batch[field]) for batch in loader)

    paths = {re.split("[-.]", path.name)[0]: path for path in data.iterdir()}
    records = penstock.open(paths["records"], record_bytes=4096, index="memory")
    photographs = penstock.open(paths["jpeg"], index="memory")
    permutation = _core.Permutation(10_000_019, 42)
    samples = np.empty(1 << 20, np.uint64)
    source = np.fromfile(paths["records"], np.uint8)
    out = np.empty_like(source)
    places = random.permutation(len(source) // 4096) * 4096
    columns = places, np.full(len(places), 4096), np.arange(len(places)) * 4096

    def read_lines() -> object:
        fields = ["id", "text", "score"]
        lines = penstock.open(paths["documents"], fields=fields, index="memory")
        return read(lines, "text")()

    def read_lmdb() -> object:
        return read(penstock.open(paths["lmdb"], index="memory"))()

    return {
        "records of 4 KiB": read(records, shuffle="exact"),
        "order": lambda: permutation.run(0, samples),
        "gather": lambda: _core.gather(source, *columns, out),
        "photographs": read(photographs, "image", decode=images.RandomResizedCrop(224, flip=0.5)),
        "JSON lines": read_lines,
        "LMDB": read_lmdb,
        "checksums": lambda: _core.crc32c(source),
    }


def main() -> None:
    """Answer until the input ends."""
    site, data, packages = sys.argv[1:]
    sys.path[:1] = [site, packages]
    import penstock
    from penstock import _core

    assert str(penstock.__file__).startswith(site), penstock.__file__
    print(json.dumps(_core.list_kernels()), flush=True)
    rows = open_rows(Path(data))
    for line in sys.stdin:
        name, repeats = line.rsplit(" ", 1)
        began = time.process_time()
        for _ in range(int(repeats)):
            rows[name]()
        print((time.process_time() - began) / int(repeats), flush=True)
    os._exit(0)  # loaders' threads end with the process


if __name__ == "__main__":
    main()
