"""Interrupts at each place where CPython handles a signal."""

from __future__ import annotations

import inspect
import sys
import threading
from collections.abc import Callable, Sequence
from opcode import opname
from types import CodeType, FrameType, ModuleType
from typing import Any

_patience_s = 240.0
"""Guard against hanging, not a measure."""

_HANDLING = {"RESUME", "JUMP_BACKWARD", "CALL", "CALL_KW", "CALL_FUNCTION_EX"}
"""Instructions after which it looks for signals (CHECK_EVAL_BREAKER in its `bytecodes.c`)."""


class InterruptAt:
    """Trace function that raises KeyboardInterrupt at the n-th place in some modules where CPython
    handles a signal: after a call, at the start of a function, and where a loop goes back.

    So it is no place between the last call of a `with` block and the call that ends the block, nor
    at the start of a handler, where an exception would leave the handled one set for good.

    left:  places that are to come before that; -1 once it has been raised.
    """

    def __init__(self, number: int, modules: Sequence[ModuleType]) -> None:
        self.left = number
        self._files = {inspect.getsourcefile(module) for module in modules}
        self._before: dict[FrameType, str] = {}
        self._codes: dict[CodeType, bytes] = {}

    def __call__(self, frame: FrameType, event: str, argument: Any) -> Any:
        if frame.f_code.co_filename not in self._files or self._is_destroying(frame):
            return None
        frame.f_trace_opcodes, frame.f_trace_lines = True, False
        if event in ("return", "exception"):  # a call that raised looks for no signal
            self._before.pop(frame, None)
        elif event == "opcode":
            before = self._before.get(frame, "")
            self._before[frame] = opname[self._read_code(frame)[frame.f_lasti]]
            if before in _HANDLING:
                if self.left == 0:
                    self.left = -1
                    self._before.clear()  # else frames, and what they hold, would live on
                    raise KeyboardInterrupt
                self.left -= 1
        return self

    def _read_code(self, frame: FrameType) -> bytes:
        code = frame.f_code
        if code not in self._codes:  # it is a copy each time
            self._codes[code] = code.co_code
        return self._codes[code]

    @staticmethod
    def _is_destroying(frame: FrameType | None) -> bool:
        """Return whether a destructor runs: an interrupt there is printed, and lost."""
        while frame is not None and frame.f_code.co_name != "__del__":
            frame = frame.f_back
        return frame is not None


def interrupt(place: int, modules: Sequence[ModuleType], call: Callable[[], Any]) -> bool:
    """Call, and interrupt it at a place; False if it ended before. No other error comes of it.

    An interrupt that CPython drops, as in a callback of a weak reference, counts as one, too.
    """
    tracer = InterruptAt(place, modules)
    dropped: list[Any] = []
    hook, sys.unraisablehook = sys.unraisablehook, dropped.append
    sys.settrace(tracer)
    try:
        call()
    except KeyboardInterrupt:
        assert tracer.left < 0
        return True
    finally:
        sys.settrace(None)
        sys.unraisablehook = hook
    assert all(one.exc_type is KeyboardInterrupt for one in dropped), dropped
    return bool(dropped)


def end_in_thread(call: Callable[[], Any], place: int) -> Any:
    """Call in another thread, which ends, and raises nothing. Returns what it returned."""
    results: list[Any] = []
    thread = threading.Thread(target=lambda: results.append(call()), daemon=True)
    thread.start()
    thread.join(_patience_s)
    assert not thread.is_alive(), f"hangs after an interrupt at place {place}"
    assert results, f"raised after an interrupt at place {place}"
    return results[0]
