"""Datasets of the Hugging Face hub: hf://datasets/ORG/NAME@REVISION/PATH.

A revision (a branch, a tag) is resolved to a commit once, when a URL is opened; from then on only
the commit is asked for, whose files never change. Names, sizes and hashes come from the hub's
listing of the commit. A range of a file is asked of the hub, which mostly answers with the address
of a server that holds the bytes. That address is signed, and used until it expires. The token goes
to the hub's own host and to no other.

If the local cache of the hub's own library holds the files, they are read where they lie.
The only importer of urllib3, which sends the requests. Failures are `ObjectRefused`.
"""

from __future__ import annotations

import errno
import functools
import json
import os
import re
import threading
import time
import warnings
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple
from urllib.parse import quote, unquote, urljoin, urlsplit

from .. import limits
from ..errors import UsageError
from .object_answer import Answer, ObjectInfo, ObjectRefused, compute_version, retry_until
from .store import build_storage_error

if TYPE_CHECKING:
    import urllib3

SCHEME = "hf"
_KIND = "datasets/"
_COMMIT = re.compile(r"[0-9a-f]{40}")
_REFERENCE = re.compile(r"(refs/(?:pr|convert)/[^/]+)(/.*)?")
_PART = re.compile(r"[\w.-]+")
_IN_CACHE = re.compile(r"/(datasets--[^/]+)/snapshots/([0-9a-f]{40})(?:/|$)")
_PINNED = re.compile(r"hf://datasets/[^@]+@([0-9a-f]{40})(?:/|$)")
_DOCUMENT = re.compile(
    r"(^|/)(readme|license|licence|notice|citation|dataset_infos\.json|[^/]*\.(md|py|txt)$)", re.I
)
"""Files of a repository that describe the data."""
_SPLIT = re.compile(r"(?:^|[-_./])(train|test|validation|valid|val|dev|eval)(?=[-_./]|$)", re.I)
_DATA_FILES_MAX = 100_000
_AGAIN = {408, 425, 429, 500, 502, 503, 504}
_MOVED = {301, 302, 303, 307, 308}
_BLOCK_BYTES = 1 << 20
_ANSWER_BYTES_MAX = 64 << 20


class HubLocation(NamedTuple):
    """The parts of a URL of the hub. `revision` is "" where the URL names none."""

    repository: str
    revision: str
    path: str

    @property
    def url(self) -> str:
        """The URL again; a slash in the revision is written as %2F."""
        at = f"@{quote(self.revision, '')}" if self.revision else ""
        return f"{SCHEME}://{_KIND}{self.repository}{at}" + (f"/{self.path}" if self.path else "")


def parse_hub_url(url: str) -> HubLocation:
    """Parse hf://datasets/ORG/NAME[@REVISION][/PATH]; UsageError if it is none."""
    rest = url.partition("://")[2]
    form = f"use hf://{_KIND}ORG/NAME@REVISION/PATH"
    if not rest.startswith(_KIND):
        raise UsageError(f"{url!r} is no data set of the hub: {form}")
    rest = rest.removeprefix(_KIND)
    repository, at, after = rest.partition("@")
    if not at or repository.count("/") > 1:  # an @ in the path is none of a revision
        parts = rest.split("/", 2)
        repository, revision, path = "/".join(parts[:2]), "", "".join(parts[2:])
    elif (match := _REFERENCE.fullmatch(after)) is not None:
        revision, path = match[1], (match[2] or "")[1:]
    else:
        revision, _, path = after.partition("/")
        revision = unquote(revision)
        if not revision:
            raise UsageError(f"{url!r} names no revision after @: {form}")
    names = repository.split("/")
    if len(names) > 2 or not all(_PART.fullmatch(name) and set(name) != {"."} for name in names):
        raise UsageError(f"{url!r} names no repository: {form}")
    if ".." in path.split("/") or "\0" in path or ".." in revision.split("/"):
        raise UsageError(f"{url!r} leads out of the repository: {form}")
    return HubLocation(repository, revision, path.strip("/"))


