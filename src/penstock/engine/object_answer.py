"""Values of requests for objects: what is described, given and refused; and asking again."""

from __future__ import annotations

import errno
import hashlib
import random
import time
from collections.abc import Callable
from typing import NamedTuple, TypeVar

from .. import limits


class ObjectRefused(Exception):
    """Error of a request for an object.

    code:   the errno that gives the reason.
    what:   the reason in words, without secrets.
    again:  whether asking again may help.
    after_s:  how long to wait before that, if the service said so.
    """

    def __init__(self, code: int, what: str, again: bool = False, after_s: float = 0) -> None:
        super().__init__(what)
        self.code, self.what, self.again, self.after_s = code, what, again, after_s


class ObjectInfo(NamedTuple):
    """An object as a listing or an answer describes it.

    name:       its key.
    version:    63 bits that change with its content: see `compute_version`.
    written_s:  when it was written, in seconds since 1970; 0 if that is not known.
    """

    name: str
    size: int
    version: int
    written_s: float = 0.0


class Answer(NamedTuple):
    """The bytes of a range, with the size and version of their object."""

    data: memoryview
    size: int
    version: int


def compute_version(e_tag: str | None, modified: str) -> int:
    """Compute the version of an object, 63 bits: a digest of its etag, or, without one, of the time
    (to the second) at which it was written. Listings quote etags differently from answers."""
    tag = (e_tag or "").strip().removeprefix("W/").strip('"')
    return hash_content(b"etag", tag.encode()) if tag else hash_content(b"time", modified.encode())


def hash_content(kind: bytes, content: bytes) -> int:
    """Return 63 bits of a hash."""
    hashed = hashlib.blake2b(content, digest_size=8, person=kind).digest()
    return int.from_bytes(hashed, "little") >> 1


T = TypeVar("T")


def _sleep(seconds: float) -> bool:
    time.sleep(seconds)
    return True


def retry_until(
    ask: Callable[[], T], deadline_s: float, pause: Callable[[float], bool] = _sleep
) -> T:
    """Call `ask` until it succeeds, while repeating may help and until the deadline; else
    ObjectRefused.

    Pauses double, and are a random part of that, so that many clients refused together do not come
    back together. `pause` waits so many seconds, and returns whether to go on.
    """
    deadline = time.monotonic() + deadline_s
    longest_s = limits.object_pause_s
    while True:
        try:
            return ask()
        except ObjectRefused as error:
            if not error.again:
                raise
            problem, after_s = error.what, error.after_s
        pause_s = max(random.uniform(longest_s / 4, longest_s), after_s)
        if time.monotonic() + pause_s > deadline:
            raise build_timeout(problem, deadline_s)
        if not pause(pause_s):
            raise ObjectRefused(errno.ECANCELED, "given up")
        longest_s = min(2 * longest_s, limits.object_pause_s_max)


def build_timeout(problem: str, deadline_s: float) -> ObjectRefused:
    return ObjectRefused(errno.ETIMEDOUT, f"{problem}, for {deadline_s:g} s")


def require_whole(answer: Answer, start: int, stop: int) -> Answer:
    """Return the answer if it holds all that exists of [start, stop): a body may be cut short
    silently."""
    if len(answer.data) != min(stop, answer.size) - start:
        raise ObjectRefused(errno.EIO, "the answer was cut short", again=True)
    return answer
