"""Lengths: from containers, measured in processes, resumed after kill -9, and of stale data."""

from __future__ import annotations

import io
import json
import os
import signal
import struct
import sys
import time
import wave
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import penstock
from penstock import limits
from penstock.dataset import lengths as length_rules
from penstock.dataset import measure_lengths
from penstock.dataset.lengths import measure_duration
from penstock.dataset.measuring import MeasuredChunks
from penstock.errors import DataError, FormatError, MissingError, SidecarError, UsageError
from tests.command import run as run_command
from tests.warm import run


def count_words(sample: Mapping[str, Any]) -> int:
    """Words of a text; each call leaves a byte in the file that the environment names."""
    if "COUNTED" in os.environ:
        with open(os.environ["COUNTED"], "ab") as file:
            file.write(b".")
    return len(bytes(sample["data"]).split())


def refuse_long(sample: Mapping[str, Any]) -> Any:
    return -1 if sample["__id__"] == 17 else 3


def write_texts(folder: Path, count: int = 40) -> list[int]:
    folder.mkdir()
    words = [number * 7 % 11 for number in range(count)]
    for number, own in enumerate(words):
        (folder / f"{number:04}.txt").write_text("word " * own)
    return words


def test_measured_lengths_are_a_column(tmp_path: Path) -> None:
    """They are saved beside the index, mapped, used by conditions, weights and selections, and
    renewed by the same call only if forced or by another rule."""
    words = write_texts(tmp_path / "texts")
    texts = penstock.open(tmp_path / "texts")
    assert texts.lengths.tolist() == [5 * own for own in words]  # bytes, of the container
    told: list[tuple[int, int]] = []
    saved = measure_lengths(texts, count_words, progress=lambda *done: told.append(done))
    assert saved.path == f"{tmp_path}/texts.lengths.penstock"
    assert told[-1] == (40, 40)
    assert saved.rule == f"{__name__}:count_words"
    assert texts.lengths.tolist() == words
    assert not texts.lengths.flags.owndata
    long = texts.select(where="length > 5")
    assert long.lengths.tolist() == [own for own in words if own > 5]
    assert penstock.mix([(long, 1), (texts, 1)]).lengths.tolist() == [*long.lengths, *words]
    mixed = penstock.mix([(long, 1), (texts, 1)]).select(where="length == 7")
    assert set(mixed.lengths.tolist()) == {7}
    assert texts.weigh("length").samples_per_epoch == 40
    inode = os.stat(saved.path).st_ino
    measure_lengths(texts, count_words)
    assert os.stat(saved.path).st_ino == inode
    measure_lengths(texts, count_words, force=True)
    assert os.stat(saved.path).st_ino != inode
    measure_lengths(texts, "bytes")
    assert texts.lengths.tolist() == [5 * own for own in words]
    assert len(penstock.open(tmp_path)) == 40  # neither index nor lengths are data
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "texts",
        "texts.lengths.penstock",
        "texts.penstock",
    ]


def one(_: Mapping[str, Any]) -> int:
    return 1


def test_columns_beside_tokens_may_have_to_be_decoded(tmp_path: Path) -> None:
    """Arrow's offsets give the lengths of token lists, though truth values beside them have to be
    decoded; of a mixture, the error names the part that does not know its lengths."""
    columns = {"input_ids": [[1, 2], [], [3]], "done": [True, False, True]}
    table = pa.table(columns)
    with pa.ipc.new_stream(tmp_path / "x.arrow", table.schema) as writer:
        writer.write_table(table)
    tokens = penstock.open(tmp_path / "x.arrow")
    assert tokens.lengths.tolist() == [2, 0, 1]
    assert len(tokens.select(where="length > 0 and done")) == 2
    assert next(iter(penstock.Loader(penstock.pack(tokens, 4), 1)))["input_ids"].sum() == 6
    pq.write_table(table, tmp_path / "x.parquet")
    mixed = penstock.mix([(tokens, 1), (penstock.open(tmp_path / "x.parquet"), 1)])
    with pytest.raises(UsageError, match=rf"`penstock lengths {tmp_path}/x.parquet --by "):
        _ = mixed.lengths


def test_rules_are_shown_as_they_are(tmp_path: Path) -> None:
    """`module:one` is no emoji."""
    write_texts(tmp_path / "texts", 3)
    done = run_command("lengths", tmp_path / "texts", "--by", f"{__name__}:one")
    assert f"lengths by {__name__}:one: {tmp_path}/texts.lengths" in done.stdout


