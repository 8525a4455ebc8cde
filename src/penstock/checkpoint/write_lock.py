"""The right to write to a repository: one job at a time has it, and a job that was replaced commits
nothing.

In a folder it is a lock file. The job holds a flock if the file system has it, and its name is in
the file, where it is checked before each commit. A second job is refused.

In an object store it is the last of the numbered objects, each of which is written once:

    <prefix>/00000007.index    a checkpoint, or the claim of a job that writes there

A job that starts claims the next number. From then on it knows which number is next, because nobody
else writes there: it writes the next object on the condition that it does not exist, and so on. If
another job has started meanwhile, its claim has taken the number, and the job before can commit
nothing any more. This needs no clock, no lock, and no action of a job that dies. So a job that has
claimed a number may delete the leftovers of earlier jobs: they cannot commit them after that.

Services that do not support the condition are detected when a job starts. With such a service, the
last object written is read again before each commit.
"""

from __future__ import annotations

import contextlib
import errno
import os
import re
import secrets
from typing import NamedTuple, Protocol

from .. import limits
from ..engine.atomic_file import storage_errors
from ..engine.object_client import ObjectInfo, ObjectRefused
from ..errors import FormatError, StorageError, UsageError
from .manifest import SESSION_DIGITS, seal, unseal
from .storage import (
    CheckpointStorage,
    ObjectStorage,
    StorageLock,
    ask_service,
    build_service_error,
)

AGAIN = "save again: nothing was committed"
"""Remedy for a save that failed, once the cause is gone."""


class WriteLock(Protocol):
    """The right of one job to write to a repository."""

    def check(self) -> None:
        """Raise UsageError if another job has taken over."""

    def close(self) -> None:
        """Let other jobs write. May be called again."""


