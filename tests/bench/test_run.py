"""Runs as a whole: steps, epochs, ranks, and the files that are left."""

from __future__ import annotations

import json
import math
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path

import numpy as np
import pytest

from penstock.errors import UsageError
from penstock_bench.contenders.delivery import compute_checksum
from penstock_bench.contenders.samples import flatten_sample, open_samples
from penstock_bench.data import find_paths
from penstock_bench.data.generate import generate_data
from penstock_bench.ranks import launch
from penstock_bench.results import dlio, record
from penstock_bench.run import BenchJob, Walks, run_workload
from penstock_bench.workload.distribution import Distribution
from penstock_bench.workload.reading import read_workload
from penstock_bench.workload.sections import (
    CheckpointSpec,
    DatasetSpec,
    DlioWorkload,
    Goal,
    ModelSpec,
    OutputSpec,
    ReaderSpec,
    SkippedSteps,
    TrainSpec,
    WorkflowSpec,
)
from tests.bench.small import job, reading, workload, write


def done(given: BenchJob, ranks: int = 1) -> tuple[list[Walks], dict]:
    """The measurements of each rank, and the run of the record."""
    walks = launch(ranks, partial(run_workload, given))
    assert walks is not None
    return walks, record.make_run(given, walks)


def seconds(value: float) -> Distribution:
    return Distribution.constant(value)


@pytest.mark.parametrize(
    ("files", "per_file", "batch", "ranks", "steps"),
    [(8, 64, 32, 1, 16), (8, 64, 32, 2, 8), (1, 1024, 1, 1, 1024), (5, 3, 4, 1, 3)],
)
def test_steps_are_of_samples(files, per_file, batch, ranks, steps):
    """DLIO compares files with samples: 8 x 64 and batch 32 are 0 steps of 0 files, and -514,244
    samples/s (defect 4)."""
    load = DlioWorkload(
        dataset=DatasetSpec(num_files_train=files, num_samples_per_file=per_file),
        reader=ReaderSpec(batch_size=batch),
    )
    assert job(load, ["/x"]).epochs(ranks) == [steps]


def test_no_steps_are_an_error_before_the_run():
    load = DlioWorkload(dataset=DatasetSpec(num_files_train=8), reader=ReaderSpec(batch_size=32))
    with pytest.raises(UsageError, match="0 steps of train: 8 files x 1 samples < batch 32 x 2"):
        launch(2, partial(run_workload, job(load, ["/x"])))


def test_the_step_limit_is_of_the_run():
    """DLIO applies total_training_steps to each epoch, and its log says total (defect 25)."""

    def epochs(limit, epochs=3, **more):
        load = DlioWorkload(
            dataset=DatasetSpec(num_files_train=10),
            train=TrainSpec(epochs=epochs, total_training_steps=limit),
        )
        return job(load, ["/x"], **more).epochs(1)

    assert epochs(25) == [10, 10, 5]
    assert epochs(10) == [10]
    assert epochs(30) == [10, 10, 10]
    assert epochs(4, compat=True) == [4, 4, 4]
    with pytest.raises(UsageError, match="asked 31 steps, the data holds 10 per epoch x 3 epochs"):
        epochs(31)


def test_an_epoch_that_is_left_out_as_a_whole_is_an_error():
    load = DlioWorkload(
        dataset=DatasetSpec(num_files_train=3),
        output=OutputSpec(metric=SkippedSteps(exclude_start_steps=3)),
    )
    with pytest.raises(
        UsageError, match="an epoch of 3 steps has none to measure: .* take 4 files or more"
    ):
        launch(1, partial(run_workload, job(load, ["/x"])))


def test_a_loader_that_ends_early_is_an_error(tmp_path):
    """Rather than a wait for ever at the barrier."""
    paths = write(tmp_path, 4)
    load = workload(tmp_path, 40)
    with pytest.raises(UsageError, match="rank [01], epoch 1 .train. ended after 1 of 10 steps"):
        launch(2, partial(run_workload, job(load, paths)))


