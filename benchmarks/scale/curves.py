"""Curves of cost over size: what was measured, what was simulated, and where a limit is passed.

`python -m benchmarks.report` writes the table and the charts of docs/scale.md from the record of
`benchmarks.scale`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from docsite.drawings import Drawing

from ..record import RESULTS, ROOT, number, read_record

PAGE = ROOT / "docs" / "scale.md"
MARKS = "<!-- {0}: begin -->", "<!-- {0}: end -->"
TARGETS = {"samples": 10**12, "shards": 10**6, "ranks": 10**5, "hosts": 12_500}
"""The job that every structure is asked to hold."""
CHARTS = {
    "ranks": ROOT / "docs" / "scale-ranks.svg",
    "samples": ROOT / "docs" / "scale-samples.svg",
}
UNDRAWN = ("contiguous", "balanced", "making it", "a look-up", "agreement: time", "sockets")
"""Parts of the names of curves that the charts leave out: they run beside others."""
Points = tuple[tuple[float, float], ...]


@dataclass(frozen=True, slots=True)
class Curve:
    """Cost of one structure over its size: `fixed + unit cost * size ** power`.

    over:       what the size counts: samples, shards, ranks or hosts.
    unit:       of the cost.
    points:     size and cost, as they were measured.
    simulated:  size and cost, as they were simulated beyond; with them the curve is theirs.
    limit:      cost that is too much, and `limit_of` what it is a limit of.
    """

    name: str
    over: str
    unit: str
    power: float
    limit: float
    limit_of: str
    points: Points = ()
    simulated: Points = ()
    redesign: str = ""

    @property
    def known(self) -> Points:
        """All points, in ascending size."""
        return (*self.points, *self.simulated)

    @property
    def target(self) -> float:
        """Size that is asked for."""
        return TARGETS[self.over]

    def fit(self) -> tuple[float, float]:
        """Return the fixed cost, and that of a unit, through the first and the last point."""
        (low, cheap), (high, dear) = self.known[0], self.known[-1]
        if self.power == 0 or low == high:
            return max(cost for _, cost in self.known), 0.0
        unit = max(0.0, dear - cheap) / (high**self.power - low**self.power)
        return max(0.0, dear - unit * high**self.power), unit

    def cost(self, size: float) -> float:
        """Return the cost at a size: as it was measured or simulated there, or by the fit."""
        fixed, unit = self.fit()
        by_size = dict(self.known) if self.power else {}
        return by_size.get(size, fixed + unit * size**self.power)

    @property
    def breaks_at(self) -> float:
        """Size at which the limit is passed; infinite if at none."""
        fixed, unit = self.fit()
        if fixed >= self.limit:
            return self.known[0][0]
        return math.inf if unit == 0 else float(((self.limit - fixed) / unit) ** (1 / self.power))

    def tell_source(self, size: float) -> str:
        """Say whether the cost at a size was measured, simulated or extrapolated."""
        for source, points in (("measured", self.points), ("simulated", self.simulated)):
            if points and size <= points[-1][0]:
                return source
        return "extrapolated"

    def describe(self) -> dict[str, Any]:
        """Return the curve for a record."""
        return asdict(self)

    @classmethod
    def read(cls, described: Mapping[str, Any]) -> Curve:
        """Return the curve of a record."""
        pairs = {name: tuple(map(tuple, described[name])) for name in ("points", "simulated")}
        return cls(**{**described, **pairs})


def write_tables(curves: Sequence[Curve]) -> str:
    """Write the table of what breaks before the target, the first first, and that of the rest."""
    by_margin = sorted(curves, key=lambda curve: curve.breaks_at / curve.target)
    broken = [
        (
            curve.name,
            describe_unit_cost(curve),
            f"{write_cost(curve.limit, curve.unit)} {curve.limit_of}",
            describe_break(curve),
            curve.redesign,
        )
        for curve in by_margin
        if curve.breaks_at < curve.target
    ]
    whole = [
        (curve.name, describe_target(curve), describe_break(curve).rpartition(", ")[0])
        for curve in by_margin
        if curve.breaks_at >= curve.target
    ]
    return (
        write_rows(("structure", "cost", "limit", "breaks at", "redesign"), broken)
        + "\n\nThese hold; where they break is by the unit cost:\n\n"
        + write_rows(("structure", "at the target", "breaks at"), whole)
    )


def write_rows(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Write a table."""
    lines = [f"|{'|'.join(cells)}|" for cells in (head, ["---"] * len(head), *rows)]
    return "\n".join(lines)


def describe_target(curve: Curve) -> str:
    """Write the cost at the target, and how it is known unless it was measured."""
    source = curve.tell_source(curve.target)
    known = "" if source == "measured" else f" ({source})"
    return f"{write_cost(curve.cost(curve.target), curve.unit)} {curve.limit_of}{known}"


