"""torch.distributed.checkpoint with penstock's repository: every state that DCP's own storage
loads, ours loads, and states that DCP's storage loses, ours keeps."""

from __future__ import annotations

import io
import itertools
import json
import os
import signal
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.checkpoint import Checkpoints, background
from penstock.checkpoint.loading import verify_checkpoint
from penstock.checkpoint.repository import Folder
from penstock.checkpoint.staging import divide_blocks
from penstock.errors import FormatError, MissingError, StorageError, UsageError

torch = pytest.importorskip("torch")
dcp = pytest.importorskip("torch.distributed.checkpoint")
if not torch.distributed.is_available():
    pytest.skip("this torch has no torch.distributed", allow_module_level=True)

from torch.distributed.checkpoint.api import CheckpointException  # noqa: E402

from penstock.checkpoint.dcp import Reader, Storage  # noqa: E402
from tests import warm  # noqa: E402
from tests.checkpoint import dcp_programs as checkpoint_dcp  # noqa: E402
from tests.slices import first, thinned  # noqa: E402

pytestmark = pytest.mark.filterwarnings("ignore:torch.distributed is:UserWarning")

RESHARDED = [(2, 1), (1, 2), (2, 3), (4, 2)]
OTHER_JOBS = [
    *("stock:stock:2", "replicated:replicated:4", "again:again:2"),
    *("killed:killed:2", "refused:refused:2", "unequal:unequal:3"),
]


class Jobs:
    """The files that all jobs left, and the reports of their ranks."""

    def __init__(self, folder: Path, names: Sequence[str]) -> None:
        self.folder = folder
        done = warm.run(
            [sys.executable, checkpoint_dcp.__file__, str(folder), *names],
            capture_output=True,
            text=True,
            check=False,
            env={**os.environ, "OMP_NUM_THREADS": "1"},
        )
        assert done.returncode == 0, done.stderr
        self.said = dict(zip(names, json.loads(done.stdout), strict=True))


