"""States on a GPU are saved with the bits that they had at the call of `save`, though the GPU is
late and the tensors change at once."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")
dcp = pytest.importorskip("torch.distributed.checkpoint")

from penstock.checkpoint import Checkpoints, load  # noqa: E402
from penstock.checkpoint.comparison import sum_samples  # noqa: E402
from penstock.checkpoint.dcp import Reader, Storage  # noqa: E402
from penstock.checkpoint.manifest import Attempt  # noqa: E402
from penstock.checkpoint.pytree import split_state  # noqa: E402
from penstock.checkpoint.staging import Cut, Staging  # noqa: E402
from tests.checkpoint.rank_threads import run_job  # noqa: E402

pytestmark = [
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device"),
    pytest.mark.filterwarnings("ignore:torch.distributed is:UserWarning"),
]

LATE = 1 << 26
"""Cycles of the GPU's clock by which its work is late: 35 ms and more."""
SIZES = [0, 1, 1000, (3 << 20) + 1, 5 << 20]


def equal(one: Any, other: Any) -> bool:
    """True if two states have the same structure and bits, wherever their tensors lie."""
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(equal(one[key], other[key]) for key in one)
    if isinstance(one, list | tuple):
        return len(one) == len(other) and all(map(equal, one, other))
    if isinstance(one, torch.Tensor):
        pair = [tensor.detach().cpu().contiguous() for tensor in (one, other)]
        a, b = (tensor.view(-1).view(torch.uint8) for tensor in pair)
        return one.dtype == other.dtype and one.shape == other.shape and torch.equal(a, b)
    return bool(one == other)


def clone(state: Any) -> Any:
    """Clone a state on its devices, in the sequence of their work."""
    if isinstance(state, dict):
        return {key: clone(value) for key, value in state.items()}
    if isinstance(state, list | tuple):
        return type(state)(map(clone, state))
    return state.detach().clone() if isinstance(state, torch.Tensor) else state


def make_network() -> torch.nn.Module:
    torch.manual_seed(0)
    network = torch.nn.Sequential(torch.nn.Linear(512, 2048), torch.nn.BatchNorm1d(2048))
    return network.to("cuda")


@contextmanager
def use_stream(kind: str) -> Iterator[None]:
    """Make the default stream the current one, or another."""
    with torch.cuda.stream(torch.cuda.Stream() if kind == "other" else None):
        yield


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "complex64", "bool", "float8_e4m3fn"])
def test_tensors_of_a_gpu(tmp_path: Path, dtype: str) -> None:
    """Tensors of any dtype, dense or not, tied or not, come back as those of a CPU do."""
    tensor = torch.arange(24, device="cuda").reshape(4, 6).to(getattr(torch, dtype))
    state = {
        "tied": [tensor, tensor.t()],
        "column": tensor[:, 1].clone()[::2],
        "scalar": tensor[1, 1],
        "expanded": tensor[:1].clone().expand(5, 6),
        "none": tensor[:0],
        "last": torch.nn.Parameter(torch.ones(3, device="cuda")),
        "channels": torch.ones(2, 3, 4, 5, device="cuda").contiguous(
            memory_format=torch.channels_last
        ),
        "cpu": torch.arange(7),
    }
    with Checkpoints(tmp_path) as checkpoints:
        checkpoints.save(1, state)
    found = load(tmp_path).state
    assert equal(found, state)
    found["tied"][0].zero_()
    assert not found["tied"][1].contiguous().view(-1).view(torch.uint8).any()


@pytest.mark.parametrize("stream", ["default", "other"])
def test_changes_before_and_after_a_save(tmp_path: Path, stream: str) -> None:
    """Each save has what was queued before it, and nothing of what was queued after it."""
    with Checkpoints(tmp_path, keep=9) as checkpoints, use_stream(stream):
        state = {
            f"{size}": torch.zeros(size, dtype=torch.int32, device="cuda").t() for size in SIZES
        }
        wanted = []
        for step in range(4):
            values = [torch.randint(1 << 30, (size,), dtype=torch.int32) for size in SIZES]
            moved = [value.to("cuda") for value in values]
            torch.cuda._sleep(LATE)
            for tensor, value in zip(state.values(), moved, strict=True):
                tensor.copy_(value)
            assert checkpoints.save(step, state)
            for tensor in state.values():
                tensor.fill_(-1)
            wanted.append(values)
        checkpoints.wait()
    for step, values in enumerate(wanted):
        assert equal(list(load(tmp_path, step).state.values()), values)


