"""The README's plot: four kinds of data, by torch, by the best of the others, and by penstock.

`python -m benchmarks.report` writes it to docs/speed.svg, from the records alone.
"""

from __future__ import annotations

from typing import NamedTuple

from docsite.drawings import Drawing

from benchmarks.record import ROOT, number, read_record

PATH = ROOT / "docs" / "speed.svg"


class Panel(NamedTuple):
    """A kind of data. The rows of `record` name whom penstock was paired with.

    base:   the row of torch, or of what torch's workers would call; it is 1.
    other:  the best of the rest: its name, and its row.
    """

    title: str
    record: str
    base: tuple[str, str]
    other: tuple[str, str]


PANELS = (
    Panel(
        "Records of 4 KiB, in memory",
        "bench",
        ("torch DataLoader", "records4k / torch, best"),
        ("FFCV, own format", "records4k / FFCV, best"),
    ),
    Panel(
        "LMDB, on storage 0.5 ms away",
        "lmdb",
        ("lmdb, 8 readers", "node / lmdb, best"),
        ("bare loop in C++", "node / bare C++ loop"),
    ),
    Panel(
        "Windows of 2,048 tokens, in memory",
        "bench",
        ("torch DataLoader", "tokens / torch, best"),
        ("torch, tuned by hand", "tokens / torch + __getitems__, best"),
    ),
)


class Bar(NamedTuple):
    """How many times as fast as the base, with the interval."""

    name: str
    times: float
    low: float
    high: float


def list_bars(panel: Panel) -> list[Bar]:
    """The bars of a panel. The interval of the other one comes from those of two pairings."""
    rows = {row["name"]: row for row in read_record(panel.record)["rows"]}
    base, other = rows[panel.base[1]], rows[panel.other[1]]
    return [
        Bar(panel.base[0], 1.0, 1.0, 1.0),
        Bar(
            panel.other[0],
            base["ratio"] / other["ratio"],
            base["low"] / other["high"],
            base["high"] / other["low"],
        ),
        Bar("penstock", base["ratio"], base["low"], base["high"]),
    ]


def draw_speed() -> str:
    """The plot as SVG."""
    rows = (len(PANELS) + 1) // 2
    drawing = Drawing("Samples per second, as multiples of torch's DataLoader", 34 + 130 * rows)
    drawing.text(8, 20, "Samples per second; torch's DataLoader is 1. Lines are 95 % intervals.", soft=True)
    for place, panel in enumerate(PANELS):
        draw_panel(drawing, panel, 8 + 360 * (place % 2), 40 + 130 * (place // 2))
    return drawing.render()


def draw_panel(drawing: Drawing, panel: Panel, x: float, y: float) -> None:
    """A panel: its title, and a bar for each."""
    bars = list_bars(panel)
    scale = 130 / max(bar.high for bar in bars)
    drawing.text(x, y + 14, panel.title)
    for place, bar in enumerate(bars):
        top = y + 26 + 28 * place
        drawing.text(x, top + 15, bar.name, soft=bar.name != "penstock")
        kind = "c" if bar.name == "penstock" else "none"
        drawing.box(x + 150, top, bar.times * scale, 20, kind)
        if bar.low != bar.high:
            ends = f"{x + 150 + bar.low * scale:g},{top + 10:g} {x + 150 + bar.high * scale:g},{top + 10:g}"
            drawing.parts.append(f'<polyline class="line" points="{ends}"/>')
        drawing.text(x + 158 + bar.high * scale, top + 15, f"{number(bar.times)}x", soft=bar.name != "penstock")
