"""What is committed in an object store: objects with numbers, each of which is written once.

    <prefix>/00000007.index    a checkpoint, or the claim of a job that writes there

A job that begins claims the next number, and knows from then on which one is next, as nobody else
writes there: it writes that one, on the condition that there is none, and so on. Where another job
has begun meanwhile, the number is taken by its claim, and the job before can commit nothing any
more. No clock and no lock is needed for that, and nothing that a job must still do when it dies.

So who has claimed a number may remove what earlier jobs left: they cannot commit it after that.

Services that know no such condition are told apart when a job begins; there, what is written last
is looked at before each commit.
"""

from __future__ import annotations

import errno
import re
import time
import warnings
from collections.abc import Callable
from typing import NamedTuple, TypeVar

from .. import limits
from ..engine import Bucket, ObjectInfo, ObjectRefused, map_in_threads, require_whole, retry_until
from ..errors import FormatError, MissingError, PenstockError, StorageError, UsageError
from .fault_points import reached
from .manifest import seal, unsealed
from .repository import AGAIN

T = TypeVar("T")

_NUMBERED = re.compile(r"(\d{8,})\.index")
_HEAD = re.compile(
    rb'penstock checkpoint \d+ \d+ [0-9a-f]{8}\n{"step":(\d+),"attempt":"([0-9a-z]+)"'
)
_HEAD_BYTES = 256
_CLAIM = b"penstock claim "


class Commit(NamedTuple):
    """A numbered object. attempt: "" of a claim; None where its beginning is damaged."""

    number: int
    step: int
    attempt: str | None
    written_s: float


class Commits:
    """The numbered objects below a key that ends at a slash, or is empty; url: what that is called
    in messages."""

    def __init__(self, bucket: Bucket, key: str, url: str) -> None:
        self._bucket, self._key, self.url = bucket, key, url
        self._known: dict[ObjectInfo, Commit] = {}

    def name(self, number: int) -> str:
        """The URL of one."""
        return f"{self.url}/{number:08}.index"

    def level(self) -> tuple[list[str], list[Commit]]:
        """The folders beside them, by name, and what has a number, in order; only how it begins is
        read, and that once."""
        folders, found = asked(self.url, lambda: self._bucket.level(self._key))
        numbered = sorted(
            (int(match[1]), each)
            for each in found
            if (match := _NUMBERED.fullmatch(each.name[len(self._key) :]))
        )
        new = [pair for pair in numbered if pair[1] not in self._known]
        heads = map_in_threads(lambda i: self._described(*new[i]), len(new))
        known = self._known | dict(zip((each for _, each in new), heads, strict=True))
        self._known = {each: commit for _, each in numbered if (commit := known[each])}
        return sorted(folders), list(self._known.values())

    def _described(self, number: int, found: ObjectInfo) -> Commit | None:
        data = self.read(number, _HEAD_BYTES)
        if data is None:
            return None
        if data.startswith(_CLAIM):
            return Commit(number, -1, "", found.written_s)
        match = _HEAD.match(data)
        if match is None:
            return Commit(number, -1, None, found.written_s)
        return Commit(number, int(match[1]), match[2].decode(), found.written_s)

    def read(self, number: int, stop: int = 1 << 62) -> bytes | None:
        """What one holds, up to `stop`; None where there is none."""
        key = self._key + f"{number:08}.index"

        def ask() -> bytes | None:
            try:
                return bytes(require_whole(self._bucket.fetch(key, 0, stop), 0, stop).data)
            except ObjectRefused as error:
                if error.code == errno.ENOENT:
                    return None
                if error.code == errno.ERANGE:  # it is empty
                    return b""
                raise

        return asked(self.name(number), ask)

    def write(self, number: int, data: bytes, *, new: bool = True) -> bool:
        """Write one. new: unless there is one; False where it holds something else."""
        url = self.name(number)
        reached(f"put {url}")
        done = self._put(number, data, new)
        reached(f"was put {url}")
        # It may have been written by a request whose answer was lost.
        return done or self.read(number) == data

    def _put(self, number: int, data: bytes, new: bool) -> bool:
        """Write one; False where it must be new and is not."""
        key = self._key + f"{number:08}.index"

        def ask() -> bool:
            try:
                self._bucket.put(key, data, new=new)
            except ObjectRefused as error:
                if error.code != errno.EEXIST:
                    raise
                return False
            return True

        return asked(self.name(number), ask, AGAIN)

    def remove(self, number: int) -> None:
        """Remove one, if it is there."""
        key, url = self._key + f"{number:08}.index", self.name(number)
        reached(f"delete {url}")
        asked(url, lambda: self._bucket.delete([key]), "try again")
        reached(f"deleted {url}")

    def claim(self, session: str) -> Claim:
        """Become the one that writes here: the one before can commit nothing any more."""
        data = seal("claim", {"session": session})
        while True:
            number = self.last() + 1
            try:
                if not self.write(number, data):
                    continue  # another job has just taken it
                conditional = not self._put(number, data, new=True)  # some services overwrite it
            except StorageError as error:
                if error.errno != errno.ENOTSUP:
                    raise
                conditional = False
                self.write(number, data, new=False)
            if not conditional:
                warnings.warn(
                    f"{self.url}: the service cannot write an object on the condition that there is"
                    " none (If-None-Match), so two jobs might commit at once: let one job at a time"
                    " write there",
                    RuntimeWarning,
                    stacklevel=2,
                )
            return Claim(self, number, data, conditional)

    def last(self) -> int:
        """The highest number."""
        return max((each.number for each in self.level()[1]), default=0)

    def thin(self) -> None:
        """Remove old claims. Enough stay that a job which slept meanwhile finds its number taken;
        what it wrote after more of them would be an older checkpoint, and damaged."""
        claims = [each.number for each in self.level()[1] if each.attempt == ""]
        for number in claims[: -limits.checkpoint_claims]:
            self.remove(number)


