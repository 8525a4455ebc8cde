"""Pages of the site: those of docs/, sections of the documents beside it, and generated ones.

Links lead where readers of the repository find them. Here they are translated: to the page that a
document became, to the page that has the section, or to a copy of the file that is no page.
"""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from docsite import PAGES, ROOT, api, commands, llms, search, tables

FENCE = re.compile(r"^ {0,3}(```|~~~)")
FILE_AS_TEXT = re.compile(r"\[[\w/.-]+\.md\]\(([^)\s#]+\.md)(#[^)\s]*)?\)")
LINK = re.compile(r"(?<!\\)\]\(<?([^)\s>]+)>?\)")
SOURCE = re.compile(r"(?<=[\"'])\.\./[^\"']+(?=[\"'])")

CUT = {
    "README.md": {"Which loader when": "start/which-loader.md"},
    "ARCHITECTURE.md": {
        "": "internals/architecture.md",
        "Three houses": "internals/folders.md",
        "Folders that use the loader": "internals/folders-above.md",
        "Where do I find …": "internals/where-do-i-find.md",
        "Who keeps what": "internals/who-keeps-what.md",
        "The life of a batch": "internals/life-of-a-batch.md",
        "The life of a checkpoint": "internals/life-of-a-checkpoint.md",
        "The core (`cpp/`)": "internals/core.md",
    },
    "CONTRIBUTING.md": {
        "": "internals/contributing.md",
        "Tests": "internals/tests.md",
        "Style": "internals/style.md",
        "Documentation": "internals/documentation.md",
    },
    "CHANGELOG.md": {"": "internals/changelog.md"},
    "benchmarks/README.md": {
        "": "internals/measuring.md",
        "Which benchmark answers which question?": "internals/benchmarks.md",
        "Benchmarks of more than a loader": "internals/more-benchmarks.md",
        "Benchmarks of texts and images": "internals/benchmarks-of-texts.md",
        "Setting up the comparators": "internals/rows.md",
        "Rules": "internals/rules.md",
        "LMDB on shared storage": "internals/measuring-storage.md",
        "The cache of several hosts": "internals/measuring-caches.md",
        "Jobs that share a host": "internals/measuring-jobs.md",
    },
}
"""Documents beside docs/ whose sections are pages: the page that begins with each heading of the
second level; "" is the beginning of the document. Sections that are not named belong to the page
before; those of a document without "" are left out."""


def cut_figures() -> dict[str, str]:
    """The pages of docs/performance.md, which is made of records: one for each of its sections."""
    titles = re.findall(r"(?m)^## (.*)$", (ROOT / FIGURES).read_text())
    cuts = {title: f"performance/{slug_on_site(title)}.md" for title in titles[1:]}
    return {"": "performance.md", **cuts}


FIGURES = "docs/performance.md"
WIDE = "hide: [navigation, toc]\n"
"""Line at the top of a page that has no menus beside it."""


@dataclass(frozen=True)
class Text:
    """One page before its links are translated: its text, and the document that the links are
    relative to."""

    text: str
    source: PurePosixPath


def assemble() -> int:
    """Write all pages to build/pages, and return their number."""
    shutil.rmtree(PAGES, ignore_errors=True)
    texts = collect()
    places = Places(texts)
    written = {}
    for name, page in texts.items():
        target = PAGES / name
        target.parent.mkdir(parents=True, exist_ok=True)
        written[name] = text = translate_links(PurePosixPath(name), page, places)
        head = search.write_head(name) + (WIDE if name == "index.md" else "")
        target.write_text(f"---\n{head}---\n\n{text}")
    for name, text in llms.write_files(written).items():
        (PAGES / name).write_text(text)
    for path in sorted((ROOT / "docs").rglob("*")):
        if path.is_file() and path.suffix != ".md":
            copy_file(path, PAGES / path.relative_to(ROOT / "docs"))
    for source in places.files:
        copy_file(ROOT / source, PAGES / "files" / source)
    return len(texts)


def copy_file(source: Path, target: Path) -> None:
    """Copy a file, and make the folder that it goes to."""
    target.parent.mkdir(parents=True, exist_ok=True)
    shutil.copyfile(source, target)


def collect() -> dict[str, Text]:
    """The pages by name, each with the document that it is of."""
    texts = {}
    for path in sorted((ROOT / "docs").rglob("*.md")):
        name = path.relative_to(ROOT / "docs")
        if f"docs/{name}" == FIGURES:
            continue
        page = str(name.with_name("index.md") if name.name == "README.md" else name)
        texts[page] = Text(path.read_text(), PurePosixPath("docs") / name)
    for document, cuts in CUT.items():
        for page, text in cut_document((ROOT / document).read_text(), cuts):
            texts[page] = Text(text, PurePosixPath(document))
    cuts = cut_figures()
    for page, text in cut_document((ROOT / FIGURES).read_text(), cuts):
        texts[page] = Text(text, PurePosixPath(FIGURES))
    listed = [f"* [{title}](performance.md#{slug_on_forge(title)})" for title in cuts if title]
    front = "\n".join([texts["performance.md"].text, "## By subject", "", *listed, ""])
    texts["performance.md"] = Text(front, PurePosixPath(FIGURES))
    for make in (api.write_pages, commands.write_pages, tables.write_pages):
        for page, text in make().items():
            texts[page] = Text(text, PurePosixPath("docs") / page)
    return texts


