"""The page of a benchmark: what is in it, what is not, and how a browser shows it."""

from __future__ import annotations

import copy
import json
import re
from typing import Any

import numpy as np
import PIL.Image
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.errors import FormatError
from penstock_bench.results import recorded, report
from tests.bench import records as made
from tests.browser import (
    Tags,
    asked_for,
    browse,
    colours_of,
    measured,
    needs_chromium,
    page_of,
    values_of,
)


def words_of(values: dict[str, Any]) -> report.Headline:
    return report.conclude(recorded.records([values]))


def test_page_has_the_records_numbers():
    """The tables hold the figures of each run to the last bit, and the page the command."""
    values = made.record()
    text = report.render_page([values])
    rows = values_of(page_of(text))
    for place, run in enumerate(values["runs"]):
        figures = {
            "samples/s": run["samples_per_s"],
            "utilisation": run["au"]["raw"],
            "utilisation, net of the ceiling": run["au"]["net"],
            "wait for a batch, p99": run["stall_s"]["p99"],
            "CPU seconds per 1,000 samples": run["cpu_s_per_1000"],
            "peak memory": run["peak_rss_bytes"],
            "first batch after": run["first_batch_s"],
            "bytes of the device": run["device_bytes"],
        }
        for name, value in figures.items():
            assert rows[name][0][place] == value
        shares = run["decomposition"]
        order = ("storage_wait", "barrier", "compute", "other")
        assert [shares[name] for name in order] in rows[run["loader"]]
        dlio = rows["train_throughput_mean_samples_per_second"][0]
        assert dlio[2 * place] == run["dlio"]["train_throughput_mean_samples_per_second"]
        assert dlio[2 * place + 1] == run["samples_per_s"]
        for epoch in run["epochs"]:
            assert any(epoch["seconds"] in row for row in rows[str(epoch["epoch"])])
    for each in (values["command"], values["machine"]["host"], "record_length_bytes"):
        assert each in text


def test_pictures_are_to_scale():
    """Bars of shares are as long as the shares; the steps' areas have the shares' sizes."""
    values = made.record(("penstock",), epochs=1, steps=40, evaluation=False)
    tree = page_of(report.render_page([values]))
    pictures = {picture[0].text or "": picture for picture in tree.iter("svg") if len(picture)}
    bars = next(each for said, each in pictures.items() if said.startswith("Where time went"))
    shares = values["runs"][0]["decomposition"]
    drawn = {each.get("class"): each for each in bars.iter("rect")}
    kinds = {"computing": "compute", "waiting": "storage_wait", "barrier": "barrier"}
    for kind, name in kinds.items():
        length = float(str(drawn[kind].get("width")).rstrip("%")) / 100
        assert length == pytest.approx(shares[name], abs=1e-3)
    strip = next(each for said, each in pictures.items() if said.startswith("Shares of time"))
    areas = {each.get("class"): area(str(each.get("d"))) for each in strip.iter("path")}
    [run] = recorded.records([values])[0].runs
    parts = run.trained[0].parts_s
    expected = (parts / parts.sum(axis=1, keepdims=True)).sum(axis=0) * 100
    for kind, size in zip(("computing", "waiting", "barrier"), expected, strict=False):
        assert areas[kind] == pytest.approx(size, rel=1e-2, abs=0.5)


def area(outline: str) -> float:
    """The area of a polygon as a path of M, L, H, V and Z, by the shoelace formula."""
    x = y = 0.0
    points = []
    for letter, numbers in re.findall(r"([MLHV])([-\d. ]+)", outline):
        given = [float(each) for each in numbers.split()]
        if letter == "H":
            x = given[0]
        elif letter == "V":
            y = given[0]
        else:
            x, y = given
        points.append((x, y))
    pairs = zip(points, [*points[1:], points[0]], strict=True)
    return abs(sum(a[0] * b[1] - b[0] * a[1] for a, b in pairs)) / 2


# -- what is said ----------------------------------------------------------------------------------


