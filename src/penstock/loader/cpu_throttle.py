"""Processor time as a rate: threads are charged for the time they use, and wait while in debt.

A fraction of a core can thus be granted, and changed at any time, and no thread is started or ended
for it.
"""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable

from ..engine.request_queue import RateAccount
from ..engine.threads import WakeUp

_wait_s = 60.0  # longest wait at once: a debt at a rate near zero outlasts any lock
_turn_s = 0.01  # of work before a wait: after each one, the processor's caches are others'


class CpuThrottle:
    """An account of processor time that several threads share.

    `rate` seconds a second flow into it; None is no limit. Each thread calls `take_turn` before
    each piece of its work. Or one thread calls `charge` for the work of others, and `wait` before
    it hands out more. A waiting thread goes on when the rate has been raised, or after `close`.
    """

    def __init__(self, rate: float | None = None) -> None:
        self._lock = threading.Lock()
        self._waiting: set[WakeUp] = set()  # of each thread that waits
        self.rate = rate
        """Processor seconds a second."""
        self._account = RateAccount()  # of nanoseconds
        self._account.set_rate(None if rate is None else rate * 1e9, 0)
        self._closed = False
        self._limits = 0  # times that a limit was introduced: use before the last is not charged
        self._own = threading.local()

    def adopt(self, rate: float | None) -> None:
        """Apply a rate from now on. A debt remains until there is no limit."""
        with self._lock:
            if self.rate is None:
                self._limits += 1  # time used without a limit is free
            self.rate = rate
            self._account.set_rate(None if rate is None else rate * 1e9, time.monotonic_ns())
        self._wake_all()

    def close(self) -> None:
        """End all waiting, now and later."""
        with self._lock:
            self._closed = True
        self._wake_all()

    @property
    def is_in_debt(self) -> bool:
        """True if `wait` would have to wait now."""
        if self.rate is None:
            return False
        with self._lock:
            return self._account.find_wait_ns(time.monotonic_ns()) > 0

    def charge(self, used_s: float) -> None:
        """Charge processor time that was used. Does not wait."""
        if self.rate is None:
            return
        with self._lock:
            self._account.charge(used_s * 1e9, time.monotonic_ns())

    def wait(self, timeout_s: float = math.inf) -> None:
        """Wait until there is no debt, or the time is over."""
        deadline_s = time.monotonic() + timeout_s

        def find_wait_s() -> float:
            wait_ns = self._account.find_wait_ns(time.monotonic_ns())
            return min(wait_ns * 1e-9, deadline_s - time.monotonic())

        self._wait_while(find_wait_s)

    def wait_until_wanted(self, number: int) -> None:
        """Wait until the thread of this number is one of those that the rate can keep busy.

        Numbers count from 0; the rate is taken to keep thread 0 busy always.
        """
        if self.rate is None:
            return

        self._wait_while(lambda: 0 if self.rate is None or number < max(1, self.rate) else _wait_s)

    def take_turn(self) -> None:
        """Charge the calling thread for its time since its last turn; wait once a turn is owed."""
        if (rate := self.rate) is None:
            return
        used_ns = time.thread_time_ns()
        before_ns, limits = getattr(self._own, "paid", (used_ns, self._limits))
        self._own.paid = used_ns, self._limits
        if limits == self._limits:
            self.charge((used_ns - before_ns) * 1e-9)
        with self._lock:
            wait_s = self._account.find_wait_ns(time.monotonic_ns()) * 1e-9
        if wait_s * rate > _turn_s:
            self.wait()

    def _wait_while(self, find_wait_s: Callable[[], float]) -> None:
        """Wait until a function, called with the lock held, finds that nothing is to be waited for,
        or until `close`. It finds the time after which to ask it again if nothing changes."""
        news = WakeUp()
        self._waiting.add(news)  # before it is asked: a change after that is told
        try:
            while True:
                with self._lock:
                    wait_s = 0.0 if self._closed else find_wait_s()
                if wait_s <= 0:
                    return
                news.wait(min(wait_s, _wait_s))
        finally:
            self._waiting.discard(news)

    def _wake_all(self) -> None:
        for news in self._waiting.copy():
            news.send()
