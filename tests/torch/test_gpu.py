"""Kernels give the bits of `Order`: compiled where there is a GPU, else under Triton's interpreter.

The interpreter takes a tenth of a second a program, so sizes are small and examples few.
"""

from __future__ import annotations

import os
import subprocess
import sys
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

torch = pytest.importorskip("torch")

from penstock import Order  # noqa: E402
from penstock.errors import UsageError  # noqa: E402
from penstock.torch import gpu  # noqa: E402

pytest.importorskip("triton", reason="penstock's extra gpu is not installed")
COMPILED = os.environ.get("TRITON_INTERPRET") != "1"  # see conftest.py
DEVICE = "cuda" if COMPILED else "cpu"

from benchmarks import published  # noqa: E402

from penstock.torch import feistel_triton as kernels  # noqa: E402

pytestmark = pytest.mark.filterwarnings("ignore:overflow encountered")
few = settings(max_examples=200 if COMPILED else 8)

TABLE = [1, 2, 5, 4096]
CIPHER = [4097, 5000, 2**13 + 1]
DTYPES = [
    *(torch.uint8, torch.bool, torch.int8, torch.int16, torch.float16, torch.bfloat16),
    *(torch.int32, torch.float32, torch.int64, torch.float64, torch.complex64, torch.complex128),
]

if not COMPILED:
    kernels._block = 2048  # fewer programs


def samples(n: int, seed: int, epoch: int = 0) -> Any:
    return torch.from_numpy(Order(n, seed, epoch).run(0, n).view(np.int64))


def made(n: int, shape: tuple[int, ...], dtype: Any) -> Any:
    """Random bits as a tensor; booleans are 0 and 1."""
    size = max(1, int(np.prod(shape))) * torch.empty(0, dtype=dtype).element_size()
    values = np.random.default_rng(n + size).integers(
        0, 2 if dtype == torch.bool else 256, n * size
    )
    tensor = torch.from_numpy(values.astype(np.uint8)).view(dtype).reshape(n, *shape)
    return tensor.to(DEVICE)


def bits(tensor: Any) -> bytes:
    flat = torch.cat([tensor.cpu().reshape(-1)])  # new: one element alone may have any stride
    return bytes(flat.view(torch.uint8).numpy().tobytes())


# -- the order -------------------------------------------------------------------------------


@pytest.mark.parametrize("n", [*TABLE, *CIPHER, *([2**20 + 1, 2**27 + 1] if COMPILED else [])])
def test_permutation_and_inverse_equal_the_order(n: int) -> None:
    order = Order(n, 2**63 + 5, 3)
    found = gpu.permutation(n, 2**63 + 5, 3, device=DEVICE)
    assert found.dtype == torch.int64
    assert np.array_equal(found.cpu().numpy().view(np.uint64), order.run(0, n))
    back = gpu.inverse(n, 2**63 + 5, 3, device=DEVICE)
    every = torch.arange(n, device=DEVICE)
    assert torch.equal(found[back], every)
    assert torch.equal(gpu.permutation(n, 2**63 + 5, 3, device=DEVICE, dtype=torch.int32), found)


