"""Datasets of the Hugging Face hub: hf://datasets/ORG/NAME@REVISION/PATH.

A revision (a branch, a tag) is resolved to a commit once, when a URL is opened; from then on only
the commit is read, whose files never change. The hub answers most ranges with a signed address of
another server, used until it expires. The token goes to the hub's own host alone.

`huggingface_hub` knows the token, the local cache and whether to stay offline, and sends the
requests. Its `HfApi` is not used: its listings have no timeout and send the token to any host that
a page names next, and its headers ask the public hub for a list of agents first.

If the local cache holds the files, they are read there. Failures are `ObjectRefused`.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import re
import threading
import time
import warnings
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple
from urllib.parse import quote, unquote, urljoin, urlsplit

from .. import limits
from ..errors import UsageError, missing_library
from .globbing import cut_at_special
from .leftovers import is_left_over
from .object_client import (
    Answer,
    ObjectInfo,
    ObjectRefused,
    compute_version,
    open_shared,
    retry_until,
)
from .store import build_storage_error

_COMMIT = re.compile(r"[0-9a-f]{40}")
_URL = re.compile(
    r"datasets/([\w.-]+(?:/[\w.-]+)?)(?:@(refs/(?:pr|convert)/[^/]+|[^/]+))?(?:/([^\0]*))?"
)
"""Repository, revision and path, after hf://."""
_IN_CACHE = re.compile(r"/(datasets--[^/]+)/snapshots/([0-9a-f]{40})(?:/|$)")
_PINNED = re.compile(r"hf://datasets/[^@]+@([0-9a-f]{40})(?:/|$)")
_DOCUMENT = re.compile(
    r"(^|/)(readme|license|licence|notice|citation|dataset_infos\.json|[^/]*\.(md|py|txt)$)", re.I
)
"""Files of a repository that describe the data."""
_DATA_FILES_MAX = 100_000
_AGAIN = {408, 425, 429, 500, 502, 503, 504}


class HubLocation(NamedTuple):
    """The parts of a URL of the hub. `revision` is "" if the URL names none."""

    repository: str
    revision: str
    path: str

    @property
    def url(self) -> str:
        """The URL again; a slash in the revision is written as %2F."""
        at = f"@{quote(self.revision, '')}" if self.revision else ""
        return f"hf://datasets/{self.repository}{at}" + (f"/{self.path}" if self.path else "")


def parse_hub_url(url: str) -> HubLocation:
    """Parse hf://datasets/ORG/NAME[@REVISION][/PATH]; UsageError if it has another form."""
    match = _URL.fullmatch(url.partition("://")[2])
    repository, revision, path = match.groups("") if match is not None else ("..", "", "")
    revision = unquote(revision)
    names = repository.split("/")
    is_short = len(names) == 1 and path and not revision  # the path starts with a wrong name
    is_outside = any(set(name) == {"."} for name in names)
    if is_short or is_outside or ".." in [*path.split("/"), *revision.split("/")]:
        raise UsageError(
            f"{url!r} is no data set of the hub: use hf://datasets/ORG/NAME@REVISION/PATH"
        )
    return HubLocation(repository, revision, path.strip("/"))


def find_commit(root: str) -> str:
    """Find the commit in a root: a URL of the hub, or a snapshot in its cache; "" elsewhere."""
    if "://" in root:
        match = _PINNED.match(root)
        return match[1] if match is not None else ""
    match = _IN_CACHE.search(root)
    return match[2] if match is not None else ""


def is_blob(root: str, real: str) -> bool:
    """True if a file is a blob of the cache in which the folder `root` is a snapshot.

    Links of a snapshot lead to the blobs of its repository, or to blobs that repositories share.
    """
    folder = os.path.realpath(root)
    match = _IN_CACHE.search(f"{folder}/")
    if match is None:
        return False
    repository = folder[: match.end(1)]
    return real.startswith((f"{repository}/blobs/", f"{os.path.dirname(repository)}/blobs/"))


# -- the files of a commit -------------------------------------------------------------------------


class HubFile(NamedTuple):
    """A file of a commit: its size, and the hash that the hub gives as its etag."""

    size: int
    etag: str


def import_hub() -> Any:
    """Return the package huggingface_hub; UsageError if it is not installed."""
    try:
        import huggingface_hub
        import huggingface_hub.constants
        import huggingface_hub.utils
    except ImportError:
        raise missing_library("huggingface_hub", "hub", "hf://") from None
    return huggingface_hub