def describe_unit_cost(curve: Curve) -> str:
    """Write the cost of a unit, and the sizes at which it was measured or simulated."""
    fixed, unit = curve.fit()
    sizes = f"{write_size(curve.known[0][0])}..{write_size(curve.known[-1][0])}"
    if curve.power == 0:
        return f"{write_cost(fixed, curve.unit)} at any size ({sizes})"
    each = {1: curve.over[:-1], 2: f"pair of {curve.over}"}[int(curve.power)]
    return f"{write_cost(unit, curve.unit)} a {each} ({sizes})"


def describe_break(curve: Curve) -> str:
    """Write the size at which the limit is passed, and how that is known."""
    if math.isinf(curve.breaks_at):
        return "does not, by any size"
    return f"{write_size(curve.breaks_at)} {curve.over}, {curve.tell_source(curve.breaks_at)}"


TIMES = {"ps": 1e-12, "ns": 1e-9, "us": 1e-6, "ms": 1e-3, "s": 1.0, "h": 3600.0, "days": 86400.0}
SIZES = {"B": 1e-6, "kB": 1e-3, "MB": 1.0, "GB": 1e3, "TB": 1e6}
UNITS = {
    **{unit: {name: size / TIMES[unit] for name, size in TIMES.items()} for unit in TIMES},
    "MB": SIZES,
    "": {"": 1.0},
}
"""Units in which a cost is written, by the unit in which it is kept."""


def write_cost(cost: float, unit: str) -> str:
    """Write a cost in the largest unit of which it has one at least."""
    fitting = [pair for pair in UNITS[unit].items() if cost >= pair[1]]
    name, size = fitting[-1] if fitting else next(iter(UNITS[unit].items()))
    return f"{number(cost / size)} {name}".strip()


def write_size(size: float) -> str:
    """Write a size: small ones in full, large ones by their power of ten."""
    if size < 1e6:
        return number(float(f"{size:.2g}"))
    power = math.floor(math.log10(size))
    lead = f"{size / 10**power:.1f}".removesuffix(".0")
    return f"10^{power}" if lead == "1" else f"{lead}·10^{power}"


def write_trials(raw: Mapping[str, Any]) -> str:
    """Write what was found by the simulated exchanges, the model of pages, and the whole job."""
    exchange, pages, job = raw["exchange"], raw["pages"], raw["job"]
    world, seconds, messages, _, _ = exchange["simulated"][-1]
    ranks, large_s, large_messages, store_bytes, _ = exchange["predicted"][-1]
    _, tree_s, tree_messages, _, rank_bytes = exchange["tree"][-1]
    size = job["size"]
    steps = ", ".join(f"{step:,}" for step in job["whole_steps"])
    return f"""\
* **By a store**, {world:,} ranks make {messages:,} messages of {exchange["text_bytes"]} bytes \
in {seconds:.3g} s, simulated; a request takes it {exchange["costs"]["handling_ns"] / 1e3:.3g} us. \
By the closed form ({exchange["formula_off_by"]:.1%} off) {ranks:,} ranks make \
{write_size(large_messages)}, {store_bytes / 1e12:.3g} TB through one process, in \
{large_s / 86400:.2g} days.
* **In a tree** they make {tree_messages:,}, each simulated, in {tree_s * 1e3:.2g} ms; \
{rank_bytes / 1e6:.2g} MB stay with a rank.
* **In two levels** a sample has {pages["bytes_a_sample"]:.3g} bytes on disk, a shard \
{pages["directory_bytes_a_shard"]:.0f} in memory. A random sample reads \
{pages["read_bytes_a_sample"]:,.0f} bytes of pages, in blocks of 256 \
{pages["read_bytes_a_sample_blocked"]:,.0f}; a look-up takes {pages["us_a_sample"]:.2g} us.
* **The whole job**: {job["ranks"]} random ranks of {size["ranks"]:,} walked \
{job["rank_steps"]:,} steps, {job["samples"]:,} of {write_size(size["samples"])} samples in \
{size["shards"]:,} shards: all as due by the order's inverse. The steps {steps} (the last) were \
made up exactly by {size["ranks"]:,} ranks, and by {size["ranks"] - 7:,}. It took \
{job["seconds"]:.0f} s, a rank {job["peak_bytes"] / 1e3:.0f} kB; one of 10 ranks over 10^6 samples \
{job["peak_bytes_of_10_ranks"] / 1e3:.0f} kB."""


def insert_text(page: str, mark: str, text: str) -> str:
    """Return the page with what lies between two marks replaced."""
    begin, end = (line.format(mark) for line in MARKS)
    before, _, rest = page.partition(begin)
    _, _, after = rest.partition(end)
    return f"{before}{begin}\n\n{text}\n\n{end}{after}"


# -- the charts ------------------------------------------------------------------------------------

LEFT, RIGHT, TOP, BOTTOM = 70.0, 470.0, 40.0, 340.0
DECADES = (-6, 6)
"""Powers of ten of a cost over its limit that a chart shows."""