def evaluated(folder: Path, ranks: int) -> dict:
    """A run with an evaluation after each epoch: 4 ms a step of which 3 compute."""
    train, valid = write(folder, 12), write(folder, 12, part="valid")
    load = workload(folder, reader=reading(batch_size=1, batch_size_eval=1))
    load = replace(
        load,
        dataset=replace(load.dataset, num_files_eval=12),
        train=TrainSpec(epochs=3, computation_time=seconds(0.001)),
        evaluation=replace(load.evaluation, eval_time=seconds(0.003), eval_after_epoch=2),
    )
    given = BenchJob(
        loader="penstock",
        workload=load,
        paths={"train": train, "valid": valid},
        folders={"train": str(folder / "train"), "valid": str(folder / "valid")},
        control=False,
    )
    return done(given, ranks)[1]


def test_evaluation_is_where_it_is_due_and_adds_up(tmp_path):
    """DLIO puts the lists of ranks one after the other and divides by their number: with 2 ranks
    AU 48.1 % in twice the entries, and half of the throughput (defect 8)."""
    (tmp_path / "1").mkdir()
    (tmp_path / "2").mkdir()
    one, two = (evaluated(tmp_path / str(ranks), ranks) for ranks in (1, 2))
    for found, ranks in ((one, 1), (two, 2)):
        kinds = [(each["epoch"], each["kind"]) for each in found["epochs"]]
        assert kinds == [(1, "train"), (2, "train"), (2, "eval"), (3, "train"), (3, "eval")]
        dlio = found["dlio"]
        assert len(dlio["eval_au_percentage"]) == 2
        assert len(dlio["eval_throughput_samples_per_second"]) == 2
        # By the epochs' own times: all ranks' samples, and all ranks' mean share.
        rates, shares = [], []
        for each in found["epochs"]:
            if each["kind"] == "eval":
                spent = [
                    sum(map(sum, (rank["wait_s"], rank["computed_s"], rank["barrier_s"])))
                    for rank in each["ranks"]
                ]
                rates.append(sum(12 / ranks / one_s for one_s in spent))
                shares.append(
                    np.mean([sum(rank["compute_s"]) for rank in each["ranks"]] / np.array(spent))
                )
        assert dlio["eval_throughput_mean_samples_per_second"] == pytest.approx(
            np.mean(rates), rel=0.05
        )
        assert dlio["eval_au_mean_percentage"] <= 100


def test_throughput_is_samples_by_time(tmp_path):
    """DLIO's depends on what is left out; ours is what was delivered in the time (defect 5)."""
    paths = write(tmp_path, 24)
    load = workload(tmp_path, 24, train=TrainSpec(epochs=2, computation_time=seconds(0.002)))
    walks, found = done(job(load, paths))
    (rank,) = walks
    spent = sum(float(each.stamps.left[-1] - each.stamps.asked[1]) * 1e-9 for each in rank.epochs)
    assert found["samples_per_s"] == pytest.approx(2 * 11 * 2 / spent, rel=0.001)
    assert sum(found["decomposition"].values()) == pytest.approx(1)
    for excluded in (0, 3):
        other = replace(load, output=OutputSpec(metric=SkippedSteps(exclude_start_steps=excluded)))
        again = record.make_run(replace(job(load, paths), workload=other), walks)
        chosen = spent_of(rank, excluded)
        assert again["samples_per_s"] == pytest.approx(2 * (12 - excluded) * 2 / chosen, rel=1e-9)


def spent_of(rank: Walks, excluded: int) -> float:
    return sum(
        float(each.stamps.left[-1] - each.stamps.asked[excluded]) * 1e-9 for each in rank.epochs
    )