def test_lengths_of_another_version_are_refused(tmp_path: Path) -> None:
    """Also where sizes are the same; the error names the command, and other columns go on."""
    write_texts(tmp_path / "texts")
    measure_lengths(penstock.open(tmp_path / "texts"), count_words)
    file = tmp_path / "texts/0003.txt"
    os.utime(file, ns=(1, 1))
    texts = penstock.open(tmp_path / "texts", index="rebuild")
    message = (
        r"lengths.penstock is a file of lengths .* for another version .*penstock lengths .*--by "
    )
    with pytest.raises(SidecarError, match=message):
        _ = texts.lengths
    with pytest.raises(SidecarError, match=message):
        texts.select(where="length > 1")
    assert len(texts.select(where="bytes >= 0")) == 40
    file.write_text("longer than it was before " * 9)
    texts = penstock.open(tmp_path / "texts", index="rebuild")
    with pytest.raises(SidecarError, match=r"lengths that was saved for data .*: measure with"):
        _ = texts.lengths
    measure_lengths(texts, count_words)
    assert penstock.open(tmp_path / "texts").lengths[3] == 45


def test_containers_that_know_lengths(tmp_path: Path) -> None:
    """Lists have their numbers, records of a row their size; several lists need a name."""
    documents = [np.arange(number, dtype=np.int32) for number in (3, 0, 5)]
    table = pytest.importorskip("pyarrow").table(
        {"input_ids": [list(map(int, row)) for row in documents], "mask": [[1], [], [2, 3]]}
    )
    feather = pytest.importorskip("pyarrow.feather")
    path = tmp_path / "documents.arrow"
    feather.write_feather(table, str(path), compression="uncompressed")
    assert penstock.open(path).lengths.tolist() == [3, 0, 5]
    np.zeros((4, 8), np.int32).tofile(tmp_path / "rows.bin")
    assert penstock.open(tmp_path / "rows.bin", dtype="i4", shape=(8,)).lengths.tolist() == [8] * 4
    both = penstock.open(tmp_path / "rows.bin", dtype="i4", shape=(2, 4))
    with pytest.raises(
        UsageError, match="does not say how long .*penstock lengths .*rows.bin --by"
    ):
        _ = both.lengths


@pytest.mark.parametrize(
    ("by", "more", "message"),
    [
        ("words", {}, "by is 'words': use one of bytes, tokens, duration, or a function"),
        (lambda sample: 3, {}, "which cannot be imported"),
        ("tokens", {}, r"holds no lists of numbers: give tokenizer="),
        ("duration", {"field": "mp3"}, "field is 'mp3': use one of data"),
        (count_words, {"processes": 0}, "processes is 0"),
    ],
)
def test_what_cannot_be_measured(tmp_path: Path, by: Any, more: Any, message: str) -> None:
    """Each error names the value and the remedy, and leaves nothing."""
    write_texts(tmp_path / "texts", 3)
    with pytest.raises(UsageError, match=message):
        measure_lengths(penstock.open(tmp_path / "texts"), by, **more)
    assert not list(tmp_path.glob("*lengths*"))


def test_bad_lengths_and_selections_are_refused(tmp_path: Path) -> None:
    """A length that is none names its sample; a selection is not measured."""
    write_texts(tmp_path / "texts")
    texts = penstock.open(tmp_path / "texts")
    with pytest.raises(DataError, match="the length of sample 17 is -1: return an integer"):
        measure_lengths(texts, refuse_long)
    with pytest.raises(UsageError, match="is selected, mixed or joined: measure the data"):
        measure_lengths(texts.select(range(3)), "bytes")
    with pytest.raises(UsageError, match="has weights, or is mixed or packed"):
        penstock.convert.convert(texts.weigh("bytes"), tmp_path / "out", to="tar")


def test_damaged_lengths_and_chunks(tmp_path: Path, monkeypatch: Any) -> None:
    """A damaged file is refused; a chunk that does not match its checksum is measured again."""
    words = write_texts(tmp_path / "texts")
    texts = penstock.open(tmp_path / "texts")
    monkeypatch.setattr(limits, "lengths_chunk_bytes", 150)
    path = f"{tmp_path}/texts.lengths.penstock"
    header = {
        "format": "lengths-1",
        "data": texts.index.fingerprint,
        "version": texts.index.version,
        "by": length_rules.describe_rule(count_words),
        "counter": "",
    }
    samples = int(150 / texts.index.mean_bytes)
    with MeasuredChunks(path, header, 40, samples) as chunks:
        assert chunks.count > 3
        for chunk in (0, 1):
            start_at, stop = chunks.bounds(chunk)
            chunks.put(chunk, np.array(words[start_at:stop]))
        chunks.values[0] += 1  # as by a disk that lost a page
        with pytest.raises(UsageError, match=r"lengths.penstock.part is in use: wait"):
            measure_lengths(texts, count_words)
    counted = tmp_path / "counted"
    monkeypatch.setenv("COUNTED", str(counted))
    measure_lengths(texts, count_words, processes=1)
    assert texts.lengths.tolist() == words
    assert counted.stat().st_size == 40 - chunks.samples
    Path(path).write_bytes(Path(path).read_bytes()[:-5])
    with pytest.raises(SidecarError, match=r"texts.lengths.penstock: truncated.*: measure with"):
        _ = texts.lengths


