"""python -m benchmarks.walk [--time | save]: the walk of one batch of an .npy file through the
loader, or of one save to its commit.

`for batch in Loader(penstock.open("x.npy"), 32)`, one process, no cache, no decode, steady state.

calls    Python functions that start or resume, as `sys.setprofile` reports them ("call" events), of
         the library and of numpy, in the thread of the user; the mean of many batches, so that a
         window that is planned once for 64 steps counts as 1/64 of its calls.
objects  blocks that are allocated in Python code for a batch and live as long as it does, as
         `tracemalloc` counts them by line while all batches are kept, where the array that the core
         lends (the memory of the batch) counts as one; and the named tuples that are made by a call
         of their class, which setprofile reports, and dropped again.
hops     functions of the library between `next` of a new iterator and the engine's first `submit`.

With `--time` it prints the processor time in ns that the user's thread needs for a batch of 256
samples of 4 KiB, without the reading: the engine's core is replaced by one that reports each ticket
as read. Runs of two versions of the library are compared in alternation.

With `save` it prints the walk of `Checkpoints.save`: one rank, a folder, no tiers, no broker, a
small tree of arrays, the third save of its job. Counted are the functions of the library that
start between the call of `save` and the return of `Folder.commit`, in both threads, each once,
in the order of their first call; and their modules. Not counted are properties, the `__init__` of
dataclasses, and the comprehensions, generator expressions and lambdas in a function: they are its
own code. Functions of `penstock.checkpoint` are listed first, then what they call in other folders.
"""

from __future__ import annotations

import functools
import sys
import tempfile
import threading
import time
import tracemalloc
from collections import Counter
from pathlib import Path
from types import FrameType
from typing import Any

import numpy as np

import penstock
from penstock import Loader
from penstock.checkpoint import Checkpoints

_BATCHES = 1024
_KEPT = 512


def make_loader(folder: Path, batch_size: int, width: int, batches: int) -> Loader:
    """Return a loader of a new file of float32 rows of `width` numbers, which is in memory."""
    path = folder / f"{width}.npy"
    np.save(path, np.zeros((batch_size * batches, width), np.float32))
    path.read_bytes()
    return Loader(penstock.open(path), batch_size)


def count_calls(loader: Loader) -> Counter[str]:
    """Count the calls of `_BATCHES` batches, by function."""
    batches = iter(loader)
    for _ in range(_BATCHES):
        next(batches)
    calls: Counter[str] = Counter()

    def count(frame: FrameType, event: str, _: Any) -> None:
        if event == "call":
            code = frame.f_code
            calls[f"{_shorten(code.co_filename)}:{code.co_firstlineno} {code.co_qualname}"] += 1

    sys.setprofile(count)
    for _ in range(_BATCHES):
        next(batches)
    sys.setprofile(None)
    return calls


def count_objects(loader: Loader) -> Counter[str]:
    """Count the blocks that `_KEPT` batches keep, by line; the memory of a batch as one."""
    batches = iter(loader)
    kept = [next(batches) for _ in range(_KEPT)]
    tracemalloc.start()
    kept += [next(batches) for _ in range(64)]  # what is freed later than it is made
    before = tracemalloc.take_snapshot()
    kept += [next(batches) for _ in range(_KEPT)]
    after = tracemalloc.take_snapshot()
    tracemalloc.stop()
    blocks: Counter[str] = Counter()
    for line in after.compare_to(before, "lineno"):
        frame = line.traceback[0]
        if "penstock" in frame.filename and line.count_diff > 0:
            is_memory = frame.filename.endswith("engine/native.py")
            count = min(line.count_diff, _KEPT) if is_memory else line.count_diff
            blocks[f"{_shorten(frame.filename)}:{frame.lineno}"] += count
    del kept
    return blocks


def list_hops(loader: Loader) -> list[str]:
    """List the functions of the library on the way from `next` to the first `submit`."""
    hops: list[str] = []

    def find(frame: FrameType, event: str, _: Any) -> None:
        if event == "call" and frame.f_code.co_name == "submit" and not hops:
            caller = frame.f_back
            while caller is not None and "penstock/" in caller.f_code.co_filename:
                hops.append(caller.f_code.co_qualname)
                caller = caller.f_back

    batches = iter(loader)
    sys.setprofile(find)
    next(batches)
    sys.setprofile(None)
    return hops[::-1]


