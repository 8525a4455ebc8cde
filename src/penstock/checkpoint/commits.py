"""The commits of a repository in an object store: numbered objects, each of which is written once.
Pure.

    <prefix>/00000007.index    a checkpoint, or the claim of a job that writes there

A job that begins claims the next number. From then on it knows which number is next, because nobody
else writes there: it writes the next object on the condition that it does not exist, and so on. If
another job has begun meanwhile, its claim has taken the number, and the job before can commit
nothing any more. This needs no clock, no lock, and no action of a job that dies.

So a job that has claimed a number may remove the leftovers of earlier jobs: they cannot commit them
after that.

Services that do not support the condition are detected when a job begins. With such a service, the
last object written is read again before each commit.
"""

from __future__ import annotations

import errno
import re
from typing import Any, NamedTuple

from .. import limits
from ..engine import ObjectInfo, ObjectRefused
from ..errors import FormatError, MissingError, PenstockError, StorageError, UsageError
from .actions import (
    Action,
    DeleteObjects,
    FetchObjects,
    ListObjects,
    PutObject,
    Steps,
    WarnUser,
)
from .manifest import seal, unseal
from .repository_steps import AGAIN

_NUMBERED = re.compile(r"(\d{8,})\.index")
_HEAD = re.compile(
    rb'penstock checkpoint \d+ \d+ [0-9a-f]{8}\n{"step":(\d+),"attempt":"([0-9a-z]+)"'
)
_HEAD_BYTES = 256
_CLAIM = b"penstock claim "


class Commit(NamedTuple):
    """A numbered object. attempt: "" for a claim; None if the beginning of the object is
    damaged."""

    number: int
    step: int
    attempt: str | None
    written_s: float


class Commits:
    """The numbered objects below a key, which ends with a slash or is empty. url: the key in
    messages."""

    def __init__(self, bucket: Any, key: str, url: str) -> None:
        self._bucket, self._key, self.url = bucket, key, url
        self._known: dict[ObjectInfo, Commit] = {}

    def get_url(self, number: int) -> str:
        """Return the URL of a numbered object."""
        return f"{self.url}/{number:08}.index"

    def _get_key(self, number: int) -> str:
        return f"{self._key}{number:08}.index"

    def list_commits(self) -> Steps[tuple[list[str], list[Commit]]]:
        """List the names of the folders beside the numbered objects, and the numbered objects in
        order. Of each object only the beginning is read, and only once; again if that is damaged,
        perhaps on its way."""
        folders, objects = yield from ask_service(self.url, ListObjects(self._bucket, self._key))
        numbered = sorted(
            (int(match[1]), info)
            for info in objects
            if (match := _NUMBERED.fullmatch(info.name[len(self._key) :]))
        )
        new = [pair for pair in numbered if pair[1] not in self._known]
        keys = [self._get_key(number) for number, _ in new]
        heads: list[bytes | None] = []
        if keys:
            fetch = FetchObjects(self._bucket, keys, _HEAD_BYTES)
            heads = yield from ask_service(self.url, fetch)
        known: dict[ObjectInfo, Commit | None] = dict(self._known)
        for (number, info), head in zip(new, heads, strict=True):
            known[info] = _describe(number, info, head)
        found = {info: commit for _, info in numbered if (commit := known[info])}
        self._known = {info: commit for info, commit in found.items() if commit.attempt is not None}
        return sorted(folders), list(found.values())

    def forget(self) -> None:
        """Forget the beginnings that were read: one was damaged on its way."""
        self._known = {}

    def read(self, number: int) -> Steps[bytes | None]:
        """Read a numbered object; None if it does not exist."""
        fetch = FetchObjects(self._bucket, [self._get_key(number)], 1 << 62)
        data: bytes | None
        (data,) = yield from ask_service(self.get_url(number), fetch)
        return data

    def read_whole(self, number: int) -> Steps[bytes | None]:
        """Read a numbered object; StorageError if it is damaged, perhaps on its way: then it cannot
        be told whose it is."""
        data = yield from self.read(number)
        if data is not None:
            url = self.get_url(number)
            try:
                unseal("claim" if is_claim(data) else "checkpoint", data, url)
            except FormatError as error:
                raise StorageError(f"{error!s}, and {AGAIN}") from None
        return data

    def write(self, number: int, data: bytes, *, new: bool = True) -> Steps[bool]:
        """Write a numbered object. Returns False if it holds other data.

        new:  True if it must not exist.
        """
        # It may have been written by a request whose answer was lost.
        is_done = yield from self._put(number, data, new)
        return is_done or (yield from self.read_whole(number)) == data

    def _put(self, number: int, data: bytes, new: bool) -> Steps[bool]:
        """Put a numbered object; False if it must be new and is not."""
        try:
            yield PutObject(self._bucket, self._get_key(number), data, new)
        except ObjectRefused as error:
            if error.code != errno.EEXIST:
                raise build_service_error(error, self.get_url(number), AGAIN) from None
            return False
        return True

    def remove(self, number: int) -> Steps[None]:
        """Remove a numbered object if it exists."""
        delete = DeleteObjects(self._bucket, [self._get_key(number)])
        yield from ask_service(self.get_url(number), delete, "try again")

    def claim(self, session: str) -> Steps[Claim]:
        """Become the job that writes here: the job before can commit nothing any more."""
        data = seal("claim", {"session": session})
        while True:
            number = (yield from self.find_last_number()) + 1
            try:
                if not (yield from self.write(number, data)):
                    continue  # another job has just taken it
                # some services overwrite it
                is_conditional = not (yield from self._put(number, data, new=True))
            except StorageError as error:
                if error.errno != errno.ENOTSUP:
                    raise
                is_conditional = False
                yield from self.write(number, data, new=False)
            if not is_conditional:
                yield WarnUser(
                    f"{self.url}: the service does not support writes on the condition that the"
                    " object does not exist (If-None-Match), so two jobs might commit at"
                    " once: let one job at a time write there"
                )
            return Claim(self, number, data, is_conditional)

    def find_last_number(self) -> Steps[int]:
        """Find the highest number."""
        _, commits = yield from self.list_commits()
        return max((commit.number for commit in commits), default=0)

    def thin(self) -> Steps[None]:
        """Remove old claims. Enough stay that a job which was suspended finds its number taken; an
        object that it wrote after more claims than these would be an older checkpoint, and
        damaged."""
        _, commits = yield from self.list_commits()
        claims = [commit.number for commit in commits if commit.attempt == ""]
        for number in claims[: -limits.checkpoint_claims]:
            yield from self.remove(number)