@pytest.mark.long
def test_measuring_in_processes_goes_on_after_kill(tmp_path: Path, monkeypatch: Any) -> None:
    """Killed while processes measure, it leaves no lengths and no process, and goes on after the
    chunks that are finished."""
    words = write_texts(tmp_path / "texts", 120)
    counted = tmp_path / "counted"
    monkeypatch.setenv("COUNTED", str(counted))
    monkeypatch.setattr(limits, "lengths_chunk_bytes", 100)
    program = f"""
import multiprocessing, os, signal
import penstock
from penstock import limits
from penstock.dataset import measure_lengths
from tests.dataset.test_lengths import count_words
limits.lengths_chunk_bytes = 100

def end(done, total):
    if done >= 12:
        print(*(process.pid for process in multiprocessing.active_children()), flush=True)
        os.kill(os.getpid(), signal.SIGKILL)

measure_lengths(penstock.open({str(tmp_path / "texts")!r}), count_words, processes=2, progress=end)
"""
    done = run([sys.executable, "-c", program], lean=True, capture_output=True, timeout=120)
    assert done.returncode == -signal.SIGKILL, done.stderr
    assert not (tmp_path / "texts.lengths.penstock").exists()
    (children,) = (list(map(int, line.split())) for line in done.stdout.splitlines())
    assert children
    deadline = time.monotonic() + 60
    while any(is_running(pid) for pid in children):
        assert time.monotonic() < deadline
    counted.unlink()
    texts = penstock.open(tmp_path / "texts")
    measure_lengths(texts, count_words, processes=1)
    assert texts.lengths.tolist() == words
    assert 0 < counted.stat().st_size <= 120 - 12
    assert not list(tmp_path.glob(".*.part"))


