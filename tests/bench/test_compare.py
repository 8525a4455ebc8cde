"""Results compared: what is read, what differs, and what chance leaves of it."""

from __future__ import annotations

import copy
import json
import sys
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.cli import app
from penstock.errors import FormatError, MissingError
from penstock_bench.results import compare, recorded
from penstock_bench.results.dlio import read_record
from tests.bench import records as made


def runs_of(*values: dict[str, Any]) -> list[recorded.RecordedRun]:
    return [run for record in recorded.records(values) for run in record.runs]


def row_of(runs: list[recorded.RecordedRun], name: str) -> compare.MetricRow:
    return next(row for row in compare.compare_runs(runs) if row.metric.name == name)


# -- chance ----------------------------------------------------------------------------------------


@pytest.mark.long
@pytest.mark.parametrize("epochs", [3, 25])
def test_runs_alike_are_within_noise(epochs):
    """About 95 % of the pairs of runs that differ by their seed alone have intervals with 1 in
    them, for means and for percentiles, by pieces of steps and by epochs."""
    shape: dict[str, Any] = {"ranks": 2, "epochs": epochs, "steps": 240 // epochs}
    shape |= {"evaluation": False, "checkpoints": False, "wait_ms": (8.0,)}
    pairs = 40
    noise = {"samples/s": 0, "wait for a batch, p95": 0}
    for seed in range(pairs):
        first, second = (made.record(("a",), seed=2 * seed + at, **shape) for at in (0, 1))
        for row in compare.compare_runs(runs_of(first, second)):
            if row.metric.name in noise:
                ratio = row.ratios[1]
                assert ratio is not None
                noise[row.metric.name] += ratio.clear is False
    for name, count in noise.items():
        assert 0.85 * pairs <= count, f"{name}: {count} of {pairs}"


def test_a_true_difference_is_found():
    """Waits that are 1.5 times as long are more than noise, and the interval holds the truth."""
    first = made.record(("a",), wait_ms=(8.0,), spread=0.5, steps=200, evaluation=False)
    second = made.record(("b",), wait_ms=(12.0,), spread=0.5, steps=200, seed=1, evaluation=False)
    row = row_of(runs_of(first, second), "wait for a batch, p50")
    ratio = row.ratios[1]
    assert ratio is not None
    assert ratio.low is not None
    assert ratio.high is not None
    assert ratio.low < 1.5 < ratio.high
    assert ratio.high / ratio.low < 1.2
    assert compare.judge_ratio(row, 1) == "worse"


@given(seed=st.integers(0, 1000), steps=st.integers(5, 60), ranks=st.integers(1, 5))
@settings(max_examples=15)
def test_drawn_figures_are_those_of_the_steps(seed, steps, ranks):
    """Before anything is drawn anew, rate, utilisation and percentiles are those of the measured
    steps, worked out here from the record by hand."""
    record = made.record(("a",), seed=seed, steps=steps, ranks=ranks, evaluation=False)
    drawn = compare.Resampled(*runs_of(record), 0)
    trained = record["runs"][0]["epochs"]
    rows = [rank for epoch in trained for rank in epoch["ranks"]]
    waits = np.array([rank["wait_s"][1:] for rank in rows])
    clock = waits + [rank["computed_s"][1:] for rank in rows]
    clock = clock + [rank["barrier_s"][1:] for rank in rows]
    computing = np.minimum(
        [rank["compute_s"][1:] for rank in rows], [rank["computed_s"][1:] for rank in rows]
    )
    assert drawn.share(0)[0] == pytest.approx(computing.sum() / clock.sum(), rel=1e-9)
    assert drawn.rate[0] == pytest.approx(7 * ranks * clock.size / clock.sum(), rel=1e-9)
    for percent in (50, 95, 99):
        exact = np.percentile(waits, percent, method="inverted_cdf")
        assert drawn.percentile(percent)[0] == pytest.approx(exact, rel=0.013)


def test_what_is_drawn_is_said():
    """Intervals name what they are of; too few steps have none."""
    many = runs_of(made.record(("a",), epochs=20, steps=3))
    few = runs_of(made.record(("a", "b"), epochs=2, steps=50))
    one = runs_of(made.record(("a", "b"), epochs=1, steps=2))
    assert "over 20 epochs" in compare.basis(many)
    assert "40 pieces of up to 3 steps in 2 epochs" in compare.basis(few)
    assert "too few steps" in compare.basis(one)
    ratio = row_of(one, "samples/s").ratios[1]
    assert ratio is not None
    assert ratio.clear is None
    assert row_of(few, "peak memory").ratios[1].low is None  # type: ignore[union-attr]


def test_a_cold_first_epoch_is_no_noise():
    """An interval of a run with a slow first epoch is about as narrow as without it."""
    cold = runs_of(*(made.record(("a",), epochs=4, steps=200, seed=seed) for seed in (0, 1)))
    ratio = row_of(cold, "samples/s").ratios[1]
    assert ratio is not None
    assert ratio.high - ratio.low < 0.02  # type: ignore[operator]


# -- whether it is fair ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("path", "value", "serious"),
    [
        ("workload.reader.batch_size", 8, True),
        ("workload.dataset.record_length_bytes", 1, True),
        ("workload.train.computation_time.mean", 0.5, True),
        ("ranks", 2, True),
        ("seed", 7, False),
        ("compat", True, False),
        ("machine.cpu", "another", False),
        ("versions.numpy", "1.0", False),
        ("workload.reader.read_threads", 9, False),
        ("workload.train.seed", 9, False),
        ("workload.dataset.data_folder", "/elsewhere", None),
        ("machine.load_before", 1.9, None),
        ("started", "2020-01-01T00:00:00+00:00", None),
    ],
)
def test_differences_are_named(path, value, serious):
    """Each difference has its name; workload and ranks are serious, places and times nothing."""
    first = made.record(("a",), steps=2)
    second = copy.deepcopy(first)
    *above, last = path.split(".")
    place = second
    for key in above:
        place = place[key]
    place[last] = value
    found = compare.find_differences(recorded.records([first, second]))
    if serious is None:
        assert found == ()
        return
    [difference] = found
    assert difference.name == path.removeprefix("workload.").removesuffix(".mean")
    assert difference.serious is serious
    assert str(value) in str(difference)


