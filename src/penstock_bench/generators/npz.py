"""A zip archive of `x`, all samples, and `y`, zeros: bit for bit what numpy.savez writes of them,
or, deflated at the level asked for, what savez_compressed does."""

from __future__ import annotations

import zipfile

import numpy as np

from penstock.convert import encode_npy
from penstock.engine import AtomicFile, storage_errors

from ..file_draft import Draft
from .npy import header, payload


def write(part: AtomicFile, draft: Draft) -> None:
    """Write a file."""
    deflated = draft.data.compression == "zip"
    method = zipfile.ZIP_DEFLATED if deflated else zipfile.ZIP_STORED
    level = draft.data.compression_level if deflated else None
    with (
        storage_errors(part.path),
        zipfile.ZipFile(part.file, "w", method, compresslevel=level) as whole,
    ):
        with whole.open("x.npy", "w", force_zip64=True) as member:
            member.write(header(draft))
            for piece in payload(draft):
                member.write(piece)
        with whole.open("y.npy", "w", force_zip64=True) as member:
            member.write(encode_npy(np.zeros(draft.count, np.int64)))
