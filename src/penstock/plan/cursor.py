"""The cursor: the place that a run has reached, as a few integers, equal on every rank. Pure.

The state holds all that decides the sequence (data, seed, order, global batch) and the place in it
(epoch, step). It does not hold world size, workers, budgets or read-ahead, so a run can continue
exactly with different values of these.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from .. import limits
from ..arguments import check_whole
from ..errors import StateError

_version = 1


@dataclass(frozen=True, slots=True)
class Identity:
    """Values that decide the sequence of global batches."""

    fingerprint: str
    order: str
    seed: int
    global_batch: int


class Cursor:
    """A counter of epochs and steps.

    `begin` opens an epoch: the one that a restored state or `set_epoch` named, else the one after
    the last begun. `move` records a step that was handed to the user. Abandoning an epoch (a
    `break`) is normal: the next `begin` goes on to the next epoch from its start. Only a restored
    state continues an abandoned epoch.
    """

    def __init__(self, identity: Identity, steps: int) -> None:
        self._identity = identity
        self._steps = steps
        self._epoch = 0
        self._step = 0
        self._fresh = True  # the place has not been begun yet

    @property
    def epoch(self) -> int:
        return self._epoch

    @property
    def step(self) -> int:
        """Steps of the epoch that have been handed over."""
        return self._step

    @property
    def begun(self) -> bool:
        """True if this loader has begun the epoch at the cursor's place."""
        return not self._fresh

    @property
    def next_epoch(self) -> int:
        """The epoch that `begin` opens."""
        return self._epoch if self._fresh else self._epoch + 1

    def set_epoch(self, epoch: int) -> None:
        """Let the next `begin` open this epoch.

        It opens from its start, or from the step at which a restored state stands in it.
        """
        epoch = check_whole("epoch", epoch, 0, limits.order_count_max)
        if not self._fresh or epoch != self._epoch:
            self._epoch, self._step = epoch, 0
        self._fresh = True

    def begin(self) -> tuple[int, int]:
        """Open an epoch; return it and its first step."""
        if not self._fresh:
            self._epoch, self._step = self._epoch + 1, 0
        self._fresh = False
        return self._epoch, self._step

    def undo_begin(self, epoch: int, step: int) -> None:
        """Undo a `begin` that failed before its first step."""
        self._epoch, self._step, self._fresh = epoch, step, True

    def move(self, epoch: int, step: int) -> None:
        """Record that the steps before `step` of `epoch` have been handed over."""
        self._epoch, self._step = epoch, step
        self._fresh = False
        if step >= self._steps:  # the end of an epoch is the start of the next
            self._epoch, self._step, self._fresh = epoch + 1, 0, True

    def state(self) -> dict[str, Any]:
        """Return the state: JSON-able, under 1 KiB, always with the same keys."""
        return {
            "version": _version,
            "fingerprint": self._identity.fingerprint,
            "order": self._identity.order,
            "seed": self._identity.seed,
            "global_batch": self._identity.global_batch,
            "epoch": self._epoch,
            "step": self._step,
        }

    def restore(self, state: Mapping[str, Any], world_size: int) -> None:
        """Move to the place of `state`. Raises StateError if it does not fit this loader."""
        self._check(state, world_size)
        self._epoch, self._step, self._fresh = state["epoch"], state["step"], True

    def _check(self, state: Mapping[str, Any], world_size: int) -> None:
        if not isinstance(state, Mapping) or set(state) != set(self.state()):
            contents = sorted(state) if isinstance(state, Mapping) else type(state).__name__
            raise StateError(
                f"this is no state of a penstock loader: it has {contents}, not "
                f"{sorted(self.state())}; pass what state_dict() returned"
            )
        if state["version"] != _version:
            raise StateError(
                f"the state is of version {state['version']!r}; this penstock reads {_version}: "
                "use the version of penstock that saved it"
            )
        mine = self._identity
        if state["fingerprint"] != mine.fingerprint:
            raise StateError(
                f"the state is of other data: fingerprint {state['fingerprint']!r}, here "
                f"{mine.fingerprint!r}; open the dataset that the run was started on, and select "
                "from it what was selected then"
            )
        if state["seed"] != mine.seed:
            raise StateError(
                f"the state was saved with seed={state['seed']!r} but this loader has "
                f"seed={mine.seed}: pass the saved seed"
            )
        if state["global_batch"] != mine.global_batch:
            raise StateError(
                f"the state has global batches of {state['global_batch']!r} samples but this "
                f"loader of {mine.global_batch}: pass global_batch_size={state['global_batch']!r} "
                f"(here: {world_size} ranks)"
            )
        if state["order"] != mine.order:
            raise StateError(
                f"the state was saved under the order {state['order']!r} but this loader has "
                f"{mine.order!r}: pass the same shuffle, block and group, and of a mixture the "
                "same weights, schedule, samples_per_epoch and drop_last"
            )
        for name, most in (("epoch", limits.order_count_max), ("step", self._steps)):
            value = state[name]
            if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= most:
                raise StateError(f"the state's {name} is {value!r}: it should be 0..{most}")
