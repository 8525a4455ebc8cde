"""The run of all studies: what is left out, and why; studies that fail or last."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from benchmarks import figures, record
from benchmarks.figures import STUDIES, Study, run_studies
from benchmarks.pairing import ROW_VARIABLE
from benchmarks.sections import SECTIONS


@pytest.fixture
def results(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """A folder for records, with an old one. Nobody waits for a quiet machine."""
    monkeypatch.setattr(figures, "QUIET_S", 0)
    monkeypatch.setattr(record, "RESULTS", tmp_path / "results")
    (tmp_path / "results").mkdir()
    (tmp_path / "results" / "x.json").write_text("{}")
    return tmp_path


def test_every_record_but_those_of_a_gpu_has_a_study() -> None:
    assert {study.record for study in STUDIES} == {one.record for one in SECTIONS} - {"gpu"}


@pytest.mark.parametrize(
    ("command", "minutes", "needs", "why"),
    [
        ("timeit -n 1 -r 1 while[1]:pass", 0.02, (), "it took more than 0.02 minutes"),
        ("json.tool nothing", 1.0, (), "it ended with code"),
        ("benchmarks", 1.0, ("photos",), "no photographs were given: --photos FOLDER"),
        ("benchmarks", 1.0, ("wheel",), "no wheel was given: --wheel FILE"),
    ],
)
def test_what_cannot_be_measured_says_why(
    results: Path, command: str, minutes: float, needs: tuple[str, ...], why: str
) -> None:
    """An old record is not left in its place."""
    run_studies([Study("x", command, minutes, needs)], {}, results)
    left = json.loads((results / "results" / "x.json").read_text())
    assert left["rows"] == []
    assert left["configuration"]["note"].startswith(f"not measured: {why}")


@pytest.mark.parametrize("after", ["while 1: pass", "raise SystemExit(3)"])
def test_rows_that_a_study_wrote_before_its_end_are_kept(results: Path, after: str) -> None:
    """The record says why there are no more."""
    study = results / "study.py"
    study.write_text(
        "from benchmarks import record\n"
        f"record.RESULTS = record.Path({str(results / 'results')!r})\n"
        "rows = [record.Row('a', 1.0, 's')]\n"
        f"record.Record('x', 0, {{}}, rows).write()\n{after}\n"
    )
    command = f"timeit -n 1 -r 1 exec(open({str(study)!r}).read())"
    run_studies([Study("x", command, 0.1)], {}, results)
    left = json.loads((results / "results" / "x.json").read_text())
    assert [row["name"] for row in left["rows"]] == ["a"]
    assert left["configuration"]["note"].startswith("later rows were not measured: it ")


@pytest.mark.parametrize(("free_gb", "is_short"), [(14, True), (16, False)])
def test_a_full_disk_leaves_a_study_out(
    free_gb: int, is_short: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    usage = shutil.disk_usage("/")._replace(free=free_gb * 10**9)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage)
    lack = figures.find_lack(Study("x", "benchmarks", 1.0), {})
    assert lack == (
        f"{free_gb} GB of room on the disk are not 15: empty bench-data" if is_short else ""
    )


def test_computed_studies_run_side_by_side(
    results: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """They come first, two at a time; those that are timed run alone."""
    names = ["a", "b", "timed", "c"]
    studies = [Study(name, "json.tool nothing", 1.0, is_timed=name == "timed") for name in names]
    run_studies(studies, {}, results)
    words = [line.replace(":", " ").split() for line in capsys.readouterr().out.splitlines()]
    begun = [line[1] for line in words if line[0].startswith("[")]
    assert begun == ["a", "b", "c", "timed"]
    assert [line[0] for line in words].index("a") > [line[1] for line in words].index("b")


def test_rows_have_less_time_if_studies_would_not_fit() -> None:
    """Rows shrink as long as that lasts, and never to so little that no turns fit."""
    full = figures.ROW_S
    assert figures.choose_row_s(100, 90) == figures.choose_row_s(100, 0) == full
    assert figures.ROW_S_LEAST < figures.choose_row_s(90, 100) < 0.9 * full
    assert figures.choose_row_s(-1, 100) == figures.choose_row_s(1, 100) == figures.ROW_S_LEAST


@pytest.mark.parametrize(("whole_s", "told"), [(1000, "2.50 2.50 "), (1, "0.50 0.50 ")])
def test_a_study_is_told_the_time_for_a_row(
    results: Path, whole_s: float, told: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By what the studies took when their records were made, here a minute and two."""
    monkeypatch.setattr(figures, "WHOLE_S", whole_s)
    monkeypatch.setattr(figures, "ROW_S", 2.5)
    script, found = results / "study.py", results / "told"
    script.write_text(
        f"import os\nwith open({str(found)!r}, 'a') as told:\n"
        f"    told.write(os.environ[{ROW_VARIABLE!r}] + ' ')\n"
    )
    command = f"timeit -n 1 -r 1 exec(open({str(script)!r}).read())"
    for name, seconds in (("x", 60), ("y", 120)):
        (results / "results" / f"{name}.json").write_text(json.dumps({"seconds": seconds}))
    monkeypatch.setattr(figures, "summarize", str)
    run_studies([Study("x", command, 1.0), Study("y", command, 1.0)], {}, results)
    assert found.read_text() == told


def test_a_changed_tree_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(figures, "list_changes", lambda: ["src/a.py", "src/b.py"])
    monkeypatch.setattr("sys.argv", ["figures", "--only", "columns"])
    with pytest.raises(SystemExit, match=r"src/a.py and 1 more are not committed"):
        figures.main()
