"""Interrupts in the thread that saves: checkpoints are whole, failures told, and nothing hangs."""

from __future__ import annotations

import shutil
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import torch
from penstock.budget import Budget
from penstock.checkpoint import (
    Checkpoints,
    background,
    checkpoints,
    held_saves,
    load,
    shards,
    staging,
)
from penstock.checkpoint.background import BackgroundThread, JoinDeadline
from penstock.checkpoint.staging import Fence, Staging
from penstock.engine import threads
from penstock.errors import StalledError, StorageError
from tests.interrupts import end_in_thread, interrupt
from tests.slices import stride

_patience_s = 240.0  # a guard against hanging, not a measure
_some = stride(17)
_most = stride(3)


def build_state(step: int) -> dict[str, Any]:
    return {"numbers": np.full(40_000, step), "weights": torch.full((64, 64), float(step))}


def check_steps(folder: Path, steps: list[int]) -> None:
    for step in steps:
        state = load(folder, step).state
        assert (state["numbers"] == step).all()
        assert (state["weights"] == step).all()


class Gate:
    """Holds threads of saves at their first point, until somebody joins such a thread."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self._is_open = False
        self._news = threads.WakeUp()
        self._held: set[threading.Thread] = set()
        join = JoinDeadline.join

        def join_opened(deadline: JoinDeadline, *args: Any) -> None:
            self.open()
            join(deadline, *args)

        monkeypatch.setattr(JoinDeadline, "join", join_opened)
        monkeypatch.setattr(background, "watcher", self.watch)

    def close(self) -> None:
        self._held.clear()
        self._is_open = False

    def open(self) -> None:
        self._is_open = True
        self._news.send()

    @property
    def is_holding(self) -> bool:
        return any(thread.is_alive() for thread in self._held)

    def watch(self, _: str) -> None:
        if threading.current_thread().name == "penstock-checkpoint":
            self._held.add(threading.current_thread())
            self._news.wait_until(lambda: self._is_open, _patience_s)


@contextmanager
def beginning_late(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Threads of saves take a while to begin, as on a busy machine."""
    lock = threading.Lock()
    lock.acquire()
    set_id = threading.Thread._set_native_id  # type: ignore[attr-defined]

    def set_late(thread: threading.Thread) -> None:
        if thread.name == "penstock-checkpoint":
            lock.acquire(timeout=0.003)
        set_id(thread)

    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "_set_native_id", set_late)
        yield


@_some
def test_an_interrupt_in_save_leaves_one_writer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, stride: int
) -> None:
    """Wherever it comes, the save is begun and waited for, or nothing of it is left: no save is
    copied to the staging memory while another is written from it."""
    gate, reserve = Gate(monkeypatch), Staging.reserve

    def reserve_alone(memory: Staging, size: int) -> Any:
        assert not gate.is_holding
        return reserve(memory, size)

    modules = checkpoints, background, threads, threading, staging
    place, interrupted, counts = 0, True, set()
    while interrupted:
        weights = torch.nn.Parameter(torch.empty(64, 64))
        optimizer = torch.optim.SGD([weights], lr=0.1)
        state = build_state(2) | {"weights": weights.data.fill_(2.0)}
        with Checkpoints(tmp_path / str(place), rank=0, world_size=1) as saved:
            saved.attach(optimizer)
            saved.save(1, build_state(1))
            saved.wait()
            gate.close()
            with beginning_late(monkeypatch):
                interrupted = interrupt(place, modules, lambda: saved.save(2, state))  # noqa: B023
            if not gate.is_holding:  # a step does not wait for a save that was not begun
                gate.open()
                end_in_thread(optimizer.step, place)
                gate.close()
            with monkeypatch.context() as patch:
                patch.setattr(Staging, "reserve", reserve_alone)
                end_in_thread(lambda: saved.save(3, build_state(3)), place)
            saved.wait()
            steps = saved.steps()
        assert steps in ([1, 2, 3], [1, 3]), f"place {place}"
        assert interrupted or len(steps) == 3
        check_steps(tmp_path / str(place), steps)
        shutil.rmtree(tmp_path / str(place))
        counts.add(len(steps))
        place += stride
    assert place > 100
    assert counts == {2, 3}


@_most
@pytest.mark.parametrize("uses_tier", [False, True])
@pytest.mark.parametrize("fails", [True, False])
def test_an_interrupt_in_wait_loses_no_failure(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fails: bool, uses_tier: bool, stride: int
) -> None:
    """The error of a save is raised once: by this call, or by the next if this was interrupted."""
    gate = Gate(monkeypatch)
    place, interrupted = 0, True
    while interrupted:
        folder = tmp_path / str(place)
        local = tmp_path / f"{place} tier" if uses_tier else None
        saved = Checkpoints(folder, rank=0, world_size=1, local=local)
        if fails:
            shutil.rmtree(folder)
        gate.close()
        saved.save(1, build_state(1))
        told: list[Any] = []

        def wait() -> None:
            try:
                told.append(saved.wait())  # noqa: B023
            except StorageError as error:
                told.append(error)  # noqa: B023

        modules = checkpoints, held_saves, background, threads, threading
        interrupted = interrupt(place, modules, wait)
        if interrupted and not told:
            end_in_thread(wait, place)
        assert isinstance(told[0], StorageError) == fails, f"place {place}"
        assert fails or told[0].step == 1
        end_in_thread(saved.close, place)  # raises nothing that was raised before
        place += stride
    assert place > 10


