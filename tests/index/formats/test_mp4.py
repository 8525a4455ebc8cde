"""Films: clips are the frames that PyAV decodes from start to end."""

from __future__ import annotations

import struct
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any, ClassVar

import av
import numpy as np
import pytest

import penstock
from penstock._core import DecoderPool
from penstock.errors import FormatError, UsageError
from penstock.index.codecs import film as film_codec
from penstock.testing import FormatSuite, Written
from tests.index.formats.films import (
    KINDS,
    OPEN,
    Film,
    list_starts,
    read_film,
    take_clip,
    write_film,
)


class TestMp4(FormatSuite):
    """Films whose header is at the end, with frames decoded in another sequence than shown."""

    muxer: ClassVar[dict[str, str]] = {}

    def write(self, folder: Path, counts: Sequence[int], random: np.random.Generator) -> Written:
        """Clips of four frames; and three frames that are in none."""
        frames, times, keys, paths = [], [], [], []
        for number, count in enumerate(counts):
            path, length = folder / f"{number}.mp4", 4 * count + 3
            film = write_film(path, length, options=OPEN, muxer=self.muxer, seed=number)
            for clip in range(count):
                frames.append(film.frames[4 * clip : 4 * clip + 4])
                times.append(film.times[4 * clip : 4 * clip + 4])
                keys.append(f"{number}.mp4#{clip}")
            paths.append(path)
        fields: dict[str, Any] = {"frames": frames, "time": times}
        path = paths[0] if len(counts) == 1 else paths
        return Written(path, fields, {"clips": {"frames": 4}}, keys=keys)


@pytest.mark.long
class TestFragments(TestMp4):
    """Films in fragments."""

    muxer: ClassVar[dict[str, str]] = {"movflags": "frag_keyframe+empty_moov"}


@pytest.mark.long
class TestFilms(FormatSuite):
    """Whole films are samples of any length."""

    def write(self, folder: Path, counts: Sequence[int], random: np.random.Generator) -> Written:
        """A film of one to four frames for each sample."""
        films = [
            write_film(folder / f"{number:02}.mp4", 1 + number % 4, seed=number)
            for number in range(sum(counts))
        ]
        fields: dict[str, Any] = {
            "frames": [film.frames for film in films],
            "time": [film.times for film in films],
        }
        keys = [film.path.name for film in films]
        return Written(folder, fields, {"format": "mp4"}, keys=keys)


@pytest.mark.parametrize("kind", KINDS)
def test_clips_are_what_pyav_decodes(kind: str, tmp_path: Path) -> None:
    """Of every kind of film, frames and times of random clips are those of the whole film."""
    film = write_film(tmp_path / "film", 50, **KINDS[kind])
    whole = penstock.open(film.path, index="memory")[0]
    assert np.array_equal(whole["frames"], film.frames)
    assert np.array_equal(whole["time"], film.times)
    random = np.random.default_rng(1)
    for _ in range(8):
        count, every, stride = (int(random.integers(1, most)) for most in (16, 4, 30))
        is_padded = bool(random.integers(2))
        clips = {"frames": count, "every": every, "stride": stride}
        data = penstock.open(
            film.path, clips=clips | {"short": "pad" if is_padded else "skip"}, index="memory"
        )
        starts = list_starts(film, count, every, stride, is_padded)
        assert len(data) == len(starts), clips
        for number in random.permutation(len(data))[:5].tolist():
            sample = data[number]
            expected = take_clip(film, starts[number], count, every)
            assert np.array_equal(sample["frames"], expected), (clips, number)
            places = starts[number] + every * np.arange(count)
            inside = places < len(film.frames)
            shown = film.times[np.minimum(places, len(film.frames) - 1)]
            assert np.array_equal(sample["time"], shown)
            if is_padded:
                assert np.array_equal(sample["frame_valid"], inside)


