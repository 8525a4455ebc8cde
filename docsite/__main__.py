"""`python -m docsite` assembles the pages; `python -m docsite check` checks the built site."""

from __future__ import annotations

import sys

from docsite import PAGES
from docsite.pages import assemble
from docsite.stand_ins import stand_in


def main(arguments: list[str]) -> int:
    """Run the part that the arguments name, and return the exit code."""
    if arguments == ["check"]:
        from docsite.check import check

        return check()
    if arguments == ["drawings"]:
        from docsite.drawings import write_drawings

        write_drawings()
        return 0
    if arguments:
        print("usage: python -m docsite [check | drawings]", file=sys.stderr)
        return 2
    stand_in()
    count = assemble()
    print(f"{count} pages in {PAGES}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
