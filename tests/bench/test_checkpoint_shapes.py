"""The cut of models into the files of checkpoints: golden sizes, and every layer exactly once."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from penstock.errors import UsageError
from penstock_bench.checkpoints.shapes import (
    DTYPE_BYTES,
    count_parameters,
    count_totals,
    is_due,
    list_files_by_rank,
)
from penstock_bench.workload.sections import CheckpointSpec, ModelSpec, Parallelism, Transformer

GIB = 2**30
DEFAULT = CheckpointSpec()
# hidden, ffn, heads, kv heads, layers, vocabulary; tensor, pipeline, ZeRO, ranks;
# parameters, GiB of the model in fp16 and of its optimizer in fp32
LLAMAS = {
    "7b": ((4096, 11008, 32, 32, 32, 32000), (1, 1, 1, 8), (6738415616, 12.6, 75.3)),
    "7b_zero3": ((4096, 11008, 32, 32, 32, 32000), (1, 1, 3, 8), (6738415616, 12.6, 75.3)),
    "8b_zero3": ((4096, 14336, 32, 8, 32, 128256), (1, 1, 3, 8), (8030261248, 15.0, 89.7)),
    "70b": ((8192, 28672, 128, 8, 80, 128256), (8, 4, 1, 64), (69882617856, 130.2, 781.0)),
    "70b_zero3": ((8192, 28672, 128, 8, 80, 128256), (8, 1, 3, 64), (69882617856, 130.2, 781.0)),
    "405b": ((16384, 53248, 128, 8, 126, 128256), (8, 32, 1, 512), (405853388800, 756.0, 4535.8)),
    "1t": (
        (25872, 98304, 192, 32, 128, 128256),
        (8, 64, 1, 1024),
        (1183035102480, 2203.6, 13221.4),
    ),
}


def llama(name: str) -> tuple[ModelSpec, int]:
    """One of DLIO's models and the ranks that MLPerf Storage runs it with."""
    (hidden, ffn, heads, kv, layers, vocabulary), (tensor, pipeline, zero, ranks), _ = LLAMAS[name]
    shape = Transformer(
        vocab_size=vocabulary,
        hidden_size=hidden,
        ffn_hidden_size=ffn,
        num_attention_heads=heads,
        num_kv_heads=kv,
    )
    cut = Parallelism(tensor=tensor, pipeline=pipeline, zero_stage=zero)
    return ModelSpec(
        type="transformer", num_layers=layers, parallelism=cut, transformer=shape
    ), ranks


@pytest.mark.parametrize("name", LLAMAS)
def test_sizes_of_the_bundled_llamas(name: str) -> None:
    """Parameters are exact, and bytes are them and what is known to be kept more than once."""
    model, ranks = llama(name)
    count, model_gib, optimizer_gib = LLAMAS[name][2]
    assert count_parameters(model) == count
    assert round(2 * count / GIB, 1) == model_gib
    assert round(12 * count / GIB, 1) == optimizer_gib
    found = count_totals(model, DEFAULT, ranks)
    cut, hidden = model.parallelism, model.transformer.hidden_size
    norms = 2 * (2 * model.num_layers + 1) * hidden  # bytes of what slices do not divide
    assert found.model_bytes == 2 * count + (cut.tensor - 1) * norms
    extra = found.optimizer_bytes - ranks * 3 * 5 * hidden * 4
    assert 12 * (count - ranks) < extra <= 12 * count
    assert found.counted_bytes == found.bytes


def test_files_of_llama_7b() -> None:
    """ZeRO 1 on two ranks: the model by the first, the optimizer's halves by each."""
    model, _ = llama("7b")
    first, second = list_files_by_rank(model, DEFAULT, 2)
    assert [file.name for file in first] == [
        "model_0_model_states",
        "zero_pp_rank_0_mp_rank_0_optim_states",
    ]
    assert [file.name for file in second] == ["zero_pp_rank_1_mp_rank_0_optim_states"]
    assert [tensor.elements for tensor in second[0].tensors] == [3369207808, 20480] * 3
    assert {tensor.dtype for tensor in first[0].tensors} == {"fp16"}
    assert {tensor.dtype for tensor in second[0].tensors} == {"fp32"}
    assert len(first[0].tensors) == 6 * 32 + 3


def test_files_of_a_pipeline() -> None:
    """A file for each layer of a stage, of the first replica alone; the first stage has one more
    where layers do not come out even."""
    shape = Transformer(vocab_size=10, hidden_size=8, ffn_hidden_size=4, num_attention_heads=2)
    cut = Parallelism(tensor=2, pipeline=2, zero_stage=2)
    model = ModelSpec(type="transformer", num_layers=3, parallelism=cut, transformer=shape)
    ranks = [[file.name for file in each] for each in list_files_by_rank(model, DEFAULT, 8)]
    assert ranks[1] == [
        "layer_0-model_1_model_states",
        "layer_1-model_1_model_states",
        "layer_2-model_1_model_states",
        "zero_pp_rank_0_mp_rank_1_optim_states",
    ]
    assert ranks[2] == [
        "layer_3-model_2_model_states",
        "layer_4-model_2_model_states",
        "layer_5-model_2_model_states",
        "zero_pp_rank_0_mp_rank_2_optim_states",
    ]
    assert ranks[7] == ["zero_pp_rank_1_mp_rank_3_optim_states"]


