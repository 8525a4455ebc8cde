"""Checkpoints on real storage: what is there afterwards, what is measured, and what goes wrong."""

from __future__ import annotations

import errno
import importlib.util
import json
import math
import os
import resource
import signal
import subprocess
import sys
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from penstock.errors import (
    ChangedError,
    FormatError,
    LimitError,
    MissingError,
    PenstockError,
    StateError,
    StorageError,
    UsageError,
)
from penstock_bench.checkpoints import run as module
from penstock_bench.checkpoints.files import (
    CheckpointContents,
    CheckpointWriter,
    NumpyWriter,
    make_content,
    make_writer,
)
from penstock_bench.checkpoints.run import WorkloadCheckpoints, dlio_metrics, run_checkpoints
from penstock_bench.checkpoints.shapes import DTYPE_BYTES, File, Tensor, Totals
from penstock_bench.workload.sections import (
    CheckpointSpec,
    DlioWorkload,
    ModelSpec,
    Parallelism,
    StorageSpec,
)
from tests import warm
from tests.bench.checkpoint_crew import SmallCrew, Work, alone, llama, processes, threads

WRITERS = ["numpy", "torch", "penstock"]


@pytest.fixture(params=WRITERS)
def writer(request: pytest.FixtureRequest) -> str:
    """The name of a writer that is installed."""
    pytest.importorskip(request.param)
    return str(request.param)


def opened(workload: DlioWorkload, **options: Any) -> WorkloadCheckpoints:
    """The checkpoints of one rank."""
    found: WorkloadCheckpoints = alone(
        lambda *crew: WorkloadCheckpoints(workload, *crew, **options)
    )
    return found


def ran(workload: DlioWorkload, **options: Any) -> dict[str, Any]:
    """A run of one rank."""
    found: dict[str, Any] = alone(lambda *crew: run_checkpoints(workload, *crew, **options))
    return found


def listed(folder: Path) -> list[str]:
    """All files below, hidden ones too."""
    found = (Path(at) / name for at, _, names in os.walk(folder) for name in names)
    return sorted(str(path.relative_to(folder)) for path in found)


def environ() -> dict[str, str]:
    """For a process that imports what this one does."""
    return os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}


