"""Pages for readers: code that runs as printed, links that lead somewhere, a short README."""

from __future__ import annotations

import json
import os
import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import boto3
import lmdb
import numpy as np
import pytest
from docsite.blocks import find_blocks, make_program
from obstore.store import S3Store
from PIL import Image

from tests import warm
from tests.convert.tokenizers_made import train
from tests.hub import serve_hub
from tests.index.formats.annotated import make_coco, write_coco, write_pairs, write_tar
from tests.index.formats.writers import write_mds
from tests.services import KEY, SECRET, environment, moto

ROOT = Path(__file__).parent.parent
README = ROOT / "README.md"
PAGES = [
    page
    for page in [
        "README.md",
        *sorted(str(p.relative_to(ROOT)) for p in (ROOT / "docs").rglob("*.md")),
    ]
    if not page.startswith("docs/trainers/")
    and any(block.runs_on_page for block in find_blocks((ROOT / page).read_text()))
]
"""Pages whose blocks of Python and of a shell's commands run, in the order in which they stand."""
TOKENIZED = """
import penstock.convert
penstock.convert.tokenize(penstock.open("documents"), "tokenized", "tokenizer.json")
"""
ROWS = "rows = penstock.pack(penstock.open('tokenized'), length=64)\n"
PRELUDES = {
    "docs/tutorial.md": """
import lmdb, torch
from torch.utils.data import DataLoader
path, checkpoint_path, decode, model = "database", "checkpoint.pt", len, torch.nn.Linear(1, 1)
""",
    "docs/text/tokens.md": TOKENIZED,
    "docs/packing.md": TOKENIZED,
    "docs/packing/batches.md": TOKENIZED,
    "docs/packing/joined.md": TOKENIZED,
    "docs/balance.md": TOKENIZED + ROWS,
    "docs/balance/costs.md": TOKENIZED + ROWS,
    "docs/balance/batch-tokens.md": TOKENIZED
    + """
import numpy as np
texts = penstock.open("tokenized")
tokenize = lambda sample: {"input_ids": np.asarray(sample["tokens"])}
""",
}
"""The names that a page takes for granted: those of the reader's own program."""
LINKED = [
    "README.md",
    "AGENTS.md",
    "benchmarks/README.md",
    *sorted(str(path.relative_to(ROOT)) for path in (ROOT / "docs").rglob("*.md")),
]
WORDS_MAX = 900
LINES_MAX = 120


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """A folder with what the pages read: images in sub-folders by class, records of 64 bytes, JSON
    lines, annotated images, a tokenizer."""
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
    train(tmp_path / "tokenizer.json", [f"document {number}" for number in range(20)], 300)
    names = [f"{number}.jpg" for number in range(8)]
    write_coco(tmp_path / "coco", make_coco(names, [number % 4 for number in range(8)]))
    write_coco(tmp_path / "coco", make_coco(names[:2], [1, 2]), "val2017")
    rows = [{"caption": f"{n}", "score": n / 8, "label": ("cat", "dog")[n % 2]} for n in range(8)]
    write_pairs(tmp_path / "pairs", {f"{number}": row for number, row in enumerate(rows)})
    for shard in range(2):
        members = {}
        for number in range(4):
            members |= {f"{number}.jpg": b"jpg", f"{number}.txt": b"text"}
            members[f"{number}.json"] = b'{"width": 80}'
        write_tar(tmp_path / f"pairs-{shard}.tar", members)
    shard = [[bytes([number, 0] * 4)] for number in range(40)]
    write_mds(tmp_path / "mds", {"tokens": ("ndarray:uint16:4", 8)}, [shard])
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


def mark_page(page: str) -> Any:
    """A page whose code make docs-check runs, and make test does not."""
    return pytest.param(page, marks=pytest.mark.page)


