"""The process's generators of random numbers, and the refusal of draws that no seed decides.

`random`, numpy and torch have one generator each, which all threads share: what a function draws
from one while other threads do is decided by their timing. Nothing says which thread has drawn, so
a generator that moved while a batch was made is a suspicion, and two results that differ for the
same samples are the proof: docs/decisions/0024-random-numbers.md
"""

from __future__ import annotations

import _random
import ctypes
import functools
import random
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from ..dataset.fields import Ragged
from ..errors import UsageError

Make = Callable[[Any], Any]
States = dict[str, object]
"""State of each of the process's generators, by the name of its module."""

# The state of `random` in memory, all that C adds to a bare object. getstate() takes 7 us.
_inst = random._inst
_python_bytes = _random.Random.__basicsize__ - object.__basicsize__
_numpy_bytes = 625 * 4  # of MT19937: 624 words and the position


def _view_memory(address: int, size: int) -> memoryview:
    return memoryview((ctypes.c_uint8 * size).from_address(address)).cast("B")


_python = _view_memory(id(_inst) + object.__basicsize__, _python_bytes)


@functools.lru_cache(1)
def _view_numpy(generator: np.random.MT19937) -> memoryview:
    return _view_memory(generator.ctypes.state_address, _numpy_bytes)


def read_states() -> States:
    """Read the states of all generators, to be compared with a later reading. Takes 2 us."""
    numpy = np.random.get_bit_generator()  # type: ignore[attr-defined]
    states: States = {"random": _python.tobytes()}
    if isinstance(numpy, np.random.MT19937):
        states["numpy"] = _view_numpy(numpy).tobytes()
    else:  # another one that the user has set
        states["numpy"] = repr(numpy.state)
    torch: Any = sys.modules.get("torch")
    if hasattr(torch, "default_generator"):
        state = torch.default_generator.get_state()  # uint8; .numpy().tobytes() takes 1 us more
        states["torch"] = ctypes.string_at(state.data_ptr(), state.numel())
    return states


def list_moved(before: States) -> list[str]:
    """List the generators that have moved since their states were read."""
    return [name for name, state in read_states().items() if before.get(name) != state]


def write_states(states: States, names: Iterable[str]) -> None:
    """Write back the states of these generators; what `gauss` keeps beside them stays."""
    for name in names:
        state: Any = states.get(name)
        if name == "random":
            _python[:] = state
        elif name == "torch" and state is not None:
            torch = sys.modules["torch"]
            torch.default_generator.set_state(torch.frombuffer(bytearray(state), dtype=torch.uint8))
        elif isinstance(state, bytes):
            numpy = np.random.get_bit_generator()  # type: ignore[attr-defined]
            _view_numpy(numpy)[:] = state


class DrawWatch:
    """Watch over functions that make batches: whether they draw from the process's generators.

    In a loop that draws by itself every batch is suspected, and one of 64 is looked into.
    """

    def __init__(self) -> None:
        self._allowed = 0.0  # calls that may be spent now
        self._batches = 0
        self._counted = 0  # of these when something had moved last
        self._refused: str | None = None

    def is_still(self, before: States) -> bool:
        """Return whether no generator has moved, and count the batch if so."""
        if read_states() != before:
            return False
        self._batches += 1
        return True

    def suspect(self, before: States, calls: int) -> tuple[list[str], int]:
        """Return the generators that have moved, and how many of a batch's calls to repeat.

        before:  states from before the batch was made.
        calls:   that make a batch: one, or one for each of its rows.
        """
        most = max(32.0, 4.0 * calls)
        passed = self._batches + 1 - self._counted
        self._allowed = min(most, self._allowed + passed * calls / 64) if self._counted else most
        self._batches += 1
        self._counted = self._batches
        moved = list_moved(before)
        if not moved:
            return moved, 0
        repeats = min(calls, int(self._allowed))
        self._allowed -= repeats
        return moved, repeats

    def check(self, before: States, units: Sequence[Any], make: Make, by: str) -> None:
        """Raise UsageError if what `make` returns for a unit depends on a generator that has moved.

        units:   what a batch consists of: its rows, or itself.
        by:      name of the function in messages.
        """
        moved, repeats = self.suspect(before, len(units))
        for number in range(self._batches, self._batches + repeats):
            unit = units[number % len(units)]
            if self._refused is None and not is_same(make(unit), make(unit)):
                names = " and ".join(f"{name}'s" for name in moved)
                self._refused = (
                    f"{by} draws from {names} global generator, which threads share: use "
                    'sample["__rng__"], or workers="processes" of penstock.torch.DataLoader'
                )
        if moved and self._refused is not None:
            raise UsageError(self._refused)


_identity: Any = object.__eq__


def is_same(one: Any, other: Any) -> bool:
    """Return whether two values are equal: of one shape and dtype, with equal values or NaNs.

    Objects that know no equality are equal if their attributes are.
    """
    if one is other:
        return True
    if isinstance(one, Ragged) and isinstance(other, Ragged):
        one, other = (one.values, one.offsets), (other.values, other.offsets)
    if isinstance(one, Mapping) and isinstance(other, Mapping):
        return one.keys() == other.keys() and _are_same((one[key], other[key]) for key in one)
    if isinstance(one, list | tuple) and isinstance(other, list | tuple):
        return len(one) == len(other) and _are_same(zip(one, other, strict=True))
    if type(one) is type(other) and type(one).__eq__ is _identity:
        return is_same(getattr(one, "__dict__", None), getattr(other, "__dict__", None))
    shape, dtype = getattr(one, "shape", None), getattr(one, "dtype", None)
    if (shape, dtype) != (getattr(other, "shape", None), getattr(other, "dtype", None)):
        return False
    same = (one == other) | ((one != one) & (other != other))
    return bool(same if shape is None else same.all())


def _are_same(pairs: Iterable[tuple[Any, Any]]) -> bool:
    return all(is_same(one, other) for one, other in pairs)