@pytest.mark.parametrize("kind", ["open", "variable", "fragments"])
def test_clips_by_time_are_what_the_film_shows(kind: str, tmp_path: Path) -> None:
    """Frames at given times are the last ones that were shown by then."""
    film = write_film(tmp_path / "film", 50, **KINDS[kind])
    for seconds, fps, stride in ((1.0, 10, 0.25), (0.5, 30, 0.5), (0.8, 5, 0.1), (0.6, 50, 0.3)):
        clips = {"seconds": seconds, "fps": fps, "stride": stride}
        data = penstock.open(film.path, clips=clips, index="memory")
        assert len(data) > 1
        for number in range(len(data)):
            wanted = film.times[0] + number * stride + np.arange(round(seconds * fps)) / fps
            places = np.searchsorted(film.times, wanted + 1e-4, side="right") - 1
            sample = data[number]
            assert np.array_equal(sample["frames"], film.frames[places]), (clips, number)
            assert np.array_equal(sample["time"], film.times[places])
        assert wanted[-1] + stride > film.times[-1]


def write_folder(folder: Path, **how: Any) -> list[Film]:
    """Write films of two classes."""
    films = []
    for number, name in enumerate(("cat/0", "cat/1", "dog/2")):
        films.append(write_film(folder / name, 20 + 3 * number, seed=number, **how))
    return films


def test_folders_give_labels(tmp_path: Path) -> None:
    """Clips have the classes of their films' folders, and say which film and frame they are."""
    films = write_folder(tmp_path / "films")
    data = penstock.open(tmp_path / "films", clips={"frames": 5, "stride": 4}, index="memory")
    assert data.index.classes == ("cat", "dog")
    origins = data.origins(np.arange(len(data)))
    for number, sample in enumerate(data):
        film, first = int(origins["film"][number]), int(origins["frame"][number])
        assert np.array_equal(sample["frames"], take_clip(films[film], first, 5, 1))
        assert sample["label"] == (film == 2)
        assert sample["__key__"].startswith(("cat/0.mp4#", "cat/1.mp4#", "dog/2.mp4#")[film])


def test_frames_are_scaled_and_laid_out(tmp_path: Path) -> None:
    """Films of several sizes are scaled to one, as FFmpeg does; channels may come first."""
    write_film(tmp_path / "a", 9)
    write_film(tmp_path / "b", 9, size=(64, 96))
    with pytest.raises(UsageError, match=r"b\.mp4 has frames of 96 x 64, others of 64 x 48"):
        penstock.open(tmp_path, clips={"frames": 4}, index="memory")
    clips = {"frames": 4, "size": (24, 40), "layout": "chw"}
    data = penstock.open(tmp_path, clips=clips, index="memory")
    assert [field.shape for field in data.fields] == [(4, 3, 24, 40), (4,)]
    with av.open(str(tmp_path / "b.mp4")) as film:
        frame = next(film.decode(video=0)).to_ndarray(format="rgb24", width=40, height=24)
    assert np.array_equal(data[2]["frames"][0], frame.transpose(2, 0, 1))


@pytest.mark.parametrize("width", [16, 18, 30, 32, 46, 80, 94])
@pytest.mark.parametrize("layout", ["hwc", "chw"])
def test_lines_of_any_width(width: int, layout: str, tmp_path: Path) -> None:
    """Lines are laid out by whole vectors, and what is left of them one by one."""
    film = write_film(tmp_path / "film", 6, size=(34, width))
    with av.open(str(film.path)) as opened:
        wanted = [frame.to_ndarray(format="rgb24") for frame in opened.decode(video=0)]
    clips = {"frames": 3, "layout": layout}
    data = penstock.open(film.path, clips=clips, index="memory")
    for number in (1, 0):
        frames = data[number]["frames"]
        frames = frames.transpose(0, 2, 3, 1) if layout == "chw" else frames
        assert np.array_equal(frames, wanted[3 * number :][:3])


@pytest.mark.parametrize("kind", ["closed", "open", "hevc", "vp9"])
def test_edit_lists(kind: str, tmp_path: Path) -> None:
    """Frames that an edit list leaves out are not counted, and times begin where it says."""
    film = write_film(tmp_path / "film", 50, **KINDS[kind])
    whole = bytearray(film.path.read_bytes())
    at = find_box(whole, b"elst") + 8
    (start,) = struct.unpack_from(">i", whole, at + 4)
    edits = [(1000, 0), (1034, 0), (500, 0), (1000, 3), (700, 14), (5000, 49)]  # ms, frames
    for length, frames in edits:
        struct.pack_into(">Ii", whole, at, length, start + 512 * frames)
        film.path.write_bytes(whole)
        shown = read_film(film.path)
        assert len(shown.frames) < 50
        sample = penstock.open(film.path, index="memory")[0]
        assert np.array_equal(sample["frames"], shown.frames)
        assert np.array_equal(sample["time"], shown.times)
        data = penstock.open(film.path, clips={"frames": 1, "stride": 3}, index="memory")
        for number in range(len(data)):
            assert np.array_equal(data[number]["frames"][0], shown.frames[3 * number])


