"""WebDataset: a tar archive, each sample a member NUMBER.bin that counts over all files."""

from __future__ import annotations

from penstock.convert import encode_tar_end, encode_tar_member
from penstock.engine import AtomicFile

from ..file_draft import Draft


def write(part: AtomicFile, draft: Draft) -> None:
    """Write a file."""
    first = draft.number * draft.count
    for number, record in enumerate(draft.records(), first):
        part.write(*encode_tar_member(f"{number:09d}", [("bin", record)]))
    part.write(encode_tar_end(part.size))
