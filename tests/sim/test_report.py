"""The page of a simulation: what is in it, what is not, and how a browser shows it."""

from __future__ import annotations

import itertools
import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any, get_args
from xml.etree import ElementTree

import numpy as np
import PIL.Image
import pytest
from hypothesis import given
from hypothesis import strategies as st

import penstock_sim as sim
from penstock.cli import app
from penstock.errors import UsageError
from penstock_bench import page as layout
from penstock_bench import page as pages
from penstock_bench.page import quantities
from penstock_sim import report, sweep
from penstock_sim.fluid_model import TRAFFIC
from penstock_sim.scenario import SOURCES, Result
from penstock_sim.workload import SimulatedWorkload
from tests.browser import Tags, asked_for, browse, colours_of, needs_chromium, page_of, values_of
from tests.command import run
from tests.slices import first

SMALL = """
name: {name}
about: {about}
data: {{samples: 240, mean_mb: 1, sigma_mb: 0.3}}
training: {{nodes: 2, global_batch: 12, epochs: 3, compute_mb_s: 40, preprocess_mb_s: 90}}
system:
  network_mb_s: 500
  storage: {{link_mb_s: 100, read_mb_s: {{1: 20, 2: 30, 4: 40}}}}
  staging: {{capacity_mb: 40, threads: 2, read_mb_s: {{1: 900}}}}
  tiers:
    - {{name: {tier}, capacity_mb: 40, threads: 2, read_mb_s: {{1: 900}}}}
    - {{name: disk, capacity_mb: 60, threads: 2, read_mb_s: {{1: 90}}}}
"""


def small(name: str = "small", about: str = "A little of everything.", tier: str = "ram") -> Any:
    text = SMALL.format(name=json.dumps(name), about=json.dumps(about), tier=json.dumps(tier))
    return sim.parse_scenario(text, "small.yaml")


def outcomes_of(scenario: sim.Scenario, *models: str) -> list[sweep.Outcome]:
    runs = [
        sweep.SimulationRun(scenario, policy, model)
        for model in models
        for policy in scenario.policies
    ]
    return sweep.simulate_runs(runs)


@pytest.fixture(scope="module")
def both() -> tuple[Any, list[sweep.Outcome], list[sweep.Sweep]]:
    """A scenario by both models, and a sweep of each key."""
    scenario = small()
    values = {key: sweep.choose_values(scenario, key) for key in sweep.KEYS}
    return (
        scenario,
        outcomes_of(scenario, "corrected", "parity"),
        sweep.vary_keys(scenario, values),
    )


def test_page_has_the_results_numbers(both):
    """Each table holds the results' values to the last bit, under its policy's name; whoever could
    not run is there with the reason."""
    scenario, found, sweeps = both
    text = report.render_page(scenario, found, sweeps, command="penstock simulate small.yaml")
    rows = values_of(page_of(text))
    refused = 0
    for each in found:
        if not isinstance(each, Result):
            assert report.explain_refusal(each) in "".join(page_of(text).itertext())
            refused += 1
            continue
        mine = rows[each.policy]
        moved = [] if each.policy == "lower_bound" else each.moved_mb.sum(axis=0).tolist()
        bound = next(
            other.total_s
            for other in found
            if other.model == each.model and other.policy == "lower_bound"
        )
        summary = [each.total_s, each.total_s / bound, each.setup_s, each.epochs_s[0]]
        summary += [each.epochs_s[1:].mean(), each.stall_s.sum(), *moved]
        assert summary in mine
        for epoch in range(3):
            row = [epoch + 1, each.epochs_s[epoch], each.stall_s[epoch], *each.moved_mb[epoch]]
            assert row in mine
    for swept in sweeps:
        for at, policy in enumerate(scenario.policies):
            column = [row[at] for row in swept.outcomes]
            assert [each.total_s for each in column if isinstance(each, Result)] in rows[policy]
    assert 0 < refused < len(found)
    assert "penstock simulate small.yaml" in text


