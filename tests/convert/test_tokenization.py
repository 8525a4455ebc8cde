"""Tokens of texts, held against `tokenizers` itself and a reader of .idx of the test's own."""

from __future__ import annotations

import contextlib
import errno
import io
import itertools
import json
import os
import random
import re
import shutil
import signal
import struct
import subprocess
import sys
import tarfile
import time
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet
import pytest
import tokenizers
from hypothesis import given
from hypothesis import strategies as st

import penstock
from penstock.convert import token_files, tokenize
from penstock.convert.encoder_processes import EncoderProcesses
from penstock.convert.manifest import lock_folder
from penstock.convert.token_worker import make_encoder
from penstock.convert.tokenizer_file import TokenizerFile
from penstock.errors import (
    ChangedError,
    FormatError,
    MissingError,
    StorageError,
    UsageError,
    WorkerError,
)
from tests import warm
from tests.command import run
from tests.convert.tokenizers_made import END, draw_texts, save_words, train, write_lines
from tests.slices import first

TEXTS = draw_texts(1, 60)
LONG_AGO_NS = 10**18 + 1


@pytest.fixture(scope="module")
def bpe(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A trained tokenizer.json, whose only special token ends documents."""
    return train(tmp_path_factory.mktemp("tokenizer") / "tokenizer.json", TEXTS)


@pytest.fixture
def documents(tmp_path: Path) -> Path:
    """Two files of JSON lines, with an empty document."""
    write_lines(tmp_path / "documents" / "a.jsonl", TEXTS[:30])
    write_lines(tmp_path / "documents" / "b.jsonl", ["", *TEXTS[30:]])
    return settle(tmp_path / "documents")


def settle(folder: Path) -> Path:
    """Let everything look as if it had been written long ago."""
    for path in [*folder.rglob("*"), folder]:
        os.utime(path, ns=(LONG_AGO_NS, LONG_AGO_NS))
    return folder


def opened(path: Path, **options: Any) -> penstock.Dataset:
    return penstock.open(path, index="memory", **options)


def encode(path: Path, text: str, **options: Any) -> list[int]:
    """The tokens of a text, by the library itself, as text throughout."""
    tokenizer = tokenizers.Tokenizer.from_file(str(path))
    tokenizer.encode_special_tokens = True
    ids: list[int] = tokenizer.encode(text, add_special_tokens=False).ids
    return ids


def read_megatron(prefix: Path) -> list[list[int]]:
    """The documents of .bin and .idx, read by the description of the format: magic, version, type,
    sequences, entries of documents; lengths, pointers, first sequences."""
    idx = Path(f"{prefix}.idx").read_bytes()
    magic, version, code, sequences, entries = struct.unpack_from("<9sQBQQ", idx)
    assert (magic, version) == (b"MMIDIDX\0\0", 1)
    dtype = {8: np.uint16, 4: np.int32}[code]
    lengths = np.frombuffer(idx, "<i4", sequences, 34)
    pointers = np.frombuffer(idx, "<i8", sequences, 34 + 4 * sequences)
    firsts = np.frombuffer(idx, "<i8", entries, 34 + 12 * sequences)
    assert len(idx) == 34 + 12 * sequences + 8 * entries
    data = Path(f"{prefix}.bin").read_bytes()
    parts = [
        np.frombuffer(data, dtype, length, pointer).tolist()
        for length, pointer in zip(lengths, pointers, strict=True)
    ]
    assert sum(map(len, parts)) * np.dtype(dtype).itemsize == len(data)
    return [
        list(itertools.chain.from_iterable(parts[first:end]))
        for first, end in itertools.pairwise(firsts.tolist())
    ]


def read_all(folder: Path, name: str) -> dict[str, bytes]:
    """Every file whose name begins so."""
    return {path.name: path.read_bytes() for path in sorted(folder.glob(f"{name}*"))}


# -- what is written -------------------------------------------------------------------------------


def test_documents_end_to_end(documents: Path, bpe: Path, tmp_path: Path) -> None:
    """Document i is sample i, with its end, read back by three readers; from lines to batches."""
    reports: list[tuple[int, int]] = []
    done = tokenize(
        opened(documents),
        tmp_path / "out",
        bpe,
        verify=True,
        progress=lambda *seen: reports.append(seen),
    )
    expected = [[*encode(bpe, text), 0] for text in [*TEXTS[:30], "", *TEXTS[30:]]]
    assert read_megatron(tmp_path / "out") == expected
    dataset = penstock.open(done.path)
    assert done.call == f"penstock.open({str(tmp_path / 'out')!r})"
    assert [sample["tokens"].tolist() for sample in dataset] == expected
    tokens = np.concatenate(expected)
    windows = penstock.Loader(
        penstock.open(done.path, window=32), 4, shuffle="none", drop_last=False
    )
    rows = np.concatenate([batch["tokens"] for batch in windows])
    assert rows[:, :-1].ravel().tolist() == tokens[: 32 * len(rows)].tolist()
    assert (done.documents, done.written, done.verified) == (61, 61, 61)
    assert (done.tokens, done.dtype, done.empty, done.broken) == (len(tokens), "uint16", 1, 0)
    assert done.bytes == sum(os.path.getsize(tmp_path / f"out.{s}") for s in ("bin", "idx"))
    assert (reports[0], reports[-1]) == ((0, 61), (61, 61))
    published = json.loads((tmp_path / "out.manifest.json").read_text())
    assert published["shards"][0]["tokens"] == len(tokens)
    assert published["source"]["fingerprint"] == opened(documents).fingerprint
    assert not (tmp_path / "out.tmp").exists()


@pytest.mark.parametrize("kind", first(1, ["tar", "parquet", "tree", "fields"]))
def test_any_container_of_text(kind: str, bpe: Path, tmp_path: Path) -> None:
    """Texts of columns, members of tar files, files, and fields that the caller chose."""
    texts, options = TEXTS[:5], {}
    path = tmp_path / "data"
    if kind == "parquet":
        path = tmp_path / "data.parquet"
        pyarrow.parquet.write_table(pa.table({"n": [*range(5)], "text": texts}), path)
    elif kind == "tar":
        path = tmp_path / "data.tar"
        with tarfile.open(path, "w") as tar:
            for i, text in enumerate(texts):
                for suffix, data in (("txt", text.encode()), ("jpg", b"\xff\xd8\xff")):
                    member = tarfile.TarInfo(f"{i}.{suffix}")
                    member.size = len(data)
                    tar.addfile(member, io.BytesIO(data))
        options = {"fields": {"jpg": "jpg", "txt": "txt"}}
    elif kind == "tree":
        for i, text in enumerate(texts):
            (path / f"{i}.txt").parent.mkdir(exist_ok=True)
            (path / f"{i}.txt").write_text(text)
    else:
        write_lines(path / "a.jsonl", texts, other="x")
        options = {"fields": {"other": "other", "body": "text"}}
    field = "body" if kind == "fields" else None
    source = opened(path, **options)
    tokenize(source, tmp_path / "out", bpe, field=field, workers=1, eos=False)
    assert read_megatron(tmp_path / "out") == [encode(bpe, text) for text in texts]


@pytest.mark.long
def test_selections(documents: Path, bpe: Path, tmp_path: Path) -> None:
    """The documents of a selection, in the order in which they lie."""
    chosen = opened(documents).select([40, 3, 7])
    tokenize(chosen, tmp_path / "out", bpe, eos=False, workers=1)
    expected = [TEXTS[3], TEXTS[7], TEXTS[39]]
    assert read_megatron(tmp_path / "out") == [encode(bpe, text) for text in expected]


def test_ends_of_documents(bpe: Path, tmp_path: Path) -> None:
    """The token that ends documents: by the configuration beside, by a usual name, as given."""
    tokenizer = TokenizerFile.load(bpe)
    assert tokenizer.find_end() == 0
    assert tokenizer.find_token("eos", END) == 0
    assert tokenizer.find_token("eos", 17) == 17
    for wrong in ("</s>", 400, -1, 1.5, True):
        with pytest.raises(UsageError, match="eos is"):
            tokenizer.find_token("eos", wrong)  # type: ignore[arg-type]
    words = save_words(tmp_path / "tokenizer.json", 10)
    with pytest.raises(UsageError, match="has no known end of a document"):
        TokenizerFile.load(words).find_end()
    for published in ("w3", {"content": "w3"}):
        (tmp_path / "tokenizer_config.json").write_text(json.dumps({"eos_token": published}))
        assert TokenizerFile.load(tmp_path).find_end() == 3
    path = write_lines(tmp_path / "a.jsonl", ["w1 w2", ""])
    tokenize(opened(path), tmp_path / "out", words, bos="w9", workers=1)
    assert read_megatron(tmp_path / "out") == [[9, 1, 2, 3], [9, 3]]


def test_special_tokens_in_a_text(bpe: Path, tmp_path: Path) -> None:
    """A text cannot pretend to end, unless it is asked for."""
    path = write_lines(tmp_path / "a.jsonl", [f"a{END}b"])
    tokenize(opened(path), tmp_path / "text", bpe, workers=1)
    (tokens,) = read_megatron(tmp_path / "text")
    assert tokens.count(0) == 1
    assert tokenizers.Tokenizer.from_file(str(bpe)).decode(tokens, False) == f"a{END}b{END}"
    tokenize(opened(path), tmp_path / "tokens", bpe, special="tokens", eos=False, workers=1)
    assert read_megatron(tmp_path / "tokens") == [[*encode(bpe, "a"), 0, *encode(bpe, "b")]]


def test_settings_for_inputs_of_models(bpe: Path, tmp_path: Path) -> None:
    """Truncation, padding and template of the file change no document."""
    plain = tokenizers.Tokenizer.from_file(str(bpe))
    plain.enable_truncation(3)
    plain.enable_padding(length=9)
    plain.post_processor = tokenizers.processors.TemplateProcessing(
        single=f"{END} $A", special_tokens=[(END, 0)]
    )
    plain.save(str(tmp_path / "tokenizer.json"))
    for one_by_one in (False, True):
        settings = {"engine": "tokenizers", "special": "text", "one_by_one": one_by_one}
        settings["json"] = (tmp_path / "tokenizer.json").read_text()
        assert make_encoder(settings)(TEXTS[:3]) == [encode(bpe, text) for text in TEXTS[:3]]


@pytest.mark.long
def test_large_vocabularies_have_four_bytes(tmp_path: Path) -> None:
    """Tokens have four bytes from a vocabulary of 65,500 on, as Megatron chooses."""
    path = write_lines(tmp_path / "a.jsonl", ["w65499 w1"])
    for count, name in ((65_500, "int32"), (65_499, "uint16")):
        words = save_words(tmp_path / f"{count}.json", count)
        out = tmp_path / name
        assert tokenize(opened(path), out, words, eos=False, workers=1).dtype == name
        assert read_megatron(out) == [[65_499 % count, 1]]


@pytest.mark.long
def test_documents_of_several_sequences(
    bpe: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A document that is longer than a sequence may be has several; an empty one has one."""
    monkeypatch.setattr(token_files, "SEQUENCE_TOKENS_MAX", 5)
    monkeypatch.setattr(token_files, "_DOCUMENTS_AT_ONCE", 2)
    path = write_lines(tmp_path / "a.jsonl", ["", *TEXTS[:6], ""])
    tokenize(opened(path), tmp_path / "out", bpe, eos=False, workers=1)
    expected = [encode(bpe, text) for text in ["", *TEXTS[:6], ""]]
    assert read_megatron(tmp_path / "out") == expected
    assert [one["tokens"].tolist() for one in penstock.open(tmp_path / "out")] == expected
    sequences = struct.unpack_from("<Q", (tmp_path / "out.idx").read_bytes(), 18)[0]
    assert sequences == sum(max(1, -(-len(tokens) // 5)) for tokens in expected)


# -- broken texts ----------------------------------------------------------------------------------

BROKEN = [
    (b'{"text": "no end', "no JSON"),
    (b'["text"]', "no object, but a list"),
    (b'{"tex": "x"}', "no field 'text' (did you mean 'tex'?)"),
    (b'{"text": null}', "field 'text' is null"),
    (b'{"text": 7}', "field 'text' has 7, a whole number"),
    (b'{"text": "\xff"}', "no JSON"),
    (b'{"text": "\\ud800"}', "no JSON"),
]


def test_broken_lines(bpe: Path, tmp_path: Path) -> None:
    """Errors name file, line, field and value; masked, they are empty documents, and counted."""
    path = tmp_path / "a.jsonl"
    for line, reason in BROKEN:
        path.write_bytes(b'{"text": "good"}\n' + line + b'\n{"text": "good"}\n')
        with pytest.raises(FormatError, match=r"a\.jsonl at byte 17 .*: line 2 ") as caught:
            tokenize(opened(path), tmp_path / "out", bpe, workers=1)
        assert reason in str(caught.value)
        assert "broken='mask'" in str(caught.value)
        assert not list(tmp_path.glob("out.[bi]*"))
        shutil.rmtree(tmp_path / "out.tmp")
    path.write_bytes(b'{"text": "good"}\n' + b"\n".join(line for line, _ in BROKEN) + b"\n")
    done = tokenize(opened(path), tmp_path / "out", bpe, workers=1, broken="mask")
    assert (done.empty, done.broken) == (7, 7)
    assert read_megatron(tmp_path / "out") == [[*encode(bpe, "good"), 0], *[[0]] * 7]


@pytest.mark.long
def test_broken_utf8(bpe: Path, tmp_path: Path) -> None:
    """Bytes that are no UTF-8 are an error with their place, or an empty document."""
    folder = tmp_path / "texts"
    folder.mkdir()
    for name, data in (("0.txt", b"good"), ("1.txt", b"ab\xe2\x28"), ("2.txt", b"good")):
        (folder / name).write_bytes(data)
    with pytest.raises(FormatError, match=r"1\.txt.*field 'data' is no UTF-8: .* at byte 2: "):
        tokenize(opened(folder), tmp_path / "out", bpe, workers=1)
    good = [*encode(bpe, "good"), 0]
    # What is there has no broken document yet: it goes on with the other rule.
    done = tokenize(opened(folder), tmp_path / "out", bpe, workers=1, broken="mask", verify=True)
    assert read_megatron(tmp_path / "out") == [good, [0], good]
    assert (done.empty, done.broken, done.verified) == (1, 1, 3)


def test_defaults_that_the_source_was_opened_with(bpe: Path, tmp_path: Path) -> None:
    """A default in place of a missing text is part of what is written."""
    path = tmp_path / "a.jsonl"
    path.write_text('{"text": "good"}\n{}\n')
    source = opened(path, fields="text", defaults={"text": "none"})
    tokenize(source, tmp_path / "out", bpe, eos=False, workers=1)
    assert read_megatron(tmp_path / "out") == [encode(bpe, "good"), encode(bpe, "none")]
    other = opened(path, fields="text", defaults={"text": "other"})
    with pytest.raises(UsageError, match="default='none', and now default='other'"):
        tokenize(other, tmp_path / "out", bpe, eos=False, workers=1)
    masked = opened(path, fields=["text", "id"], types={"text": "str", "id": "int"})
    done = tokenize(masked, tmp_path / "masked", bpe, field="text", broken="mask", workers=1)
    assert (done.documents, done.broken) == (2, 1)


def test_processes_that_end(bpe: Path) -> None:
    """A process that is killed is an error that says so, and none is left after `close`."""
    settings = {**TokenizerFile.load(bpe).describe_for("tokenizers"), "special": "text"}
    settings |= {"masked": False, "typecode": "H", "before": [], "after": []}
    processes = EncoderProcesses(settings, 1)
    try:
        assert processes.submit([b"ab", None]).result().broken == 1
        (child,) = processes._all
        child.kill()
        with pytest.raises(WorkerError, match=r"2 texts of up to 3 bytes, was ended by SIGKILL"):
            processes.submit([b"abc", b""]).result()
    finally:
        processes.close()
    assert child.poll() is not None


@pytest.mark.long
def test_forks_are_not_warned_of(documents: Path, bpe: Path, tmp_path: Path) -> None:
    """A process that tokenized may fork: the library's threads were in other processes."""
    code = f"""
import os, sys, penstock
dataset = penstock.open({str(documents)!r}, index="memory")
penstock.convert.tokenize(dataset, {str(tmp_path / "out")!r}, {str(bpe)!r}, verify=True)
pid = os.fork()
if pid:
    print(os.waitpid(pid, 0)[1])
"""
    done = warm.run([sys.executable, "-c", code], capture_output=True, text=True, lean=True)
    assert (done.stdout, done.stderr) == ("0\n", "")


# -- resuming --------------------------------------------------------------------------------------

CHILD = """
import os, signal, sys, json
import penstock
source, destination, tokenizer, number, workers = json.loads(sys.argv[1])
penstock.limits.encoded_commit_s = 0
penstock.limits.encoded_bytes = 200
seen = 0
def event(name, arguments):
    global seen
    if name in ("open", "os.rename", "os.remove", "os.mkdir") and destination in str(arguments[0]):
        seen += 1
        if seen == number:
            os.kill(os.getpid(), signal.SIGKILL)
dataset = penstock.open(source, index="memory")
sys.addaudithook(event)
penstock.convert.tokenize(dataset, destination, tokenizer, workers=workers)
print(seen)
"""


def start(source: Path, out: Path, bpe: Path, number: int, workers: int) -> warm.Popen:
    """A run in a process of its own that kills itself at an event of the file system."""
    argument = json.dumps([str(source), str(out), str(bpe), number, workers])
    command = [sys.executable, "-c", CHILD, argument]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    return warm.Popen(command, lean=True, **pipes)


def check_names(folder: Path, expected: dict[str, bytes]) -> None:
    """A file with a final name is whole; and .idx comes last."""
    present = {path.name: path.read_bytes() for path in folder.glob("out.*") if path.is_file()}
    for name, data in present.items():
        if not name.endswith(".part"):
            assert data == expected[name], name
    if "out.idx" in present:
        assert {"out.bin", "out.manifest.json"} <= set(present)


@pytest.mark.long
def test_killed_at_any_step(documents: Path, bpe: Path, tmp_path: Path) -> None:
    """Killed at any operation on files, a run that is repeated with another number of processes
    ends up as one that was not killed, byte by byte."""
    with start(documents, tmp_path / "whole" / "out", bpe, 0, 1) as whole:
        output, errors = whole.communicate()
    assert whole.returncode == 0, errors
    expected = read_all(tmp_path / "whole", "out")
    total = int(output)
    assert total > 20
    draw = np.random.default_rng(total)
    last = range(total - 12, total + 1)  # the final names
    for point in sorted({1, 2, 3, *last, *draw.integers(1, total + 1, 8).tolist()}):
        folder = tmp_path / str(point)
        with start(documents, folder / "out", bpe, point, 2) as killed:
            _, errors = killed.communicate()
        assert killed.returncode == -signal.SIGKILL, errors
        check_names(folder, expected)
        done = tokenize(opened(documents), folder / "out", bpe, workers=1)
        assert done.documents == 61
        assert read_all(folder, "out") == expected, point


@pytest.mark.long
def test_killed_at_random_moments(bpe: Path, tmp_path: Path) -> None:
    """Killed from outside again and again, it goes on each time, and nothing is lost. Once its
    files are complete a run has nothing to do that could be killed: the next has its own folder."""
    texts = draw_texts(5, 500)
    source = settle_file(write_lines(tmp_path / "a.jsonl", texts))
    began_s = time.monotonic()
    with start(source, tmp_path / "whole" / "out", bpe, 0, 2) as whole:
        assert whole.communicate()[1] == ""
    whole_s = time.monotonic() - began_s
    expected = read_all(tmp_path / "whole", "out")
    draw = random.Random(3)
    kills = completed = 0
    for _ in range(100):
        folder = tmp_path / f"round{completed}"
        with start(source, folder / "out", bpe, 0, draw.choice([1, 2])) as child:
            try:
                child.wait(draw.uniform(0, whole_s))
            except subprocess.TimeoutExpired:
                child.kill()
            child.communicate()
        kills += child.returncode == -signal.SIGKILL
        check_names(folder, expected)
        completed += (folder / "out.idx").exists()
        if kills >= 10:
            break
    assert kills >= 10
    for folder in tmp_path.glob("round*"):
        tokenize(opened(source), folder / "out", bpe)
        assert read_all(folder, "out") == expected


def settle_file(path: Path) -> Path:
    os.utime(path, ns=(LONG_AGO_NS, LONG_AGO_NS))
    return path


def interrupt(source: Path, out: Path, bpe: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Leave a run that was stopped after some documents."""

    def stop(done: int, _: int) -> None:
        if done > 20:
            raise KeyboardInterrupt

    with monkeypatch.context() as changed:
        changed.setattr(penstock.limits, "encoded_bytes", 200)
        with pytest.raises(KeyboardInterrupt):
            tokenize(opened(source), out, bpe, progress=stop, workers=1)


def test_interrupted_and_resumed(
    documents: Path, bpe: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ctrl-C keeps what is done; what differs from then is refused, and the same call goes on."""
    out = tmp_path / "out"
    interrupt(documents, out, bpe, monkeypatch)
    assert not list(tmp_path.glob("out.[bi]*"))
    held = read_all(tmp_path / "out.tmp", "")
    with pytest.raises(UsageError, match="interrupted run with eos=0, and now eos=None"):
        tokenize(opened(documents), out, bpe, eos=False)
    with lock_folder(f"{out}.tmp"), pytest.raises(UsageError, match="another process"):
        tokenize(opened(documents), out, bpe)
    changed = documents / "b.jsonl"
    before = changed.read_bytes()
    os.utime(changed, ns=(LONG_AGO_NS + 5, LONG_AGO_NS + 5))
    with pytest.raises(UsageError, match="written to since"):
        tokenize(opened(documents), out, bpe)
    changed.write_bytes(before + b'{"text": "more"}\n')
    with pytest.raises(UsageError, match="of other data"):
        tokenize(opened(documents), out, bpe)
    assert read_all(tmp_path / "out.tmp", "") == held
    changed.write_bytes(before)
    settle(documents)
    done = tokenize(opened(documents), out, bpe, workers=1)
    assert 0 < done.written < 40
    whole = tmp_path / "whole"
    whole.mkdir()
    tokenize(opened(documents), whole / "out", bpe, workers=2)
    assert read_all(tmp_path, "out.") == read_all(whole, "out.")
    assert tokenize(opened(documents), out, bpe).written == 0


@pytest.mark.long
def test_cut_work_is_noticed(
    documents: Path, bpe: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Tokens of an interrupted run that were cut are an error; damaged ones are found at the end,
    and all is begun again."""
    out = tmp_path / "out"
    interrupt(documents, out, bpe, monkeypatch)
    written = tmp_path / "out.tmp" / "tokens.bin"
    data = written.read_bytes()
    written.write_bytes(data[:10])
    with pytest.raises(UsageError, match="has 10 bytes, not "):
        tokenize(opened(documents), out, bpe, workers=1)
    written.write_bytes(bytes([data[0] ^ 1]) + data[1:])
    with pytest.raises(StorageError, match="checksum differs"):
        tokenize(opened(documents), out, bpe, workers=1)
    assert not list(tmp_path.glob("out*"))


def test_what_is_there_is_kept(documents: Path, bpe: Path, tmp_path: Path) -> None:
    """Other files are never replaced; other tokens of this function only by force."""
    out = tmp_path / "out"
    (tmp_path / "out.bin").write_bytes(b"mine")
    for force in (False, True):
        with pytest.raises(UsageError, match=r"out\.bin is no output of this"):
            tokenize(opened(documents), out, bpe, force=force)
    assert read_all(tmp_path, "out") == {"out.bin": b"mine"}
    os.unlink(tmp_path / "out.bin")
    tokenize(opened(documents), f"{out}.bin", bpe, workers=1)
    before = read_all(tmp_path, "out")
    with pytest.raises(UsageError, match="tokens with bos=None, and now bos=5"):
        tokenize(opened(documents), out, bpe, bos=5)
    assert read_all(tmp_path, "out") == before
    done = tokenize(opened(documents), out, bpe, bos=5, force=True, workers=1)
    assert done.written == 61
    assert all(tokens[0] == 5 for tokens in read_megatron(out))
    os.truncate(tmp_path / "out.bin", 6)
    with pytest.raises(UsageError, match="whose files have 6 and"):
        tokenize(opened(documents), out, bpe, bos=5)


@pytest.mark.long
def test_verifying_again(documents: Path, bpe: Path, tmp_path: Path) -> None:
    """Tokens that were changed afterwards are found by their sums; tokens that were wrong from the
    beginning by encoding documents again."""
    out, published = tmp_path / "out.bin", tmp_path / "out.manifest.json"
    tokenize(opened(documents), out, bpe, workers=1)
    data = out.read_bytes()
    changed = bytes([data[0] ^ 1]) + data[1:]
    out.write_bytes(changed)
    with pytest.raises(FormatError, match=r"out\.bin is damaged, by size and checksum"):
        tokenize(opened(documents), out, bpe, verify=True)
    sums = str(zlib.crc32(data)), str(zlib.crc32(changed))
    published.write_text(published.read_text().replace(*sums))
    with pytest.raises(FormatError, match="document 0 is not what tokenizers"):
        tokenize(opened(documents), out, bpe, verify=True)


# -- failures --------------------------------------------------------------------------------------


def test_calls_that_cannot_be(documents: Path, bpe: Path, tmp_path: Path) -> None:
    """Wrong arguments are refused by name, and nothing is written."""
    source = opened(documents)
    arguments: dict[str, Any] = {"source": source, "destination": tmp_path / "out"}
    arguments["tokenizer"] = bpe
    bad = tmp_path / "bad.json"
    bad.write_text("{}")
    dropping = tmp_path / "dropping.json"
    dropping.write_text(bpe.read_text().replace('"dropout": null', '"dropout": 0.1'))
    numbers = tmp_path / "n.npy"
    np.save(numbers, np.zeros((3, 2)))
    (tmp_path / "folder").mkdir()
    for change, message in (
        ({"source": documents}, "source is"),
        ({"source": penstock.mix([(source, 1), (source, 1)])}, "a mixture"),
        ({"source": source.weigh("bytes")}, "is mixed or packed: tokenize its data"),
        ({"source": penstock.curriculum([(0, source)])}, "is mixed or packed"),
        ({"source": opened(numbers)}, "give a field of text|field is not given"),
        ({"destination": "s3://bucket/out"}, "write to a folder"),
        ({"destination": documents / "out"}, "inside the source"),
        ({"destination": tmp_path / "folder"}, "is a folder: name files in it"),
        ({"tokenizer": bad}, "is no tokenizer.json"),
        ({"tokenizer": dropping}, "has a dropout"),
        ({"special": "both"}, "special is 'both'"),
        ({"broken": "skip"}, "broken is 'skip'"),
        ({"engine": "fast"}, "engine is 'fast'"),
        ({"workers": 0}, "workers is 0"),
        ({"verify": 3}, "verify is 3"),
        ({"eos": "none"}, "eos is 'none': give a token"),
    ):
        with pytest.raises(UsageError, match=message):
            tokenize(**{**arguments, **change})
    with pytest.raises(UsageError, match="field is 'id': give a field of text"):
        tokenize(opened(documents, fields=["id", "text"]), tmp_path / "out", bpe, field="id")
    with pytest.raises(MissingError, match=r"there is no .*tokenizer\.json"):
        tokenize(source, tmp_path / "out", tmp_path / "folder")
    (documents / "a.jsonl").write_text('{"text": "new"}\n')
    with pytest.raises(ChangedError, match=r"a\.jsonl"):
        tokenize(source, tmp_path / "out", bpe)
    assert not list(tmp_path.glob("out*"))


def test_full_disk(bpe: Path, small_disk: Path, tmp_path: Path) -> None:
    """A full disk is named as such; nothing has a final name, and once there is room, it goes
    on."""
    source = settle_file(write_lines(tmp_path / "a.jsonl", draw_texts(2, 250)))
    filler = small_disk / "filler"
    filler.write_bytes(bytes(80_000))
    with pytest.raises(StorageError, match="make room there") as caught:
        tokenize(opened(source), small_disk / "out", bpe, workers=1)
    assert caught.value.errno == errno.ENOSPC
    assert not list(small_disk.glob("out.[bi]*"))
    filler.unlink()
    tokenize(opened(source), small_disk / "out", bpe, workers=1)
    assert len(read_megatron(small_disk / "out")) == 250


def test_command_line(documents: Path, bpe: Path, tmp_path: Path) -> None:
    """The command says what it wrote and how to read it; a second call finds it complete."""
    arguments = ["tokenize", documents, tmp_path / "out", "--tokenizer", bpe, "--workers", 1]
    first = run(*arguments, "--verify")
    assert "tokens (uint16) of 61 documents" in first.stdout
    assert "1 empty, of these 0 broken" in first.stdout
    assert "61 documents encoded again, all equal" in first.stdout
    assert f"penstock.open('{tmp_path / 'out'}')" in first.stdout.replace("\n", "")
    assert "it was complete already" in run(*arguments).stdout
    assert "--eos and --no-eos" in run(*arguments, "--eos", END, "--no-eos", code=1).stderr
    run(*arguments, "--no-eos", "--force")
    assert read_megatron(tmp_path / "out")[0] == encode(bpe, TEXTS[0])


# -- tiktoken --------------------------------------------------------------------------------------


@given(
    text=st.text(st.characters(codec="utf-8", max_codepoint=0xFFFF), max_size=60),
    words=st.randoms(),
)
def test_tiktoken_gives_equal_tokens(bpe: Path, text: str, words: random.Random) -> None:
    """A tokenizer whose merges are proved equal gives the tokens of `tokenizers`."""
    text += " ".join(words.choices(TEXTS, k=2)) + text
    tokenizer = TokenizerFile.load(bpe)
    for special in ("text", "tokens"):
        settings = {"special": special}
        fast, slow = (
            make_encoder({**tokenizer.describe_for(engine), **settings})
            for engine in ("tiktoken", "tokenizers")
        )
        assert fast([text, f"a{END}b"]) == slow([text, f"a{END}b"])


@pytest.mark.long
def test_tiktoken_in_a_run(documents: Path, bpe: Path, tmp_path: Path) -> None:
    """The same bytes, and the documents are compared without being asked. Another version of the
    library has another result, perhaps: nothing is taken for complete."""
    tokenize(opened(documents), tmp_path / "out", bpe, workers=1)
    done = tokenize(opened(documents), tmp_path / "fast", bpe, workers=1, engine="tiktoken")
    assert done.verified == 61
    for suffix in ("bin", "idx"):
        assert (
            read_all(tmp_path, f"fast.{suffix}").popitem()[1]
            == (read_all(tmp_path, f"out.{suffix}").popitem()[1])
        )
    published = tmp_path / "fast.manifest.json"
    published.write_text(re.sub(r'("tiktoken":\s*)"[^"]+"', r'\1"0.0.1"', published.read_text()))
    with pytest.raises(UsageError, match=r"tokens with tiktoken='0\.0\.1', and now tiktoken="):
        tokenize(opened(documents), tmp_path / "fast", bpe, workers=1, engine="tiktoken")


def test_what_tiktoken_would_do_otherwise(bpe: Path, tmp_path: Path) -> None:
    """Tokenizers that tiktoken could give other tokens for are refused, with the reason."""
    described = json.loads(bpe.read_text())
    merges = described["model"]["merges"]
    unlike: list[tuple[dict[str, Any], str]] = [
        ({"normalizer": {"type": "NFC"}}, "it normalizes texts"),
        ({"pre_tokenizer": {"type": "Whitespace"}}, "splits texts in a way of its own"),
        (
            {"model": {**described["model"], "merges": [merges[1], merges[0], *merges[2:]]}},
            "before",
        ),
        ({"model": {**described["model"], "merges": merges[:-1]}}, "are made by"),
    ]
    for change, reason in unlike:
        path = tmp_path / "tokenizer.json"
        path.write_text(json.dumps({**described, **change}))
        with pytest.raises(UsageError, match=f"not for tiktoken: .*{reason}"):
            TokenizerFile.load(path).describe_for("tiktoken")


@given(at=st.integers(0), data=st.binary(max_size=6), cut=st.integers(0, 40))
def test_damaged_tokenizer_files(bpe: Path, at: int, data: bytes, cut: int) -> None:
    """Any change of a tokenizer.json is read as some tokenizer, or refused with the file's name."""
    whole = bpe.read_bytes()
    at %= len(whole)
    path = bpe.with_name("damaged.json")
    path.write_bytes(whole[:at] + data + whole[at + cut :])
    with contextlib.suppress(UsageError):
        tokenizer = TokenizerFile.load(path)
        tokenizer.find_end()
        tokenizer.describe_for("tiktoken")


def test_merges_that_ranks_do_not_make(tmp_path: Path) -> None:
    """A token that ranks would make of another pair than the list's is found: with "ab" and "abc"
    of (a, bc) listed, tokenizers never merges (ab, c), and tiktoken would."""
    alphabet = tokenizers.pre_tokenizers.ByteLevel.alphabet()
    vocabulary = {character: i for i, character in enumerate(sorted(alphabet))}
    vocabulary |= {"ab": 256, "bc": 257, "abc": 258}
    made = tokenizers.Tokenizer(
        tokenizers.models.BPE(vocabulary, [("a", "b"), ("b", "c"), ("a", "bc")])
    )
    made.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.save(str(tmp_path / "tokenizer.json"))
    assert made.encode("abc").ids == [256, vocabulary["c"]]
    with pytest.raises(UsageError, match="token 258 has several ways to be made"):
        TokenizerFile.load(tmp_path).describe_for("tiktoken")
