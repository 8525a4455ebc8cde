"""Tokens that many encode, and many place: the bytes of one process."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from concurrent.futures import BrokenExecutor, Executor, ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import pytest

import penstock
from penstock import limits
from penstock.convert import tokenize
from penstock.errors import MissingError, SidecarError, UsageError
from penstock.index.sidecar import read_sidecar
from penstock.tasks import WorkPlan, plan_work
from penstock.tasks.convert_work import place_tokens
from tests.command import run
from tests.convert.tokenizers_made import draw_texts, save_words, train, write_lines
from tests.tasks.works import LONG_AGO_NS, ThreadPool, do_all

pytestmark = pytest.mark.usefixtures("small_tasks")


@pytest.mark.parametrize(("broken", "dtype"), [("raise", "uint16"), ("mask", "int32")])
def test_tokens(tmp_path: Path, broken: Any, dtype: str) -> None:
    """One pair of .bin and .idx, of any number of tasks, equals one process's, with its sums."""
    texts: list[Any] = draw_texts(1, 20)
    tokenizer = train(tmp_path / "tokenizer.json", texts)
    if broken == "mask":
        tokenizer, texts = save_words(tokenizer, 65_600), [f"w{i} w65599 " * 9 for i in range(20)]
        texts[7] = None
        texts[11] = 3
    lines = tmp_path / "documents.jsonl"
    write_lines(lines, texts)
    os.utime(lines, ns=(LONG_AGO_NS, LONG_AGO_NS))
    settings: dict[str, Any] = {"broken": broken, "eos": broken == "raise"}
    one = tokenize(penstock.open(lines), tmp_path / "one", tokenizer, **settings)
    assert one.dtype == dtype
    plan = plan_work("tokenize", lines, tmp_path / "work", tokenizer=str(tokenizer), **settings)
    assert len(plan) > 5
    for task in reversed(plan.list_missing()):
        plan.do(task)
    reports: list[tuple[int, int]] = []
    made = plan.commit(progress=lambda *counts: reports.append(counts))
    assert made.startswith(f"{one.tokens:,} tokens of 20 documents")
    assert reports[-1] == (len(plan), len(plan))
    assert read_tokens(tmp_path / "work" / "tokens") == read_tokens(tmp_path / "one")
    plan.commit()  # of what is committed
    assert not (tmp_path / "work" / "tokens.tmp").exists()


def read_tokens(prefix: Path) -> list[Any]:
    """The pair of files, and what their manifest says of them."""
    said = json.loads(Path(f"{prefix}.manifest.json").read_text())["shards"]
    return [said, *(Path(f"{prefix}{ending}").read_bytes() for ending in (".bin", ".idx"))]