def test_given_lengths() -> None:
    """DLIO's older way: lengths of groups and of a layer's tensors, bytes each, on every rank."""
    model = ModelSpec(
        num_layers=40,
        optimization_groups=(1009254400, 865075200, 793600),
        layer_parameters=(52583936, 209715200),
        parallelism=Parallelism(tensor=4, pipeline=8, zero_stage=1),
    )
    first, *others = list_files_by_rank(model, DEFAULT, 64)
    assert [file.name for file in first] == [
        "model_states-0",
        *(f"layer_{layer}-model_0_model_states" for layer in range(1, 6)),
        "zero_pp_rank_0_mp_rank_0_optim_states",
    ]
    assert {file.bytes for file in first[1:-1]} == {(52583936 + 209715200) // 4}
    groups = 1009254400 + 865075200 + 793600
    assert first[-1].bytes == 3 * groups
    assert [tensor.name for tensor in first[-1].tensors][-1] == "combined"
    assert [file.name for file in others[-1]] == [
        "model_states-63",
        "zero_pp_rank_1_mp_rank_31_optim_states",
    ]
    found = count_totals(model, DEFAULT, 64)
    assert found.bytes == 64 * (3 * groups + 10240) + 40 * (52583936 + 209715200)
    assert found.counted_bytes == 10240  # DLIO takes that for the size


def test_a_model_that_is_no_transformer_is_one_tensor() -> None:
    """With DLIO's defaults: so many bytes, by the first rank."""
    model = ModelSpec(model_size_bytes=499153191)
    first, second = list_files_by_rank(model, DEFAULT, 2)
    assert [(file.name, file.bytes) for file in first] == [("model_states-0", 499153191)]
    assert second == ()


@st.composite
def cut_models(draw: st.DrawFn) -> tuple[ModelSpec, CheckpointSpec, int]:
    """A small transformer, cut in a way that is allowed, and its ranks."""
    zero = draw(st.integers(0, 3))
    tensor = draw(st.integers(1, 4))
    pipeline = 1 if zero == 3 else draw(st.integers(1, 4))
    data = draw(st.integers(1, 4))
    subset = draw(st.booleans())
    heads = draw(st.integers(1, 8))
    model = ModelSpec(
        type="transformer",
        num_layers=draw(st.integers(pipeline, 9)),
        model_datatype=draw(st.sampled_from(sorted(DTYPE_BYTES))),
        optimizer_datatype=draw(st.sampled_from(sorted(DTYPE_BYTES))),
        parallelism=Parallelism(
            tensor=tensor, pipeline=pipeline, data=data if subset else -1, zero_stage=zero
        ),
        transformer=Transformer(
            vocab_size=draw(st.integers(1, 50)),
            hidden_size=draw(st.integers(heads, 60)),
            ffn_hidden_size=draw(st.integers(1, 90)),
            num_attention_heads=heads,
            num_kv_heads=draw(st.integers(1, heads)),
        ),
    )
    return model, CheckpointSpec(mode="subset" if subset else "default"), tensor * pipeline * data


def whole(model: ModelSpec) -> dict[str, tuple[int, bool]]:
    """Tensors of the uncut model: elements, and whether slices divide them."""
    shape = model.transformer
    head = shape.hidden_size // shape.num_attention_heads
    rows, keys = shape.hidden_size, head * shape.num_kv_heads
    found = {}
    for layer in range(1, model.num_layers + 1):
        attention_in, attention_out = rows * rows + rows * keys + rows * keys, rows * rows
        gate = up = down = rows * shape.ffn_hidden_size
        sizes = (rows, attention_in, attention_out, rows, gate + up, down)
        found |= {f"{layer}.{i}": (size, i not in (0, 3)) for i, size in enumerate(sizes)}
    found["0.0"] = found[f"{model.num_layers + 1}.0"] = (shape.vocab_size * rows, True)
    found[f"{model.num_layers + 2}.0"] = (rows, False)
    return found


@given(cut_models())
def test_every_layer_is_written_once(cut: tuple[ModelSpec, CheckpointSpec, int]) -> None:
    """By all ranks together: each part of each tensor once, no name twice, nothing lost but what
    does not divide; and the totals are the sum."""
    model, checkpoint, ranks = cut
    axes = model.parallelism
    shares = axes.data if axes.data > 0 else ranks // (axes.tensor * axes.pipeline)
    divided = shares if axes.zero_stage == 3 else 1
    seen: Counter[tuple[str, int, int]] = Counter()
    names: Counter[str] = Counter()
    sizes: Counter[str] = Counter()
    written = list(list_files_by_rank(model, checkpoint, ranks))
    for rank, each in enumerate(written):
        names.update(file.name for file in each)
        for tensor in (t for file in each if file.part == "model" for t in file.tensors):
            seen[tensor.name, rank % axes.tensor, rank // (axes.tensor * axes.pipeline)] += 1
            sizes[tensor.name] += tensor.elements
    assert set(names.values()) <= {1}  # none, where too little is divided among too many
    assert set(seen.values()) <= {1}
    for name, (elements, sliced) in whole(model).items():
        copies = 1 if sliced else axes.tensor
        parts = (axes.tensor if sliced else 1) * divided
        assert 0 <= copies * elements - sizes[name] < copies * parts
        expected = {(s, d) for s in range(axes.tensor) for d in range(divided)}
        assert elements < parts or {k[1:] for k in seen if k[0] == name} == expected
    assert set(sizes) <= set(whole(model))
    assert count_parameters(model) == sum(elements for elements, _ in whole(model).values())

    found = count_totals(model, checkpoint, ranks)
    everything = [file for each in written for file in each]
    assert found.files == len(everything)
    assert found.bytes == sum(t.bytes for file in everything for t in file.tensors)
    holders = ranks if axes.zero_stage else axes.tensor * axes.pipeline
    each = count_parameters(model) // holders
    states = holders * 3 * (each + 5 * model.transformer.hidden_size) if each else 0
    assert found.optimizer_bytes == states * DTYPE_BYTES[model.optimizer_datatype]


@given(cut_models(), st.data())
def test_a_subset_is_the_first_ranks_of_the_whole(
    cut: tuple[ModelSpec, CheckpointSpec, int], data: st.DataObject
) -> None:
    """mode=subset: fewer ranks write what these ranks of the whole job would."""
    model, checkpoint, ranks = cut
    assume(checkpoint.mode == "subset")
    few = data.draw(st.integers(1, ranks))
    whole_job = replace(model, parallelism=replace(model.parallelism, data=-1))
    assert (
        list(list_files_by_rank(model, checkpoint, few))
        == list(list_files_by_rank(whole_job, DEFAULT, ranks))[:few]
    )


@given(cut_models(), st.floats(1e-6, 1.0))
def test_scaling(cut: tuple[ModelSpec, CheckpointSpec, int], scale: float) -> None:
    """The same files and tensors, each of about the part asked for and never empty."""
    model, checkpoint, ranks = cut
    scaled = list_files_by_rank(model, checkpoint, ranks, scale)
    for full, small in zip(list_files_by_rank(model, checkpoint, ranks), scaled, strict=True):
        assert [file.name for file in full] == [file.name for file in small]
        pairs = zip(full, small, strict=True)
        for a, b in ((a, b) for f, s in pairs for a, b in zip(f.tensors, s.tensors, strict=True)):
            assert (a.name, a.dtype) == (b.name, b.dtype)
            assert b.elements == 1 or abs(b.elements - scale * a.elements) <= 0.5


@pytest.mark.parametrize(
    ("axes", "mode", "ranks", "said"),
    [
        ({"tensor": 2, "pipeline": 2}, "default", 6, "6 ranks are no multiple of tensor 2 x"),
        ({"tensor": 4}, "default", 2, "2 ranks are no multiple"),
        ({"data": 2, "tensor": 2}, "subset", 5, "5 ranks are more than the whole job's 4"),
    ],
)
def test_what_cannot_be_cut(axes: dict[str, int], mode: str, ranks: int, said: str) -> None:
    """Ranks, parallelism and mode that do not fit together are told apart."""
    model = ModelSpec(type="transformer", num_layers=8, parallelism=Parallelism(**axes))
    with pytest.raises(UsageError, match=said):
        list(list_files_by_rank(model, CheckpointSpec(mode=mode), ranks))  # type: ignore[arg-type]


def test_when_checkpoints_are_due() -> None:
    """By steps of an epoch where these are given, else after the last step of some epochs."""
    by_steps = CheckpointSpec(steps_between_checkpoints=3)
    taken = [(e, s) for e in (1, 2) for s in range(1, 9) if is_due(by_steps, e, s, 8)]
    assert taken == [(1, 3), (1, 6), (2, 3), (2, 6)]
    by_epochs = CheckpointSpec(checkpoint_after_epoch=5, epochs_between_checkpoints=2)
    taken = [(e, s) for e in range(1, 11) for s in range(1, 9) if is_due(by_epochs, e, s, 8)]
    assert taken == [(5, 8), (7, 8), (9, 8)]
    never = CheckpointSpec(steps_between_checkpoints=9)
    assert not any(is_due(never, e, s, 8) for e in (1, 2) for s in range(1, 9))