@pytest.fixture(scope="module")
def jobs(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Jobs:
    """All jobs of the tests that were chosen, in one start of their program."""
    folder = tmp_path_factory.mktemp("jobs")
    (folder / "stock").mkdir()
    chosen = [
        (item.callspec.params["saved"], item.callspec.params["loaded"])
        for item in request.session.items
        if isinstance(item, pytest.Function) and item.function is test_another_number_of_ranks
    ]
    resharded = [f"{what}:{a}-{b}:{n}" for a, b in chosen for what, n in (("save", a), ("load", b))]
    return Jobs(folder, [*resharded, *OTHER_JOBS])


@given(
    st.integers(1, 6).flatmap(
        lambda count: st.tuples(
            st.just(count),
            st.lists(
                st.tuples(
                    st.integers(0, 500),
                    st.sets(st.integers(0, count - 1), min_size=1).map(sorted),
                ),
                max_size=25,
            ),
        )
    ),
    st.integers(1, 100),
)
def test_every_byte_is_dealt_once_to_who_has_it(
    given_: tuple[int, list[tuple[int, list[int]]]], piece_bytes: int
) -> None:
    count, blocks = given_
    sizes, holders = [size for size, _ in blocks], [having for _, having in blocks]
    shares = divide_blocks(sizes, count, piece_bytes, holders=holders)
    assert len(shares) == count
    for rank, cuts in enumerate(shares):
        assert all(rank in holders[cut.block] for cut in cuts)
    covered = [
        (cut.block, at)
        for cut in sorted(cut for cuts in shares for cut in cuts)
        for at in range(cut.start, cut.stop)
    ]
    assert covered == [(block, at) for block, size in enumerate(sizes) for at in range(size)]
    if all(len(having) == count for having in holders):
        loads = [sum(cut.bytes for cut in cuts) for cuts in shares]
        assert count == 1 or max(loads) - min(loads) <= piece_bytes


# -- round trips -----------------------------------------------------------------------------------


def model() -> Any:
    """Make a model that was trained for a step, and its optimizer."""
    torch.manual_seed(0)
    layers = torch.nn.Sequential(torch.nn.Linear(30, 40), torch.nn.Linear(40, 3).double())
    optimizer = torch.optim.Adam(layers.parameters())
    for each in layers.parameters():
        each.grad = torch.ones_like(each)
    optimizer.step()
    return layers, optimizer


def flat(value: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    if isinstance(value, dict):
        for key, each in value.items():
            yield from flat(each, f"{path}.{key}")
    elif isinstance(value, (list, tuple)):
        for i, each in enumerate(value):
            yield from flat(each, f"{path}.{i}")
    else:
        yield path, value


def equal(a: Any, b: Any) -> bool:
    left, right = dict(flat(a)), dict(flat(b))
    return left.keys() == right.keys() and all(
        torch.equal(value, right[key]) and value.dtype == right[key].dtype
        if isinstance(value, torch.Tensor)
        else value == right[key]
        for key, value in left.items()
    )


def odd() -> dict[str, Any]:
    """Make tensors of all sorts: views, not contiguous, tied, empty, of all widths; and other
    values."""
    base = torch.arange(60.0).reshape(6, 10)
    return {
        "columns": base[:, ::3],
        "turned": base.t(),
        "view": base[2:4],
        "tied": [base, base],
        "scalar": torch.tensor(3.5),
        "empty": torch.empty(0, 4),
        "bits": torch.tensor([True, False, True]),
        "half": torch.arange(7).to(torch.bfloat16),
        "complex": torch.tensor([1 + 2j, 3 - 1j]).conj(),
        "long": torch.arange(5),
        "n": 7,
        "x": 1.5,
        "text": "words",
        "nothing": None,
        "nested": {"deep": [torch.ones(2), {"er": torch.zeros(3)}, 4]},
    }


def zeros(value: Any) -> Any:
    """Make the same state of zeros, to load into."""
    if isinstance(value, dict):
        return {key: zeros(each) for key, each in value.items()}
    if isinstance(value, (list, tuple)):
        return type(value)(zeros(each) for each in value)
    return torch.zeros_like(value).contiguous() if isinstance(value, torch.Tensor) else 0


@pytest.mark.parametrize("how", ["save", "async_save"])
def test_loads_what_the_stock_storage_loads(tmp_path: Path, how: str) -> None:
    layers, optimizer = model()
    state = {"model": layers.state_dict(), "optimizer": optimizer.state_dict(), "odd": odd()}
    theirs, ours = zeros(state), zeros(state)
    dcp.save(state, storage_writer=dcp.FileSystemWriter(tmp_path / "theirs"))
    dcp.load(theirs, storage_reader=dcp.FileSystemReader(tmp_path / "theirs"))
    with Storage(tmp_path / "ours") as storage:
        done = getattr(dcp, how)(state, storage_writer=storage.writer(1, loader={"at": 3}))
        if how == "async_save":
            done.result()
    reader = Reader(tmp_path / "ours")
    dcp.load(ours, storage_reader=reader)
    assert (reader.step, reader.loader) == (1, {"at": 3})
    assert equal(ours, theirs)
    assert equal(ours, state)


def test_what_was_staged_is_saved(tmp_path: Path) -> None:
    """The saved state is the staged one, although the optimizer steps on during one save after the
    other."""
    layers, optimizer = model()
    wanted = {}
    with Storage(tmp_path, keep=9) as storage:
        for step in range(4):
            state = {"model": layers.state_dict(), "optimizer": optimizer.state_dict()}
            wanted[step] = torch.load(_pickled(state))
            dcp.async_save(state, storage_writer=storage.writer(step))
            optimizer.step()
    assert [entry.step for entry in Folder(tmp_path).entries()] == [0, 1, 2, 3]
    for step, state in wanted.items():
        found = zeros(state)
        dcp.load(found, storage_reader=Reader(tmp_path, step))
        assert equal(found, state)


def _pickled(state: Any) -> io.BytesIO:
    file = io.BytesIO()
    torch.save(state, file)
    file.seek(0)
    return file


def test_is_copied_once(tmp_path: Path) -> None:
    """A staged state is written from where it lies."""
    state = {f"w{i}": torch.full((500_000,), float(i)) for i in range(9)} | {"n": 3}
    with Storage(tmp_path) as storage:
        for step in (1, 2):
            state["w3"].fill_(step)
            dcp.async_save(state, storage_writer=storage.writer(step)).result()
        assert 18e6 < storage.bytes < 20e6
    found = zeros(state)
    dcp.load(found, storage_reader=Reader(tmp_path))
    assert equal(found, state)


@pytest.mark.parametrize("size", [10, 300_000])
def test_what_is_no_tensor_has_any_size(tmp_path: Path, size: int) -> None:
    """Values that are no tensors may have any size: a few lie behind the staged tensors; for many
    there is no room."""
    state = {"text": "x" * size * 4, "w": torch.arange(size), "v": torch.ones(3)}
    with Storage(tmp_path) as storage:
        for step in (1, 2):
            dcp.async_save(state, storage_writer=storage.writer(step, loader={"at": state["w"]}))
    found = zeros(state)
    dcp.load(found, storage_reader=Reader(tmp_path))
    assert equal(found, state)
    assert torch.equal(Reader(tmp_path).loader["at"], state["w"])


def test_the_loader_goes_with_it(tmp_path: Path) -> None:
    """The loader's state is copied when the writer is made, arrays and all."""
    place = {"mixture": np.arange(6).reshape(2, 3), "tensor": torch.ones(3), "at": 5}
    with Storage(tmp_path) as storage:
        writer = storage.writer(1, loader=place)
        place["mixture"][:] = 9
        place["at"] = 6
        dcp.save({"loader": torch.ones(2)}, storage_writer=writer)
    found = Reader(tmp_path).loader
    assert np.array_equal(found["mixture"], np.arange(6).reshape(2, 3))
    assert torch.equal(found["tensor"], torch.ones(3))
    assert found["at"] == 5


@pytest.mark.long
@pytest.mark.parametrize(("saved", "loaded"), first(1, RESHARDED))
def test_another_number_of_ranks(jobs: Jobs, saved: int, loaded: int) -> None:
    expected = [[True, {"at": 1}], [True, {"at": 2}]]
    assert jobs.said[f"load:{saved}-{loaded}:{loaded}"] == [expected] * loaded
    place = Folder(jobs.folder / f"{saved}-{loaded}")
    assert [verify_checkpoint(place, entry) > 0 for entry in place.entries()] == [True, True]
    assert place.leftovers() == []


@pytest.mark.long
def test_ranks_load_what_the_stock_storage_loads(jobs: Jobs) -> None:
    assert jobs.said["stock:stock:2"] == [[True, True, True]] * 2


def test_replicated_is_written_once_by_all(jobs: Jobs) -> None:
    """Ranks share the writing of replicated tensors, also if most of the state is one tensor."""
    assert jobs.said["replicated:replicated:4"] == [True] * 4
    place = Folder(jobs.folder / "replicated")
    written = [shard.bytes for shard in place.read_index(place.entry()).shards]
    one = 4 * (40 * 1000 + (9 << 20))
    assert one <= sum(written) <= one * 1.01
    assert max(written) - min(written) <= 8 << 20


def test_ranks_with_other_values(jobs: Jobs) -> None:
    """A large tensor that differs is an error that names it and the ranks, whether it is staged or
    not; small values are the first rank's."""
    for said, last, mean, number in jobs.said["unequal:unequal:3"]:
        assert len(said) == 2
        assert all(
            "step" in each and "large of ranks 1, 2 differ from rank 0" in each for each in said
        )
        assert last == (1 << 17) - 1
        assert mean == [0] * 8
        assert number == 0


def test_a_planner_that_keeps_plans(jobs: Jobs) -> None:
    assert jobs.said["again:again:2"] == [[True, True]] * 2


# -- faults ----------------------------------------------------------------------------------------


def saved(folder: Path, *steps: int) -> None:
    with Storage(folder) as storage:
        for step in steps:
            state = {"a": torch.arange(20) + step, "b": torch.ones(7), "n": step}
            dcp.save(state, storage_writer=storage.writer(step, loader={"at": step}))


def loaded(folder: Path, step: int | None = None) -> int:
    """Load a checkpoint, check that it is whole, and return its step."""
    state = {"a": torch.zeros(20, dtype=torch.int64), "b": torch.zeros(7), "n": 0}
    reader = Reader(folder, step)
    try:
        dcp.load(state, storage_reader=reader)
    except CheckpointException as error:
        raise error.failures[0][0] from None
    assert torch.equal(state["a"], torch.arange(20) + reader.step)
    assert torch.equal(state["b"], torch.ones(7))
    assert state["n"] == reader.loader["at"] == reader.step
    return reader.step


@pytest.mark.wide
@pytest.mark.parametrize("name", ["index", "rank-0.shard"])
@pytest.mark.parametrize("how", ["altered", "cut"])
def test_damage_at_any_byte(tmp_path: Path, name: str, how: str) -> None:
    saved(tmp_path, 5)
    path = Path(Folder(tmp_path).entry().path) / name
    whole = path.read_bytes()
    for at in thinned(range(0, len(whole), 7)):
        if how == "cut":
            path.write_bytes(whole[:at])
        else:
            path.write_bytes(whole[:at] + bytes([whole[at] ^ (1 << at % 8)]) + whole[at + 1 :])
        with pytest.raises(FormatError, match=name):
            loaded(tmp_path)
    path.write_bytes(bytes([whole[0] ^ 1]) + whole[1:])
    with pytest.raises(FormatError, match=r"index is damaged|rank-0.shard is damaged: piece 'a'"):
        loaded(tmp_path)


def test_the_one_before_is_offered(tmp_path: Path) -> None:
    saved(tmp_path, 5, 6)
    shard = Path(Folder(tmp_path).entry(6).path) / "rank-0.shard"
    shard.write_bytes(b"x" + shard.read_bytes()[1:])
    with pytest.raises(FormatError, match=r"piece 'a' .* The checkpoint before it is of step 5"):
        loaded(tmp_path)
    assert loaded(tmp_path, 5) == 5
    shard.unlink()
    with pytest.raises(MissingError, match=r"is not there.*The checkpoint before it is of step 5"):
        loaded(tmp_path)


def test_a_failed_write_is_not_a_checkpoint(small_disk: Path) -> None:
    """A failed write is never committed; DCP's own writer may leave out the data that its threads
    could not write."""
    saved(small_disk, 1)
    with Storage(small_disk) as storage:
        large = {f"t{i}": torch.ones(10_000) for i in range(8)}
        future = dcp.async_save(large, storage_writer=storage.writer(2))
        with pytest.raises(CheckpointException) as raised:
            future.result()
        assert isinstance(raised.value.failures[0][0], StorageError)
        assert "No space left on device" in str(raised.value)
        assert {path.parent.name for path in small_disk.glob("step*/*")} == {"step-1.1"}
        with pytest.warns(RuntimeWarning, match="step 2 was not committed"):
            writer = storage.writer(3)
        assert [path.name for path in small_disk.glob("step*")] == ["step-1.1"]
        dcp.save({"n": torch.ones(2)}, storage_writer=writer)
    assert [entry.step for entry in Folder(small_disk).entries()] == [1, 3]
    assert loaded(small_disk, 1) == 1


def test_a_rank_that_cannot_write(jobs: Jobs) -> None:
    said = jobs.said["refused:refused:2"]
    assert said == [[True, [".lock", "step-1.1", "step-3.2"]]] * 2


@pytest.mark.long
def test_killed_at_every_boundary(tmp_path: Path) -> None:
    """A kill leaves one checkpoint or the other, never a mixture, also while a step is saved that
    exists already."""
    at = 0
    while True:
        folder = tmp_path / str(at)
        saved(folder, 1, 2)
        pid = os.fork()
        if pid == 0:
            passed = itertools.count()

            def watcher(_: str, passed: Iterator[int] = passed, at: int = at) -> None:
                if next(passed) == at:
                    os.kill(os.getpid(), signal.SIGKILL)

            try:
                with Storage(folder, keep=2) as storage:
                    background.watcher = watcher
                    state = {"a": torch.arange(20) + 2, "b": torch.ones(7), "n": 2}
                    dcp.save(state, storage_writer=storage.writer(2, loader={"at": 2}))
                os._exit(0)
            finally:
                os._exit(1)
        status = os.waitpid(pid, 0)[1]
        assert loaded(folder) == 2
        saved(folder, 3)
        assert loaded(folder) == 3
        assert Folder(folder).leftovers() == []
        if not os.WIFSIGNALED(status):
            assert status == 0
            assert at > 12
            return
        at += 1


def test_a_rank_that_is_killed(jobs: Jobs) -> None:
    folder = jobs.folder / "killed"
    assert jobs.said["killed:killed:2"] == ["heard", "ended with 9"]
    assert [entry.step for entry in Folder(folder).entries()] == [1]
    state = {"model": zeros(checkpoint_dcp.whole(1)), "step": 0, "list": [0, torch.zeros(3)]}
    dcp.load(state, storage_reader=Reader(folder))
    assert checkpoint_dcp.same(state, 1)


@pytest.mark.long
@pytest.mark.parametrize("victim", [0, 1])
def test_a_rank_killed_at_every_boundary(tmp_path: Path, victim: int) -> None:
    names = [f"killed_at:{victim}-{at}:2" for at in range(30)]
    jobs = Jobs(tmp_path, names)
    dead = [name for name in names if "ended with 9" in jobs.said[name]]
    assert (12, 5)[victim] < len(dead) < len(names)
    for name in names:
        folder = tmp_path / name.split(":")[1]
        said = [each for each in jobs.said[name] if each != "ended with 9"]
        state = {"model": zeros(checkpoint_dcp.whole(1)), "step": 0, "list": [0, torch.zeros(3)]}
        reader = Reader(folder)
        dcp.load(state, storage_reader=reader)
        assert reader.step in ([1, 2] if name in dead else [2])
        assert reader.step == 2 or "committed" not in said
        assert checkpoint_dcp.same(state, reader.step)
        assert reader.loader == {"at": reader.step}
        saved(folder, 3)
        assert loaded(folder) == 3
        assert Folder(folder).leftovers() == []


def test_one_job_at_a_time(tmp_path: Path) -> None:
    with (
        Checkpoints(tmp_path),
        Storage(tmp_path) as storage,
        pytest.raises(CheckpointException, match="written by another job"),
    ):
        dcp.save({"n": torch.ones(2)}, storage_writer=storage.writer(1))


def test_what_is_no_tensor_runs_no_code(tmp_path: Path) -> None:
    """Values that DCP pickles are loaded only if they are harmless, unless `trusted`."""
    with Storage(tmp_path) as storage:
        dcp.save({"where": Path("x")}, storage_writer=storage.writer(1))
    with pytest.raises(CheckpointException, match="'where' in .* is no tensor"):
        dcp.load({"where": None}, storage_reader=Reader(tmp_path))
    state = {"where": None}
    dcp.load(state, storage_reader=Reader(tmp_path, trusted=True))
    assert state == {"where": Path("x")}


def test_misuse(tmp_path: Path) -> None:
    state = {"n": torch.ones(2)}
    with pytest.raises(UsageError, match="keep is 1"):
        Storage(tmp_path, keep=1)
    with Storage(tmp_path) as storage:
        with pytest.raises(UsageError, match="step is -1"):
            storage.writer(-1)
        writer = storage.writer(1)
        with pytest.raises(UsageError, match="leave it out; give the step"):
            dcp.save(state, storage_writer=writer, checkpoint_id="x")
        dcp.save(state, storage_writer=writer)
        with pytest.raises(CheckpointException, match="this writer has saved"):
            dcp.save(state, storage_writer=writer)
        with pytest.raises(UsageError, match=r"state.sparse|sparse is a Tensor"):
            dcp.async_save({"sparse": torch.eye(3).to_sparse()}, storage_writer=storage.writer(2))
        dcp.save(state, storage_writer=storage.writer(3))
    with pytest.raises(MissingError, match="has no checkpoint of step 2: it has 1, 3"):
        Reader(tmp_path, 2)
    with Checkpoints(tmp_path) as checkpoints:
        checkpoints.save(4, {"n": 1})
        checkpoints.wait()
        with pytest.raises(FormatError, match="of kind 'state', not 'dcp'"):
            Reader(tmp_path)
        with pytest.raises(FormatError, match="of kind 'dcp'"):
            checkpoints.load(3)