def find_commit(root: str) -> str:
    """Find the commit that a root is of: a URL of the hub, or a snapshot in its cache; else ""."""
    match = _PINNED.match(root)
    if match is not None:
        return match[1]
    match = None if "://" in root else _IN_CACHE.search(root)
    return match[2] if match is not None else ""


def find_blobs(root: str) -> str | None:
    """Find the folder of the cache to which the links of a snapshot lead; None for other folders.

    Links in a snapshot may lead there, and from there to the blobs that repositories share.
    """
    match = _IN_CACHE.search(os.path.join(os.path.realpath(root), ""))
    if match is None:
        return None
    return os.path.join(os.path.realpath(root)[: match.end(1)], "blobs")


def is_blob(root: str, real: str) -> bool:
    """True if a file is a blob of the cache in which the folder `root` is a snapshot."""
    blobs = find_blobs(root)
    if blobs is None:
        return False
    shared = os.path.join(os.path.dirname(os.path.dirname(blobs)), "blobs")
    return real.startswith((os.path.join(blobs, ""), os.path.join(shared, "")))


# -- settings --------------------------------------------------------------------------------------


def read_endpoint(environment: Mapping[str, str] = os.environ) -> str:
    """Return the URL of the hub: HF_ENDPOINT, or the public one."""
    endpoint = environment.get("HF_ENDPOINT", "").rstrip("/") or "https://huggingface.co"
    try:
        parts = urlsplit(endpoint)
    except ValueError:
        parts = urlsplit("")
    if parts.scheme not in ("http", "https") or not parts.netloc:
        raise UsageError(f"HF_ENDPOINT is {endpoint!r}: use a URL such as https://huggingface.co")
    return endpoint


def _home(environment: Mapping[str, str]) -> str:
    base = environment.get("XDG_CACHE_HOME") or os.path.join(os.path.expanduser("~"), ".cache")
    return os.path.expanduser(environment.get("HF_HOME") or os.path.join(base, "huggingface"))


def read_token(environment: Mapping[str, str] = os.environ) -> str:
    """Return the user's token, as the hub's own tools find it; "" if there is none."""
    if environment.get("HF_HUB_DISABLE_IMPLICIT_TOKEN", "").upper() in ("1", "ON", "YES", "TRUE"):
        return ""
    for name in ("HF_TOKEN", "HUGGING_FACE_HUB_TOKEN"):
        if environment.get(name, "").strip():
            return environment[name].strip()
    path = environment.get("HF_TOKEN_PATH") or os.path.join(_home(environment), "token")
    try:
        with open(path, encoding="ascii") as file:
            return file.read(4096).strip()
    except (OSError, UnicodeDecodeError):
        return ""


def find_cache(repository: str, environment: Mapping[str, str] = os.environ) -> str:
    """Return the folder of a repository in the local cache, which need not exist."""
    cache = environment.get("HF_HUB_CACHE") or environment.get("HUGGINGFACE_HUB_CACHE")
    cache = os.path.expanduser(cache or os.path.join(_home(environment), "hub"))
    return os.path.join(cache, "--".join(["datasets", *repository.split("/")]))


# -- requests --------------------------------------------------------------------------------------


class HubAnswer(NamedTuple):
    """An answer: its status, headers by lower-case name, and body."""

    status: int
    headers: Mapping[str, str]
    body: bytes