def test_pictures_are_to_scale(both):
    """The bars are as long as the times that they stand for, and columns as high as the bytes."""
    scenario, found, _ = both
    found = [each for each in found if each.model == "corrected"]
    tree = page_of(report.render_page(scenario, found))
    pictures = list(tree.iter("svg"))
    for picture in pictures:
        assert picture[0].tag == "title"
        assert picture[0].text
    ranked = report.rank_results(found)
    bars = list(pictures[0].iter("rect"))
    rows: dict[str, float] = {}
    for bar in bars:
        rows[bar.get("y", "")] = rows.get(bar.get("y", ""), 0) + float(bar.get("width", ""))
    lengths = np.array([rows[y] for y in sorted(rows, key=float)])
    totals = np.array([each.total_s for each in ranked])
    np.testing.assert_allclose(lengths / lengths[0], totals / totals[0], rtol=1e-3)
    last = pictures[-1]
    assert last[0].text is not None
    policy = next(each for each in ranked if f", {each.policy}:" in last[0].text)
    heights = {
        kind: sum(float(r.get("height", "")) for r in last.iter("rect") if r.get("class") == kind)
        for kind in SOURCES
    }
    whole = sum(heights.values())
    shares = policy.moved_mb.sum(axis=0) / policy.moved_mb.sum()
    np.testing.assert_allclose([heights[kind] / whole for kind in SOURCES], shares, atol=2e-3)


def test_page_is_the_same_twice(both):
    scenario, found, sweeps = both
    assert report.render_page(scenario, found, sweeps) == report.render_page(small(), found, sweeps)


def test_page_loads_nothing(both):
    """No element that loads, no address outside text, and a policy that forbids it anyway."""
    scenario, found, sweeps = both
    text = report.render_page(scenario, found, sweeps)
    loading = {"script", "link", "img", "iframe", "object", "embed", "base", "form", "use", "image"}
    elements = Tags(text).elements
    assert not loading & {tag for tag, _ in elements}
    for _, attributes in elements:
        assert not {"src", "href", "xlink:href", "style", "action"} & attributes.keys()
    assert "://" not in text
    assert "url(" not in text
    assert "default-src 'none'" in text


HOSTILE = [
    "<script>alert(1)</script>",
    "\"' onload='x' & &amp; ]]> --> {{7*7}}",
    "\0\x1b[31m\ud800\uffff\u202e",
    "</title></style><img src=x onerror=alert(1)>",
    "../../etc/passwd",
    "",
]


@pytest.mark.parametrize("name", first(3, HOSTILE))
def test_hostile_names_are_text(name):
    """Names become text and nothing else: the elements are those of a harmless name."""
    scenario = small(name, name, name)
    refusals = [sweep.Refusal(name, "naive", "corrected", f"naive: {name}")]
    found = [*outcomes_of(scenario, "corrected")[1:], *refusals]
    text = report.render_page(scenario, found, command=name)
    text.encode()
    tree = page_of(text)
    printable = re.sub("[\0\x1b\ud800\uffff]", "\ufffd", name)
    assert (tree.findtext("body/h1") or "") == printable
    harmless = report.render_page(small("x", "x" if name else "", "x"), found, command=name)
    assert [tag for tag, _ in Tags(text).elements] == [tag for tag, _ in Tags(harmless).elements]


@given(name=st.text(st.characters(), max_size=30))
def test_any_text_survives_as_text(name):
    """Text comes back as it was, but for characters that no page may hold."""
    template = pages.environment().from_string('<p title="{{ name }}">{{ name }}</p>')
    text = template.render(name=name)
    text.encode()
    back = ElementTree.fromstring(text).text or ""
    expected = re.sub(r"\r\n?", "\n", name)  # as XML reads line ends
    assert len(back) == len(expected)
    assert all(b in (a, "\ufffd") for a, b in zip(expected, back, strict=True))


@given(
    low=st.floats(1e-6, 1e6),
    factor=st.floats(1.0, 1e6),
    most=st.integers(3, 9),
    log=st.booleans(),
)
def test_ticks_are_few_round_and_inside(low, factor, most, log):
    """No tick lies outside the axis, they ascend, and there are not more than asked for."""
    axis = layout.Axis(low, low * factor, 0.0, 100.0, log)
    ticks = axis.ticks(most)
    assert len(ticks) <= most + 1
    for tick in ticks:
        assert low * 0.998 <= tick <= low * factor * 1.002
    assert all(a < b for a, b in itertools.pairwise(ticks))
    assert all(axis.at(a) <= axis.at(b) for a, b in itertools.pairwise(ticks))


