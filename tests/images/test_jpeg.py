"""JPEG regions are Pillow's pixels by every way to them; damage is an error, never grey rows."""

from __future__ import annotations

import io
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock._core import (
    count_jpeg_kernels,
    decode_jpeg,
    find_jpeg_positions,
    parse_jpeg_header,
)
from tests.slices import stride

Image = pytest.importorskip("PIL.Image", reason="Pillow is not installed")

Pixels = npt.NDArray[np.uint8]
Box = tuple[int, int, int, int]  # left, top, width, height

OK, NOT_OURS, BROKEN, TOO_LARGE, MISFIT = range(5)
NONE = np.empty(0, np.uint8)
ENTRY_BYTES = 12
PHOTOS = os.environ.get("PENSTOCK_PHOTOS", "")


class Decoded(NamedTuple):
    pixels: Pixels
    positions: Pixels
    status: int
    offset: int
    block_row: int
    message: str
    stray_bytes: int


def as_array(data: bytes) -> Pixels:
    return np.frombuffer(data, np.uint8)


def decode(
    data: bytes, box: Box, kernel: int = 0, positions: Pixels = NONE, stretch_only: bool = False
) -> Decoded:
    left, top, width, height = box
    pixels = np.empty((height, width, 3), np.uint8)
    found, problem = decode_jpeg(as_array(data), left, top, pixels, kernel, positions, stretch_only)
    return Decoded(pixels, found, *problem)


def find_positions(data: bytes, kernel: int = 0, known: Pixels = NONE) -> Pixels:
    positions, problem = find_jpeg_positions(as_array(data), kernel, known)
    assert problem[0] == OK, problem
    return positions


def decode_by_pillow(data: bytes) -> Pixels:
    return np.array(Image.open(io.BytesIO(data)).convert("RGB"), np.uint8)


def paint(width: int, height: int, kind: str, seed: int) -> Pixels:
    """Noise, black and white noise, a slope, or one colour."""
    random = np.random.default_rng(seed)
    shape = height, width, 3
    if kind == "noise":
        return random.integers(0, 256, shape, np.uint8)
    if kind == "extremes":
        return random.integers(0, 2, shape, np.uint8) * np.uint8(255)
    slopes = random.uniform(-4, 4, 2) if kind == "slope" else np.zeros(2)
    levels = np.add.outer(np.arange(height) * slopes[0], np.arange(width) * slopes[1])
    colour = random.integers(0, 256, 3)
    pixels: Pixels = np.clip(levels[..., None] + colour, 0, 255).astype(np.uint8)
    return pixels


def encode(pixels: Pixels, **options: Any) -> bytes:
    file = io.BytesIO()
    mode = options.pop("mode", "RGB")
    Image.fromarray(pixels).convert(mode).save(file, "JPEG", **options)
    return file.getvalue()


def check_region(data: bytes, box: Box, whole: Pixels, positions: list[Pixels]) -> None:
    """Decode the region in every way: each gives the pixels of the whole picture."""
    left, top, width, height = box
    expected = whole[top : top + height, left : left + width]
    for kernel in range(count_jpeg_kernels()):
        alone = decode(data, box, kernel)
        assert alone.status == OK, alone
        assert np.array_equal(alone.pixels, expected)
        entries = positions[kernel]
        assert np.array_equal(alone.positions, entries[: len(alone.positions)])
        assert np.array_equal(find_positions(data, kernel, alone.positions), entries)
        for stretch_only in (False, True):
            indexed = decode(data, box, kernel, entries, stretch_only)
            assert indexed.status == OK, indexed
            assert np.array_equal(indexed.pixels, expected)


def check_picture(data: bytes, boxes: list[Box]) -> None:
    """Decode the picture and regions of it as Pillow does."""
    whole = decode_by_pillow(data)
    height, width, _ = whole.shape
    positions = [find_positions(data, kernel) for kernel in range(count_jpeg_kernels())]
    assert all(np.array_equal(positions[0], other) for other in positions)
    for box in [(0, 0, width, height), *boxes]:
        check_region(data, box, whole, positions)