def test_headline_says_who_what_and_why():
    """The page says which run is fastest and by how much, if it suffices, and what bounds it."""
    values = made.record()
    said = " ".join(words_of(values).said)
    rate, second = (values["runs"][place]["samples_per_s"] for place in (0, 1))
    assert f"penstock is fastest: {rate:,.0f} samples/s" in said
    assert f"{rate / second:.2f} × (" in said
    assert "The workload asks for 90.0\u00a0%: met." in said
    assert "What bounds it is the bandwidth of storage" in said
    assert words_of(values).advice == tuple(values["runs"][0]["roofline"]["advice"])


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"asked": 0.99, "wait_ms": (30.0,)}, "missed by"),
        ({"asked": 0.995, "wait_ms": (30.0,)}, "not reach even without I/O"),
        ({"loaders": ("a", "b"), "wait_ms": (4.0,)}, "equally fast within the noise"),
    ],
)
def test_headline_of_other_ends(change, said):
    assert said in " ".join(words_of(made.record(**change)).said)


def test_headline_does_not_blame_a_ceiling_that_is_far():
    """A run that reaches half of the lowest ceiling is not bound by it."""
    values = made.record(("penstock",))
    for ceiling in values["runs"][0]["roofline"]["ceilings"]:
        ceiling["samples_per_s"] *= 2
    said = " ".join(words_of(values).said)
    assert "None of the ceilings" in said
    assert "What bounds it" not in said


def test_cautions_come_first():
    """Memory instead of storage, a busy machine and wrong bytes are said at the top; a quiet run
    whose data were never cached has no caution."""
    values = made.record(("penstock",))
    values["machine"]["load_before"] = 1.7
    values["runs"][0]["verified"] = False
    cautions = " ".join(words_of(values).cautions)
    for each in ("2 of 3 epochs began with all of the data", "1.7 on 2 cores", "other bytes"):
        assert each in cautions
    quiet = made.record(("penstock",))
    for epoch in quiet["runs"][0]["epochs"]:
        epoch["cached_before"]["cached_bytes"] = 0
    assert words_of(quiet).cautions == ()


# -- any record ------------------------------------------------------------------------------------


@given(
    loaders=st.lists(st.sampled_from(["penstock", "torch", "a.b:c", "ü"]), max_size=3),
    ranks=st.sampled_from([1, 2, 64]),
    epochs=st.integers(0, 4),
    steps=st.sampled_from([0, 1, 2, 300]),
    wait=st.sampled_from([0.0, 1.0, 50.0]),
    parts=st.tuples(st.booleans(), st.booleans()),
)
def test_any_shape_has_a_page(loaders, ranks, epochs, steps, wait, parts):
    """No loader, epoch or step at all, one of each, 64 ranks, no waits: there is a page, which is
    well formed and the same twice."""
    text = report.render_page([shaped(tuple(loaders), ranks, epochs, steps, wait, *parts)])
    assert text == report.render_page([shaped(tuple(loaders), ranks, epochs, steps, wait, *parts)])
    tree = page_of(text)
    assert "nan" not in "".join(each.get("value", "") for each in tree.iter("data"))
    assert not re.search(r'="[^"]*\b(nan|inf)\b', text)


def shaped(
    loaders: tuple[str, ...],
    ranks: int,
    epochs: int,
    steps: int,
    wait: float,
    evaluation: bool,
    checkpoints: bool,
) -> dict[str, Any]:
    """A record of so many steps; the figures of runs are as of one step where there is none."""
    values = made.record(
        loaders,
        ranks=ranks,
        epochs=max(1, epochs),
        steps=max(1, steps),
        wait_ms=(wait,),
        evaluation=evaluation,
        checkpoints=checkpoints,
    )
    for run in values["runs"]:
        run["epochs"] = run["epochs"] if epochs else []
        for epoch in run["epochs"] if not steps else ():
            for rank in epoch["ranks"]:
                rank |= {name: [] for name in ("wait_s", "compute_s", "computed_s", "barrier_s")}
    return values


