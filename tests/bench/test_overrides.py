"""Overrides: Hydra's grammar, and what they do to a file."""

from __future__ import annotations

import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from omegaconf import OmegaConf

from penstock.errors import UsageError
from penstock_bench.workload import overrides
from tests.slices import fraction


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("true", True),
        ("FALSE", False),
        ("null", None),
        ("Null ", None),
        ("None", "None"),
        ("1_000", 1000),
        ("-3", -3),
        ("+4", 4),
        ("1e-3", 1e-3),
        (".5", 0.5),
        ("1.", 1.0),
        ("1_0.5e1_0", 10.5e10),
        ("inf", math.inf),
        ("-INF", -math.inf),
        ("on", "on"),
        ("off", "off"),
        ("yes", "yes"),
        ("0x10", "0x10"),
        ("010", "010"),
        ("1_", "1_"),
        ("12:30:45", "12:30:45"),
        ("", ""),
        ("''", ""),
        ("a b", "a b"),
        ("a:b", "a:b"),
        ("s3://b/x", "s3://b/x"),
        ("/data/x-1.yaml", "/data/x-1.yaml"),
        (r"x\,y", "x,y"),
        (r"x\=y", "x=y"),
        (r"a\ ", "a "),
        (r"a\b", r"a\b"),
        (r"a\\b", r"a\b"),
        ("'1'", "1"),
        ('"it\'s"', "it's"),
        (r"'it\'s'", "it's"),
        (r"'a\\'", "a\\"),
        (r"'a\\b'", r"a\\b"),
        (r"'a\\\'b'", r"a\'b"),
        ("'a,b=c'", "a,b=c"),
        ("[]", []),
        ("[1, 2.5, x y, [true]]", [1, 2.5, "x y", [True]]),
        ("{}", {}),
        ("{type: gamma, shape: 2, scale: 0.1}", {"type": "gamma", "shape": 2, "scale": 0.1}),
        ("{a: [1], b: {c: 'd'}}", {"a": [1], "b": {"c": "d"}}),
    ],
)
def test_values_are_those_of_hydra(text: str, value: Any) -> None:
    """The right column is what Hydra 1.3.8 makes of the left."""
    found = overrides.parse(f"++workload.a.b={text}").value()
    assert found == value
    assert type(found) is type(value)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a=1,2", "is a sweep"),
        ("a=range(1,4)", "is a sweep"),
        ("a=choice(1,2)", "is a sweep"),
        ("a=glob(*)", "is a sweep"),
        ("a=b=c", "mismatched input '='"),
        ("a=b]", "is no override"),
        ("a=[1", "is no override"),
        ("a='x", "is no override"),
        ("a=" + "[" * 40, "is no override"),
        ("a=" + "[" * 9000, "is no override"),
        ("a", "missing EQUAL"),
        ("++a", "missing EQUAL"),
        ("a =1", "is no override"),
        ("a..b=1", "is no override"),
        ("a@b=1", "packages"),
        ("", "is no override"),
    ],
)
def test_what_is_no_override_is_refused_by_name(text: str, message: str) -> None:
    """Sweeps, packages and slips of grammar end in one line."""
    with pytest.raises(UsageError, match=message) as caught:
        overrides.parse(text)
    assert str(caught.value).startswith("CLI: ")
    assert "\n" not in str(caught.value)


SCALARS = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(10**12), 10**12),
    st.floats(allow_nan=False),
    st.text(max_size=12),
)
WORDS = st.from_regex(r"[a-z_][a-z0-9_]{0,8}", fullmatch=True).filter(
    lambda word: word not in {"null", "true", "false", "inf", "nan"}
)
VALUES = st.recursive(
    SCALARS,
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(WORDS, inner, max_size=3)),
    max_leaves=8,
)


def written(value: Any) -> str:
    """A value as Hydra's grammar writes it."""
    if isinstance(value, list):
        return "[" + ", ".join(map(written, value)) + "]"
    if isinstance(value, dict):
        return "{" + ",".join(f"{key}: {written(each)}" for key, each in value.items()) + "}"
    if isinstance(value, str):
        # Of backslashes, those before a quote and at the end are doubled.
        body, run = "", 0
        for letter in [*value, "'"]:
            if letter == "'":
                body += "\\" * run + "\\'"
            run = run + 1 if letter == "\\" else 0
            body += letter if letter != "'" else ""
        return "'" + body[:-2] + "'"
    return "null" if value is None else str(value)


@fraction(8)
@given(VALUES)
def test_what_is_written_is_read(value: Any) -> None:
    """Any value of scalars, lists and mappings survives the command line, type and all."""
    found = overrides.parse(f"+workload.a={written(value)}")
    assert found.is_add()
    assert found.key_or_group == "workload.a"
    assert repr(found.value()) == repr(value)