@given(places=st.lists(st.floats(0, 300), max_size=14).map(sorted))
def test_labels_do_not_overlap(places):
    """Labels keep their order and their distance, and move only where they must."""
    spread = layout.spread_labels(places, 17.0, 0.0, 300.0)
    assert len(spread) == len(places)
    assert all(b - a >= 17.0 - 1e-6 for a, b in itertools.pairwise(spread))
    if all(b - a >= 17.0 for a, b in itertools.pairwise(places)):
        assert spread == pytest.approx(places)


@given(
    epochs=st.lists(st.floats(0, 1e6), min_size=1, max_size=200),
    each=st.integers(1, 70),
)
def test_grouped_epochs_keep_their_mean(epochs, each):
    values = np.array(epochs)
    grouped = report._average_groups(values, each)
    weights = [len(values[first : first + each]) for first in range(0, len(values), each)]
    assert np.average(grouped, weights=weights) == pytest.approx(values.mean(), abs=1e-6)


def test_every_policy_is_described():
    """Every policy has a line; a star has who trains on other bytes than the order's."""
    assert tuple(report.POLICIES) == get_args(sim.Policy)
    scenario = small()
    tier = scenario.system.tiers[0].model_copy(update={"capacity_mb": 200.0})  # all can run
    system = scenario.system.model_copy(update={"tiers": (tier, scenario.system.tiers[1])})
    workload = SimulatedWorkload(scenario.model_copy(update={"system": system}))
    due = np.array([workload.sizes[window.samples].sum() for window in workload.windows()])
    replacing = set()
    for policy, traffic_of in TRAFFIC.items():
        traffic = traffic_of(workload)
        need = traffic.need[traffic.setup :].reshape(len(due), -1).sum(axis=1)
        if (need != due).any():
            replacing.add(policy)
    assert replacing == report.REPLACING


