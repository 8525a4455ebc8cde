"""Overrides: Hydra's grammar, and what they do to a file."""

from __future__ import annotations

import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.errors import UsageError
from penstock_bench import overrides
from penstock_bench.document import make_given as as_given
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
    found = overrides.parse(f"++workload.a.b={text}").value
    assert found == value
    assert type(found) is type(value)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a=1,2", "sweep"),
        ("a=range(1,4)", r"range\(\) is a sweep"),
        ("a=choice(1,2)", r"choice\(\) is a sweep"),
        ("a=glob(*)", r"glob\(\) is a sweep"),
        ("a=int(3.5)", r"the function int\(\) is not read"),
        ("a=${b}", "interpolations"),
        ("a=b=c", "a second '=' at column 4"),
        ("a=b]", "at column 4"),
        ("a=[1", "ends too early"),
        ("a='x", "put the value into quotes"),
        ("a=caf\u00e9", "put the value into quotes"),
        ("a=" + "[" * 40, "more than 32 deep"),
        ("a", "has no value: write a=value"),
        ("++a", "has no value"),
        ("a =1", "expected '=' at column 2"),
        ("a..b=1", "expected '=' at column 2"),
        ("a@b=1", "packages"),
        ("=1", "is no override"),
        ("", "is no override"),
    ],
)
def test_what_is_no_override_is_refused_by_name(text: str, message: str) -> None:
    """Sweeps, functions, interpolations and slips of grammar, which Hydra refuses or runs often."""
    with pytest.raises(UsageError, match=message) as caught:
        overrides.parse(text)
    assert str(caught.value).startswith("CLI: ")


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


@fraction(2)
@given(VALUES)
def test_what_is_written_is_read(value: Any) -> None:
    """Any value of scalars, lists and mappings survives the command line, type and all."""
    found = overrides.parse(f"+workload.a={written(value)}")
    assert (found.action, found.key) == ("add", "workload.a")
    assert repr(found.value) == repr(value)


@given(st.text(max_size=30))
def test_any_text_is_an_override_or_refused(text: str) -> None:
    """Nothing but a UsageError of one line comes of any text."""
    try:
        said = f"CLI: {overrides.parse(text).text}"
    except UsageError as error:
        said = str(error)
    assert said.startswith("CLI: ")
    assert "\n" not in said or "\n" in text


def applied(*texts: str, **file: Any) -> tuple[Any, list[str]]:
    """A mapping with overrides, and what was wrong with them."""
    found = overrides.read(texts)
    root, problems = overrides.apply(found.edits, as_given(file, "x.yaml"), "x.yaml")
    return root.plain, [str(each) for each in [*found.problems, *problems]]


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
            "workload.reader.batchsize=4",
            "CLI: reader.batchsize: is not in x.yaml; did you mean 'reader.batch_size'?",
        ),
        (
            "+workload.train.epochs=2",
            "CLI: train.epochs: is 5 already: write ++workload.train.epochs=2 to replace it",
        ),
        (
            "~workload.train.seed",
            "CLI: train.seed: is not in x.yaml: there is nothing to take away",
        ),
        ("~workload.train.epochs=4", "CLI: train.epochs: is 5, not 4: nothing is taken away"),
        (
            "++workload.train.epochs.x=4",
            "CLI: train.epochs.x: train.epochs is no section: it has the value 5",
        ),
        (
            "++reader.batch_size=4",
            "CLI: reader.batch_size: 'reader.batch_size' is no key of a workload: they begin with "
            "workload.; did you mean '++workload.reader.batch_size'?",
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
            "CLI: hydra.verbose: has no effect: penstock does not use Hydra",
        ),
        ("+workload=x", "CLI: workload: to choose the workload, write workload=x"),
        ("workload=[x]", "CLI: workload: expected a name, got ['x']"),
    ],
)
def test_what_is_wrong_is_told(text: str, message: str) -> None:
    """A bare override changes only what is there; others say what they would need."""
    root, problems = applied(text, train={"epochs": 5})
    assert problems == [message]
    assert root == {"train": {"epochs": 5}}


def test_what_is_chosen_beside_keys() -> None:
    """workload=, hydra.run.dir and hydra.output_subdir choose; the last one may be null."""
    found = overrides.read(
        ["workload=unet3d_h100", "hydra.run.dir=/out/1", "++hydra.output_subdir=dlio_config"]
    )
    assert found == ("unet3d_h100", "/out/1", "dlio_config", (), ())
    assert overrides.read([]) == (None, None, ".hydra", (), ())
    assert overrides.read(["hydra.output_subdir=null"]).subfolder == ""


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
