"""What a wheel has to do where nothing but numpy is installed; run by the Python that has it.

`python smoke.py GOLDENS [old-kernel | no-ring]` prints one JSON object: the instruction sets whose
orders were compared, and how data was read. It imports the standard library, numpy and penstock.
GOLDENS is a JSON file of recorded values; an assertion fails where something is not as recorded.
"""

from __future__ import annotations

import ctypes
import errno
import json
import os
import platform
import shutil
import struct
import sys
import tarfile
import tempfile
import time
import zlib
from pathlib import Path
from typing import Any

STARTED = time.monotonic()

EMULATED = os.environ.get("PENSTOCK_EMULATED", "")
"""What the processor has that an emulator pretends to be; "" on a real one."""

FILES, RECORDS, RECORD_BYTES = 60, 512, 4096


def forbid(kind: str) -> None:
    """Have the kernel answer system calls as older ones do, from now on.

    "old-kernel": ENOSYS for all that came after Linux 5.0 (io_uring, pidfd_open, clone3, ...), as
    on RHEL 8. "no-ring": EPERM for io_uring alone, as in containers with Docker's profile.
    """
    first, last, answer = {
        "old-kernel": (424, 0xFFFF, errno.ENOSYS),
        "no-ring": (425, 427, errno.EPERM),
    }[kind]
    load, at_least, above, back = 0x20, 0x35, 0x25, 0x06  # opcodes of classic BPF
    program = [
        (load, 0, 0, 0),  # the number of the call
        (at_least, 0, 2, first),
        (above, 1, 0, last),
        (back, 0, 0, 0x00050000 | answer),
        (back, 0, 0, 0x7FFF0000),  # allowed
    ]
    code = b"".join(struct.pack("HBBI", *line) for line in program)
    buffer = ctypes.create_string_buffer(code, len(code))
    header = struct.pack("HxxxxxxP", len(program), ctypes.addressof(buffer))
    libc = ctypes.CDLL(None, use_errno=True)
    filter_call = ctypes.create_string_buffer(header, len(header))
    if libc.prctl(38, 1, 0, 0, 0) or libc.prctl(22, 2, filter_call, 0, 0):
        raise OSError(ctypes.get_errno(), "prctl: no filter of system calls can be set here")


