"""`penstock plan`: the cheapest cluster that is fast enough, in closed form."""

from __future__ import annotations

import contextlib
import csv
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any

import typer

from penstock.cli import check_writable, console, explain_interrupt, replace_file
from penstock.cli.quantities import duration, number
from penstock.errors import UsageError
from penstock_bench.page.files import repeat_command, results_alone, write_page, write_results
from penstock_bench.page.quantities import brief, size

from .simulate import choose_page_path, complete_scenario


@explain_interrupt()
def plan(
    scenario: Annotated[
        str,
        typer.Argument(
            help="A name of simulate --list, or the path of a .yaml file.",
            autocompletion=complete_scenario,
        ),
    ],
    epoch_s: Annotated[
        float, typer.Option("--epoch-s", help="Seconds that an epoch after the first may take.")
    ],
    prices: Annotated[
        str | None,
        typer.Option(
            help="Of a node, a GB of cache on one, a GB/s of storage, in any currency, such as "
            "node=9000,cache_gb=4,storage_gb_s=20000. (default: node=1, others nothing)"
        ),
    ] = None,
    nodes: Annotated[
        str | None,
        typer.Option(help="From:to, such as 4:512. (default: an eighth to 8 times the scenario's)"),
    ] = None,
    cache_mb: Annotated[
        str | None,
        typer.Option(help="Of each node, all tiers together, from:to; none at all, too."),
    ] = None,
    storage_mb_s: Annotated[
        str | None,
        typer.Option(help="That storage gives to the scenario's number of nodes, from:to."),
    ] = None,
    settings: Annotated[
        int, typer.Option(help="How many settings to work out, at most about so many.")
    ] = 1_000_000,
    html: Annotated[
        Path | None, typer.Option(help="The page to write. (default: NAME-plan.html, here)")
    ] = None,
    json_path: Annotated[
        Path | None,
        typer.Option("--json", help="Write what was found as one JSON object, too; - prints it."),
    ] = None,
    csv_path: Annotated[
        Path | None, typer.Option("--csv", help="Write all settings, one a line, too.")
    ] = None,
) -> None:
    """Find the cheapest cluster whose epochs are short enough: nodes, caches and storage.

    Works out a million sizes of a scenario in closed form; nothing is simulated, and all that is
    printed and written says so. docs/simulator/plans.md states what is left out: simulate what you
    are about to buy.

    Examples:

      penstock plan s4 --epoch-s 60

      penstock plan cluster.yaml --epoch-s 600 --prices node=9000,cache_gb=4,storage_gb_s=20000

      penstock plan cluster.yaml --epoch-s 600 --nodes 8:64 --cache-mb 1000:1000000 --csv all.csv
    """
    from .. import load_scenario, report, sizing  # with packages that others do without

    chosen = load_scenario(scenario)
    given = {"--nodes": nodes, "--cache-mb": cache_mb, "--storage-mb-s": storage_mb_s}
    ranges = [_parse_range(option, text) for option, text in given.items()]
    grid = sizing.make_grid(
        chosen, settings, nodes=ranges[0], cache_mb=ranges[1], storage_mb_s=ranges[2]
    )
    page = html or choose_page_path(f"{chosen.name}-plan")
    check_writable(page, csv_path)
    with results_alone(json_path):
        with (
            console.show_progress(f"Planning {chosen.name}, closed form", "forecasts") as progress,
            _write_grid(csv_path, grid) as seen,
        ):
            cheapest = sizing.find_cheapest(
                chosen, grid, epoch_s, prices=_parse_prices(prices), seen=seen, progress=progress
            )
        _show(cheapest)
        console.show(console.escape(report.describe_cheapest(cheapest)))
        write_page(page, report.render_sizing_page(chosen, cheapest, command=repeat_command()))
        write_results(json_path, _plan_values(chosen, cheapest))
        if csv_path is not None:
            console.show(f"all settings: {console.escape(str(csv_path))}")


def _parse_range(option: str, text: str | None) -> Any:
    from .. import Range

    if text is None:
        return None
    try:
        least, _, most = text.partition(":")
        return Range(float(least), float(most or least))
    except ValueError:
        raise UsageError(f"{option} is {text!r}: use from:to, such as 4:512") from None


def _parse_prices(text: str | None) -> Any:
    from .. import Prices

    if text is None:
        return Prices()
    try:
        pairs = [pair.split("=") for pair in text.split(",")]
        return Prices(**{"node": 0.0} | {key.strip(): float(value) for key, value in pairs})
    except (ValueError, TypeError):
        raise UsageError(
            f"--prices is {text!r}: use such as node=9000,cache_gb=4,storage_gb_s=20000"
        ) from None


def _show(sizing: Any) -> None:
    title = (
        f"{sizing.form}: the cheapest of {sizing.grid.settings:,} settings with epochs of at most "
        f"{duration(sizing.epoch_s)}"
    )
    numbers = ("cost", "nodes", "cache each", "storage", "epoch 1", "later")
    table = console.make_table(
        "policy", *numbers, "waits for", "found by", right=numbers, title=title
    )
    for policy, choice in sizing.choices.items():
        cells = ["none"] + [""] * 6
        if choice is not None:
            cells = [
                number(choice.cost),
                f"{choice.nodes:,}",
                size(choice.cache_mb),
            ]
            cells += [f"{size(choice.storage_mb_s)}/s", brief(choice.first_s)]
            cells += [brief(choice.later_s), choice.binding]
        style = {"penstock": "bold", "lower_bound": "italic"}.get(policy)
        table.add_row(policy, *cells, sizing.form, style=style)
    console.print_wide(table)


def _plan_values(scenario: Any, sizing: Any) -> dict[str, Any]:
    grid = sizing.grid
    return {
        "form": sizing.form,
        "scenario": scenario.model_dump(mode="json"),
        "epoch_s": sizing.epoch_s,
        "prices": sizing.prices._asdict(),
        "nodes": grid.nodes.tolist(),
        "cache_mb": grid.cache_mb.tolist(),
        "storage_mb_s": grid.storage_mb_s.tolist(),
        "cheapest": {
            policy: None if choice is None else choice._asdict()
            for policy, choice in sizing.choices.items()
        },
        "least_cost_by_nodes": {
            policy: [cost if cost < float("inf") else None for cost in least.tolist()]
            for policy, least in sizing.least.items()
        },
    }


@contextlib.contextmanager
def _write_grid(path: Path | None, grid: Any) -> Iterator[Any]:
    """Yield a function that writes blocks of settings as lines: all of them or none."""
    if path is None:
        yield None
        return
    import numpy as np

    from .. import FORM

    caches, storages = np.meshgrid(grid.cache_mb, grid.storage_mb_s, indexing="ij")
    with replace_file(path) as file:
        lines = csv.writer(file, lineterminator="\n")
        begun = False

        def seen(block: Any) -> None:
            nonlocal begun
            if not begun:
                columns = [f"{policy}_later_s" for policy in block.forecasts]
                lines.writerow(["form", "nodes", "cache_mb", "storage_mb_s", "cost", *columns])
                begun = True
            times = [forecast.later_s for forecast in block.forecasts.values()]
            columns = [column.ravel().tolist() for column in (caches, storages, block.cost, *times)]
            lines.writerows((FORM, block.nodes, *row) for row in zip(*columns, strict=True))

        yield seen