def make_session() -> str:
    """Make the name of a session, unique to a job."""
    return secrets.token_hex(SESSION_DIGITS // 2)


def describe_writer(session: str = "") -> bytes:
    """Describe this process and its session, as locks name them."""
    where = f"process {os.getpid()} on {os.uname().nodename}"
    return (f"{where}, session {session}\n" if session else f"{where}\n").encode()


# -- folders ---------------------------------------------------------------------------------------


class FolderLock:
    """The lock of the one job that writes to a folder. Raises UsageError if another job has it."""

    def __init__(self, storage: CheckpointStorage, folder: str, writer: bytes) -> None:
        self.path, self._storage, self._writer = f"{folder}/.lock", storage, writer
        with storage_errors(self.path, "try again"):
            self._lock: StorageLock = storage.take_lock(self.path, folder, writer)

    def check(self) -> None:
        """Raise UsageError if another job has taken over."""
        writer = b""
        with contextlib.suppress(FileNotFoundError):
            writer = self._storage.read_lock(self.path)
        if writer != self._writer:
            holder = writer.decode(errors="replace").strip() or "the file is empty or gone"
            raise UsageError(
                f"{self.path} belongs to another job now ({holder}): nothing was committed; let one"
                " job write to the folder"
            )

    def close(self) -> None:
        """Let other jobs write. May be called again."""
        self._lock.close()


# -- object stores ---------------------------------------------------------------------------------

_NUMBERED = re.compile(r"(\d{8,})\.index")
_HEAD = re.compile(
    rb'penstock checkpoint \d+ \d+ [0-9a-f]{8}\n{"step":(\d+),"attempt":"([0-9a-z]+)"'
)
_HEAD_BYTES = 256
_CLAIM = b"penstock claim "


class NumberedObject(NamedTuple):
    """A numbered object. attempt: "" for a claim; None if the head of the object is damaged."""

    number: int
    step: int
    attempt: str | None
    written_s: float


class NumberedObjects:
    """The numbered objects below a key. The key ends with a slash, or is empty. url: the key in
    messages."""

    def __init__(self, storage: ObjectStorage, key: str, url: str) -> None:
        self.storage, self._key, self.url = storage, key, url
        self._known: dict[ObjectInfo, NumberedObject] = {}

    def get_url(self, number: int) -> str:
        """Return the URL of a numbered object."""
        return f"{self.url}/{number:08}.index"

    def _get_key(self, number: int) -> str:
        return f"{self._key}{number:08}.index"

    def list_all(self) -> tuple[list[str], list[NumberedObject]]:
        """Return the names of the folders beside the numbered objects, and the objects in order.
        Only the head of each object is read, once; again if it is damaged, perhaps on its way."""
        folders, objects = ask_service(self.url, lambda: self.storage.list_objects(self._key))
        numbered = sorted(
            (int(match[1]), info)
            for info in objects
            if (match := _NUMBERED.fullmatch(info.name[len(self._key) :]))
        )
        new = [pair for pair in numbered if pair[1] not in self._known]
        keys = [self._get_key(number) for number, _ in new]
        heads: list[bytes | None] = []
        if keys:
            heads = ask_service(self.url, lambda: self.storage.fetch_objects(keys, _HEAD_BYTES))
        known: dict[ObjectInfo, NumberedObject | None] = dict(self._known)
        for (number, info), head in zip(new, heads, strict=True):
            known[info] = _describe(number, info, head)
        listed = {info: commit for _, info in numbered if (commit := known[info])}
        self._known = {info: one for info, one in listed.items() if one.attempt is not None}
        return sorted(folders), [*listed.values()]

    def forget(self) -> None:
        """Forget the heads that were read: one was damaged on its way."""
        self._known = {}

    def find_last_number(self) -> int:
        """Return the highest number; 0 if there is no numbered object."""
        _, objects = self.list_all()
        return max((numbered.number for numbered in objects), default=0)

    def read(self, number: int) -> bytes | None:
        """Read a numbered object; None if it does not exist."""
        keys = [self._get_key(number)]
        url = self.get_url(number)
        return ask_service(url, lambda: self.storage.fetch_objects(keys, 1 << 62))[0]

    def read_whole(self, number: int) -> bytes | None:
        """Read a numbered object; StorageError if it is damaged, perhaps on its way, because then
        its writer is unknown."""
        data = self.read(number)
        if data is not None:
            url = self.get_url(number)
            try:
                unseal("claim" if is_claim(data) else "checkpoint", data, url)
            except FormatError as error:
                raise StorageError(f"{error!s}, and {AGAIN}") from None
        return data

    def write(self, number: int, data: bytes, *, new: bool = True) -> bool:
        """Write a numbered object. Returns False if it holds other data.

        new:  True if it must not exist.
        """
        # A request whose answer was lost may have written it.
        return self.put(number, data, new) or self.read_whole(number) == data

    def put(self, number: int, data: bytes, new: bool) -> bool:
        """Put a numbered object; False if it must be new and is not."""
        try:
            self.storage.put_object(self._get_key(number), data, new)
        except ObjectRefused as error:
            if error.code != errno.EEXIST:
                raise build_service_error(error, self.get_url(number), AGAIN) from None
            return False
        return True

    def delete(self, number: int) -> None:
        """Delete a numbered object if it exists."""
        keys = [self._get_key(number)]
        url = self.get_url(number)
        ask_service(url, lambda: self.storage.delete_objects(keys), "try again")

    def delete_old_claims(self) -> None:
        """Delete old claims. Enough stay that a job which was suspended finds its number taken; an
        object that it wrote after more claims than these would be an older checkpoint, and
        damaged."""
        _, objects = self.list_all()
        claims = [numbered.number for numbered in objects if numbered.attempt == ""]
        for number in claims[: -limits.checkpoint_claims]:
            self.delete(number)


def is_claim(data: bytes) -> bool:
    """Return True for the claim of a job, or its head."""
    return data.startswith(_CLAIM)


def _describe(number: int, info: ObjectInfo, head: bytes | None) -> NumberedObject | None:
    """Describe a numbered object by its head; None if it is gone."""
    if head is None:
        return None
    if is_claim(head):
        return NumberedObject(number, -1, "", info.written_s)
    match = _HEAD.match(head)
    if match is None:
        return NumberedObject(number, -1, None, info.written_s)
    return NumberedObject(number, int(match[1]), match[2].decode(), info.written_s)


class Claim:
    """The right of the job with the last claim to write below a prefix."""

    def __init__(
        self, objects: NumberedObjects, number: int, data: bytes, is_conditional: bool
    ) -> None:
        self._objects, self._is_conditional = objects, is_conditional
        self._number, self._data = number, data  # what was written last
        self._unsure: list[bytes] = []
        """Data that may still become the next object: requests without an answer may be late."""

    @classmethod
    def take(cls, objects: NumberedObjects, session: str) -> Claim:
        """Become the job that writes here: the job before can commit nothing any more."""
        data = seal("claim", {"session": session})
        while True:
            number = objects.find_last_number() + 1
            try:
                if not objects.write(number, data):
                    continue  # another job has just taken it
                # Some services overwrite it.
                is_conditional = not objects.put(number, data, new=True)
            except StorageError as error:
                if error.errno != errno.ENOTSUP:
                    raise
                is_conditional = False
                objects.write(number, data, new=False)
            if not is_conditional:
                objects.storage.warn(
                    f"{objects.url}: the service does not support writes on the condition that the"
                    " object does not exist (If-None-Match), so two jobs might commit at"
                    " once: let one job at a time write there"
                )
            return cls(objects, number, data, is_conditional)

    def check(self) -> None:
        """Raise UsageError if another job has taken over."""
        last = self._objects.find_last_number()
        if last == self._number + 1 and (data := self._find_ours(last)) is not None:
            self._number, self._data, self._unsure = last, data, []
        elif last != self._number or not (
            self._is_conditional or self._objects.read(last) == self._data
        ):
            raise self._build_lost_error(last)

    def append(self, data: bytes) -> int:
        """Write the next numbered object and return its number. UsageError if another job has taken
        over.

        StorageError if it is not known whether the object was written: the next call finds out.
        """
        while True:
            self.check()
            if data == self._data:
                return self._number  # an earlier call has written it, and got no answer
            number = self._number + 1
            try:
                is_taken = not self._objects.write(number, data, new=self._is_conditional)
            except StorageError:
                self._unsure.append(data)
                raise
            if not is_taken:
                self._number, self._data, self._unsure = number, data, []
                return number
            if self._find_ours(number) is None:
                raise self._build_lost_error(number)

    def _find_ours(self, number: int) -> bytes | None:
        """Return the data of an object if earlier calls may have written it."""
        data = self._objects.read_whole(number) if self._unsure else None
        return data if data in self._unsure else None

    def _build_lost_error(self, number: int) -> UsageError:
        data = self._objects.read(number)
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
            f"{self._objects.url}: {how}: nothing was committed; let one job write to it"
        )

    def close(self) -> None:
        """Do nothing: the next job claims the prefix, as it does after a job that was killed."""