@pytest.mark.parametrize("turns", [0, 1, 2, 3])
def test_frames_are_turned_upright(turns: int, tmp_path: Path) -> None:
    """Frames of a film that was taken upright or upside down are shown as players show them."""
    cosine, sine = ((1, 0), (0, 1), (-1, 0), (0, -1))[turns]
    film = write_film(tmp_path / "film", 13)
    whole = bytearray(film.path.read_bytes())
    matrix = (cosine << 16, sine << 16, 0, -sine << 16, cosine << 16, 0)
    struct.pack_into(">6i", whole, find_box(whole, b"tkhd") + 40, *matrix)
    film.path.write_bytes(whole)
    with av.open(str(film.path)) as opened:
        assert next(opened.decode(video=0)).rotation % 360 == -90 * turns % 360
    sample = penstock.open(film.path, index="memory")[0]
    assert np.array_equal(sample["frames"], np.rot90(film.frames, -turns, (1, 2)))
    data = penstock.open(film.path, clips={"frames": 4, "layout": "chw"}, index="memory")
    assert data.fields[0].shape == ((4, 3, 64, 48) if turns % 2 else (4, 3, 48, 64))
    assert np.array_equal(data[1]["frames"], sample["frames"][4:8].transpose(0, 3, 1, 2))
    clips = {"frames": 4, "size": (32, 40)}
    scaled = penstock.open(film.path, clips=clips, index="memory")[0]["frames"][0]
    size = {"height": 40, "width": 32} if turns % 2 else {"height": 32, "width": 40}
    with av.open(str(film.path)) as opened:
        frame = next(opened.decode(video=0)).to_ndarray(format="rgb24", **size)
    assert np.array_equal(scaled, np.rot90(frame, -turns))