def test_bytes_are_those_that_were_delivered(tmp_path):
    """DLIO multiplies by record_length_bytes, 65,536 by default, where the workload says
    record_dims (defects 6 and 21)."""
    paths = write(tmp_path)
    load = workload(tmp_path)
    load = replace(
        load, dataset=replace(load.dataset, record_length_bytes=65536, record_dims=(5, 7))
    )
    _, found = done(job(load, paths))
    assert found["bytes_per_s"] == pytest.approx(35 * found["samples_per_s"])
    dlio = found["dlio"]
    rate = dlio["train_throughput_mean_samples_per_second"]
    assert dlio["train_io_mean_MB_per_second"] == pytest.approx(rate * 35 / 2**20)
    assert [each["bytes"] for each in found["epochs"]] == [35 * 12] * 2
    assert [each["samples"] for each in found["epochs"]] == [12] * 2
    _, compat = done(job(load, paths, compat=True))
    rate = compat["dlio"]["train_throughput_mean_samples_per_second"]
    assert compat["dlio"]["train_io_mean_MB_per_second"] == pytest.approx(rate / 16)


def test_wrong_samples_are_found(tmp_path, monkeypatch):
    """--verify: what is delivered is what is on disk, or an error that says how much is not."""
    from penstock_bench.contenders.delivery import compute_checksum
    from tests.bench.small import content

    paths = write(tmp_path)
    truth = {"train": frozenset(compute_checksum(content(number)[..., 0]) for number in range(12))}
    assert done(job(workload(tmp_path), paths, truth=truth), 2)[1]["verified"] is True
    (tmp_path / "liar_of_test.py").write_text(
        "import numpy as np\ndef loader():\n    return [np.zeros((2, 5, 7), np.uint8)] * 6\n"
    )
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UsageError, match="12 of 12 samples that --loader liar_of_test:loader"):
        done(job(workload(tmp_path), paths, "liar_of_test:loader", truth=truth))


def test_without_reading_nothing_is_waited_for(tmp_path):
    """The control takes the same steps, and its utilisation is the ceiling."""
    paths = write(tmp_path)
    load = workload(tmp_path, train=TrainSpec(epochs=1, computation_time=seconds(0.003)))
    walks, found = done(job(load, paths, control=True), 2)
    assert [len(rank.control) for rank in walks] == [3, 3]
    au = found["au"]
    assert 0 < au["raw"] <= 1
    assert 0 < au["ceiling"] <= 1
    assert au["net"] == pytest.approx(au["raw"] / au["ceiling"])
    waits = [np.median(rank.control.got - rank.control.asked) for rank in walks]
    assert max(waits) < 100_000


def test_staged_data_is_read_there_and_removed(tmp_path):
    """Copying is a phase of its own, with its time."""
    paths = write(tmp_path / "far")
    near = tmp_path / "near"
    seen = []
    given = job(workload(tmp_path), paths, stage=str(near))
    _walks, found = done(given, 2)
    assert found["staging_s"] > 0
    assert [each["samples"] for each in found["epochs"]] == [12, 12]
    assert list(near.iterdir()) == seen


def test_draws_differ_by_rank_and_are_those_of_the_seed(tmp_path):
    """Step times of a distribution are the same in the next run, and are what is counted."""
    paths = write(tmp_path)
    cost = Distribution("uniform", (0.0, 0.002))
    load = workload(tmp_path, train=TrainSpec(epochs=2, computation_time=cost))

    def drawn() -> list[list[list[int]]]:
        walks, _ = done(job(load, paths), 2)
        return [[each.stamps.nominal.tolist() for each in rank.epochs] for rank in walks]

    first, second = drawn(), drawn()
    assert first == second
    assert len({tuple(epoch) for rank in first for epoch in rank}) == 4


# -- the files of DLIO -----------------------------------------------------------------------------


def written(folder: Path, given: BenchJob, ranks: int) -> dict:
    walks, found = done(given, ranks)
    config = asdict(given.workload)
    config["storage"]["storage_options"] = {}
    config = json.loads(json.dumps(config, default=str))
    dlio.write(folder, given, walks, found, config=config, overrides=["++workload.a.b=1"])
    return found


def strict(path: Path):
    """JSON as the standard has it."""

    def refuse(word):
        raise AssertionError(f"{path} has {word}")

    return json.loads(path.read_text(), parse_constant=refuse)


