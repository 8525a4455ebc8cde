"""Threads that run one at a time, as an event loop wants: each runs until it asks for something.

The loop and its threads pass a baton: `resume` lets a thread run and returns what it asks for next,
and `ask`, in the thread, returns what the loop answers. So a run depends on the order of the calls
of `resume` alone, as if the threads were generators, and the code in them is plain code.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

_patience_s = 60.0
"""Time after which a thread that does not hand the baton back is a failure: it loops or waits."""


class KilledError(BaseException):
    """The end of a thread's process, raised at the request that it waits for."""


class BatonThread:
    """A thread that runs only while the loop waits for it.

    is_over:  True once its work has returned or raised.
    value:    that the work has returned.
    """

    def __init__(self, work: Callable[[], Any]) -> None:
        self._work = work
        self._turn, self._back = threading.Lock(), threading.Lock()
        self._turn.acquire()
        self._back.acquire()
        self._thread: threading.Thread | None = None
        self._request: Any = None
        self._answer: Any = None
        self._refusal: BaseException | None = None  # raised in the thread
        self._failure: BaseException | None = None  # raised in the loop
        self.is_over = False
        self.value: Any = None

    def resume(self, answer: Any = None, refusal: BaseException | None = None) -> Any:
        """Let the thread go on with an answer, or with an error, until it asks again. Returns the
        request; None at its end. Raises what the work raises."""
        self._answer, self._refusal = answer, refusal
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, daemon=True)
            self._thread.start()
        else:
            self._turn.release()
        if not self._back.acquire(timeout=_patience_s):
            raise AssertionError("a thread does not hand the baton back")
        if self._failure is not None:
            failure, self._failure = self._failure, None
            raise failure
        return self._request

    def kill(self) -> None:
        """End the thread: its request, and each later one, raises KilledError."""
        if self._thread is None or self.is_over:
            self.is_over = True
            return
        try:
            request = self.resume(refusal=KilledError())
        except KilledError:
            return
        assert request is None, "a thread that was killed asks for more"

    def ask(self, request: Any) -> Any:
        """Return the loop's answer to a request, or raise its error. Called in the thread."""
        self._request = request
        self._back.release()
        self._turn.acquire()
        if self._refusal is not None:
            raise self._refusal
        return self._answer

    def _run(self) -> None:
        try:
            self.value = self._work()
        except BaseException as error:
            self._failure = error
        self._request, self.is_over = None, True
        del self._work
        self._back.release()