class HubClient:
    """Sends requests to a hub. May be used by many threads.

    endpoint:  URL of the hub.
    token:     sent to its host alone.
    stall_s:   how long an answer may make no progress; a whole answer may take
               `limits.object_deadline_s`.
    """

    def __init__(self, endpoint: str, token: str, stall_s: float = limits.object_stall_s) -> None:
        try:
            import urllib3
        except ImportError:
            raise UsageError(
                "hf:// URLs need urllib3: pip install 'penstock[hub]', or download the data set "
                "(`hf download --repo-type dataset`) and open its folder"
            ) from None
        self.endpoint, self._token, self._stall_s = endpoint, token, stall_s
        self._urllib3 = urllib3
        self._pools: dict[str, urllib3.PoolManager] = {}
        self._pid = os.getpid()
        self._lock = threading.Lock()

    def __repr__(self) -> str:
        return f"HubClient({self.endpoint!r})"

    def get(self, url: str, start: int = -1, stop: int = 0) -> HubAnswer:
        """Ask for a URL, or for a range of it; redirects are not followed. ObjectRefused if no
        answer comes, or one that is longer than what was asked for."""
        headers = {"accept-encoding": "identity", "user-agent": "penstock"}
        most = _ANSWER_BYTES_MAX
        if start >= 0:
            headers["range"] = f"bytes={start}-{stop - 1}"
            most = stop - start
        if self._token and self.is_hub(url):
            headers["authorization"] = f"Bearer {self._token}"
        try:
            return self._send(url, headers, most)
        except self._urllib3.exceptions.HTTPError as error:
            raise _describe_lost(self._urllib3, error) from None
        except OSError as error:
            raise ObjectRefused(errno.EIO, f"the connection was lost ({error})", True) from None

    def is_hub(self, url: str) -> bool:
        """True if a URL is of the hub's own scheme, host and port."""
        here, there = urlsplit(self.endpoint), urlsplit(url)
        return (here.scheme, here.netloc.lower()) == (there.scheme, there.netloc.lower())

    def _send(self, url: str, headers: Mapping[str, str], most: int) -> HubAnswer:
        deadline_s = time.monotonic() + max(limits.object_deadline_s, self._stall_s)
        connect_s = min(limits.object_connect_s, self._stall_s)
        answer = self._open_pool(url).request(
            "GET",
            url,
            headers=headers,
            redirect=False,
            retries=False,
            preload_content=False,
            decode_content=False,
            timeout=self._urllib3.Timeout(connect=connect_s, read=self._stall_s),
        )
        try:
            named = {name.lower(): value for name, value in answer.headers.items()}
            if answer.status in _MOVED or answer.status >= 400:
                answer.close()  # its text is passed on to nobody
                return HubAnswer(answer.status, named, b"")
            parts: list[bytes] = []
            left = most
            while part := answer.read1(min(left + 1, _BLOCK_BYTES)):
                parts.append(part)
                left -= len(part)
                if left < 0:
                    answer.close()
                    raise ObjectRefused(errno.ENOTSUP, "the answer is longer than what was asked")
                if time.monotonic() > deadline_s:
                    answer.close()
                    raise ObjectRefused(errno.EIO, "the answer trickles", again=True)
            return HubAnswer(answer.status, named, b"".join(parts))
        finally:
            answer.release_conn()

    def _open_pool(self, url: str) -> urllib3.PoolManager:
        """Return the connections to use for a URL: by a proxy where the environment says so."""
        import urllib.request  # takes long to import

        parts = urlsplit(url)
        proxy = urllib.request.getproxies().get(parts.scheme, "")
        if proxy and urllib.request.proxy_bypass(parts.netloc):
            proxy = ""
        with self._lock:
            if self._pid != os.getpid():  # connections of the parent are the parent's
                self._pools, self._pid = {}, os.getpid()
            if proxy not in self._pools:
                manager = self._urllib3.PoolManager
                self._pools[proxy] = (
                    self._urllib3.ProxyManager(proxy, maxsize=limits.object_requests_default)
                    if proxy
                    else manager(maxsize=limits.object_requests_default)
                )
            return self._pools[proxy]


def _describe_lost(urllib3: Any, error: Exception) -> ObjectRefused:
    """Describe a request that got no answer, without the text of the library."""
    if isinstance(error, urllib3.exceptions.SSLError):
        return ObjectRefused(errno.EIO, "the server's certificate is not trusted")
    if isinstance(error, urllib3.exceptions.LocationValueError):
        return ObjectRefused(errno.EIO, "the server led to what is no URL")
    if isinstance(error, urllib3.exceptions.NewConnectionError):
        return ObjectRefused(errno.EIO, "no connection", again=True)
    if isinstance(error, urllib3.exceptions.TimeoutError):
        return ObjectRefused(errno.EIO, "no answer in time", again=True)
    return ObjectRefused(errno.EIO, "the connection was lost", again=True)