@contextmanager
def largest_file(size: int) -> Iterator[None]:
    """No file of this process grows beyond this."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


@pytest.fixture
def mounted(tmp_path: Path) -> Iterator[Callable[[str], Path]]:
    """A file system in memory, with these options; where we may mount one."""
    folder = tmp_path / "mounted"
    folder.mkdir()
    done = []

    def mount(options: str) -> Path:
        command = ["mount", "-t", "tmpfs", "-o", options, "tmpfs", str(folder)]
        if os.geteuid() or subprocess.run(command, capture_output=True).returncode:
            pytest.skip("only root may mount a file system")
        done.append(folder)
        return folder

    yield mount
    for each in done:
        subprocess.run(["umount", str(each)], check=True)


# -- contents and writers ----------------------------------------------------------------------

TENSORS = st.lists(
    st.tuples(st.sampled_from(sorted(DTYPE_BYTES)), st.integers(1, 300)), min_size=1, max_size=6
).map(lambda drawn: tuple(Tensor(f"0.{i}", *each) for i, each in enumerate(drawn)))


@given(TENSORS, st.booleans(), st.lists(st.integers(0, 3), min_size=1, max_size=3))
def test_contents_follow_from_their_names(
    tensors: tuple[Tensor, ...], randomized: bool, steps: list[int]
) -> None:
    """Whatever steps were before, and for each file on its own."""
    files = [File("a", "model", tensors), File("b", "optimizer", tensors[:1])]
    contents = CheckpointContents(files, 7, randomized)
    for step in steps:
        contents.turn_to(1, step)
    for file in files:
        state = contents.of(file)
        assert list(state) == list(file.tensors)
        for tensor, found in state.items():
            assert found.nbytes == tensor.bytes
            assert np.array_equal(found, make_content(file, tensor, 1, steps[-1], 7, randomized))


def test_random_contents_neither_compress_nor_repeat() -> None:
    """Not within a tensor, nor between files, steps and seeds."""
    tensor = Tensor("0.0", "fp32", 1 << 16)
    files = [File(name, "model", (tensor,)) for name in "ab"]
    made = [
        make_content(file, tensor, epoch, step, seed, True).tobytes()
        for file in files
        for epoch, step, seed in ((1, 0, 7), (1, 1, 7), (2, 0, 7), (1, 0, 8))
    ]
    everything = b"".join(made)
    assert len(zlib.compress(everything)) > 0.999 * len(everything)
    rows = {each[at : at + 64] for each in made for at in range(0, len(each), 64)}
    assert len(rows) == len(everything) // 64


@pytest.mark.parametrize("dtype", sorted(DTYPE_BYTES))
def test_ones_are_ones(dtype: str) -> None:
    """Ones in the file are ones for torch, too; they share memory."""
    torch = pytest.importorskip("torch")
    names = {"fp16": "float16", "bf16": "bfloat16", "fp32": "float32", "fp64": "float64"}
    tensor = Tensor("0.0", dtype, 13)
    file = File("a", "model", (tensor, Tensor("0.1", dtype, 5)))
    state = CheckpointContents([file], 7, False).of(file)
    ones = torch.ones(13, dtype=getattr(torch, names.get(dtype, dtype)))
    assert torch.equal(torch.frombuffer(state[tensor], dtype=ones.dtype), ones)
    assert np.shares_memory(*state.values())


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(TENSORS, st.booleans(), st.booleans())
def test_writers_give_back_what_they_were_given(
    writer: str, tmp_path: Path, tensors: tuple[Tensor, ...], randomized: bool, fsync: bool
) -> None:
    """Every type, bit by bit, with nothing added but a small header, also where tensors share
    memory; under one name alone. (Defect 11: a checkpoint of 476 MiB was 11,817 bytes.)"""
    file = File("a", "model", tensors)
    contents = CheckpointContents([file], 7, randomized)
    used = make_writer(writer)
    path = str(tmp_path / ("a" + used.suffix))
    used.save(path, contents.of(file), fsync)
    assert listed(tmp_path) == ["a" + used.suffix]
    header = os.path.getsize(path) - file.bytes
    assert 0 < header <= module._HEADER_BYTES + module._TENSOR_BYTES * len(tensors)
    loaded = used.load(path)
    assert list(loaded) == list(tensors)
    for tensor, found in loaded.items():
        assert np.array_equal(found, contents.of(file)[tensor])


def test_torch_reads_what_was_saved_as_its_own(tmp_path: Path) -> None:
    """A dict of tensors of the types that the workload says."""
    torch = pytest.importorskip("torch")
    checkpoints = opened(llama(tmp_path), writer="torch")
    checkpoints.take(1, 0)
    model, optimizer = (torch.load(path, weights_only=True) for path in checkpoints.paths(1, 0))
    assert model["1.1"].dtype == torch.float16
    assert model["1.1"].shape == (64 * (64 + 2 * 32),)
    assert {each.dtype for each in optimizer.values()} == {torch.float32}


def test_a_writer_of_ones_own() -> None:
    """A writer is named as module:name; a name that is not there, or is no writer, is told."""
    assert isinstance(make_writer("penstock_bench.checkpoints.files:NumpyWriter"), NumpyWriter)
    for name, said in (
        ("tensorflow", "there is no checkpoint writer 'tensorflow'"),
        ("no_such_module:Writer", "no_such_module"),
        ("json:Writer", "Writer"),
        ("collections:OrderedDict", "has no name, suffix, save, load"),
    ):
        with pytest.raises(UsageError, match=said):
            make_writer(name)


def test_auto_is_torch_where_it_is_installed() -> None:
    installed = importlib.util.find_spec("torch") is not None
    assert make_writer("auto").name == ("torch" if installed else "numpy")


@pytest.mark.long
def test_torch_is_not_imported_before_it_is_needed(tmp_path: Path) -> None:
    """A run whose first checkpoint is an hour away begins as fast as one without."""
    told = (
        "import sys\nfrom tests.bench.checkpoint_crew import alone, llama\n"
        "from penstock_bench.checkpoints.run import WorkloadCheckpoints\n"
        f"made = alone(lambda *crew: WorkloadCheckpoints(llama({str(tmp_path)!r}), *crew))\n"
        "early = 'torch' in sys.modules\nmade.take(1, 0)\n"
        "print(early, made.writer.name, made.writer.name in sys.modules)"
    )
    ended = subprocess.run(
        [sys.executable, "-c", told], env=environ(), capture_output=True, text=True, check=True
    )
    assert ended.stdout.split() in (["False", "torch", "True"], ["False", "numpy", "True"])


# -- runs ------------------------------------------------------------------------------------------


def test_a_run_of_one_rank(writer: str, tmp_path: Path) -> None:
    """Files have the bytes that were asked for, and are loaded as they were saved. (Defects 15 and
    22: in DLIO reading crashed, and loaded checkpoints were compared with nothing.)"""
    workload = llama(tmp_path, num_checkpoints_write=2, num_checkpoints_read=2, fsync=True)
    found = ran(workload, writer=writer, verify=True)
    done, suffix = found["checkpoints"], make_writer(writer).suffix
    names = ["model_0_model_states", "zero_pp_rank_0_mp_rank_0_optim_states"]
    assert listed(tmp_path) == [
        f"global_epoch1_step{step}/{name}{suffix}" for step in (0, 1) for name in names
    ]
    size = sum(os.path.getsize(tmp_path / path) for path in listed(tmp_path)) / 2
    assert done["bytes"] < size < done["bytes"] * 1.02
    assert (done["writer"], done["scale"], done["ranks"], done["hosts"]) == (writer, 1.0, 1, 1)
    assert [each["step"] for each in done["saves"]] == [0, 1]
    assert [each["verified"] for each in done["loads"]] == [True, True]
    assert all(each["bytes"] == done["bytes"] for each in done["saves"] + done["loads"])
    rates = [done["bytes"] / 2**30 / each["seconds"] for each in done["saves"]]
    assert math.isclose(found["dlio"]["save_checkpoint_io_mean_GB_per_second"], sum(rates) / 2)
    assert found["dlio"]["checkpoint_size_GB"] == done["bytes"] / 2**30


@pytest.mark.long
def test_two_ranks_in_processes(tmp_path: Path) -> None:
    """Each writes its own; both return the same record."""
    workload = llama(tmp_path, num_checkpoints_write=2, num_checkpoints_read=1, rank_sync=True)
    first, second = processes(2, workload, writer="numpy", verify=True)
    assert first == second
    assert len(listed(tmp_path)) == 6
    done = first["checkpoints"]
    assert done["bytes"] == done["model_bytes"] + done["optimizer_bytes"]
    assert [len(each["rank_seconds"]) for each in done["saves"]] == [2, 2]
    assert all(each["seconds"] == max(each["rank_seconds"]) for each in done["saves"])
    assert done["loads"][0]["verified"] is True


def test_fsync_is_honoured(writer: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every file, its folder and the folder of checkpoints, once each. (Defect 3: with fsync: True
    DLIO calls fsync not once.)"""
    synced: list[str] = []
    fsync = os.fsync

    def counted(file: int) -> None:
        synced.append(os.readlink(f"/proc/self/fd/{file}"))
        fsync(file)

    monkeypatch.setattr(os, "fsync", counted)
    monkeypatch.setattr(os, "fdatasync", counted)
    folder = tmp_path / "global_epoch3_step5"
    checkpoints = opened(llama(tmp_path, fsync=True), writer=writer)
    checkpoints.take(3, 5)
    paths = checkpoints.paths(3, 5)
    files = [os.path.join(folder, f".{os.path.basename(path)}.part") for path in paths]
    assert synced == [*files, str(folder), str(tmp_path)]
    synced.clear()
    opened(llama(tmp_path), writer=writer).take(3, 5)
    assert synced == []


