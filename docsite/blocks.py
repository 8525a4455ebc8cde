"""Blocks of code on pages for readers: which there are, which run in tests, and as what program.

All blocks of a page are one program, in the order in which they stand. Python goes on where the
block above ended; shell commands run in the same folder; a block with a title is the file of that
name (YAML, JSON, INI, Python). What a comment in front of a block says decides the rest:

    <!-- run by tests/trainers/test_examples.py -->   another test runs it
    <!-- not run: it needs a GPU -->                   nobody runs it here, for this reason
    <!-- printed -->                  it is what the block above prints; `...` is anything
"""

from __future__ import annotations

import re
from dataclasses import dataclass

PYTHON = {"python", "py"}
SHELL = {"sh", "bash", "console"}
FILES = {"yaml", "json", "ini", "toml"}
COMMENT = re.compile(r"^<!-- (run by|not run:|printed) ?(.*?) ?-->$")


@dataclass(frozen=True)
class Block:
    """One block of code: its language, its text, the title of the file that it is, its line.

    ran_by:  the test that runs it, other than that of the pages; "" for none.
    reason:  the reason for which it does not run; "" if it does.
    is_printed:  it is what the block above it prints.
    """

    language: str
    text: str
    title: str
    line: int
    ran_by: str = ""
    reason: str = ""
    is_printed: bool = False

    @property
    def is_code(self) -> bool:
        """True if readers would run it: Python, a shell's commands, or code without a language."""
        return self.language in PYTHON | SHELL | {"indented", ""}

    @property
    def runs_on_page(self) -> bool:
        """True if it belongs to the page's program."""
        return self.language in PYTHON | SHELL and not (self.title or self.ran_by or self.reason)


def find_blocks(page: str) -> list[Block]:
    """The blocks of a page, also those that are indented by four columns instead of fenced."""
    blocks: list[Block] = []
    lines = page.splitlines()
    number, before, is_list = 0, "", False
    while number < len(lines):
        line = lines[number]
        start = number
        if opened := re.match(r"^( *)```(\w*)(.*)$", line):
            end = number + 1
            while end < len(lines) and lines[end].strip() != "```":
                end += 1
            body = [each.removeprefix(opened[1]) for each in lines[start + 1 : end]]
            title = re.search(r'title="([^"]+)"', opened[3])
            blocks.append(make_block(opened[2], body, title, start, before))
            number, is_list = end, bool(opened[1])
        elif line.startswith("    ") and not before and not is_list:
            end = number
            while end < len(lines) and (lines[end].startswith("    ") or not lines[end].strip()):
                end += 1
            body = [each[4:] for each in lines[start:end]]
            blocks.append(make_block("indented", body, None, start, ""))
            number = end - 1
        elif line.strip():
            is_list = bool(re.match(r"\s*([*+-]|\d+\.) |\s+\S", line)) and (
                is_list or line[0] != " "
            )
        before = lines[number].strip() if COMMENT.match(lines[number].strip()) else line.strip()
        number += 1
    return blocks


def make_block(
    language: str, body: list[str], title: re.Match[str] | None, start: int, before: str
) -> Block:
    """One block, with what the comment in front of it says."""
    comment = COMMENT.match(before)
    kind, text = (comment[1], comment[2]) if comment else ("", "")
    return Block(
        language,
        "\n".join(body) + "\n",
        title[1] if title else "",
        start + 1,
        ran_by=text if kind == "run by" else "",
        reason=text if kind == "not run:" else "",
        is_printed=kind == "printed",
    )


def list_commands(block: Block) -> str:
    """The commands of a block of shell: all of it, or what follows the prompts."""
    lines = block.text.splitlines()
    if not any(line.startswith("$ ") for line in lines):
        return block.text
    commands, goes_on = [], False
    for line in lines:
        if line.startswith("$ ") or goes_on:
            commands.append(line.removeprefix("$ "))
            goes_on = line.endswith("\\")
    return "\n".join(commands)


PRELUDE = """
import atexit, contextlib, importlib, io, os, re, signal, subprocess, sys
os.environ["PATH"] = os.pathsep.join([os.path.dirname(sys.executable), os.environ["PATH"]])
_page = globals()
def _run(place, text, printed=None):
    said = io.StringIO()
    try:
        with contextlib.redirect_stdout(said):
            exec(compile(text, place, "exec"), _page)
    finally:
        print(said.getvalue(), end="", flush=True)
    _compare(place, said.getvalue(), printed)
def _shell(place, text, printed=None):
    pipe = None if printed is None else subprocess.PIPE
    command = ["bash", "-euo", "pipefail", "-c", text]
    shell = subprocess.Popen(command, start_new_session=True, stdout=pipe, text=True)
    said = shell.communicate()[0] or ""
    print(said, end="", flush=True)
    if code := shell.wait():
        raise SystemExit(f"{place}: exit code {code}: {text}")
    atexit.register(_end, shell.pid)
    importlib.invalidate_caches()  # it may have installed a package
    _compare(place, said, printed)
def _end(group):
    with contextlib.suppress(ProcessLookupError):
        os.killpg(group, signal.SIGTERM)  # what the page left in the background
def _compare(place, said, printed):
    said = "\\n".join(line.rstrip() for line in said.strip().splitlines())
    pattern = ".*".join(map(re.escape, (printed or "...").strip().split("...")))
    if not re.fullmatch(pattern, said, re.DOTALL):
        raise SystemExit(f"{place}: the page has\\n{printed}\\nand it prints\\n{said}")
"""


def make_program(name: str, page: str, prelude: str = "", everything: bool = False) -> str:
    """The program that the blocks of a page are; with `everything` those that another test runs,
    too."""
    parts = [PRELUDE, prelude]
    blocks = find_blocks(page)
    for block, after in zip(blocks, [*blocks[1:], None], strict=True):
        place = f"{name}:{block.line}"
        printed = after.text if after and after.is_printed else None
        if block.title and (block.language in FILES or block.language in PYTHON):
            parts.append(f"open({block.title!r}, 'w').write({block.text!r})")
        elif not (block.runs_on_page or (everything and block.ran_by)):
            continue
        elif block.language in PYTHON:
            parts.append(f"_run({place!r}, {block.text!r}, {printed!r})")
        else:
            parts.append(f"_shell({place!r}, {list_commands(block)!r}, {printed!r})")
    return "\n".join(parts)
