"""Drawings of the concepts, as SVG that follows the reader's light or dark mode.

`python -m docsite drawings` writes them to docs/drawings; a test compares what lies there. The
order in them is the one that the library computes.
"""

from __future__ import annotations

from xml.sax.saxutils import escape

from docsite import ROOT

FOLDER = ROOT / "docs" / "drawings"

STYLE = """
    .paper { fill: #ffffff; stroke: #d0d7de } .ink { fill: #1f2328 } .soft { fill: #57606a }
    .line { stroke: #57606a; fill: none } .tip { fill: #57606a }
    .a { fill: #ddf4ff; stroke: #0969da } .b { fill: #fff8c5; stroke: #9a6700 }
    .c { fill: #dafbe1; stroke: #1a7f37 } .none { fill: #eaeef2; stroke: #8c959f }
    @media (prefers-color-scheme: dark) {
      .paper { fill: #0d1117; stroke: #30363d } .ink { fill: #e6edf3 } .soft { fill: #9da7b3 }
      .line { stroke: #9da7b3 } .tip { fill: #9da7b3 }
      .a { fill: #10273f; stroke: #4493f8 } .b { fill: #2b230b; stroke: #d29922 }
      .c { fill: #0f2a17; stroke: #3fb950 } .none { fill: #21262d; stroke: #6e7681 }
    }
"""


class Drawing:
    """An SVG that is put together from boxes, texts and arrows.

    title:   the text for readers who do not see it.
    height:  in units of which the width has 720.
    """

    def __init__(self, title: str, height: int) -> None:
        self.parts: list[str] = []
        self.title = title
        self.height = height

    def box(
        self, x: float, y: float, width: float, height: float, kind: str, text: str = ""
    ) -> None:
        """A box of a kind (a, b, c or none), with a text in its middle."""
        self.parts.append(
            f'<rect class="{kind}" x="{x:g}" y="{y:g}" width="{width:g}" height="{height:g}" '
            'rx="5"/>'
        )
        if text:
            self.text(x + width / 2, y + height / 2 + 5, text, middle=True)

    def text(
        self, x: float, y: float, text: str, *, middle: bool = False, soft: bool = False
    ) -> None:
        """A line of text, from its left end or around its middle."""
        anchor = ' text-anchor="middle"' if middle else ""
        kind, size = ("soft", 13) if soft else ("ink", 14)
        self.parts.append(
            f'<text class="{kind}" x="{x:g}" y="{y:g}" font-size="{size}"{anchor}>'
            f"{escape(text)}</text>"
        )

    def arrow(self, *points: tuple[float, float]) -> None:
        """An arrow through these points."""
        path = " ".join(f"{x:g},{y:g}" for x, y in points)
        self.parts.append(f'<polyline class="line" points="{path}" marker-end="url(#tip)"/>')

    def render(self) -> str:
        """The text of the SVG."""
        body = "\n  ".join(self.parts)
        return (
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 720 {self.height}" '
            f'font-family="system-ui, sans-serif" role="img" aria-labelledby="title">\n'
            f'  <title id="title">{escape(self.title)}</title>\n  <style>{STYLE}  </style>\n'
            '  <defs><marker id="tip" markerWidth="8" markerHeight="8" refX="7" refY="4" '
            'orient="auto"><path class="tip" d="M0,0 L8,4 L0,8 z"/></marker></defs>\n'
            '  <rect class="paper" x="0.5" y="0.5" width="719" '
            f'height="{self.height - 1}" rx="8"/>\n'
            f"  {body}\n</svg>\n"
        )


def draw_extents() -> Drawing:
    """Two containers as files of bytes, and the table of extents that both become."""
    drawing = Drawing("Every container becomes a table of extents: file, offset, length", 300)
    drawing.text(24, 34, "a tar file")
    x = 24.0
    for width, kind, text in (
        (34, "none", ""),
        (110, "a", "cat.jpg"),
        (34, "none", ""),
        (70, "a", "dog.jpg"),
        (34, "none", ""),
        (140, "a", "owl.jpg"),
        (60, "none", ""),
    ):
        drawing.box(x, 46, width, 36, kind, text)
        x += width + 2
    drawing.text(24, 118, "a folder")
    for number, (width, text) in enumerate(((120, "fox.jpg"), (80, "elk.jpg"))):
        drawing.box(24 + 140 * number, 130, width, 36, "b", text)
    drawing.text(24, 200, "grey: headers and padding, which no batch needs", soft=True)
    drawing.arrow((506, 64), (598, 64), (598, 98))
    drawing.arrow((250, 148), (486, 148))
    columns = (519, 560, 610, 672)
    rows = [("a", "0 0 512 41,200"), ("a", "1 0 42,496 18,034"), ("a", "2 0 61,440 52,777")]
    rows += [("b", "3 1 0 30,118"), ("b", "4 2 0 22,540")]
    for x, word in zip(columns, ("sample", "file", "offset", "length"), strict=True):
        drawing.text(x, 118, word, middle=True)
    for row, (kind, line) in enumerate(rows):
        drawing.box(490, 128 + 30 * row, 216, 26, kind)
        for x, word in zip(columns, line.split(), strict=True):
            drawing.text(x, 146 + 30 * row, word, middle=True)
    drawing.text(
        24, 250, "All that comes after the index knows extents, and nothing of formats.", soft=True
    )
    return drawing