def places_of(values: Any, above: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """The path of each value in a record, but for the steps of lists of numbers after the first."""
    found = []
    children: Any = ()
    if isinstance(values, dict):
        children = values.items()
    elif isinstance(values, list):
        children = list(enumerate(values))[: 1 if isinstance(values[:1], float) else 3]
    for key, value in children:
        found += [(*above, key), *places_of(value, (*above, key))]
    return found


SMALL = made.record(("penstock", "torch"), ranks=2, epochs=2, steps=12)
PLACES = places_of(SMALL)


@given(unknown=st.sets(st.sampled_from(PLACES), max_size=12), gone=st.booleans())
def test_unknown_figures_are_left_out(unknown, gone):
    """A record has a page without NaN if any of its values are null or missing; without the values
    that make it a record it is refused by name."""
    values = copy.deepcopy(SMALL)
    for path in sorted(unknown, key=len, reverse=True):
        place = values
        for key in path[:-1]:
            place = place[key]
        if gone and isinstance(place, dict):
            del place[path[-1]]
        else:
            place[path[-1]] = None
    refused = any(path[0] in ("penstock_bench", "runs") and len(path) < 3 for path in unknown)
    if refused:
        with pytest.raises(FormatError, match="record"):
            report.render_page([values])
        return
    text = report.render_page([values])
    page_of(text)
    assert not re.search(r'="[^"]*\b(nan|inf)\b', text)


@pytest.mark.long
def test_a_large_record_has_a_small_page():
    """Five epochs of 1,000 steps on 8 ranks of three loaders are less than a megabyte, and ten
    times the steps are no longer a page: steps share what is drawn."""
    few, many = (
        len(report.render_page([made.record(ranks=2, epochs=5, steps=steps)]))
        for steps in (300, 3000)
    )
    assert many < 1.1 * few
    assert len(report.render_page([made.record(ranks=8, epochs=5, steps=1000)])) < 1_000_000


@pytest.mark.parametrize("value", ["0.5 s", [1], {}])
def test_times_that_are_no_numbers_are_refused(value):
    """A record that somebody edited is refused in words."""
    values = made.record(("penstock",), steps=3)
    values["runs"][0]["epochs"][0]["ranks"][0]["wait_s"][1] = value
    with pytest.raises(FormatError, match="times of steps are no numbers"):
        report.render_page([values])


def test_several_records_have_one_page():
    """Runs of one loader in two records keep apart, and what differs is said."""
    first, second = made.record(("penstock",)), made.record(("penstock",), batch=9)
    text = report.render_page([first, second], ["monday", "friday"])
    for each in ("penstock (monday)", "penstock (friday)", "reader.batch_size is not the same"):
        assert each in text


HOSTILE = "</title></style><img src=x onerror=alert(1)>\0\x1b\ud800]]> --> &amp; \"'"


def test_hostile_names_are_text():
    """Names, settings and advice become text and nothing else."""

    def named(text: str) -> dict[str, Any]:
        values = made.record((text, "b"), steps=3)
        values["workload"]["model"]["name"] = text
        values["command"] = values["machine"]["host"] = values["versions"]["numpy"] = text
        values["notes"] = [text]
        run = values["runs"][0]
        run["settings"] = {text: text}
        run["roofline"]["advice"] = [text]
        run["roofline"]["ceilings"][0] |= {"resource": text, "how": text}
        run["dlio"][text] = text
        return values

    text = report.render_page([named(HOSTILE)])
    text.encode()
    page_of(text)
    plain = report.render_page([named("x")])
    assert [tag for tag, _ in Tags(text).elements] == [tag for tag, _ in Tags(plain).elements]


def test_keys_to_storage_are_withheld():
    """Keys that let one into storage are in no page, wherever a record has them."""
    values = made.record(("penstock",), steps=3)
    secret = "hunter2"
    options = {"access_key_id": secret, "secret_access_key": secret, "endpoint_url": "https://x"}
    values["workload"]["storage"] = {"storage_options": options}
    given = f"++workload.storage.storage_options.secret_access_key={secret}"
    values["overrides"] = [given]
    values["command"] = f"penstock bench run x {given} --token {secret}"
    values["runs"][0]["settings"]["session_token"] = secret
    text = report.render_page([values])
    assert secret not in text
    assert "https://x" in text
    assert "(withheld)" in text


def test_page_loads_nothing():
    """No element that loads, and a policy that forbids it anyway."""
    text = report.render_page([made.record()])
    loading = {"script", "link", "img", "iframe", "object", "embed", "base", "form", "use", "image"}
    elements = Tags(text).elements
    assert not loading & {tag for tag, _ in elements}
    for _, attributes in elements:
        assert not {"src", "href", "xlink:href", "style", "action"} & attributes.keys()
    assert "url(" not in text
    assert "default-src 'none'" in text


def test_pictures_have_titles():
    """Each picture has a title, which tells readers who do not see it what it shows."""
    for picture in page_of(report.render_page([made.record()])).iter("svg"):
        if picture.get("role") == "img":
            assert picture[0].tag == "title"
            assert picture[0].text


# -- a browser -------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def pages() -> dict[str, str]:
    """Pages of many loaders, of one, and of the least that a run can be."""
    long = "mymodule.sub.package:make_a_loader_with_a_long_name"
    least = made.record(
        ("penstock",), ranks=1, epochs=1, steps=1, wait_ms=(0.0,), checkpoints=False
    )
    return {
        "many": report.render_page(
            [made.record(("penstock", "torch", long, "grain"), staging_s=9.0)]
        ),
        "one": report.render_page([made.record(("penstock",), epochs=30, steps=9)]),
        "least": report.render_page([least]),
    }


@pytest.mark.long
@needs_chromium
def test_labels_do_not_touch_and_pages_do_not_overflow(pages, tmp_path):
    """At the width of a desktop and of a phone, no label of a picture lies on another, and no page
    is wider than its window. A page that is spoilt in both ways is found out."""
    shown = {
        f"{name} {width}": (text.replace("<details>", "<details open>"), width)
        for name, text in pages.items()
        for width in (1100, 390)
    }
    spoilt = pages["many"].replace('x="100%"', 'x="20%"').replace("overflow-x: auto", "")
    found = measured({**shown, "spoilt": (spoilt, 390)}, tmp_path)
    assert found["spoilt"]["met"]
    assert found["spoilt"]["overflow"] > 0
    for name in shown:
        assert found[name]["texts"] > 20
        assert found[name]["met"] == [], name
        assert found[name]["overflow"] <= 0, name


@pytest.mark.long
@needs_chromium
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_a_browser_shows_it(pages, scheme, tmp_path):
    """The page is drawn in its colours on light or dark paper; nothing is logged, and nothing
    asked of a network."""
    page, shot, log = (tmp_path / name for name in ("page.html", "page.png", "net.json"))
    page.write_text(pages["many"])
    done = browse(
        page,
        "--window-size=1100,4200",
        f"--screenshot={shot}",
        f"--blink-settings=preferredColorScheme={['dark', 'light'].index(scheme)}",
        f"--log-net-log={log}",
    )
    assert "CONSOLE" not in done.stderr
    assert asked_for(log) == []
    with PIL.Image.open(shot) as opened:
        pixels = np.asarray(opened.convert("RGB"))
    colours = colours_of(scheme)
    assert (pixels[5, 5] == colours["paper"]).all()
    assert colours_of("light")["paper"] != colours_of("dark")["paper"]
    for kind in ("computing", "waiting", "purple", "accent", "green"):
        drawn = (pixels == colours[kind]).all(axis=2).sum()
        assert drawn > 300, f"{drawn} pixels have the colour of {kind}"


def test_a_record_is_json():
    """The records that these tests are of are JSON as the benchmark writes it, without NaN."""
    values = made.record()
    assert json.loads(json.dumps(values, allow_nan=False)) == values
