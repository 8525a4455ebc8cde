"""Sound: windows of samples are what PyAV decodes of the whole file, bit for bit."""

from __future__ import annotations

import pickle
import struct
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import penstock
from penstock._core import DecoderPool
from penstock.errors import FormatError, UsageError
from penstock.index.codecs import sound as sound_codec
from penstock.index.layout import Boxes, Windows
from tests.index.formats.films import write_film
from tests.index.formats.sounds import KINDS, Sound, read_sound, write_sound

av = pytest.importorskip("av")


def check_clips(data: penstock.Dataset, sound: Sound, size: int, stride: int) -> None:
    """Check some clips of a file, the first and the last among them, against all of its sound."""
    random = np.random.default_rng(size)
    chosen = {0, len(data) - 1, *random.integers(0, len(data), 6).tolist()}
    for number in random.permutation(list(chosen)).tolist():
        sample = data[number]
        expected = sound.floats[number * stride :][:size]
        length, channels = expected.shape
        assert sample["sound"].dtype == np.float32
        assert np.array_equal(sample["sound"][:length], expected), (number, size)
        assert sample["sound"].shape == (size, channels)
        assert not sample["sound"][length:].any()
        assert sample["time"] == number * stride / sound.rate
        assert sample["rate"] == sound.rate
        if "sound_valid" in sample:
            assert sample["sound_valid"].tolist() == [n < length for n in range(size)]


