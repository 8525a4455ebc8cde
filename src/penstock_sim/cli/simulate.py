"""`penstock simulate`: a table in the terminal, and the page of `sim.report`."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, get_args

import typer

from penstock.arguments import check_choice
from penstock.cli import AsJson, complete_names, console, explain_interrupt, setting, write_text
from penstock.cli.quantities import duration, parse_amount
from penstock.engine import measure_copying
from penstock.errors import UsageError
from penstock_bench.page.files import repeat_command, results_alone, sort_outputs, write_page
from penstock_bench.page.quantities import brief, size

_sweeps_at_once = 500_000_000
"""Accesses to samples of sweeps that nobody asked for: about a minute of one core."""

_accesses_per_s = 8_000_000
"""Accesses that a core simulates in a second, for estimates."""

_alone = 5_000_000
"""Accesses of simulations that are done before another process has started."""


def complete_scenario(incomplete: str) -> list[str]:
    """Names of scenarios."""
    from penstock_sim import list_scenarios

    return complete_names(list_scenarios(), incomplete)


def complete_policy(incomplete: str) -> list[str]:
    """Names of policies."""
    from penstock_sim import Policy

    return complete_names(get_args(Policy), incomplete)


@explain_interrupt()
def simulate(
    scenario: Annotated[
        str | None,
        typer.Argument(
            help="A name that --list shows, or the path of a .yaml file.",
            autocompletion=complete_scenario,
        ),
    ] = None,
    policy: list[str] | None = setting(
        None,
        "Simulate only this policy; may be repeated.",
        show_default="the scenario's",
        autocompletion=complete_policy,
    ),
    model: str = setting(
        "corrected",
        "corrected, parity (the published simulator), both of them, or events (penstock's "
        "own code, event by event, for up to 64 nodes).",
    ),
    sweep: list[str] | None = setting(
        None,
        "Vary nodes, cache or bandwidth; may be repeated.",
        show_default="all three, where that takes a minute or so",
    ),
    no_sweeps: bool = setting(False, "Vary nothing.", "--no-sweeps"),
    output: list[Path] | None = setting(
        None,
        "The page to write, .html; with --from-run, the scenario too, .yaml.",
        "--output",
        "-o",
        show_default="NAME.html, here",
    ),
    as_json: AsJson = False,
    from_run: list[Path] | None = setting(
        None,
        "Instead of a scenario: what Loader.run_record() returned on a rank, as JSON; "
        "once for each rank, or for some of them.",
    ),
    nodes: int | None = setting(
        None, "With --from-run: on so many, with as large batches on each."
    ),
    ram: str | None = setting(
        None, "With --from-run: the cache of each node, such as 64GB.", metavar="SIZE"
    ),
    storage: str | None = setting(
        None, "With --from-run: its rates, measured, by nodes: 1=95MB/s,8=600MB/s.", metavar="RATES"
    ),
    network: str | None = setting(
        None,
        "With --from-run: the rate of a node's network, measured, such as 10GB/s.",
        metavar="RATE",
    ),
    listed: bool = setting(
        False, "List the scenarios that come along, and the policies.", "--list"
    ),
) -> None:
    """Simulate policies of caching and prefetching on a cluster that is described.

    Prints how long the run takes under each policy beside the lower bound, and writes one HTML page
    that needs nothing else: epochs, where bytes came from, and what more nodes, larger caches or
    faster storage would change. Equal scenarios give equal pages. docs/simulator/ states the
    models and what a scenario holds.

    Examples:

      penstock simulate --list

      penstock simulate s4

      penstock simulate cluster.yaml --policy penstock --policy nopfs --policy lower_bound

      penstock simulate cluster.yaml --sweep nodes --output nodes.html --json > nodes.json

      penstock simulate s1 --model both --no-sweeps

      penstock simulate s1 --model events --policy penstock --policy penstock_local

      penstock simulate --from-run record.json --nodes 8 --output cluster.yaml
    """
    from .. import KEYS, Model, load_scenario, report  # with packages that others do without

    if listed:
        _list_scenarios()
        return
    html, yaml = sort_outputs(output, ".html", ".yaml")
    if from_run:
        if scenario is not None:
            raise UsageError(f"a scenario ({scenario}) and --from-run are both given: give one")
        chosen = _calibrate_scenario(
            from_run, nodes=nodes, ram=ram, storage=storage, network=network, write=yaml
        )
    else:
        if any(value is not None for value in (nodes, ram, storage, network, yaml)):
            raise UsageError(
                "--nodes, --ram, --storage, --network and --output FILE.yaml are of --from-run: "
                "give that, or write a scenario"
            )
        if scenario is None:
            raise UsageError(
                "name a scenario: `penstock simulate --list` shows those that come along"
            )
        chosen = load_scenario(scenario)
    policies = _check_names("--policy", policy, report.POLICIES) or list(chosen.policies)
    check_choice("--model", model, (*get_args(Model), "both"))
    models = ["corrected", "parity"] if model == "both" else [model]
    if sweep and no_sweeps:
        raise UsageError("--sweep and --no-sweeps are both given: give one")
    page = html or choose_page_path(chosen.name)
    with results_alone(as_json):
        _simulate(
            chosen,
            policies,
            models,
            None if sweep is None else _check_names("--sweep", sweep, KEYS),
            no_sweeps=no_sweeps,
            page=page,
            as_json=as_json,
        )


def _simulate(
    scenario: Any,
    policies: list[Any],
    models: list[Any],
    keys: list[Any] | None,
    *,
    no_sweeps: bool,
    page: Path,
    as_json: bool,
) -> None:
    from .. import Result, report, sweep

    runs = [sweep.SimulationRun(scenario, policy, model) for model in models for policy in policies]
    with console.show_progress(f"Simulating {scenario.name}", "simulations") as progress:
        outcomes = sweep.simulate_runs(
            runs, processes=_choose_processes(sweep.count_accesses(runs)), progress=progress
        )
    for model in models:
        _show_outcomes(model, [outcome for outcome in outcomes if outcome.model == model])
    if not any(isinstance(outcome, Result) for outcome in outcomes):
        raise UsageError(f"no policy can run in {scenario.name}: nothing to write")

    values = {key: sweep.choose_values(scenario, key) for key in (keys or sweep.KEYS)}
    count = sum(len(points) + 1 for points in values.values()) * len(policies)
    accesses = count * _count_accesses(scenario)
    remark = ""
    if keys is None and not no_sweeps and models[0] == "events":
        remark = "Without sweeps: --sweep nodes, cache or bandwidth makes them, event by event."
    elif keys is None and not no_sweeps and accesses > _sweeps_at_once:
        remark = (
            f"Without sweeps: their {count:,} simulations, {accesses / 1e9:,.1f} thousand million "
            "accesses to samples, take minutes. --sweep nodes, cache or bandwidth makes them."
        )
    if remark:
        console.say(remark)
    if no_sweeps or remark:
        values = {}
    with console.show_progress("Varying " + ", ".join(values), "simulations") as progress:
        swept = sweep.vary_keys(
            scenario,
            values,
            policies=policies,
            model=models[0],
            processes=_choose_processes(accesses),
            progress=progress,
        )
    command = repeat_command()
    write_page(page, report.render_page(scenario, outcomes, swept, command=command, remark=remark))
    if as_json:
        console.print_json(_simulation_values(scenario, outcomes, swept))


def _count_accesses(scenario: Any) -> int:
    """Accesses to samples of one simulation."""
    from .. import sweep

    return sweep.count_accesses([sweep.SimulationRun(scenario, "penstock", "corrected")])


def _estimate_s(scenario: Any) -> float:
    """Seconds of a core, roughly, that a scenario takes: its policies, and the sweeps if made."""
    from .. import sweep

    sweeps = sum(len(sweep.choose_values(scenario, key)) + 1 for key in sweep.KEYS)
    policies, accesses = len(scenario.policies), _count_accesses(scenario)
    made = sweeps if sweeps * policies * accesses <= _sweeps_at_once else 0
    return (1 + made) * policies * accesses / _accesses_per_s


def _choose_processes(accesses: int) -> int:
    return 1 if accesses < _alone else len(os.sched_getaffinity(0))


# -- what was asked for ----------------------------------------------------------------------------


def _calibrate_scenario(
    files: list[Path],
    *,
    nodes: int | None = None,
    ram: str | None = None,
    storage: str | None = None,
    network: str | None = None,
    write: Path | None = None,
) -> Any:
    """Calibrate with the records in these files; say where each value is from.

    nodes, ram:        of the cluster to be simulated; as in the run, unless given.
    storage, network:  rates that were measured, of storage by hosts: 1=95MB/s,8=600MB/s.
    write:             where the scenario goes as a file, too.
    """
    from .. import calibrate, record

    memory = measure_copying() / 1e6
    network_mb_s = None if network is None else parse_amount("--network", network, "10GB/s") / 1e6
    ram_mb = None if ram is None else parse_amount("--ram", ram, "64GB") / 1e6
    measured = calibrate.Measured(_parse_rates(storage), network_mb_s, memory)
    calibration = calibrate.calibrate(record.load_run(files), measured)
    wanted = calibrate.resize(calibration.scenario, nodes=nodes, ram_mb=ram_mb)
    calibration = calibrate.Calibration(wanted, calibration.policy, calibration.sources)
    for key, source in calibration.sources.items():
        console.say(f"{key}: {source}")
    console.say(f"the run was of the policy {calibration.policy}")
    if write is not None:
        write_text(write, calibration.yaml())
    return wanted


def _parse_rates(given: str | None) -> dict[int, float] | None:
    """Parse text such as 1=95MB/s,8=600MB/s, as MB/s."""
    if given is None:
        return None
    pairs = [pair.partition("=") for pair in given.split(",")]
    if not all(hosts.isdecimal() and int(hosts) and rate for hosts, _, rate in pairs):
        raise UsageError(f"--storage is {given!r}: use rates by hosts, as in 1=95MB/s,8=600MB/s")
    rates = {int(hosts): parse_amount("--storage", rate, "95MB/s") for hosts, _, rate in pairs}
    return {hosts: rate / 1e6 for hosts, rate in rates.items()}


def _check_names(option: str, given: Sequence[str] | None, known: Any) -> list[Any]:
    """Check names against the known ones; return each once."""
    return list(dict.fromkeys(check_choice(option, name, known) for name in given or ()))


_ours = ('content="penstock simulate"', 'content="penstock plan"')  # in the head of our pages


def choose_page_path(name: str) -> Path:
    """Choose the path of the page if none is given: never a file that is no such page."""
    path = Path((re.sub(r"[^\w.-]+", "-", name, flags=re.ASCII).strip(".-") or "scenario")[:80])
    path = path.with_name(f"{path.name}.html")
    try:
        head = path.read_bytes()[:2000].decode(errors="replace")
    except FileNotFoundError:
        return path
    except OSError as error:
        raise UsageError(f"cannot write {path}: {error.strerror}; give --output PATH") from None
    if not any(mark in head for mark in _ours):
        raise UsageError(f"{path} is here and no page of penstock simulate: give --output PATH")
    return path


# -- what is said and written ----------------------------------------------------------------------


def _list_scenarios() -> None:
    from .. import data_mb, list_scenarios, load_scenario, report

    numbers = ("nodes", "epochs", "data", "takes about")
    table = console.make_table("scenario", *numbers, "what", right=numbers)
    for name in list_scenarios():
        scenario = load_scenario(name)
        training = scenario.training
        data = size(data_mb(scenario))
        took = duration(_estimate_s(scenario))
        row = (f"{training.nodes:,}", str(training.epochs), data, took, scenario.about)
        table.add_row(name, *row)
    console.print_wide(table)
    table = console.make_table("policy", "what it does")
    for policy, what in report.POLICIES.items():
        table.add_row(policy, what)
    console.print_wide(table)


def _show_outcomes(model: str, outcomes: Sequence[Any]) -> None:
    """Show the table of one model, and the reason why each missing policy cannot run."""
    from .. import SOURCES, Result, report

    results = report.rank_results(outcomes)
    bound = next((result for result in results if result.policy == "lower_bound"), None)
    headings = ["run", "× bound", "before it", "epoch 1", "later"]
    full = not console.out.is_terminal or console.out.width >= console.WIDE
    headings += ["waiting", *SOURCES] if full else []
    table = console.make_table("policy", *headings, right=headings, title=f"{model} model")
    for result in results:
        later = result.epochs_s[1:]
        row = [
            brief(result.total_s),
            "" if bound is None else f"{result.total_s / bound.total_s:.2f}",
            brief(result.setup_s) if result.setup_s else "",
            brief(float(result.epochs_s[0])),
            brief(float(later.mean())) if len(later) else "",
        ]
        if full:
            row.append(brief(max(0.0, float(result.stall_s.sum()))))
        if full and result is not bound:
            row += [size(float(total)) for total in result.moved_mb.sum(axis=0)]
        style = {"penstock": "bold", "lower_bound": "italic"}.get(result.policy)
        table.add_row(report.mark_policy(result.policy), *row, style=style)
    refusals = [outcome for outcome in outcomes if not isinstance(outcome, Result)]
    for refusal in refusals:
        table.add_row(report.mark_policy(refusal.policy), "cannot run", style="dim")
    console.print_wide(table)
    for refusal in refusals:
        console.show(console.escape(f"{refusal.policy} {report.explain_refusal(refusal)}"))
    if any(result.policy in report.REPLACING for result in results):
        console.show("* trains on other samples than are due: not held by the bound")


def _simulation_values(
    scenario: Any, outcomes: Sequence[Any], sweeps: Sequence[Any]
) -> dict[str, Any]:
    """Values of all results, for JSON."""
    return {
        "scenario": scenario.model_dump(mode="json"),
        "runs": [_outcome_values(outcome) for outcome in outcomes],
        "sweeps": [
            {
                "key": sweep.key,
                "model": sweep.model,
                "own": sweep.own,
                "values": list(sweep.values),
                "runs": [[_outcome_values(run) for run in row] for row in sweep.outcomes],
            }
            for sweep in sweeps
        ],
    }


def _outcome_values(outcome: Any) -> dict[str, Any]:
    from .. import SOURCES, Result

    names = {"policy": outcome.policy, "model": outcome.model}
    if not isinstance(outcome, Result):
        return names | {"reason": outcome.reason}
    return names | {
        "total_s": outcome.total_s,
        "setup_s": outcome.setup_s,
        "epochs_s": outcome.epochs_s.tolist(),
        "stall_s": outcome.stall_s.tolist(),
        "moved_mb": dict(zip(SOURCES, outcome.moved_mb.T.tolist(), strict=True)),
        "notes": outcome.notes,
    }