@pytest.fixture(scope="module")
def encoded_once(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Texts, `one` process's tokens of them, and `work`, whose tasks are done."""
    folder = tmp_path_factory.mktemp("encoded")
    tokenizer = train(folder / "tokenizer.json", draw_texts(1, 60))
    documents = folder / "documents.jsonl"
    write_lines(documents, draw_texts(1, 16))
    os.utime(documents, ns=(LONG_AGO_NS, LONG_AGO_NS))
    tokenize(penstock.open(documents), folder / "one", tokenizer)
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(limits, "task_text_bytes", 300)
        plan = plan_work("tokenize", documents, folder / "work", tokenizer=str(tokenizer))
        assert do_all(plan) > 4
    return folder


def test_few_texts_are_several_tasks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """So that all workers have some; of many texts each task has the most that it may."""
    tokenizer = train(tmp_path / "tokenizer.json", draw_texts(1, 60))
    write_lines(tmp_path / "documents.jsonl", draw_texts(1, 160))
    size = (tmp_path / "documents.jsonl").stat().st_size

    def count_tasks(folder: str, most: int, usual: int) -> int:
        monkeypatch.setattr(limits, "task_text_bytes", most)
        monkeypatch.setattr(limits, "tasks_usual", usual)
        data = tmp_path / "documents.jsonl"
        return len(plan_work("tokenize", data, tmp_path / folder, tokenizer=str(tokenizer)))

    assert 8 <= count_tasks("few", size, 512) <= 17
    assert 3 <= count_tasks("usual", size, 4) <= 5
    assert 15 <= count_tasks("many", size // 20, 4) <= 21


@pytest.fixture
def encoded(encoded_once: Path, tmp_path: Path) -> WorkPlan:
    """A copy of the work that is done, to be committed."""
    shutil.copytree(encoded_once / "work", tmp_path / "work")
    return WorkPlan.load(tmp_path / "work")


PLACING = """
import os, shutil, signal, sys
from penstock.tasks import WorkPlan
copied, copy = [], shutil.copyfileobj
def interfere(source, target, size):
    copied.append(source)
    if len(copied) == 3:
        %s
    copy(source, target, size)
shutil.copyfileobj = interfere
WorkPlan.load(sys.argv[1]).commit()
"""


def test_killed_while_tokens_are_placed(
    encoded: WorkPlan, encoded_once: Path, tmp_path: Path
) -> None:
    """The commit begins to place them anew, whoever was at it; a worker who is late spoils
    nothing, neither then nor after `tokenize` went on."""
    program = (
        PLACING % "target.write(b'half'); target.flush(); os.kill(os.getpid(), signal.SIGKILL)"
    )

    def kill() -> Path:
        done = subprocess.run([sys.executable, "-c", program, encoded.folder], check=False)
        assert done.returncode == -signal.SIGKILL
        assert not (tmp_path / "work" / "tokens.bin").exists()
        (half,) = (tmp_path / "work" / "tokens.tmp").glob(".placed-*")
        return half

    half = kill()
    encoded.commit()
    assert read_tokens(tmp_path / "work" / "tokens") == read_tokens(encoded_once / "one")
    assert not half.parent.exists()
    with pytest.raises(penstock.errors.StorageError):
        place_tokens(encoded.find_part(2), str(half), 0)
    for path in (tmp_path / "work").glob("tokens.*"):
        path.unlink()
    kill()
    documents = penstock.open(encoded_once / "documents.jsonl")
    tokenize(documents, tmp_path / "work" / "tokens", encoded_once / "tokenizer.json")
    assert read_tokens(tmp_path / "work" / "tokens") == read_tokens(encoded_once / "one")
    assert not half.parent.exists()


def test_tokens_of_a_run_that_was_stopped(
    encoded: WorkPlan, encoded_once: Path, tmp_path: Path
) -> None:
    """What `tokenize` left in the midst of a task's documents is placed anew, too."""

    def stop(done: int, _: int) -> None:
        if done:
            raise KeyboardInterrupt

    documents, destination = (
        penstock.open(encoded_once / "documents.jsonl"),
        tmp_path / "work/tokens",
    )
    with pytest.raises(KeyboardInterrupt):
        tokenize(documents, destination, encoded_once / "tokenizer.json", progress=stop)
    encoded.commit()
    assert read_tokens(destination) == read_tokens(encoded_once / "one")


def test_two_commits_at_once(encoded: WorkPlan, encoded_once: Path, tmp_path: Path) -> None:
    """The second one says who is at it, and the first one goes on."""
    there, go = tmp_path / "there", tmp_path / "go"
    os.mkfifo(there)
    os.mkfifo(go)
    wait = f"open({str(there)!r}, 'w').close(); open({str(go)!r}).close()"
    first = subprocess.Popen([sys.executable, "-c", PLACING % wait, encoded.folder])
    there.read_text()
    with pytest.raises(UsageError, match="another process is tokenizing into"):
        encoded.commit()
    go.write_text("")
    assert first.wait() == 0
    assert read_tokens(tmp_path / "work" / "tokens") == read_tokens(encoded_once / "one")


@pytest.mark.parametrize("section", ["counts", "tokens"])
def test_damaged_tokens(
    encoded: WorkPlan, encoded_once: Path, tmp_path: Path, section: str
) -> None:
    """A part whose tokens, or numbers of them, are damaged is named, and nothing is committed."""
    part = Path(encoded.find_part(3))
    data = bytearray(part.read_bytes())
    begins = {row[0]: row[2] for row in read_sidecar(str(part))[0]["sections"]}
    assert [*begins] == ["counts", "tokens"]
    data[
        len(data) - begins["tokens"] - len(read_sidecar(str(part))[1]["tokens"]) + begins[section]
    ] ^= 1
    part.write_bytes(data)
    with pytest.raises(SidecarError, match=f"{part}: .*remove it, and run `penstock work` again"):
        encoded.commit(ThreadPool)
    assert not (tmp_path / "work" / "tokens.bin").exists()
    part.unlink()
    do_all(encoded)
    encoded.commit(ThreadPool)
    assert read_tokens(tmp_path / "work" / "tokens") == read_tokens(encoded_once / "one")


def test_a_part_that_is_removed_meanwhile(
    encoded: WorkPlan, encoded_once: Path, tmp_path: Path
) -> None:
    part = Path(encoded.find_part(len(encoded) - 1))

    class Removing(ThreadPool):
        def submit(self, *call: Any) -> Any:  # type: ignore[override]
            part.unlink(missing_ok=True)
            return super().submit(*call)

    with pytest.raises(MissingError, match=f"{part} was removed .*: run `penstock work` again"):
        encoded.commit(Removing)
    do_all(encoded)
    encoded.commit()
    assert read_tokens(tmp_path / "work" / "tokens") == read_tokens(encoded_once / "one")


@pytest.mark.long
def test_an_engine_places_tokens(encoded: WorkPlan, encoded_once: Path, tmp_path: Path) -> None:
    """Processes place the tokens; those that are killed cost what they were at."""
    made: list[Executor] = []

    def start() -> Executor:
        pool = ProcessPoolExecutor(2, get_context("spawn"))
        made.append(pool)
        if len(made) == 1:
            assert isinstance(pool.submit(os._exit, 1).exception(), BrokenExecutor)
        return pool

    encoded.commit(start)
    assert len(made) == 2
    assert read_tokens(tmp_path / "work" / "tokens") == read_tokens(encoded_once / "one")
    for path in (tmp_path / "work").glob("tokens.*"):
        path.unlink()
    assert "tokens of 16 documents" in run("commit", encoded.folder, "--on", "local").stdout
    assert read_tokens(tmp_path / "work" / "tokens") == read_tokens(encoded_once / "one")
