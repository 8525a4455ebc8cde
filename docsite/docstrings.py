"""Docstrings of penstock as Markdown: lists of `name:  text` become lists."""

from __future__ import annotations

import re
from typing import Any

from griffe import Extension

ENTRY = re.compile(r"^([a-z_*][\w*]*(?:, [a-z_*][\w*]*)*):\s{1,}(\S.*)$")


class ListsOfNames(Extension):  # type: ignore[misc]
    """Extension of griffe that runs on each object that has a docstring."""

    def on_object(self, *, obj: Any, **settings: Any) -> None:
        """Replace the docstring by its Markdown."""
        del settings
        if obj.docstring is not None:
            obj.docstring.value = as_markdown(obj.docstring.value)


def as_markdown(text: str) -> str:
    """The docstring with lists where it has lines of the form `name:  text`, with their
    continuations, in blocks of their own."""
    blocks = text.split("\n\n")
    return "\n\n".join(
        block if is_code(block) else escape_marks(convert_block(block)) for block in blocks
    )


def escape_marks(block: str) -> str:
    """The block with `__name__` as code, and stars that emphasise no word as stars."""
    pieces = re.split(r"(`[^`]*`)", block)
    for number in range(0, len(pieces), 2):
        text = re.sub(r"\"__\w+?__\"|\b__\w+?__\b", r"`\g<0>`", pieces[number])
        pieces[number] = re.sub(r"(?m)(^\* |\*\w[\w -]*\*)|\*", lambda m: m[1] or r"\*", text)
    return "".join(pieces)


def is_code(block: str) -> bool:
    """True if a block is indented: a piece of code or a table."""
    return all(line.startswith("    ") for line in block.splitlines() if line)


def convert_block(block: str) -> str:
    """One block; unchanged unless its first line is an entry and further lines are indented."""
    lines = block.splitlines()
    if not lines or not ENTRY.match(lines[0]) or not re.match(r"^[\w*, ]+:\s", lines[0]):
        return block
    converted = []
    for line in lines:
        if found := ENTRY.match(line):
            names = ", ".join(f"`{name}`" for name in found[1].split(", "))
            converted.append(f"* {names}: {found[2]}")
        else:
            converted.append(f"    {line.strip()}")
    return "\n".join(converted)