def test_an_interrupted_wait_leaves_the_save_under_way(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An interrupt of who waits for a thread does not have the thread taken for ended."""

    def stop(*_: object) -> None:
        raise KeyboardInterrupt

    gate = Gate(monkeypatch)
    with Checkpoints(tmp_path, rank=0, world_size=1) as saved:
        monkeypatch.undo()  # joining does not open the gate any more
        monkeypatch.setattr(background, "watcher", gate.watch)
        saved.save(1, build_state(1))
        before = signal.signal(signal.SIGALRM, stop)
        signal.setitimer(signal.ITIMER_REAL, 0.05)
        try:
            with pytest.raises(KeyboardInterrupt):
                saved.wait()
        finally:
            signal.signal(signal.SIGALRM, before)
        with pytest.raises(StalledError):
            saved.wait(timeout_s=0.0)
        gate.open()
        last = saved.wait()
        assert last is not None
        assert last.step == 1


@_most
@pytest.mark.parametrize("fails", [True, False])
def test_an_interrupted_close_closes_when_called_again(
    tmp_path: Path, fails: bool, stride: int
) -> None:
    """Then others may write to the folder, and an error that nobody had been told is raised."""
    place, interrupted = 0, True
    while interrupted:
        folder = tmp_path / str(place)
        saved = Checkpoints(folder, rank=0, world_size=1)
        if fails:
            folder.rename(tmp_path / "away")
        saved.save(1, build_state(1))
        told = []

        def close() -> None:
            try:
                saved.close()  # noqa: B023
            except StorageError as error:
                told.append(error)  # noqa: B023

        modules = checkpoints, background, threads, threading, staging
        interrupted = interrupt(place, modules, close)
        end_in_thread(close, place)
        assert len(told) == fails, f"place {place}"
        if fails:
            (tmp_path / "away").rename(folder)
        with Checkpoints(folder, rank=0, world_size=1) as again:
            assert again.steps() == ([] if fails else [1])
        place += stride
    assert place > 5


@_most
@pytest.mark.parametrize("change", ["faster", "abandoned"])
def test_an_interrupt_in_a_change_of_a_write_leaves_it_changeable(
    tmp_path: Path, change: str, stride: int
) -> None:
    """Another thread, and the writing one, find no lock taken."""
    place, interrupted = 0, True
    while interrupted:
        slow = Budget(bytes_per_s=1e5)  # some seconds
        saved = Checkpoints(tmp_path / str(place), rank=0, world_size=1, budget=slow)
        saved.save(1, np.zeros(3 << 20, np.uint8))

        def call() -> None:
            if change == "faster":
                saved.budget = Budget()  # noqa: B023
            else:
                saved.abandon()  # noqa: B023

        modules = checkpoints, background, shards, threads, threading
        interrupted = interrupt(place, modules, call)
        end_in_thread(call, place)
        end_in_thread(saved.close, place)
        place += stride
    assert place > 5


def test_an_interrupt_at_the_fence_leaves_it_movable() -> None:
    """Wherever it comes as the fence is put up, taken down or waited for."""
    for first in "put_up", "take_down", "wait":
        for place in range(9):
            stands = Fence()
            if first != "put_up":
                stands.put_up()
            interrupted = interrupt(place, (staging, threads, threading), getattr(stands, first))
            assert interrupted or first != "wait"  # which nobody ends
            end_in_thread(stands.take_down, place)
            end_in_thread(stands.wait, place)
            end_in_thread(stands.put_up, place)
            end_in_thread(stands.take_down, place)
            end_in_thread(stands.wait, place)


def test_a_thread_that_begins_after_it_was_called_off_does_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Wherever its start is interrupted, it works and is waited for, or never works."""
    place, interrupted, counts = 0, True, set()
    while interrupted:
        worked: list[int] = []

        def work() -> Exception | None:
            worked.append(1)  # noqa: B023
            return None

        task = BackgroundThread("penstock-checkpoint", work)
        with beginning_late(monkeypatch):
            interrupted = interrupt(place, (background, threads, threading), task.start_awaited)
            is_off = task.call_off()
            end_in_thread(task.join, place)
        assert len(worked) == (not is_off), f"place {place}"
        assert not task.is_alive()
        if is_off:
            task.run()  # it begins after all
            assert not worked
        counts.add(is_off)
        place += 1
    assert place > 20
    assert counts == {False, True}