class _CoreWithoutReading:
    """The core of an engine, except that tickets are reported as read at the next poll."""

    is_closed = is_inherited = False

    def __init__(self, core: Any) -> None:
        self._core = core
        self._tickets = 0
        self._done: list[tuple[int, tuple[()]]] = []

    def submit(self, *_: Any) -> int:
        self._tickets += 1
        self._done.append((self._tickets, ()))
        return self._tickets

    def poll(self, _: int) -> list[tuple[int, tuple[()]]]:
        done, self._done = self._done, []
        return done

    def __getattr__(self, name: str) -> Any:
        return getattr(self._core, name)


def measure_time(loader: Loader, epochs: int) -> int:
    """Measure the thread's processor time for a batch, in ns: the median of epochs."""
    next(iter(loader))
    engine: Any = loader._engine
    engine = getattr(engine, "_engine", engine)
    engine._core = _CoreWithoutReading(engine._core)
    times = []
    for _ in range(epochs):
        batches = iter(loader)
        for _ in range(20):
            next(batches)
        began_ns, count = time.thread_time_ns(), 0
        for _ in batches:
            count += 1
        times.append((time.thread_time_ns() - began_ns) // count)
    return sorted(times)[len(times) // 2]


def list_save_calls(folder: Path) -> list[str]:
    """List the functions that a save goes through until it is committed, by module and name."""
    calls: dict[str, None] = {}
    is_committed = False

    def note(frame: FrameType, event: str, _: Any) -> None:
        nonlocal is_committed
        code = frame.f_code
        if is_committed or "/penstock/" not in code.co_filename:
            return
        if event == "return" and code.co_qualname == "Folder.commit":
            is_committed = True
        elif event == "call" and "<" not in code.co_name and not _is_property(frame):
            calls[f"{_shorten(code.co_filename)} {code.co_qualname}"] = None

    state = {"weights": np.arange(1 << 18, dtype=np.float32), "step": 1}
    with Checkpoints(folder, rank=0, world_size=1) as checkpoints:
        for step in range(2):
            checkpoints.save(step, state)
            checkpoints.wait()
        threading.setprofile(note)
        sys.setprofile(note)
        checkpoints.save(2, state)
        sys.setprofile(None)
        checkpoints.wait()
        threading.setprofile(None)
    return list(calls)


def _is_property(frame: FrameType) -> bool:
    """True for the getter of a property of the object that a frame has as its `self`."""
    owner, name = type(frame.f_locals.get("self")), frame.f_code.co_name
    return isinstance(getattr(owner, name, None), property | functools.cached_property)


def print_save(folder: Path) -> None:
    """Print the walk of a save."""
    calls = list_save_calls(folder)
    own = [name for name in calls if name.startswith("checkpoint/")]
    others = [name for name in calls if name not in own]
    print("\n".join([*own, "", *others, ""]))
    for what, names in (("penstock.checkpoint", own), ("the library", calls)):
        modules = {name.partition(" ")[0] for name in names}
        print(f"functions of {what}: {len(names)} in {len(modules)} modules")


def _shorten(path: str) -> str:
    return path.rpartition("penstock/")[2].rpartition("site-packages/")[2]


def main() -> None:
    """Print the walk, or the time."""
    with tempfile.TemporaryDirectory() as folder:
        if "save" in sys.argv:
            print_save(Path(folder))
            return
        if "--time" in sys.argv:
            with make_loader(Path(folder), 256, 1024, 200) as loader:
                print(measure_time(loader, 15))
            return
        with make_loader(Path(folder), 32, 256, 4000) as loader:
            hops = list_hops(loader)
            calls = count_calls(loader)
            blocks = count_objects(loader)
            backend = loader.stats()["backend"]
    dropped = sum(count for name, count in calls.items() if name.startswith("<string>"))
    for name, count in calls.most_common():
        print(f"{count / _BATCHES:8.3f}  {name}")
    for name, count in blocks.most_common():
        if count >= 0.05 * _KEPT:
            print(f"{count / _KEPT:8.3f}  object made at {name}")
    print(f"{dropped / _BATCHES:8.3f}  named tuples made by a call")
    objects = sum(blocks.values()) / _KEPT + dropped / _BATCHES
    print(f"calls a batch: {sum(calls.values()) / _BATCHES:.1f}")
    print(f"objects a batch: {objects:.1f}")
    print(f"hops from next() to the first submit: {len(hops) - 1}: {' -> '.join(hops)}")
    print(f"backend: {backend}")


if __name__ == "__main__":
    main()