@dataclass(frozen=True, slots=True)
class Axes:
    """Places of sizes and costs in a chart: both axes are logarithmic."""

    low: float
    high: float

    def x(self, size: float) -> float:
        """Place of a size."""
        low, high = math.log10(self.low), math.log10(self.high)
        return LEFT + (math.log10(size) - low) / (high - low) * (RIGHT - LEFT)

    def y(self, share: float) -> float:
        """Place of a cost, as a share of its limit; at the edge if it is beyond."""
        low, high = DECADES
        power = min(max(math.log10(max(share, 1e-30)), low), high)
        return BOTTOM - (power - low) / (high - low) * (BOTTOM - TOP)


def draw_chart(curves: Sequence[Curve], over: str) -> str:
    """Draw costs over their limits, over sizes up to ten times the target: whole lines where they
    were measured, dashes where they were simulated, dots beyond."""
    kinds = (over, "hosts") if over == "ranks" else (over,)
    chosen = [
        curve
        for curve in curves
        if curve.over in kinds and not any(name in curve.name for name in UNDRAWN)
    ]
    target = TARGETS[over]
    axes = Axes(1.0 if over == "ranks" else 1e4, 10.0 * target)
    drawing = Drawing(f"Cost of each structure over its limit, by the number of {over}", 400)
    drawing.text(LEFT, 24, f"cost / limit, over {over}: above 1 it breaks", soft=True)
    for power in range(DECADES[0], DECADES[1] + 1, 3):
        add_line(drawing, [(LEFT, axes.y(10.0**power)), (RIGHT, axes.y(10.0**power))], "1 5")
        drawing.text(12, axes.y(10.0**power) + 5, "1" if power == 0 else f"10^{power}", soft=True)
    add_line(drawing, [(LEFT, axes.y(1)), (RIGHT, axes.y(1))], "")
    add_line(drawing, [(axes.x(target), TOP), (axes.x(target), BOTTOM)], "1 5")
    step = 1 if over == "ranks" else 2
    for power in range(int(math.log10(axes.low)), int(math.log10(axes.high)) + 1, step):
        x = axes.x(10.0**power)
        drawing.text(x, BOTTOM + 20, f"10^{power}", middle=True, soft=True)
    ordered = sorted(chosen, key=lambda curve: -share_at(curve, over, axes.high))
    previous = TOP - 20
    for curve in ordered:
        draw_curve(drawing, axes, curve, over)
        end = axes.y(share_at(curve, over, axes.high))
        place = max(end + 5, previous + 17)
        previous = place
        add_line(drawing, [(RIGHT, end), (RIGHT + 18, place - 5)], "")
        drawing.text(RIGHT + 22, place, curve.name, soft=True)
    drawing.text(
        LEFT, BOTTOM + 44, "whole: measured; dashes: simulated; dots: by the unit cost", soft=True
    )
    return drawing.render()


def share_at(curve: Curve, over: str, size: float) -> float:
    """Cost over limit at a size; hosts have eight ranks each."""
    own = max(1.0, size / 8) if curve.over == "hosts" and over == "ranks" else size
    return curve.cost(own) / curve.limit


def draw_curve(drawing: Drawing, axes: Axes, curve: Curve, over: str) -> None:
    """Draw one curve through its points, and beyond them by its fit."""
    factor = 8.0 if curve.over == "hosts" and over == "ranks" else 1.0
    last = curve.known[-1][0]
    beyond = [last * (axes.high / factor / last) ** (n / 24) for n in range(25)]
    strokes = (
        (curve.points, ""),
        (curve.simulated, "6 4"),
        ([(size, curve.cost(size)) for size in beyond], "1 4"),
    )
    for points, dashes in strokes:
        places = [
            (axes.x(size * factor), axes.y(cost / curve.limit))
            for size, cost in points
            if axes.low <= size * factor <= axes.high * 1.001
        ]
        if len(places) > 1:
            add_line(drawing, places, dashes)


def add_line(drawing: Drawing, points: Sequence[tuple[float, float]], dashes: str) -> None:
    """Draw a line through points, whole or broken."""
    path = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
    broken = f' stroke-dasharray="{dashes}"' if dashes else ""
    drawing.parts.append(f'<polyline class="line" points="{path}"{broken}/>')


def write_pages() -> dict[Path, str]:
    """Return the page and its charts by path, if there is a record."""
    raw = read_record("scale")["raw"] if (RESULTS / "scale.json").exists() else {}
    if "curves" not in raw:
        return {}
    curves = [Curve.read(described) for described in raw["curves"]["all"]]
    pages = {path: draw_chart(curves, over) for over, path in CHARTS.items()}
    page = insert_text(PAGE.read_text(), "curves", write_tables(curves))
    return pages | {PAGE: insert_text(page, "trials", write_trials(raw))}