def test_fsync_of_several_ranks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each rank its files and the folder, and the first the folder above; DLIO: none at all."""
    synced: list[int] = []
    fsync = os.fsync
    monkeypatch.setattr(os, "fsync", lambda file: (synced.append(file), fsync(file))[1])
    workload = llama(tmp_path, fsync=True)
    takes: Work = lambda *crew: WorkloadCheckpoints(workload, *crew, writer="numpy").take(1, 0)  # noqa: E731
    first, _ = threads(2, takes)
    assert first["bytes"] > 0
    assert len(synced) == 3 + 2 + 1


def test_results_are_strict_json(tmp_path: Path) -> None:
    """Whatever was not done has no field. (Defect 19: DLIO writes NaN where no checkpoint was.)"""
    saved = ran(llama(tmp_path, num_checkpoints_write=1), writer="numpy")
    loaded = ran(llama(tmp_path, num_checkpoints_read=1), writer="numpy")
    for found, done, other in ((saved, "save", "load"), (loaded, "load", "save")):
        assert json.loads(json.dumps(found, allow_nan=False)) == found
        assert f"{done}_checkpoint_io_stdev_GB_per_second" in found["dlio"]
        assert not any(name.startswith(other) for name in found["dlio"])
    assert loaded["checkpoints"]["loads"][0]["verified"] is None
    assert dlio_metrics(Totals(1, 1, 1, 0, 1), [], []) == {}


def test_metrics() -> None:
    """GiB and seconds; the slowest rank, and in compat mode the first and the bytes DLIO counts."""
    size = Totals(2, 2, 3 << 30, 1 << 30, 2 << 30)
    saves = [{"seconds": each, "rank_seconds": [each / 2, each]} for each in (2.0, 4.0)]
    assert dlio_metrics(size, saves, []) == {
        "checkpoint_size_GB": 4.0,
        "save_checkpoint_io_mean_GB_per_second": 1.5,
        "save_checkpoint_io_stdev_GB_per_second": 0.5,
        "save_checkpoint_duration_mean_seconds": 3.0,
        "save_checkpoint_duration_stdev_seconds": 1.0,
    }
    assert dlio_metrics(size, saves, [], compat=True) == {
        "checkpoint_size_GB": 2.0,
        "save_checkpoint_io_mean_GB_per_second": 1.5,
        "save_checkpoint_io_stdev_GB_per_second": 0.5,
        "save_checkpoint_duration_mean_seconds": 1.5,
        "save_checkpoint_duration_stdev_seconds": 0.5,
    }


@pytest.mark.parametrize(
    ("given", "compat", "slept"), [(-1.0, False, 0.0), (-1.0, True, 1.0), (0.25, False, 0.25)]
)
def test_pauses(
    given: float, compat: bool, slept: float, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between checkpoints; of DLIO's default of -1 only DLIO makes a second."""
    pauses: list[float] = []
    monkeypatch.setattr(module.time, "sleep", pauses.append)
    workload = llama(tmp_path, num_checkpoints_write=3, time_between_checkpoints=given)
    ran(workload, writer="numpy", compat=compat)
    assert pauses == [slept, slept]