def check_order(goldens: dict[str, Any]) -> None:
    """Compare orders with the recorded values, on each instruction set of this processor."""
    import numpy as np

    from penstock import Order, _core

    for level in _core.list_order_levels():
        for text, wanted in goldens["permutation"].items():
            count = int(text)
            permutation = _core.Permutation(count, 42, True, level)
            positions = np.array([0, 1, 2, count // 2, count - 1], np.uint64)
            out = np.empty_like(positions)
            assert permutation.forward(positions, out) == len(positions)
            assert out.tolist() == wanted, (level, count, out.tolist())
            assert permutation.inverse(np.array(wanted, np.uint64), out) == len(positions)
            assert out.tolist() == positions.tolist(), (level, count)
        out = np.empty(65_537, np.uint64)
        _core.Permutation(65_537, 42, True, level).run(0, out)
        assert zlib.crc32(out.astype("<u8").tobytes()) == goldens["checksum"], level
    order = Order(1_281_167, seed=42, epoch=3)
    assert order.samples([0, 1, 2, 3]).tolist() == goldens["order"]


def check_kernels(emulated: str = "") -> dict[str, str]:
    """Compare the kernels in use with what the processor has; they are returned.

    emulated:  what an emulated processor has, as /proc/cpuinfo would list it: that file is of the
               processor below.
    """
    from penstock import _core

    flags = set((emulated or Path("/proc/cpuinfo").read_text()).split())

    def choose(*choices: tuple[str, str], otherwise: str = "portable") -> str:
        fitting = (name for name, needed in choices if flags.issuperset(needed.split()))
        return next(fitting, otherwise)

    is_x86 = platform.machine() == "x86_64"
    wanted = {
        "JPEG": choose(("avx2", "avx2 bmi1 bmi2")),
        "JSON fields": choose(("avx2", "avx2"), otherwise="sse2" if is_x86 else "portable"),
        "checksums": choose(("sse4.2", "sse4_2")),
        "lines": choose(("avx2", "avx2 bmi1 bmi2")),
        "orders": choose(
            ("avx512", "avx512f avx512dq avx512vl avx512bw"), ("avx2", "avx2"), otherwise="scalar"
        ),
        "resizing": choose(("avx2", "avx2 f16c")),
        "selections": choose(("bmi2", "bmi1 bmi2 popcnt")),
    }
    used: dict[str, str] = _core.list_kernels()
    assert used == wanted, f"{used} are in use, and this processor allows {wanted}"
    return used


def write_data(folder: Path) -> dict[str, bytes]:
    """Write files in folders of classes, the same files in a tar, and records; their contents."""
    import numpy as np

    random = np.random.default_rng(1)
    contents = {}
    for number in range(FILES):
        name = f"{number % 3}/{number:03}.data"
        contents[name] = random.bytes(int(random.integers(1, 30_000)))
        (folder / "files" / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / "files" / name).write_bytes(contents[name])
    with tarfile.open(folder / "files.tar", "w") as archive:
        for name in contents:
            archive.add(folder / "files" / name, name.replace("/", "_"))
    (folder / "records.bin").write_bytes(random.bytes(RECORDS * RECORD_BYTES))
    return contents


def read_samples(dataset: Any, **settings: Any) -> tuple[dict[int, bytes], str]:
    """Read one epoch; the bytes of each sample, and which backend read them."""
    import penstock

    seen: dict[int, bytes] = {}
    with penstock.Loader(dataset, 16, seed=3, rank=0, world_size=1, **settings) as loader:
        for batch in loader:
            for identity, value in zip(batch.ids.tolist(), batch["data"], strict=True):
                assert identity not in seen, "a sample came twice"
                seen[identity] = bytes(value)
        backend = str(loader.stats()["backend"])
    assert len(seen) == len(dataset), "a sample was missing"
    return seen, backend


def check_reading(folder: Path, ring: bool) -> list[str]:
    """Read every sample of each container by each backend; the backends that read."""
    import penstock

    contents = write_data(folder)
    used = set()
    fast: dict[str, Any] = {"io_uring": {"mmap": "off", "pread": "off"}} if ring else {}
    backends = {"pread": {"io_uring": "off", "mmap": "off"}, "auto": {}, **fast}
    for name, paths in backends.items():
        budget = penstock.Budget(**paths)
        for path in ("files", "files.tar"):
            dataset = penstock.open(folder / path, index="memory")
            seen, backend = read_samples(dataset, budget=budget)
            order = sorted(contents) if path == "files" else contents
            assert [seen[n] for n in range(FILES)] == [contents[each] for each in order], path
            used.add(backend)
            assert name in ("auto", backend), (name, backend)
        records = penstock.open(folder / "records.bin", record_bytes=RECORD_BYTES, index="memory")
        seen, backend = read_samples(records, budget=budget)
        whole = (folder / "records.bin").read_bytes()
        assert b"".join(seen[n] for n in range(RECORDS)) == whole
        used.add(backend)
    return sorted(used)


def check_refusal_of_ring() -> None:
    """Where the kernel refuses io_uring, asking for it is an error of ours that says so."""
    import penstock

    with tempfile.NamedTemporaryFile() as file:
        file.write(bytes(RECORD_BYTES))
        file.flush()
        dataset = penstock.open(file.name, record_bytes=RECORD_BYTES, index="memory")
        try:
            read_samples(dataset, budget=penstock.Budget(io_uring="required"))
        except penstock.PenstockError as error:
            said = str(error)
        else:
            said = "nothing: reading went on"
    assert "io_uring" in said, f"io_uring was required and is refused; penstock said {said}"


def open_squares(number: int) -> Any:
    """Open a worker process, which imports this module: it squares numbers into arrays."""
    import numpy as np

    return lambda task: {"square": np.full((3, 1000), task * task), "worker": number}


def check_workers() -> None:
    """Get arrays from worker processes, through memory without a name that both map."""
    from penstock.loader.worker_processes import WorkerProcesses

    workers = WorkerProcesses(open_squares, 2)
    try:
        tickets = [workers.submit(task) for task in range(20)]
        results = [workers.result(ticket, 60.0)[0] for ticket in tickets]
        squares = [int(result["square"][2, 999]) for result in results]
        assert squares == [n * n for n in range(20)]
    finally:
        workers.close()


def main() -> None:
    """Run all checks and print what they found."""
    goldens, kind = json.loads(Path(sys.argv[1]).read_text()), (sys.argv[2:] or [""])[0]
    compilers = [each for each in ("cc", "c++", "gcc", "g++", "clang") if shutil.which(each)]
    assert not compilers, f"a wheel is tried without a compiler, and here is {compilers}"
    if kind in ("old-kernel", "no-ring"):
        forbid(kind)
    import numpy as np

    import penstock

    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        (folder / "first.bin").write_bytes(bytes(RECORDS * RECORD_BYTES))
        dataset = penstock.open(folder / "first.bin", record_bytes=RECORD_BYTES, index="memory")
        with penstock.Loader(dataset, 16, rank=0, world_size=1) as loader:
            next(iter(loader))
        first_batch_s, first_batch_cpu_s = time.monotonic() - STARTED, time.process_time()
        kernels = check_kernels(EMULATED)
        check_order(goldens)
        from penstock.engine.read_method import probe_io_uring

        refused = probe_io_uring() != 0
        assert refused or not kind, "io_uring should be refused here"
        if refused:
            check_refusal_of_ring()
        backends = check_reading(folder, not refused)
        if not EMULATED:
            check_workers()
    found = {
        "python": platform.python_version(),
        "machine": platform.machine(),
        "numpy": np.__version__,
        "penstock": penstock.__version__,
        "kernels": kernels,
        "backends": backends,
        "first_batch_s": round(first_batch_s, 3),
        "first_batch_cpu_s": round(first_batch_cpu_s, 3),
    }
    print(json.dumps(found))


if __name__ == "__main__":
    main()
