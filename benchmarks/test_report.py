"""Pages of figures: what they print, when a row has a verdict, and that they are up to date."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest

from benchmarks import plot, report
from benchmarks.record import RESULTS, Record, Row, tree_hash
from benchmarks.sections import REASONS, SECTIONS, Reason, Section

pytestmark = pytest.mark.skipif(not RESULTS.exists(), reason="an archive without the records")
ROW: dict[str, Any] = {
    "name": "a | b",
    "value": 2.0,
    "unit": "s",
    "floor": 1.0,
    "ratio": 2.0,
    "target": 1.5,
    "met": True,
    "low": 1.95,
    "high": 2.05,
    "note": "",
}
RECORD: dict[str, Any] = {
    "name": "x",
    "commit": {"hash": "0123456789", "dirty": False},
    "load": {"before": [0.1, 0, 0], "steal": 0.0},
}
SECTION = Section("x", "X", "make x", "words.")


def cells(line: str) -> list[str]:
    """The cells of a row of a table."""
    return [cell.strip() for cell in line.replace("\\|", "/").strip("|").split("|")]


def test_the_page_is_what_the_command_writes() -> None:
    """Apart from the remark that depends on the checkout, docs/performance.md is up to date."""
    written = report.performance_page(tree_hash())
    assert report.ignore_tree(report.PAGE.read_text()) == report.ignore_tree(written)


def test_causes_are_of_records_and_rows_that_there_are() -> None:
    """A line of shortfalls.md that finds no row explains nothing; the first line counts."""
    causes = report.read_causes()
    assert len(causes) > 10
    for record, pattern, why in causes:
        assert why
        path = RESULTS / f"{record}.json"
        if path.exists():
            rows = [row["name"] for row in json.loads(path.read_text())["rows"]]
            line = (record, pattern, why)
            assert any(report.find_cause([line], record, row) == why for row in rows)
    assert report.find_cause(causes, "bench", "no such row") == "not known"


def test_the_figures_of_the_readme_are_what_the_command_writes() -> None:
    """Figures are of this tree, or left out; the plot is drawn from the records."""
    text = report.README.read_text()
    written = {report.insert_reasons(text, report.reasons_list(tree)) for tree in ("", None)}
    assert text in written
    assert plot.PATH.read_text() in {plot.draw_speed(tree) for tree in (tree_hash(), None)}


@pytest.mark.parametrize(
    ("load", "tree", "changes", "is_shown"),
    [
        (0.1, "this", {}, True),
        (2.0, "this", {}, False),
        (0.1, "other", {}, False),
        (0.1, "this", {"low": 1.8}, False),
        (0.1, "this", {"ratio": None, "met": None}, False),
        (0.1, "this", {"name": "another"}, False),
    ],
)
def test_a_figure_of_the_readme_is_of_this_tree_quiet_and_narrow(
    load: float, tree: str, changes: dict[str, Any], is_shown: bool,
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path,
) -> None:  # fmt: skip
    """Else words stand in its place, as for a row that was not measured."""
    quiet = {"before": [load, 0, 0], "steal": 0.0}
    record = RECORD | {"rows": [ROW | changes], "tree": tree, "load": quiet}
    (tmp_path / "x.json").write_text(json.dumps(record))
    monkeypatch.setattr("benchmarks.record.RESULTS", tmp_path)
    reason = Reason("fast: {} times", "fast", "x", ROW["name"])
    line = report.write_reason(reason, "this")
    assert line == ("* fast: 2 times" if is_shown else "* fast")
    assert len(REASONS) == 5


def test_every_record_has_a_section() -> None:
    """No section lacks its record, and no record in the repository is left out."""
    records = {path.stem for path in RESULTS.glob("*.json")}
    committed = subprocess.run(
        ["git", "-C", RESULTS, "ls-files", "*.json"], capture_output=True, text=True, check=False
    )
    sections = {section.record for section in report.list_sections()}
    assert sections <= records
    if committed.returncode == 0:  # a checkout, not an archive of the sources
        assert sections == {Path(name).stem for name in committed.stdout.split()}


@pytest.mark.parametrize("section", report.list_sections(), ids=lambda section: section.record)
def test_every_row_is_printed_and_targets_have_the_side_that_the_record_took(
    section: Section,
) -> None:
    """Rows without a target are printed, too; `met` follows from what is printed."""
    record = report.read_record(section.record)
    lines = list(report.section_lines(section, record, "0" * 16))
    names = [cells(line)[0] for line in lines if line.startswith("| ")][1:]
    assert names == [row["name"].replace("|", "/") for row in record["rows"]]
    for row in record["rows"]:
        target = report.find_target(section, row)
        measured = row["value"] if row["ratio"] is None else row["ratio"]
        if target is None or target.side == "either" or row["met"] is None:
            continue
        assert target.holds(measured) == row["met"], row["name"]


@pytest.mark.parametrize(
    ("name", "side"),
    [
        ("1,594,963,969 windows: open", "at most"),
        ("... memory", "at most"),
        ("... plan a window of one run", "at most"),
        ("decodes of a chunk an epoch, exact, 25 % decoded", "at most"),
        ("windows, exact, 25 % decoded / xbatcher + DataLoader", "at least"),
        ("statistics of Zarr (zstd) / decoding, 2 threads", "at least"),
    ],
)
def test_rows_of_arrays_have_the_side_of_their_target(name: str, side: str) -> None:
    """Also before their record is there."""
    (section,) = [section for section in SECTIONS if section.record == "arrays"]
    target = report.find_target(section, {**ROW, "name": name})
    assert target is not None
    assert target.side == side
    record = {**RECORD, "date": "", "machine": dict.fromkeys(("cores", "cpu", "kernel", "python"))}
    record |= {"configuration": {}, "doubts": [], "rows": [{**ROW, "name": name}]}
    lines = list(report.section_lines(section, record, ""))
    assert cells(lines[-1])[0] == name


@pytest.mark.parametrize(
    ("changes", "load", "verdict"),
    [
        ({}, 0.1, "met"),
        ({"met": False}, 0.1, "**missed**"),
        ({"target": None, "met": None}, 0.1, "-"),
        ({"ratio": None, "met": None}, 0.1, "*not measured*"),
        ({}, 1.0, "*unstable*: load 1.00"),
        ({"met": False}, 1.0, "*unstable*: load 1.00"),
        ({"low": 1.5, "high": 2.5}, 0.1, "*unstable*: interval 50% wide"),
        ({"low": 1.5, "high": 2.5}, 1.0, "*unstable*: load 1.00, interval 50% wide"),
    ],
)
def test_a_verdict_needs_an_idle_machine_and_a_narrow_interval(
    changes: dict[str, Any], load: float, verdict: str
) -> None:
    """If one is missing, the reason stands in the verdict's place."""
    record = {**RECORD, "load": {"before": [load, 0, 0], "steal": 0.0}}
    assert report.judge({**ROW, **changes}, record) == verdict