def cut_document(text: str, cuts: dict[str, str]) -> Iterator[tuple[str, str]]:
    """The pages that the sections of a document make: name and text.

    A section that begins a page may be of the second or third level; its heading is the title.
    """
    page, lines = cuts.get(""), list[str]()
    for line, is_code in code_lines(text):
        title = "" if is_code else heading(line, 2) or heading(line, 3)
        if title and title in cuts:
            if page:
                yield page, "\n".join(lines) + "\n"
            page, lines = cuts[title], [f"# {title}"]
        else:
            lines.append(line)
    if page:
        yield page, "\n".join(lines) + "\n"


def heading(line: str, level: int) -> str:
    """The title of a heading of a level; "" for any other line."""
    found = re.match(rf"{'#' * level} (.*?)\s*$", line)
    return found[1] if found else ""


def code_lines(text: str) -> Iterator[tuple[str, bool]]:
    """Each line of a page, and whether it is within a block of code or opens or closes one."""
    fence = ""
    for line in text.splitlines():
        found = FENCE.match(line)
        if found and not fence:
            fence = found[1]
            yield line, True
        elif found and line.strip() == fence:
            fence = ""
            yield line, True
        else:
            yield line, bool(fence)


def headings(text: str) -> list[str]:
    """The titles of a page's headings."""
    return [
        found[1]
        for line, is_code in code_lines(text)
        if not is_code and (found := re.match(r"#+ (.*?)\s*$", line))
    ]


def slug_on_forge(title: str) -> str:
    """The anchor of a heading in the repository, as forges make it."""
    return re.sub(r"[^\w\- ]", "", title).strip().lower().replace(" ", "-")


def slug_on_site(title: str) -> str:
    """The anchor of a heading on the site, as Python-Markdown makes it."""
    title = re.sub(r"[^\w\s-]", "", plain(title)).strip().lower()
    return re.sub(r"[-\s]+", "-", title)


def plain(title: str) -> str:
    """A title without the marks of links, code and emphasis."""
    return re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", title).replace("`", "").replace("*", "")


class Places:
    """The page of the site to which each document of the repository, or each section, went.

    titles: of the documents, which stand for their names in the texts of links.
    files:  the files of the repository that pages link to and that are no pages.
    """

    def __init__(self, texts: dict[str, Text]) -> None:
        self.files: set[str] = set()
        self.pages: dict[str, str] = {}
        self.titles: dict[str, str] = {}
        self.sections: dict[tuple[str, str], tuple[str, str]] = {}
        for page, text in texts.items():
            source = str(text.source)
            self.pages.setdefault(source, page)
            self.titles.setdefault(source, plain(next(iter(headings(text.text)), source)))
            for title in headings(text.text):
                place = (page, slug_on_site(title))
                self.sections.setdefault((source, slug_on_forge(plain(title))), place)
                self.sections.setdefault((source, slug_on_site(title)), place)
        self.pages["README.md"] = "index.md"

    def find(self, target: str, anchor: str) -> tuple[str, str]:
        """The page and the anchor of a place in the repository."""
        if (target, anchor) in self.sections:
            return self.sections[target, anchor]
        if target in self.pages:
            return self.pages[target], anchor
        if target.rstrip("/") == "examples":
            return "reference/examples.md", ""
        if target.rstrip("/") == "docs/decisions":
            return "decisions/index.md", ""
        path = ROOT / target
        if path.is_dir():
            return "internals/folders.md", ""
        if path.is_file() and not target.startswith("docs/"):
            self.files.add(target)
            return f"files/{target}", ""
        return target.removeprefix("docs/"), anchor


def translate_links(name: PurePosixPath, page: Text, places: Places) -> str:
    """The text of a page with links that are right on the site."""

    def name_page(found: re.Match[str]) -> str:
        target = os.path.normpath(page.source.parent / found[1])
        title = places.titles.get(target, found[1])
        return f"[{title}]({found[1]}{found[2] or ''})"

    def translate(found: re.Match[str]) -> str:
        return f"]({lead(found[1], name, page.source, places)})"

    lines = []
    for line, is_code in code_lines(page.text):
        line = line if is_code else FILE_AS_TEXT.sub(name_page, line)
        lines.append(line if is_code else LINK.sub(translate, line))
    return "\n".join(lines) + "\n"


def lead(link: str, name: PurePosixPath, source: PurePosixPath, places: Places) -> str:
    """One link as it has to be on the page of this name."""
    if re.match(r"[a-z+]+:", link):
        return link
    path, _, anchor = link.partition("#")
    target = os.path.normpath(source.parent / path) if path else str(source)
    page, anchor = places.find(target, anchor)
    relative = os.path.relpath(page, name.parent) if page != str(name) else ""
    return f"{relative}#{anchor}" if anchor else relative or name.name