def draw_boxes(random: np.random.Generator, width: int, height: int) -> list[Box]:
    """Regions at the edges and inside, of any size."""
    boxes = []
    for number in range(6):
        w, h = int(random.integers(1, width + 1)), int(random.integers(1, height + 1))
        inner = int(random.integers(0, width - w + 1)), int(random.integers(0, height - h + 1))
        left = (0, width - w, inner[0])[number % 3]
        top = (0, height - h, inner[1])[number // 2]
        boxes.append((left, top, w, h))
    return boxes


sides = st.integers(1, 70)
restarts: st.SearchStrategy[dict[str, int]] = (
    st.just({})
    | st.fixed_dictionaries({"restart_marker_blocks": st.integers(1, 12)})
    | st.fixed_dictionaries({"restart_marker_rows": st.integers(1, 3)})
)


@given(
    width=sides,
    height=sides,
    kind=st.sampled_from(["noise", "extremes", "slope", "colour"]),
    subsampling=st.sampled_from([0, 1, 2, "grey"]),
    quality=st.integers(1, 100),
    optimize=st.booleans(),
    restart=restarts,
    seed=st.integers(0, 2**32),
)
def test_regions_are_pillows(
    width: int,
    height: int,
    kind: str,
    subsampling: int | str,
    quality: int,
    optimize: bool,
    restart: dict[str, int],
    seed: int,
) -> None:
    """Regions of a picture are Pillow's pixels with and without positions, by every kernel; and the
    positions that decoding finds on its way are those of the pass that only looks for them."""
    options: dict[str, Any] = {"quality": quality, "optimize": optimize} | restart
    options |= {"mode": "L"} if subsampling == "grey" else {"subsampling": subsampling}
    data = encode(paint(width, height, kind, seed), **options)
    check_picture(data, draw_boxes(np.random.default_rng(seed), width, height))


@pytest.mark.long
@pytest.mark.skipif(not PHOTOS, reason="PENSTOCK_PHOTOS names no folder of JPEG files")
def test_photos_are_pillows() -> None:
    """Photographs of a folder, and the same at quality 90 and 4:2:0, are Pillow's pixels."""
    photos = sorted(path for path in Path(PHOTOS).rglob("*") if path.is_file())
    checked = 0
    for number, path in enumerate(photos):
        data = path.read_bytes()
        for file in (data, encode(decode_by_pillow(data), quality=90, subsampling=2)):
            (width, height, *_), problem = parse_jpeg_header(as_array(file), 2**40)
            if problem[0] == NOT_OURS:
                continue
            check_picture(file, draw_boxes(np.random.default_rng(number), width, height)[:4])
            checked += 1
    assert checked >= len(photos)


def find_segment(data: bytes, marker: int) -> int:
    """Return where a segment's marker begins."""
    at = 2
    while data[at + 1] != marker:
        at += 2 + int.from_bytes(data[at + 2 : at + 4])
    return at


def patch(data: bytes, at: int, *values: int) -> bytes:
    return data[:at] + bytes(values) + data[at + len(values) :]


DQT, SOF, DHT, SOS, APP0 = 0xDB, 0xC0, 0xC4, 0xDA, 0xE0


def drop_segment(data: bytes, marker: int) -> bytes:
    at = find_segment(data, marker)
    return data[:at] + data[at + 2 + int.from_bytes(data[at + 2 : at + 4]) :]


def set_quantisers(data: bytes, level: int) -> bytes:
    at = find_segment(data, DQT)
    return patch(data, at + 5, *[level] * 64)


def pictures() -> Iterator[bytes]:
    """One file of each sampling, the last with restart markers, of 30 x 22 pixels."""
    pixels = paint(30, 22, "noise", 5)
    yield encode(pixels, quality=60, mode="L")
    for subsampling in range(3):
        yield encode(pixels, quality=60, subsampling=subsampling)
    yield encode(pixels, quality=60, subsampling=2, restart_marker_blocks=3)


@stride(9)
def test_files_that_are_cut_give_the_pixels_or_an_error(stride: int) -> None:
    """A file cut at any byte gives all pixels, or an error at the byte where it ends; with
    positions all pixels of the rows that are there, or says that the positions do not fit."""
    for number, data in enumerate(pictures()):
        kernel = number % count_jpeg_kernels()
        box = (0, 0, 30, 22)
        whole, positions = decode(data, box), find_positions(data)
        assert whole.status == OK
        above = (5, 0, 12, 6)
        for size in range(number, len(data), stride):
            cut = decode(data[:size], box, kernel)
            if cut.status == OK:
                assert size >= len(data) - 4  # the marker of the end, and bits that fill a byte
                assert np.array_equal(cut.pixels, whole.pixels)
            else:
                assert cut.status == BROKEN, cut
                assert cut.offset in (size, size - 1), cut
                assert "ends" in cut.message, cut
            upper = decode(data[:size], above, kernel, positions)
            if upper.status == OK:
                assert np.array_equal(upper.pixels, whole.pixels[:6, 5:17])
            else:
                assert upper.status in (BROKEN, MISFIT), upper


@pytest.mark.parametrize("level", [8, 60, 255])
def test_quantisers_beyond_reason_are_pillows(level: int) -> None:
    """Samples far beyond black and white, and sums that exceed 16 bits, are Pillow's."""
    for subsampling in range(3):
        pixels = paint(25, 33, "noise", level)  # rows below the picture repeat its last one
        data = encode(pixels, quality=100, subsampling=subsampling)
        check_picture(set_quantisers(data, level), [(3, 2, 9, 31)])


def test_grey_pictures_of_any_sampling_are_pillows() -> None:
    """The sampling of a lone component means nothing."""
    data = encode(paint(45, 37, "noise", 1), mode="L")
    for sampling in (0x22, 0x31, 0x14, 0x44):
        check_picture(patch(data, find_segment(data, SOF) + 11, sampling), [(9, 8, 30, 20)])


def test_stray_bytes_between_segments_are_counted() -> None:
    """Bytes that belong to no segment change no pixel, and are counted."""
    data = encode(paint(16, 16, "noise", 2))
    at = find_segment(data, DHT)
    stray = data[:at] + b"\x00\x12\xff\x00" + data[at:-2] + b"\x01\x02\x03" + data[-2:]
    decoded = decode(stray, (0, 0, 16, 16))
    assert (decoded.status, decoded.stray_bytes) == (OK, 4 + 3)
    assert np.array_equal(decoded.pixels, decode(data, (0, 0, 16, 16)).pixels)


def edit_frame(*values: int, at: int = 4) -> Callable[[bytes], bytes]:
    return lambda data: patch(data, find_segment(data, SOF) + at, *values)


NOT_BASELINE: dict[str, tuple[Callable[[bytes], bytes], str]] = {
    "a PNG": (lambda data: b"\x89PNG" + data, "does not begin like a JPEG"),
    "progressive": (edit_frame(0xC2, at=1), "progressive"),
    "arithmetic": (edit_frame(0xC9, at=1), "coded arithmetically"),
    "lossless": (edit_frame(0xC3, at=1), "lossless"),
    "12 bits": (edit_frame(12), "12 bits"),
    "no components": (edit_frame(0, at=9), "0 components"),
    "3x1": (edit_frame(0x31, at=11), "unusual"),
    "4:4:0": (edit_frame(0x12, at=11), "unusual"),
    "tables of quantisers missing": (lambda data: drop_segment(data, DQT), "not defined"),
    "Huffman tables missing": (lambda data: drop_segment(data, DHT), "not defined"),
    "quantiser 0": (lambda data: set_quantisers(data, 0), "quantiser is 0"),
    "spectral selection": (
        lambda data: patch(data, find_segment(data, SOS) + 11, 0, 5, 0),
        "all coefficients",
    ),
    "RGB": (
        lambda data: data[:2] + b"\xff\xee\0\x0eAdobe" + bytes(7) + drop_segment(data, APP0)[2:],
        "red, green and blue",
    ),
    "all ones": (
        lambda data: patch(data, find_segment(data, DHT) + 5, 0, 4, 8, *[0] * 13),
        "not a code",
    ),
}


@pytest.mark.parametrize("name", NOT_BASELINE)
def test_what_is_not_baseline_is_left_to_others(name: str) -> None:
    """A file that others may decode is no error: the reason is named."""
    edit, reason = NOT_BASELINE[name]
    data = edit(encode(paint(16, 16, "noise", 3), subsampling=0))
    decoded = decode(data, (0, 0, 1, 1))
    assert (decoded.status, decoded.block_row) == (NOT_OURS, -1), decoded
    assert reason in decoded.message


def test_several_scans_are_left_to_others() -> None:
    """A picture whose components come in scans of their own is not decoded here."""
    data = encode(paint(16, 16, "noise", 3), subsampling=0)
    at = find_segment(data, SOS)
    scan = b"\xff\xda\x00\x08\x01\x01\x00\x00\x3f\x00"
    decoded = decode(data[:at] + scan + data[at + 14 :], (0, 0, 1, 1))
    assert (decoded.status, decoded.message) == (NOT_OURS, "it has several scans")


HEADER_DAMAGE: dict[str, tuple[Callable[[bytes], bytes], str]] = {
    "no height": (edit_frame(0, 0, at=5), "16 x 0 pixels"),
    "no width": (edit_frame(0, 0, at=7), "0 x 16 pixels"),
    "a segment of length 1": (
        lambda data: patch(data, find_segment(data, DQT) + 2, 0, 1),
        "less than its own 2 bytes",
    ),
    "a table without its symbols": (
        lambda data: patch(data, find_segment(data, DHT) + 5, *[255] * 16),
        "more codes than symbols",
    ),
    "two pictures": (lambda data: data[:2] + data, "begins inside the header"),
    "an end": (lambda data: data[:2] + b"\xff\xd9" + data[2:], "ends inside its header"),
}


@pytest.mark.parametrize("name", HEADER_DAMAGE)
def test_damage_of_the_header_names_its_byte(name: str) -> None:
    """A header that nobody can use is refused at a byte, before anything is decoded."""
    edit, reason = HEADER_DAMAGE[name]
    data = edit(encode(paint(16, 16, "noise", 3), subsampling=0))
    decoded = decode(data, (0, 0, 1, 1))
    assert (decoded.status, decoded.block_row) == (BROKEN, -1), decoded
    assert reason in decoded.message
    assert 2 <= decoded.offset < len(data)


def test_pictures_above_the_limit_are_refused_from_the_header() -> None:
    """The frame alone is enough to refuse a picture of too many pixels, of whatever kind."""
    data = encode(paint(20, 10, "noise", 3), progressive=True)
    assert parse_jpeg_header(as_array(data), 200)[1][0] == NOT_OURS
    fields, problem = parse_jpeg_header(as_array(data), 199)
    assert (fields[:2], problem[0]) == ((20, 10), TOO_LARGE)
    assert "20 x 10 = 200 pixels, more than 199" in problem[3]


def test_damage_of_the_scan_names_its_byte_and_row() -> None:
    """An impossible code, a coefficient past 63, and markers where none belongs are errors at a
    byte of the row of blocks that has it."""
    data = encode(paint(24, 64, "slope", 4), subsampling=0, quality=90)
    box = (0, 0, 24, 64)
    row = find_positions(data).reshape(-1, ENTRY_BYTES)[4]
    at = int(row[:4].view("<u4")[0])
    for values, reason in [
        ((0xFF, 0), "impossible code"),  # 16 ones are no code
        ((0xFF, 0xD9), "marker 217 ends"),
        ((0xFF, 0xD0), "marker 208 ends"),
        ((0xFF, 0xC4), "marker 196 ends"),
    ]:
        damaged = decode(patch(data, at, *values * 8), box)
        assert damaged.status == BROKEN
        assert reason in damaged.message
        assert damaged.block_row in (3, 4)
        assert at - 1 <= damaged.offset <= at + 16
        above = decode(patch(data, at, *values * 8), (0, 0, 24, 24))
        assert above.status == OK  # what lies below is not read
    # Fifteen zeros and a coefficient, again and again: code 11111111001 of the usual table.
    run = int("".join(["1111111111110101" + "0"] * 6) + "1" * 2, 2)
    past = patch(data, at + 2, *run.to_bytes(13).replace(b"\xff", b"\xff\0"))
    damaged = decode(past, box)
    assert (damaged.status, damaged.block_row) == (BROKEN, 4), damaged
    assert "coefficient past 63" in damaged.message


def test_restart_markers_out_of_turn_are_errors() -> None:
    """A restart marker that is missing, early, late or of another number is an error."""
    data = encode(paint(48, 24, "noise", 4), subsampling=0, restart_marker_blocks=4)
    box = (0, 0, 48, 24)
    assert decode(data, box).status == OK
    first, second = data.index(b"\xff\xd0"), data.index(b"\xff\xd1")
    edits = {
        "comes where 208 must": patch(data, first + 1, 0xD3),
        "comes where 209 must": data[:second] + data[second + 2 :],
        "ends the entropy-coded data early": data[: first - 5] + data[first:],
        "no restart marker comes": data[:first] + bytes(3) + data[first:],
    }
    for reason, edited in edits.items():
        damaged = decode(edited, box)
        assert damaged.status == BROKEN
        assert damaged.block_row in (0, 1)
        if reason != "comes where 209 must":  # two intervals in one: whichever rule notices first
            assert reason in damaged.message, damaged


@pytest.mark.parametrize("field", ["offset", "bit", "predictor"])
def test_positions_that_do_not_fit_are_noticed(field: str) -> None:
    """Rows decoded to their end must meet the next position: where one differs, nothing is handed
    over."""
    data = encode(paint(40, 64, "slope", 4), subsampling=0)
    box = (0, 0, 40, 64)
    entries = find_positions(data).reshape(-1, ENTRY_BYTES)
    for number in range(1, len(entries)):
        damaged = entries.copy()
        damaged[number, {"offset": 0, "predictor": 4, "bit": 10}[field]] ^= 1
        decoded = decode(data, box, 0, damaged.ravel())
        assert decoded.status == MISFIT
        assert decoded.block_row in (number - 1, number)
    assert decode(data, box, 0, entries[:-1].ravel().copy()).status == MISFIT
    outside = entries.copy()
    outside[3, :4] = 255
    assert decode(data, (8, 24, 8, 8), 0, outside.ravel()).status == MISFIT
