"""Write docs/performance.md, the plot and the figures of README.md, and the tables and charts of
docs/scale.md from the records: nothing is typed.

python -m benchmarks.report             # write them
python -m benchmarks.report --check     # exit with 1 if a page differs from what would be written

A page says which tree a record is of. A row has a verdict only if its machine was idle before the
run and its interval is narrow; else the reason stands in the place of the verdict.
"""

from __future__ import annotations

import argparse
import math
import re
import sys
from collections.abc import Iterator
from typing import Any

from benchmarks import plot, sizes
from benchmarks.record import (
    LOAD_MAX,
    RESULTS,
    ROOT,
    STEAL_MAX,
    WIDTH_MAX,
    find_reasons,
    is_fit,
    is_other,
    number,
    read_record,
    tree_hash,
)
from benchmarks.scale import curves
from benchmarks.sections import REASONS, SECTIONS, Reason, Section, Target

PAGE = ROOT / "docs" / "performance.md"
README = ROOT / "README.md"
CAUSES = ROOT / "benchmarks" / "shortfalls.md"
"""Why rows fall short: written by hand, after a profile."""
BEGIN, END = "<!-- reasons: begin -->", "<!-- reasons: end -->"
CHANGED = " The sources beside this page have changed since: measure again before you rely on it."
"""The one remark that depends on the checkout: it comes and goes with changes of the sources."""
COLUMNS = ("what", "penstock", "held against", "ratio (95 % interval)", "wanted", "verdict", "note")
UPPER = "target is an upper limit"
TIE = 0.99
"""Share of another's value from which on a row is said to tie with it."""

INTRODUCTION = f"""\
# Performance: what was measured, how, and on which tree

`python -m benchmarks.report` writes this page from the records in
[benchmarks/results](../benchmarks/results). What the rows mean and the rules of measuring stand in
[benchmarks/README.md](../benchmarks/README.md).

How to read the tables:

* *held against* is a floor (the simplest correct program that does the same work) or another
  loader at its best setting; the note names the setting. *ratio* is the median of ratios taken pair
  by pair, with its 95 % bootstrap interval, so it need not be the quotient of the two values.
* *verdict* is `met` or `missed` only if the run can be trusted. It is *unstable* if more than
  {LOAD_MAX} cores were busy before the run (its load; older records name the load average), if the
  host took more than {STEAL_MAX:.0%} of the processor time, or if the interval is wider than
  {WIDTH_MAX:.0%} of the ratio; the reason is printed. Load does not matter where rows are computed
  and not timed.
* A row without a target is printed like every other; its verdict is a dash. A row with one that
  could not be measured says so in its note.
* The line below a table counts the intervals that overlap with those of the record before it, of
  another time. A row whose interval does not has its earlier ratio in the note.
* A row whose target was relaxed after the first measurement says so in its note.
* All figures are of one tree. A record of another one is refused: its rows are printed as not
  measured.

Everything here comes from two cores of one shared virtual machine, but for rows of a GPU, if they
were measured: the line above a table names its machine. It says nothing about many GPUs or
networks.
"""


def list_sections() -> list[Section]:
    """The sections whose benchmark has run."""
    return [section for section in SECTIONS if (RESULTS / f"{section.record}.json").exists()]


def find_tree(tree: str) -> str:
    """The tree of the page: `tree` if any record is of it, else the one that most records share."""
    trees = [read_record(section.record).get("tree", "") for section in list_sections()]
    return tree if tree in trees else max(sorted({*trees}), key=trees.count, default=tree)


def read_section(section: Section, tree: str) -> dict[str, Any]:
    """The record of a section. If it is not of `tree`, its rows have no figures, as if it had not
    been run."""
    record = read_record(section.record)
    if record.get("tree") == tree:
        return record
    figures = ("value", "floor", "ratio", "low", "high", "met")
    rows = [row | dict.fromkeys(figures) | {"note": ""} for row in record["rows"]]
    return record | {"rows": rows, "doubts": [], "earlier": None}


def describe_tree(record: dict[str, Any], tree: str) -> str:
    """The commit and the tree of a record, and that it is refused if that is not `tree`."""
    commit = f"Record of commit {record['commit']['hash'][:7]}"
    if record["commit"]["dirty"]:
        commit += " with uncommitted changes"
    if record.get("tree") != tree:
        return f"Not measured on this tree. {commit}, of another tree, which is refused."
    return f"{commit}, sources {tree}."


def describe_trees(tree: str, checkout: str) -> str:
    """The tree that the page is of, what is not of it, and whether the checkout differs."""
    refused = [
        section.record
        for section in list_sections()
        if read_record(section.record).get("tree") != tree
    ]
    line = f"All figures are of one tree, {tree}."
    if refused:
        line += f" Not measured on it: {', '.join(refused)}."
    return line + CHANGED * (tree != checkout)


