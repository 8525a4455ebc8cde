"""Rows of the same table that are measured elsewhere, or need no jobs."""

from __future__ import annotations

from typing import Any

from benchmarks import broker_overhead, share_study
from benchmarks.record import Row, read_record, tree_hash
from benchmarks.schedules import CLOSE

BRUTE_FORCE = "tests/sharing/schedule/test_exclusive.py::test_two_tasks_take_the_fewest_slots[3000]"


def schedule_rows() -> list[Row]:
    """PerSched's worst set, of the record that `benchmarks.schedules` made of the same sources; and
    where the other schedule is tested."""
    rows = []
    for objective in ("efficiency", "dilation"):
        name = f"PerSched {objective} / published"
        record = read_record("schedules")
        sets = [each for each in record["rows"] if each["name"].endswith(f"PerSched {objective}")]
        if not sets or record.get("tree") != tree_hash():
            note = "no record of these sources: run python -m benchmarks.schedules first"
            rows.append(Row(name, None, "", target=1, note=note))
            continue
        worst = max(sets, key=lambda each: abs(each["ratio"] - 1))
        met = abs(worst["ratio"] - 1) <= CLOSE
        note = (
            f"{worst['name']}, the worst of {len(sets)}: {record['name']}.json of "
            f"{record['date'][:10]}; {CLOSE:.0%} either way"
        )
        rows.append(
            Row(name, worst["value"], "", worst["floor"], worst["ratio"], 1, met, note=note)
        )
    name = "two tasks on exclusive resources: fewest slots"
    rows.append(Row(name, None, "", note=f"3,000 cases against brute force: {BRUTE_FORCE}"))
    return rows


def study_rows(mixes: int, seed: int) -> tuple[list[Row], list[dict[str, Any]]]:
    """The gain of the optimum over an even split in simulated mixes."""
    drawn = share_study.mixes(mixes, seed)
    cases = [case for case in share_study.CASES if case.floors]
    found = share_study.gain_rows(drawn, [*map(share_study.even_rates, drawn)], cases)
    note = "predicted, not run; floor: what another implementation found"
    rows = [
        Row(
            f"{mixes:,} simulated mixes, {each['name']}",
            each["value"],
            each["unit"],
            each["published"],
            note=note,
        )
        for each in found
        if each["name"].endswith("over even")
    ]
    return rows, found


def overhead_rows() -> tuple[list[Row], dict[str, Any]]:
    """The part of a core that the broker itself takes."""
    return broker_overhead.rows(), {}