def read_endpoint() -> str:
    """Return the URL of the hub: HF_ENDPOINT, or the public one."""
    endpoint = os.environ.get("HF_ENDPOINT", "").rstrip("/") or "https://huggingface.co"
    if not re.fullmatch(r"https?://[^\s/\[\]]+(/.*)?", endpoint):
        raise UsageError(f"HF_ENDPOINT is {endpoint!r}: use a URL such as https://huggingface.co")
    return endpoint


class HubBucket:
    """The files of one commit, as `object_client.Bucket` gives objects; they are read only.

    url:      "hf://datasets/ORG/NAME@COMMIT"; a revision is good for `find_commit` only.
    stall_s:  how long an answer may make no progress.
    """

    listable = True

    def __init__(self, url: str, stall_s: float = limits.object_stall_s) -> None:
        hub = import_hub()
        self.url, self._stall_s = url, stall_s
        self._where = parse_hub_url(url)
        self._endpoint = read_endpoint()
        token = "" if hub.constants.HF_HUB_DISABLE_IMPLICIT_TOKEN else hub.get_token()
        self._token = {"authorization": f"Bearer {token}"} if token else {}
        self._addresses: dict[str, str] = {}  # of files by name, signed; they expire
        self._files: dict[str, HubFile] | None = None
        self._lock = threading.Lock()

    def find_commit(self) -> str:
        """Resolve the revision to its commit."""
        revision = quote(self._where.revision or "main", "")
        path = f"api/datasets/{self._where.repository}/revision/{revision}"
        with _translate_errors():
            commit = self._ask_hub(f"{self._endpoint}/{path}").json()["sha"]
        if not isinstance(commit, str) or not _COMMIT.fullmatch(commit):
            raise ObjectRefused(errno.EIO, f"the hub names no commit, but {str(commit)[:60]!r}")
        return commit

    def files(self) -> dict[str, HubFile]:
        """Return the files of the commit by name; listed once."""
        if not _COMMIT.fullmatch(self._where.revision):
            raise UsageError(f"{self.url} names no commit: open it by penstock.open()")
        with self._lock:
            if self._files is None:
                self._files = self._list()
            return self._files

    def _list(self) -> dict[str, HubFile]:
        """List all files of the commit, page by page."""
        repository, commit, _ = self._where
        url = f"{self._endpoint}/api/datasets/{repository}/tree/{commit}?recursive=1"
        files: dict[str, HubFile] = {}
        for _ in range(limits.hub_pages_max):
            with _translate_errors():
                response = self._ask_hub(url)
                for entry in response.json():
                    if entry["type"] != "directory":
                        add_file(files, entry)
                url = response.links.get("next", {}).get("url", "")
            if not url:
                return files
        raise ObjectRefused(errno.EIO, f"the listing has over {limits.hub_pages_max:,} pages")

    def _ask_hub(self, url: str) -> Any:
        """Return the answer of the hub's API; redirects to other hosts lose the token."""
        if not self._is_hub(url):
            raise ObjectRefused(errno.EIO, "the listing goes on at another host")
        response = _get_session().get(url, headers=self._token, timeout=self._stall_s)
        if response.status_code != 200:
            raise _build_refusal(response.status_code, response.headers)
        return response

    def head(self, key: str) -> ObjectInfo:
        """Return size and version of a file."""
        file = self.files().get(key)
        if file is None:
            raise ObjectRefused(errno.ENOENT, "the commit has no such file")
        return ObjectInfo(key, file.size, compute_version(file.etag, ""))

    def listing(self, prefix: str) -> Iterator[list[ObjectInfo]]:
        """Yield all files below a prefix with a slash at its end."""
        yield [self.head(name) for name in self.files() if name.startswith(prefix)]

    def level(self, prefix: str) -> tuple[list[str], list[ObjectInfo]]:
        """Return the folders (by their last name) and the files directly below a prefix."""
        inside = [name[len(prefix) :] for name in self.files() if name.startswith(prefix)]
        folders = dict.fromkeys(name.split("/")[0] for name in inside if "/" in name)
        return list(folders), [self.head(prefix + name) for name in inside if "/" not in name]

    def fetch(self, key: str, start: int, stop: int) -> Answer:
        """Read the bytes [start, stop) of a file, fewer if it ends within them."""
        info = self.head(key)
        stop = min(stop, info.size)
        if not info.size:
            return Answer(memoryview(b""), 0, info.version)
        with _translate_errors():
            address = self._addresses.get(key, "")
            body = self._read(address, start, stop, info.size) if address else None
            if body is None:
                self._addresses.pop(key, None)
                address, body = self._resolve(key, start, stop, info.size)
        if len(self._addresses) >= limits.hub_addresses_max:
            self._addresses.clear()
        self._addresses[key] = address
        return Answer(memoryview(body), info.size, info.version)

    def _resolve(
        self, key: str, start: int, stop: int, size: int, tries: int = 2
    ) -> tuple[str, bytes]:
        """Ask the hub for a range; return the address that it names, and the bytes from there."""
        repository, commit, _ = self._where
        url = f"{self._endpoint}/datasets/{repository}/resolve/{commit}/{quote(key)}"
        for _ in range(limits.hub_redirects_max):
            with self._send(url, start, stop) as response:
                if self._is_hub(url):
                    self._check_file(key, response.headers)
                if not response.has_redirect_location:
                    is_expired = response.status_code in (400, 401, 403, 404, 410)
                    if is_expired and not self._is_hub(url) and tries > 1:
                        break  # between the two answers
                    return url, _read_range(response, start, stop, size, self._stall_s)
                url = urljoin(url, response.headers["location"])
            if urlsplit(url).scheme not in ("https", urlsplit(self._endpoint).scheme):
                raise ObjectRefused(errno.EIO, "the hub leads to an address that is not encrypted")
        else:
            raise ObjectRefused(errno.EIO, "the hub leads from one address to the next")
        return self._resolve(key, start, stop, size, tries - 1)

    def _read(self, address: str, start: int, stop: int, size: int) -> bytes | None:
        """Read a range from a known address; None if it has expired."""
        with self._send(address, start, stop) as response:
            if response.status_code not in (200, 206, *_AGAIN):
                return None
            return _read_range(response, start, stop, size, self._stall_s)

    def _send(self, url: str, start: int, stop: int) -> Any:
        headers = {"accept-encoding": "identity", "range": f"bytes={start}-{stop - 1}"}
        if self._is_hub(url):
            headers |= self._token
        return _get_session().stream(
            "GET", url, headers=headers, follow_redirects=False, timeout=self._stall_s
        )

    def _check_file(self, key: str, headers: Mapping[str, str]) -> None:
        """Raise ObjectRefused if the hub says anything else of a file than in its listing."""
        file, commit = self.files()[key], self._where.revision
        linked = "x-linked-etag" in headers or "location" in headers
        etag = headers.get("x-linked-etag" if linked else "etag", file.etag)
        given = (
            headers.get("x-repo-commit", commit),
            headers.get("x-linked-size", str(file.size)),
            etag.strip().removeprefix("W/").strip('"'),
        )
        if given != (commit, str(file.size), file.etag):
            what = f"the hub answers with commit, size and hash {given}, not as it lists the file"
            raise ObjectRefused(errno.ESTALE, what)

    def _is_hub(self, url: str) -> bool:
        """True if a URL is of the hub's own scheme, host and port: the token goes there alone."""
        here, there = urlsplit(self._endpoint), urlsplit(url)
        return (here.scheme, here.netloc.lower()) == (there.scheme, there.netloc.lower())


