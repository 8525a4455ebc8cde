"""WebDataset: a tar archive, each sample a member NUMBER.bin that counts over all files."""

from __future__ import annotations

from ...engine import Part, tar_end, tar_pieces
from ..draft import Draft


def write(part: Part, draft: Draft) -> None:
    """Write a file."""
    first = draft.number * draft.count
    for number, record in enumerate(draft.records(), first):
        part.write(*tar_pieces(f"{number:09d}", [("bin", record)]))
    part.write(tar_end(part.size))