def test_templates_are_loaded_with_the_first_page():
    """Reports are imported without jinja2; a page without it is refused with the remedy."""
    code = (
        "import sys\n"
        "from penstock_bench.results import report\n"
        "from penstock_sim import report\n"
        "from penstock.errors import UsageError\n"
        "from penstock_bench.page import render\n"
        "assert 'jinja2' not in sys.modules\n"
        "sys.modules['jinja2'] = None\n"
        "try:\n"
        "    render('bench.html')\n"
        "except UsageError as error:\n"
        "    print(error)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert "a page needs jinja2" in done.stdout
    assert "pip install jinja2 (or 'penstock[bench]')" in done.stdout


# -- sweeps ----------------------------------------------------------------------------------------


@pytest.mark.long
def test_a_sweep_is_the_simulations_by_hand():
    """Each point is the outcome of the scenario with that value, whatever the processes."""
    scenario = small()
    keys: dict[sweep.Key, list[float]] = {"nodes": [1.0, 4.0], "bandwidth": [15.0]}
    told: list[tuple[int, int]] = []
    found = sweep.vary_keys(
        scenario, keys, policies=["staging", "penstock"], progress=lambda *at: told.append(at)
    )
    assert [each.key for each in found] == ["nodes", "bandwidth"]
    assert found[0].values == (1.0, 2.0, 4.0)
    assert found[1].values == (15.0, 30.0)
    assert told == [(done, 10) for done in range(1, 11)]
    for each in found:
        assert each.own in each.values
        for value, row in zip(each.values, each.outcomes, strict=True):
            other = sweep.vary(scenario, each.key, value)
            for result in row:
                assert isinstance(result, Result)
                again = sim.simulate(other, result.policy)
                assert again.total_s == result.total_s
    apart = sweep.vary_keys(scenario, keys, policies=["staging", "penstock"], processes=2)
    for mine, theirs in zip(found, apart, strict=True):
        for a, b in zip(sum(mine.outcomes, ()), sum(theirs.outcomes, ()), strict=True):
            assert isinstance(a, Result)
            assert isinstance(b, Result)
            assert a.total_s == b.total_s
            assert np.array_equal(a.moved_mb, b.moved_mb)


@pytest.mark.parametrize("key", sweep.KEYS)
def test_varied_changes_one_thing(key):
    """A scenario varied to its own value is itself; `own_value` reads another value back."""
    scenario = small()
    assert sweep.vary(scenario, key, sweep.own_value(scenario, key)) == scenario
    for value in sweep.choose_values(scenario, key):
        other = sweep.vary(scenario, key, value)
        assert sweep.own_value(other, key) == pytest.approx(value)
        assert other.batch == scenario.batch
        assert other.data == scenario.data
    for wrong in (0.0, -1.0, float("nan"), float("inf"), 1e30):
        with pytest.raises(UsageError, match=key):
            sweep.vary(scenario, key, wrong)


@given(mean=st.floats(0.1, 2.0), ratio=st.floats(0.0, 2.0))
def test_expected_size_is_the_drawn_size(mean, ratio):
    """The data size on the page is that of the drawn samples, but for chance."""
    scenario = small()
    data = scenario.data.model_copy(
        update={"samples": 40_000, "mean_mb": mean, "sigma_mb": mean * ratio}
    )
    scenario = scenario.model_copy(update={"data": data})
    drawn = float(SimulatedWorkload(scenario).sizes.sum()) / 1e6
    assert drawn == pytest.approx(sweep.data_mb(scenario), rel=0.03)


# -- the command -----------------------------------------------------------------------------------


@pytest.fixture
def scenario_path(tmp_path: Path) -> Path:
    path = tmp_path / "small.yaml"
    path.write_text(SMALL.format(name="small", about="Little.", tier="ram"))
    return path


def test_simulate_prints_and_writes(scenario_path, tmp_path):
    """Table, page and JSON agree; the same command gives the same bytes."""
    arguments = ("simulate", scenario_path, "--sweep", "nodes", "--json")
    done = run(*arguments, folder=tmp_path)
    assert "page: small.html" in done.stderr
    values = json.loads(done.stdout)
    page = (tmp_path / "small.html").read_text()
    rows = values_of(page_of(page))
    for each in values["runs"]:
        assert each["policy"] in done.stderr
        if "reason" in each:
            assert f"{each['policy']} cannot run: " in done.stderr
        else:
            assert each["total_s"] in [row[0] for row in rows[each["policy"]]]
            assert quantities.brief(each["total_s"]) in done.stderr
    assert [each["key"] for each in values["sweeps"]] == ["nodes"]
    run(*arguments, folder=tmp_path)
    assert (tmp_path / "small.html").read_text() == page
    assert {path.name for path in tmp_path.iterdir()} == {"small.yaml", "small.html"}


def test_simulate_by_events(scenario_path, tmp_path):
    """The library's own policies have results, the others a reason, and nothing is varied."""
    done = run("simulate", scenario_path, "--model", "events", "--json", folder=tmp_path)
    assert "events model" in done.stderr
    values = json.loads(done.stdout)
    found = {each["policy"]: each for each in values["runs"]}
    for policy in ("penstock", "penstock_local"):
        result = sim.simulate(sim.load_scenario(scenario_path), policy, "events")
        assert found.pop(policy)["epochs_s"] == result.epochs_s.tolist()
    assert all("is not the library's own" in each["reason"] for each in found.values())
    assert values["sweeps"] == []


def test_simulate_lists():
    listed = run("simulate", "--list").stdout
    for name in (*sim.list_scenarios(), *sim.POLICIES):
        assert name in listed


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("s9",), "there is no scenario 's9'"),
        ((), "--list"),
        (("none.yaml",), "none.yaml"),
        (("bad.yaml",), "data.samples is 'many'"),
        (("s1", "--policy", "magic"), "--policy is 'magic': use one of naive"),
        (("s1", "--sweep", "colour"), "--sweep is 'colour': use one of nodes"),
        (("s1", "--model", "other"), "--model is 'other'"),
        (("s1", "--sweep", "nodes", "--no-sweeps"), "give one"),
        (("s1", "--output", "no/where.html"), "no/where.html"),
        (("s1", "--output", "x.txt"), "give one file .html and one file .yaml"),
        (("taken.yaml",), "taken.html is here and no page"),
        (("s1", "--model", "parity", "--policy", "penstock"), "no policy can run in s1"),
    ],
)
def test_bad_input_is_one_message(arguments, said, tmp_path, monkeypatch, capsys):
    """The error names what is wrong and ends with code 1; nothing is written."""
    (tmp_path / "bad.yaml").write_text("name: x\ndata: {samples: many, mean_mb: 1}\n")
    (tmp_path / "taken.yaml").write_text(SMALL.format(name="taken", about="x", tier="ram"))
    (tmp_path / "taken.html").write_text("my own")
    before = sorted(path.name for path in tmp_path.iterdir())
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", ["penstock", "simulate", *arguments])
    with pytest.raises(SystemExit) as ended:
        app.main()
    assert ended.value.code == 1
    assert said in capsys.readouterr().err
    assert sorted(path.name for path in tmp_path.iterdir()) == before
    assert (tmp_path / "taken.html").read_text() == "my own"