def test_rank_sync_is_a_barrier_inside_the_time(tmp_path: Path) -> None:
    """One more per checkpoint, and only where it is asked for."""
    met: dict[bool, int] = {}
    for sync in (False, True):
        barriers: list[None] = []
        workload = llama(tmp_path, rank_sync=sync)
        crew = SmallCrew(0, 1, lambda barriers=barriers: barriers.append(None), lambda own: [own])
        checkpoints = WorkloadCheckpoints(workload, crew, writer="numpy")
        checkpoints.take(1, 0)
        checkpoints.load(1, 0)
        met[sync] = len(barriers)
    assert met == {False: 2, True: 4}


def test_loads_come_from_the_device(tmp_path: Path) -> None:
    """A file that was just written is in memory; it is read from the device all the same."""
    if not os.major(os.stat(tmp_path).st_dev):
        pytest.skip("these files are on no block device")
    workload = llama(tmp_path, num_checkpoints_write=1, num_checkpoints_read=1)
    done = ran(workload, writer="numpy")["checkpoints"]
    assert done["loads"][0]["device_bytes"] >= done["bytes"]


def test_the_ranks_of_another_host_are_loaded(tmp_path: Path) -> None:
    """recovery_rank_shift: by as many ranks as a host has; on one host it changes nothing. Every
    file is loaded once. (In DLIO the key is dead, and would have every rank load nothing.)"""
    workload = llama(tmp_path, recovery_rank_shift=True)

    def work(crew: SmallCrew) -> tuple[int, Any]:
        found = WorkloadCheckpoints(workload, crew, writer="numpy", verify=True)
        found.take(1, 0)
        return found.loads_rank, found.load(1, 0)["verified"]

    assert threads(4, work, "aabb") == [(2, True), (3, True), (0, True), (1, True)]
    assert threads(2, work) == [(0, True), (1, True)]


