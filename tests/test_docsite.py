"""The documentation site: which blocks of code run, where links lead, and what its check finds."""

from __future__ import annotations

import subprocess
import sys
import tomllib
from pathlib import Path, PurePosixPath

import pytest
from docsite.addresses import on_config
from docsite.blocks import find_blocks, list_commands, make_program
from docsite.check import judge
from docsite.docstrings import as_markdown
from docsite.drawings import FOLDER, draw_all
from docsite.llms import first_sentence, list_names, list_pages
from docsite.pages import (
    CUT,
    Places,
    Text,
    cut_document,
    slug_on_forge,
    slug_on_site,
    translate_links,
)
from docsite.search import BOOSTS, QUESTIONS, WORDS, write_head
from docsite.stand_ins import make_stand_in

from tests import ROOT

PAGE = """# Title

```python
number = 1
```

<!-- not run: it needs a GPU -->
```python
number = 0
```

```yaml title="file.yaml"
key: value
```

* A list:

    with a paragraph that is no code.

```console
$ echo $((1 + 1)) > out \\
  2> errors
2
```

    print(number)

<!-- run by tests/test_docsite.py -->
```sh
false
```

```python
print(number, open("file.yaml").read(), open("out").read())
```
"""


def test_the_blocks_of_a_page_are_found() -> None:
    """Fenced and indented ones, with what the comment before them says; paragraphs are none."""
    blocks = find_blocks(PAGE)
    kinds = ["python", "python", "yaml", "console", "indented", "sh", "python"]
    assert [block.language for block in blocks] == kinds
    assert [block.runs_on_page for block in blocks] == [
        True,
        False,
        False,
        True,
        False,
        False,
        True,
    ]
    assert blocks[1].reason == "it needs a GPU"
    assert blocks[5].ran_by == "tests/test_docsite.py"
    assert list_commands(blocks[3]) == "echo $((1 + 1)) > out \\\n  2> errors"


def test_a_page_is_one_program(tmp_path: Path) -> None:
    """Python goes on across blocks, files are written, commands run in the same folder."""
    program = tmp_path / "page.py"
    program.write_text(make_program("page.md", PAGE))
    done = subprocess.run([sys.executable, program], cwd=tmp_path, capture_output=True, text=True)
    assert done.stdout == "1 key: value\n 2\n\n", done.stderr
    program.write_text(make_program("page.md", "```sh\nexit 3\n```\n"))
    done = subprocess.run([sys.executable, program], cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 1
    assert "page.md:1: exit code 3" in done.stderr


@pytest.mark.parametrize(("printed", "code"), [("1\n...3", 0), ("1\n2", 1), ("", 1)])
def test_what_a_block_prints_is_compared(tmp_path: Path, printed: str, code: int) -> None:
    """With the text that is marked so; `...` stands for anything."""
    page = f"```sh\nprintf '1\\n2\\n3\\n'\n```\n\n<!-- printed -->\n```text\n{printed}\n```\n"
    python = page.replace("sh\nprintf '1\\n2\\n3\\n'", "python\nprint(1, 2, 3, sep='\\n')")
    for text in (page, python):
        program = tmp_path / "page.py"
        program.write_text(make_program("page.md", text))
        done = subprocess.run([sys.executable, program], capture_output=True, text=True)
        assert (done.returncode, done.stdout) == (code, "1\n2\n3\n"), done.stderr
        assert ("the page has" in done.stderr) == bool(code)


def test_links_are_translated() -> None:
    """To the page that a document or its section became; code is left alone."""
    text = "[other.md](other.md#a--b) [b](../README.md#part) [c](../pyproject.toml)\n\n"
    text += "```\n[d](e.md)\n```\n"
    pages = {
        "how/page.md": Text(text, PurePosixPath("docs/page.md")),
        "other.md": Text("# Other\n\n## A / b\n", PurePosixPath("docs/other.md")),
        "start/part.md": Text("# Part\n", PurePosixPath("README.md")),
    }
    places = Places(pages)
    found = translate_links(PurePosixPath("how/page.md"), pages["how/page.md"], places)
    assert found == (
        "[Other](../other.md#a-b) [b](../start/part.md#part) [c](../files/pyproject.toml)\n\n"
        "```\n[d](e.md)\n```\n"
    )
    assert places.files == {"pyproject.toml"}


@pytest.mark.parametrize("document", CUT)
def test_a_document_is_cut_into_pages_that_lose_nothing(document: str) -> None:
    """Each section that is named becomes a page; all lines are on one of them."""
    text = (ROOT / document).read_text()
    pages = dict(cut_document(text, CUT[document]))
    assert list(pages) == list(CUT[document].values())
    if "" in CUT[document]:
        lines = [line.lstrip("# ") for page in pages.values() for line in page.splitlines()]
        assert [line for line in lines if line] == [
            line.lstrip("# ") for line in text.splitlines() if line.lstrip("# ")
        ]


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("# One\n\n## Two\n", ""),
        ("## Two\n", "0 titles"),
        ("# One\n\n# Two\n", "2 titles"),
        ("# One\n\n### Three\n", "skips a level"),
        ("# One\n\n## Two\n\n## Two\n", "stand twice"),
        ("# One\n\n```\n# comment\n```\n", ""),
    ],
)
def test_headings_are_judged(text: str, problem: str) -> None:
    """One title at the top, no level left out, no heading twice."""
    found = "; ".join(judge(text))
    assert (problem in found) if problem else not found