def draw_order() -> Drawing:
    """Sixteen samples in storage, and the same in the order of two epochs."""
    from penstock import Order

    drawing = Drawing("The order of an epoch: a function from position to sample, and back", 250)
    kinds = ["a"] * 4 + ["b"] * 4 + ["c"] * 4 + ["none"] * 4
    rows = [("in storage", list(range(16)))]
    rows += [(f"epoch {epoch}", Order(16, 0, epoch).run(0, 16).tolist()) for epoch in range(2)]
    for row, (name, samples) in enumerate(rows):
        top = 24 + 62 * row
        drawing.text(20, top + 24, name)
        for position, sample in enumerate(samples):
            drawing.box(110 + 37 * position, top, 33, 36, kinds[sample], str(sample))
    drawing.text(
        20,
        226,
        "order(seed, epoch)[position] = sample costs 2 ns and no memory; so any rank knows",
        soft=True,
    )
    drawing.text(
        20, 243, "what any rank reads at any step, and a run continues anywhere.", soft=True
    )
    return drawing


def draw_windows() -> Drawing:
    """Steps that are handed over, that are being read, and that wait."""
    drawing = Drawing("Steps of an epoch: handed over, read ahead, not yet admitted", 270)
    drawing.text(20, 34, "steps of the epoch")
    names = ["k-2", "k-1", "k", "k+1", "k+2", "k+3", "k+4", "k+5", "k+6"]
    kinds = ["none", "none", "a", "b", "b", "b", "none", "none", "none"]
    for number, (name, kind) in enumerate(zip(names, kinds, strict=True)):
        drawing.box(20 + 76 * number, 46, 70, 36, kind, name)
    drawing.text(20, 106, "handed over", soft=True)
    drawing.text(172, 106, "with you", soft=True)
    drawing.text(250, 106, "admitted: within readahead_bytes", soft=True)
    drawing.text(480, 106, "planned when there is room", soft=True)
    drawing.text(20, 146, "the reads of the admitted steps, by place in the file")
    for x, width in ((20, 40), (64, 90), (190, 60), (300, 150), (456, 50), (560, 110)):
        drawing.box(x, 158, width, 28, "b")
    drawing.text(
        20,
        212,
        "Reads of a window of steps are sorted by file and offset; neighbours are merged into one.",
        soft=True,
    )
    drawing.text(
        20,
        230,
        "The bytes go straight to their rows in the batch; steps are handed over in order,",
        soft=True,
    )
    drawing.text(20, 248, "whichever read ends first.", soft=True)
    return drawing


def draw_cache() -> Drawing:
    """Cache blocks, the hosts that own them, and the one read of each."""
    drawing = Drawing("Each cache block has one owner, which reads it from storage once", 330)
    drawing.text(20, 34, "shared storage: cache blocks of neighbouring samples")
    owners = "abbababcca"
    for block, owner in enumerate(owners):
        drawing.box(20 + 68 * block, 46, 62, 34, owner, f"{block}")
    for number, (kind, name) in enumerate((("a", "host A"), ("b", "host B"), ("c", "host C"))):
        left = 20 + 232 * number
        drawing.box(left, 150, 216, 86, "none")
        drawing.text(left + 12, 172, f"{name}: memory of its ranks")
        kept = [block for block, owner in enumerate(owners) if owner == kind]
        for place, block in enumerate(kept):
            drawing.box(left + 12 + 48 * place, 186, 42, 34, kind, str(block))
        first = 20 + 68 * kept[0] + 31
        level = 128 - 14 * number
        drawing.arrow((first, 80), (first, level), (left + 108, level), (left + 108, 148))
    drawing.arrow((236, 200), (250, 200))
    drawing.arrow((468, 214), (482, 214))
    drawing.text(
        20,
        270,
        "Which host owns a block is arithmetic: no messages, no directory, no eviction.",
        soft=True,
    )
    drawing.text(
        20,
        288,
        'A block leaves storage when it is first needed, once; with assignment="local" a rank gets',
        soft=True,
    )
    drawing.text(
        20,
        306,
        "samples that its host keeps, and only the surplus goes from host to host.",
        soft=True,
    )
    return drawing