# -- what is there already, and what is not ------------------------------------------------------


def test_an_earlier_checkpoint_is_replaced(tmp_path: Path) -> None:
    """Also one of more ranks, and what a killed run left; nothing of it stays."""
    workload = llama(tmp_path)
    threads(2, lambda *crew: WorkloadCheckpoints(workload, *crew, writer="numpy").take(1, 0))
    left = tmp_path / "global_epoch1_step0" / ".layer_3-model_0_model_states.npz.part"
    left.write_bytes(b"cut")
    checkpoints = opened(workload, writer="numpy", verify=True)
    checkpoints.take(1, 0)
    assert [str(tmp_path / name) for name in listed(tmp_path)] == checkpoints.paths(1, 0)
    assert checkpoints.load(1, 0)["verified"] is True


def test_what_is_no_checkpoint_is_left_alone(tmp_path: Path) -> None:
    """A folder of the same name that holds something else is not touched."""
    folder = tmp_path / "global_epoch1_step0"
    folder.mkdir()
    for name in ("mp_rank_00_model_states.pt", "model_0_model_states.pt"):
        (folder / name).write_bytes(b"precious")
    before = listed(tmp_path)
    with pytest.raises(UsageError, match="'mp_rank_00_model_states.pt', which is not of a"):
        opened(llama(tmp_path), writer="numpy").take(1, 0)
    with pytest.raises(UsageError, match="mp_rank_00_model_states"):
        ran(llama(tmp_path, num_checkpoints_write=2), writer="numpy")
    assert listed(tmp_path) == before


def test_a_missing_checkpoint(tmp_path: Path) -> None:
    """Is told on every rank, and by a run before it has written anything."""
    workload = llama(tmp_path / "none", num_checkpoints_write=1, num_checkpoints_read=2)
    work: Work = lambda *crew: WorkloadCheckpoints(workload, *crew, writer="numpy").load(1, 7)  # noqa: E731
    errors = threads(2, work)
    assert [type(error) for error in errors] == [MissingError, MissingError]
    assert "global_epoch1_step7 is not there" in str(errors[0])
    assert str(errors[1]).startswith("rank 0: ")
    with pytest.raises(MissingError, match="step1 is not there.*num_checkpoints_read=2"):
        ran(workload, writer="numpy")
    assert listed(tmp_path) == []


@pytest.mark.parametrize(("saved", "loaded"), [(1, 2), (2, 1), (4, 2)])
def test_another_number_of_ranks(saved: int, loaded: int, tmp_path: Path) -> None:
    """Is refused on every rank, with what is missing or too much."""
    workload = llama(tmp_path)
    threads(saved, lambda *crew: WorkloadCheckpoints(workload, *crew, writer="numpy").take(1, 0))
    work: Work = lambda *crew: WorkloadCheckpoints(workload, *crew, writer="numpy").load(1, 0)  # noqa: E731
    for error in threads(loaded, work):
        assert isinstance(error, StateError)
        assert f"{loaded} ranks save {loaded + 1}" in str(error)


