"""What DCP says of a state, as JSON, and from it again."""

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

DCP = "dcp"
"""The kind of index whose content is this."""

BYTES, LOADER = "bytes", "loader"
"""Where pieces have a dtype: what is no tensor, and a block of the loader's state."""


def dtype_name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def content_of(metadata: Metadata) -> dict[str, Any]:
    """What an index says of a state of DCP."""
    return {
        "tensors": {
            name: None
            if isinstance(each, BytesStorageMetadata)
            else {
                "dtype": dtype_name(each.properties.dtype),
                "shape": list(each.size),
                "requires_grad": each.properties.requires_grad,
                "chunks": [[list(c.offsets), list(c.sizes)] for c in each.chunks],
            }
            for name, each in metadata.state_dict_metadata.items()
        },
        "paths": _paths(metadata.planner_data),
        "version": metadata.version,
    }


def _paths(planned: Any) -> dict[str, list[str | int]] | None:
    """Where in a nested state the planner found each name."""
    if planned is None:
        return None
    paths = isinstance(planned, Mapping) and all(
        isinstance(path, tuple) and all(type(each) in (str, int) for each in path)
        for path in planned.values()
    )
    if not paths:
        raise UsageError(
            f"the planner's data ({type(planned).__name__}) are not those of DefaultSavePlanner:"
            " use that, or one that is made of it; keys of the state are strings and integers"
        )
    return {name: list(path) for name, path in planned.items()}


def metadata_of(content: Mapping[str, Any], where: str) -> Metadata:
    try:
        states = {name: _state(each) for name, each in content["tensors"].items()}
        planned = content["paths"]
        paths = None if planned is None else {name: tuple(p) for name, p in planned.items()}
        return Metadata(states, planner_data=paths, version=content["version"])
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise FormatError(
            f"{where} describes no state of DCP that this penstock knows ({error!r}): load it with"
            " the one that wrote it"
        ) from None


def _state(known: Mapping[str, Any] | None) -> BytesStorageMetadata | TensorStorageMetadata:
    if known is None:
        return BytesStorageMetadata()
    dtype = getattr(torch, known["dtype"])
    return TensorStorageMetadata(
        TensorProperties(dtype=dtype, requires_grad=known["requires_grad"]),
        torch.Size(known["shape"]),
        [ChunkStorageMetadata(torch.Size(o), torch.Size(s)) for o, s in known["chunks"]],
    )