# -- what is read ----------------------------------------------------------------------------------


def test_records_are_read_from_files_and_folders(tmp_path):
    values = made.record(("a",), steps=2)
    (tmp_path / "record.json").write_text(json.dumps(values))
    assert read_record(tmp_path) == values
    assert read_record(tmp_path / "record.json") == values


@pytest.mark.parametrize(
    ("text", "kind", "said"),
    [
        ("{", FormatError, "no JSON"),
        ("[]", FormatError, "no record of penstock bench"),
        ('{"penstock_bench": 2, "runs": []}', FormatError, "version 2"),
        ('{"penstock_bench": 1, "runs": 3}', FormatError, "'runs' is no list"),
        (None, MissingError, "record.json does not exist"),
    ],
)
def test_what_is_no_record_is_named(text, kind, said, tmp_path):
    path = tmp_path / "record.json"
    if text is not None:
        path.write_text(text)
    with pytest.raises(kind, match=said) as raised:
        read_record(path)
    assert str(path) in str(raised.value)


def dlio_folder(
    folder: Path, steps: int = 4, exclude: int = 1, ranks: int = 2, config: bool = True
) -> float:
    """DLIO's results of two epochs in which each step takes as long, and its throughput."""
    folder.mkdir()
    wait, compute, batch = 0.00215, 0.02, 7
    step = wait + compute
    clock = step * (steps - exclude)
    own = ranks * batch * (steps - 2) / clock
    metric = {
        "train_au_mean_percentage": 100 * compute / step,
        "train_throughput_mean_samples_per_second": own,
        "save_checkpoint_io_mean_GB_per_second": float("nan"),
    }
    summary = {
        "start": "2025-06-17T10:00:00.000000",
        "num_accelerators": ranks,
        "num_hosts": 1,
        "hostname": "node",
        "metric": metric,
        "host_memory_GB": [16.0],
        "host_cpu_count": [8],
        "end": "2025-06-17T10:01:00.000000",
    }
    (folder / "summary.json").write_text(json.dumps(summary))
    begin = datetime(2025, 6, 17, 10)
    end = begin + timedelta(seconds=step * steps)
    stamps = {"start": begin.isoformat(), "end": end.isoformat(), "duration": "0.09"}
    each = {"block1": [wait] * steps}, {"block1": [step] * steps}, {"block1": [compute] * steps}
    lists = dict(zip(("load", "proc", "compute"), each, strict=True))
    for rank in range(ranks):
        outputs = {"hostname": "node", "1": lists, "2": lists}
        (folder / f"{rank}_output.json").write_text(json.dumps(outputs))
        stats = {epoch: {**stamps, "block1": stamps} for epoch in ("1", "2")}
        (folder / f"{rank}_per_epoch_stats.json").write_text(json.dumps(stats))
    if config:
        (folder / ".hydra").mkdir()
        (folder / ".hydra" / "config.yaml").write_text(
            "workload:\n  framework: pytorch\n  model: {name: unet3d}\n"
            f"  reader: {{batch_size: {batch}}}\n  train: {{seed: 123}}\n"
            f"  output: {{metric: {{exclude_start_steps: {exclude}}}}}\n"
        )
    return own


