"""The built site held against its promises: a table of figures, and what falls short of them."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from functools import cache
from html.parser import HTMLParser
from itertools import pairwise
from pathlib import Path
from urllib.parse import unquote, urlsplit
from xml.etree import ElementTree

from docsite import ROOT, SITE, api, search
from docsite.blocks import Block, find_blocks
from docsite.pages import CUT, code_lines, cut_document, slug_on_site

WORDS_MAX = 900
ANY_LENGTH = {
    "docs/performance.md": "made of records; the site has a page for each section",
    "CHANGELOG.md: internals/changelog.md": "a log of changes",
}
"""Pages whose length is not counted, and why."""
WORD_LIST = ROOT / "docsite" / "words.txt"


EXCUSED_MAX = 5
"""Blocks of code that may say why they do not run."""
RUNS = (
    "tests/test_readme.py::test_the_code_of_a_page_runs_as_printed",
    "tests/sharing/test_pages.py",
)
"""The tests that run the code of pages, but for those of trainers, which need other packages."""
REPORT = ROOT / "build" / "pages.xml"


def check() -> int:
    """Print the figures and what falls short. Returns 1 if anything does."""
    with start_code() as running:
        pages = read_pages()
        links, broken = check_links()
        names, missing = check_names()
        long = [
            f"{name}: {words:,} words"
            for name, text in pages.items()
            if (words := len(text.split())) > WORDS_MAX and name not in ANY_LENGTH
        ]
        rows = [
            ("broken links", f"{len(broken)} of {links:,}", "0", broken),
            ("public names without a page", f"{len(missing)} of {names}", "0", missing),
            (f"pages over {WORDS_MAX} words", f"{len(long)} of {len(pages)}", "0", long),
            ("misspelled words", *count(misspelled_words(pages))),
            ("pages with wrong headings", *count(wrong_headings(pages))),
            ("pages that no menu leads to", *count(pages_outside_menu())),
            ("requests to other hosts", *count(requests_to_others())),
        ]
        if (unanswered := search.unanswered()) is None:
            print("not tried: the search, which needs chromium")
        else:
            rows.append((f"questions of {len(search.QUESTIONS)} not found", *count(unanswered)))
        output, _ = running.communicate()
    if running.returncode not in (0, 1):
        print(output, file=sys.stderr)
        return 1
    failed = read_failures()
    code = [(name, block) for name, text in pages.items() for block in find_blocks(text)]
    code = [(name, block) for name, block in code if block.is_code]
    excused = [f"{name}:{block.line}: {block.reason}" for name, block in code if block.reason]
    silent = [
        f"{name}:{block.line}: {problem}"
        for name, block in code
        if not block.reason and (problem := find_problem(name, block, failed))
    ]
    blocks = len(code) - len(excused)
    over = excused if len(excused) > EXCUSED_MAX else []
    rows = [
        ("code blocks that run", f"{1 - len(silent) / blocks:.1%} of {blocks}", "100 %", silent),
        ("blocks that cannot run here", str(len(excused)), f"<= {EXCUSED_MAX}", over),
        *rows,
    ]
    for what, figure, wanted, short in rows:
        print(f"{what:<32} {figure:>16}   wanted {wanted:<6} {'short' if short else 'met'}")
    for each in excused:
        print(f"cannot run here: {each}")
    for name, reason in ANY_LENGTH.items():
        print(f"not counted as over {WORDS_MAX} words: {name} ({reason})")
    print("not counted either: pages that are made of the code (reference/)")
    if failed:
        print(output, file=sys.stderr)
    for what, _, _, short in rows:
        for each in short:
            print(f"  {what}: {each}", file=sys.stderr)
    return int(any(short for *_, short in rows))


def start_code() -> subprocess.Popen[str]:
    """Start the tests that run the code of pages, as many at once as there are processors."""
    REPORT.unlink(missing_ok=True)
    command = [sys.executable, "-m", "pytest", "-m", "", "-n", str(os.cpu_count())]
    command += ["--dist", "worksteal", "--tb", "short", f"--junitxml={REPORT}", *RUNS]
    return subprocess.Popen(
        command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )


def read_failures() -> set[str]:
    """The pages whose code fails, and the files of tests that do."""
    failed = set()
    for case in ElementTree.parse(REPORT).iter("testcase"):
        if case.find("failure") is not None or case.find("error") is not None:
            _, _, page = case.attrib["name"].partition("[")
            failed.add(page.rstrip("]") or f"{case.attrib['classname'].replace('.', '/')}.py")
    return failed


def find_problem(name: str, block: Block, failed: set[str]) -> str:
    """The reason for which no test has run a block, or for which it failed; "" if it ran."""
    if block.language in ("indented", ""):
        return f"no language: {block.text[:60].strip()!r}"
    if block.ran_by:
        if not (ROOT / block.ran_by).is_file():
            return f"{block.ran_by} is not there"
        return f"{block.ran_by} fails" if block.ran_by in failed else ""
    if name != "README.md" and not name.startswith("docs/"):
        return "no test runs the code of this document"
    return "its page fails" if name in failed else ""


def count(problems: list[str]) -> tuple[str, str, list[str]]:
    """The columns of a row whose figure is the number of problems."""
    return str(len(problems)), "0", problems


def read_pages() -> dict[str, str]:
    """The texts that people wrote: docs/, and the pages that documents beside it are cut into."""
    pages = {
        str(path.relative_to(ROOT)): path.read_text()
        for path in sorted((ROOT / "docs").rglob("*.md"))
    }
    for document, cuts in CUT.items():
        for page, text in cut_document((ROOT / document).read_text(), cuts):
            pages[f"{document}: {page}"] = text
    pages["README.md"] = (ROOT / "README.md").read_text()
    if len(pages["README.md"].split()) > WORDS_MAX:
        del pages["README.md"]  # a test bounds it: 1,600 words; no page of the site
    return pages


class Document(HTMLParser):
    """The anchors and links of one built page."""

    def __init__(self, text: str) -> None:
        super().__init__(convert_charrefs=True)
        self.anchors: set[str] = set()
        self.links: list[str] = []
        self.loaded: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Note what a tag names and where it leads."""
        for name, value in attrs:
            if name == "id" or (tag == "a" and name == "name"):
                self.anchors.add(value or "")
            elif name in ("href", "src") and value:
                self.links.append(value)
                if tag in ("script", "link", "img", "iframe"):
                    self.loaded.append(value)


