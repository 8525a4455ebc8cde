"""Processor time as a rate: threads pay for what they have used, and wait while they owe.

So a part of a core can be granted, and changed at any time, without threads being started or ended.
"""

from __future__ import annotations

import math
import threading
import time

_credit_s = 0.05  # time at the rate that threads which were idle may make up for
_wait_s = 60.0  # at a rate near zero a debt would be waited for in longer than a lock can


class CpuThrottle:
    """An account of processor time that several threads share.

    `rate` seconds a second flow into it; None is without limit. Each thread calls `turn` before
    each piece of its work; or one `charge`s for the work of others, and `wait`s before it gives out
    more. Whoever waits goes on when the rate has been raised, or with `close`.
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
                self._owed_s = 0.0  # what was used without a limit
            self._rate = rate
            self._changed.notify_all()

    def close(self) -> None:
        """Nobody waits any more."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()

    @property
    def is_in_debt(self) -> bool:
        """Whether somebody would have to wait now."""
        with self._changed:
            self._settle()
            return self._rate is not None and self._owed_s > 0

    def charge(self, used_s: float) -> None:
        """Somebody has used so much. Does not wait."""
        with self._changed:
            self._settle()
            self._owed_s += used_s

    def wait(self, timeout_s: float = math.inf) -> None:
        """Until nothing is owed."""
        deadline_s = time.monotonic() + timeout_s
        with self._changed:
            self._settle()
            while self._rate is not None and self._owed_s > 0 and not self._closed:
                left_s = deadline_s - self._settled_s
                if left_s <= 0:
                    return
                self._changed.wait(min(self._owed_s / self._rate, left_s, _wait_s))
                self._settle()

    def wait_until_wanted(self, number: int) -> None:
        """Returns when a thread of this number, from 0 on, is one of those that the rate can keep
        busy."""
        if self._rate is None:
            return
        with self._changed:
            while self._rate is not None and number >= self._rate and number and not self._closed:
                self._changed.wait()

    def take_turn(self) -> None:
        """The calling thread pays for all that it has used since its last turn, and waits."""
        if self._rate is None:
            return
        used_ns = time.thread_time_ns()
        before_ns, limits = getattr(self._own, "paid", (used_ns, self._limits))
        self._own.paid = used_ns, self._limits
        if limits == self._limits:
            self.charge((used_ns - before_ns) * 1e-9)
        self.wait()

    def _settle(self) -> None:
        now_s = time.monotonic()
        if self._rate is not None:
            earned_s = (now_s - self._settled_s) * self._rate
            self._owed_s = max(-_credit_s * self._rate, self._owed_s - earned_s)
        self._settled_s = now_s