@contextmanager
def serve_bucket(page: str, data: Path) -> Iterator[dict[str, str]]:
    """The variables of a service with `s3://bucket`, for a page that names it."""
    if "s3://bucket" not in page:
        yield {}
        return
    with moto() as port:
        variables = environment(port)
        bucket = S3Store(
            "bucket",
            config={key.lower(): value for key, value in variables.items()},
            client_options={"allow_http": True},
        )
        make_bucket(variables)
        for path in sorted((data / "images").rglob("*.jpg")):
            bucket.put(f"train/{path.relative_to(data / 'images')}", path.read_bytes())
        shard = (data / "pairs-0.tar").read_bytes()
        for number in range(147):
            bucket.put(f"shard-{number:03}.tar", shard)
            bucket.put(f"train-{number:06}.tar", shard)
        yield variables


def make_bucket(variables: dict[str, str]) -> None:
    """Make `s3://bucket` in the service that these variables mean."""
    client = boto3.client(
        "s3",
        endpoint_url=variables["AWS_ENDPOINT_URL"],
        aws_access_key_id=KEY,
        aws_secret_access_key=SECRET,
        region_name="us-east-1",
    )
    client.create_bucket(Bucket="bucket")


@pytest.mark.parametrize("page", [PAGES[0], *map(mark_page, PAGES[1:])])
def test_the_code_of_a_page_runs_as_printed(page: str, data: Path) -> None:
    """All blocks of a page are one program, which ends without an error."""
    text = (ROOT / page).read_text()
    program = data / "page.py"
    program.write_text(make_program(page, text, PRELUDES.get(page, "")))
    with serve_hub() as hub, serve_bucket(text, data) as variables:
        lines = (data / "documents" / "0.jsonl").read_bytes()
        hub.commit({"README.md": b"# Documents", "documents/0.jsonl": lines})
        done = warm.run(
            [sys.executable, str(program)],
            cwd=data,
            capture_output=True,
            text=True,
            timeout=200,
            check=False,
            env=os.environ
            | variables
            | {"HF_ENDPOINT": hub.url, "HF_HOME": str(data / "hf"), "HOME": str(data / "home")}
            | {"XDG_CACHE_HOME": str(data / "cache"), "PENSTOCK_BROKER": str(data / "broker.sock")},
        )
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout or "print(" not in text


@pytest.mark.parametrize("side", ["-", "+"])
def test_both_sides_of_the_readme_s_diff_run(side: str, data: Path) -> None:
    """A script over ImageFolder, and the same with penstock: every image once, of the same form."""
    (diff,) = re.findall(r"^```diff\n(.*?)^```$", README.read_text(), re.DOTALL | re.MULTILINE)
    lines = [line[1:] for line in diff.splitlines() if line[:1] in (" ", side, "")]
    script = data / "script.py"
    script.write_text("\n".join(lines))
    standins = str(ROOT / "tests" / "standins")  # where torchvision is not installed
    done = warm.run(
        [sys.executable, "-c", f"import sys; sys.path.append({standins!r}); import script"],
        cwd=data,
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
        env=os.environ | {"XDG_CACHE_HOME": str(data / "cache")},
    )
    assert done.returncode == 0, done.stdout + done.stderr
    printed = done.stdout.splitlines()
    assert len(printed) == 5
    assert all(
        line.startswith("torch.Size([8, 3, 64, 64]) torch.float32 tensor([") for line in printed
    )
    labels = re.findall(r"[01](?=[,\]])", " ".join(line.split("tensor")[1] for line in printed))
    assert sorted(labels) == ["0"] * 20 + ["1"] * 20


def test_the_readme_is_short() -> None:
    """A shop window: bounded in lines and words, with a short program."""
    text = README.read_text()
    assert len(text.splitlines()) <= LINES_MAX
    assert len(text.split()) <= WORDS_MAX
    assert len((ROOT / "AGENTS.md").read_text().splitlines()) <= 80
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
    menu = (ROOT / "mkdocs.yml").read_text()
    for path, anchor in links:
        if (generated := path.rpartition("reference/"))[1]:
            assert f": reference/{generated[2]}\n" in menu, f"{page}: {path} is no generated page"
            continue
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