@pytest.mark.parametrize(
    "n", [2**31 - 1, 2**31 + 1, 2**32 - 5, 2**32, 2**32 + 1, 2**33 + 1, 2**40 + 1, 2**62]
)
@pytest.mark.parametrize("inverse", [False, True])
def test_counts_beyond_32_bits(n: int, inverse: bool) -> None:
    """Parts of orders that no memory holds: at the start, across 2^32, at the end."""
    order = Order(n, 42)
    of = kernels.make_cipher(order, torch.device(DEVICE), inverse)
    out = torch.empty(300, dtype=torch.int64, device=DEVICE)
    for start, step in [(0, 1), (min(n - 300, 2**32 - 150), 1), (n - 300, 1), (1, n // 300)]:
        where = range(start, start + 299 * step + 1, step)
        kernels.compute_indices(of, where, out, inverse)
        positions = np.array(where, np.uint64)
        want = order.positions(positions) if inverse else order.samples(positions)
        assert np.array_equal(out.cpu().numpy().view(np.uint64), want)


def test_golden_values() -> None:
    """The recorded samples of 1,281,167 at five positions, by keys drawn from state 42."""
    from tests.order.feistel_numpy import Permutation

    drawn = Permutation(1_281_167, 42)
    words = (1_281_166, drawn.left_count, drawn.right_bits, *drawn.keys.view(np.int32).tolist())
    of = kernels.Cipher(words, False, torch.empty(0, dtype=torch.int64, device=DEVICE), False)
    out = torch.empty(3, dtype=torch.int64, device=DEVICE)
    kernels.compute_indices(of, range(3), out)
    assert out.tolist() == [1008599, 837175, 1164390]


def test_values_that_walk_far_come_back() -> None:
    """A domain four times the count, so that most values go round the loop, some often."""
    from tests.order.feistel_numpy import Permutation

    drawn = Permutation(60, 9, cipher=True)  # its domain is 256
    words = (59, drawn.left_count, drawn.right_bits, *drawn.keys.view(np.int32).tolist())
    of = kernels.Cipher(words, False, torch.empty(0, dtype=torch.int64, device=DEVICE), False)
    out = torch.empty(60, dtype=torch.int64, device=DEVICE)
    kernels.compute_indices(of, range(60), out)
    want = np.empty(60, np.uint64)
    drawn.run(0, want)
    assert out.tolist() == want.tolist()


# -- rows ------------------------------------------------------------------------------------


@few
@given(
    n=st.sampled_from([*TABLE, *CIPHER]),
    shape=st.sampled_from([(), (1,), (2,), (3,), (2, 2), (5,), (16,), (33,)]),
    dtype=st.sampled_from(DTYPES),
    seed=st.integers(0, 2**64 - 1),
    epoch=st.integers(0, 2),
)
def test_shuffle_and_take(
    n: int, shape: tuple[int, ...], dtype: Any, seed: int, epoch: int
) -> None:
    x = made(n, shape, dtype)
    want = x[samples(n, seed, epoch).to(DEVICE)]
    found = gpu.shuffle(x, seed, epoch)
    assert (found.shape, found.dtype, found.device) == (x.shape, x.dtype, x.device)
    assert bits(found) == bits(want)
    chosen = torch.arange(n - 1, -1, -max(1, n // 7), device=DEVICE)
    assert bits(gpu.take(x, chosen, seed, epoch)) == bits(want[chosen])
    every_third = range(n // 3, n, 3)
    assert bits(gpu.take(x, every_third, seed, epoch)) == bits(want[n // 3 :: 3])


@pytest.mark.parametrize("bytes_", [100, 128, 512, 2048, 20_000, 40_008])
def test_wide_rows(bytes_: int) -> None:
    """Rows of several tiles, and of part of one; more rows than a program has."""
    x = made(70, (bytes_,), torch.uint8)
    assert bits(gpu.shuffle(x, 1)) == bits(x[samples(70, 1).to(DEVICE)])


@pytest.mark.parametrize("offset", [0, 1, 2, 4, 8])
def test_memory_that_is_aligned_to_less_than_a_word(offset: int) -> None:
    memory = made(1, (1016 + 16,), torch.uint8)[0]
    x = memory[offset : offset + 1016].view(127, 8)
    assert torch.equal(gpu.shuffle(x, 1), x[samples(127, 1).to(DEVICE)])


# -- what is given ---------------------------------------------------------------------------


def test_tensors_that_are_not_contiguous_or_overlap_themselves() -> None:
    base = made(40, (6,), torch.int32)
    one = base[:, 3][5:6]  # of one element, with a stride of its own
    for x in (base[::2], base[:, ::2], base.t(), base[:1].expand(9, 6), one):
        assert torch.equal(gpu.shuffle(x, 1), x[samples(len(x), 1).to(DEVICE)])
    unfolded = base.reshape(-1).unfold(0, 4, 1)
    assert torch.equal(gpu.shuffle(unfolded, 1), unfolded[samples(len(unfolded), 1).to(DEVICE)])


@pytest.mark.parametrize("by", [-7, 0, 3])
def test_out_may_overlap(by: int) -> None:
    memory = torch.arange(220, device=DEVICE)
    x, out = memory[10:210], memory[10 + by : 210 + by]
    want = x[samples(200, 5).to(DEVICE)]
    assert gpu.shuffle(x, 5, out=out) is out
    assert torch.equal(out, want)


@pytest.mark.parametrize("shape", [(0,), (0, 3), (4, 0), (1,), (1, 2)])
def test_tensors_of_nothing_and_of_one(shape: tuple[int, ...]) -> None:
    x = torch.ones(shape, device=DEVICE)
    assert torch.equal(gpu.shuffle(x, 1), x)
    assert gpu.take(x, range(0), 1).shape == (0, *shape[1:])


def test_no_gradient_and_conjugates_resolved() -> None:
    x = torch.randn(20, dtype=torch.complex64, device=DEVICE)
    where = samples(20, 1).to(DEVICE)
    assert torch.equal(gpu.shuffle(x.conj(), 1), x.conj()[where])
    found = gpu.shuffle(torch.ones(5, device=DEVICE, requires_grad=True), 1)
    assert not found.requires_grad


@pytest.mark.parametrize(
    ("call", "says"),
    [
        (lambda x: gpu.shuffle(x.cpu().numpy(), 1), "ndarray"),
        (lambda x: gpu.shuffle(x[0], 1), "dimension"),
        (lambda x: gpu.shuffle(x.to_sparse(), 1), "sparse"),
        (lambda x: gpu.shuffle(x, -1), "seed"),
        (lambda x: gpu.shuffle(x, 1, 2**64), "epoch"),
        (lambda x: gpu.shuffle(x, 1, out=x[:5]), "shape, dtype, device"),
        (lambda x: gpu.shuffle(x, 1, out=x.double()), "float64"),
        (lambda x: gpu.shuffle(x, 1, out=torch.zeros(20, device=DEVICE)[::2]), "contiguous"),
        (lambda x: gpu.shuffle(x, 1, out=[0] * 10), "list"),
        (lambda x: gpu.take(x, range(5, 11), 1), "10 are outside"),
        (lambda x: gpu.take(x, range(3, -2, -1), 1), "-1..3 are outside"),
        (lambda x: gpu.take(x, torch.tensor([0, 10]), 1), "0..10 are outside"),
        (lambda x: gpu.take(x, torch.tensor([-1, 0]), 1), "-1..0 are outside"),
        (lambda x: gpu.take(x, torch.tensor([0.5]), 1), "float32"),
        (lambda x: gpu.take(x, [0, 1], 1), "list"),
        (lambda x: gpu.take(x[:0], range(1), 1), "outside"),
        (lambda x: gpu.permutation(0, 1), "count"),
        (lambda x: gpu.permutation(10, 1, dtype=torch.float32), "float32"),
        (lambda x: gpu.permutation(2**31 + 1, 1, dtype=torch.int32), "int32"),
        (lambda x: gpu.shuffle(torch.empty(3, device="meta"), 1), "meta"),
    ],
)
def test_wrong_arguments_are_refused(call: Any, says: str) -> None:
    # "count" for n: it is Order's own message
    with pytest.raises(UsageError, match=says):
        call(made(10, (), torch.float32).reshape(10))


def test_positions_may_lie_on_the_cpu() -> None:
    x = torch.arange(50, device=DEVICE)
    chosen = torch.tensor([3, 1, 3])
    assert torch.equal(gpu.take(x, chosen, 1), x[samples(50, 1).to(DEVICE)][chosen.to(DEVICE)])


# -- without Triton --------------------------------------------------------------------------


def test_the_cpu_needs_no_triton_and_gives_the_same() -> None:
    """In a process where Triton cannot be imported: the CPU is served, a GPU is refused."""
    program = """
import sys
sys.modules["triton"] = None
import torch
from penstock import Order
from penstock.errors import UsageError
from penstock.torch import gpu
x = torch.arange(9000, dtype=torch.bfloat16).reshape(3000, 3)
where = torch.from_numpy(Order(3000, 7, 1).run(0, 3000).astype("int64"))
assert torch.equal(gpu.shuffle(x, 7, 1), x[where])
assert torch.equal(gpu.permutation(3000, 7, 1), where)
assert torch.equal(gpu.inverse(3000, 7, 1)[where], torch.arange(3000))
assert torch.equal(gpu.take(x, range(1, 3000, 5), 7, 1), x[where][1::5])
assert torch.equal(gpu.take(x, torch.tensor([4, 2]), 7, 1), x[where][[4, 2]])
assert "triton" not in sys.modules or sys.modules["triton"] is None
try:
    gpu._find_kernels(torch.device("cuda"))
except UsageError as error:
    assert "penstock[gpu]" in str(error), error
else:
    raise AssertionError
assert not gpu.is_available(torch.device("cuda"))
"""
    environment = {k: v for k, v in os.environ.items() if k != "TRITON_INTERPRET"}
    subprocess.run([sys.executable, "-c", program], check=True, env=environment, timeout=100)


# -- the compiler ----------------------------------------------------------------------------

COMPILE = """
import re, sys
import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource
from penstock.torch import feistel_triton as kernels

cipher = dict.fromkeys(["last", "a", "bits", *(f"k{r}" for r in range(8))], "i32")
scalars = {**dict.fromkeys(["start", "step", "size"], "i32"), **cipher}
pointers = dict.fromkeys(["x", "out", "positions", "table"], "*i64")

def code(kernel, wide=False, **fixed):
    names = kernel.arg_names
    types = {**scalars, **pointers} | ({"last": "i64"} if wide else {})
    signature = {name: types.get(name, "constexpr") for name in names}
    constants = {(names.index(name),): value for name, value in fixed.items()}
    aligned = {(i,): [["tt.divisibility", 16]] for i, name in enumerate(names) if name in pointers}
    source = ASTSource(kernel, signature, constants, aligned)
    target = GPUTarget("cuda", 90, 32)
    return triton.compile(source, target=target, options={"sanitize_overflow": False}).asm["ptx"]

for wide in (False, True):
    code(kernels._write_indices, wide, TABLE=False, INVERSE=wide, WIDE=wide, BLOCK=512)
rows = dict(LISTED=False, TABLE=False, WIDE=False)
moved = code(kernels._gather_rows, **rows, WORDS=16, ROWS=128, COLUMNS=16)
wide_moves = r"\\.(v2\\.b64|v4\\.b32)"
assert re.search(r"ld\\.global[.:\\w]*" + wide_moves, moved), "no loads of 16 bytes"
assert re.search(r"st\\.global[.:\\w]*" + wide_moves, moved), "no stores of 16 bytes"
code(kernels._gather_rows, **rows, WORDS=1, ROWS=512, COLUMNS=1)
"""


def test_kernels_compile_for_a_gpu_that_is_not_there(tmp_path: Any) -> None:
    """Triton's compiler takes them to machine code of compute capability 9.0, on any machine; rows
    are moved by 16 bytes a thread. They are not run."""
    program = tmp_path / "compile.py"
    program.write_text(COMPILE)
    environment = {k: v for k, v in os.environ.items() if k != "TRITON_INTERPRET"}
    environment["TRITON_CACHE_DIR"] = str(tmp_path / "cache")
    subprocess.run([sys.executable, program], check=True, env=environment, timeout=110)


# -- the yardstick ---------------------------------------------------------------------------


def test_published_golden_values() -> None:
    assert published.oracle(10, 42) == [5, 4, 3, 2, 7, 1, 8, 9, 0, 6]


@pytest.mark.parametrize("n", [1, 10, 256, 257, 2049, 5000])
def test_published_scheme_equals_its_oracle(n: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(published, "BLOCK", 128 if n < 300 else 2048)
    x = torch.arange(n, device=DEVICE) * 3
    out = torch.zeros_like(x)
    published.shuffle(x, 42, out)
    assert out.tolist() == [3 * i for i in published.oracle(n, 42)]
