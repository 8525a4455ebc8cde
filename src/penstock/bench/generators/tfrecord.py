"""TFRecord: each sample a tf.Example with its bytes (`image`) and their number (`size`), and a list
of where they are, as DALI reads it, in the folder where DLIO looks for that."""

from __future__ import annotations

import numpy as np

from ...writers import Part, example, tfrecord_pieces
from ..draft import Draft
from ..files import index_path


def write(part: Part, draft: Draft) -> None:
    """Write a file and its list."""
    beside = draft.beside(index_path(draft.data, draft.part, draft.path, draft.root))
    size = np.array([draft.sample_bytes])
    for record in draft.records():
        start = part.size
        part.write(*tfrecord_pieces(example({"image": record, "size": size})))
        beside.write(f"{start} {part.size - start}\n".encode())
