"""`penstock bench compare`: results beside each other, and which differences are no noise."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Annotated, Any

import typer

from penstock.cli import AsJson, check_writable, console, explain_interrupt, setting, write_text
from penstock.errors import UsageError

from ..page.files import write_page

_SHOWN = 3
"""Differences that are named."""


@explain_interrupt()
def compare(
    results: Annotated[
        list[Path],
        typer.Argument(
            help="record.json of runs, folders that hold one, or folders of DLIO with "
            "summary.json; of --repeat's runs, NAME for NAME-1, NAME-2 and so on.",
            metavar="PATHS",
        ),
    ],
    output: Path | None = setting(
        None, "Write the page of these results beside each other, too.", "--output", "-o"
    ),
    force: bool = setting(False, "Compare what is not alike, such as other workloads or ranks."),
    as_json: AsJson = False,
) -> None:
    """Compare results: each figure, its ratio to the first, and whether that is more than noise.

    Intervals are of 95 %, by bootstrap over the epochs or steps of the runs; what has one value
    only has none. Results of other workloads or another number of ranks are refused; another
    machine, seed or version is said.

    Examples:

      penstock bench compare monday/record.json friday/record.json

      penstock bench compare results/penstock results/dlio --output both.html

      penstock bench compare monday friday --json | jq '.metrics[] | {name, verdicts}'
    """
    from ..results import compare as comparing  # other commands start without it
    from ..results import recorded, report
    from ..results.dlio import read_record

    check_writable(output)
    results = [run for path in results for run in _list_repeats(path)]
    values = [read_record(path) for path in results]
    records = recorded.records(values, [str(path) for path in results])
    runs = [run for record in records for run in record.runs]
    if len(runs) < 2:
        raise UsageError(f"{results[0]} holds one run: name another result to compare it with")
    unlike = comparing.find_differences(records)
    serious = [difference for difference in unlike if difference.serious]
    if serious and not force:
        said = "; ".join(map(str, serious[:_SHOWN]))
        more = f"; and {len(serious) - _SHOWN} more" if len(serious) > _SHOWN else ""
        raise UsageError(f"{said}{more}: compare runs of one workload, or give --force")
    for record in records:
        for note in record.values.get("notes") or ():
            console.say(f"{record.name}: {note}")
    for difference in unlike:
        console.say(f"warning: {difference}")
    rows = comparing.compare_runs(runs)
    if as_json:
        metrics = [
            {
                "name": row.metric.name,
                "values": list(row.values),
                "ratios": [None if ratio is None else ratio._asdict() for ratio in row.ratios],
                "verdicts": [comparing.judge_ratio(row, place) for place in range(len(runs))],
            }
            for row in rows
        ]
        labels, basis = [run.label for run in runs], comparing.basis(runs)
        console.print_json({"runs": labels, "basis": basis, "metrics": metrics})
    else:
        for place in range(1, len(runs)):
            _show_comparison(rows, runs[0].label, runs[place].label, place)
        console.show(console.escape(comparing.basis(runs)))
    if output is not None:
        page = report.render_page(values, [str(path) for path in results])
        (write_text if as_json else write_page)(output, page)  # nothing is printed beside the JSON


def _list_repeats(path: Path) -> list[Path]:
    """List the runs of --repeat that a path without their numbers names, else the path itself."""
    if path.exists():
        return [path]
    named = re.compile(rf"{re.escape(path.name)}-(\d+)")
    turns = [(run, named.fullmatch(run.name)) for run in path.parent.glob("*-*")]
    repeats = {int(turn[1]): run for run, turn in turns if turn}
    return [repeats[turn] for turn in sorted(repeats)] or [path]


def _show_comparison(rows: Any, first: str, other: str, place: int) -> None:
    """Show one run against the first."""
    from ..results.compare import factor, judge_ratio

    title = console.escape(f"{other} against {first}")
    numbers = [console.escape(first), console.escape(other), "ratio", "95 %"]
    table = console.make_table("", *numbers, "", right=numbers, title=title)
    for row in rows:
        ratio = row.ratios[place]
        said = [
            "–" if row.values[at] is None else row.metric.said(row.values[at]) for at in (0, place)
        ]
        told = judge_ratio(row, place)
        style = {"better": "green", "worse": "red"}.get(told)
        cells = ["", ""]
        if ratio is not None:
            cells[0] = factor(ratio.value)
            if ratio.low is not None and ratio.high is not None:
                cells[1] = f"{factor(ratio.low)}–{factor(ratio.high)}"
        table.add_row(row.metric.name, *said, *cells, told, style=style)
    console.print_wide(table)
