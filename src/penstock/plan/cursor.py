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
_row_keys = ("window", "before")


@dataclass(frozen=True, slots=True)
class Identity:
    """Values that decide the sequence of global batches.

    commit:  version of the data that its hub names, where it comes from one.
    """

    fingerprint: str
    order: str
    seed: int
    global_batch: int
    commit: str = ""


class Cursor:
    """A counter of epochs and steps.

    weights:  record of weights that were handed in, kept in states.
    has_rows: True if samples are packed rows: a state then holds also the window in which the last
              row handed over is, and the rows before that window.
    unit:     number by which states count a step: of batches by tokens the ranks, each of which has
              one a step, so that a state counts batches.

    `begin` opens an epoch: the one that a restored state or `set_epoch` named, else the one after
    the last begun. `move` records a step that was handed to the user. Abandoning an epoch (a
    `break`) is normal: the next `begin` goes on to the next epoch from its start. Only a restored
    state continues an abandoned epoch.
    """

    def __init__(
        self,
        identity: Identity,
        steps: int,
        weights: Mapping[str, Any] | None = None,
        has_rows: bool = False,
        unit: int = 1,
    ) -> None:
        self._identity = identity
        self._weights = weights
        self._steps = steps
        self._has_rows = has_rows
        self._unit = unit
        # Epoch and step; of rows, the window and the rows before it; True until the place is begun.
        # One value, so that a thread that reads it while another moves on gets no mixture.
        self._at = 0, 0, (0, 0), True

    @property
    def epoch(self) -> int:
        return self._at[0]

    @property
    def step(self) -> int:
        """Steps of the epoch that have been handed over."""
        return self._at[1]

    @property
    def begun(self) -> bool:
        """True if this loader has begun the epoch at the cursor's place."""
        return not self._at[3]

    @property
    def next_epoch(self) -> int:
        """The epoch that `begin` opens."""
        return self.peek()[0]

    def set_epoch(self, epoch: int) -> None:
        """Let the next `begin` open this epoch.

        It opens from its start, or from the step of a restored state.
        """
        epoch = check_whole("epoch", epoch, 0, limits.order_count_max)
        at, step, rows, is_fresh = self._at
        self._at = (at, step, rows, True) if is_fresh and epoch == at else (epoch, 0, (0, 0), True)

    def peek(self) -> tuple[int, int]:
        """Return the epoch that `begin` opens, and its first step."""
        epoch, step, _, is_fresh = self._at
        return (epoch, step) if is_fresh else (epoch + 1, 0)

    def begin(self) -> tuple[int, int]:
        """Open an epoch; return it and its first step."""
        epoch, step, rows, is_fresh = self._at
        if not is_fresh:
            epoch, step, rows = epoch + 1, 0, (0, 0)
        self._at = epoch, step, rows, False
        return epoch, step

    def undo_begin(self, epoch: int, step: int) -> None:
        """Undo a `begin` that failed before its first step."""
        self._at = epoch, step, self._at[2], True

    def move(self, epoch: int, step: int, rows: tuple[int, int] = (0, 0)) -> None:
        """Record that the steps before `step` of `epoch` have been handed over.

        rows:  of packed rows, the window of the last one, and the rows before it.
        """
        is_end = step >= self._steps  # the end of an epoch is the start of the next
        self._at = (epoch + 1, 0, (0, 0), True) if is_end else (epoch, step, rows, False)

    def state(self) -> dict[str, Any]:
        """Return the state: JSON-able, under 1 KiB, always with the same keys for the same data.

        "weights" is added if weights were handed in; their values may be in it, up to 44 KiB.
        """
        epoch, step, rows, _ = self._at
        weights = {} if self._weights is None else {"weights": dict(self._weights)}
        commit = {"commit": self._identity.commit} if self._identity.commit else {}
        return {
            **commit,
            "version": _version,
            "fingerprint": self._identity.fingerprint,
            "order": self._identity.order,
            "seed": self._identity.seed,
            "global_batch": self._identity.global_batch,
            "epoch": epoch,
            "step": step * self._unit,
            **(dict(zip(_row_keys, rows, strict=True)) if self._has_rows else {}),
            **weights,
        }

    def restore(self, state: Mapping[str, Any], world_size: int) -> None:
        """Move to the place of `state`. Raises StateError if it does not fit this loader."""
        self.check(state, world_size)
        rows = (state["window"], state["before"]) if self._has_rows else (0, 0)
        self._at = state["epoch"], state["step"] // self._unit, rows, True

    def check(self, state: Mapping[str, Any], world_size: int) -> None:
        """Raise StateError if a state does not fit this loader, or is none."""
        optional = {"weights", "commit"}
        keys = set(self.state()) - optional
        if not isinstance(state, Mapping) or set(state) - optional != keys:
            contents = sorted(state) if isinstance(state, Mapping) else type(state).__name__
            what = f"this is no state of a penstock loader: it has {contents}, not {sorted(keys)}"
            raise StateError(f"{what}; pass what state_dict() returned")
        if state["version"] != _version:
            what = f"the state has version {state['version']!r}, not {_version}"
            raise StateError(f"{what}: use the version of penstock that saved it")
        mine = self._identity
        saved = state.get("commit", mine.commit)
        if mine.commit and saved != mine.commit:
            what = f"the state is of commit {saved} of the data, which is at {mine.commit} now"
            raise StateError(f"{what}: open hf://...@{saved} to go on with it")
        if state["fingerprint"] != mine.fingerprint:
            raise StateError(
                f"the state is of other data: fingerprint {state['fingerprint']!r}, here "
                f"{mine.fingerprint!r}; open the dataset that the run was started on, and select "
                "from it what was selected then"
            )
        if state["seed"] != mine.seed:
            what = f"the state has seed={state['seed']!r} and this loader seed={mine.seed}"
            raise StateError(f"{what}: pass the saved seed")
        if state["global_batch"] != mine.global_batch:
            raise StateError(
                f"the state has global batches of {state['global_batch']!r} samples but this "
                f"loader of {mine.global_batch}: pass global_batch_size={state['global_batch']!r} "
                f"(here: {world_size} ranks)"
            )
        if state["order"] != mine.order:
            raise StateError(
                f"the state is under the order {state['order']!r}, this loader {mine.order!r}: "
                "pass the same shuffle, block, group, weights, curriculum, packing, batch_tokens, "
                "and of a mixture the same schedule, samples_per_epoch and drop_last"
            )
        bounds = [("epoch", limits.order_count_max), ("step", self._steps)]
        bounds += [(name, limits.order_count_max) for name in _row_keys if self._has_rows]
        for name, most in bounds:
            value = state[name]
            if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= most:
                raise StateError(f"the state's {name} is {value!r}: it should be 0..{most}")
        if state["step"] % self._unit:
            raise StateError(
                f"the state was saved after {state['step']:,} batches, no multiple of {self._unit} "
                "ranks: go on with ranks that divide them, or save after whole global batches"
            )
