"""Pages as trees, as HTML reads them, and as a browser shows them."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from html.parser import HTMLParser
from pathlib import Path
from xml.etree import ElementTree

import pytest

from penstock.page import document


def page_of(text: str) -> ElementTree.Element:
    """The page as a tree: it is well-formed XML besides HTML."""
    doctype, _, rest = text.partition("\n")
    assert doctype == "<!doctype html>"
    return ElementTree.fromstring(rest)


class Tags(HTMLParser):
    """What HTML's own rules make of a page: elements, attributes, and the texts of some."""

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
    sheet = (Path(document.__file__).parent / "page.css").read_text()
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
