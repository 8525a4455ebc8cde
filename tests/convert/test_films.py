"""Films encoded anew: frames and times stay, keyframes are where they were asked for."""

from __future__ import annotations

import os
from pathlib import Path

import av
import numpy as np
import pytest

import penstock
from penstock.convert import convert_films, films
from penstock.errors import StorageError, UsageError
from penstock.index.layout import Clips
from tests.index.formats.films import KINDS, read_film, write_film


def _write_films(folder: Path) -> list[Path]:
    written = [
        write_film(folder / place / kind, 40, **KINDS[kind], seed=seed).path
        for seed, (place, kind) in enumerate((("a", "open"), ("b", "mov"), ("b", "variable")))
    ]
    return sorted(written)


def test_frames_and_times_stay(tmp_path: Path) -> None:
    sources = _write_films(tmp_path / "films")
    done = convert_films(tmp_path / "films", tmp_path / "out", 4)
    assert (done.films, done.written) == (3, 3)
    assert 25 < done.psnr < 60
    assert min(*done.before, *done.after) > 0
    for source in sources:
        was = read_film(source)
        now = read_film(tmp_path / "out" / source.relative_to(tmp_path / "films"))
        assert np.abs(now.times - was.times).max() < 1e-4
        assert np.abs(now.frames.astype(float) - was.frames).mean() < 12
    data = penstock.open(tmp_path / "out", clips={"frames": 4})
    assert data.classes == ("a", "b")
    layout = data.index.layouts[0]
    assert isinstance(layout, Clips)
    assert np.diff(layout.first).tolist() == [4] * 30


def test_what_is_done_is_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _write_films(tmp_path / "films")
    encode, encoded = films._encode_film, []

    def stop_at_second(source: str, target: str, *how: int) -> None:
        encode(source, target, *how)
        encoded.append(source)
        if len(encoded) == 2:
            raise OSError(28, "stand-in for a full disk")

    monkeypatch.setattr(films, "_encode_film", stop_at_second)
    with pytest.raises(StorageError, match="make room"):
        convert_films(tmp_path / "films", tmp_path / "out", 8)
    left = [name for _, _, names in os.walk(tmp_path / "out") for name in names]
    assert sorted(left) == [".penstock-convert.json", "open.mp4"]
    assert convert_films(tmp_path / "films", tmp_path / "out", 8).written == 2
    with pytest.raises(UsageError, match=r"keyframes=8, and now keyframes=4 is asked"):
        convert_films(tmp_path / "films", tmp_path / "out", 4)
    assert convert_films(tmp_path / "films", tmp_path / "out", 4, force=True).written == 3


def test_other_frames_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = write_film(tmp_path / "films" / "0", 20).path
    shorter = write_film(tmp_path / "shorter", 19).path.read_bytes()
    later = write_film(tmp_path / "later", 20, rate=25).path.read_bytes()
    for content, says in ((shorter, "19 of 20 frames"), (later, "from its time")):
        monkeypatch.setattr(
            films,
            "_encode_film",
            lambda _, target, *how, content=content: Path(target).write_bytes(content),
        )
        with pytest.raises(StorageError, match=says):
            convert_films(source, tmp_path / "out", 8)
        assert os.listdir(tmp_path / "out") == [".penstock-convert.json"]


def test_arguments_are_checked(tmp_path: Path) -> None:
    source = write_film(tmp_path / "0", 8, **KINDS["mpeg4"]).path
    with pytest.raises(UsageError, match="films of mpeg4, and h264, hevc"):
        convert_films(source, tmp_path / "out", 8)
    with pytest.raises(UsageError, match="is a URL: copy films"):
        convert_films("s3://bucket/films", tmp_path / "out", 8)
    films = _write_films(tmp_path / "films")[0].parents[1]
    for inside in (films, films / "b" / "out"):
        with pytest.raises(UsageError, match="is inside the source: choose another folder"):
            convert_films(films, inside, 8)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root's encoder puts itself first")
def test_an_encoder_does_not_stay_before_all_others(tmp_path: Path) -> None:
    """SVT-AV1 makes threads real-time ones, its caller among them: they are ordinary again."""
    with av.open(str(tmp_path / "film.mp4"), "w") as film:
        stream = film.add_stream("libsvtav1", rate=30, options={"preset": "10"})
        stream.width, stream.height, stream.pix_fmt = 64, 64, "yuv420p"
        with films.keep_policy():
            film.start_encoding()
            assert os.sched_getscheduler(0) == os.SCHED_FIFO
        threads = os.listdir("/proc/self/task")
        assert {os.sched_getscheduler(int(thread)) for thread in threads} == {os.SCHED_OTHER}