def test_stolen_time_takes_the_verdict() -> None:
    """A host that took processor time is named as the reason."""
    record = {**RECORD, "load": {"before": [0.1, 0, 0], "steal": 0.05}}
    assert report.judge(ROW, record) == "*unstable*: the host took 5.0% of the processor time"


def test_load_leaves_a_computed_row_its_verdict() -> None:
    """A row that is computed has its verdict at any load."""
    record = {**RECORD, "load": {"before": [9.0, 0, 0], "steal": 0.05}}
    assert report.judge({**ROW, "is_computed": True}, record) == report.judge(ROW, RECORD)


def test_a_row_is_one_line_of_the_table() -> None:
    """Bars in names do not end cells, and zeros at the end of a ratio stay."""
    line = report.row_line(SECTION, {**ROW, "note": "target is an upper limit; eight"}, RECORD)
    assert cells(line) == ["a / b", "2 s", "1", "2.00 (1.95..2.05)", "≤ 1.5", "met", "eight"]


def test_a_ratio_near_one_shows_its_side() -> None:
    """A miss by a millionth is not printed as one."""
    assert [report.near_one(ratio) for ratio in (1.0, 1.00002371, 0.9988, 1.02)] == [
        "1.00",
        "1.000024",
        "0.9988",
        "1.02",
    ]


