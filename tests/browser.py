"""Pages as trees, as HTML reads them, and as a browser shows them."""

from __future__ import annotations

import html
import json
import re
import shutil
import subprocess
from html.parser import HTMLParser
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

from penstock_bench import page as pages


def page_of(text: str) -> ElementTree.Element:
    """The page as a tree: it is well-formed XML besides HTML."""
    doctype, _, rest = text.partition("\n")
    assert doctype == "<!doctype html>"
    return ElementTree.fromstring(rest)


class Tags(HTMLParser):
    """Elements of a page with their attributes, as HTML's own rules read them."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.feed(text)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        assert tag == "meta", f"<{tag} /> stays open"
        self.handle_starttag(tag, attrs)


def values_of(tree: ElementTree.Element) -> dict[str, list[list[float]]]:
    """The exact numbers of each row of each table, by what the row is called."""
    rows: dict[str, list[list[float]]] = {}
    for row in tree.iter("tr"):
        name = row.find("th")
        if row.find("td") is not None and name is not None:
            found = [float(each.get("value", "")) for each in row.iter("data")]
            rows.setdefault((name.text or "").removesuffix(" *"), []).append(found)
    return rows


def colours_of(scheme: str) -> dict[str, list[int]]:
    """The colours of the style sheet by name, on light or dark paper."""
    sheet = (Path(pages.__file__).parent / "templates" / "page.css").read_text()
    block = sheet.split(":root")[["light", "dark"].index(scheme) + 1]
    found = re.findall(r"--(\w+): #(\w{6});", block)
    return {name: list(bytes.fromhex(value)) for name, value in found}


CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")


def browse(page: Path, *options: str) -> subprocess.CompletedProcess[str]:
    """Debian's chromium opens a page, with a profile of its own and no names of hosts, and ends."""
    assert CHROMIUM is not None
    command = [CHROMIUM, "--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"]
    command += ["--no-first-run", "--disable-background-networking", "--disable-extensions"]
    command += ["--host-resolver-rules=MAP * ~NOTFOUND", "--hide-scrollbars"]
    command += [f"--user-data-dir={page.parent / 'profile'}", "--enable-logging=stderr", *options]
    done = subprocess.run([*command, page.as_uri()], capture_output=True, text=True, timeout=110)
    assert done.returncode == 0, done.stderr
    return done


def asked_for(log: Path) -> list[str]:
    """Addresses that a page asked for; what the browser wants for itself has no origin."""
    events = json.loads(log.read_text())["events"]
    started = [each.get("params", {}) for each in events]
    return [each["url"] for each in started if each.get("initiator", "not an origin")[:3] != "not"]


needs_chromium = pytest.mark.skipif(
    CHROMIUM is None, reason="needs chromium: apt-get install chromium"
)


MEASURE = """
const found = {};
for (const frame of document.querySelectorAll('iframe')) {
  const page = frame.contentDocument, root = page.documentElement, met = [];
  for (const picture of page.querySelectorAll('svg')) {
    const texts = [...picture.querySelectorAll('text')].map(
      (text) => [text.textContent, text.getBoundingClientRect()]);
    texts.forEach(([said, a], number) => {
      for (const [other, b] of texts.slice(number + 1))
        if (Math.min(a.right, b.right) - Math.max(a.left, b.left) > 1 &&
            Math.min(a.bottom, b.bottom) - Math.max(a.top, b.top) > 3) met.push([said, other]);
    });
  }
  found[frame.title] = {
    overflow: root.scrollWidth - root.clientWidth, met,
    texts: page.querySelectorAll('svg text').length,
  };
}
document.getElementById('found').textContent = JSON.stringify(found);
"""


def measured(texts: dict[str, tuple[str, int]], folder: Path) -> dict[str, Any]:
    """Measure pages in a browser, each at a width in pixels: how much wider than that they are,
    which labels of pictures lie on each other, and how many labels there are."""
    frames = "".join(
        f'<iframe title="{name}" style="width:{width}px;height:600px;border:0" '
        f'srcdoc="{html.escape(text, quote=True)}"></iframe>'
        for name, (text, width) in texts.items()
    )
    page = folder / "measured.html"
    page.write_text(
        f"<!doctype html><meta charset=utf-8><body>{frames}<pre id=found></pre>"
        f"<script>window.onload = () => {{ {MEASURE} }};</script>"
    )
    dumped = browse(page, "--window-size=1600,1200", "--dump-dom").stdout
    found = re.search(r'<pre id="found">(.*?)</pre>', dumped, re.DOTALL)
    assert found is not None
    values: dict[str, Any] = json.loads(html.unescape(found[1]))
    return values