def test_decoders_wait_for_work(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of films of many kinds, a few decoders are kept, and used again."""
    pool = DecoderPool(av._core.__file__, 2)
    monkeypatch.setattr(film_codec, "find_pool", lambda: pool)
    films = [write_film(tmp_path / f"{n}", 24, size=(48, 48 + 16 * n), seed=n) for n in range(4)]
    clips = {"frames": 4, "size": (48, 48)}
    data = penstock.open(tmp_path, clips=clips, index="memory")
    assert np.array_equal(data[0]["frames"], films[0].frames[:4])
    for number in (0, 6, 0, 6, 1, 7, 0):
        assert data[number]["frames"].shape == (4, 48, 48, 3)
    assert pool.opened == 2
    for number in (12, 18, 0, 6, 12, 18):
        assert data[number]["frames"].shape == (4, 48, 48, 3)
        assert len(pool.idle) == 2
    assert pool.opened > 4
    assert np.array_equal(data[5]["frames"], films[0].frames[20:])


def test_headers_alone_are_read(tmp_path: Path) -> None:
    """An index has nothing of the frames: it is the same where their bytes are others."""
    for kind in ("closed", "faststart", "fragments"):
        film = write_film(tmp_path / kind, 50, **KINDS[kind])
        whole = film.path.read_bytes()
        first = penstock.open(film.path, clips={"frames": 4}, index="memory")
        at, data = 0, bytearray(whole)
        while at < len(whole):
            size, name = struct.unpack_from(">I4s", whole, at)
            if name == b"mdat":
                data[at + 8 : at + size] = bytes(size - 8)
            at += size
        film.path.write_bytes(data)
        again = penstock.open(film.path, clips={"frames": 4}, index="memory")
        assert again.fingerprint == first.fingerprint
        with pytest.raises(FormatError, match=r"cannot be decoded as film: .*damaged"):
            again[0]


# -- damage ----------------------------------------------------------------------------------------


def find_box(data: bytes, kind: bytes) -> int:
    """Find where the content of the first box of a type begins."""
    return data.index(kind) + 4


@pytest.mark.parametrize(
    ("kind", "at", "value", "says"),
    [
        (b"stsz", 8, 1 << 31, r"'stsz': a table of 2,147,483,648 entries"),
        (b"stsz", 8, 49, r"'stts': times of 50 frames, and there are 49"),
        (b"stts", 4, 1 << 30, r"'stts': a table of"),
        (b"stts", 8, (1 << 32) - 1, r"'stts': times of 4,294,967,295 frames, and there are 50"),
        (b"ctts", 8, 1 << 31, r"'ctts': times of"),
        (b"stss", 8, 4, r"'moov': a frame behind the first keyframe is decoded before it"),
        (b"stss", 8, 60, r"'stss': keyframes are not"),
        (b"stss", 4, 0, r"'stss': no keyframe"),
        (b"stsc", 8, 2, r"'stsc': 1 runs do not make up"),
        (b"stsc", 12, 1, r"'stsc': chunks of 1 frames in all, and there are 50"),
        (b"stco", 8, (1 << 32) - 1, r"'stco': frames at byte 4,294,967,295, beyond the end"),
        (b"stco", 8, 9999, r"frame \d+ of 50 has \d+ bytes at byte [\d,]+, and the file has"),
        (b"mdhd", 12, 0, r"'mdhd': a second of 0 ticks"),
        (b"moov", -8, 1 << 20, r"a box 'moov' of 1,048,576 bytes, and [\d,]+ are left"),
        (b"hdlr", 8, int.from_bytes(b"soun", "big"), r"tracks of 'soun', and none of video"),
        (b"stsd", 12, int.from_bytes(b"dvh9", "big"), r"frames are encoded as 'dvh9'"),
        (b"elst", 12, 1 << 30, r"its edit list shows none of the frames"),
        (b"trak", -4, int.from_bytes(b"free", "big"), r"no tracks, and none of video"),
        (b"moov", -4, int.from_bytes(b"free", "big"), r"it has no 'moov'"),
    ],
)
def test_tables_that_lie(kind: bytes, at: int, value: int, says: str, tmp_path: Path) -> None:
    """Tables that contradict the file, or each other, are errors that name file and table."""
    film = write_film(tmp_path / "film", 50)
    data = bytearray(film.path.read_bytes())
    struct.pack_into(">I", data, find_box(data, kind) + at, value)
    film.path.write_bytes(data)
    with pytest.raises(FormatError, match=says) as caught:
        penstock.open(film.path, clips={"frames": 4}, index="memory", format="mp4")
    assert str(film.path) in str(caught.value)


@pytest.mark.parametrize(
    ("kind", "at", "value", "says"),
    [
        (b"tfhd", 8, 1 << 63, r"'tfhd': frames at byte [\d,]+, outside the file"),
        (b"tfdt", 4, 1 << 62, r"'tfdt': a fragment at tick 4,611,686,018,427,387,904"),
        (b"trun", 0, 0x400 << 32 | 1 << 31, r"'trun': 2,147,483,648 frames of"),
        (b"trun", 0, 0xF01 << 32 | 1 << 31, r"'trun': a table of 2,147,483,648 entries"),
    ],
)
def test_fragments_that_lie(kind: bytes, at: int, value: int, says: str, tmp_path: Path) -> None:
    """Fragments that point elsewhere, or count what is not there, are errors as well."""
    film = write_film(tmp_path / "film", 50, muxer={"movflags": "frag_keyframe+empty_moov"})
    data = bytearray(film.path.read_bytes())
    struct.pack_into(">Q", data, find_box(data, kind) + at, value)
    film.path.write_bytes(data)
    with pytest.raises(FormatError, match=says) as caught:
        penstock.open(film.path, clips={"frames": 4}, index="memory")
    assert str(film.path) in str(caught.value)


def test_endless_boxes(tmp_path: Path) -> None:
    """Boxes within boxes, and more than there can be, end with an error."""
    deep = b"".join(struct.pack(">I4s", 8 * (5000 - n), b"trak") for n in range(5000))
    many = struct.pack(">I4s", 8, b"free") * (1 << 19)
    for name, data in (
        ("deep", struct.pack(">I4s", 8 + len(deep), b"moov") + deep),
        ("many", many),
    ):
        (tmp_path / name).write_bytes(data)
        with pytest.raises(FormatError, match="boxes"):
            penstock.open(tmp_path / name, format="mp4", index="memory")


def test_damaged_frames(tmp_path: Path) -> None:
    """Damaged frames are an error that names file, clip and byte, or not seen in what is given."""
    film = write_film(tmp_path / "film", 50)
    data = bytearray(film.path.read_bytes())
    index = penstock.open(film.path, clips={"frames": 4}, index="memory").index
    offset = int(index.layouts[0].chunks.extents(np.array([1])).offset[0])
    data[offset : offset + 40] = bytes(40)
    film.path.write_bytes(data)
    damaged = penstock.open(film.path, clips={"frames": 4}, index="memory")
    says = (
        r"sample 3: .*film\.mp4 at byte [\d,]+ \([\d,]+ bytes, clip 3\): field 'frames' cannot be"
    )
    with pytest.raises(FormatError, match=says):
        damaged[3]
    with (
        penstock.Loader(
            damaged, 5, shuffle="none", budget=penstock.Budget(decoded_bytes=0)
        ) as loader,
        pytest.raises(FormatError, match=says),
    ):
        next(iter(loader))
    assert np.array_equal(damaged[0]["frames"], film.frames[:4])


def test_short_films(tmp_path: Path) -> None:
    """Films shorter than a clip are left out, padded, or an error, as is asked."""
    long = write_film(tmp_path / "a", 20)
    short = write_film(tmp_path / "b", 5)
    with pytest.warns(RuntimeWarning, match=r"b\.mp4 has 5 frames, fewer than a clip of 8"):
        data = penstock.open(tmp_path, clips={"frames": 8}, index="memory")
    assert len(data) == 2
    with pytest.raises(FormatError, match=r"b\.mp4 has 5 frames"):
        penstock.open(tmp_path, clips={"frames": 8, "short": "error"}, index="memory")
    with pytest.raises(FormatError, match=r"b\.mp4 has 5 frames"):
        penstock.open(short.path, clips={"frames": 8}, index="memory")
    one = write_film(tmp_path / "one" / "c", 1)
    data = penstock.open(
        one.path, clips={"seconds": 0.3, "fps": 10, "short": "pad"}, index="memory"
    )
    assert data[0]["frame_valid"].tolist() == [True, False, False]
    one.path.unlink()
    one.path.parent.rmdir()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        data = penstock.open(tmp_path, clips={"frames": 8, "short": "pad"}, index="memory")
    assert len(data) == 4
    assert np.array_equal(data[3]["frames"], take_clip(short, 0, 8, 1))
    assert data[3]["frame_valid"].tolist() == [True] * 5 + [False] * 3
    assert np.array_equal(data[2]["frames"], take_clip(long, 16, 8, 1))


@pytest.mark.parametrize(
    ("clips", "says"),
    [
        (5, "give a dict of frames"),
        ({"frame": 5}, "has no 'frame'"),
        ({"frames": 0}, "frames is 0"),
        ({"frames": 4, "seconds": 2.0}, "give frames= .and every=., or seconds= and fps="),
        ({"seconds": 2.0}, "or seconds= and fps="),
        ({"seconds": 0.25, "fps": 10}, "0.25 seconds have 2.5 frames at fps=10"),
        ({"every": 2}, "give frames="),
        ({"frames": 4, "short": "repeat"}, "short is 'repeat'"),
        ({"frames": 4, "size": 224}, "size is 224: give .height, width."),
    ],
)
def test_clips_that_are_none(clips: Any, says: str, tmp_path: Path) -> None:
    """What is no clip is said before a file is read."""
    with pytest.raises(UsageError, match=says):
        penstock.open(tmp_path, clips=clips)


def test_folders_without_clips_stay_files(tmp_path: Path) -> None:
    """A folder that is opened without clips= has files as samples, as of any kind."""
    film = write_film(tmp_path / "film", 5)
    assert penstock.open(tmp_path, index="memory")[0]["data"] == film.path.read_bytes()
    assert len(read_film(film.path).frames) == 5