@pytest.mark.parametrize(("exclude", "said"), [(1, 211), (3, 632)])
def test_dlio_throughput_is_corrected(exclude, said, tmp_path):
    """DLIO divides all steps but two by the time of those that it measures: 4 steps of 7 samples
    at 316 samples/s are 211 or 632, by how many it leaves out. Its folder is read as 316 both
    times."""
    own = dlio_folder(tmp_path / "dlio", exclude=exclude, ranks=1)
    assert own == pytest.approx(said, rel=0.01)
    [run] = runs_of(read_record(tmp_path / "dlio"))
    assert run.get("samples_per_s") == pytest.approx(316, rel=0.01)
    assert run.get("au", "raw") == pytest.approx(0.02 / 0.02215, rel=1e-3)
    assert run.get("stall_s", "p99") == pytest.approx(0.00215)
    assert run.get("dlio", "train_throughput_mean_samples_per_second") == pytest.approx(own)


def test_dlio_up_to_2_0_0_is_read_as_later_ones(tmp_path):
    """DLIO up to 2.0.0 wrote the times of rank 0 alone, without a rank in the name, and as
    "compute" what was asked for, not what it took."""
    dlio_folder(tmp_path / "late", ranks=2)
    early = tmp_path / "early"
    dlio_folder(early, ranks=2)
    (early / "0_per_epoch_stats.json").rename(early / "per_epoch_stats.json")
    (early / "1_per_epoch_stats.json").unlink()
    for path in early.glob("*_output.json"):
        values = json.loads(path.read_text())
        for epoch in ("1", "2"):
            values[epoch]["compute"]["block1"] = [0.019] * 4
        path.write_text(json.dumps(values))
    one, other = runs_of(read_record(tmp_path / "late"), read_record(early))
    assert one.get("samples_per_s") == other.get("samples_per_s")
    assert one.get("au", "raw") == other.get("au", "raw") == pytest.approx(0.02 / 0.02215, rel=1e-3)


def test_dlio_ranks_add_up(tmp_path):
    dlio_folder(tmp_path / "one", ranks=1)
    dlio_folder(tmp_path / "two", ranks=2)
    one, two = runs_of(read_record(tmp_path / "one"), read_record(tmp_path / "two"))
    assert two.get("samples_per_s") == pytest.approx(2 * (one.get("samples_per_s") or 0))


def test_dlio_summary_may_hold_nan_and_nothing_else_be_there(tmp_path):
    """DLIO writes a bare NaN when no checkpoint was taken; it is unknown, and no figure. Without
    lists and configuration its own throughput stands, and that is said."""
    own = dlio_folder(tmp_path / "dlio", config=False)
    assert "NaN" in (tmp_path / "dlio" / "summary.json").read_text()
    for path in (tmp_path / "dlio").glob("*_output.json"):
        path.unlink()
    values = read_record(tmp_path / "dlio" / "summary.json")
    json.dumps(values, allow_nan=False)
    [run] = runs_of(values)
    assert run.get("samples_per_s") == pytest.approx(own)
    assert any("its own" in note for note in values["notes"])
    assert not any("NaN" in name for name in run.values["dlio"])


