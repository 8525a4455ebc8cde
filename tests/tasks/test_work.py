"""Work that many programs share: the bytes of one process, and what goes wrong has a name."""

from __future__ import annotations

import io
import os
import pickle
import shutil
import signal
import subprocess
import sys
import tarfile
from concurrent.futures import BrokenExecutor, Executor, ProcessPoolExecutor, ThreadPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np
import PIL.Image
import pyarrow as pa
import pyarrow.parquet
import pytest

import penstock
from penstock import limits
from penstock.convert import convert, tokenize
from penstock.dataset.measuring import measure_lengths
from penstock.errors import ChangedError, MissingError, SidecarError, UsageError
from penstock.tasks import WorkPlan, distribute, plan_work
from penstock.tasks.distribution import spread
from penstock.tasks.tape import pack, unpack
from tests.command import run
from tests.convert.tokenizers_made import draw_texts, train, write_lines
from tests.slices import first
from tests.tasks.works import LONG_AGO_NS, ThreadPool, do_all, index_bytes, write_shard

OFFSET = 0
pytestmark = pytest.mark.usefixtures("small_tasks")


# -- the same bytes --------------------------------------------------------------------------------


def test_command_line(shards: Path, tmp_path: Path) -> None:
    """Plan, work in shares of an array, commit: each says what comes next."""
    expected = index_bytes(shards)
    work = tmp_path / "work"
    planned = run("plan-work", "index", shards, work)
    assert "6 tasks, 6 to do" in planned.stdout
    early = run("commit", work, code=1).stderr
    assert "6 of 6 tasks are not done: task 0 (s-000.tar), " in early
    slurm = {"SLURM_ARRAY_TASK_ID": "4", "SLURM_ARRAY_TASK_MIN": "3", "SLURM_ARRAY_TASK_COUNT": "2"}
    assert "SLURM_ARRAY_TASK_ID: 3 of 6 tasks" in run("work", work, **slurm).stdout
    assert WorkPlan.load(work).list_missing() == [0, 2, 4]
    run("work", work, "--tasks", "0:2,4")
    assert "task 2 (s-002.tar)" in run("commit", work, code=1).stderr
    run("work", work, JOB_COMPLETION_INDEX="2")
    assert "index of 30 samples in 6 files" in run("commit", work).stdout
    assert Path(f"{shards}.penstock").read_bytes() == expected


def test_settings_of_commands(shards: Path, tmp_path: Path) -> None:
    """The options of a command that plans are the settings that Python takes; those that were not
    given are left out."""
    work = tmp_path / "work"
    run("plan-work", "convert", shards, work, "--to", "tar", "--shards", "2", "--field", "bin")
    assert WorkPlan.load(work).about["settings"] == {"to": "tar", "shards": 2, "fields": ["bin"]}
    tokenizer = train(tmp_path / "tokenizer.json", draw_texts(1, 60))
    write_lines(tmp_path / "documents.jsonl", draw_texts(1, 60))
    command = ("plan-work", "tokenize", tmp_path / "documents.jsonl", tmp_path / "tokens")
    run(*command, "--tokenizer", tokenizer, "--no-eos")
    settings = {"tokenizer": str(tokenizer), "broken": "raise", "engine": "tokenizers"}
    assert WorkPlan.load(tmp_path / "tokens").about["settings"] == {**settings, "eos": False}
    told = run(*command, "--tokenizer", tokenizer, "--no-eos", "--eos", "x", code=1).stderr
    assert "--eos and --no-eos are both given" in told


def test_options_are_those_of_open(tmp_path: Path) -> None:
    """Options are given as to `open`, which finds the index that was made with them."""
    folder = tmp_path / "pictures"
    folder.mkdir()
    for number in range(4):
        (folder / f"{number}.JPG").write_bytes(bytes(9 + number))
        (folder / f"{number}.txt").write_text("x")
    for path in (*folder.iterdir(), folder):
        os.utime(path, ns=(LONG_AGO_NS, LONG_AGO_NS))
    given: dict[str, Any] = {"extensions": ["JPG"], "header_bytes": 0}
    saved = penstock.open(folder, **given).sidecar
    assert saved is not None
    expected = Path(saved).read_bytes()
    os.unlink(saved)
    plan_work("index", folder, tmp_path / "work", open_options=given).commit()
    assert Path(saved).read_bytes() == expected