@pytest.fixture
def sections(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[Section]:
    """Three records: two of the tree "aa", one of "bb", whose only row falls short."""
    for name, tree, met in (("x", "aa", True), ("y", "aa", True), ("z", "bb", False)):
        facts = {"name": name, "tree": tree, "date": "2026-11-28T07:06:05Z", "doubts": []}
        facts |= {"machine": dict.fromkeys(("cores", "cpu", "kernel", "python"))}
        rows = [ROW | {"name": f"row of {name}", "met": met, "note": "of two"}]
        earlier = {"date": "", "tree": tree, "rows": {f"row of {name}": [2, 1.9, 2.1]}}
        record = RECORD | facts | {"configuration": {}, "rows": rows, "earlier": earlier}
        (tmp_path / f"{name}.json").write_text(json.dumps(record))
    monkeypatch.setattr("benchmarks.record.RESULTS", tmp_path)
    monkeypatch.setattr(report, "RESULTS", tmp_path)
    made = [Section(name, name, f"make {name}", "words.") for name in "xyz"]
    monkeypatch.setattr(report, "SECTIONS", made)
    return made


@pytest.mark.parametrize(
    ("checkout", "of"), [("aa", "xy"), ("bb", "z"), ("cc", "xy")], ids=["most", "few", "none"]
)
def test_a_record_of_another_tree_is_refused(
    sections: list[Section], checkout: str, of: str
) -> None:
    """All figures are of the checkout's tree, or, if no record is, of that of most records."""
    page = report.performance_page(checkout)
    lines = [cells(line) for line in page.splitlines() if line.startswith("| row of ")]
    for name, *found in lines:
        if name[-1] in of:
            shown = ["2 s", "1", "2.00 (1.95..2.05)", "≥ 1.5"]
            assert found == [*shown, "**missed**" if name == "row of z" else "met", "of two"]
        else:
            assert found == ["- s", "-", "-", "≥ 1.5", "*not measured*", ""]
    assert len(lines) == 3
    refused = [name for name in "xyz" if name not in of]
    assert f"Not measured on it: {', '.join(refused)}." in page
    assert ("| z | row of z |" in page) == ("z" in of), "what was not measured cannot fall short"
    assert (report.CHANGED in page) == (checkout == "cc")


def test_a_change_of_the_sources_alone_changes_no_figure(sections: list[Section]) -> None:
    """The page need not be written anew with each commit."""
    page = report.performance_page("aa")
    assert report.ignore_tree(report.performance_page("cc")) == page


def test_a_record_names_its_commit() -> None:
    """And its tree, or that it is refused."""
    of_tree = {**RECORD, "tree": "aa"}
    assert report.describe_tree(of_tree, "aa") == "Record of commit 0123456, sources aa."
    assert report.describe_tree(of_tree, "bb").startswith("Not measured on this tree.")
    assert report.describe_tree(RECORD, "aa").startswith("Not measured on this tree.")
    dirty = {**of_tree, "commit": {"hash": "0123456789", "dirty": True}}
    assert "with uncommitted changes" in report.describe_tree(dirty, "aa")


def test_the_tree_is_named_by_its_sources(tmp_path: Path) -> None:
    """Contents and paths of the sources count; other folders and compiled files do not."""
    (tmp_path / "src").mkdir()
    (tmp_path / "cpp").mkdir()
    file = tmp_path / "src" / "a.py"
    file.write_text("1")
    first = tree_hash(tmp_path)
    (tmp_path / "docs").mkdir()
    (tmp_path / "docs" / "a.md").write_text("2")
    (tmp_path / "src" / "__pycache__").mkdir()
    (tmp_path / "src" / "__pycache__" / "a.pyc").write_text("3")
    assert tree_hash(tmp_path) == first
    file.rename(tmp_path / "cpp" / "a.py")
    moved = tree_hash(tmp_path)
    (tmp_path / "cpp" / "a.py").write_text("4")
    assert len({first, moved, tree_hash(tmp_path)}) == 3


def test_words_beside_the_broker_say_how_unmanaged_jobs_fare() -> None:
    """The number of mixes in which no limits tie or win is counted, not typed."""

    def row(name: str, value: float) -> dict[str, Any]:
        return {**ROW, "name": name, "value": value, "ratio": value}

    rows = [
        row(f"{mix}: {mode}, {what} / even", value)
        for mix, mode, value in (
            ("m", "unmanaged", 2.0),
            ("m", "broker, utilisation", 1.0),
            ("n", "unmanaged", 1.0),
            ("n", "broker, utilisation", 2.0),
        )
        for what in ("total throughput", "accelerators busy")
    ]
    assert "in 1 of 2 mixes" in report.compare_unmanaged(rows)
    assert "gained nothing" not in report.compare_unmanaged(rows)
    assert "gained nothing" in report.compare_unmanaged(rows[:4])
    assert report.compare_unmanaged([row | {"value": None} for row in rows]) == ""


def test_a_row_that_differs_from_the_record_before_says_so() -> None:
    """The line below the table counts intervals that overlap; rows without one do not count."""
    before = {"date": "2026-11-28T07:06:05Z", "tree": "that", "rows": {"a": [2, 1.9, 2.0]}}
    before["rows"]["b"] = [1.5, 1.4, 1.6]
    rows = [ROW | {"name": name} for name in "abc"]
    rows.append(ROW | {"name": "b", "low": None, "high": None})
    quiet = {"before": [0.1, 0, 0], "steal": 0.0}
    record = RECORD | {"rows": rows, "tree": "this", "load": quiet, "earlier": before}
    notes = [cells(report.row_line(SECTION, row, record))[-1] for row in rows]
    assert notes == ["", "1.50 on 2026-11-28", "", ""]
    line = "Beside the record of 2026-11-28 07:06, of an earlier tree: 1 of 2 intervals overlap."
    assert report.compare_earlier(record) == line
    same = record | {"earlier": before | {"tree": "this"}}
    assert "of the same tree" in report.compare_earlier(same)
    assert report.compare_earlier(record | {"earlier": None}) == ""


def test_a_record_keeps_what_the_one_before_found(tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.setattr("benchmarks.record.RESULTS", tmp_path)
    first = Record("x", 0, {})
    first.rows += [Row("a", 2.0, "s", 1.0, 2.0, low=1.9, high=2.1), Row("b", 1.0, "s")]
    first.write()
    first.write()  # as studies do that are cut off
    second = Record("x", 0, {})
    second.write()
    assert first.earlier is None
    earlier = json.loads((tmp_path / "x.json").read_text())["earlier"]
    assert earlier["rows"] == {"a": [2.0, 1.9, 2.1]}
    assert earlier["tree"] == first.tree
