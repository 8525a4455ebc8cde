"""Compressed JSON lines: the lines of the text, wherever frames end; and what is refused."""

from __future__ import annotations

import gzip
import itertools
import json
import os
import shutil
import struct
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st

import penstock
from penstock import limits
from tests.slices import first

FormatError, LimitError = penstock.errors.FormatError, penstock.errors.LimitError
Compress = Callable[[bytes], bytes]


def compress_unsized(text: bytes) -> bytes:
    return zstandard.ZstdCompressor(write_content_size=False, write_checksum=True).compress(text)


def compress_bgzf(text: bytes) -> bytes:
    """A block as bgzip writes it: its size in an extra field."""
    plain = gzip.compress(text, mtime=0)
    size = len(plain) + 8 - 1
    extra = struct.pack("<HBBHH", 6, 66, 67, 2, size)
    return plain[:3] + b"\x04" + plain[4:10] + extra + plain[10:]


COMPRESS: dict[str, Compress] = {
    "sized.zst": zstandard.compress,
    "unsized.zst": compress_unsized,
    "members.gz": gzip.compress,
    "bgzf.gz": compress_bgzf,
}
SKIPPABLE = b"\x5e\x2a\x4d\x18\x03\0\0\0abc"
TEXTS = st.lists(
    st.sampled_from([b'{"a": 1}', b'{"a": "' + b"x" * 50 + b'"}', b"", b" ", b"\r", b"2"]),
    max_size=40,
).map(b"\n".join)


def cut(text: bytes, at: list[int]) -> list[bytes]:
    bounds = [0, *sorted({one % (len(text) + 1) for one in at}), len(text)]
    return [text[a:b] for a, b in itertools.pairwise(bounds)]


def opened(path: Path, **options: Any) -> penstock.Dataset:
    return penstock.open(path, index="memory", **options)


