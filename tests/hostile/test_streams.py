"""Every hostile tar, TFRecord, JSONL, RecordIO and LMDB file is refused, with name and byte."""

from __future__ import annotations

from pathlib import Path

import pytest

import penstock
from tests.hostile.streams import Case, cases


@pytest.mark.parametrize("case", cases(), ids=lambda case: f"{case.container}: {case.name}")
def test_hostile(case: Case, tmp_path: Path) -> None:
    """A hostile file is a FormatError that names the file, the byte and the reason."""
    path = tmp_path / f"hostile.{case.container}"
    path.write_bytes(case.data)
    options = {"check": "all"} if case.container == "tfrecord" else {}
    with pytest.raises(penstock.errors.FormatError) as caught:
        penstock.open(path, format=case.container, index="memory", **options)
    message = str(caught.value)
    assert str(path) in message
    assert case.reason in message, message
    if case.name != "nothing":
        assert f"at byte {case.offset:,}:" in message, message
