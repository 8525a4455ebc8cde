"""Conversions that make smaller copies of images, held against Pillow."""

from __future__ import annotations

import io
import tarfile
from pathlib import Path

import numpy as np
import pytest

import penstock
from penstock.convert.conversion import convert
from penstock.errors import UsageError
from penstock.images.other_formats import make_smaller_copy
from tests.images import pictures
from tests.images.pictures import Image


def write_images(folder: Path) -> Path:
    """Write a large JPEG, a small one, a grey one with EXIF rotation, a PNG, and one cut short."""
    folder.mkdir()
    exif = Image.Exif()
    exif[0x0112] = 6
    large = pictures.encode(pictures.paint(200, 120))
    (folder / "large.jpg").write_bytes(large)
    (folder / "small.jpg").write_bytes(pictures.encode(pictures.paint(90, 30)))
    grey = pictures.encode(pictures.paint(100, 150, 1), mode="L", exif=exif)
    (folder / "grey.jpg").write_bytes(grey)
    (folder / "other.png").write_bytes(pictures.encode(pictures.paint(80, 64, 2), "PNG"))
    (folder / "torn.jpg").write_bytes(large[: len(large) // 2])
    return folder


def read_members(folder: Path) -> dict[str, bytes]:
    members = {}
    for shard in sorted(folder.glob("*.tar")):
        with tarfile.open(shard) as tar:
            for member in tar:
                file = tar.extractfile(member)
                assert file is not None
                members[member.name] = file.read()
    return members


def test_larger_images_become_smaller_and_the_rest_stays(tmp_path: Path) -> None:
    """Each keeps its format, shape, mode and EXIF; small and damaged files keep their bytes."""
    folder = write_images(tmp_path / "images")
    convert(penstock.open(folder, index="memory"), tmp_path / "out", to="tar", resize=40)
    members = read_members(tmp_path / "out")
    sizes = {"large": (67, 40), "grey": (40, 60), "other": (50, 40)}
    for path in folder.iterdir():
        (data,) = (data for name, data in members.items() if name.startswith(path.stem))
        if path.stem not in sizes:
            assert data == path.read_bytes()
            continue
        before, after = (Image.open(io.BytesIO(one)) for one in (path.read_bytes(), data))
        assert after.size == sizes[path.stem]
        assert (after.format, after.mode) == (before.format, before.mode)
        assert after.getexif() == before.getexif()
        smaller = pictures.resize(pictures.decode(path.read_bytes()), *after.size).astype(np.uint8)
        expected = pictures.encode(smaller, before.format or "", before.mode, quality=90)
        assert (pictures.decode(data) == pictures.decode(expected)).all()


def test_an_interrupted_resize_ends_with_the_same_bytes(tmp_path: Path) -> None:
    """Threads make the copies, and their order is that of the samples."""
    dataset = penstock.open(pictures.write_folder(tmp_path / "train", 12), index="memory")
    convert(dataset, tmp_path / "once", to="tar", resize=30, shards=3, shuffle=1)

    def stop(done: int, count: int) -> None:
        if done >= 4:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        for _ in range(2):  # the first report of each run is of what was there
            convert(
                dataset, tmp_path / "twice", to="tar", resize=30, shards=3, shuffle=1,
                name="once", progress=stop,
            )  # fmt: skip
    convert(dataset, tmp_path / "twice", to="tar", resize=30, shards=3, shuffle=1, name="once")
    assert read_members(tmp_path / "twice") == read_members(tmp_path / "once")
    with pytest.raises(UsageError, match="same options"):
        convert(dataset, tmp_path / "twice", to="tar", resize=31, shards=3, shuffle=1, name="once")


def test_resizing_refuses_what_it_cannot_do(tmp_path: Path) -> None:
    """Records have one size; a side of no pixels is none; numbers are no images."""
    dataset = penstock.open(pictures.write_folder(tmp_path / "train", 2), index="memory")
    with pytest.raises(UsageError, match="records have one size"):
        convert(dataset, tmp_path / "out", to="records", resize=8)
    with pytest.raises(UsageError, match="resize is 0"):
        convert(dataset, tmp_path / "out", to="tar", resize=0)
    (tmp_path / "x.bin").write_bytes(bytes(64))
    numbers = penstock.open(tmp_path / "x.bin", dtype="float32", shape=(4,))
    with pytest.raises(UsageError, match="no field with the bytes of images"):
        convert(numbers, tmp_path / "out", to="tar", resize=8)


@pytest.mark.parametrize(("before", "after"), [(16, None), (None, 16), (16, 32)])
def test_another_size_is_another_conversion(
    before: int | None, after: int | None, tmp_path: Path
) -> None:
    """Also where one of them leaves sizes as they are, and whether or not the first is complete."""
    folder = write_images(tmp_path / "images")
    source = penstock.open(folder, index="memory")
    convert(source, tmp_path / "out", to="tar", shards=2, resize=before)
    for _ in range(2):
        with pytest.raises(UsageError, match=f"with resize={before}, and now resize={after}"):
            convert(source, tmp_path / "out", to="tar", shards=2, resize=after)
        max((tmp_path / "out").glob("*.tar")).unlink()


@pytest.mark.parametrize("mode", ["I;16", "1", "P", "F"])
def test_levels_and_numbers_of_classes_stay(mode: str) -> None:
    """Pictures of other than 8 bits a channel, and of palettes, have no smaller copies."""
    image = Image.fromarray(np.arange(60_000, dtype=np.uint16).reshape(200, 300))
    if mode != "I;16":
        image = image.convert("F").convert("L" if mode == "P" else mode).convert(mode)
    file = io.BytesIO()
    image.save(file, "TIFF" if mode == "F" else "PNG")
    assert make_smaller_copy(file.getvalue(), 50) is None


def test_alpha_and_late_exif_stay() -> None:
    """A copy keeps its channels, and the rotation that a PNG tells after its pixels."""
    exif = Image.Exif()
    exif[0x0112] = 6
    file = io.BytesIO()
    Image.fromarray(np.full((200, 300, 4), 77, np.uint8)).save(file, "PNG", exif=exif)
    chunks, at = [], 8
    data = file.getvalue()
    while at < len(data):
        end = at + 12 + int.from_bytes(data[at : at + 4])
        chunks.append(data[at:end])
        at = end
    (told,) = (chunk for chunk in chunks if chunk[4:8] == b"eXIf")
    chunks.remove(told)
    late = data[:8] + b"".join([*chunks[:-1], told, chunks[-1]])
    made = make_smaller_copy(late, 50)
    assert made is not None
    copy = Image.open(io.BytesIO(made))
    assert (copy.mode, copy.size, copy.getexif()[0x0112]) == ("RGBA", (75, 50), 6)
    assert np.ptp([77, *np.asarray(copy).ravel()]) <= 1  # of a level, as alpha is divided out