@pytest.mark.parametrize("changed", ["scale", "dtype", "layers"])
def test_another_model(changed: str, writer: str, tmp_path: Path) -> None:
    """Other lengths, types or layers are told by the tensor, without looking at its bytes."""
    workload = llama(tmp_path)
    other = {
        "scale": workload.model,
        "dtype": replace(workload.model, model_datatype="bf16"),
        "layers": replace(workload.model, num_layers=5),
    }
    opened(workload, writer=writer).take(1, 0)
    scale = 0.5 if changed == "scale" else 1.0
    with pytest.raises(StateError, match=r"tensor '\d.\d' is .* and should be|a tensor too many"):
        opened(replace(workload, model=other[changed]), writer=writer, scale=scale).load(1, 0)


def test_another_writer(tmp_path: Path) -> None:
    """Files of another writer are not taken for a cut checkpoint of this one."""
    pytest.importorskip("torch")
    opened(llama(tmp_path), writer="numpy").take(1, 0)
    with pytest.raises(StateError, match=r"model_0_model_states.pt is missing.*another writer"):
        opened(llama(tmp_path), writer="torch").load(1, 0)


# -- damage ----------------------------------------------------------------------------------------


def test_cut_files(writer: str, tmp_path: Path) -> None:
    """Wherever they end, the file is named; nothing else escapes."""
    checkpoints = opened(llama(tmp_path), writer=writer, scale=0.01)
    checkpoints.take(1, 0)
    path = checkpoints.paths(1, 0)[1]
    data = Path(path).read_bytes()
    for end in {0, 1, 30, 100, len(data) // 3, len(data) - 23, len(data) - 22, len(data) - 1}:
        Path(path).write_bytes(data[:end])
        with pytest.raises(FormatError, match=rf"optim_states.* {end:,} bytes, cannot be loaded"):
            checkpoints.load(1, 0)


def test_a_flipped_bit_is_found(writer: str, tmp_path: Path) -> None:
    """By numpy's checksum, else by comparing; torch loads it as if nothing was. (Defect 22.)"""
    checkpoints = opened(llama(tmp_path), writer=writer, verify=True)
    checkpoints.take(1, 0)
    path = Path(checkpoints.paths(1, 0)[1])
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)
    with pytest.raises((ChangedError, FormatError), match="optim_states"):
        checkpoints.load(1, 0)
    if writer == "torch":
        with pytest.raises(ChangedError, match=r"differs from what was saved from its byte [\d,]+"):
            checkpoints.load(1, 0)


def test_the_checkpoint_of_another_step_is_found(writer: str, tmp_path: Path) -> None:
    """Contents differ from step to step, so that stale files are not taken for new ones."""
    checkpoints = opened(llama(tmp_path), writer=writer, verify=True)
    checkpoints.take(1, 0)
    checkpoints.take(1, 1)
    stale, fresh = checkpoints.paths(1, 0)[0], checkpoints.paths(1, 1)[0]
    os.replace(stale, fresh)
    with pytest.raises(ChangedError, match="step1.*from its byte 0 on"):
        checkpoints.load(1, 1)


# -- storage that fails ----------------------------------------------------------------------------


def test_short_room_is_refused_before_writing(tmp_path: Path) -> None:
    """With the bytes that are needed and free, on every rank; 15 TiB are never free here."""
    shape = replace(llama(tmp_path).model.transformer, hidden_size=25872, ffn_hidden_size=98304)
    cut = Parallelism(zero_stage=1)
    model = ModelSpec(type="transformer", num_layers=128, transformer=shape, parallelism=cut)
    workload = llama(tmp_path, model=model)
    work: Work = lambda *crew: WorkloadCheckpoints(workload, *crew, writer="numpy").take(1, 0)  # noqa: E731
    for error in threads(2, work):
        assert isinstance(error, StorageError)
        assert "bytes and" in str(error)
        assert "are free: make room there" in str(error)
    assert listed(tmp_path) == []


