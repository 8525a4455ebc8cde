"""A file that holds its own number, for loaders that make samples up."""

from __future__ import annotations

from penstock.engine import AtomicFile

from ..file_draft import Draft


def write(part: AtomicFile, draft: Draft) -> None:
    """Write a file."""
    part.write(str(draft.number).encode())
