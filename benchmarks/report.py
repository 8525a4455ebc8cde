"""Writes the figures of a record into the README, between two markers: numbers are never typed.

python -m benchmarks.report            # benchmarks/results/bench.json -> README.md
"""

from __future__ import annotations

import json
import sys
from typing import Any

from benchmarks.record import RESULTS, number

README = RESULTS.parent.parent / "README.md"
BEGIN, END = "<!-- figures: begin -->", "<!-- figures: end -->"


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


def insert(text: str, figures: str) -> str:
    """The text with what lies between the markers replaced."""
    before, _, rest = text.partition(BEGIN)
    _, found, after = rest.partition(END)
    if not found:
        raise SystemExit(f"{README} has no markers {BEGIN} and {END}")
    return f"{before}{BEGIN}\n{figures}\n{END}{after}"


def main(name: str = "bench") -> None:
    record = json.loads((RESULTS / f"{name}.json").read_text())
    README.write_text(insert(README.read_text(), markdown(record)))


if __name__ == "__main__":
    main(*sys.argv[1:])
