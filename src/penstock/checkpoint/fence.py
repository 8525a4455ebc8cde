"""A fence that lets the tensors that only optimizers change be copied behind training: the next
step of the optimizer waits instead of the save.

Parameters and moments stay as they are through forward and backward passes. They are copied
meanwhile, and a fence before the next step of the optimizer stands until the copy is done.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

from ..engine import WakeUp
from ..errors import UsageError
from .partition import Cut
from .pytree import ArrayBlock


class Fence:
    """Stands between the copy of a state and the next steps of the optimizers attached to it."""

    def __init__(self) -> None:
        self._optimizers: list[Any] = []
        self._hooks: list[Any] = []
        self._is_up = False
        self._news = WakeUp()  # of who waits
        self.waited_s = 0.0
        """Time for which steps have waited here since the fence was put up."""

    def attach(self, optimizer: Any) -> None:
        """Make the steps of an optimizer of torch wait at this fence."""
        if not hasattr(optimizer, "register_step_pre_hook"):
            raise UsageError(
                f"{type(optimizer).__name__} has no register_step_pre_hook: attach an optimizer of"
                " torch"
            )
        if any(known is optimizer for known in self._optimizers):
            return
        self._hooks.append(optimizer.register_step_pre_hook(lambda *_: self.wait()))
        self._optimizers.append(optimizer)

    def divide_cuts(
        self, blocks: Sequence[ArrayBlock], cuts: Sequence[Cut]
    ) -> tuple[list[Cut], list[Cut]]:
        """Divide the cuts into those to copy at once and those that may be copied while the fence
        stands. The latter are of blocks that are exactly a parameter of the attached optimizers, or
        a tensor of their state."""
        changed = {
            (tensor.data_ptr(), tensor.nbytes, str(tensor.device))
            for optimizer in self._optimizers
            for tensor in _list_changed_tensors(optimizer)
        }
        can_wait = [
            block.dense
            and bool(block.leaves)
            and all((leaf.lowest, leaf.extent, leaf.device) in changed for leaf in block.leaves)
            for block in blocks
        ]
        now = [cut for cut in cuts if not can_wait[cut.block]]
        return now, [cut for cut in cuts if can_wait[cut.block]]

    def put_up(self) -> None:
        """Make the steps wait from now on."""
        self.waited_s = 0.0
        self._is_up = True

    def take_down(self) -> None:
        """Let the steps go on."""
        self._is_up = False
        self._news.send()

    def wait(self) -> None:
        """Return once the fence is down."""
        if self._is_up:
            began_s = time.perf_counter()
            self._news.wait_until(lambda: not self._is_up)
            self.waited_s += time.perf_counter() - began_s

    def detach(self) -> None:
        """Remove the fence from all its optimizers."""
        while self._hooks:
            self._hooks[-1].remove()
            self._hooks.pop()
        self._optimizers.clear()


def _list_changed_tensors(optimizer: Any) -> list[Any]:
    """List the tensors that an optimizer's steps change in place."""
    changed = [tensor for group in optimizer.param_groups for tensor in group["params"]]
    for state in optimizer.state.values():
        if isinstance(state, dict):
            changed += [value for value in state.values() if hasattr(value, "data_ptr")]
    return [tensor for tensor in changed if tensor.is_contiguous()]