def test_more_files_cost_only_their_tasks(shards: Path, tmp_path: Path) -> None:
    """Planned again, parts of files that are as they were count, wherever the new ones are."""
    do_all(plan_work("index", shards, tmp_path / "work"))
    for number in (100, 200):
        write_shard(shards, number, samples=3)
    (shards / "s-200.tar").rename(shards / "a-200.tar")  # the first by name
    os.utime(shards, ns=(LONG_AGO_NS, LONG_AGO_NS))
    grown = plan_work("index", shards, tmp_path / "work")
    assert [grown.labels[task] for task in grown.list_missing()] == ["a-200.tar", "s-100.tar"]
    do_all(grown)
    expected = index_bytes(shards)
    grown.commit()
    assert Path(f"{shards}.penstock").read_bytes() == expected


def test_parts_depend_on_manifests(tmp_path: Path) -> None:
    """A data set whose manifest, or another file of it, changed is parsed anew, though the files
    that are parsed are as they were."""
    tokenizer = train(tmp_path / "tokenizer.json", draw_texts(1, 60))
    write_lines(tmp_path / "documents.jsonl", draw_texts(1, 60))
    data = tmp_path / "data"
    data.mkdir()
    for name in "ab":
        tokenize(penstock.open(tmp_path / "documents.jsonl"), data / name, tokenizer)
        (data / f"{name}.manifest.json").unlink()
        for path in (*data.iterdir(), data):
            os.utime(path, ns=(LONG_AGO_NS, LONG_AGO_NS))
    plan = plan_work("index", data, tmp_path / "work")
    do_all(plan)
    assert len(plan) == 2
    (data / "b.bin").write_bytes((data / "b.bin").read_bytes()[:-2])  # cut; the .idx is not
    with pytest.raises(penstock.errors.FormatError, match=r"b\.bin") as alone:
        penstock.open(data, index="memory")
    again = plan_work("index", data, tmp_path / "work")
    failed = distribute(again, ThreadPool)
    assert list(failed.values()) == [str(alone.value)]


