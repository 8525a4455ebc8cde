"""Scenarios: what is wrong is named, and nothing that is written is ignored."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from penstock.errors import UsageError
from penstock_sim import (
    POLICIES,
    SAMPLED,
    Scenario,
    list_scenarios,
    load_scenario,
    parse_scenario,
    simulate,
)

TEXT = """
name: mine
data: {samples: 64, mean_mb: 1.5, sigma_mb: 0.5}
training: {nodes: 2, global_batch: 8, epochs: 3, compute_mb_s: 500, preprocess_mb_s: 70, seed: 1}
system:
  network_mb_s: 40
  storage: {link_mb_s: 60, read_mb_s: {1: 50, 2: 130}}
  staging: {capacity_mb: 30, threads: 2, read_mb_s: {1: 60, 3: 160}}
  tiers:
    - {name: ram, capacity_mb: 55, threads: 2, read_mb_s: {1: 100, 3: 160}}
    - {name: ssd, capacity_mb: 100, threads: 2, read_mb_s: {1: 50, 3: 90}}
policies: [naive, penstock, nopfs, lower_bound]
"""


def without(path: str) -> str:
    given = yaml.safe_load(TEXT)
    part: Any = given
    *parents, last = path.split(".")
    for key in parents:
        part = part[key]
    del part[last]
    return yaml.safe_dump(given)


def changed(path: str, value: Any) -> str:
    given = yaml.safe_load(TEXT)
    put(given, path, value)
    return yaml.safe_dump(given)


def put(given: Any, path: str, value: Any) -> None:
    *parents, last = (int(key) if key.isdigit() else key for key in path.split("."))
    for key in parents:
        given = given[key]
    given[last] = value


@pytest.mark.parametrize("name", list_scenarios())
def test_shipped_scenarios_load(name: str) -> None:
    """Each scenario that comes along is valid and called by its file's name."""
    scenario = load_scenario(name)
    assert scenario.name == name
    assert scenario.about
    assert scenario.policies == (SAMPLED if name == "importance" else POLICIES)


def test_published_scenarios_come_along() -> None:
    """The published ones are all there."""
    wanted = {"s1", "s2", "s3", "s4", "imagenet-1k", "openimages", "imagenet-22k", "cosmoflow"}
    assert wanted <= set(list_scenarios())


def test_a_file_and_a_system_by_name(tmp_path: Path) -> None:
    """A scenario may be a file, and take its system from those that come along."""
    given = yaml.safe_load(TEXT) | {"system": "lassen"}
    path = tmp_path / "mine.yaml"
    path.write_text(yaml.safe_dump(given))
    assert load_scenario(path).system == load_scenario("imagenet-1k-lassen").system
    assert load_scenario(str(path)) == load_scenario(path)


UNKNOWN = ["colour", "data.compressed", "training.gpus", "system.storage.alpha", "system.tiers.0.w"]


@pytest.mark.parametrize("path", UNKNOWN)
def test_unknown_keys_are_named(path: str) -> None:
    """No key is ignored, at any depth."""
    with pytest.raises(UsageError, match=rf"^here: {path} is no key"):
        parse_scenario(changed(path, 1), "here")


MISSING = ["name", "data", "data.samples", "training.epochs", "system.storage.read_mb_s"]


@pytest.mark.parametrize("path", MISSING)
def test_missing_keys_are_named(path: str) -> None:
    """A key without a default must be given."""
    with pytest.raises(UsageError, match=rf"^here: {path} is missing"):
        parse_scenario(without(path), "here")


WRONG = [
    ("data.samples", 0),
    ("data.samples", 1.5),
    ("data.samples", "64"),
    ("data.samples", True),
    ("data.mean_mb", 0),
    ("data.mean_mb", float("nan")),
    ("data.sigma_mb", -1),
    ("training.nodes", -2),
    ("training.compute_mb_s", 0),
    ("training.preprocess_mb_s", float("inf")),
    ("training.seed", -1),
    ("system.network_mb_s", 0),
    ("system.storage.link_mb_s", None),
    ("system.storage.read_mb_s", {}),
    ("system.storage.read_mb_s.2", 0),
    ("system.staging.threads", 0),
    ("system.staging.capacity_mb", -3),
    ("system.tiers", []),
    ("system.tiers.1.capacity_mb", 0),
    ("policies", []),
]


@pytest.mark.parametrize(("path", "value"), WRONG)
def test_impossible_values_are_named(path: str, value: Any) -> None:
    """A value that cannot be is named, with its key and what to use."""
    with pytest.raises(UsageError, match=rf"^here: {path} is .*: use "):
        parse_scenario(changed(path, value), "here")


def test_what_does_not_fit_together() -> None:
    """Values that are possible each, and not together."""
    for path, value, word in (
        ("training.global_batch", 7, "multiple of the nodes"),
        ("training.global_batch", 66, "holds no step"),
        ("policies", ["naive", "naive"], "twice"),
    ):
        with pytest.raises(UsageError, match=word):
            parse_scenario(changed(path, value), "here")
    with pytest.raises(UsageError, match=r"policies.0 is 'belady': use 'naive'"):
        parse_scenario(changed("policies", ["belady"]), "here")
    with pytest.raises(UsageError, match="system is 'summit': use one of lassen"):
        parse_scenario(changed("system", "summit"), "here")


def test_a_key_given_twice() -> None:
    """YAML would take the last."""
    for text in (
        TEXT + "name: again\n",
        TEXT.replace("{1: 50, 2: 130}", "{1: 50, 1: 130}"),
    ):
        with pytest.raises(UsageError, match=r"given twice"):
            parse_scenario(text, "here")


@pytest.mark.parametrize(
    "text", ["", "[1, 2]", "a: [", "a: !!python/object:os.system {}", "&a [*a]"]
)
def test_what_is_no_mapping(text: str) -> None:
    """Other YAML, and what is none, is refused in the same words."""
    with pytest.raises(UsageError, match=r"^here (holds|is not YAML)"):
        parse_scenario(text, "here")


def test_places_that_are_none(tmp_path: Path) -> None:
    """Neither a name nor a file."""
    with pytest.raises(UsageError, match=r"no scenario 's9': use one of cosmoflow"):
        load_scenario("s9")
    with pytest.raises(UsageError, match=r"cannot read scenario"):
        load_scenario(tmp_path / "none.yaml")


def leaves(value: Any, path: str = "") -> Iterator[tuple[str, float]]:
    """All numbers of a scenario, by path."""
    if isinstance(value, dict):
        for key, below in value.items():
            yield from leaves(below, f"{path}{key}.")
    elif isinstance(value, (list, tuple)):
        for key, below in enumerate(value):
            yield from leaves(below, f"{path}{key}.")
    elif isinstance(value, (int, float)):
        yield path[:-1], value


FLOATS = ("_mb", "_mb_s", ".1", ".2", ".3")


@pytest.mark.parametrize("path", [path for path, _ in leaves(yaml.safe_load(TEXT))])
def test_every_number_matters(path: str) -> None:
    """Each number of a scenario changes what some policy takes: none is read and dropped."""
    given = yaml.safe_load(TEXT)
    less = copy.deepcopy(given)
    value = dict(leaves(given)).get(path)
    assert value is not None
    put(less, path, value / 1.3 if path.endswith(FLOATS) or value < 1 else value // 2)
    before, after = totals(given), totals(less)
    assert before != after


def totals(given: Any) -> list[float]:
    scenario = Scenario.model_validate(given)
    return [simulate(scenario, policy).total_s for policy in POLICIES if "lbann" not in policy]
