"""Conversion between arrays and tensors in batches, without copies if possible."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from torch.utils._pytree import register_pytree_node

import torch

from ..dataset.fields import Ragged
from ..loader import batch as batches
from ..loader.batch import Batch
from ..loader.loader import Loader

batches.is_compiling = torch.compiler.is_dynamo_compiling
register_pytree_node(
    Batch,
    lambda batch: (list(batch.values()), list(batch)),
    lambda leaves, names: Batch(zip(names, leaves, strict=True)),
)
register_pytree_node(
    Ragged,
    lambda ragged: ([ragged.values, ragged.offsets], None),
    lambda leaves, _: Ragged(*leaves),
)


class Tensors:
    """Leaves of torch's batches: tensors. See `penstock.loader.collate.Leaves`."""

    def as_array(self, leaf: Any) -> np.ndarray[Any, Any] | None:
        if not isinstance(leaf, torch.Tensor):
            return None
        return _share_memory(leaf.detach())

    def as_leaf(self, array: np.ndarray[Any, Any], like: Any) -> Any:
        tensor = as_tensor(array)
        if isinstance(like, torch.Tensor) and tensor.dtype != like.dtype:
            return tensor.view(like.dtype)
        return tensor


_stand_ins = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


class TensorLoader(Loader):
    """A loader whose batches are tensors."""

    leaves = Tensors()


def _share_memory(tensor: torch.Tensor) -> np.ndarray[Any, Any]:
    """Return the tensor's memory as an array, of integers if numpy does not know the dtype."""
    try:
        return tensor.numpy()
    except TypeError:
        return tensor.view(_stand_ins[tensor.element_size()]).numpy()


def as_tensor(array: np.ndarray[Any, Any]) -> Any:
    """Return a tensor that shares an array's memory; strings stay arrays, as in torch.

    So do all other dtypes that torch lacks, such as dates and objects.
    """
    dtype = array.dtype
    if dtype.kind in "OUSVMm":
        if dtype.kind == "V" and dtype.name == "bfloat16":  # of ml_dtypes: numpy says a record
            return torch.from_numpy(array.view(np.int16)).view(torch.bfloat16)
        return array
    if not dtype.isnative:
        array = array.astype(dtype.newbyteorder("="))
    if not array.flags.writeable:
        array = array.copy()
    return torch.from_numpy(array)


def as_tensors(fields: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields of a batch without decode, or of one raw sample, as tensors."""
    return {name: _convert_field(field) for name, field in fields.items()}


def finish_batch(batch: Batch, raw: bool) -> Batch:
    """Return the batch with its ids as a tensor, and its fields too if nothing has decoded them."""
    if not isinstance(batch.ids, np.ndarray):
        return batch  # a worker has done it
    batch = batch.replace_fields(as_tensors(batch) if raw else batch)
    batch.ids = as_tensor(batch.ids.view(np.int64))
    return batch


def _convert_field(field: Any) -> Any:
    if isinstance(field, bytes):
        field = np.frombuffer(field, np.uint8)
    if isinstance(field, np.ndarray):
        return as_tensor(field)
    if isinstance(field, Ragged):
        return Ragged(_convert_field(field.values), as_tensor(field.offsets))
    return field


def _rebuild_tensor(
    array: np.ndarray[Any, Any], dtype: torch.dtype, size: Any = None, stride: Any = None
) -> torch.Tensor:
    tensor = torch.from_numpy(array)
    tensor = tensor if tensor.dtype == dtype else tensor.view(dtype)
    return tensor if size is None else tensor.as_strided(size, stride)


def reduce_tensor(value: Any) -> Any:
    """Reduce plain tensors to arrays for pickling; their bytes travel beside the pickle."""
    if type(value) is not torch.Tensor or value.requires_grad or value.device.type != "cpu":
        return NotImplemented
    if value.is_nested:  # and strided: jagged ones are of a class of their own
        return torch.nested.as_nested_tensor, (list(value.unbind()),)
    if value.layout != torch.strided or value.is_quantized or value.is_conj() or value.is_neg():
        return NotImplemented
    size, stride = value.size(), value.stride()
    if not value.numel() or (value.is_contiguous() and 1 not in size):
        return _rebuild_tensor, (_share_memory(value.contiguous()), value.dtype)
    # The memory as it is, so that the layout stays (channels_last); but a part of other memory is
    # packed, in the sequence of its axes.
    reach = 1 + sum((n - 1) * step for n, step in zip(size, stride, strict=True))
    if reach > value.numel():
        value = value.clone()
        stride, reach = value.stride(), value.numel()
    flat = _share_memory(value.as_strided((reach,), (1,)))
    return _rebuild_tensor, (flat, value.dtype, size, stride)


def map_tensors(
    data: Any,
    convert_tensor: Callable[[torch.Tensor], torch.Tensor],
    convert_object: Callable[[Any], Any],
) -> Any:
    """Return a copy of a batch with its tensors converted, ids too; all else stays.

    convert_object:  converts an object with `pin_memory`, by which torch knows batches of a user's
                     own types.
    """

    def convert(value: Any) -> Any:
        return map_tensors(value, convert_tensor, convert_object)

    if isinstance(data, torch.Tensor):
        return convert_tensor(data)
    if isinstance(data, Ragged):
        return Ragged(convert(data.values), convert(data.offsets))
    if isinstance(data, Batch):
        batch = data.replace_fields({name: convert(value) for name, value in data.items()})
        if hasattr(data, "ids"):
            batch.ids = convert(data.ids)
        return batch
    if hasattr(data, "pin_memory"):
        return convert_object(data)
    if isinstance(data, str | bytes):
        return data
    if isinstance(data, tuple) and hasattr(data, "_fields"):
        return type(data)(*map(convert, data))
    try:
        if isinstance(data, Mapping):
            return type(data)({name: convert(value) for name, value in data.items()})  # type: ignore[call-arg]
        if isinstance(data, Sequence):
            return type(data)([convert(value) for value in data])  # type: ignore[call-arg]
    except TypeError:  # a type that is constructed otherwise
        items = data.items() if isinstance(data, Mapping) else enumerate(data)
        converted = {name: convert(value) for name, value in items}
        return converted if isinstance(data, Mapping) else list(converted.values())
    return data


def can_pin() -> bool:
    """True if torch finds an accelerator to pin memory for."""
    accelerator = getattr(torch, "accelerator", torch.cuda)
    return bool(accelerator.is_available())