def refuse_answer(answer: HubAnswer) -> ObjectRefused:
    """Make the error of an answer that is no success."""
    status, code = answer.status, answer.headers.get("x-error-code", "")
    words = f"{status} {code}".strip() if re.fullmatch(r"\w{0,64}", code) else str(status)
    if code == "GatedRepo":
        return ObjectRefused(errno.EACCES, f"{words}: its terms have to be accepted first")
    if status == 404:
        return ObjectRefused(errno.ENOENT, words)
    if status in (401, 403):
        return ObjectRefused(errno.EACCES, words)
    if status == 416:
        return ObjectRefused(errno.ERANGE, words)
    if status in _AGAIN:
        after = answer.headers.get("retry-after", "")
        after_s = float(after) if after.isdecimal() and len(after) < 9 else 0.0
        wait = f", ask again after {after_s:g} s" if after_s else ""
        return ObjectRefused(errno.EIO, words + wait, again=True, after_s=after_s)
    return ObjectRefused(errno.EIO, words)


# -- the files of a commit -------------------------------------------------------------------------


class HubFile(NamedTuple):
    """A file of a commit: its size, and the hash that the hub gives as its etag."""

    size: int
    etag: str


class _Address(NamedTuple):
    """Server that holds the bytes of a file, as the hub named it, and the etag it answers with."""

    url: str
    etag: str


class HubBucket:
    """The files of one commit, as `object_client.Bucket` gives objects; they are read only.

    url:  "hf://datasets/ORG/NAME@COMMIT".
    """

    listable = True

    def __init__(self, url: str, stall_s: float = limits.object_stall_s) -> None:
        self.url = url
        self._where = parse_hub_url(url)
        if not _COMMIT.fullmatch(self._where.revision):
            raise UsageError(
                f"{url} names no commit, which penstock.open() finds for a revision: open it so, "
                "or give the commit after @"
            )
        self._client = HubClient(read_endpoint(), read_token(), stall_s)
        self._addresses: dict[str, _Address] = {}
        self._files: dict[str, HubFile] | None = None
        self._lock = threading.Lock()

    def files(self) -> dict[str, HubFile]:
        """Return the files of the commit by name; asked for once."""
        with self._lock:
            if self._files is None:
                self._files = list_files(self._client, self._where)
            return self._files

    def head(self, key: str) -> ObjectInfo:
        """Return size and version of a file."""
        file = self.files().get(key)
        if file is None:
            raise ObjectRefused(errno.ENOENT, "the commit has no such file")
        return ObjectInfo(key, file.size, compute_version(file.etag, ""))

    def listing(self, prefix: str) -> Iterator[list[ObjectInfo]]:
        """Yield all files below a prefix, which ends with a slash."""
        yield [self.head(name) for name in self.files() if name.startswith(prefix)]

    def level(self, prefix: str) -> tuple[list[str], list[ObjectInfo]]:
        """Return the folders (by their last name) and the files directly below a prefix."""
        inside = [name[len(prefix) :] for name in self.files() if name.startswith(prefix)]
        folders = dict.fromkeys(name.split("/")[0] for name in inside if "/" in name)
        return list(folders), [self.head(prefix + name) for name in inside if "/" not in name]

    def fetch(self, key: str, start: int, stop: int) -> Answer:
        """Read the bytes [start, stop) of a file, fewer if it ends within them."""
        info = self.head(key)
        if not info.size:
            return Answer(memoryview(b""), 0, info.version)
        address = self._addresses.get(key)
        if address is not None:
            try:
                answer = self._client.get(address.url, start, stop)
            except ObjectRefused:
                self._addresses.pop(key, None)
                raise
            same = not address.etag or answer.headers.get("etag", "") == address.etag
            if answer.status in (200, 206) and same:
                return _check_range(answer, info, start, stop)
            self._addresses.pop(key, None)  # it has expired
            if answer.status in _AGAIN:
                raise refuse_answer(answer)
        answer = self._resolve(key, start, stop)
        if answer.status not in (200, 206):
            raise refuse_answer(answer)
        return _check_range(answer, info, start, stop)

    def _resolve(self, key: str, start: int, stop: int) -> HubAnswer:
        """Ask the hub for a range, and the server that it names. The address is kept."""
        repository, commit, _ = self._where
        url = f"{self._client.endpoint}/datasets/{repository}/resolve/{commit}/{quote(key)}"
        etag = ""
        for _ in range(limits.hub_redirects_max):
            answer = self._client.get(url, start, stop)
            if self._client.is_hub(url):
                etag = answer.headers.get("x-linked-etag", "") or etag
                self._check_commit(answer)
                size = answer.headers.get("x-linked-size", "")
                if size and size != str(self.files()[key].size):
                    raise ObjectRefused(errno.ESTALE, "the hub gives it another size than before")
            if answer.status not in _MOVED:
                break
            url = self._follow(url, answer)
        else:
            raise ObjectRefused(errno.EIO, "the hub leads from one address to the next")
        at_hub = self._client.is_hub(url)
        etag = etag or (answer.headers.get("etag", "") if at_hub else "")
        if etag and answer.status in (200, 206) and _trim(etag) != self.files()[key].etag:
            raise ObjectRefused(errno.ESTALE, "the hub gives it another etag than before")
        if not at_hub and answer.status in (200, 206):
            if len(self._addresses) >= limits.hub_addresses_max:
                self._addresses.clear()
            self._addresses[key] = _Address(url, answer.headers.get("etag", ""))
        return answer

    def _check_commit(self, answer: HubAnswer) -> None:
        commit = answer.headers.get("x-repo-commit", self._where.revision)
        if commit != self._where.revision:
            raise ObjectRefused(errno.ESTALE, "the hub answered with another commit")

    def _follow(self, url: str, answer: HubAnswer) -> str:
        """Return the URL of a redirect; it is not left to plain HTTP if the hub is not."""
        target = _join(url, answer.headers.get("location", ""))
        scheme = urlsplit(target).scheme
        if scheme not in ("https", urlsplit(self._client.endpoint).scheme):
            raise ObjectRefused(errno.EIO, "the hub leads to an address that is not encrypted")
        return target


