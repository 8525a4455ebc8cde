"""Saves beside a loop that trains: how long each blocks it, how much longer its steps take until
the save is durable, and when that is. Ours, and `dcp.async_save` with each way of staging it has.

A step takes a batch from a loader and multiplies, so long that the loop draws at least half of what
the loader gives when nothing else is done. The steps' time is a mean: a stop counts.
"""

from __future__ import annotations

import functools
import gc
import shutil
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.staging import DefaultStager, StagingOptions
from torch.distributed.checkpoint.state_dict_saver import AsyncSaveResponse

import penstock
import torch
from penstock.checkpoint import Checkpoints

from .pairing import bootstrap_interval
from .record import Row

State = dict[str, torch.Tensor]
Save = Callable[[int], tuple[Callable[[], None], Callable[[], bool]]]
"""Begin a save; return the wait until the state may change, and whether the save is durable."""
SHARE = 0.55
"""Share of the loader's own rate that the loop shall draw; half is what it must, as measured."""
RECORDS, RECORD_BYTES, BATCH = 50_000, 4096, 256
QUIET_S = 1.0
STAGERS_END = tuple(map(int, torch.__version__.split(".")[:2])) < (2, 13)
"""True if a save closes its stager: the next one needs a new stager."""


@contextmanager
def save_ours(state: State, folder: Path) -> Iterator[Save]:
    """Ours, with nothing attached: the call itself copies the state."""
    with Checkpoints(folder / "ours", keep=2) as checkpoints:

        def save(number: int) -> tuple[Callable[[], None], Callable[[], bool]]:
            before = checkpoints.last
            checkpoints.save(number, state)
            return lambda: None, lambda: checkpoints.last is not before

        yield save


@contextmanager
def save_dcp(state: State, folder: Path, stager: Callable[[], Any]) -> Iterator[Save]:
    """`dcp.async_save`, staged by its writer or by a stager; its files are synced."""
    with ExitStack() as closing:
        if (kept := stager()) is not None:
            closing.callback(kept.close)
        last: list[Path] = []

        def save(number: int) -> tuple[Callable[[], None], Callable[[], bool]]:
            for old in last:
                shutil.rmtree(old)
            gc.collect()
            last[:] = [Path(tempfile.mkdtemp(dir=folder))]
            staging = stager() if STAGERS_END else kept
            begun = dcp.async_save(state, checkpoint_id=last[0], async_stager=staging)
            if isinstance(begun, AsyncSaveResponse):
                return begun.staging_completion.result, begun.upload_completion.done
            return lambda: None, begun.done

        yield save
        for old in last:
            shutil.rmtree(old)


def make_stager(is_async: bool) -> DefaultStager:
    """A stager for a machine without an accelerator: nothing to pin or to wait for."""
    return DefaultStager(
        StagingOptions(
            use_pinned_memory=torch.cuda.is_available(),
            use_shared_memory=False,
            use_async_staging=is_async,
            use_non_blocking_copy=torch.cuda.is_available(),
        )
    )


SAVERS: dict[str, Callable[[State, Path], Any]] = {
    "penstock": save_ours,
    "dcp, its writer stages": functools.partial(save_dcp, stager=lambda: None),
    "dcp, DefaultStager": functools.partial(save_dcp, stager=lambda: make_stager(False)),
    "dcp, DefaultStager, async": functools.partial(save_dcp, stager=lambda: make_stager(True)),
}


def run_steps(step: Callable[[], None], until: Callable[[], bool]) -> float:
    """Mean seconds of the steps until something is true; at least one is made."""
    began, count = time.perf_counter(), 0
    while count == 0 or not until():
        step()
        count += 1
    return (time.perf_counter() - began) / count


def run_for(step: Callable[[], None], seconds: float) -> float:
    """Mean time of a step, over the steps of so many seconds."""
    end = time.perf_counter() + seconds
    return run_steps(step, lambda: time.perf_counter() > end)


def make_step(batches: Iterator[Any]) -> tuple[Callable[[], None], float]:
    """Make the step of the loop; and the share of the loader's own rate that it draws."""
    tensor = torch.from_numpy(np.random.default_rng(0).random((RECORD_BYTES // 16, 64), np.float32))

    def step(rows: int) -> None:
        batch = next(batches)
        numbers = batch["data"][:rows, : RECORD_BYTES // 16].astype(np.float32)
        torch.from_numpy(numbers) @ tensor

    def draw() -> None:
        next(batches)

    run_for(draw, QUIET_S)
    alone_s = run_for(draw, QUIET_S)
    rows = BATCH
    while rows > 1 and run_for(lambda: step(rows), QUIET_S / 4) > alone_s / SHARE:  # noqa: B023
        rows //= 2
    step_s = run_for(lambda: step(rows), QUIET_S)
    return functools.partial(step, rows), alone_s / step_s


def measure(raw: dict[str, Any], state: State, folder: Path, rounds: int) -> Iterator[Row]:
    """Rows of all ways to save, in turns; held against ours."""
    data = folder / "records.bin"
    data.write_bytes(bytes(RECORD_BYTES) * RECORDS)
    dataset = penstock.open(data, record_bytes=RECORD_BYTES, index="memory")
    torch.set_num_threads(1)
    names = "blocked", "may change", "durable", "step", "quiet step"
    found: dict[str, dict[str, list[float]]] = {one: {name: [] for name in names} for one in SAVERS}
    with penstock.Loader(dataset, batch_size=BATCH, seed=0) as loader, ExitStack() as opened:
        step, share = make_step(batch for _ in range(1 << 30) for batch in loader)
        saves = {name: opened.enter_context(make(state, folder)) for name, make in SAVERS.items()}
        for number in range(rounds + 1):  # the first save of each makes its memory
            for name in list(saves) if number % 2 else reversed(list(saves)):
                quiet_s = run_for(step, QUIET_S)
                began = time.perf_counter()
                wait, is_durable = saves[name](number)
                blocked_s = time.perf_counter() - began
                wait()
                staged_s = time.perf_counter() - began
                step_s = run_steps(step, is_durable)
                durable_s = time.perf_counter() - began
                values = blocked_s, staged_s, durable_s, step_s, quiet_s
                for key, value in zip(names, values, strict=True):
                    if number:
                        found[name][key].append(value)
    raw["beside a loop"] = {"seconds": found, "share": share}
    data.unlink()
    shutil.rmtree(folder / "ours")
    for name, times in found.items():
        yield make_row(
            f"steps until durable / without a save, {name}",
            [1e3 * one for one in times["step"]],
            [1e3 * one for one in times["quiet step"]],
            "ms",
            f"the loop draws {share:.0%} of the loader's own rate",
        )
    ours = found["penstock"]
    for key in ("blocked", "may change", "durable"):
        what = {"may change": "until the state may change", "durable": "until durable"}
        for name, times in list(found.items())[1:]:
            yield make_row(f"{what.get(key, key)}, ours / {name}", ours[key], times[key], "s")


def make_row(name: str, own: list[float], other: list[float], unit: str, note: str = "") -> Row:
    """A row for information: medians, and the ratio pair by pair."""
    ratios = [a / b for a, b in zip(own, other, strict=True)]
    low, high = bootstrap_interval(ratios, 0)
    values = statistics.median(own), unit, statistics.median(other), statistics.median(ratios)
    return Row(name, *values, low=low, high=high, note=note)
