"""Conversion of a data set from one container into another, whole or not at all.

`convert` reads a data set through a `Loader`, writes it as shards (tar, TFRecord, fixed-size
records) or as an LMDB environment, verifies each file by reading it back, and resumes after any
interruption. `tokenize` does so with the tokens of texts, which it has encoded in processes, and
`convert_arrays` with arrays, which it writes in other chunks. The nouns: a conversion, its
manifest, a recipe (how one data set goes into one kind of container), a shard, a container's
encoder, a tokenizer file, a region of an array. The encoders of containers are handed out for the
generators of the benchmark.

The folder must not know how reads are planned or executed, nor anything of the command line or
the benchmark.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..lazy_exports import hand_out

if TYPE_CHECKING:
    from .arrays import convert_arrays as convert_arrays
    from .containers import encode_example as encode_example
    from .containers import encode_npy as encode_npy
    from .containers import encode_npy_header as encode_npy_header
    from .containers import encode_record_head as encode_record_head
    from .containers import encode_tar_end as encode_tar_end
    from .containers import encode_tar_member as encode_tar_member
    from .containers import mask_crc as mask_crc
    from .conversion import convert as convert
    from .films import convert_films as convert_films
    from .manifest import lock_folder as lock_folder
    from .tokenization import tokenize as tokenize
else:
    __all__, __getattr__ = hand_out(
        __name__,
        {
            "arrays": "convert_arrays",
            "films": "convert_films",
            "containers": "encode_example encode_npy encode_npy_header encode_record_head "
            "encode_tar_end encode_tar_member mask_crc",
            "conversion": "convert",
            "manifest": "lock_folder",
            "tokenization": "tokenize",
        },
    )