def _join(url: str, target: str) -> str:
    """Return the URL that another leads to; ObjectRefused if it is none."""
    try:
        joined = urljoin(url, target)
        urlsplit(joined)
    except ValueError:
        raise ObjectRefused(errno.EIO, "the server led to what is no URL") from None
    return joined


def _trim(etag: str) -> str:
    return etag.strip().removeprefix("W/").strip('"')


def _check_range(answer: HubAnswer, info: ObjectInfo, start: int, stop: int) -> Answer:
    """Check that an answer has the range that was asked for, of a file of the listed size."""
    if answer.status == 200:
        if start or stop < info.size:
            raise ObjectRefused(errno.ENOTSUP, "the server does not answer ranges")
        size = info.size if len(answer.body) <= info.size else -1
    else:
        said = re.fullmatch(
            r"bytes (\d{1,19})-(\d{1,19})/(\d{1,19})", answer.headers.get("content-range", "")
        )
        if said is None or int(said[1]) != start:
            raise ObjectRefused(errno.ENOTSUP, "the server answered with another range")
        size = int(said[3])
    if size != info.size:
        raise ObjectRefused(errno.ESTALE, "the server has it in another size than the hub lists")
    return Answer(memoryview(answer.body), info.size, info.version)


# -- revisions and listings ------------------------------------------------------------------------


def _ask(client: HubClient, url: str) -> HubAnswer:
    """Ask the hub's API; follows redirects within the hub, as of renamed repositories."""
    for _ in range(limits.hub_redirects_max):
        answer = client.get(url)
        if answer.status not in _MOVED:
            break
        url = _join(url, answer.headers.get("location", ""))
        if not client.is_hub(url):
            raise ObjectRefused(errno.EIO, "the hub's API leads to another host")
    if answer.status != 200:
        raise refuse_answer(answer)
    return answer


