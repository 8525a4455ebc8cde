"""Files, tensors and sizes that each rank writes into a checkpoint, as DLIO divides models. Pure.

A model is divided among `tensor` x `pipeline` x `data` ranks; rank = (replica * pipeline + stage) *
tensor + slice. Layer 0 is the embedding, layers 1 to L are the transformer's, L + 1 is the head
and L + 2 the last norm. Of <d> = replica, <m> = stage * tensor + slice and <l> = layer come the
names; the writer adds the suffix.

    zero_pp_rank_<d>_mp_rank_<m>_optim_states   by each rank; with ZeRO 0 by the first replica
    zero_pp_rank_<d>_mp_rank_<m>_model_states   likewise; of ZeRO 0 and 3
    model_<m>_model_states                      by the first replica, of ZeRO 1 and 2
    layer_<l>-model_<m>_model_states            instead, where there are stages
    model_states-<rank>                         one tensor, where the model is no transformer
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Literal

import numpy as np
import numpy.typing as npt

from penstock.errors import UsageError

from ..workload.sections import CheckpointSpec, ModelSpec, Parallelism

DTYPE_BYTES = {"int8": 1, "uint8": 1, "fp16": 2, "bf16": 2, "fp32": 4, "fp64": 8}
"""Element types of tensors, by DLIO's names."""


@dataclass(frozen=True, slots=True)
class Tensor:
    """One dimension, `elements` long."""

    name: str
    dtype: str
    elements: int

    @property
    def bytes(self) -> int:
        """Bytes of the elements, without any header."""
        return self.elements * DTYPE_BYTES[self.dtype]


Bytes = npt.NDArray[np.uint8]
State = Mapping[Tensor, Bytes]
"""The tensors of a file, each with its elements as in memory."""


@dataclass(frozen=True, slots=True)
class File:
    """A file of a checkpoint; its tensors have different names."""

    name: str
    part: Literal["model", "optimizer"]
    tensors: tuple[Tensor, ...]

    @property
    def bytes(self) -> int:
        """Bytes of the tensors, without any header."""
        return sum(tensor.bytes for tensor in self.tensors)


@dataclass(frozen=True, slots=True)
class Coordinates:
    """The place of a rank in a divided model: `tensor`, `pipeline` and `data` count the ranks along
    each axis; `slice`, `stage` and `replica` are this rank's numbers there."""

    rank: int
    tensor: int
    pipeline: int
    data: int
    zero_stage: int

    @classmethod
    def of(cls, cut: Parallelism, mode: str, rank: int, ranks: int) -> Coordinates:
        """The coordinates of one of `ranks` ranks. UsageError if they cannot hold the model.

        mode: "subset" has the first few ranks of a job that is `cut.data` times the model wide.
        """
        model = cut.tensor * cut.pipeline
        if mode == "subset":
            data, whole = cut.data, model * cut.data
            if ranks > whole:
                raise UsageError(
                    f"checkpoint.mode=subset: {ranks} ranks are more than the whole job's {whole} "
                    f"(tensor {cut.tensor} x pipeline {cut.pipeline} x data {cut.data}): run at "
                    f"most {whole} ranks"
                )
        else:
            data, rest = divmod(ranks, model)
            if rest or not data:
                count = f"{ranks} ranks are" if ranks > 1 else "1 rank is"
                raise UsageError(
                    f"{count} no multiple of tensor {cut.tensor} x pipeline "
                    f"{cut.pipeline} = {model} (model.parallelism): run a multiple of {model} "
                    f"(--ranks), or only the first ranks of such a job by "
                    f"++workload.checkpoint.mode=subset ++workload.model.parallelism.data=N, where "
                    f"N x {model} are the ranks of the whole job"
                )
        return cls(rank, cut.tensor, cut.pipeline, data, cut.zero_stage)

    @property
    def slice(self) -> int:
        """The number of its part of each large tensor."""
        return self.rank % self.tensor

    @property
    def stage(self) -> int:
        """The number of its group of layers."""
        return self.rank // self.tensor % self.pipeline

    @property
    def part(self) -> int:
        """Slice and stage as one number: its part of the model."""
        return self.rank % (self.tensor * self.pipeline)

    @property
    def replica(self) -> int:
        """The number of its copy of the model; with ZeRO, of its share among the copies."""
        return self.rank // (self.tensor * self.pipeline)


def count_parameters(model: ModelSpec) -> int:
    """Count the parameters of the whole transformer; 0 if the model is none."""
    if model.num_layers <= 0:
        return 0
    shape = model.transformer
    ends = 2 * shape.vocab_size * shape.hidden_size + shape.hidden_size
    return ends + model.num_layers * sum(elements for elements, _ in _list_block_tensors(model))


def list_files(model: ModelSpec, at: Coordinates, scale: float = 1.0) -> tuple[File, ...]:
    """List the files that the rank at these coordinates writes, in this order; may be none.

    scale: of the elements of every tensor, rounded, at least one.
    """
    if at.zero_stage == 0 and at.replica > 0:
        return ()
    return tuple(
        File(
            name,
            part,
            tuple(Tensor(key, kind, max(1, round(size * scale))) for key, kind, size in tensors),
        )
        for name, part, tensors in _plan_files(model, at)
        if tensors
    )


@dataclass(frozen=True, slots=True)
class Totals:
    """A checkpoint, over all ranks that run. counted_bytes: the size that DLIO assumes."""

    files: int
    tensors: int
    model_bytes: int
    optimizer_bytes: int
    counted_bytes: int

    @property
    def bytes(self) -> int:
        """Bytes of all tensors."""
        return self.model_bytes + self.optimizer_bytes