def test_short_room_for_all_of_a_run(mounted: Callable[[str], Path]) -> None:
    """Two of three checkpoints would fit: none is begun. What is to be replaced counts as free."""
    folder = mounted("size=7m")
    run = llama(folder, num_checkpoints_write=3)
    with pytest.raises(
        StorageError, match=r"3 checkpoints need 8,[\d,]+ bytes and 7,[\d,]+ are free"
    ):
        ran(run, writer="numpy")
    assert listed(folder) == []
    for _ in range(2):
        assert ran(llama(folder, num_checkpoints_write=2), writer="numpy")["checkpoints"]["saves"]


def test_a_model_that_memory_cannot_hold(mounted: Callable[[str], Path]) -> None:
    """Is refused before it is made, where the disk has room enough."""
    folder = mounted("size=1024t")
    model = ModelSpec(model_size_bytes=1 << 48)
    with pytest.raises(LimitError, match=r"281,474,976,710,656 bytes of memory in 1 ranks"):
        opened(llama(folder, model=model), writer="numpy").take(1, 0)
    assert listed(folder) == []


def test_a_disk_that_fills_up(writer: str, mounted: Callable[[str], Path]) -> None:
    """Nothing is left of the file, whichever part of the writer meets the end."""
    folder = mounted("size=1m")
    tensor = Tensor("0.0", "fp32", 300_000)
    file = File("a", "model", (tensor,))
    path = str(folder / "a")
    with pytest.raises(StorageError, match="No space left on device: make room there") as caught:
        make_writer(writer).save(path, CheckpointContents([file], 7, True).of(file), True)
    assert caught.value.errno == errno.ENOSPC
    assert listed(folder) == []


def test_a_file_system_that_fills_up_between_ranks(mounted: Callable[[str], Path]) -> None:
    """Whichever rank meets it, all raise it and the whole checkpoint is gone; then it goes on."""
    folder = mounted("size=64m,nr_inodes=5")  # its root, the checkpoint's folder and three files
    workload = llama(folder)
    threads(2, lambda *crew: WorkloadCheckpoints(workload, *crew, writer="numpy").take(1, 0))

    def work(*crew: Any) -> Any:
        checkpoints = WorkloadCheckpoints(workload, *crew, writer="numpy")
        try:
            checkpoints.take(1, 1)
        except StorageError as error:
            return error, checkpoints.take(1, 0)["step"]

    (folder / "global_epoch1_step0" / "model_0_model_states.npz").unlink()
    results = threads(2, work)
    assert {str(error).count("No space left on device") for error, _ in results} == {1}
    assert [step for _, step in results] == [0, 0]
    assert {name.split("/")[0] for name in listed(folder)} == {"global_epoch1_step0"}


def test_a_write_that_fails_is_an_error_on_all_ranks(writer: str, tmp_path: Path) -> None:
    """ZeRO 0: the first rank writes, and files may not be so long; the second has nothing to do."""
    workload = llama(tmp_path)
    cut = replace(workload.model, parallelism=Parallelism())
    workload = replace(workload, model=cut, checkpoint=replace(workload.checkpoint, rank_sync=True))
    with largest_file(100_000):
        errors = threads(
            2, lambda *crew: WorkloadCheckpoints(workload, *crew, writer=writer).take(1, 0)
        )
    assert [type(error) for error in errors] == [StorageError, StorageError]
    assert errors[0].errno == errno.EFBIG
    assert "File too large" in str(errors[1])
    assert str(errors[1]).startswith("rank 0: ")
    assert list(tmp_path.iterdir()) == []