def is_running(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def make_wav(seconds: float, rate: int = 8000) -> bytes:
    out = io.BytesIO()
    with wave.open(out, "wb") as file:
        file.setnchannels(2)
        file.setsampwidth(2)
        file.setframerate(rate)
        file.writeframes(b"\0" * (4 * int(seconds * rate)))
    return out.getvalue()


def test_durations(tmp_path: Path) -> None:
    """WAV and FLAC say how long they are; what is neither, or broken, is named."""
    (tmp_path / "speech").mkdir()
    for number, seconds in enumerate((0.5, 0, 2.25)):
        (tmp_path / f"speech/{number}.wav").write_bytes(make_wav(seconds))
    speech = penstock.open(tmp_path / "speech")
    assert measure_lengths(speech, "duration").values.tolist() == [500, 0, 2250]
    bits = (44100 << 44) | (1 << 41) | (15 << 36) | 132300
    flac = b"fLaC" + b"\0\0\0\x22" + b"\0" * 10 + struct.pack(">Q", bits) + b"\0" * 16
    assert measure_duration(flac) == 3000
    for sound, message in (
        (b"ID3\4 mp3", "starts with b'ID3.*is no WAV or FLAC"),
        (make_wav(1)[:14], "broken header"),
        (b"fLaC\0", "broken header"),
        (b"", "is no WAV or FLAC"),
    ):
        with pytest.raises(FormatError, match=message):
            measure_duration(sound)


def test_the_command_measures(tmp_path: Path, monkeypatch: Any) -> None:
    """`penstock lengths` measures by a function of the user's, and says what is wrong."""
    words = write_texts(tmp_path / "texts")
    (tmp_path / "rules.py").write_text("def count(sample):\n    return len(sample['data'].split())")
    monkeypatch.chdir(tmp_path)
    done = run_command("lengths", "texts", "--by", "rules:count")
    assert "40 samples, 0 to 10 long" in done.stdout
    assert penstock.open("texts").lengths.tolist() == words
    for by, message in (
        ("rules:missing", "--by is 'rules:missing', which cannot be had"),
        ("words", "by is 'words': use one of bytes, tokens, duration, or a function"),
    ):
        assert message in run_command("lengths", "texts", "--by", by, code=1).stderr


@pytest.mark.parametrize("rule", ["tokens", "function"])
def test_lengths_of_another_key_are_refused(rule: str, tmp_path: Path) -> None:
    """One file opens with other keys, defaults and rules for broken lines: lengths are of one."""
    pytest.importorskip("orjson")
    rows = [{"a": [1] * n, "b": [1] * (9 - n)} for n in range(10)]
    path = tmp_path / "a.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))

    def opened(key: str, **options: Any) -> penstock.Dataset:
        return penstock.open(
            path, fields={"input_ids": key}, types={"input_ids": "ints"}, **options
        )

    by: Any = "tokens" if rule == "tokens" else count_ids
    assert measure_lengths(opened("a"), by).values.tolist() == list(range(10))
    more = penstock.open(path, fields={"input_ids": "a", "b": "b"})
    assert more.lengths.tolist() == list(range(10))
    for other in (
        opened("b"),
        opened("a", defaults={"input_ids": [7]}),
        opened("a", broken="mask"),
        penstock.open(path, fields=["b"]),
    ):
        with pytest.raises(SidecarError, match="saved for fields made of"):
            _ = other.lengths
    assert measure_lengths(opened("b"), by).values.tolist() == list(range(9, -1, -1))
    assert opened("b").lengths.tolist() == list(range(9, -1, -1))


def count_ids(sample: Mapping[str, Any]) -> int:
    """Count the numbers of a sample."""
    return len(sample["input_ids"])


def test_tokens_of_texts(tmp_path: Path) -> None:
    """Texts are counted by a tokenizer.json, whose content is part of the lengths' identity."""
    tokenizers = pytest.importorskip("tokenizers")
    write_texts(tmp_path / "texts", 5)
    (tmp_path / "texts/0001.txt").write_text("\u00fcber word, word")
    path = tmp_path / "tokenizer.json"
    model = tokenizers.models.WordLevel({"word": 0, "[UNK]": 1}, unk_token="[UNK]")
    tokenizer = tokenizers.Tokenizer(model)
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    tokenizer.save(str(path))
    texts = penstock.open(tmp_path / "texts", index="rebuild")
    saved = measure_lengths(texts, "tokens", tokenizer=path)
    assert saved.values.tolist() == [0, 4, 3, 10, 6]
    inode = os.stat(saved.path).st_ino
    measure_lengths(texts, "tokens", tokenizer=path)
    assert os.stat(saved.path).st_ino == inode
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.WhitespaceSplit()
    tokenizer.save(str(path))
    saved = measure_lengths(texts, "tokens", tokenizer=path)
    assert saved.values.tolist() == [0, 3, 3, 10, 6]
    # Settings of models are not applied, and a text cannot pretend to hold special tokens.
    (tmp_path / "texts/0004.txt").write_text("word [END] word")
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    tokenizer.add_special_tokens(["[END]"])
    tokenizer.enable_truncation(2)
    tokenizer.enable_padding(length=8)
    tokenizer.save(str(path))
    texts = penstock.open(tmp_path / "texts", index="rebuild")
    for given in (path, tmp_path):
        saved = measure_lengths(texts, "tokens", tokenizer=given, force=True)
        assert saved.values.tolist() == [0, 4, 3, 10, 5]
    (tmp_path / "lines.jsonl").write_text('{"text": "word word"}\n{"text": ""}\n')
    pytest.importorskip("orjson")
    lines = penstock.open(tmp_path / "lines.jsonl", fields=["text"])
    assert measure_lengths(lines, "tokens", tokenizer=path).values.tolist() == [2, 0]
    assert penstock.open(tmp_path / "lines.jsonl").lengths.tolist() == [2, 0]
    (tmp_path / "texts/0002.txt").write_bytes(b"word \xff")
    texts = penstock.open(tmp_path / "texts", index="rebuild")
    with pytest.raises(DataError, match="'data' is no UTF-8 at byte 5") as raised:
        measure_lengths(texts, "tokens", tokenizer=path)
    assert any("0002.txt" in note for note in raised.value.__notes__)
    with pytest.raises(MissingError, match=r"there is no .*texts/tokenizer\.json: give a token"):
        measure_lengths(texts, "tokens", tokenizer=tmp_path / "texts")
    path.write_text("{}")
    with pytest.raises(UsageError, match=r"tokenizer.json is no tokenizer.json"):
        measure_lengths(texts, "tokens", tokenizer=path)
    with pytest.raises(UsageError, match="tokenizer is for by='tokens'"):
        measure_lengths(texts, "bytes", tokenizer=path)
