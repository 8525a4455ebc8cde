"""Writes the figures of records into the README, between markers: numbers are never typed.

python -m benchmarks.report     # every benchmarks/results/NAME.json whose NAME has markers there
"""

from __future__ import annotations

import json
import re
import sys
from typing import Any

from benchmarks.record import RESULTS, number

README = RESULTS.parent.parent / "README.md"
BEGIN, END = "<!-- {}: begin -->", "<!-- {}: end -->"


def markdown(record: dict[str, Any]) -> str:
    """The rows with a target as a table, and where they were measured."""
    lines = [
        "| what | penstock | held against | ratio | wanted | met |",
        "|---|---|---|---|---|---|",
    ]
    for row in record["rows"]:
        if row["target"] is None:
            continue
        met = "yes" if row["met"] else "**no**"
        value, floor = (number(row[key]) for key in ("value", "floor"))
        ratio = number(row["ratio"])
        if row["low"] is not None:
            ratio += f" ({row['low']:.2f}..{row['high']:.2f})"
        wanted = number(row["target"])
        lines.append(
            f"| {row['name']} | {value} {row['unit']} | {floor} | {ratio} | {wanted} | {met} |"
        )
    machine, load = record["machine"], record["load"]["before"][0]
    lines += [
        "",
        f"{machine['cores']} cores ({machine['cpu']}), Linux {machine['kernel']}, Python "
        f"{machine['python']}, {record['date'][:10]}, load {load:.2f} before the run; ratios are "
        f"medians over interleaved pairs with 95 % intervals. Record: "
        f"[benchmarks/results/{record['name']}.json](benchmarks/results/{record['name']}.json).",
    ]
    if record["doubts"]:
        lines.append(f"The run may be unstable: {'; '.join(record['doubts'])}.")
    return "\n".join(lines)


def insert(text: str, name: str, figures: str) -> str:
    """The text with what lies between a record's markers replaced."""
    begin, end = BEGIN.format(name), END.format(name)
    before, _, rest = text.partition(begin)
    _, found, after = rest.partition(end)
    if not found:
        raise SystemExit(f"{README} has no markers {begin} and {end}")
    return f"{before}{begin}\n{figures}\n{end}{after}"


def main(*names: str) -> None:
    text = README.read_text()
    for name in names or re.findall(BEGIN.format("([a-z-]+)"), text):
        record = json.loads((RESULTS / f"{name}.json").read_text())
        text = insert(text, name, markdown(record))
    README.write_text(text)


if __name__ == "__main__":
    main(*sys.argv[1:])
