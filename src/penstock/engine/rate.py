"""The account of a rate: when the next bytes may start to move. Pure."""

from __future__ import annotations

_BURST_NS = 100_000_000
"""Unused time of the rate that may be used later: threads that wait wake up late."""


class RateAccount:
    """The bytes that moved, against a rate that may change. Times are of one clock that never goes
    back.

    Bytes may start to move as soon as all bytes before them are paid for. A change of the rate
    applies to what is owed, too.
    """

    def __init__(self) -> None:
        self._bytes_per_s: float | None = None
        self._paid_ns = 0  # when everything that moved so far is paid for

    def set_rate(self, bytes_per_s: float | None, now_ns: int) -> None:
        """Change the rate; None is unlimited."""
        old = self._bytes_per_s
        if bytes_per_s == old:
            return
        owed_ns = self.find_wait_ns(now_ns)
        self._bytes_per_s = bytes_per_s
        self._paid_ns = now_ns
        if owed_ns and old is not None and bytes_per_s is not None:
            self._paid_ns += _round_up_ns(owed_ns * (old / bytes_per_s))

    def find_wait_ns(self, now_ns: int) -> int:
        """Return the time until bytes may start to move; 0 for now."""
        return 0 if self._bytes_per_s is None else max(0, self._paid_ns - now_ns)

    def charge(self, bytes_: int, now_ns: int) -> None:
        """Charge bytes that start to move."""
        if self._bytes_per_s is not None:
            start_ns = max(self._paid_ns, now_ns - _BURST_NS)
            self._paid_ns = start_ns + _round_up_ns(bytes_ * 1e9 / self._bytes_per_s)


def _round_up_ns(time_ns: float) -> int:
    return -int(-min(time_ns, 2.0**63) // 1)  # 292 years at most