@pytest.mark.parametrize("stream", ["default", "other"])
@pytest.mark.parametrize("fused", [False, True])
def test_what_an_optimizer_owns_is_copied_behind_training(
    tmp_path: Path, stream: str, fused: bool
) -> None:
    """Parameters and moments are saved as the work before `save` leaves them, also if the GPU has
    not come to that work yet and the next step is asked for at once."""
    with Checkpoints(tmp_path, keep=9) as checkpoints, use_stream(stream):
        network = make_network()
        optimizer = torch.optim.Adam(network.parameters(), lr=0.1, fused=fused)
        checkpoints.attach(optimizer)
        x, wanted = torch.ones(4, 512, device="cuda"), []
        for step in range(5):
            torch.cuda._sleep(LATE)
            network(x).square().sum().backward()
            optimizer.step()
            state = {"model": network.state_dict(), "optimizer": optimizer.state_dict()}
            wanted.append(clone(state))
            assert checkpoints.save(step, state)
            with torch.no_grad():
                network(x)  # changes the running mean
        checkpoints.fence()
        torch.cuda.synchronize()
    for step, state in enumerate(wanted):
        assert equal(load(tmp_path, step).state, state)


def test_a_run_goes_on_with_the_same_bits(tmp_path: Path) -> None:
    """A run that loads its checkpoint takes the steps that the run went on to take."""

    def begin() -> tuple[torch.nn.Module, torch.optim.Optimizer]:
        network = make_network()
        return network, torch.optim.AdamW(network.parameters(), lr=0.1)

    def train(network: torch.nn.Module, optimizer: torch.optim.Optimizer, steps: range) -> None:
        for step in steps:
            x = torch.full((4, 512), float(step), device="cuda")
            network(x).square().sum().backward()
            optimizer.step()
            optimizer.zero_grad()

    network, optimizer = begin()
    with Checkpoints(tmp_path) as checkpoints:
        checkpoints.attach(optimizer)
        train(network, optimizer, range(3))
        checkpoints.save(3, {"model": network.state_dict(), "optimizer": optimizer.state_dict()})
        train(network, optimizer, range(3, 6))
    found = load(tmp_path)
    resumed, its_optimizer = begin()
    resumed.load_state_dict(found.state["model"])
    its_optimizer.load_state_dict(found.state["optimizer"])
    train(resumed, its_optimizer, range(3, 6))
    assert all(parameter.is_cuda for parameter in resumed.parameters())
    assert equal(resumed.state_dict(), network.state_dict())
    assert equal(its_optimizer.state_dict(), optimizer.state_dict())


def test_a_graph_is_captured_while_a_save_copies(tmp_path: Path) -> None:
    """With capture_error_mode="thread_local" a capture goes with a copy behind training: the graph
    and the save are right."""
    network = make_network()
    optimizer = torch.optim.SGD(network.parameters(), lr=0.1)
    x = torch.ones(4, 512, device="cuda")
    with Checkpoints(tmp_path) as checkpoints:
        checkpoints.attach(optimizer)
        network.eval()
        warming = torch.cuda.Stream()
        with torch.cuda.stream(warming), torch.no_grad():
            network(x)
        torch.cuda.synchronize()
        state = {"model": network.state_dict()}
        wanted = clone(state)
        torch.cuda._sleep(LATE)
        checkpoints.save(1, state)
        graph = torch.cuda.CUDAGraph()
        with torch.no_grad(), torch.cuda.graph(graph, capture_error_mode="thread_local"):
            y = network(x)
        graph.replay()
        with torch.no_grad():
            assert torch.equal(y, network(x))
    assert equal(load(tmp_path).state, wanted)


def test_samples_are_those_of_the_cpu() -> None:
    """Ranks compare the same lines of a tensor, whether it lies on a GPU or not."""
    tensors = [torch.randint(256, (size + 300_000,), dtype=torch.uint8) for size in SIZES]
    tensors.append(torch.randint(1 << 40, (1000, 900)))
    states = [[tensor.to(device) for tensor in tensors] for device in ("cpu", "cuda")]
    for state in states:
        state[-1] = state[-1][:, ::3].t()  # not dense
    attempt = Attempt("0" * 32, 1)
    sums = [sum_samples(split_state(state).blocks, 2, attempt) for state in states]
    assert sums[0] == sums[1]
    assert all(sums[0])