def test_anchors_are_those_of_forge_and_site() -> None:
    """A forge keeps each space as a hyphen, Python-Markdown joins them."""
    title = "A `run` of [your](own.md) / explain"
    assert slug_on_site(title) == "a-run-of-your-explain"
    assert slug_on_forge("A run of your / explain") == "a-run-of-your--explain"


def test_docstrings_become_lists() -> None:
    """Lines of `name:  text` with their continuations; code and prose stay as they are."""
    text = "Head.\n\nfirst, last:  one\n         more\nthird:  two\n\n    code: x\n\nNote: prose."
    assert as_markdown(text) == (
        "Head.\n\n* `first`, `last`: one\n    more\n* `third`: two\n\n    code: x\n\nNote: prose."
    )


def test_the_drawings_are_those_of_the_program() -> None:
    """docs/drawings has what `python -m docsite drawings` writes."""
    assert {path.name: path.read_text() for path in FOLDER.glob("*.svg")} == draw_all()


def test_addresses_are_those_of_the_project() -> None:
    """The site has an address once `[project.urls]` has: a placeholder is none."""
    with (ROOT / "pyproject.toml").open("rb") as file:
        urls = tomllib.load(file)["project"]["urls"]
    config = on_config({})
    for name, key in (("Documentation", "site_url"), ("Source", "repo_url")):
        assert config[key] == (None if ".example/" in urls[name] else urls[name])


def test_marks_in_docstrings_are_shown_as_they_are() -> None:
    """Names with underscores are code, stars are stars; code and emphasised words stay."""
    text = 'Has "__key__" and __all__, `__id__`, shape=(*), *one word*.\n\n    **code: __x__'
    assert as_markdown(text) == (
        'Has `"__key__"` and `__all__`, `__id__`, shape=(\\*), *one word*.\n\n    **code: __x__'
    )


def test_guides_come_before_decisions_in_the_search() -> None:
    """Each page has a weight, the changelog is left out, and what is found by words is a page."""
    assert "boost: 4.0" in write_head("how/resume.md")
    assert "boost: 0.02" in write_head("decisions/0001-mixfeistel.md")
    assert "exclude: true" in write_head("internals/changelog.md")
    menu = (ROOT / "mkdocs.yml").read_text()
    named = {*WORDS, *(page.replace(".html", ".md") for page in QUESTIONS.values())}
    assert [page for page in named if f": {page}\n" not in menu and page != "index.md"] == []
    assert [each for each in BOOSTS if each.endswith(".md") and f": {each}\n" not in menu] == []


def test_a_stub_stands_in_for_what_is_not_built() -> None:
    """The core's stand-in has its classes and functions, and computes nothing."""
    core = make_stand_in("penstock._core", ROOT / "src" / "penstock" / "_core.pyi")
    assert core.get_sanitizers() is None
    assert isinstance(core.Permutation(3, 4), core.Permutation)


def test_programs_read_pages() -> None:
    """llms.txt has the menu without internals, and a sentence of each page."""
    menu = [{"Start": ["a.md", {"More": "b.md"}]}, {"Internals": [{"Tests": "c.md"}]}]
    assert list(list_pages(menu, "")) == [("Start", "a.md"), ("Start", "b.md")]
    page = "# Title\n\n```sh\nmake\n```\n\nA [link](to.md) that is `code`: some, e.g. this. More.\n"
    assert first_sentence(page) == "A link that is `code`: some, e.g."


@pytest.mark.long
def test_programs_read_the_arguments_of_names() -> None:
    """llms-full.txt has the signatures and docstrings of the main names, of their sources."""
    text = "\n".join(list_names())
    assert "Loader(dataset: Dataset, batch_size: int | None = None" in text
    assert "## penstock.images.from_torchvision" in text