def _read_json(answer: HubAnswer) -> Any:
    try:
        return json.loads(answer.body)
    except (ValueError, RecursionError):
        raise ObjectRefused(errno.EIO, "the hub answered with what is no JSON") from None


def resolve_commit(client: HubClient, where: HubLocation) -> str:
    """Resolve a revision to its commit; ObjectRefused if the hub does not."""
    revision = quote(where.revision or "main", "")
    url = f"{client.endpoint}/api/datasets/{where.repository}/revision/{revision}"
    found = _read_json(_ask(client, url))
    commit = found.get("sha") if isinstance(found, dict) else None
    if not isinstance(commit, str) or not _COMMIT.fullmatch(commit):
        raise ObjectRefused(errno.EIO, f"the hub names no commit, but {str(commit)[:60]!r}")
    return commit


def list_files(client: HubClient, where: HubLocation) -> dict[str, HubFile]:
    """List all files of a commit, page by page; ObjectRefused if the hub does not."""
    url = f"{client.endpoint}/api/datasets/{where.repository}/tree/{where.revision}?recursive=1"
    files: dict[str, HubFile] = {}
    seen: set[str] = set()
    while url:
        if url in seen or len(seen) >= limits.hub_pages_max:
            raise ObjectRefused(errno.EIO, f"the listing has no end, after {len(seen):,} pages")
        seen.add(url)
        answer = _ask(client, url)
        entries = _read_json(answer)
        if not isinstance(entries, list):
            raise ObjectRefused(errno.EIO, "the hub's listing is no list")
        for entry in entries:
            _take_entry(files, entry)
        match = re.search(r'<([^>]*)>\s*;\s*rel="?next"?', answer.headers.get("link", ""))
        url = _join(url, match[1]) if match is not None else ""
        if url and not client.is_hub(url):
            raise ObjectRefused(errno.EIO, "the listing goes on at another host")
    return files


def _take_entry(files: dict[str, HubFile], entry: Any) -> None:
    """Take one entry of a listing; folders are left out."""
    if not isinstance(entry, dict) or entry.get("type") not in ("file", "directory"):
        raise ObjectRefused(errno.EIO, f"the hub lists {str(entry)[:80]!r}, no file or folder")
    if entry["type"] == "directory":
        return
    name, size, etag = entry.get("path"), entry.get("size"), entry.get("oid")
    lfs = entry.get("lfs")
    if isinstance(lfs, dict):
        size, etag = lfs.get("size", size), lfs.get("oid") or lfs.get("sha256")
    inside = isinstance(name, str) and name and not name.startswith("/") and "\0" not in name
    if not inside or {"..", "."} & set(name.split("/")) or name in files:  # type: ignore[union-attr]
        raise ObjectRefused(errno.EIO, f"the hub lists {str(name)[:80]!r}, no new name in it")
    if type(size) is not int or not 0 <= size < 1 << 62 or not isinstance(etag, str) or not etag:
        raise ObjectRefused(errno.EIO, f"the hub lists {name!r} with size {size!r}, hash {etag!r}")
    files[str(name)] = HubFile(size, etag)


# -- opening ---------------------------------------------------------------------------------------


def pin_hub_url(url: str) -> str:
    """Return the place that a URL of the hub stands for: a path in the local cache if that holds
    all of it, else the URL with the commit in place of the revision. Raises a PenstockError."""
    where = parse_hub_url(url)
    folder = find_cache(where.repository)
    offline = os.environ.get("HF_HUB_OFFLINE", "").upper() in ("1", "ON", "YES", "TRUE")
    if not _COMMIT.fullmatch(where.revision):
        where = where._replace(revision=_find_revision(where, folder, offline))
    snapshot = os.path.join(folder, "snapshots", where.revision)
    if os.path.isdir(snapshot):
        files = _read_listing(folder, where.revision)
        if files is None and not offline:
            files = _try(lambda: open_hub(where).files(), where.url)
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