def work_out(
    out: Path, ranks: int, steps: int, skipped: tuple[int, int]
) -> tuple[list[float], list[float]]:
    """Work out utilisation and samples/s of two epochs, of batches of 2, as DLIO does: from the
    lists of each rank's steps and its begins and ends."""
    from datetime import datetime

    first, last = skipped[0], steps - 1 - skipped[1]
    au, rates = [], []
    for epoch in ("1", "2"):
        of_ranks = []
        for rank in range(ranks):
            lists = strict(out / f"{rank}_output.json")[epoch]
            spans = strict(out / f"{rank}_per_epoch_stats.json")[epoch]
            proc, compute = lists["proc"]["block1"], lists["compute"]["block1"]
            begun, ended = (
                datetime.strptime(spans["block1"][name], "%Y-%m-%dT%H:%M:%S.%f")
                for name in ("start", "end")
            )
            spent = (ended - begun).total_seconds() - sum(proc[:first]) - sum(proc[last + 1 :])
            busy = 100 * sum(compute[first : last + 1]) / spent
            of_ranks.append((busy, (steps - 2) / spent * 2))
            assert lists["au"]["block1"] == pytest.approx(busy, rel=1e-3)
            assert spans["block1"]["duration"] == f"{(ended - begun).total_seconds():.2f}"
        au.append(sum(each[0] for each in of_ranks) / ranks)
        rates.append(sum(each[1] for each in of_ranks))
    return au, rates