def _get_session() -> Any:
    """Return the library's client: connections of this process, by the environment's proxies."""
    return import_hub().utils.get_session()


def add_file(files: dict[str, HubFile], entry: Any) -> None:
    """Add a file of a listing; ObjectRefused if its name leads elsewhere, or comes twice."""
    name, lfs = entry["path"], entry.get("lfs")
    size, etag = (entry["size"], entry["oid"]) if lfs is None else (lfs["size"], lfs["oid"])
    is_new = name and "\0" not in name and not {"", ".", ".."} & set(name.split("/"))
    is_size = type(size) is int and 0 <= size < 1 << 62
    if not (is_new and name not in files and is_size and isinstance(etag, str) and etag):
        what = f"the hub lists {name[:80]!r}, no new name in it, or size {size!r}, hash {etag!r}"
        raise ObjectRefused(errno.EIO, what)
    files[name] = HubFile(size, etag)


def _read_range(response: Any, start: int, stop: int, size: int, stall_s: float) -> bytes:
    """Return the body of an answer; ObjectRefused unless it is this range of a file of `size`."""
    status, headers = response.status_code, response.headers
    if status not in (200, 206):
        raise _build_refusal(status, headers)
    if status == 200 and (start or stop < size):
        raise ObjectRefused(errno.ENOTSUP, "the server does not answer ranges")
    if status == 206 and headers.get("content-range") != f"bytes {start}-{stop - 1}/{size}":
        raise ObjectRefused(errno.ESTALE, "the server has another range, or another size")
    end_s = time.monotonic() + max(limits.object_deadline_s, stall_s)
    body = bytearray()
    for chunk in response.iter_raw():
        body += chunk
        if len(body) > stop - start:
            raise ObjectRefused(errno.ESTALE, "the answer is longer than the range")
        if time.monotonic() > end_s:
            raise ObjectRefused(errno.EIO, "the answer trickles", again=True)
    if len(body) < stop - start:
        raise ObjectRefused(errno.EIO, "the answer was cut short", again=True)
    return bytes(body)