def draw_leases() -> Drawing:
    """Two jobs whose leases a broker renews, and what each may use over time."""
    drawing = Drawing(
        "Leases: what each job may use, renewed by the broker, ending by themselves", 290
    )
    drawing.text(20, 34, "bytes/s of the host's storage")
    drawing.box(20, 46, 150, 120, "a", "job 1")
    drawing.box(20, 166, 150, 60, "b", "job 2")
    drawing.box(172, 46, 150, 60, "a", "job 1")
    drawing.box(172, 106, 150, 120, "b", "job 2")
    drawing.box(324, 46, 206, 180, "b", "job 2")
    drawing.box(532, 46, 168, 180, "none", "each its own budget")
    drawing.text(20, 246, "job 2 needs little", soft=True)
    drawing.text(172, 246, "it needs more", soft=True)
    drawing.text(324, 246, "job 1 ended: at once", soft=True)
    drawing.text(532, 246, "the broker is gone", soft=True)
    drawing.text(
        20,
        272,
        "A lease lasts 5 s, renewed at half of that; none raises a loader above its own budget.",
        soft=True,
    )
    return drawing


def draw_commits() -> Drawing:
    """The states of a save, and what a kill leaves in each."""
    drawing = Drawing(
        "A save is committed by one rename: before it, the checkpoint before counts", 250
    )
    states = (
        ("staged", "a", "copied in memory;", "training goes on"),
        ("written", "b", "shards are on disk,", "in a folder that is none"),
        ("held", "b", "with tiers only: the", "next save may begin"),
        ("committed", "c", "the index is written,", "the folder renamed"),
    )
    for number, (name, kind, first, second) in enumerate(states):
        left = 20 + 176 * number
        drawing.box(left, 40, 130, 44, kind, name)
        drawing.text(left + 65, 108, first, middle=True, soft=True)
        drawing.text(left + 65, 126, second, middle=True, soft=True)
        if number < 3:
            drawing.arrow((left + 130, 62), (left + 174, 62))
    drawing.text(20, 168, "kill -9 here")
    drawing.box(20, 180, 306, 30, "none", "the checkpoint before loads")
    drawing.box(340, 180, 180, 30, "b", "the next job commits it")
    drawing.box(534, 180, 166, 30, "c", "this checkpoint loads")
    drawing.text(
        20, 236, "Every byte has a checksum; model and loader are in one commit.", soft=True
    )
    return drawing


def draw_ranks() -> Drawing:
    """One order, dealt to two ranks, killed, and dealt to four."""
    from penstock import Order

    drawing = Drawing("Steps of one order, dealt to two ranks and, after a kill, to four", 262)
    kinds = ("a", "b", "c", "none")
    samples = Order(16, 0, 0).run(0, 16).tolist()
    for step in range(2):
        world, left = 2 + 2 * step, 20 + 356 * step
        drawing.text(left, 34, f"step {step}: a global batch of 8, on {world} ranks")
        for position in range(8):
            kind = kinds[position % world]
            drawing.box(left + 40 * position, 46, 36, 36, kind, str(samples[8 * step + position]))
        for rank in range(world):
            top = 100 + 30 * rank
            drawing.text(left, top + 18, f"rank {rank}")
            for place, position in enumerate(range(rank, 8, world)):
                text = str(samples[8 * step + position])
                drawing.box(left + 60 + 40 * place, top, 36, 26, kinds[rank], text)
    drawing.text(20, 196, "loader.state_dict(); kill -9", soft=True)
    drawing.arrow((200, 191), (364, 191), (364, 150))
    drawing.text(
        20, 244, "The samples of a step do not depend on the ranks; their parts do.", soft=True
    )
    return drawing


def draw_packing() -> Drawing:
    """Documents of different lengths, and the rows that they fill."""
    drawing = Drawing("Whole documents share rows of equal length", 284)
    lengths = (7, 12, 4, 9, 5, 3, 8)
    kinds = ("a", "b", "c", "a", "b", "c", "b")
    unit = 12
    drawing.text(20, 34, "documents, by their tokens")
    x = 20.0
    for length, kind in zip(lengths, kinds, strict=True):
        drawing.box(x, 46, unit * length, 32, kind, str(length))
        x += unit * length + 6
    drawing.arrow((360, 88), (360, 112))
    drawing.text(20, 128, "rows of 16 tokens")
    for row, documents in enumerate(((1, 2), (3, 0), (6, 4, 5))):
        top, x = 140 + 36 * row, 20.0
        for document in documents:
            width = unit * lengths[document]
            drawing.box(x, top, width, 30, kinds[document], str(lengths[document]))
            x += width
        positions = "   ".join(f"0..{lengths[document] - 1}" for document in documents)
        drawing.text(240, top + 20, f"position_ids: {positions}", soft=True)
    drawing.text(
        20, 270, "No document is cut; labels and cu_seqlens keep documents apart.", soft=True
    )
    return drawing


def draw_all() -> dict[str, str]:
    """The drawings by file name."""
    draw = {
        "extents.svg": draw_extents,
        "order.svg": draw_order,
        "windows.svg": draw_windows,
        "cache.svg": draw_cache,
        "leases.svg": draw_leases,
        "commits.svg": draw_commits,
        "ranks.svg": draw_ranks,
        "packing.svg": draw_packing,
    }
    return {name: each().render() for name, each in draw.items()}


def write_drawings() -> None:
    """Write the drawings to docs/drawings."""
    FOLDER.mkdir(exist_ok=True)
    for name, text in draw_all().items():
        (FOLDER / name).write_text(text)
