"""A library that is not installed: an error that says what to install, and no word of damage."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path

import pytest
import zstandard

import penstock
from penstock.errors import UsageError
from tests import warm
from tests.index.formats.containers import CONTAINERS
from tests.index.formats.films import write_film

LIBRARIES = ("zstandard", "numcodecs", "pyarrow", "h5py", "hdf5plugin", "av")
PROGRAM = f"""
import re
import sys
sys.modules.update(dict.fromkeys({LIBRARIES}))
import penstock
try:
    penstock.open(sys.argv[1], index=sys.argv[2])[1]
except Exception as error:
    print(type(error).__name__, error)
"""
COMPRESSED = [
    "arrow, compressed",
    "litdata, compressed",
    "zarr, compressed",
    "parquet",
    "hdf5, by its library",
]


def write_lines(folder: Path) -> Path:
    lines = "".join(json.dumps({"a": number}) + "\n" for number in range(9)).encode()
    (folder / "x.jsonl.zst").write_bytes(zstandard.compress(lines))
    return folder / "x.jsonl.zst"


@pytest.mark.parametrize("format", ["lines", "films", *COMPRESSED])
def test_missing_library(format: str, tmp_path: Path) -> None:
    """When the index is made, and when samples of a saved one are decoded."""
    if format == "lines":
        path = write_lines(tmp_path)
    elif format == "films":
        for number in range(2):
            write_film(tmp_path / "films" / str(number), 2)
        path = tmp_path / "films" / "*.mp4"
    else:
        path, _ = CONTAINERS[format](tmp_path, [b"x" * 8 for _ in range(9)])
    for index in ("memory", "auto"):
        penstock.open(path)
        command = [sys.executable, "-c", PROGRAM, str(path), index]
        error = warm.run(command, capture_output=True, text=True, timeout=240).stdout
        assert error.startswith("UsageError ")
        assert re.search(r"needs (\S+): pip install \1 \(or 'penstock\[\w+\]'\)$", error.strip())
        assert "damaged" not in error
        assert "restore" not in error


def test_number_of_workers(tmp_path: Path) -> None:
    """torch's name of what a Loader has not is refused with what it has."""
    with pytest.raises(UsageError, match="give decode_threads=, or use penstock.torch.DataLoader"):
        penstock.Loader(penstock.open(write_lines(tmp_path)), num_workers=4)  # type: ignore[arg-type]