@pytest.mark.parametrize("kind", KINDS)
def test_clips_are_what_the_file_has(kind: str, tmp_path: Path) -> None:
    """Of every kind of file, the whole and random clips are those of a decode from the start."""
    sound = write_sound(tmp_path / "sound", 6.3, **KINDS[kind])
    whole = penstock.open(sound.path, index="memory")[0]
    assert np.array_equal(whole["sound"], sound.floats)
    assert whole["rate"] == sound.rate
    for seconds, stride, short in (
        (2.0, 2.0, "skip"),
        (2.0, 1.0, "pad"),
        (0.5, 0.3, "skip"),
        (0.031, 0.7, "pad"),
    ):
        clips = {"seconds": seconds, "stride": stride, "short": short}
        data = penstock.open(sound.path, clips=clips, index="memory")
        size, step = round(seconds * sound.rate), round(stride * sound.rate)
        left = len(sound.floats) - size
        most = min(-(-left // step) + 1, -(-len(sound.floats) // step))
        assert len(data) == (left // step + 1 if short == "skip" else most)
        check_clips(data, sound, size, step)


@pytest.mark.parametrize("kind", ["WAV", "FLAC", "MP3", "VORBIS", "OPUS"])
def test_clips_are_what_libsndfile_reads(kind: str, tmp_path: Path) -> None:
    """Another library, which has decoders of its own, reads the same samples."""
    soundfile = pytest.importorskip("soundfile")
    container = {"VORBIS": "OGG", "OPUS": "OGG"}.get(kind, kind)
    subtype = {"WAV": "PCM_16", "FLAC": "PCM_24", "MP3": "MPEG_LAYER_III"}.get(kind, kind)
    path, random = tmp_path / f"sound.{container.lower()}", np.random.default_rng(1)
    noise = random.standard_normal((48_000 * 5, 2)).cumsum(0)
    soundfile.write(path, noise / np.abs(noise).max(), 48_000, subtype, format=container)
    read, rate = soundfile.read(path, dtype="float32", always_2d=True)
    data = penstock.open(path, clips={"frames": 7001, "stride": 6007}, index="memory")
    assert len(data) == (len(read) - 7001) // 6007 + 1
    assert rate == 48_000
    for number in range(0, len(data), 5):
        expected = read[6007 * number :][:7001]
        if kind in ("WAV", "FLAC"):
            assert np.array_equal(data[number]["sound"], expected)
        else:
            assert np.abs(data[number]["sound"] - expected).max() < 1e-5
        assert np.array_equal(
            data[number]["sound"], read_sound(path).floats[6007 * number :][:7001]
        )


def write_folder(folder: Path, *kinds: str) -> list[Sound]:
    """Write files of two classes, of 1.5, 2 and 2.5 seconds."""
    names = ("cat/0", "cat/1", "dog/2")
    kinds = kinds * 3 if len(kinds) == 1 else kinds
    return [
        write_sound(folder / name, 1.5 + 0.5 * number, **KINDS[kind], seed=number)
        for number, (name, kind) in enumerate(zip(names, kinds, strict=True))
    ]


def test_folders_give_labels(tmp_path: Path) -> None:
    """Clips have the classes of their files' folders, and say which file and sample they are of."""
    sounds = write_folder(tmp_path, "wav", "wav", "wav")
    (tmp_path / "cat" / "0.txt").write_text("what is said")
    (tmp_path / "cat" / "._0.wav").write_bytes(b"\0\5\x16\7")
    data = penstock.open(tmp_path, clips={"seconds": 0.5, "stride": 0.25}, index="memory")
    assert isinstance(data.index.layouts[0], Boxes)
    assert data.index.classes == ("cat", "dog")
    origins = data.origins(np.arange(len(data)))
    for number, sample in enumerate(data):
        file, first = int(origins["file"][number]), int(origins["frame"][number])
        assert np.array_equal(sample["sound"], sounds[file].floats[first : first + 8000])
        assert sample["label"] == (file == 2)
        assert sample["__key__"].startswith(("cat/0.wav#", "cat/1.wav#", "dog/2.wav#")[file])


@pytest.mark.parametrize(
    ("kinds", "dtype"),
    [
        (("wav", "flac", "wav"), np.int16),
        (("wav", "wav of 32", "wav"), np.float32),
        (("wav of floats", "wav of 24", "flac of 24"), np.float32),
        (("mp3", "wav of bytes", "flac"), np.float32),
    ],
)
def test_files_of_several_kinds(kinds: tuple[str, ...], dtype: Any, tmp_path: Path) -> None:
    """Files of one rate may be of any kinds; where their numbers differ, floats are read."""
    sounds = write_folder(tmp_path, *kinds)
    data = penstock.open(tmp_path, clips={"frames": 5000, "stride": 3000}, index="memory")
    assert data.index.fields[0].dtype == dtype
    whole = penstock.open(tmp_path, sound="stored", index="memory")
    for number, sound in enumerate(sounds):
        expected = sound.stored if dtype == np.int16 else sound.floats
        assert np.array_equal(whole[number]["sound"], expected)
    origins = data.origins(np.arange(len(data)))
    for number, sample in enumerate(data):
        file, first = int(origins["file"][number]), int(origins["frame"][number])
        assert np.array_equal(sample["sound"], sounds[file].floats[first : first + 5000])


@pytest.mark.parametrize("kind", ["wav", "wav of bytes", "flac", "mp3"])
def test_numbers_as_they_are_stored(kind: str, tmp_path: Path) -> None:
    """One index serves both: numbers as the file has them, and floats."""
    sound = write_sound(tmp_path / "sound", 3.2, **KINDS[kind])
    clips = {"seconds": 1.0, "stride": 0.5, "short": "pad"}
    floats = penstock.open(sound.path, clips=clips)
    stored = penstock.open(sound.path, clips=clips, sound="stored", index="read")
    assert stored.fingerprint == floats.fingerprint
    assert np.array_equal(stored[2]["sound"], sound.stored[16_000:32_000])
    assert stored[2]["sound"].dtype == sound.stored.dtype
    assert stored[5]["sound"][-1] == (128 if kind == "wav of bytes" else 0)
    assert np.array_equal(floats[2]["sound"], sound.floats[16_000:32_000])
    again = pickle.loads(pickle.dumps(floats))
    assert np.array_equal(again[2]["sound"], floats[2]["sound"])
    assert np.array_equal(again[2]["time"], floats[2]["time"])


@pytest.mark.parametrize("kind", ["wav", "flac", "mp3", "opus", "m4a", "fragments of a film"])
def test_saved_indexes_and_batches(kind: str, tmp_path: Path) -> None:
    """A saved index gives the same clips; an exact shuffle gives each once, and goes on."""
    sounds = write_folder(tmp_path / "sounds", kind)
    clips = {"seconds": 0.5, "stride": 0.2, "short": "pad"}
    made = penstock.open(tmp_path / "sounds", clips=clips)
    data = penstock.open(tmp_path / "sounds", clips=clips, index="read")
    assert data.fingerprint == made.fingerprint
    assert data.index.fields[0].codec is None or isinstance(data.index.layouts[0], Windows)
    origins = data.origins(np.arange(len(data)))
    seen: list[int] = []
    with penstock.Loader(data, 3, seed=1, drop_last=False) as loader:
        batches = iter(loader)
        for step, batch in enumerate(batches):
            for row, number in enumerate(batch.ids.tolist()):
                file, first = int(origins["file"][number]), int(origins["frame"][number])
                expected = sounds[file].floats[first:][: batch["sound"].shape[1]]
                assert np.array_equal(batch["sound"][row][: len(expected)], expected)
                assert batch["sound_valid"][row].sum() == len(expected)
                seen.append(number)
            if step == 2:
                state = loader.state_dict()
    assert sorted(seen) == list(range(len(data)))
    with penstock.Loader(data, 3, seed=1, drop_last=False) as loader:
        loader.load_state_dict(state)
        rest = [number for batch in loader for number in batch.ids.tolist()]
    assert rest == seen[9:]


def test_decoders_wait_for_work(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of files of several kinds, a few decoders are kept, and used again in another's place."""
    pool = DecoderPool(av._core.__file__, 2)
    monkeypatch.setattr(sound_codec, "find_pool", lambda: pool)
    sounds = write_folder(tmp_path, "mp3", "flac", "wav")
    data = penstock.open(tmp_path, clips={"seconds": 0.5}, index="memory")
    origins = data.origins(np.arange(len(data)))
    for number in np.random.default_rng(0).permutation(np.repeat(np.arange(len(data)), 3)).tolist():
        file, first = int(origins["file"][number]), int(origins["frame"][number])
        assert np.array_equal(data[number]["sound"], sounds[file].floats[first : first + 8000])
        assert len(pool.idle) <= 2
    assert set(pool.idle) <= {"mp3float", "flac", "pcm_s16le"}


def test_what_players_ignore(tmp_path: Path) -> None:
    """Tags before and behind the sound, odd chunks and padding are not read as sound."""
    tag = b"ID3\4\0\0\0\0\1\0" + bytes(128)
    ape = b"APETAGEX" + struct.pack("<IIII", 2000, 40, 1, 0) + bytes(8)
    tags = bytes(8) + ape + b"TAG" + bytes(125)
    mp3 = write_sound(tmp_path / "sound", 2.0, **KINDS["mp3"])
    mp3.path.write_bytes(tag + tag + mp3.path.read_bytes() + tags)
    assert np.array_equal(penstock.open(mp3.path, index="memory")[0]["sound"], mp3.floats)
    unnamed = mp3.path.rename(tmp_path / "sound.mpeg")
    opened = penstock.open(unnamed, format="audio", index="memory")
    assert np.array_equal(opened[0]["sound"], mp3.floats)
    flac = write_sound(tmp_path / "sound", 2.0, **KINDS["flac"])
    flac.path.write_bytes(tag + tag + flac.path.read_bytes() + tags)
    assert np.array_equal(penstock.open(flac.path, index="memory")[0]["sound"], flac.floats)
    wav = write_sound(tmp_path / "sound", 2.0)
    data = wav.path.read_bytes()
    at = data.index(b"data")
    odd = b"bext" + struct.pack("<I", 3) + bytes(4) + b"fact" + struct.pack("<I", 4) + bytes(4)
    wav.path.write_bytes(data[:at] + odd + data[at:] + b"LIST" + struct.pack("<I", 1) + b"xx")
    assert np.array_equal(penstock.open(wav.path, index="memory")[0]["sound"], wav.floats)
    piped = data[: at + 4] + b"\xff\xff\xff\xff" + data[at + 8 :]
    wav.path.write_bytes(piped)  # written to a pipe: up to the end
    assert np.array_equal(penstock.open(wav.path, index="memory")[0]["sound"], wav.floats)


# -- beside pictures -------------------------------------------------------------------------------


def check_beside(data: penstock.Dataset, sound: Sound, begin: int, stride: float) -> None:
    """Check the sound of clips against all of a film's, from this sample on."""
    for number in np.random.default_rng(1).permutation(len(data)).tolist():
        sample, low = data[number], begin + round(number * stride * sound.rate)
        places = np.arange(low, low + len(sample["sound"]))
        is_there = (places >= 0) & (places < len(sound.floats))
        assert np.array_equal(sample["sound_valid"], is_there), number
        assert np.array_equal(sample["sound"][is_there], sound.floats[places[is_there]])
        assert not sample["sound"][~is_there].any()
        assert sample["rate"] == sound.rate


@pytest.mark.parametrize("kind", ["m4a of a film", "mov of a film", "fragments of a film"])
def test_sound_beside_pictures(kind: str, tmp_path: Path) -> None:
    """Clips of films have the sound of the same seconds, and the pictures that they have alone."""
    sound = write_sound(tmp_path / "sound", 5.3, **KINDS[kind])  # shorter than the pictures
    film = sound.path.rename(tmp_path / "film.mp4")
    clips = {"seconds": 0.8, "fps": 10, "stride": 0.37, "short": "pad"}
    alone = penstock.open(film, clips=clips, index="memory")
    penstock.open(film, clips=clips | {"sound": True})
    data = penstock.open(film, clips=clips | {"sound": True}, index="read")
    assert len(data) == len(alone) == 18
    assert data[0]["sound"].shape == (round(0.8 * sound.rate), sound.floats.shape[1])
    check_beside(data, sound, 0, 0.37)
    for number in (0, 7, 17):
        assert np.array_equal(data[number]["frames"], alone[number]["frames"])
        assert np.array_equal(data[number]["time"], alone[number]["time"])


@pytest.mark.parametrize("start", [300, 700, 12_800])
def test_pictures_that_begin_behind_the_sound(start: int, tmp_path: Path) -> None:
    """Where the first picture is shown later than the first sample is heard, clips begin there."""
    sound = write_sound(tmp_path / "sound", 4.0, **KINDS["m4a of a film"])
    data = bytearray(sound.path.read_bytes())
    struct.pack_into(">i", data, data.index(b"elst") + 16, start)  # ticks of pictures, 512 each
    film = tmp_path / "film.mp4"
    film.write_bytes(data)
    clips = penstock.open(film, clips={"seconds": 0.5, "fps": 4, "sound": True}, index="memory")
    begin = -start % 512 / 12_800
    assert clips[0]["time"][0] == begin
    check_beside(clips, sound, round(begin * sound.rate), 0.5)


def test_sound_that_begins_behind_the_pictures(tmp_path: Path) -> None:
    """Where a film has pictures and no sound yet, samples are 0, and marked."""
    sound = write_sound(tmp_path / "sound", 3.0, **KINDS["fragments of a film"])
    data, at = bytearray(sound.path.read_bytes()), 0
    while (at := data.find(b"tfhd", at + 4)) > 0:
        time = data.index(b"tfdt", at) + 8
        if data[at + 11] == 2:  # the second track
            struct.pack_into(">Q", data, time, 30_000 + struct.unpack_from(">Q", data, time)[0])
    (film := tmp_path / "film.mp4").write_bytes(data)
    clips = penstock.open(film, clips={"seconds": 0.5, "fps": 4, "sound": True}, index="memory")
    check_beside(clips, sound, -30_000, 0.5)


def test_batches_of_sound_beside_pictures(tmp_path: Path) -> None:
    """An exact shuffle gives each clip of several films once, and goes on where it stopped."""
    kind = KINDS["m4a of a film"] | {"suffix": ".mp4", "edit": None}
    sounds = [
        write_sound(tmp_path / name, seconds, **kind | {"pictures": seconds}, seed=number)
        for number, (name, seconds) in enumerate((("a/0", 2.3), ("a/1", 0.4), ("b/0", 3.1)))
    ]
    clips = {"seconds": 0.6, "fps": 5, "stride": 0.2, "sound": True}
    with pytest.warns(RuntimeWarning, match=r"a/1\.mp4 has 10 frames, fewer than a clip"):
        data = penstock.open(tmp_path, clips=clips, index="memory")
    assert data.index.classes == ("a", "b")
    films = data.origins(np.arange(len(data)))["film"]
    seen: list[int] = []
    states = []
    with penstock.Loader(data, 4, seed=3, drop_last=False) as loader:
        for batch in loader:
            for row, number in enumerate(batch.ids.tolist()):
                sound = sounds[films[number]]
                first = round((number - films.tolist().index(films[number])) * 0.2 * sound.rate)
                expected = sound.floats[first:][: batch["sound"].shape[1]]
                assert np.array_equal(batch["sound"][row][: len(expected)], expected)
                assert batch["sound_valid"][row].sum() == len(expected)
                seen.append(number)
            states.append(loader.state_dict())
    assert sorted(seen) == list(range(len(data)))
    for step, state in enumerate(states[:-1]):
        with penstock.Loader(data, 4, seed=3, drop_last=False) as loader:
            loader.load_state_dict(state)
            batch = next(iter(loader))
            assert batch.ids.tolist() == seen[4 * step + 4 :][:4]


def test_films_whose_sound_does_not_fit(tmp_path: Path) -> None:
    """Films without sound, or of two rates, and clips by frames, are errors that say what to do."""
    kind = KINDS["m4a of a film"] | {"suffix": ".mp4", "edit": None}
    write_sound(tmp_path / "a", 2.0, **kind)
    write_sound(tmp_path / "b", 2.0, **kind | {"rate": 48_000})
    clips = {"seconds": 0.5, "fps": 4, "sound": True}
    with pytest.raises(FormatError, match=r"b\.mp4 has 1 channels of 48,000 a second"):
        penstock.open(tmp_path, clips=clips, index="memory")
    silent = write_film(tmp_path / "c", 30)
    with pytest.raises(FormatError, match=r"tracks of 'vide', and none of sound"):
        penstock.open(silent.path, clips=clips, index="memory")
    with pytest.raises(UsageError, match=r"sound=True needs seconds= and fps="):
        penstock.open(tmp_path / "a.mp4", clips={"frames": 3, "sound": True}, index="memory")


# -- damage ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("at", "value", "says"),
    [
        ((b"fmt ", 12), b"\0\0\0\0", "1 channels of 0 samples a second"),
        ((b"fmt ", 10), b"\xff\xff", "65,535 channels of 16,000"),
        ((b"fmt ", 8), b"\x11\0", "samples of 16 bits in encoding 0x0011"),
        ((b"fmt ", 22), b"\x14\0", "samples of 20 bits in encoding 0x0001"),
        ((b"fmt ", 20), b"\x07\0", "1 channels of 16 bits in 7 bytes"),
        ((b"fmt ", 4), b"\x03\0\0\0", "'fmt ' of 3 bytes"),
        ((b"fmt ", 4), b"\xf0\xff\xff\xff", "no 'fmt ' with 'data' behind it"),
        ((b"data", 0), b"DATA", "no 'fmt ' with 'data' behind it"),
        ((b"data", 4), b"\xfe\xff\xff\xff", r"samples of 4,294,967,294 bytes, and 32,000 are left"),
        ((b"RIFF", 8), b"AVI ", "it begins with b'RIFF"),
    ],
)
def test_wav_headers_that_lie(
    at: tuple[bytes, int], value: bytes, says: str, tmp_path: Path
) -> None:
    """Headers that contradict the file are errors that name the file and the byte."""
    sound = write_sound(tmp_path / "sound", 1.0)
    data = bytearray(sound.path.read_bytes())
    place = data.index(at[0]) + at[1]
    data[place : place + len(value)] = value
    sound.path.write_bytes(data)
    with pytest.raises(FormatError, match=says) as caught:
        penstock.open(sound.path, clips={"seconds": 0.5}, format="audio", index="memory")
    assert str(sound.path) in str(caught.value)


@pytest.mark.parametrize("kind", ["wav", "flac", "mp3", "opus", "vorbis", "m4a"])
@pytest.mark.parametrize("part", [0.3, 0.7, 0.9])
def test_files_that_are_cut(kind: str, part: float, tmp_path: Path) -> None:
    """A file without its end is an error, and not shorter sound."""
    sound = write_sound(tmp_path / "sound", 3.0, **KINDS[kind])
    data = sound.path.read_bytes()
    sound.path.write_bytes(data[: int(len(data) * part)])
    with pytest.raises(FormatError, match=r"cut|missing"):
        penstock.open(sound.path, format="audio", index="memory")


@pytest.mark.parametrize("kind", ["flac", "opus", "vorbis"])
def test_missing_and_repeated_parts(kind: str, tmp_path: Path) -> None:
    """Where a part of a file is missing, or there twice, a clip is right or an error."""
    sound = write_sound(tmp_path / "sound", 4.0, **KINDS[kind])
    data, random = sound.path.read_bytes(), np.random.default_rng(1)
    size, errors = sound.rate // 4, 0
    for _ in range(20):
        low, high = sorted(random.integers(len(data) // 4, len(data), 2).tolist())
        for made in (data[:low] + data[high:], data[:high] + data[low:]):
            sound.path.write_bytes(made)
            try:
                clips = penstock.open(sound.path, clips={"frames": size}, index="memory")
            except FormatError:
                errors += 1
                continue
            for number in range(len(clips)):
                try:
                    sample = clips[number]["sound"]
                except FormatError:
                    errors += 1
                    continue
                assert np.array_equal(sample, sound.floats[size * number :][:size])
    assert errors > 30


def test_damaged_flac(tmp_path: Path) -> None:
    """FLAC has checksums: damage is an error that names file, byte and clip, and of no other."""
    sound = write_sound(tmp_path / "sound", 4.0, **KINDS["flac"])
    data = bytearray(sound.path.read_bytes())
    data[len(data) // 2] ^= 4
    sound.path.write_bytes(data)
    clips = penstock.open(sound.path, clips={"seconds": 0.5}, index="memory")
    caught = []
    for number in range(8):
        try:
            expected = sound.floats[8000 * number : 8000 * (number + 1)]
            assert np.array_equal(clips[number]["sound"], expected)
        except FormatError as error:
            caught.append((number, str(error)))
    assert {3, 4} & {number for number, _ in caught}
    assert len(caught) <= 2
    assert "sound.flac at byte" in caught[0][1]
    assert f"clip {caught[0][0]}" in caught[0][1]


@pytest.mark.parametrize("kind", ["m4a", "m4a of a film", "fragments of a film"])
def test_headers_alone_are_read(kind: str, tmp_path: Path) -> None:
    """The index of an M4A has nothing of its packets; a film's sound is had by `sound=`."""
    sound = write_sound(tmp_path / "sound", 2.0, **KINDS[kind])
    film = sound.path.rename(tmp_path / "film.mp4")
    how = {"clips": {"frames": 9000}, "extensions": ".mp4", "sound": "float32", "index": "memory"}
    first, folder = (penstock.open(path, **how) for path in (film, tmp_path))
    assert np.array_equal(first[2]["sound"], sound.floats[18_000:27_000])
    assert np.array_equal(folder[3]["sound"], first[3]["sound"])
    at, data = 0, bytearray(film.read_bytes())
    while at < len(data):
        size, name = struct.unpack_from(">I4s", data, at)
        if name == b"mdat":
            data[at + 8 : at + size] = bytes(size - 8)
        at += size
    film.write_bytes(data)
    assert penstock.open(film, **how).fingerprint == first.fingerprint


def test_noise_of_aac_is_the_same_at_each_read(tmp_path: Path) -> None:
    """A decoder makes up noise of random numbers: a chunk has the same ones whatever was before."""
    sound = write_sound(tmp_path / "sound", 3.0, **KINDS["m4a"] | {"options": {}, "bits": 24_000})
    data = penstock.open(sound.path, clips={"frames": 22_050}, index="memory")
    first = [data[number]["sound"] for number in range(len(data))]
    for number in reversed(range(len(data))):
        assert np.array_equal(data[number]["sound"], first[number])
        expected = sound.floats[22_050 * number :][:22_050]
        assert np.abs(first[number] - expected).mean() < 0.02
    assert np.array_equal(first[0], sound.floats[:22_050])


@pytest.mark.parametrize(
    ("kind", "at", "value", "says"),
    [
        (b"stsz", 8, 1 << 31, r"'stsz': a table of 2,147,483,648 entries"),
        (b"stts", 8, 1 << 31, r"'stts': times of [\d,]+ frames, and there are 88"),
        (b"stco", 8, (1 << 32) - 1, r"'stco': frames at byte 4,294,967,295, beyond the end"),
        (b"stsc", 12, 1, r"'stsc': chunks of"),
        (b"mdhd", 12, 0, r"'mdhd': a second of 0 ticks"),
        (b"elst", 12, 1 << 30, r"its edit list has none of the sound|no samples"),
        (b"hdlr", 8, int.from_bytes(b"vide", "big"), r"tracks of 'vide', and none of sound"),
        (b"stsd", 12, int.from_bytes(b"ac-3", "big"), r"sound is encoded as 'ac-3'; AAC, ALAC"),
        (b"esds", -4, int.from_bytes(b"free", "big"), r"'mp4a': no 'esds'"),
        (b"\x05\x80\x80\x80", 1, 0x2A100000, r"sound as aac with '2a1\w+', and of AAC the kind LC"),
    ],
)
def test_tables_of_m4a_that_lie(
    kind: bytes, at: int, value: int, says: str, tmp_path: Path
) -> None:
    """Tables that contradict the file, other kinds of AAC, and files without sound are errors."""
    sound = write_sound(tmp_path / "sound", 2.0, **KINDS["m4a"])
    data = bytearray(sound.path.read_bytes())
    struct.pack_into(">I", data, data.index(kind) + 4 + at, value)
    sound.path.write_bytes(data)
    with pytest.raises(FormatError, match=says) as caught:
        penstock.open(sound.path, clips={"seconds": 0.5}, index="memory")
    assert str(sound.path) in str(caught.value)


def test_damaged_packets_of_m4a(tmp_path: Path) -> None:
    """Packets that no decoder understands are errors of the clips that have them, not others."""
    sound = write_sound(tmp_path / "sound", 4.0, **KINDS["m4a"])
    data = bytearray(sound.path.read_bytes())
    middle = data.index(b"mdat") + (len(data) - data.index(b"mdat")) // 2
    data[middle : middle + 2000] = b"\xff" * 2000
    sound.path.write_bytes(data)
    clips = penstock.open(sound.path, clips={"frames": 22_050}, index="memory")
    errors = []
    for number in range(len(clips)):
        try:
            expected = sound.floats[22_050 * number :][:22_050]
            assert np.array_equal(clips[number]["sound"], expected), number
        except FormatError as error:
            errors.append(str(error))
    assert 1 <= len(errors) <= 3
    assert f"{sound.path} at byte" in errors[0]


def test_chained_and_other_streams(tmp_path: Path) -> None:
    """Ogg of several streams, or of a codec that is not read, is an error that says what to do."""
    sound = write_sound(tmp_path / "sound", 1.0, **KINDS["opus"])
    data = sound.path.read_bytes()
    sound.path.write_bytes(data + data)
    with pytest.raises(FormatError, match="several streams, one beside or behind the other"):
        penstock.open(sound.path, index="memory")
    sound.path.write_bytes(data.replace(b"OpusHead", b"Speex   "))
    with pytest.raises(FormatError, match=r"Ogg with b'Speex   ', and Vorbis and Opus are read"):
        penstock.open(sound.path, index="memory")
    page = data.index(b"OggS", data.index(b"OpusTags"))
    sound.path.write_bytes(data[: page + 6] + b"\xff" * 8 + data[page + 14 :])
    with pytest.raises(FormatError, match="ends at sample -1, and the one before at 0"):
        penstock.open(sound.path, index="memory")
    sound.path.write_bytes(data[: data.index(b"OggS", 20)])
    with pytest.raises(FormatError, match="cut"):
        penstock.open(sound.path, index="memory")


def test_rates_that_differ(tmp_path: Path) -> None:
    """Files of two rates, or numbers of channels, are an error that names both, and what to do."""
    write_sound(tmp_path / "a", 1.0)
    write_sound(tmp_path / "b", 1.0, rate=22_050)
    says = r"b\.wav has 1 channels of 22,050 a second, and .*a\.wav 1 of 16,000: .*ffmpeg -ar"
    with pytest.raises(FormatError, match=says):
        penstock.open(tmp_path, clips={"seconds": 0.5}, index="memory")
    with pytest.raises(FormatError, match=says):
        penstock.open([tmp_path / "a.wav", tmp_path / "b.wav"], index="memory")


def test_short_files(tmp_path: Path) -> None:
    """Files shorter than a clip are left out, padded, or an error, as is asked."""
    write_sound(tmp_path / "a", 2.0)
    short = write_sound(tmp_path / "b", 0.7)
    with pytest.warns(RuntimeWarning, match=r"b\.wav has 11,200 samples, fewer than a clip of 16,"):
        data = penstock.open(tmp_path, clips={"seconds": 1.0}, index="memory")
    assert len(data) == 2
    for clips, path in (({"short": "error"}, tmp_path), ({}, short.path)):
        with pytest.raises(FormatError, match=r"b\.wav has 11,200 samples"):
            penstock.open(path, clips={"seconds": 1.0, **clips}, index="memory")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        data = penstock.open(tmp_path, clips={"seconds": 1.0, "short": "pad"}, index="memory")
    assert len(data) == 3
    assert data[2]["sound_valid"].sum() == 11_200
    assert np.array_equal(data[2]["sound"][:11_200], short.floats)


@pytest.mark.parametrize(
    ("clips", "says"),
    [
        (5, "give a dict of frames"),
        ({"fps": 5}, "sound has no 'fps'"),
        ({"frames": 0}, "frames is 0"),
        ({"frames": 400, "seconds": 2.0}, "give frames= or seconds="),
        ({"stride": 2}, "give frames= or seconds="),
        ({"seconds": -1.0}, "seconds is -1.0"),
        ({"seconds": 1.0, "short": "repeat"}, "short is 'repeat'"),
    ],
)
def test_clips_that_are_none(clips: Any, says: str, tmp_path: Path) -> None:
    """What is no clip is said before a file is read."""
    (tmp_path / "a.wav").write_bytes(b"")
    with pytest.raises(UsageError, match=says):
        penstock.open(tmp_path, clips=clips)


def test_folders_without_clips_stay_files(tmp_path: Path) -> None:
    """A folder that is opened without clips= has files as samples, as of any kind."""
    sound = write_sound(tmp_path / "sound", 1.0)
    assert penstock.open(tmp_path, index="memory")[0]["data"] == sound.path.read_bytes()
    assert len(penstock.open(tmp_path, sound="float32", index="memory")[0]["sound"]) == 16_000