@pytest.mark.long
def test_ctrl_c_ends_all_processes(tmp_path):
    """Exit code 130, one line, no word of those that simulate, and nothing written; they are told
    as a terminal does, and may still be starting."""
    code = (
        "import os, signal, sys\n"
        "from penstock import cli\n"
        "from penstock_sim import sweep\n"
        "if __name__ == '__main__':\n"
        "    signal.signal(signal.SIGINT, signal.default_int_handler)\n"
        "    started = sweep.as_completed\n"
        "    def told(numbers):\n"
        "        os.killpg(0, signal.SIGINT)\n"
        "        return started(numbers)\n"
        "    sweep.as_completed = told\n"
        "    os.sched_getaffinity = lambda pid: {0, 1}\n"
        "    sys.argv = ['penstock', 'simulate', 's2', '--no-sweeps']\n"
        "    cli.main()\n"
    )
    (tmp_path / "told.py").write_text(code)
    source = str(Path(sim.__file__).parents[2])
    done = subprocess.run(
        [sys.executable, "told.py"],
        capture_output=True,
        text=True,
        cwd=tmp_path,
        start_new_session=True,
        env={**os.environ, "PYTHONPATH": source},
    )
    assert done.returncode == 130, done.stderr
    # All of it, and its end: nobody else holds the pipe.
    assert (
        done.stderr == "penstock: stopped: nothing was written, and the same command starts again\n"
    )
    assert not (tmp_path / "s2.html").exists()


# -- a browser -------------------------------------------------------------------------------------


@pytest.mark.long
@needs_chromium
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_a_browser_shows_it(both, scheme, tmp_path):
    """The page is drawn, in its colours, on light or dark paper; nothing is logged, and nothing
    asked of a network."""
    scenario, found, sweeps = both
    page, shot, log = (tmp_path / name for name in ("page.html", "page.png", "net.json"))
    page.write_text(
        report.render_page(scenario, found, sweeps, command="penstock simulate small.yaml")
    )
    done = browse(
        page,
        "--window-size=1100,1400",
        f"--screenshot={shot}",
        f"--blink-settings=preferredColorScheme={['dark', 'light'].index(scheme)}",
        f"--log-net-log={log}",
    )
    assert "CONSOLE" not in done.stderr
    assert asked_for(log) == []
    with PIL.Image.open(shot) as opened:
        assert opened.format == "PNG"
        assert opened.size == (1100, 1400)
        pixels = np.asarray(opened.convert("RGB"))
    colours = colours_of(scheme)
    assert (pixels[5, 5] == colours["paper"]).all()
    for kind in ("setup", "computing", "waiting", "accent"):
        drawn = (pixels == colours[kind]).all(axis=2).sum()
        assert drawn > 300, f"{drawn} pixels have the colour of {kind}"


@pytest.mark.long
@needs_chromium
def test_a_browser_is_kept_from_loading(both, tmp_path):
    """A browser refuses an image from the network; without the page's policy it asks for it, so
    that the test above can fail."""
    page, log = tmp_path / "page.html", tmp_path / "net.json"
    text = report.render_page(both[0], both[1])
    text = text.replace("</body>", '<img src="http://127.0.0.1:9/x.png"></body>')
    page.write_text(text)
    done = browse(page, f"--log-net-log={log}", f"--screenshot={tmp_path / 'x.png'}")
    assert "CONSOLE" in done.stderr
    assert asked_for(log) == []
    page.write_text(re.sub("<meta [^>]*Security[^>]*>", "", text))
    browse(page, f"--log-net-log={log}", f"--screenshot={tmp_path / 'x.png'}")
    assert asked_for(log) == ["http://127.0.0.1:9/x.png"]


@pytest.mark.long
@needs_chromium
def test_a_browser_reads_what_was_written(both, tmp_path):
    """HTML's rules, as a browser has them, make the elements and numbers that were meant."""
    text = report.render_page(*both)
    page = tmp_path / "page.html"
    page.write_text(text)
    dumped = Tags(browse(page, "--dump-dom").stdout).elements
    assert dumped == Tags(text).elements