@cache
def read_site() -> dict[Path, Document]:
    """The built pages."""
    return {path: Document(path.read_text()) for path in sorted(SITE.rglob("*.html"))}


def check_links() -> tuple[int, list[str]]:
    """The number of links within the built site, and those that lead nowhere."""
    documents = {path: each for path, each in read_site().items() if "files" not in path.parts}
    number, broken = 0, set()
    for path, document in documents.items():
        if path.name == "404.html":
            continue
        for link in document.links:
            parts = urlsplit(link)
            if parts.scheme or parts.netloc or link.startswith("data:"):
                continue
            number += 1
            target = (path.parent / unquote(parts.path)).resolve() if parts.path else path
            if target.is_dir():
                target /= "index.html"
            page = str(path.relative_to(SITE))
            if not target.exists():
                broken.add(f"{page}: {link} is not there")
            elif (
                parts.fragment
                and target in documents
                and unquote(parts.fragment) not in documents[target].anchors
            ):
                broken.add(f"{page}: {link} has no such heading")
    return number, sorted(broken)


def check_names() -> tuple[int, list[str]]:
    """The number of public names, and those that no page of the reference documents."""
    anchors = set()
    for path, document in read_site().items():
        if path.parent == SITE / "reference" / "python":
            anchors |= document.anchors
    wanted = [
        f"{module}.{name.rpartition('.')[2]}"
        for module in api.MODULES
        for name in api.public_names(module)
    ]
    return len(wanted), [name for name in wanted if name not in anchors]


def misspelled_words(pages: dict[str, str]) -> list[str]:
    """The words that codespell would write otherwise, but for those of words.txt."""
    files = sorted({name.partition(":")[0] for name in pages} | {"README.md", "CHANGELOG.md"})
    command = [sys.executable, "-m", "codespell_lib", "--ignore-words", str(WORD_LIST), *files]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    return [*done.stdout.splitlines(), *done.stderr.splitlines()]


def wrong_headings(pages: dict[str, str]) -> list[str]:
    """The pages without exactly one title at their top, that skip a level, or repeat a heading."""
    return [f"{name}: {problem}" for name, text in pages.items() for problem in judge(text)]


def judge(text: str) -> Iterator[str]:
    """The faults of the headings of one page."""
    found = [
        (len(match[1]), match[2])
        for line, is_code in code_lines(text)
        if not is_code and (match := re.match(r"(#+) (.*)", line))
    ]
    levels = [level for level, _ in found]
    if levels.count(1) != 1 or levels[0] != 1:
        yield f"{levels.count(1)} titles of the first level, at the top one is wanted"
    for (before, _), (level, title) in pairwise(found):
        if level > before + 1:
            yield f"{title!r} skips a level"
    repeated = [
        slug for slug, times in Counter(slug_on_site(t) for _, t in found).items() if times > 1
    ]
    if repeated:
        yield f"headings that stand twice: {', '.join(repeated)}"


def requests_to_others() -> list[str]:
    """The scripts, styles and pictures that pages would load from other hosts."""
    return sorted(
        {
            f"{path.name}: {link}"
            for path, document in read_site().items()
            for link in document.loaded
            if urlsplit(link).netloc
        }
    )


def pages_outside_menu() -> list[str]:
    """The built pages that no page's menu, list or text links to."""
    linked = {
        (path.parent / unquote(urlsplit(link).path)).resolve()
        for path, document in read_site().items()
        for link in document.links
        if urlsplit(link).path and not urlsplit(link).scheme
    }
    return [
        str(path.relative_to(SITE))
        for path in read_site()
        if path.resolve() not in linked and path.name not in ("404.html", "index.html")
    ]
