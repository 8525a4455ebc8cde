"""`penstock plan`: the cheapest cluster that is fast enough, in closed form."""

from __future__ import annotations

import contextlib
import csv
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any

import typer

from penstock.cli import AsJson, console, explain_interrupt, replace_file, setting
from penstock.cli.quantities import duration, number, parse_amount
from penstock.errors import UsageError
from penstock_bench.page.files import repeat_command, results_alone, sort_outputs, write_page
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
    epoch_seconds: float = setting(..., "What an epoch after the first may take."),
    prices: str | None = setting(
        None,
        "Of a node, a GB of cache on one, a GB/s of storage, in any currency: "
        "node=9000,cache_gb=4,storage_gb_s=20000.",
        metavar="PRICES",
        show_default="1 a node, others nothing",
    ),
    nodes: str | None = setting(
        None,
        "Such as 4:512.",
        metavar="FROM:TO",
        show_default="an eighth to 8 times the scenario's",
    ),
    cache: str | None = setting(
        None,
        "Of each node, all tiers together, none at all too, such as 1GB:1TB.",
        metavar="FROM:TO",
        show_default="all of the data, or less, on each",
    ),
    storage: str | None = setting(
        None,
        "What storage gives to the scenario's number of nodes, such as 1GB/s:20GB/s.",
        metavar="FROM:TO",
        show_default="an eighth to 8 times the scenario's",
    ),
    settings: int = setting(1_000_000, "How many settings to work out, at most about so many."),
    output: list[Path] | None = setting(
        None,
        "The page to write, .html; all settings, one a line, too, .csv.",
        "--output",
        "-o",
        show_default="NAME-plan.html, here",
    ),
    as_json: AsJson = False,
) -> None:
    """Find the cheapest cluster whose epochs are short enough: nodes, caches and storage.

    Works out a million sizes of a scenario in closed form; nothing is simulated, and all that is
    printed and written says so. docs/simulator/plans.md states what is left out: simulate what you
    are about to buy.

    Examples:

      penstock plan s4 --epoch-seconds 1500

      penstock plan s4 --epoch-seconds 600 --prices node=9000,cache_gb=4,storage_gb_s=20000

      penstock plan s4 --epoch-seconds 600 --nodes 8:64 --cache 1GB:1TB --output all.csv
    """
    from .. import load_scenario, report, sizing  # with packages that others do without

    chosen = load_scenario(scenario)
    grid = sizing.make_grid(
        chosen,
        settings,
        nodes=_parse_range("--nodes", nodes, "4:512"),
        cache_mb=_parse_range("--cache", cache, "1GB:1TB"),
        storage_mb_s=_parse_range("--storage", storage, "1GB/s:20GB/s"),
    )
    html, csv_path = sort_outputs(output, ".html", ".csv")
    page = html or choose_page_path(f"{chosen.name}-plan")
    with results_alone(as_json):
        with (
            console.show_progress(f"Planning {chosen.name}, closed form", "forecasts") as progress,
            _write_grid(csv_path, grid) as seen,
        ):
            costs = _parse_prices(prices)
            cheapest = sizing.find_cheapest(
                chosen, grid, epoch_seconds, prices=costs, seen=seen, progress=progress
            )
        _show(cheapest)
        console.show(console.escape(report.describe_cheapest(cheapest)))
        write_page(page, report.render_sizing_page(chosen, cheapest, command=repeat_command()))
        if csv_path is not None:
            console.show(f"all settings: {console.escape(str(csv_path))}")
    if as_json:
        console.print_json(_plan_values(chosen, cheapest))


def _parse_range(option: str, text: str | None, example: str) -> Any:
    """Parse from:to, sizes and rates as MB."""
    from .. import Range

    if text is None:
        return None
    least, _, most = text.partition(":")
    if option != "--nodes":
        sizes = (parse_amount(option, end, example) / 1e6 for end in (least, most or least))
        return Range(*sizes)
    try:
        return Range(float(least), float(most or least))
    except ValueError:
        raise UsageError(f"{option} is {text!r}: use from:to, such as {example}") from None


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
            cells = [number(choice.cost), f"{choice.nodes:,}", size(choice.cache_mb)]
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
