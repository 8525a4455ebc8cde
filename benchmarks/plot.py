"""The README's plot: four kinds of data, by torch, by the best of the others, and by penstock.

`python -m benchmarks.report` writes it to docs/speed.svg, from the records alone.
"""

from __future__ import annotations

from typing import NamedTuple

from docsite.drawings import Drawing

from benchmarks.record import RESULTS, ROOT, is_fit, number, read_record

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
    Panel(
        "Photographs, cropped to 224 x 224",
        "image-folder",
        ("torch, ImageFolder", "ImageFolder, four lines changed / torch, 2 workers, images/s"),
        ("FFCV, own format", "from_torchvision / FFCV, its own format, images/s"),
    ),
)


class Bar(NamedTuple):
    """How many times as fast as the base, with the interval."""

    name: str
    times: float
    low: float
    high: float


def list_bars(panel: Panel) -> list[Bar]:
    """The bars of a panel. The interval of a rival is made of the intervals of two pairings."""
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


def list_panels(tree: str | None) -> list[Panel]:
    """The panels whose records were made in quiet, and are of `tree` (None: of any)."""
    return [
        panel
        for panel in PANELS
        if (RESULTS / f"{panel.record}.json").exists()
        and is_fit(read_record(panel.record), tree)
        and has_rows(panel)
    ]


def has_rows(panel: Panel) -> bool:
    """Whether the record has the rows of a panel, with figures."""
    rows = {row["name"]: row for row in read_record(panel.record)["rows"]}
    return all(rows.get(name, {}).get("low") for _, name in (panel.base, panel.other))


def draw_speed(tree: str | None) -> str:
    """The plot as SVG."""
    panels = list_panels(tree)
    rows = (len(panels) + 1) // 2
    drawing = Drawing("Samples per second, as multiples of torch's DataLoader", 34 + 130 * rows)
    drawing.text(
        8, 20, "Samples per second; torch's DataLoader is 1. Lines are 95 % intervals.", soft=True
    )
    for place, panel in enumerate(panels):
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
            low, high = (x + 150 + end * scale for end in (bar.low, bar.high))
            ends = f"{low:g},{top + 10:g} {high:g},{top + 10:g}"
            drawing.parts.append(f'<polyline class="line" points="{ends}"/>')
        drawing.text(
            x + 158 + bar.high * scale,
            top + 15,
            f"{number(bar.times)}x",
            soft=bar.name != "penstock",
        )
