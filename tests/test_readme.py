"""Pages for readers: code that runs as printed, links that lead somewhere, a short README."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from xml.etree import ElementTree

import lmdb
import numpy as np
import pytest
from PIL import Image

from tests import warm
from tests.slices import first

ROOT = Path(__file__).parent.parent
README = ROOT / "README.md"
PAGES = [
    "README.md",
    "docs/concepts.md",
    "docs/formats.md",
    "docs/selections.md",
    "docs/text.md",
    "docs/tutorial.md",
]
"""Pages whose blocks of Python run in the order in which they stand."""
PRELUDES = {
    "docs/tutorial.md": """
import lmdb, torch
from torch.utils.data import DataLoader
path, checkpoint_path, decode, model = "database", "checkpoint.pt", len, torch.nn.Linear(1, 1)
"""
}
"""The names that a page takes for granted: those of the reader's own program."""
ELSEWHERE = "s3://bucket/train"
"""A block with this in it needs a bucket, and does not run."""
LINKED = [
    "README.md",
    "benchmarks/README.md",
    *sorted(f"docs/{path.name}" for path in (ROOT / "docs").glob("*.md")),
]
WORDS_MAX = 1_600
LINES_MAX = 160


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """A folder with what the pages read: images in sub-folders by class, records of 64 bytes, JSON
    lines."""
    for number in range(40):
        path = tmp_path / "images" / ("cat", "dog")[number % 2] / f"{number:02}.jpg"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.new("RGB", (80 + number, 60), (number, 99, 0)).save(path)
    np.arange(200 * 32, dtype=np.uint16).tofile(tmp_path / "tokens.bin")
    (tmp_path / "documents").mkdir()
    for number in range(2):
        rows = [{"text": f"document {n}", "label": n, "score": n / 2} for n in range(20)]
        lines = "".join(json.dumps(row) + "\n" for row in rows)
        (tmp_path / "documents" / f"{number}.jsonl").write_text(lines)
    database = lmdb.open(str(tmp_path / "database"), map_size=1 << 20)
    with database, database.begin(write=True) as transaction:
        for number in range(300):
            transaction.put(b"%03d" % number, bytes(number))
    return tmp_path


def python_blocks(page: str) -> list[str]:
    """The blocks of Python on a page."""
    return re.findall(
        r"^```python\n(.*?)^```$", (ROOT / page).read_text(), re.DOTALL | re.MULTILINE
    )


@pytest.mark.parametrize("page", first(1, PAGES))
def test_the_code_of_a_page_runs_as_printed(page: str, data: Path) -> None:
    """All blocks of a page are one program, which ends without an error."""
    blocks = [block for block in python_blocks(page) if f'"{ELSEWHERE}"' not in block]
    assert blocks
    blocks.insert(0, PRELUDES.get(page, ""))
    done = warm.run(
        [sys.executable, "-c", "\n".join(blocks)],
        cwd=data,
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout or "print(" not in "".join(blocks)


def test_the_readme_is_short() -> None:
    """A shop window: bounded in lines and words, with about twenty lines of code first."""
    text = README.read_text()
    assert len(text.splitlines()) <= LINES_MAX
    assert len(text.split()) <= WORDS_MAX
    assert len(python_blocks("README.md")[0].splitlines()) <= 25


def headings(page: Path) -> set[str]:
    """The anchors of a page's headings, as GitHub makes them."""
    titles = re.findall(r"^#+ (.*)$", page.read_text(), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", title).strip().lower().replace(" ", "-") for title in titles}


@pytest.mark.parametrize("page", LINKED)
def test_links_lead_to_files_and_headings(page: str) -> None:
    """Every relative link of a page is there, and so is the heading that it names."""
    here = ROOT / page
    links = re.findall(r"\]\((?!https?:)([^)#]*)(?:#([^)]*))?\)", here.read_text())
    assert links or page != "README.md"
    for path, anchor in links:
        target = (here.parent / path).resolve() if path else here
        assert target.exists(), f"{page} links to {path}, which is not there"
        if anchor:
            assert anchor in headings(target), f"{page}: {path} has no heading #{anchor}"


def test_the_picture_has_light_and_dark_colours() -> None:
    """The SVG is well-formed, names what it shows, and follows the reader's colour scheme."""
    (picture,) = re.findall(r"!\[.*\]\((.*\.svg)\)", README.read_text())
    text = (ROOT / picture).read_text()
    tree = ElementTree.fromstring(text)
    assert tree.find("{http://www.w3.org/2000/svg}title") is not None
    assert "prefers-color-scheme: dark" in text
    assert "<script" not in text
