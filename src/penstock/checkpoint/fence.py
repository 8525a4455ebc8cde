"""What only optimizers change need not be copied while training waits: their steps wait instead.

Parameters and moments stay as they are through forward and backward passes. They are copied behind
those, and a fence before the next step of the optimizer stands until that is done.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from typing import Any

from ..errors import UsageError
from .partition import Cut
from .pytree import ArrayBlock


class Fence:
    """Stands between the copy of a state and the next steps of the optimizers attached to it."""

    def __init__(self) -> None:
        self._optimizers: list[Any] = []
        self._hooks: list[Any] = []
        self._down = threading.Event()
        self._down.set()
        self.waited_s = 0.0
        """How long steps have waited here since the fence was put up."""

    def attach(self, optimizer: Any) -> None:
        """Have the steps of an optimizer of torch wait here."""
        if not hasattr(optimizer, "register_step_pre_hook"):
            raise UsageError(
                f"{type(optimizer).__name__} has no register_step_pre_hook: attach an optimizer of"
                " torch"
            )
        if any(each is optimizer for each in self._optimizers):
            return
        self._hooks.append(optimizer.register_step_pre_hook(lambda *_: self.wait()))
        self._optimizers.append(optimizer)

    def divided(
        self, blocks: Sequence[ArrayBlock], cuts: Sequence[Cut]
    ) -> tuple[list[Cut], list[Cut]]:
        """What has to be copied at once, and what may be while the fence stands: what is exactly a
        parameter of the optimizers, or a tensor of their state."""
        theirs = {
            (tensor.data_ptr(), tensor.nbytes, str(tensor.device))
            for optimizer in self._optimizers
            for tensor in _changed_by(optimizer)
        }
        waits = [
            block.dense
            and bool(block.leaves)
            and all((leaf.lowest, leaf.extent, leaf.device) in theirs for leaf in block.leaves)
            for block in blocks
        ]
        now = [cut for cut in cuts if not waits[cut.block]]
        return now, [cut for cut in cuts if waits[cut.block]]

    def put_up(self) -> None:
        """Steps wait from now on."""
        self.waited_s = 0.0
        self._down.clear()

    def take_down(self) -> None:
        """They go on."""
        self._down.set()

    def wait(self) -> None:
        """Returns once the fence is down."""
        if not self._down.is_set():
            began_s = time.perf_counter()
            self._down.wait()
            self.waited_s += time.perf_counter() - began_s

    def detach(self) -> None:
        """The optimizers have nothing to do with it any more."""
        while self._hooks:
            self._hooks.pop().remove()
        self._optimizers.clear()


def _changed_by(optimizer: Any) -> list[Any]:
    """The tensors that an optimizer's steps change in place."""
    found = [tensor for group in optimizer.param_groups for tensor in group["params"]]
    for state in optimizer.state.values():
        if isinstance(state, dict):
            found += [value for value in state.values() if hasattr(value, "data_ptr")]
    return [tensor for tensor in found if tensor.is_contiguous()]