def test_several_ranks_save_parts(tmp_path: Path) -> None:
    """Ranks write parts of a state that each has on the GPU, and refuse one that differs."""
    wanted = {f"{size}": torch.rand(size) for size in SIZES}

    def work(checkpoints: Checkpoints, rank: int) -> None:
        with use_stream("other"):
            torch.cuda._sleep(LATE)
            state = {name: value.to("cuda") for name, value in wanted.items()}
            own = torch.full((1000,), rank, device="cuda")
            checkpoints.save(1, state, per_rank=own)
            for tensor in (*state.values(), own):
                tensor.fill_(9)
            checkpoints.wait()
            found = checkpoints.load()
            assert equal(found.state, wanted)
            assert equal(found.per_rank, torch.full((1000,), rank))
            weights = torch.full((300_000,), rank, device="cuda")
            checkpoints.save(2, {"weights": weights})
            with pytest.raises(Exception, match="different values"):
                checkpoints.wait()

    for result in run_job(tmp_path, 2, work):
        if result is not None:
            raise result


@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two GPUs")
@pytest.mark.parametrize("attached", [False, True])
def test_several_gpus(tmp_path: Path, attached: bool) -> None:
    """Tensors of GPUs that are not current in the thread that copies are waited for, too."""
    devices = range(torch.cuda.device_count())
    parameters = [torch.nn.Parameter(torch.zeros(5 << 20, device=f"cuda:{i}")) for i in devices]
    optimizer = torch.optim.SGD(parameters, lr=1.0)
    with Checkpoints(tmp_path) as checkpoints:
        if attached:
            checkpoints.attach(optimizer)
        for parameter in parameters:
            with torch.cuda.device(parameter.device):
                torch.cuda._sleep(LATE)
            parameter.grad = torch.rand_like(parameter)
        optimizer.step()
        wanted = clone(parameters)
        checkpoints.save(1, parameters)
        optimizer.step()
    assert equal(load(tmp_path).state, wanted)


def test_staging_memory_is_pinned_once() -> None:
    """The device copies by itself, to memory that is pinned for the first save and kept."""
    staging, tensor = Staging(), torch.arange(1 << 20, device="cuda")
    blocks = split_state(tensor).blocks
    for _ in range(2):
        (block,) = blocks
        staged = staging.stage(blocks, [Cut(0, 0, block.bytes)])
        assert torch.from_numpy(staged.memory).is_pinned()
        assert np.array_equal(staged.memory.view(np.int64), np.arange(1 << 20))
    memory = torch.from_numpy(staged.memory)
    staging.close()
    assert not memory.is_pinned()
    assert int(torch.ones(1, device="cuda")) == 1  # and no error is left for the next kernel


def test_memory_that_cannot_be_pinned() -> None:
    """The copy is made all the same, and the runtime's error is not left for the next kernel."""
    staging, tensor = Staging(), torch.arange(1 << 20, device="cuda")
    blocks = split_state(tensor).blocks
    memory, runtime = staging.reserve(tensor.nbytes), torch.cuda.cudart()
    assert int(runtime.cudaHostRegister(memory.ctypes.data, len(memory), 0)) == 0
    staged = staging.stage(blocks, [Cut(0, 0, tensor.nbytes)])  # pinned by somebody else
    assert int(torch.ones(1, device="cuda")) == 1
    assert np.array_equal(staged.memory.view(np.int64), np.arange(1 << 20))
    assert int(runtime.cudaHostUnregister(memory.ctypes.data)) == 0
    staging.close()
    assert int(torch.ones(1, device="cuda")) == 1


# -- torch.distributed.checkpoint ------------------------------------------------------------------


@pytest.mark.parametrize("how", ["save", "async_save"])
def test_dcp(tmp_path: Path, how: str) -> None:
    """States of DCP are saved as they were at the call, and loaded into tensors of the GPU."""
    with torch.device("cuda"):
        base = torch.arange(60.0).reshape(6, 10)
        state = {
            "columns": base[:, ::3],
            "turned": base.t(),
            "tied": [base, base],
            "scalar": torch.tensor(3.5),
            "empty": torch.empty(0, 4),
            "half": torch.arange(7).to(torch.bfloat16),
            "large": torch.zeros(5 << 20),
            "n": 7,
        }
        found = {
            key: torch.zeros_like(value).contiguous()
            for key, value in state.items()
            if isinstance(value, torch.Tensor)
        }
        found |= {"tied": [torch.zeros_like(base) for _ in range(2)], "n": 0}
    torch.cuda._sleep(LATE)
    state["large"].add_(torch.rand_like(state["large"]))
    wanted = clone(state)
    with Storage(tmp_path) as storage:
        done = getattr(dcp, how)(state, storage_writer=storage.writer(1))
        state["large"].zero_()
        if how == "async_save":
            done.result()
    dcp.load(found, storage_reader=Reader(tmp_path))
    assert found["large"].is_cuda
    assert equal(found, wanted)
