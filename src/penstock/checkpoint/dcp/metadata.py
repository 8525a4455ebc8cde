"""The metadata that DCP has for a state, as JSON and back."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch.distributed.checkpoint.metadata import (
    BytesStorageMetadata,
    ChunkStorageMetadata,
    Metadata,
    TensorProperties,
    TensorStorageMetadata,
)

import torch

from ...errors import FormatError, UsageError
from ..manifest import is_counts

DCP = "dcp"
"""The kind of an index with this content."""

BYTES, LOADER = "bytes", "loader"
"""Stand in the place of a dtype: for what is no tensor, and for a block of the loader's state."""


def format_dtype(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def encode_metadata(metadata: Metadata) -> dict[str, Any]:
    """Encode DCP's metadata of a state as the content of an index."""
    return {
        "tensors": {
            name: None
            if isinstance(tensor, BytesStorageMetadata)
            else {
                "dtype": format_dtype(tensor.properties.dtype),
                "shape": list(tensor.size),
                "requires_grad": tensor.properties.requires_grad,
                "chunks": [[list(chunk.offsets), list(chunk.sizes)] for chunk in tensor.chunks],
            }
            for name, tensor in metadata.state_dict_metadata.items()
        },
        "paths": _encode_paths(metadata.planner_data),
        "version": metadata.version,
    }


def _encode_paths(planned: Any) -> dict[str, list[str | int]] | None:
    """Encode the paths at which the planner found each name in a nested state."""
    if planned is None:
        return None
    paths = isinstance(planned, Mapping) and all(
        isinstance(path, tuple) and all(type(key) in (str, int) for key in path)
        for path in planned.values()
    )
    if not paths:
        raise UsageError(
            f"the planner's data ({type(planned).__name__}) have keys other than strings and"
            " integers: use DefaultSavePlanner, or a planner derived from it"
        )
    return {name: list(path) for name, path in planned.items()}


def decode_metadata(content: Mapping[str, Any], where: str) -> Metadata:
    """Decode DCP's metadata of a state; FormatError if the content describes none."""
    try:
        states = {name: _decode_tensor(tensor) for name, tensor in content["tensors"].items()}
        planned = content["paths"]
        paths = None if planned is None else {name: _decode_path(p) for name, p in planned.items()}
        return Metadata(states, planner_data=paths, version=content["version"])
    except (LookupError, TypeError, ValueError, AttributeError, RuntimeError) as error:
        raise FormatError(
            f"{where} is a state of another version of penstock ({error!r}): load it with that"
        ) from None


def _decode_path(path: Any) -> tuple[str | int, ...]:
    if type(path) is not list or not all(type(key) in (str, int) for key in path):
        raise ValueError(f"{path!r:.80} is no path in a state")
    return tuple(path)


def _decode_tensor(known: Mapping[str, Any] | None) -> BytesStorageMetadata | TensorStorageMetadata:
    if known is None:
        return BytesStorageMetadata()
    dtype = getattr(torch, known["dtype"])
    if not isinstance(dtype, torch.dtype):
        raise ValueError(f"unknown dtype {known['dtype']!r}")
    return TensorStorageMetadata(
        TensorProperties(dtype=dtype, requires_grad=bool(known["requires_grad"])),
        _decode_size(known["shape"]),
        [ChunkStorageMetadata(_decode_size(o), _decode_size(s)) for o, s in known["chunks"]],
    )


def _decode_size(numbers: Any) -> torch.Size:
    if not is_counts(numbers):
        raise ValueError(f"{numbers!r:.80} is no list of whole numbers from 0 on")
    return torch.Size(numbers)