def describe_machine(record: dict[str, Any]) -> str:
    """The machine, the date and the load of a record."""
    machine, load = record["machine"], record["load"]["before"][0]
    device = record["configuration"].get("device")
    return (
        f"{record['date'][:10]}, {f'{device}, ' if device else ''}{machine['cores']} cores "
        f"({machine['cpu']}), Linux "
        f"{machine['kernel']}, Python {machine['python']}, load {load:.2f} before the run. Record: "
        f"[{record['name']}.json](../benchmarks/results/{record['name']}.json)."
    )


def find_target(section: Section, row: dict[str, Any]) -> Target | None:
    """The target of a row and its direction; None for a row without one."""
    if row["target"] is None:
        return None
    for pattern, target in section.targets.items():
        if re.search(pattern, row["name"]):
            return target._replace(limit=row["target"])
    return Target("at most" if UPPER in row["note"] else "at least", row["target"])


def format_ratio(row: dict[str, Any]) -> str:
    """The ratio with its interval, if it has one."""
    if row["ratio"] is None:
        return "-"
    if row["low"] is None:
        return near_one(row["ratio"])
    ratio = three_digits(row["ratio"])
    return f"{ratio} ({three_digits(row['low'])}..{three_digits(row['high'])})"


def three_digits(value: float) -> str:
    """Three significant digits, zeros at the end included."""
    return f"{value:#.3g}".rstrip(".")


def near_one(ratio: float) -> str:
    """Three significant digits, or as many as show on which side of one the ratio lies."""
    apart = abs(ratio - 1)
    if apart == 0 or apart >= 0.005:
        return three_digits(ratio)
    return f"{ratio:.{1 - math.floor(math.log10(apart))}f}"


def judge(row: dict[str, Any], record: dict[str, Any]) -> str:
    """The verdict on a row with a target, or why there is none; a dash for other rows."""
    if row["target"] is None:
        return "-"
    if row["met"] is None:
        return "*not measured*"
    reasons = find_reasons(row, record)
    if reasons:
        return f"*unstable*: {', '.join(reasons)}"
    return "met" if row["met"] else "**missed**"


def row_line(section: Section, row: dict[str, Any], record: dict[str, Any]) -> str:
    """One row of a table."""
    target = find_target(section, row)
    notes = [text for text in row["note"].split("; ") if text and text != UPPER]
    notes += [text for pattern, text in section.remarks if re.search(pattern, row["name"])]
    earlier = record.get("earlier") or {"rows": {}}
    if is_other(row, was := earlier["rows"].get(row["name"])):
        notes.append(f"{three_digits(was[0])} on {earlier['date'][:10]}")
    cells = (
        row["name"],
        f"{number(row['value'])} {row['unit']}".strip(),
        number(row["floor"]),
        format_ratio(row),
        "-" if target is None else target.text(),
        judge(row, record),
        "; ".join(notes),
    )
    return f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in cells)} |"


def section_lines(section: Section, record: dict[str, Any], tree: str) -> Iterator[str]:
    """Title, words, table and origin of one record."""
    yield f"\n## {section.title}\n"
    yield f"`{section.command}`: {section.words}\n"
    yield f"{describe_tree(record, tree)} {describe_machine(record)}\n"
    if note := record["configuration"].get("note"):
        yield f"Note: {note}.\n"
    if not record["rows"]:
        return
    yield f"| {' | '.join(COLUMNS)} |"
    yield f"|{'---|' * len(COLUMNS)}"
    yield from (row_line(section, row, record) for row in record["rows"])
    if line := compare_earlier(record):
        yield f"\n{line}"
    other_doubts = [text for text in record["doubts"] if "of a core while idle" in text]
    if other_doubts:
        yield f"\nThe run may be unstable: {'; '.join(other_doubts)}."
    if record["name"] == "sizes":
        yield f"\n![What a loader costs as sizes grow]({sizes.PATH.name})"
    if record["name"] == "share" and (line := compare_unmanaged(record["rows"])):
        yield f"\n{line}"


def compare_earlier(record: dict[str, Any]) -> str:
    """One line on how the rows agree with those of the record before; empty if there are none."""
    earlier = record.get("earlier")
    rows = [row for row in record["rows"] if earlier and row["name"] in earlier["rows"]]
    rows = [row for row in rows if row["ratio"] is not None and row["low"] is not None]
    if not earlier or not rows:
        return ""
    other = sum(is_other(row, earlier["rows"][row["name"]]) for row in rows)
    tree = "the same tree" if earlier["tree"] == record.get("tree") else "an earlier tree"
    agree = f"{len(rows) - other} of {len(rows)} intervals overlap"
    return f"Beside the record of {earlier['date'][:16].replace('T', ' ')}, of {tree}: {agree}."