def test_a_folder_that_cannot_be_written(tmp_path: Path) -> None:
    """Names the folder, and what the system says."""
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(StorageError, match="Not a directory: check the folder and its file"):
        opened(llama(tmp_path / "file" / "below"), writer="numpy").take(1, 0)
    if os.geteuid():
        tmp_path.chmod(0o500)
        with pytest.raises(StorageError, match="Permission denied"):
            opened(llama(tmp_path / "below"), writer="numpy").take(1, 0)


def test_a_save_that_is_killed(tmp_path: Path) -> None:
    """Is not taken for a checkpoint, and is replaced by the next."""
    told = (
        "from tests.bench.checkpoint_crew import alone, llama\n"
        "from penstock_bench.checkpoints.run import WorkloadCheckpoints\n"
        f"alone(lambda *crew: WorkloadCheckpoints(llama({str(tmp_path)!r}), *crew, "
        "writer='tests.bench.checkpoint_crew:Killed').take(1, 0))"
    )
    ended = warm.run([sys.executable, "-c", told], env=environ())
    assert ended.returncode == -signal.SIGKILL
    assert any(name.endswith(".part") for name in listed(tmp_path))
    checkpoints = opened(llama(tmp_path), writer="numpy", verify=True)
    with pytest.raises(StateError, match="not to its end"):
        checkpoints.load(1, 0)
    checkpoints.take(1, 0)
    assert checkpoints.load(1, 0)["verified"] is True


class Faulty(NumpyWriter):
    """Raises what no writer should."""

    def save(self, path: str, state: Any, fsync: bool) -> None:
        raise KeyError("surprise")


def test_an_error_of_ones_own_writer_stops_all_ranks(tmp_path: Path) -> None:
    """Its rank raises it as it is; the others do not wait for ever."""
    faulty: CheckpointWriter = Faulty()

    def work(crew: SmallCrew) -> Any:
        used = faulty if crew.rank == 1 else "numpy"
        return WorkloadCheckpoints(llama(tmp_path), crew, writer=used).take(1, 0)

    first, second = threads(2, work)
    assert isinstance(second, KeyError)
    assert isinstance(first, PenstockError)
    assert "rank 1: 'surprise'" in str(first)


# -- usage -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("change", "options", "said"),
    [
        ({}, {"scale": 0.0}, "scale=0.0: a part of each tensor"),
        ({}, {"scale": 1.5}, "above 0 and up to 1"),
        (
            {"checkpoint": CheckpointSpec(checkpoint_mechanism_classname="a.B")},
            {},
            "checkpoint_mechanism_classname=a.B is a class of DLIO",
        ),
        ({"storage": StorageSpec(storage_type="s3")}, {}, "storage.storage_type=s3"),
        ({"model": ModelSpec(model_size_bytes=0)}, {}, "a checkpoint of this workload is empty"),
        ({"model": ModelSpec(parallelism=Parallelism(tensor=2))}, {}, "1 rank is no multiple"),
    ],
)
def test_what_is_refused(
    change: dict[str, Any], options: dict[str, Any], said: str, tmp_path: Path
) -> None:
    """Before anything is touched."""
    with pytest.raises(UsageError, match=said):
        opened(replace(llama(tmp_path), **change), **options)
    assert listed(tmp_path) == []


def test_a_run_without_checkpoints(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="num_checkpoints_write or _read"):
        ran(llama(tmp_path))


def test_scale_is_stated(tmp_path: Path) -> None:
    """With what the whole would be; DLIO's size is of what was written."""
    whole = ran(llama(tmp_path, num_checkpoints_write=1), writer="numpy")
    small = ran(llama(tmp_path, num_checkpoints_write=1), writer="numpy", scale=0.1)
    described = small["checkpoints"]
    assert described["scale"] == 0.1
    assert described["unscaled_bytes"] == whole["checkpoints"]["bytes"]
    assert math.isclose(described["bytes"], 0.1 * described["unscaled_bytes"], rel_tol=0.001)
    assert small["dlio"]["checkpoint_size_GB"] == described["bytes"] / 2**30