class Claim:
    """One writer per prefix: that of the last claim. See `penstock.checkpoint.Lock`."""

    def __init__(self, commits: Commits, number: int, data: bytes, conditional: bool) -> None:
        self._commits, self._conditional = commits, conditional
        self._number, self._data = number, data  # what was written last
        self._unsure: bytes | None = None

    def check(self) -> None:
        last = self._commits.last()
        if last == self._number + 1 and self._is_ours(last):
            self._number, self._unsure = last, None
        elif last != self._number or not (
            self._conditional or self._commits.read(last) == self._data
        ):
            raise self._lost(last)

    def append(self, data: bytes) -> int:
        """Write the next number; it. UsageError where another job has taken over.

        StorageError where it is not known whether it was written: the next call finds out.
        """
        while True:
            self.check()
            number = self._number + 1
            try:
                taken = not self._commits.write(number, data, new=self._conditional)
            except StorageError:
                self._unsure = data
                raise
            if not taken:
                self._number, self._data, self._unsure = number, data, None
                return number
            if not self._is_ours(number):
                raise self._lost(number)

    def _is_ours(self, number: int) -> bool:
        """Whether it is what an earlier call may have written."""
        return self._unsure is not None and self._commits.read(number) == self._unsure

    def _lost(self, number: int) -> UsageError:
        found = self._commits.read(number)
        if number < self._number or found is None:
            how = f"what this job wrote last, {self._number:08}.index, was removed"
        else:
            try:
                holder = str(unsealed("claim", found, "")["session"]).strip()
            except FormatError:
                holder = "it has committed since"
            how = f"it is of another job now ({holder})"
        return UsageError(
            f"{self._commits.url}: {how}: nothing was committed; let one job write to it"
        )

    def close(self) -> None:
        """Nothing: the next job claims it as well after one that was killed."""


# -- asking ----------------------------------------------------------------------------------------


def asked(url: str, ask: Callable[[], T], again: str = "") -> T:
    """The answer, asking again where that may help; or the error that says why there is none.
    again: what helps once the cause is gone, of what is written; nothing of what is read."""
    try:
        return retry_until(ask, limits.object_deadline_s, _sleep)
    except ObjectRefused as error:
        raise failed(error, url, again) from None


def failed(error: ObjectRefused, url: str, again: str = "") -> PenstockError:
    """What a service's refusal means for a checkpoint."""
    done = "written" if again else "read"
    if error.code == errno.ENOENT and not again:
        return MissingError(
            f"{url} is not there ({error.what}): it was removed, by the job that writes there"
            " perhaps: list what is left, and load that; or check the name, and the service's"
            " endpoint (AWS_ENDPOINT_URL)"
        )
    remedy = "check the service and the network"
    if error.code == errno.EACCES:
        remedy = "check the credentials, and what they allow (docs/objects.md)"
    elif error.code == errno.ENOENT:
        remedy = "check the name, and the service's endpoint (AWS_ENDPOINT_URL)"
    found = StorageError(
        f"{url} cannot be {done}: {error.what}: {remedy}" + (f", and {again}" if again else "")
    )
    found.errno = error.code
    return found


def _sleep(seconds: float) -> bool:
    time.sleep(seconds)
    return True