def test_pieces_of_a_large_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One large file of lines is many tasks."""
    monkeypatch.setattr(limits, "parsed_piece_bytes", 100)
    lines = tmp_path / "documents.jsonl"
    write_lines(lines, draw_texts(1, 60))
    os.utime(lines, ns=(LONG_AGO_NS, LONG_AGO_NS))
    expected = index_bytes(lines)
    plan = plan_work("index", lines, tmp_path / "work")
    assert len(plan) == -(-lines.stat().st_size // 100)
    assert plan.describe(3) == "task 3 (documents.jsonl, piece 3)"
    do_all(plan)
    plan.commit()
    assert Path(f"{lines}.penstock").read_bytes() == expected


def test_pieces_of_a_large_tar(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One large archive is many tasks; where a member looks like headers, it is walked whole."""
    nested = write_shard(tmp_path / "shards", 40).read_bytes()
    for archive, more in (("plain.tar", b""), ("nested.tar", nested)):
        monkeypatch.setattr(limits, "parsed_piece_bytes", 1 << 30)
        path = tmp_path / archive
        with tarfile.open(path, "w") as tar:
            for name, data in ((f"{n:03}.bin", bytes(n) + more) for n in range(60)):
                info = tarfile.TarInfo(name)
                info.size = len(data)
                tar.addfile(info, io.BytesIO(data))
        os.utime(path, ns=(LONG_AGO_NS, LONG_AGO_NS))
        expected = index_bytes(path)
        monkeypatch.setattr(limits, "parsed_piece_bytes", 8192)
        plan = plan_work("index", path, tmp_path / f"{archive}.work")
        assert len(plan) == -(-path.stat().st_size // 8192)
        do_all(plan)
        plan.commit()
        assert Path(f"{path}.penstock").read_bytes() == expected


@pytest.mark.parametrize("to", ["tar", "tfrecord"])
def test_shards(shards: Path, tmp_path: Path, to: Any) -> None:
    """Shards in another format, of any number of workers, equal one process's, file by file."""
    settings: dict[str, Any] = {"to": to, "shards": 7, "shuffle": 3, "name": "s"}
    one = convert(penstock.open(shards), tmp_path / "one", **settings)
    plan = plan_work("convert", shards, tmp_path / "work", **settings)
    assert len(plan) == 7
    with pytest.raises(UsageError, match="holds a conversion with shuffle=3, and now shuffle=4"):
        convert(penstock.open(shards), tmp_path / "work" / "shards", **{**settings, "shuffle": 4})
    for task in reversed(plan.list_missing()):
        plan.do(task)
    Path(plan.find_part(2)).unlink()
    plan.do(2)  # as by two workers at one task
    gone = next((tmp_path / "work" / "shards").glob("s-000004*"))
    gone.unlink()
    with pytest.raises(MissingError, match=rf"{gone.name} is not as it was written: run `penst"):
        plan.commit()
    assert plan.list_missing() == [4]
    plan.do(4)
    assert plan.commit().startswith("30 samples in 7 shards: penstock.open(")
    for path in map(Path, one.files):
        assert (tmp_path / "work" / "shards" / path.name).read_bytes() == path.read_bytes()
    names = {path.name for path in (tmp_path / "work" / "shards").iterdir()}
    assert names == {path.name for path in (tmp_path / "one").iterdir()}
    whole = penstock.open(tmp_path / "work" / "shards", **one.options)
    assert len(whole) == 30


def test_shards_that_cannot_be_shared(shards: Path, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="shards is not given"):
        plan_work("convert", shards, tmp_path / "work", to="tar")
    with pytest.raises(UsageError, match="LMDB is one file"):
        plan_work("convert", shards, tmp_path / "work", to="lmdb", shards=2)


def count_bytes(sample: dict[str, Any]) -> int:
    return len(sample["bin"]) + OFFSET


@pytest.mark.parametrize("tasks_max", first(1, [4096, 1]))
def test_lengths(
    shards: Path, tmp_path: Path, tasks_max: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Lengths by a function, of any number of tasks, equal one process's; the file too."""
    monkeypatch.setattr(limits, "lengths_chunk_bytes", 100)
    monkeypatch.setattr(limits, "measured_tasks_max", tasks_max)
    one = measure_lengths(penstock.open(shards), count_bytes)
    expected = Path(one.path).read_bytes()
    os.unlink(one.path)
    by = f"{__name__}:count_bytes"
    plan = plan_work("lengths", shards, tmp_path / "work", by=by)
    assert (len(plan) > 5) is (tasks_max > 1)
    for task in reversed(plan.list_missing()):
        plan.do(task)
    assert plan.commit().startswith(f"lengths of 30 samples by {by}: ")
    assert Path(one.path).read_bytes() == expected
    by_bytes = plan_work("lengths", shards, tmp_path / "bytes", by="bytes")
    assert len(by_bytes) == 0  # the index says them
    by_bytes.commit()
    assert penstock.open(shards).lengths.tolist() == [20 + sample for sample in range(5)] * 6


def test_stats(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Statistics of any number of tasks have the bits of one process's."""
    monkeypatch.setattr(limits, "lengths_chunk_bytes", 1000)
    monkeypatch.setattr(limits, "lengths_batch_bytes", 300)
    values = np.random.default_rng(0).normal(3, 1e3, (400, 3, 2)).astype(np.float32)
    values[7, 1, 1] = np.nan
    np.save(tmp_path / "x.npy", values)
    os.utime(tmp_path / "x.npy", ns=(LONG_AGO_NS, LONG_AGO_NS))
    expected = penstock.open(tmp_path / "x.npy").stats(by_axis=0)
    (saved,) = tmp_path.glob("x.npy.*stats.penstock")
    one = saved.read_bytes()
    saved.unlink()
    plan = plan_work("stats", tmp_path / "x.npy", tmp_path / "work", by_axis=0)
    assert len(plan) > 5
    for task in reversed(plan.list_missing()):
        plan.do(task)
    plan.commit()
    assert saved.read_bytes() == one
    assert penstock.open(tmp_path / "x.npy").load_stats() == expected
    with pytest.raises(UsageError, match="'stats' has no setting 'bins': leave it out, it has by"):
        plan_work("stats", tmp_path / "x.npy", tmp_path / "bins", bins=3)


def verify(data: Path, work: Path) -> str:
    """What a check of data says at its end."""
    plan = plan_work("verify", data, work)
    assert len(plan) > 1
    do_all(plan)
    return plan.commit()


def test_verify_images(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Damaged images are named, with exit code 1. The digest of whole ones is that of any copy, on
    any engine, by any tasks."""
    drawn = np.random.default_rng(0)
    for number in range(8):
        path = tmp_path / "pictures" / "ab"[number % 2] / f"{number}.jpg"
        path.parent.mkdir(parents=True, exist_ok=True)
        pixels = drawn.integers(0, 255, (40, 60, 3), dtype=np.uint8)
        PIL.Image.fromarray(pixels).save(path)
    broken = tmp_path / "pictures" / "b" / "3.jpg"
    shutil.copytree(tmp_path / "pictures", tmp_path / "copy")
    broken.write_bytes(broken.read_bytes()[:900])
    run("plan-work", "verify", tmp_path / "pictures", tmp_path / "work")
    run("work", tmp_path / "work")
    told = run("commit", tmp_path / "work", code=1).stderr
    assert (
        "pictures: 1 of 8 samples are damaged: restore them, `penstock index --force` it, and"
        in told
    )
    assert f"sample 5: {broken}" in told
    shutil.copy(tmp_path / "copy" / "b" / "3.jpg", broken)
    penstock.open(tmp_path / "pictures", index="rebuild")
    whole = verify(tmp_path / "pictures", tmp_path / "again")
    assert whole.startswith("8 samples are whole: digest ")
    monkeypatch.setattr(limits, "task_bytes", 10_000)
    monkeypatch.setattr(limits, "lengths_batch_bytes", 1)
    assert verify(tmp_path / "copy", tmp_path / "other") == whole
    (tmp_path / "copy" / "a" / "0.jpg").rename(tmp_path / "copy" / "a" / "9.jpg")
    penstock.open(tmp_path / "copy", index="rebuild")
    assert verify(tmp_path / "copy", tmp_path / "renamed") != whole


def test_verify_the_sequence(shards: Path, tmp_path: Path) -> None:
    """The digest is of the sequence of samples, too."""
    before = verify(shards, tmp_path / "work")
    (shards / "s-000.tar").rename(shards / "s-009.tar")
    assert verify(shards, tmp_path / "other") != before


def test_verify_checksums(shards: Path, tmp_path: Path) -> None:
    """Checksums are compared where the format has them, without being asked for."""
    done = convert(penstock.open(shards), tmp_path / "records", to="tfrecord", shards=3)
    path = Path(done.files[1])
    data = bytearray(path.read_bytes())
    data[data.index(bytes([2]) * 20)] ^= 1
    path.write_bytes(data)
    for written in (*done.files, tmp_path / "records"):
        os.utime(written, ns=(LONG_AGO_NS, LONG_AGO_NS))  # else it may be indexed again
    saved = Path(str(penstock.open(tmp_path / "records").sidecar))
    before = saved.read_bytes()
    penstock.open(tmp_path / "records")[10]  # not asked for, nothing is found
    with pytest.raises(penstock.errors.DataError) as error:
        verify(tmp_path / "records", tmp_path / "work")
    told = str(error.value).split("\n")
    assert "1 of 30 samples are damaged: restore them" in told[0]
    assert len(told) == 2
    assert saved.read_bytes() == before  # the index of training is not one with checksums
    assert str(path) in told[1]


def test_verify_a_file_that_was_cut(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It changed since the plan: its tasks fail by name, the rest is checked."""
    (tmp_path / "x.bin").write_bytes(bytes(range(200)) * 50)
    monkeypatch.setattr(limits, "task_bytes", 4000)
    plan = plan_work(
        "verify",
        tmp_path / "x.bin",
        tmp_path / "w",
        open_options={"dtype": "uint8", "shape": [100], "format": "records"},
    )
    assert len(plan) == 3

    plan.do(0)
    os.truncate(tmp_path / "x.bin", 5000)
    with pytest.raises(ChangedError, match="x.bin"):
        plan.do(1)


def test_text_that_cannot_be_encoded(tmp_path: Path) -> None:
    """The document's own number and place, not those within its task."""
    texts: list[Any] = draw_texts(1, 60)
    texts[41] = None
    tokenizer = train(tmp_path / "tokenizer.json", draw_texts(1, 60))
    write_lines(tmp_path / "documents.jsonl", texts)
    with pytest.raises(penstock.errors.FormatError) as alone:
        tokenize(penstock.open(tmp_path / "documents.jsonl"), tmp_path / "one", tokenizer)
    plan = plan_work(
        "tokenize", tmp_path / "documents.jsonl", tmp_path / "work", tokenizer=str(tokenizer)
    )
    failed = distribute(plan, ThreadPool)
    assert list(failed.values()) == [str(alone.value)]
    assert plan.list_missing() == list(failed)


# -- what goes wrong -------------------------------------------------------------------------------


def test_another_tokenizer_than_planned(tmp_path: Path) -> None:
    """Tokens of two tokenizers are never mixed."""
    tokenizer = train(tmp_path / "tokenizer.json", draw_texts(1, 60))
    write_lines(tmp_path / "documents.jsonl", draw_texts(1, 60))
    documents = tmp_path / "documents.jsonl"
    plan = plan_work("tokenize", documents, tmp_path / "work", tokenizer=str(tokenizer))
    plan.do(0)
    train(tokenizer, draw_texts(2, 90), 300)
    with pytest.raises(ChangedError, match="planned with other tokenizer than here: plan the"):
        WorkPlan.load(tmp_path / "work").do(1)
    again = plan_work("tokenize", documents, tmp_path / "work", tokenizer=str(tokenizer))
    assert again.list_missing() == [*range(len(again))]


def test_another_function_than_planned(
    shards: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Lengths of a function that was changed are measured anew, though its name is the same."""
    module = tmp_path / "rules_of_tasks.py"
    module.write_text("def measure(sample):\n    return 1\n")
    monkeypatch.syspath_prepend(tmp_path)
    plan = plan_work("lengths", shards, tmp_path / "work", by="rules_of_tasks:measure")
    do_all(plan)
    module.write_text("def measure(sample):\n    return 2\n")
    with pytest.raises(ChangedError, match="planned with other rule than here"):
        WorkPlan.load(tmp_path / "work").commit()
    again = plan_work("lengths", shards, tmp_path / "work", by="rules_of_tasks:measure")
    assert again.list_missing() == [*range(len(again))]


def test_a_module_that_raises(
    shards: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its error is its own, and no setting's."""
    (tmp_path / "rules_that_raise.py").write_text("raise TypeError('of this module')\n")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(TypeError, match="of this module"):
        plan_work("lengths", shards, tmp_path / "work", by="rules_that_raise:measure")


def test_a_function_that_raises(shards: Path, tmp_path: Path) -> None:
    """The task fails by the error of the function, and the others go on."""
    run("plan-work", "lengths", shards, tmp_path / "work", "--by", f"{__name__}:refuse_one")
    told = run("work", tmp_path / "work", code=1).stderr
    assert "KeyError: 'no such sample'" in told
    assert "1 of 1 tasks failed" in told


def refuse_one(sample: dict[str, Any]) -> int:
    raise KeyError("no such sample")


def test_renamed_fields_are_renamed_once(tmp_path: Path) -> None:
    """Fields that change their names with each other are those that one process has."""
    texts = draw_texts(1, 60)
    table = pa.table({"x": texts, "y": texts[::-1]})
    pyarrow.parquet.write_table(table, tmp_path / "x.parquet")
    tokenizer = train(tmp_path / "tokenizer.json", texts)
    options: dict[str, Any] = {"rename": {"x": "y", "y": "x"}}
    renamed = penstock.open(tmp_path / "x.parquet", **options)
    tokenize(renamed, tmp_path / "one", tokenizer, field="x")
    plan = plan_work(
        *("tokenize", tmp_path / "x.parquet", tmp_path / "work"),
        open_options=options,
        tokenizer=str(tokenizer),
        field="x",
    )
    do_all(plan)
    plan.commit()
    assert (tmp_path / "work" / "tokens.bin").read_bytes() == (tmp_path / "one.bin").read_bytes()


def test_pieces_of_another_size(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Parts of pieces of another size are of other lines."""
    monkeypatch.setattr(limits, "parsed_piece_bytes", 400)
    write_lines(tmp_path / "documents.jsonl", draw_texts(1, 60))
    os.utime(tmp_path / "documents.jsonl", ns=(LONG_AGO_NS, LONG_AGO_NS))
    do_all(plan_work("index", tmp_path / "documents.jsonl", tmp_path / "work"))
    monkeypatch.setattr(limits, "parsed_piece_bytes", 600)
    stale = WorkPlan.load(tmp_path / "work")
    with pytest.raises(UsageError, match="with the same limits everywhere"):
        stale.commit()
    again = plan_work("index", tmp_path / "documents.jsonl", tmp_path / "work")
    assert again.list_missing() == [*range(len(again))]


def test_files_that_were_just_written(tmp_path: Path) -> None:
    """A file that may be written again without a sign of it is parsed by each plan."""
    path = tmp_path / "x.jsonl"
    path.write_text('{"a": 1}\n{"a": 2}\n')
    do_all(plan_work("index", path, tmp_path / "work"))
    assert plan_work("index", path, tmp_path / "work").list_missing() == [0]


def test_a_destination_that_another_one_took(shards: Path, tmp_path: Path) -> None:
    """A worker that comes late writes nothing into another conversion."""
    settings: dict[str, Any] = {"to": "tar", "shards": 3, "name": "s"}
    plan = plan_work("convert", shards, tmp_path / "work", **settings)
    plan.do(0)
    write_shard(tmp_path / "other", 7)
    taken = tmp_path / "work" / "shards"
    convert(penstock.open(tmp_path / "other"), taken, **settings, force=True)
    before = {path.name: path.read_bytes() for path in taken.iterdir() if path.is_file()}
    with pytest.raises(UsageError, match="holds a conversion of other data"):
        plan.do(1)
    assert {p.name: p.read_bytes() for p in taken.iterdir() if p.is_file()} == before


def test_lengths_of_a_run_that_was_stopped(
    shards: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What an interrupted run left beside the index is not mixed with what tasks measured."""
    monkeypatch.setattr(limits, "lengths_chunk_bytes", 100)

    def stop(done: int, _: int) -> None:
        if done >= 10:
            raise KeyboardInterrupt

    monkeypatch.setattr(f"{__name__}.OFFSET", 5)
    with pytest.raises(KeyboardInterrupt):
        measure_lengths(penstock.open(shards), count_bytes, processes=1, progress=stop)
    monkeypatch.setattr(f"{__name__}.OFFSET", 0)
    plan = plan_work("lengths", shards, tmp_path / "work", by=f"{__name__}:count_bytes")
    do_all(plan)
    plan.commit()
    assert penstock.open(shards).lengths.tolist() == [20 + sample for sample in range(5)] * 6


def test_a_task_that_fails_is_named_and_the_rest_goes_on(shards: Path, tmp_path: Path) -> None:
    """The end says which and exits with 1; the next run does only those."""
    good = (shards / "s-003.tar").read_bytes()
    (shards / "s-003.tar").write_bytes(good[:700])
    os.utime(shards / "s-003.tar", ns=(LONG_AGO_NS, LONG_AGO_NS))
    run("plan-work", "index", shards, tmp_path / "work")
    told = run("work", tmp_path / "work", code=1).stderr
    assert f"task 3 (s-003.tar): {shards}/s-003.tar" in told
    assert "1 of 6 tasks failed: the same command does only those" in told
    (shards / "s-003.tar").write_bytes(good)
    os.utime(shards / "s-003.tar", ns=(LONG_AGO_NS, LONG_AGO_NS))
    assert f"{shards}/s-003.tar: the file has" in run("work", tmp_path / "work", code=1).stderr
    assert "6 tasks, 1 to do" in run("plan-work", "index", shards, tmp_path / "work").stdout
    run("work", tmp_path / "work")
    run("commit", tmp_path / "work")
    assert len(penstock.open(shards, index="read")) == 30


def test_files_that_changed_since_the_plan(shards: Path, tmp_path: Path) -> None:
    """A task, and the commit, name the file; nothing stale becomes an index."""
    plan = plan_work("index", shards, tmp_path / "work")
    plan.do(0)
    os.utime(shards / "s-001.tar")
    with pytest.raises(ChangedError, match=r"s-001\.tar: .* since the work was planned: plan it"):
        plan.do(1)
    os.utime(shards / "s-001.tar", ns=(LONG_AGO_NS, LONG_AGO_NS))
    do_all(plan)
    os.utime(shards / "s-000.tar")
    with pytest.raises(ChangedError, match=r"s-000\.tar was written to after it was indexed"):
        plan.commit()
    assert not Path(f"{shards}.penstock").exists()


def test_damaged_part(shards: Path, tmp_path: Path) -> None:
    """A part that is not what was written is named, and done again once it is removed."""
    plan = plan_work("index", shards, tmp_path / "work")
    do_all(plan)
    part = Path(plan.find_part(2))
    data = bytearray(part.read_bytes())
    data[-3] ^= 1
    part.write_bytes(data)
    with pytest.raises(SidecarError, match=f"{part}: .*remove it, and run `penstock work` again"):
        plan.commit()
    part.unlink()
    assert plan.list_missing() == [2]


def test_another_plan_in_the_folder(shards: Path, tmp_path: Path) -> None:
    """It is refused before anything is written: the plan that is there goes on."""
    lengths = plan_work("lengths", shards, tmp_path / "lengths", by=f"{__name__}:count_bytes")
    write_shard(tmp_path / "other", 0)
    with pytest.raises(UsageError, match="holds a plan with source"):
        plan_work("lengths", tmp_path / "other", tmp_path / "lengths", by="bytes")
    do_all(lengths)
    lengths.commit()
    with pytest.raises(UsageError, match=r"in .*data: choose one outside"):
        plan_work("index", shards, shards / "work")
    with pytest.raises(UsageError, match="has no setting 'by'"):
        plan_work("index", shards, tmp_path / "index", by="bytes")
    with pytest.raises(UsageError, match="to is not given"):
        plan_work("convert", shards, tmp_path / "shards", shards=3)
    plan_work("index", shards, tmp_path / "work")
    with pytest.raises(
        UsageError, match=r"holds a plan with options \{\}, and now it is .*missing"
    ):
        plan_work("index", shards, tmp_path / "work", open_options={"missing": "empty"})
    with pytest.raises(MissingError, match="holds no plan of work"):
        WorkPlan.load(tmp_path)


def test_another_penstock(shards: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A worker of another version names both."""
    plan = plan_work("index", shards, tmp_path / "work")
    monkeypatch.setattr("penstock.tasks.work_plan.__version__", "9.9.9")
    wanted = rf"planned by penstock {penstock.__version__} on .*, and this is penstock 9\.9\.9 on"
    with pytest.raises(UsageError, match=wanted):
        plan.do(0)


class Act:
    def __reduce__(self) -> Any:
        return os.mkdir, ("/nowhere/at/all",)


@pytest.mark.parametrize("value", [Act(), [print], {"a": pickle.Unpickler}])
def test_parts_hold_tables_and_nothing_that_acts(value: Any) -> None:
    """Whoever may write to the folder cannot have a worker call anything."""
    with pytest.raises(UsageError, match="x: plan the work anew|cannot be read"):
        unpack(pack(value), "x")


def test_parts_hold_what_formats_make() -> None:
    tables = [np.arange(3), penstock.Index, {"a": (1, "b", None)}]
    assert [*unpack(pack(tables[0]), "x")] == [0, 1, 2]
    assert unpack(pack(tables[2]), "x") == tables[2]


def test_engine_whose_workers_die(shards: Path, tmp_path: Path) -> None:
    """A pool that breaks is made anew; where nothing gets done any more, the task is named."""
    plan = plan_work("index", shards, tmp_path / "work")
    made: list[Executor] = []

    def start() -> Executor:
        pool = ProcessPoolExecutor(2, get_context("spawn"))
        made.append(pool)
        if len(made) == 1:  # a worker dies
            assert isinstance(pool.submit(os._exit, 1).exception(), BrokenExecutor)
        return pool

    assert distribute(plan, start) == {}
    assert not plan.list_missing()
    assert len(made) == 2


class Counting(ThreadPoolExecutor):
    """An engine of two threads that notes how many tasks each submission has; one that has a task
    of `deadly` fails, as an engine's own."""

    def __init__(self, deadly: tuple[Any, ...] | None = None) -> None:
        super().__init__(2)
        self.deadly = deadly
        self.sizes: list[int] = []

    def submit(self, function: Any, /, *given: Any, **named: Any) -> Any:
        if given:
            self.sizes.append(len(given[0]))
            if self.deadly in given[0]:
                return super().submit(int, "no number")
        return super().submit(function, *given, **named)


def test_short_tasks_are_submitted_together() -> None:
    """All are done once, in a few submissions; the last ones are small again."""
    pool, done = Counting(), list[int]()
    failed = spread({n: (done.append, n) for n in range(500)}, lambda: pool, str)
    assert failed == {}
    assert sorted(done) == list(range(500))
    assert len(pool.sizes) < 60
    assert pool.sizes[0] == pool.sizes[-1] == 1


def test_tasks_that_take_long_are_submitted_one_by_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """A submission ends after its time, and tasks that it was given and did not begin are done."""
    monkeypatch.setattr(limits, "task_s", 0.0)
    pool, done = Counting(), list[int]()
    failed = spread({n: (done.append, n) for n in range(500)}, lambda: pool, str)
    assert failed == {}
    assert sorted(done) == list(range(500))
    assert max(pool.sizes) <= 2
    assert len(pool.sizes) >= 490


@pytest.mark.parametrize("retries", [0, 2])
def test_task_at_which_the_engine_fails(retries: int) -> None:
    """It alone fails, and those that were submitted with it are done."""
    done = list[int]()
    calls = {n: (done.append, n) for n in range(500)}
    failed = spread(calls, lambda: Counting(calls[317]), str, retries)
    assert list(failed) == [317]
    assert failed[317].startswith("the engine failed: ValueError: invalid literal")
    assert sorted(done) == [n for n in range(500) if n != 317]


def test_killed_at_work(shards: Path, tmp_path: Path) -> None:
    """A worker that is killed while it writes leaves no part, and the next one does the task."""
    expected = index_bytes(shards)
    plan = plan_work("index", shards, tmp_path / "work")
    program = (
        "import os, signal, sys, penstock.index.sidecar as sidecar\n"
        "from penstock.tasks import WorkPlan\n"
        "os.replace = lambda *_: os.kill(os.getpid(), signal.SIGKILL)\n"
        "WorkPlan.load(sys.argv[1]).do(0)\n"
    )
    done = subprocess.run([sys.executable, "-c", program, tmp_path / "work"], check=False)
    assert done.returncode == -signal.SIGKILL
    assert 0 in plan.list_missing()
    do_all(plan)
    plan.commit()
    assert Path(f"{shards}.penstock").read_bytes() == expected
