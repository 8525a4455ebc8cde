"""What `penstock doctor` says of films, beside the clips that are cut of them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import penstock
from penstock.doctor import PlannedJob, examine
from penstock.doctor.films import examine_films
from tests.index.formats.films import KINDS, write_film


def _examine(where: Path, frames: int = 4, **clips: Any) -> dict[str, tuple[bool, str]]:
    data = penstock.open(where, index="memory", clips={"frames": frames, **clips})
    return {note.about: (note.is_bad, note.says) for note in examine_films(data)}


def test_ordinary_films_are_good(tmp_path: Path) -> None:
    write_film(tmp_path / "0", 40, options={"g": "2", "bf": "0"}, muxer={"movflags": "faststart"})
    notes = _examine(tmp_path)
    assert list(notes) == ["keyframes"]
    is_bad, says = notes["keyframes"]
    assert not is_bad
    assert says.startswith("one every 2 frames, 2 at most: a clip of 4 decodes 4 and reads")


def test_what_is_unusual_is_said(tmp_path: Path) -> None:
    for number, kind in enumerate(("open", "variable")):
        write_film(tmp_path / str(number), 60, **KINDS[kind], seed=number)
    notes = _examine(tmp_path)
    assert [about for about, (is_bad, _) in notes.items() if is_bad] == [
        "keyframes",
        "B-frames",
        "frame rate",
    ]
    assert "OUT --keyframes 2` encodes films anew" in notes["keyframes"][1]
    assert "groups are open" in notes["B-frames"][1]
    assert notes["frame rate"][1].startswith("it varies in 1 of 2 films")
    assert notes["moov"][1].startswith("2 of 2 films have it at the end")


def test_frames_decoded_are_those_of_the_decoder(tmp_path: Path) -> None:
    write_film(tmp_path / "0", 40, options={"g": "10", "bf": "0"})
    # Clips of 4 in groups of 10: 4, 8 and 2 + 10, 6, 10; and the same again
    each = np.mean([4, 8, 10 + 2, 6, 10] * 2)
    assert f"decodes {each:,.3g} and" in _examine(tmp_path)["keyframes"][1]


def test_frames_that_headers_claim_are_missed(tmp_path: Path) -> None:
    path = write_film(tmp_path / "0", 30, options={"g": "4", "bf": "0"}).path
    content = bytearray(path.read_bytes())
    at = content.index(b"mdhd") + 20
    content[at : at + 4] = (int.from_bytes(content[at : at + 4]) * 3).to_bytes(4)
    path.write_bytes(content)
    is_bad, says = _examine(tmp_path)["frames"]
    assert is_bad
    assert "says 3.00 s, and its frames end at 1.00 s" in says


def test_many_settings_are_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("penstock.doctor.films._CONFIGS_MAX", 1)
    for number, kind in enumerate(("closed", "hevc")):
        write_film(tmp_path / str(number), 12, **KINDS[kind])
    says = _examine(tmp_path)["codecs"][1]
    assert says.startswith("2 settings of decoders (h264, hevc)")


def test_it_is_part_of_an_examination(tmp_path: Path) -> None:
    write_film(tmp_path / "0", 40)
    data = penstock.open(tmp_path, index="memory", clips={"frames": 4})
    found = examine(data, PlannedJob(batch_size=2)).findings
    assert [one.level for one in found if one.about == "films: keyframes"] == ["warning"]