# -- the command -----------------------------------------------------------------------------------


def command(monkeypatch: pytest.MonkeyPatch, *arguments: object) -> int:
    monkeypatch.setattr(sys, "argv", ["penstock", "bench", "compare", *map(str, arguments)])
    with pytest.raises(SystemExit) as ended:
        app.main()
    return int(ended.value.code or 0)


@pytest.fixture
def folders(tmp_path: Path) -> tuple[Path, Path, Path]:
    """A run, the same with another seed, and one of another batch size."""
    first, second, third = (tmp_path / name for name in ("first", "second", "third"))
    for place, keys in ((first, {}), (second, {"seed": 3}), (third, {"batch": 9})):
        place.mkdir()
        (place / "record.json").write_text(json.dumps(made.record(("penstock",), **keys)))
    return first, second, third


def test_compare_prints_and_writes(folders, monkeypatch, capsys, tmp_path):
    """The table has each figure, the ratio and what it comes to; the page is written."""
    page = tmp_path / "both.html"
    assert command(monkeypatch, folders[0], folders[1], "--output", page) == 0
    said = capsys.readouterr().out
    for row in compare.compare_runs(runs_of(*(read_record(each) for each in folders[:2]))):
        for value in row.values:
            if value is not None:
                assert row.metric.said(value).replace("\u00a0", " ") in said.replace("\u00a0", " ")
    assert "within noise" in said
    assert "bootstrap over" in said
    assert "penstock bench" in page.read_text()


def test_compare_takes_the_runs_of_repeat_by_their_name(monkeypatch, capsys, tmp_path):
    """A name without a number is all its runs, in their order, whatever else is there."""
    for turn in (2, 10, 1):
        dlio_folder(tmp_path / f"penstock-{turn}", ranks=1)
    dlio_folder(tmp_path / "penstock-old", ranks=1)
    assert command(monkeypatch, tmp_path / "penstock", "--json") == 0
    runs = json.loads(capsys.readouterr().out)["runs"]
    assert runs == [f"dlio-pytorch ({tmp_path}/penstock-{turn})" for turn in (1, 2, 10)]
    assert command(monkeypatch, tmp_path / "none", tmp_path / "penstock-1") == 1


def test_compare_refuses_other_workloads_by_name(folders, monkeypatch, capsys):
    """Another batch size is refused and named; --force compares, and still says so."""
    assert command(monkeypatch, folders[0], folders[2]) == 1
    said = capsys.readouterr().err
    assert "reader.batch_size is not the same: 7 | 9" in said
    assert "--force" in said
    assert command(monkeypatch, folders[0], folders[2], "--force") == 0
    assert "warning: reader.batch_size is not the same" in capsys.readouterr().err


def test_compare_takes_results_of_dlio(folders, monkeypatch, capsys, tmp_path):
    dlio_folder(tmp_path / "dlio", ranks=4)
    assert command(monkeypatch, folders[0], tmp_path / "dlio") == 0
    said = capsys.readouterr()
    assert "dlio-pytorch against penstock" in said.out
    assert "made by DLIO" in said.err


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("{first}",), "holds one run"),
        (("{first}", "nowhere"), "nowhere does not exist"),
        (("{first}", "{empty}"), "holds neither record.json nor summary.json"),
        (("{first}", "{second}", "--output", "no/where.html"), "there is no folder no"),
    ],
)
def test_bad_input_is_one_message(arguments, said, folders, monkeypatch, capsys, tmp_path):
    (tmp_path / "empty").mkdir()
    names = {"first": folders[0], "second": folders[1], "empty": tmp_path / "empty"}
    assert command(monkeypatch, *(each.format(**names) for each in arguments)) == 1
    assert said in capsys.readouterr().err