@given(st.text(max_size=30))
def test_any_text_is_an_override_or_refused(text: str) -> None:
    """Nothing but a UsageError of one line comes of any text."""
    try:
        said = f"CLI: {overrides.parse(text).key_or_group}"
    except UsageError as error:
        said = str(error)
    assert said.startswith("CLI: ")
    assert "\n" not in said


def applied(*texts: str, **file: Any) -> tuple[Any, list[str]]:
    """A mapping with overrides, and what was wrong with them."""
    found = overrides.parse_overrides(texts)
    config = OmegaConf.create(file)
    problems = [str(problem) for problem in found.problems]
    for key, override in found.edits.items():
        if problem := overrides.apply(override, config, "x.yaml"):
            problems.append(f"CLI: {key.removeprefix('workload.')}: {problem}")
    return OmegaConf.to_container(config), problems


def test_actions() -> None:
    """++ puts, + adds, bare changes, ~ deletes; mappings merge, lists are replaced."""
    file = {
        "train": {"epochs": 5, "computation_time": {"mean": 1}},
        "dataset": {"record_dims": [1]},
    }
    assert applied("++workload.reader.batch_size=4", **file)[0]["reader"] == {"batch_size": 4}
    assert applied("+workload.train.seed=1", **file)[0]["train"]["seed"] == 1
    assert applied("workload.train.epochs=2", **file)[0]["train"]["epochs"] == 2
    assert "epochs" not in applied("~workload.train.epochs", **file)[0]["train"]
    assert "epochs" not in applied("~workload.train.epochs=5", **file)[0]["train"]
    merged = applied("++workload.train={epochs: 1, computation_time: {stdev: 2}}", **file)[0]
    assert merged["train"] == {"epochs": 1, "computation_time": {"mean": 1, "stdev": 2}}
    assert applied("++workload.dataset.record_dims=[2,3]", **file)[0]["dataset"] == {
        "record_dims": [2, 3]
    }


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            "workload.reader.batch_size=4",
            "CLI: reader.batch_size: is not in x.yaml: write ++workload.reader.batch_size=4 to add"
            " it",
        ),
        (
            "+workload.train.epochs=2",
            "CLI: train.epochs: is 5 already: write ++workload.train.epochs=2 to replace it",
        ),
        (
            "~workload.train.seed",
            "CLI: train.seed: is not in x.yaml: there is nothing to remove",
        ),
        ("~workload.train.epochs=4", "CLI: train.epochs: is 5, not 4: nothing is removed"),
        (
            "++reader.batch_size=4",
            "CLI: reader.batch_size: is no key of a workload: write "
            "++workload.reader.batch_size=...",
        ),
        (
            "hydra.sweep.dir=x",
            "CLI: hydra.sweep.dir: sweeps are not run here: run penstock once for each value",
        ),
        (
            "hydra/launcher=joblib",
            "CLI: hydra/launcher: sweeps are not run here: run penstock once for each value",
        ),
        (
            "++hydra.verbose=true",
            "CLI: hydra.verbose: has no effect: hydra does not run the benchmark",
        ),
        ("+workload=x", "CLI: workload: expected workload=NAME, got +workload=x"),
        ("workload=[x]", "CLI: workload: expected workload=NAME, got workload=[x]"),
    ],
)
def test_what_is_wrong_is_told(text: str, message: str) -> None:
    """A bare override changes only what is there; others say what they would need."""
    root, problems = applied(text, train={"epochs": 5})
    assert problems == [message]
    assert root == {"train": {"epochs": 5}}


def test_what_is_chosen_beside_keys() -> None:
    """workload=, hydra.run.dir and hydra.output_subdir choose; the last one may be null."""
    found = overrides.parse_overrides(
        ["workload=unet3d_h100", "hydra.run.dir=/out/1", "++hydra.output_subdir=dlio_config"]
    )
    assert found == ("unet3d_h100", "/out/1", "dlio_config", {}, ())
    assert overrides.parse_overrides([]) == (None, None, ".hydra", {}, ())
    assert overrides.parse_overrides(["hydra.output_subdir=null"]).subfolder == ""


def test_access_keys_are_not_shown() -> None:
    """Records hold overrides, but not the values of access keys, in whatever form."""
    texts = [
        "++workload.storage.storage_options.access_key_id=hunter2",
        "++workload.storage.storage_options={secret_access_key: hunter2}",
        "++workload.train.epochs=2",
    ]
    shown = overrides.hide_secrets(texts)
    assert "hunter2" not in "".join(shown)
    assert shown[2] == texts[2]