_lost = {
    "TimeoutException": "no answer in time",
    "ConnectError": "no connection",
    "NetworkError": "the connection was lost",
    "ProtocolError": "the connection was lost",
}


@contextlib.contextmanager
def _translate_errors() -> Iterator[None]:
    """Turn exceptions of a request into ObjectRefused, without their text."""
    try:
        yield
    except (ObjectRefused, UsageError):
        raise
    except Exception as error:
        kinds = {kind.__name__ for kind in type(error).__mro__}  # of httpx, in one of its versions
        lost = next((words for kind, words in _lost.items() if kind in kinds), "")
        if "CERTIFICATE" in str(error):
            raise ObjectRefused(errno.EIO, "the server's certificate is not trusted") from None
        what = lost or f"the hub's answer is not understood ({type(error).__name__})"
        raise ObjectRefused(errno.EIO, what, again=bool(lost)) from None


def _build_refusal(status: int, headers: Mapping[str, str]) -> ObjectRefused:
    """Build the error for an answer that is no success."""
    code = headers.get("x-error-code", "")
    words = f"{status} {code}".strip() if re.fullmatch(r"\w{0,64}", code) else str(status)
    if code == "GatedRepo":
        return ObjectRefused(errno.EACCES, f"{words}: its terms have to be accepted first")
    if status in _AGAIN:
        after = headers.get("retry-after", "")
        after_s = float(after) if after.isdecimal() and len(after) < 9 else 0.0
        wait = f", ask again after {after_s:g} s" if after_s else ""
        return ObjectRefused(errno.EIO, words + wait, again=True, after_s=after_s)
    reasons = {404: errno.ENOENT, 401: errno.EACCES, 403: errno.EACCES, 416: errno.ERANGE}
    return ObjectRefused(reasons.get(status, errno.EIO), words)


# -- opening ---------------------------------------------------------------------------------------


def pin_hub_url(url: str) -> str:
    """Return a path in the local cache if it holds all files of a URL of the hub, else the URL with
    the commit in place of the revision. Raises a PenstockError."""
    where = parse_hub_url(url)
    constants = import_hub().constants
    offline = constants.HF_HUB_OFFLINE
    name = "--".join(["datasets", *where.repository.split("/")])
    folder = os.path.join(constants.HF_HUB_CACHE, name)
    if not _COMMIT.fullmatch(where.revision):
        where = where._replace(revision=_find_revision(where, folder, offline))
    snapshot = os.path.join(folder, "snapshots", where.revision)
    if os.path.isdir(snapshot):
        files = _read_listing(folder, where.revision)
        if files is None and not offline:
            files = _list_files(where)
        if files is None:
            warnings.warn(
                f"{snapshot} is read without the hub's listing of it: files that were never "
                "downloaded are missing without an error; `hf download` them, or go online",
                RuntimeWarning,
                stacklevel=4,
            )
        if files is None or _holds_all(snapshot, where.path, files):
            return os.path.join(snapshot, where.path) if where.path else snapshot
    elif offline:
        raise UsageError(
            f"HF_HUB_OFFLINE is set, and the cache {folder} has no snapshot {where.revision}: "
            "`hf download --repo-type dataset` it, or unset the variable"
        )
    return where.url


def pin_hub_urls(places: Sequence[str], whole: bool = False) -> list[str]:
    """Return the places with URLs of the hub pinned: all in its cache, or all by their commits.

    A folder of a repository with documents beside the data becomes the list of its data files,
    unless it is wanted whole.
    """
    pinned = [pin_hub_url(place) if place.startswith("hf://") else place for place in places]
    if len({"://" in place for place in pinned}) > 1:
        pinned = [
            parse_hub_url(given)._replace(revision=find_commit(place)).url
            if given.startswith("hf://")
            else place
            for given, place in zip(places, pinned, strict=True)
        ]
    if len(pinned) == 1 and find_commit(pinned[0]) and not whole:
        return _list_data(pinned[0]) or pinned
    return pinned


