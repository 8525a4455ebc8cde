"""Conversion of a data set from one container into another, whole or not at all.

`convert` reads a data set through a `Loader`, writes it as shards (tar, TFRecord, fixed-size
records) or as an LMDB environment, verifies each file by reading it back, and resumes after any
interruption. `tokenize` does so with the tokens of texts, which it has encoded in processes. The
nouns: a conversion, its manifest, a recipe (how one data set goes into one kind of container), a
shard, a container's encoder, a tokenizer file. The encoders of containers are handed out for the
generators of the benchmark.

The folder must not know how reads are planned or executed, nor anything of the command line or
the benchmark.
"""

from __future__ import annotations

from . import containers
from .containers import (
    encode_example,
    encode_npy,
    encode_npy_header,
    encode_record_head,
    encode_tar_end,
    encode_tar_member,
    mask_crc,
)
from .conversion import Converted, convert
from .manifest import lock_folder
from .tokenization import Tokenized, tokenize

__all__ = [
    "Converted",
    "Tokenized",
    "containers",
    "convert",
    "encode_example",
    "encode_npy",
    "encode_npy_header",
    "encode_record_head",
    "encode_tar_end",
    "encode_tar_member",
    "lock_folder",
    "mask_crc",
    "tokenize",
]