@pytest.mark.parametrize("ranks", [1, 2])
def test_dlios_figures_follow_from_the_files(tmp_path, ranks):
    """summary.json has DLIO's metrics: worked out again from the lists of each rank's steps and
    its begins and ends, as DLIO does."""
    data, out = tmp_path / "data", tmp_path / "out"
    paths = write(data, 24)
    load = workload(data, 24, train=TrainSpec(epochs=2, computation_time=seconds(0.002)))
    load = replace(
        load,
        output=OutputSpec(metric=SkippedSteps(exclude_start_steps=2, exclude_end_steps=1)),
        metric=Goal(au=0.5),
    )
    found = written(out, job(load, paths, compat=True), ranks)
    metric = strict(out / "summary.json")["metric"]
    assert metric == json.loads(json.dumps(found["dlio"]))
    au, rates = work_out(out, ranks, 12 // ranks, skipped=(2, 1))
    assert metric["train_au_percentage"] == pytest.approx(au, rel=1e-3)
    assert metric["train_throughput_samples_per_second"] == pytest.approx(rates, rel=1e-3)
    mean, spread = np.mean(rates), np.std(rates)
    assert metric["train_throughput_mean_samples_per_second"] == pytest.approx(mean, rel=1e-3)
    assert metric["train_throughput_stdev_samples_per_second"] == pytest.approx(spread, abs=2)
    assert metric["train_io_mean_MB_per_second"] == pytest.approx(mean * 35 / 2**20, rel=1e-3)
    met = "success" if np.mean(au) >= 50 else "fail"
    assert metric["train_au_meet_expectation"] == met
    log = (out / "dlio.log").read_text()
    assert f"[METRIC] Number of Simulated Accelerators: {ranks}\n" in log
    assert f"[METRIC] train_au_meet_expectation: {met}\n" in log


@pytest.mark.parametrize("format", ["tfrecord", "npz", "hdf5"])
def test_one_sample_a_file_counts_as_dlio_counts(tmp_path, format):
    """CosmoFlow, in small: sizes that differ from file to file; each file is a sample, a step has
    as many as the batch, each rank as many steps as all files allow, and rates are by both."""
    load = read_workload("cosmoflow_v100")
    sizes = {"num_files_train": 23, "record_length_bytes": 5000, "record_length_bytes_stdev": 900}
    data = replace(load.dataset, data_folder=str(tmp_path / "data"), format=format, **sizes)
    generate_data(data, ["train"])
    paths = find_paths(data, "train")
    samples = [open_samples(data, path)[0] for path in paths]
    assert len({len(flatten_sample(sample)) for sample in samples}) > 5
    load = replace(
        load,
        dataset=data,
        reader=replace(load.reader, batch_size=2, read_threads=0),
        train=replace(load.train, epochs=2, computation_time=seconds(0.002)),
    )
    truth = {"train": frozenset(map(compute_checksum, samples))}
    found = written(tmp_path / "out", job(load, paths, compat=True, truth=truth), 2)
    assert found["verified"] is True
    assert [epoch["samples"] for epoch in found["epochs"]] == [20, 20]  # 5 x 2 x 2
    sizes = sorted(len(flatten_sample(sample)) for sample in samples)
    assert all(sum(sizes[:20]) <= epoch["bytes"] <= sum(sizes[-20:]) for epoch in found["epochs"])
    au, rates = work_out(tmp_path / "out", 2, 5, skipped=(1, 0))
    metric = strict(tmp_path / "out" / "summary.json")["metric"]
    assert metric["train_au_percentage"] == pytest.approx(au, rel=1e-3)
    assert metric["train_throughput_samples_per_second"] == pytest.approx(rates, rel=1e-3)


def test_files_are_strict_json_and_complete(tmp_path):
    """DLIO's summary.json has bare NaN where no checkpoint was taken (defect 19), and its own
    post-processor does not find its files (defect 15)."""
    import yaml

    paths = write(tmp_path / "data")
    out = tmp_path / "out"
    load = workload(tmp_path / "data")
    written(out, job(load, paths), 2)
    names = {str(path.relative_to(out)) for path in out.rglob("*") if path.is_file()}
    assert names == {
        "summary.json", "dlio.log", ".hydra/config.yaml", ".hydra/overrides.yaml",
        "0_output.json", "1_output.json", "0_per_epoch_stats.json", "1_per_epoch_stats.json",
    }  # fmt: skip
    summary = strict(out / "summary.json")
    assert not [name for name in summary["metric"] if "checkpoint" in name]
    assert summary["num_accelerators"] == 2
    assert summary["num_hosts"] == len(summary["host_memory_GB"]) == 1
    for name in names:
        if name.endswith(".json"):
            strict(out / name)
    config = yaml.safe_load((out / ".hydra" / "config.yaml").read_text())
    assert config["workload"]["dataset"]["num_files_train"] == 12
    assert yaml.safe_load((out / ".hydra" / "overrides.yaml").read_text()) == ["++workload.a.b=1"]


def test_the_record_is_what_reports_read(tmp_path):
    paths = write(tmp_path)
    load = workload(tmp_path, train=TrainSpec(epochs=1, computation_time=seconds(math.pi / 1000)))
    _walks, found = done(job(load, paths), 2)
    about = {"command": "penstock bench run", "workload": {"model": {"name": "x"}}}
    about |= {"overrides": [], "compat": False, "seed": 5, "started": 0.0, "ended": 1.0}
    about |= {"ranks": 2, "hosts": 1, "runs": [found]}
    values = record.make_record(about, str(tmp_path), (0, 0, 0))
    path = record.write_record(tmp_path / "out", values)
    again = strict(path)
    assert again["penstock_bench"] == 1
    assert again["machine"]["filesystem"] not in ("", "unknown")
    (each,) = again["runs"]
    (epoch,) = each["epochs"]
    for number, rank in enumerate(epoch["ranks"]):
        assert rank["rank"] == number
        lists = ("wait_s", "compute_s", "computed_s", "barrier_s")
        assert {len(rank[name]) for name in lists} == {3}
        assert rank["samples"] == 6
        assert rank["bytes"] == 6 * 35
        assert {"cpu_s", "read_bytes", "device_bytes"} <= set(rank)
    assert each["peak_rss_bytes"] >= each["pss_bytes"] > 0
    assert each["settings"]["shuffle"] == "none"


@pytest.mark.parametrize("per_file", [1, 4])
def test_the_verdict_is_of_samples(tmp_path, monkeypatch, per_file):
    """Ceilings of what is read as one, be it a sample or a file of several, are of samples."""
    from penstock import limits
    from penstock_bench.results.record import Verdicts

    for name in ("ceiling_s", "cold_s"):
        monkeypatch.setattr(limits, name, 0.01)
    paths = write(tmp_path, 12, per_file)
    load = workload(tmp_path, 12, per_file, train=TrainSpec(computation_time=seconds(0.01)))
    epoch = {"kind": "train", "cached_before": None, "samples": 12 * per_file}
    found = {"epochs": [epoch] * 2, "staging_s": 0.5, "samples_per_s": 7.0}
    found["decomposition"] = {"storage_wait": 0.0}
    verdict = Verdicts(job(load, paths), 3).of(found)
    assert verdict["measured"] == pytest.approx(7.0)
    ceilings = {each["resource"]: each["samples_per_s"] for each in verdict["ceilings"]}
    assert verdict["bound"] == "compute"  # it never waits
    assert ceilings["compute"] == pytest.approx(7.0)
    assert ceilings["staging"] == pytest.approx(2 * 12 * per_file / 0.5)
    waiting = Verdicts(job(load, paths), 3).of(found | {"decomposition": {"storage_wait": 0.75}})
    assert waiting["bound"] != "compute"
    (compute,) = (each for each in waiting["ceilings"] if each["resource"] == "compute")
    assert compute["samples_per_s"] == pytest.approx(7.0 / 0.25)
    size = sum(Path(path).stat().st_size for path in paths) / (12 * per_file)
    found["staging_s"] = 0.0
    verdicts = Verdicts(job(load, paths), 1)
    bandwidth = verdicts._supplies["bandwidth"].per_s
    again = {each["resource"]: each["samples_per_s"] for each in verdicts.of(found)["ceilings"]}
    assert again["bandwidth"] == pytest.approx(bandwidth / size)
    cached = {"cached_bytes": 1, "total_bytes": 1}
    found["epochs"] = [epoch | {"cached_before": cached}]
    assert {each["resource"] for each in verdicts.of(found)["ceilings"]} <= {"compute", "copy"}


@pytest.mark.parametrize(
    ("every", "expected"),
    [(4, {1: [4, 8, 12], 2: [4, 8, 12]}), (None, {1: [], 2: [12]})],
)
def test_checkpoints_are_taken_and_kept_apart(tmp_path, every, expected):
    """After so many steps, within an epoch, which they cut into blocks; or after an epoch."""
    paths = write(tmp_path / "data", 24)
    load = workload(
        tmp_path / "data", 24, train=TrainSpec(epochs=2, computation_time=seconds(0.001))
    )
    folder = tmp_path / "saved"
    load = replace(
        load,
        workflow=WorkflowSpec(checkpoint=True),
        model=ModelSpec(model_size_bytes=1000),
        checkpoint=CheckpointSpec(
            checkpoint_folder=str(folder), steps_between_checkpoints=every, fsync=True,
            checkpoint_after_epoch=2,
        ),
    )  # fmt: skip
    out = tmp_path / "out"
    found = written(out, job(load, paths), 1)
    saved = {each["epoch"]: [c["step"] for c in each["checkpoints"]] for each in found["epochs"]}
    assert saved == expected
    names = [f"global_epoch{epoch}_step{step}" for epoch in saved for step in saved[epoch]]
    assert sorted(path.name for path in folder.iterdir()) == sorted(names)
    assert found["dlio"]["checkpoint_size_GB"] == pytest.approx(1000 / 2**30)
    stats = strict(out / "0_per_epoch_stats.json")
    for epoch, steps in expected.items():
        spans = stats[str(epoch)]
        assert [name for name in spans if name.startswith("save_ckpt")] == [
            f"save_ckpt{number}" for number in range(1, len(steps) + 1)
        ]
        blocks = [name for name in spans if name.startswith("block")]
        assert len(blocks) == (1 if every is None else len(steps) + 1)
