"""The documentation site: pages for mkdocs (and Zensical), assembled from docs/ and from the code.

`python -m docsite` writes the pages to build/pages, from which `mkdocs build` makes build/site;
`python -m docsite check` holds the site against what it promises. `make docs` and
`make docs-check` do it. Nothing here asks the network for anything.
"""

from __future__ import annotations

from pathlib import Path

ROOT = Path(__file__).parent.parent
PAGES = ROOT / "build" / "pages"
SITE = ROOT / "build" / "site"
