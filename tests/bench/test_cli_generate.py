"""`penstock bench generate`, as users start it."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from penstock.cli.app import app
from penstock.errors import LimitError, UsageError
from penstock_bench.data import find_paths
from penstock_bench.data.generate import generate_data
from penstock_bench.workload.reading import read_workload
from penstock_bench.workload.sections import DatasetSpec
from tests import warm


def said(*words: object, **environment: str) -> str:
    """The output of the command; an exception of the command is raised."""
    arguments = ["bench", "generate", *map(str, words)]
    return CliRunner().invoke(app, arguments, env=environment, catch_exceptions=False).output


def test_generate(tmp_path: Path) -> None:
    """A workload by name with overrides; the second time nothing is left to do; other sizes are
    refused until they are forced."""
    overrides = [f"++workload.dataset.data_folder={tmp_path}/d"]
    overrides.append("workload.dataset.num_files_train=20")
    first = said("default", *overrides)
    assert f"{tmp_path}/d: 28 files" in first
    assert "28 of them written" in first
    data = read_workload("default", overrides).dataset
    assert len(find_paths(data, "train")) == 20
    assert len(find_paths(data, "valid")) == 8
    assert "0 of them written" in said("default", *overrides)
    forced = ["--seed", 3, "--force", "--contents", "field"]
    assert "28 of them written" in said("default", *overrides, *forced)
    sizes = tmp_path / "sizes.txt"
    sizes.write_text("100\n10000\n")
    some = ["--sizes", sizes, "--part", "train", "--force"]
    assert "20 files" in said("default", *overrides, *some)
    with pytest.raises(UsageError, match="--part is 'test': use one of train, valid, all"):
        said("default", "--part=test")


@pytest.mark.parametrize("command", ["run", "generate"])
def test_nothing_large_is_generated_unasked(tmp_path: Path, command: str) -> None:
    """Size and room are told, and nothing is written; what is there already does not count."""
    folder = tmp_path / "new" / "data"
    words = ["bench", command, "unet3d_h100", f"++workload.dataset.data_folder={folder}"]
    words += [
        "++workload.workflow.generate_data=True",
        "++workload.dataset.record_length_bytes=4e9",
    ]
    words += [
        "++workload.dataset.num_files_train=3",
        "++workload.dataset.record_length_bytes_stdev=0",
    ]
    wanted = rf"{folder} would get 12\.0 GB of samples, and .* GB are free there; .* say --yes"
    with pytest.raises(LimitError, match=wanted):
        CliRunner().invoke(app, words, catch_exceptions=False)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("option", ["--output", "--stage"])
def test_results_go_into_no_folder_named_as_a_url(tmp_path: Path, option: str) -> None:
    with pytest.raises(UsageError, match=rf"{option} is s3:/+b/x: that is a URL: give a folder"):
        CliRunner().invoke(
            app, ["bench", "run", "default", option, "s3://b/x"], catch_exceptions=False
        )


def test_generation_of_the_rest_is_bounded_by_the_rest(tmp_path: Path) -> None:
    """With `bytes_max`: all of it, files that are missing, or all again with force."""
    data = DatasetSpec(
        format="npz", data_folder=str(tmp_path / "d"), num_files_train=4, record_length_bytes=1000
    )
    with pytest.raises(LimitError, match="up to 0.0 GB are generated without"):
        generate_data(data, bytes_max=3999)
    assert list(tmp_path.iterdir()) == []
    assert generate_data(data, bytes_max=4000).written == 4
    next((tmp_path / "d" / "train").iterdir()).unlink()
    assert generate_data(data, bytes_max=1000).written == 1
    with pytest.raises(LimitError):
        generate_data(data, bytes_max=3999, force=True)


def test_a_rank_writes_its_share(tmp_path: Path) -> None:
    """Ranks are told by what started them."""
    overrides = [f"++workload.dataset.data_folder={tmp_path}/d"]
    overrides.append("workload.dataset.num_files_train=9")
    for rank in range(2):
        share = said("default", *overrides, RANK=str(rank), WORLD_SIZE="2")
        assert f"{9 if rank == 0 else 8} of them written" in share


def test_an_error_is_one_line(tmp_path: Path) -> None:
    """Other data is refused: exit code 1 and one line that names what differs."""
    folder = f"++workload.dataset.data_folder={tmp_path}/d"
    said("default", folder)
    words = ["-m", "penstock", "bench", "generate", "default", folder, "--seed", "3"]
    done = warm.run([sys.executable, *words], capture_output=True, text=True)
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (1, "", 1)
    assert "seed=10, and now seed=3 is asked" in done.stderr
