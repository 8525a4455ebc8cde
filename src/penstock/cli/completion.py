"""Names that shells complete, beside paths.

A function gives the names that begin as a word does; where there are none, bash and zsh complete
paths.
"""

from __future__ import annotations

from collections.abc import Iterable


def complete_format(incomplete: str) -> list[str]:
    """Names of formats that are read."""
    from ..index import FORMATS

    return complete_names(FORMATS, incomplete)


def complete_names(names: Iterable[str], incomplete: str) -> list[str]:
    """Return the names that start with a word."""
    return [name for name in names if name.startswith(incomplete)]
