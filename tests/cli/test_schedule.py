"""`penstock schedule`: patterns, rules, bounds and slots from a file of jobs."""

from __future__ import annotations

import json
from pathlib import Path
from xml.etree import ElementTree

import pytest

from penstock_sim import schedule
from tests.command import run

GOOD = """
bandwidth: 10GB/s
periodic:
  - {name: climate, count: 2, compute_s: 70, transfer: 200GB, rate: 4GB/s, weight: 2048}
  - {name: fusion, compute_s: 30, transfer: 90e9, rate: 3GB/s, weight: 1024}
exclusive:
  capacity: {index: 1, data: 2}
  jobs:
    - {name: reader, count: 3, tasks: [index, data]}
"""


@pytest.mark.long
def test_pattern_rules_bounds_and_slots(tmp_path: Path) -> None:
    """The JSON holds what the functions give for the same jobs; the page is well-formed XML."""
    (tmp_path / "jobs.yaml").write_text(GOOD)
    page = tmp_path / "page.html"
    done = run("schedule", tmp_path / "jobs.yaml", "-o", page, "--json")
    values = json.loads(done.stdout)
    jobs = [schedule.PeriodicJob(70, 200e9, 4e9, 2048)] * 2
    jobs.append(schedule.PeriodicJob(30, 90e9, 3e9, 1024))
    outcomes = {
        each["schedule"]: (each["efficiency"], each["dilation"])
        for each in values["periodic"]["outcomes"]
    }
    pattern = schedule.plan_periodic(jobs, 10e9)
    assert outcomes["PerSched"] == pattern.outcome
    assert outcomes["fluid bound"] == schedule.fluid_bounds(jobs, 10e9)
    for rule in schedule.RULES:
        assert outcomes[f"{rule.name} (online)"] == schedule.simulate(jobs, 10e9, rule)
    assert values["periodic"]["pattern"]["period_s"] == pattern.period_s
    assert list(values["periodic"]["pattern"]["transfers"]) == ["climate 1", "climate 2", "fusion"]
    slots = schedule.two_tasks([0, 0, 0], [1, 1, 1], [1, 2]).tolist()
    assert list(values["exclusive"]["slots"].values()) == slots
    assert values["exclusive"]["used"] == values["exclusive"]["bound"] == 4
    assert "which no schedule beats" in done.stderr
    assert "fluid bound" in done.stderr
    root = ElementTree.fromstring(page.read_text().removeprefix("<!doctype html>"))
    assert any(element.tag.endswith("svg") for element in root.iter())


def test_longer_sequences_are_listed(tmp_path: Path) -> None:
    """Jobs of three tasks are scheduled too, and shared resources take everybody at once."""
    text = "exclusive: {capacity: {a: 1}, jobs: [{name: x, count: 2, tasks: [shared, a, shared]}]}"
    (tmp_path / "jobs.yaml").write_text(text)
    done = run("schedule", tmp_path / "jobs.yaml")
    assert "4 slots, which no schedule beats" in done.stdout
    assert "shared @ 0  a @ 2  shared @ 3" in done.stdout


def test_results_on_standard_output_stand_there_alone(tmp_path: Path) -> None:
    """--json prints one object, and what is for people goes to standard error."""
    text = "exclusive: {capacity: {a: 1}, jobs: [{name: x, count: 2, tasks: [shared, a]}]}"
    (tmp_path / "jobs.yaml").write_text(text)
    done = run("schedule", tmp_path / "jobs.yaml", "--json")
    assert json.loads(done.stdout)["exclusive"]["used"] == 3
    assert "3 slots" in done.stderr


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("bandwith: 1\nperiodic: []", "bandwith is no key of a file of jobs"),
        ("bandwidth: 1\nbandwidth: 2", "'bandwidth' is given twice"),
        ("{}", "has no jobs: list some under periodic or exclusive"),
        ("periodic: [{name: a, compute_s: 1, transfer: 1}]", "bandwidth is missing"),
        (
            "bandwidth: 1GB/s\nperiodic: [{name: a, compute_s: 1, transfer: 5XB}]",
            "periodic.0.transfer is '5XB': use a number of bytes or a text",
        ),
        (
            "bandwidth: 1GB/s\nperiodic: [{name: a, compute_s: -1, transfer: 5GB}]",
            "periodic.0.compute_s is -1: use greater than or equal to 0",
        ),
        (
            "bandwidth: 1GB/s\nperiodic: [{name: a, count: 20000, compute_s: 1, transfer: 5GB}]",
            "periodic.0.count is 20000",
        ),
        (
            "exclusive: {capacity: {a: 1}, jobs: [{name: x, tasks: [b]}]}",
            "x uses 'b', which has no capacity: use one of a, shared",
        ),
        ("[1, 2", "is not YAML"),
        ("- 1", "holds list, not a mapping: begin with bandwidth"),
    ],
)
def test_bad_files(tmp_path: Path, text: str, said: str) -> None:
    """Each problem is told with the key, the value and the remedy; nothing is written."""
    (tmp_path / "jobs.yaml").write_text(text)
    done = run("schedule", tmp_path / "jobs.yaml", "-o", tmp_path / "page.html", code=1)
    assert said in " ".join(done.stderr.split())
    assert not (tmp_path / "page.html").exists()


def test_an_objective_that_is_none(tmp_path: Path) -> None:
    """An objective that is not known is refused by name."""
    (tmp_path / "jobs.yaml").write_text(GOOD)
    done = run("schedule", tmp_path / "jobs.yaml", "--objective", "beauty", code=1)
    assert "objective is 'beauty': use one of efficiency, dilation" in done.stderr