@given(
    text=TEXTS,
    at=st.lists(st.integers(0, 3000), max_size=12),
    end=st.booleans(),
    mark=st.booleans(),
    kind=st.sampled_from([*COMPRESS]),
    chunk_bytes=st.sampled_from([1, 40, 200, limits.line_chunk_bytes]),
)
def test_lines_are_those_of_the_text(
    text: bytes,
    at: list[int],
    end: bool,
    mark: bool,
    kind: str,
    chunk_bytes: int,
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    """Whole, empty and skippable frames, and lines over several of them: by number and in batches,
    the samples are those of the file that is not compressed."""
    folder = tmp_path_factory.mktemp("frames")
    text = b"\xef\xbb\xbf" * mark + text + b"\n{}" + b"\n" * end
    (folder / "plain.jsonl").write_bytes(text)
    plain = [sample["data"] for sample in opened(folder / "plain.jsonl", format="jsonl")]
    frames = [COMPRESS[kind](part) for part in cut(text, at)]
    between = SKIPPABLE if kind.endswith("zst") else b""
    path = folder / f"x.jsonl.{kind}"
    path.write_bytes(between + between.join(frames) + between + (b"" if between else b"\0" * 300))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(limits, "line_chunk_bytes", chunk_bytes)
        dataset = opened(path, format="jsonl")
    assert [sample["data"] for sample in dataset] == plain
    with penstock.Loader(dataset, 4, rank=0, world_size=1) as loader:
        read = {int(n): bytes(row) for b in loader for n, row in zip(b.ids, b["data"], strict=True)}
    assert [read[number] for number in range(len(dataset))] == plain


def write_frames(path: Path, count: int = 900, frame_bytes: int = 5000) -> Path:
    lines = [json.dumps({"text": "x" * (n % 90), "n": n}) for n in range(count)]
    text = "\n".join(lines).encode() + b"\n"
    parts = [text[i : i + frame_bytes] for i in range(0, len(text), frame_bytes)]
    compress = gzip.compress if path.suffix == ".gz" else zstandard.compress
    path.write_bytes(b"".join(map(compress, parts)))
    return path


def test_fields_and_saved_index(tmp_path: Path) -> None:
    """Fields, a saved index, pickles and errors work as with plain lines; a folder may have both
    kinds of compression, but no plain file."""
    for number, ending in enumerate(("zst", "gz")):
        write_frames(tmp_path / f"{number}.jsonl.{ending}")
    for path in tmp_path.iterdir():
        os.utime(path, ns=(10**18, 10**18))
    os.utime(tmp_path, ns=(10**18, 10**18))
    first = penstock.open(tmp_path, fields=["text", "n"])
    again = penstock.open(tmp_path, fields=["text", "n"])
    assert first.sidecar == again.sidecar is not None
    assert first.fingerprint == again.fingerprint == opened(tmp_path).fingerprint
    with penstock.Loader(again, 64, rank=0, world_size=1) as loader:
        found = {
            int(i): int(n) for batch in loader for i, n in zip(batch.ids, batch["n"], strict=True)
        }
    assert found == {i: i % 900 for i in range(1800)}
    wrong = penstock.open(tmp_path, fields=["x"], types={"x": "int"})
    with pytest.raises(FormatError, match=r"sample 907: .*1\.jsonl\.gz at byte .*: line 8 \(blank"):
        wrong[907]
    (tmp_path / "2.jsonl").write_text("{}\n")
    with pytest.raises(FormatError, match="zst and others are compressed"):
        opened(tmp_path)


def test_a_compressed_set_in_a_mixture(tmp_path: Path) -> None:
    """Compressed lines mix with plain ones."""
    (tmp_path / "plain.jsonl").write_text('{"n": -1}\n' * 900)
    parts = [
        opened(path, fields="n", types={"n": "int"})
        for path in (write_frames(tmp_path / "x.jsonl.zst"), tmp_path / "plain.jsonl")
    ]
    mixed = penstock.mix([(part, 1) for part in parts])
    with penstock.Loader(mixed, 50, rank=0, world_size=1) as loader:
        values = [int(n) for batch in loader for n in batch["n"]]
    assert {-1, 5} <= set(values) <= {-1, *range(900)}


@pytest.mark.parametrize("ending", first(1, ["zst", "gz"]))
def test_large_frames(ending: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A file of one large frame is refused with a command that cuts it, which does; and nothing is
    unpacked beyond the bound."""
    monkeypatch.setattr(limits, "line_frame_bytes_max", 1 << 20)
    text = b"".join(b'{"n": %d, "x": "%s"}\n' % (n, b"y" * 400) for n in range(5000))
    path = tmp_path / f"it's.jsonl.{ending}"
    path.write_bytes(COMPRESS["members.gz" if ending == "gz" else "unsized.zst"](text))
    with pytest.raises(
        FormatError, match=r"more than 1 MiB of lines.*`(zstd -d|gunzip)` the file first"
    ) as caught:
        opened(path)
    assert not (tmp_path / "it's-frames.jsonl.gz").exists()
    if shutil.which("zstd" if ending == "zst" else "gzip") is None:
        pytest.skip("the command's program is not installed")
    command = str(caught.value).split("`")[3]
    subprocess.run(["bash", "-c", f"set -e; {command}"], cwd=tmp_path, check=True, timeout=60)
    dataset = opened(tmp_path / f"it's-frames.jsonl.{ending}")
    assert [sample["data"] for sample in dataset] == text.splitlines()


def test_sizes_are_not_trusted(tmp_path: Path) -> None:
    """A frame that claims, or makes, gigabytes is refused without the memory for them."""
    sized = zstandard.compress(bytes(1 << 25))
    for name, data in {
        "bomb.jsonl.zst": compress_unsized(bytes(1 << 25)),
        "sized.jsonl.zst": sized,
        "bomb.jsonl.gz": gzip.compress(bytes(1 << 25)),
    }.items():
        (tmp_path / name).write_bytes(data)
        with pytest.raises(FormatError, match="more than 16 MiB of lines"):
            opened(tmp_path / name, format="jsonl")


@pytest.mark.parametrize("ending", ["zst", "gz"])
def test_damage(ending: str, tmp_path: Path) -> None:
    """A file that is cut or damaged, before or after it was indexed, is an error with the place."""
    path = write_frames(tmp_path / f"x.jsonl.{ending}")
    whole = path.read_bytes()
    dataset = opened(path, fields="n")
    path.write_bytes(whole[:-3])
    with pytest.raises(FormatError, match=r"at byte [\d,]+: .*(cut|truncated|incomplete).*restore"):
        opened(path)
    path.write_bytes(whole + b"{}\n")
    with pytest.raises(FormatError, match=r"b'\{\}\\n' is the start of no frame"):
        opened(path)
    for place in range(40, len(whole), len(whole) // 7):
        path.write_bytes(whole[:place] + bytes([whole[place] ^ 0x5A]) + whole[place + 1 :])
        try:
            found = [sample["data"] for sample in opened(path)]
        except FormatError:
            continue
        assert ending == "zst"  # whose frames have no checksum here
        assert len(found) > 0
    mtime_ns = int(dataset.index.files.mtime_ns[0])
    damaged = bytearray(whole)
    damaged[6:40] = bytes(34)
    path.write_bytes(damaged)
    os.utime(path, ns=(mtime_ns, mtime_ns))
    with pytest.raises(FormatError, match=r"cannot be decoded as lines"):
        dataset[3]


def test_selecting_from_compressed_lines(tmp_path: Path) -> None:
    """A condition over a field of compressed lines reads them all."""
    dataset = opened(write_frames(tmp_path / "x.jsonl.zst"), fields=["n"])
    chosen = dataset.select(where="n >= 890")
    assert [int(chosen[i]["n"]) for i in range(len(chosen))] == list(range(890, 900))
    assert np.asarray(chosen.ids([0])).tolist() == [890]