def pin_hub_urls(places: Sequence[str]) -> list[str]:
    """Return the places with those of the hub pinned: all in its cache, or all by their URLs.

    A folder of a repository that has documents beside the data becomes the list of its data files.
    """
    pinned = [pin_hub_url(one) if one.startswith("hf://") else one for one in places]
    if len({"://" in one for one in pinned}) > 1:
        pinned = [
            parse_hub_url(given)._replace(revision=find_commit(one)).url
            if given.startswith("hf://")
            else one
            for given, one in zip(places, pinned, strict=True)
        ]
    if len(pinned) == 1 and find_commit(pinned[0]):
        return _list_data(pinned[0]) or pinned
    return pinned


def _list_data(place: str) -> list[str]:
    """List the data files of a folder of a repository; [] if it can be opened as it is."""
    if "://" in place:
        where = parse_hub_url(place)
        below = f"{where.path}/" if where.path else ""
        files = _try(lambda: open_hub(where).files(), place)
        names = [name[len(below) :] for name in files if name.startswith(below)]
    else:
        names = [
            os.path.relpath(os.path.join(folder, name), place)
            for folder, _, inside in os.walk(place)
            for name in inside
        ]
    chosen = choose_data(place, names)
    return [f"{place}/{name}" for name in chosen]


def choose_data(place: str, names: Sequence[str]) -> list[str]:
    """Choose the data files among those of a folder of a repository; [] if all of them are data.

    UsageError if their names tell of several splits, or if they are of several kinds.
    """
    shown = sorted(name for name in names if not re.search(r"(^|/)\.", name))
    data = [name for name in shown if not _DOCUMENT.search(name)]
    splits: dict[str, str] = {}
    for name in data:
        match = _SPLIT.search(name)
        splits.setdefault(match[1] if match is not None else "", name)
    if len(splits) > 1:
        names_of_splits = ", ".join(sorted(split or "others" for split in splits))
        raise UsageError(
            f"{place} holds the splits {names_of_splits}, such as {min(splits.values())}, and "
            "training data must not mix with others unnoticed: open one folder, or a pattern such "
            f"as {place}/data/train-*"
        )
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


def open_hub(where: HubLocation) -> HubBucket:
    """Open the files of a location's commit; its listing and connections are shared."""
    return open_hub_bucket(where._replace(path="").url)


def open_hub_bucket(url: str, stall_s: float = limits.object_stall_s) -> HubBucket:
    """Return the files of a commit. All users of one setting share the listing and the addresses
    of files."""
    settings = (item for item in os.environ.items() if item[0].startswith(("HF_", "HUGGING")))
    return _open_bucket(url, stall_s, tuple(sorted(settings)))


@functools.lru_cache(maxsize=32)
def _open_bucket(url: str, stall_s: float, _: tuple[tuple[str, str], ...]) -> HubBucket:
    return HubBucket(url, stall_s)


def _try(ask: Any, url: str) -> Any:
    try:
        return retry_until(ask, limits.object_listing_deadline_s)
    except ObjectRefused as error:
        raise build_storage_error(error.code, url, f" ({error.what})") from None


def _find_revision(where: HubLocation, folder: str, offline: bool) -> str:
    """Find the commit of a revision: by the hub, or if that cannot be reached by the cache."""
    known = _read_reference(folder, where.revision or "main")
    if not offline:
        client = HubClient(read_endpoint(), read_token())
        try:
            deadline_s = limits.object_connect_s if known else limits.object_listing_deadline_s
            return retry_until(lambda: resolve_commit(client, where), deadline_s)
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
            found = json.loads(file.read(limits.hub_listing_bytes_max))
        if found["format_version"] != 1:
            return None
        return {str(name): HubFile(int(one["size"]), "") for name, one in found["files"].items()}
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return None


def _holds_all(snapshot: str, path: str, files: Mapping[str, HubFile]) -> bool:
    """True if a snapshot has all files of a listing that a path stands for, in their sizes."""
    fixed = re.split(r"[*?\[{]", path, maxsplit=1)[0]
    below = fixed if fixed != path or not path else f"{path}/"
    wanted = [name for name in files if name == path or name.startswith(below)]
    for name in wanted:
        try:
            if os.path.getsize(os.path.join(snapshot, name)) != files[name].size:
                return False
        except OSError:
            return False
    return bool(wanted)