def count_totals(
    model: ModelSpec, checkpoint: CheckpointSpec, ranks: int, scale: float = 1.0
) -> Totals:
    """Add up the files of all ranks, without a message between them."""
    written = [
        file
        for rank_files in list_files_by_rank(model, checkpoint, ranks, scale)
        for file in rank_files
    ]
    size = {
        part: sum(file.bytes for file in written if file.part == part)
        for part in ("model", "optimizer")
    }
    # DLIO does not count lengths that are given, and counts the blob once, instead of layers.
    counted = 0 if model.optimization_groups else size["optimizer"]
    if _is_blob(model):
        counted += max(1, round(model.model_size_bytes * scale))
    elif not model.layer_parameters:
        counted += size["model"]
    tensors = sum(len(file.tensors) for file in written)
    return Totals(len(written), tensors, size["model"], size["optimizer"], counted)


def list_files_by_rank(
    model: ModelSpec, checkpoint: CheckpointSpec, ranks: int, scale: float = 1.0
) -> Iterator[tuple[File, ...]]:
    """List the files of each rank. UsageError if `ranks` ranks cannot hold the model."""
    for rank in range(ranks):
        at = Coordinates.of(model.parallelism, checkpoint.mode, rank, ranks)
        yield list_files(model, at, scale)


def is_due(checkpoint: CheckpointSpec, epoch: int, step: int, steps: int) -> bool:
    """True if a checkpoint follows this step of `steps` of an epoch; both count from 1."""
    if checkpoint.steps_between_checkpoints:
        return step % checkpoint.steps_between_checkpoints == 0
    since = epoch - checkpoint.checkpoint_after_epoch
    return step == steps and since >= 0 and since % checkpoint.epochs_between_checkpoints == 0


_Sized = tuple[str, str, int]
"""Name, dtype and elements of a tensor."""


def _plan_files(
    model: ModelSpec, at: Coordinates
) -> Iterator[tuple[str, Literal["model", "optimizer"], list[_Sized]]]:
    share = f"zero_pp_rank_{at.replica}_mp_rank_{at.part}"
    if _is_blob(model):
        yield f"model_states-{at.rank}", "model", [("a", "int8", model.model_size_bytes)]
    layers = [(layer, _list_layer_tensors(model, at, layer)) for layer in _choose_layers(model, at)]
    everything = [tensor for _, tensors in layers for tensor in tensors]
    if at.zero_stage in (0, 3):
        yield f"{share}_model_states", "model", everything
    elif at.replica == 0 and at.pipeline == 1:
        yield f"model_{at.part}_model_states", "model", everything
    elif at.replica == 0:
        for layer, tensors in layers:
            yield f"layer_{layer}-model_{at.part}_model_states", "model", tensors
    yield f"{share}_optim_states", "optimizer", _list_optimizer_tensors(model, at)


def _is_blob(model: ModelSpec) -> bool:
    return model.type != "transformer" and model.model_size_bytes > 0


def _choose_layers(model: ModelSpec, at: Coordinates) -> range:
    """The layers of a stage; the first stages have one more if they do not divide evenly."""
    layers, more = divmod(max(0, model.num_layers), at.pipeline)
    first = 1 + at.stage * layers + min(at.stage, more)
    end = first + layers + (at.stage < more)
    if model.num_layers > 0 and not model.layer_parameters:  # lengths that are given have no ends
        first = 0 if at.stage == 0 else first
        end = end + 2 if at.stage == at.pipeline - 1 else end
    return range(first, end)


def _list_layer_tensors(model: ModelSpec, at: Coordinates, layer: int) -> list[_Sized]:
    if model.layer_parameters:
        sizes, dtype = [given // at.tensor for given in model.layer_parameters], "int8"
    else:
        shape, dtype = model.transformer, model.model_datatype
        if layer in (0, model.num_layers + 1):
            whole = [(shape.vocab_size * shape.hidden_size, True)]
        elif layer == model.num_layers + 2:
            whole = [(shape.hidden_size, False)]
        else:
            whole = _list_block_tensors(model)
        shares = at.data if at.zero_stage == 3 else 1
        sizes = [elements // (at.tensor if cut else 1) // shares for elements, cut in whole]
    return [(f"{layer}.{i}", dtype, size) for i, size in enumerate(sizes) if size > 0]


def _list_block_tensors(model: ModelSpec) -> list[tuple[int, bool]]:
    """Tensors of one transformer layer: elements, and whether slices divide them."""
    shape = model.transformer
    hidden, ffn = shape.hidden_size, shape.ffn_hidden_size
    keys = hidden // shape.num_attention_heads * shape.num_kv_heads
    return [
        (hidden, False),  # norm
        (hidden * (hidden + 2 * keys), True),  # queries, keys, values
        (hidden * hidden, True),  # output of attention
        (hidden, False),  # norm
        (2 * hidden * ffn, True),  # gate and up
        (hidden * ffn, True),  # down
    ]


def _list_optimizer_tensors(model: ModelSpec, at: Coordinates) -> list[_Sized]:
    """Three states of each parameter, each followed by a small tensor that is not divided."""
    if model.optimization_groups:
        given = [(i, size) for i, size in enumerate(model.optimization_groups) if size > 0]
        pairs = [(f"{i}.{half}", "int8", size) for i, size in given for half in "ab"]
        return [*pairs, ("combined", "int8", sum(size for _, size in given))] if given else []
    shares = at.tensor * at.pipeline * (at.data if at.zero_stage else 1)
    size = count_parameters(model) // shares
    if size <= 0:
        return []
    sizes = [size, 5 * model.transformer.hidden_size] * 3
    return [(str(i), model.optimizer_datatype, elements) for i, elements in enumerate(sizes)]
