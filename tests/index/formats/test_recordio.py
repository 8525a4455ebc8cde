"""RecordIO: records of several parts, and im2rec's headers."""

from __future__ import annotations

import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import penstock
from tests.index.formats.recordio_writer import MAGIC, image_record, record


def opened(path: Path, data: bytes, **options: Any) -> penstock.Dataset:
    """The data set of a file."""
    path.write_bytes(data)
    return penstock.open(path, index="memory", **options)


PIECE = st.one_of(st.just(MAGIC), st.binary(max_size=5), st.binary(min_size=4, max_size=4))
PAYLOADS = st.lists(st.lists(PIECE, max_size=6).map(b"".join), min_size=1, max_size=6)


@given(payloads=PAYLOADS)
def test_round_trip(payloads: list[bytes], tmp_path_factory: pytest.TempPathFactory) -> None:
    """Records come back as they were written, wherever they hold the magic."""
    path = tmp_path_factory.mktemp("rec") / "x.rec"
    dataset = opened(path, b"".join(map(record, payloads)))
    assert [dataset[i]["data"] for i in range(len(dataset))] == payloads


@given(
    payloads=PAYLOADS,
    label=st.integers(-1000, 1000),
    id=st.sampled_from([0, 7, 0xCED7230A, 0xCED7230ACED7230A]),
)
def test_headers(
    payloads: list[bytes], label: int, id: int, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """The header gives the label and is left out, also where it is cut itself; or it is kept."""
    path = tmp_path_factory.mktemp("rec") / "x.rec"
    data = b"".join(image_record(label, payload, id=id) for payload in payloads)
    dataset = opened(path, data, label="header")
    assert [dataset[i]["data"] for i in range(len(dataset))] == payloads
    assert dataset[0]["label"] == label
    kept = opened(path, data, label="header", header="keep")[0]
    assert kept["data"] == struct.pack("<IfQQ", 0, label, id, 0) + payloads[0]
    assert opened(path, data)[0] == {k: v for k, v in kept.items() if k != "label"}


@pytest.mark.parametrize("label", [0.5, np.inf, np.nan, 1e30])
def test_labels_that_are_no_integers(label: float, tmp_path: Path) -> None:
    """A label that is no integer is refused, as are several."""
    with pytest.raises(penstock.errors.FormatError, match="has the label"):
        opened(tmp_path / "x.rec", image_record(label, b"x"), label="header")
    data = image_record(0, struct.pack("<2f", 1, 2) + b"x", flag=2)
    with pytest.raises(penstock.errors.FormatError, match="has 2 labels"):
        opened(tmp_path / "x.rec", data, label="header")


def test_no_header(tmp_path: Path) -> None:
    """A record too short for a header is refused."""
    with pytest.raises(
        penstock.errors.FormatError, match="at byte 32: a record of 3 bytes cannot hold"
    ):
        opened(tmp_path / "x.rec", record(bytes(24)) + record(b"abc"), header="strip")


def test_folder(tmp_path: Path) -> None:
    """A folder contributes its .rec files only."""
    (tmp_path / "x.rec").write_bytes(record(b"data"))
    (tmp_path / "x.idx").write_text("0\t0\n")
    assert len(penstock.open(tmp_path, format="recordio", index="memory")) == 1
