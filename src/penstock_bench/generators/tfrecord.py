"""TFRecord: each sample a tf.Example with its bytes (`image`) and their number (`size`), and a list
of where they are, as DALI reads it, in the folder where DLIO looks for that."""

from __future__ import annotations

import numpy as np

from penstock.convert import encode_example, encode_record_head, mask_crc
from penstock.engine import AtomicFile, crc32c

from ..file_draft import Draft
from ..files import index_path


def write(part: AtomicFile, draft: Draft) -> None:
    """Write a file and its list."""
    before, after = _frame_sample(draft.sample_bytes)
    head = encode_record_head(len(before) + draft.sample_bytes + len(after)) + before
    checked = crc32c(before)
    for record in draft.records():
        part.write(head, record, after + mask_crc(crc32c(after, crc32c(record, checked))))
    size = part.size // draft.count
    lines = "".join(f"{number * size} {size}\n" for number in range(draft.count))
    draft.beside(index_path(draft.data, draft.part, draft.path, draft.root)).write(lines.encode())


def _frame_sample(size: int) -> tuple[bytes, bytes]:
    """The bytes before and after any sample of this size."""
    image = memoryview(np.empty(size, np.uint8).data)
    pieces = encode_example({"image": image, "size": np.array([size])})
    at = next(number for number, piece in enumerate(pieces) if piece is image)
    return b"".join(pieces[:at]), b"".join(pieces[at + 1 :])