def _list_data(place: str) -> list[str]:
    """List the data files of a folder of a repository; [] if it can be opened as it is."""
    if "://" in place:
        where = parse_hub_url(place)
        below = f"{where.path}/" if where.path else ""
        names = [name[len(below) :] for name in _list_files(where) if name.startswith(below)]
    else:
        names = [
            os.path.relpath(os.path.join(folder, name), place)
            for folder, _, inside in os.walk(place)
            for name in inside
        ]
    return [f"{place}/{name}" for name in choose_data(place, names)]


def choose_data(place: str, names: Sequence[str]) -> list[str]:
    """Choose the data files in a folder of a repository; [] if all of its files are data.

    UsageError if their names show several kinds of files.
    """
    shown = sorted(name for name in names if not is_left_over(name))
    data = [name for name in shown if not _DOCUMENT.search(name)]
    if len(data) == len(shown) or not data:
        return []
    endings = {os.path.splitext(name)[1] for name in data}
    if len(endings) > 1 or len(data) > _DATA_FILES_MAX:
        raise UsageError(
            f"{place} holds documents such as {min(set(shown) - set(data))} beside the data, of "
            f"{len(data):,} files ({', '.join(sorted(endings))}): open the folder of the data, "
            f"or a pattern such as {place}/{os.path.dirname(data[0]) or '*'}"
        )
    return data


def open_hub_bucket(url: str, stall_s: float = limits.object_stall_s) -> HubBucket:
    """Return the files of a commit. Users of the same settings share the listing and addresses."""
    return open_shared(HubBucket, url, stall_s, ("HF_", "HUGGING"))


def _list_files(where: HubLocation) -> dict[str, HubFile]:
    """Return the files of a location's commit."""
    bucket = open_hub_bucket(where._replace(path="").url)
    try:
        return retry_until(bucket.files, limits.object_listing_deadline_s)
    except ObjectRefused as error:
        raise build_storage_error(error.code, where.url, f" ({error.what})") from None


def _find_revision(where: HubLocation, folder: str, offline: bool) -> str:
    """Find the commit of a revision: by the hub, or if that cannot be reached by the cache."""
    known = _read_reference(folder, where.revision or "main")
    if not offline:
        bucket = HubBucket(where._replace(path="").url)
        try:
            deadline_s = limits.object_connect_s if known else limits.object_listing_deadline_s
            return retry_until(bucket.find_commit, deadline_s)
        except ObjectRefused as error:
            if error.code != errno.ETIMEDOUT or not known:
                raise build_storage_error(error.code, where.url, f" ({error.what})") from None
            warnings.warn(
                f"{where.url}: the hub does not answer ({error.what}), so {known} is read, which "
                "the cache had as this revision: it may have moved since",
                RuntimeWarning,
                stacklevel=5,
            )
    if not known:
        raise UsageError(
            f"HF_HUB_OFFLINE is set, and the cache {folder} does not know the revision "
            f"{where.revision or 'main'!r}: unset it, or name a commit"
        )
    return known


def _read_reference(folder: str, revision: str) -> str:
    try:
        with open(os.path.join(folder, "refs", revision), encoding="ascii") as file:
            commit = file.read(64).strip()
    except (OSError, UnicodeDecodeError):
        return ""
    return commit if _COMMIT.fullmatch(commit) else ""


def _read_listing(folder: str, commit: str) -> dict[str, HubFile] | None:
    """Read the listing of a commit that the hub's library has saved; None if there is none."""
    try:
        with open(os.path.join(folder, "trees", f"{commit}.json"), "rb") as file:
            listing = json.loads(file.read(limits.hub_listing_bytes_max))
        if listing["format_version"] != 1:
            return None
        files = listing["files"].items()
        return {str(name): HubFile(int(entry["size"]), "") for name, entry in files}
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return None


def _holds_all(snapshot: str, path: str, files: Mapping[str, HubFile]) -> bool:
    """True if a snapshot has all files of a listing that a path names, in their sizes."""
    fixed = cut_at_special(path)
    below = fixed if fixed != path or not path else f"{path}/"
    wanted = [name for name in files if name == path or name.startswith(below)]
    try:
        sizes = [os.path.getsize(os.path.join(snapshot, name)) for name in wanted]
    except OSError:
        return False
    return bool(wanted) and sizes == [files[name].size for name in wanted]
