"""Processor time as a rate: threads pay for what they have used, and wait while they owe.

So a part of a core can be granted, and changed at any time, without threads being started or ended.
"""

from __future__ import annotations

import threading
import time

_credit_s = 0.05  # time at the rate that threads which were idle may make up for
_wait_s = 60.0  # at a rate near zero a debt would be waited for in longer than a lock can


class Pacing:
    """An account of processor time that several threads share.

    `rate` seconds a second flow into it; None is without limit. Each thread calls `turn` before
    each piece of its work, which charges what the thread has used since the last time, and returns
    when no more is owed. Whoever waits goes on when the rate has been raised, or with `close`.
    """

    def __init__(self, rate: float | None = None) -> None:
        self._changed = threading.Condition(threading.Lock())
        self._rate = rate
        self._owed_s = 0.0
        self._settled_s = time.monotonic()
        self._closed = False
        self._limits = 0  # how often there has begun to be one: nothing before it is charged
        self._own = threading.local()

    @property
    def rate(self) -> float | None:
        """Seconds of processors a second."""
        return self._rate

    def adopt(self, rate: float | None) -> None:
        """From now on. What is owed stays owed, until there is no limit."""
        with self._changed:
            self._settle()
            if self._rate is None:
                self._limits += 1
                self._owed_s = 0.0
            self._rate = rate
            self._changed.notify_all()

    def close(self) -> None:
        """Nobody waits any more."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()

    def turn(self) -> None:
        """The calling thread pays, and waits for its turn."""
        if self._rate is None:
            return
        used_ns = time.thread_time_ns()
        before_ns, limits = getattr(self._own, "paid", (used_ns, self._limits))
        with self._changed:
            if limits == self._limits:
                self._owed_s += (used_ns - before_ns) * 1e-9
            self._own.paid = used_ns, self._limits
            self._settle()
            while self._rate is not None and self._owed_s > 0 and not self._closed:
                self._changed.wait(min(self._owed_s / self._rate, _wait_s))
                self._settle()

    def _settle(self) -> None:
        now_s = time.monotonic()
        if self._rate is not None:
            earned_s = (now_s - self._settled_s) * self._rate
            self._owed_s = max(-_credit_s * self._rate, self._owed_s - earned_s)
        self._settled_s = now_s