def is_claim(data: bytes) -> bool:
    """True for the claim of a job, and its beginning."""
    return data.startswith(_CLAIM)


def _describe(number: int, info: ObjectInfo, head: bytes | None) -> Commit | None:
    """Describe a numbered object by its beginning; None if it is gone."""
    if head is None:
        return None
    if is_claim(head):
        return Commit(number, -1, "", info.written_s)
    match = _HEAD.match(head)
    if match is None:
        return Commit(number, -1, None, info.written_s)
    return Commit(number, int(match[1]), match[2].decode(), info.written_s)


class Claim:
    """The lock of the one job that writes to a prefix: the job of the last claim. A
    `RepositoryLock`."""

    def __init__(self, commits: Commits, number: int, data: bytes, conditional: bool) -> None:
        self._commits, self._conditional = commits, conditional
        self._number, self._data = number, data  # what was written last
        self._unsure: list[bytes] = []
        """Data that may still become the next object: requests without an answer may be late."""

    def check(self) -> Steps[None]:
        """Raise UsageError if another job has taken over."""
        last = yield from self._commits.find_last_number()
        if last == self._number + 1 and (data := (yield from self._find_ours(last))) is not None:
            self._number, self._data, self._unsure = last, data, []
        elif last != self._number or not (
            self._conditional or (yield from self._commits.read(last)) == self._data
        ):
            raise (yield from self._build_lost_error(last))

    def append(self, data: bytes) -> Steps[int]:
        """Write the next numbered object and return its number. UsageError if another job has taken
        over.

        StorageError if it is not known whether the object was written: the next call finds out.
        """
        while True:
            yield from self.check()
            if data == self._data:
                return self._number  # an earlier call has written it, and got no answer
            number = self._number + 1
            try:
                is_taken = not (yield from self._commits.write(number, data, new=self._conditional))
            except StorageError:
                self._unsure.append(data)
                raise
            if not is_taken:
                self._number, self._data, self._unsure = number, data, []
                return number
            if (yield from self._find_ours(number)) is None:
                raise (yield from self._build_lost_error(number))

    def _find_ours(self, number: int) -> Steps[bytes | None]:
        """Return the data of an object if earlier calls may have written it."""
        data = (yield from self._commits.read_whole(number)) if self._unsure else None
        return data if data in self._unsure else None

    def _build_lost_error(self, number: int) -> Steps[UsageError]:
        data = yield from self._commits.read(number)
        if number < self._number or data is None:
            how = f"the last object of this job, {self._number:08}.index, was removed"
        else:
            try:
                claim = unseal("claim", data, "")
                holder = str(dict(claim)["session"]).strip()
            except (FormatError, LookupError, TypeError, ValueError):
                holder = "it has committed a checkpoint since"
            how = f"another job has taken it over ({holder})"
        return UsageError(
            f"{self._commits.url}: {how}: nothing was committed; let one job write to it"
        )

    def close(self) -> None:
        """Do nothing: the next job claims the prefix, as it does after a job that was killed."""


# -- asking ----------------------------------------------------------------------------------------


def ask_service(url: str, action: Action, again: str = "") -> Steps[Any]:
    """Ask a service, and return its answer. If it refuses, raise the error that says why.

    again:  the remedy once the cause is gone, for a write; empty for a read.
    """
    try:
        answer = yield action
    except ObjectRefused as error:
        raise build_service_error(error, url, again) from None
    return answer


def build_service_error(error: ObjectRefused, url: str, again: str = "") -> PenstockError:
    """Build the error that a service's refusal means for a checkpoint."""
    done = "written" if again else "read"
    if error.code == errno.ENOENT and not again:
        return MissingError(
            f"{url} is not there ({error.what}): the job that writes there may have removed it:"
            " list the checkpoints that are left, and load one of them; or check the name, and the"
            " service's endpoint (AWS_ENDPOINT_URL)"
        )
    remedy = "check the service and the network"
    if error.code == errno.EACCES:
        remedy = "check the credentials and their permissions (docs/objects.md)"
    elif error.code == errno.ENOENT:
        remedy = "check the name, and the service's endpoint (AWS_ENDPOINT_URL)"
    storage_error = StorageError(
        f"{url} cannot be {done}: {error.what}: {remedy}" + (f", and {again}" if again else "")
    )
    storage_error.errno = error.code
    return storage_error
