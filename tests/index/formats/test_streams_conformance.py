"""Formats that are walked from end to end pass the suite, written by their own libraries."""

from __future__ import annotations

import base64
import json
import struct
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from tfrecord import TFRecordWriter
from webdataset import TarWriter

from penstock.testing import FormatSuite, Written
from tests.index.formats.recordio_writer import MAGIC, image_record, record


def payloads(random: np.random.Generator, count: int) -> list[bytes]:
    """Byte strings of different lengths; an empty one is among several."""
    sizes = random.integers(1, 700, count)
    if count > 3:
        sizes[3] = 0
    return [random.bytes(int(size)) for size in sizes]


def place(folder: Path, names: Sequence[str]) -> Path | list[Path]:
    """One file, or a list of files."""
    return folder / names[0] if len(names) == 1 else [folder / name for name in names]


class TestWebDataset(FormatSuite):
    """Archives by WebDataset's own writer."""

    def write(self, folder: Path, counts: Sequence[int], random: np.random.Generator) -> Written:
        """Two fields and a label."""
        images, texts, labels, keys, names = [], [], [], [], []
        for number, count in enumerate(counts):
            names.append(f"{number:03}.tar")
            with TarWriter(str(folder / names[-1]), mtime=1) as writer:
                for i, payload in enumerate(payloads(random, count)):
                    keys.append(f"part{number}/{i:05}")
                    images.append(payload)
                    texts.append(random.bytes(i))
                    labels.append(int(random.integers(-5, 5)))
                    sample = {"__key__": keys[-1], "jpg": images[-1], "meta.bin": texts[-1]}
                    writer.write(sample | {"cls": labels[-1]})
        fields = {"jpg": images, "meta.bin": texts}
        return Written(place(folder, names), fields, labels=labels, keys=keys)


class TestJsonl(FormatSuite):
    """Lines of objects, as written by json."""

    def write(self, folder: Path, counts: Sequence[int], random: np.random.Generator) -> Written:
        """Lines that end in LF or CR LF, the last of every other file in nothing; some are blank,
        and one file begins with a mark."""
        lines, names = [], []
        for number, count in enumerate(counts):
            names.append(f"{number:03}.jsonl")
            parts = [b"\xef\xbb\xbf" * (number % 2)]
            for i, payload in enumerate(payloads(random, count)):
                text = base64.b85encode(payload).decode() + "é€😀"[: i % 4]
                record = {"text": text, "number": i}
                lines.append(json.dumps(record, ensure_ascii=bool(i % 2)).encode())
                parts += [lines[-1], b"\r\n" if i % 3 else b"\n", b" \r\n\n" * (i % 5 == 1)]
            data = b"".join(parts)
            (folder / names[-1]).write_bytes(data.rstrip() if number % 2 else data)
        return Written(place(folder, names), {"data": lines})


class TestTFRecord(FormatSuite):
    """Whole records, framed by the tfrecord package."""

    def write(self, folder: Path, counts: Sequence[int], random: np.random.Generator) -> Written:
        """The data's checksums are compared as well."""
        values, names = [], []
        for number, count in enumerate(counts):
            names.append(f"train-{number:05}-of-{len(counts):05}")
            with (folder / names[-1]).open("wb") as file:
                for payload in payloads(random, count):
                    values.append(payload)
                    length = struct.pack("<Q", len(payload))
                    file.write(length + TFRecordWriter.masked_crc(length))
                    file.write(payload + TFRecordWriter.masked_crc(payload))
        return Written(place(folder, names), {"data": values}, {"check": "all"})


class TestExample(FormatSuite):
    """Features of tf.Example, written by the tfrecord package."""

    def write(self, folder: Path, counts: Sequence[int], random: np.random.Generator) -> Written:
        """Bytes, floats and a label."""
        images: list[bytes] = []
        boxes: list[np.ndarray] = []
        labels, names = [], []
        for number, count in enumerate(counts):
            names.append(f"{number}.tfrecord")
            writer = TFRecordWriter(str(folder / names[-1]))
            for payload in payloads(random, count):
                images.append(payload)
                boxes.append(random.random(int(random.integers(1, 9))).astype(np.float32))
                labels.append(int(random.integers(-(1 << 62), 1 << 62)))
                writer.write(
                    {
                        "image/encoded": (payload, "byte"),
                        "image/class/label": (labels[-1], "int"),
                        "image/box": (boxes[-1].tolist(), "float"),
                        "image/name": (b"unused", "byte"),
                    }
                )
            writer.close()
        example = {"image": "image/encoded", "box": "image/box"}
        options = {"example": example, "label": "image/class/label"}
        fields = {"image": images, "box": boxes}
        return Written(place(folder, names), fields, options, labels=labels)


class TestRecordIO(FormatSuite):
    """Records of one and several parts."""

    def write(self, folder: Path, counts: Sequence[int], random: np.random.Generator) -> Written:
        """Every third record holds the magic, aligned or not."""
        values, names = [], []
        for number, count in enumerate(counts):
            names.append(f"{number}.rec")
            with (folder / names[-1]).open("wb") as file:
                for i, payload in enumerate(payloads(random, count)):
                    at = int(random.integers(0, len(payload) + 1))
                    values.append(payload[:at] + MAGIC * (i % 3) + payload[at:])
                    file.write(record(values[-1]))
        return Written(place(folder, names), {"data": values})


@pytest.mark.long
class TestImageRecord(FormatSuite):
    """Records with im2rec's header, which gives the label and is left out."""

    def write(self, folder: Path, counts: Sequence[int], random: np.random.Generator) -> Written:
        """The magic may lie in the header as well."""
        values, labels, names = [], [], []
        magic = int.from_bytes(MAGIC, "little")
        for number, count in enumerate(counts):
            names.append(f"{number}.rec")
            with (folder / names[-1]).open("wb") as file:
                for i, payload in enumerate(payloads(random, count)):
                    labels.append(int(random.integers(0, 1000)))
                    values.append(payload)
                    file.write(image_record(labels[-1], payload, id=magic if i % 2 else i))
        return Written(place(folder, names), {"data": values}, {"label": "header"}, labels=labels)