def compare_unmanaged(rows: list[dict[str, Any]]) -> str:
    """Words on jobs that nothing manages beside the same jobs under the broker; empty if they were
    not measured."""
    values = {row["name"]: row for row in rows if row["value"] is not None}
    mixes = [name.partition(":")[0] for name in values if ": unmanaged, total" in name]
    if not mixes:
        return ""
    parts, ties = [], 0
    for mix in mixes:
        free, free_busy, broker, broker_busy = (
            values[f"{mix}: {mode}, {what} / even"]
            for mode in ("unmanaged", "broker, utilisation")
            for what in ("total throughput", "accelerators busy")
        )
        ties += (
            free["value"] >= TIE * broker["value"]
            and free_busy["value"] >= TIE * broker_busy["value"]
        )
        parts.append(
            f"{mix} {number(free['value'])} against {number(broker['value'])} samples/s "
            f"({three_digits(free['ratio'])} and {three_digits(broker['ratio'])} of an even "
            f"split), {free_busy['value']:.2f} against {broker_busy['value']:.2f} accelerators busy"
        )
    every = ties == len(mixes)
    conclusion = (
        " In these mixes the broker gained nothing over setting no limits." if every else ""
    )
    return (
        f"**Unmanaged beside the broker.** *unmanaged* sets no limits and leaves the division to "
        f"the kernel and the storage. It ties with the broker or wins in {ties} of {len(mixes)} "
        f"mixes: {'; '.join(parts)}.{conclusion}"
    )


def read_causes() -> list[tuple[str, str, str]]:
    """The lines of `CAUSES`: a record, a pattern of the names of its rows, and why these fall
    short."""
    lines = CAUSES.read_text().partition("|---|---|---|\n")[2].splitlines()
    cells = [re.split(r" (?<!\\)\| ", line.strip("| ")) for line in lines]
    return [(record, rows.strip("`").replace("\\|", "|"), why) for record, rows, why in cells]


def find_cause(causes: list[tuple[str, str, str]], record: str, row: str) -> str:
    """Why a row falls short, by the first line that finds it; "not known" where none does."""
    found = (why for name, rows, why in causes if name == record and re.search(rows, row))
    return next(found, "not known")


def shortfall_lines(tree: str) -> Iterator[str]:
    """The rows of all records that are on the wrong side of their target, verdict or none."""
    yield "\n## Rows that fall short\n"
    yield "Rows on the wrong side of their target, whether the run can be trusted or not:\n"
    yield "| record | what | reached | wanted | verdict | why |\n|---|---|---|---|---|---|"
    causes = read_causes()
    for section in list_sections():
        record = read_section(section, tree)
        for row in record["rows"]:
            target = find_target(section, row)
            if target is None or row["met"] is not False:
                continue
            reached = format_ratio(row)
            if row["ratio"] is None:
                reached = f"{number(row['value'])} {row['unit']}"
            cells = (section.title, row["name"], reached, target.text(), judge(row, record))
            yield f"| {' | '.join((*cells, find_cause(causes, section.record, row['name'])))} |"
    yield "\nWhat this means for users stands in [limits.md](limits.md)."


def performance_page(checkout: str) -> str:
    """The whole of docs/performance.md, with the sources of `checkout` beside it."""
    tree = find_tree(checkout)
    lines = [f"{INTRODUCTION}\n{describe_trees(tree, checkout)}", *shortfall_lines(tree)]
    for section in list_sections():
        lines += section_lines(section, read_section(section, tree), tree)
    return "\n".join(lines) + "\n"


def write_reason(reason: Reason, tree: str | None) -> str:
    """One of the README's reasons; with its figure if the record was made in quiet, and is of
    `tree` (None: of any), and the interval is narrow."""
    if not reason.record:
        return f"* {reason.words}"
    record = read_record(reason.record)
    row = next((row for row in record["rows"] if row["name"] == reason.row), None)
    if row is None or row["ratio"] is None or not is_fit(record, tree) or find_reasons(row, record):
        return f"* {reason.plain}"
    return f"* {reason.words.format(number(row['ratio']))}"


def reasons_list(tree: str | None) -> str:
    """The README's list of reasons."""
    return "\n".join(write_reason(reason, tree) for reason in REASONS)


def insert_reasons(readme: str, reasons: str) -> str:
    """The README with what lies between its markers replaced."""
    before, begin, rest = readme.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        raise SystemExit(f"{README} lacks the markers {BEGIN} and {END}: put them back")
    return f"{before}{BEGIN}\n{reasons}\n{END}{after}"


def ignore_tree(text: str) -> str:
    """The text without the remark that depends on the checkout."""
    return text.replace(CHANGED, "")


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.report", description=__doc__)
    parser.add_argument("--check", action="store_true", help="write nothing, compare")
    options = parser.parse_args()
    tree = tree_hash()
    pages = {
        PAGE: performance_page(tree),
        plot.PATH: plot.draw_speed(tree if plot.list_panels(tree) else None),
        README: insert_reasons(README.read_text(), reasons_list(tree)),
        **curves.write_pages(),
        **sizes.write_pages(),
    }
    for path, text in pages.items():
        if not options.check:
            path.write_text(text)
        elif not path.exists() or path.read_text() != text:
            sys.exit(f"{path.relative_to(ROOT)} is not what `python -m benchmarks.report` writes")


if __name__ == "__main__":
    main()
