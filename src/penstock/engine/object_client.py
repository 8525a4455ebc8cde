"""Client of one bucket, container or web server: reads, lists, writes and deletes objects.

obstore sends the requests; nothing else imports it. `Bucket.fetch` is one ranged GET, and
`retry_until` repeats a request while that may help. Every failure becomes an `ObjectRefused`, made
of a status, an error code of the service and our own words. No text of the library, the service or
the URL is passed on, because they hold keys, signatures and user names.

Credentials come from the places where the services' own tools look; docs/objects.md lists them.
Secrets in a URL (user:password@, or the query of a presigned one) are kept in this process only.
"""

from __future__ import annotations

import configparser
import contextlib
import errno
import functools
import hashlib
import os
import random
import re
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar
from urllib.parse import quote, unquote, urlsplit

from .. import limits
from ..errors import ForkError, UsageError, import_library
from . import threads

if TYPE_CHECKING:
    from obstore.store import HTTPStore, S3Store

T = TypeVar("T")

SCHEMES = ("s3", "gs", "az", "http", "https")

# 409: two wrote on a condition at once, and the service does not decide.
_again = {408, 409, 425, 429, 500, 502, 503, 504, 509, 529}
_slow_codes = {"RequestTimeout", "SlowDown", "Throttling", "InternalError", "ServerBusy"}
_written = "/{}*[],~!$&'()+;=:@"  # what a path of a URL holds as it is, and patterns
_private: dict[str, tuple[str, str]] = {}  # bucket/key -> its user:password@ and its query
_started_in: int | None = None  # the process in which obstore was first used, by its forks

Bytes = bytes | memoryview


# -- answers and retries ---------------------------------------------------------------------------


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


def _sleep(seconds: float) -> bool:
    time.sleep(seconds)
    return True


def retry_until(
    ask: Callable[[], T], deadline_s: float, pause: Callable[[float], bool] = _sleep
) -> T:
    """Call `ask` until it succeeds; ObjectRefused if repeating does not help, or at the deadline.

    Pauses double, and are random, so that many clients refused together do not come back together.

    pause:  waits for some seconds, and returns whether to go on.
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


# -- URLs ------------------------------------------------------------------------------------------


class ObjectLocation(NamedTuple):
    """The parts of a URL, without secrets.

    bucket:  scheme and bucket, container or server: "s3://bucket", "https://server:80".
    key:     the name in it, decoded.
    """

    bucket: str
    key: str

    @property
    def url(self) -> str:
        """The URL again, as it is written."""
        key = quote(self.key, _written) if self.bucket.startswith("http") else self.key
        return f"{self.bucket}/{key}" if key else self.bucket


def parse_service_url(url: str) -> ObjectLocation:
    """Parse a URL of a service. Its secrets are remembered by this process, and only here."""
    scheme, _, rest = url.partition("://")
    scheme = scheme.lower()
    if scheme not in SCHEMES:
        known = ", ".join(f"{name}://" for name in SCHEMES)
        raise UsageError(f"penstock does not read {scheme}:// URLs: use {known} or a path")
    if scheme.startswith("http"):
        return _parse_http_url(url)
    bucket, _, key = rest.partition("/")
    if "@" in bucket:
        raise UsageError(f"the {scheme}:// URL has credentials: set them in the environment")
    if not bucket:
        raise UsageError(f"{url!r} names no bucket: use {scheme}://bucket/name")
    return ObjectLocation(f"{scheme}://{bucket}", key)


def _parse_http_url(url: str) -> ObjectLocation:
    split = urlsplit(url)
    user, at, server = split.netloc.rpartition("@")
    if not server:
        raise UsageError("the URL names no server: use http://server/name")
    where = ObjectLocation(f"{split.scheme.lower()}://{server}", unquote(split.path).lstrip("/"))
    if user or split.query:
        _private[f"{where.bucket}/{where.key}"] = (user + at, split.query)
    return where


# -- the client ------------------------------------------------------------------------------------


class Bucket:
    """The objects of one bucket, container or server.

    Each method asks once, and raises ObjectRefused. May be used by many threads.

    stall_s:  how long an answer may make no progress.
    """

    def __init__(self, url: str, stall_s: float = limits.object_stall_s) -> None:
        self._obstore = import_library("obstore", "cloud", url)
        _check_process()
        self.url = url
        self._options: dict[str, Any] = {
            "connect_timeout": timedelta(seconds=min(limits.object_connect_s, stall_s)),
            "read_timeout": timedelta(seconds=stall_s),
            "timeout": timedelta(seconds=max(limits.object_deadline_s, stall_s)),
        }
        self.listable = not url.startswith("http")
        self._stores: dict[tuple[str, str], HTTPStore] = {}
        self._store: Any = self._open_client() if self.listable else None
        self._uploads: Any = None

    def fetch(self, key: str, start: int, stop: int) -> Answer:
        """Read the bytes [start, stop) of an object, fewer if it ends within them. Asks once."""
        with _translate_errors():
            result = self._obstore.get(self._get_client(key), key, options={"range": (start, stop)})
            meta = result.meta
            answer = Answer(memoryview(result.bytes()), int(meta["size"]), _read_version(meta))
            if len(answer.data) != min(stop, answer.size) - start:  # silently
                raise ObjectRefused(errno.EIO, "the answer was cut short", again=True)
            return answer

    def head(self, key: str) -> ObjectInfo:
        """Return size and version of an object now."""
        if not self.listable:
            return self._head_by_range(key)
        with _translate_errors():
            return _describe_object(self._obstore.head(self._get_client(key), key))

    def _head_by_range(self, key: str) -> ObjectInfo:
        """Describe an object by reading one byte: a presigned URL is signed for GET alone, and this
        shows whether the server answers ranges."""
        try:
            return ObjectInfo(key, *self.fetch(key, 0, 1)[1:])
        except ObjectRefused as error:
            if error.code not in (errno.ERANGE, errno.ENOTSUP):
                raise
            problem = error
        with _translate_errors():
            info = _describe_object(self._obstore.head(self._get_client(key), key))
            if info.size:  # a range of nothing may be refused, or answered with all there is
                raise problem
            return info

    def listing(self, prefix: str) -> Iterator[list[ObjectInfo]]:
        """Yield all objects below a prefix with a slash at its end, page by page."""
        self._require_listable()
        _check_process()
        stream = iter(self._obstore.list(self._store, prefix or None, chunk_size=1000))
        while True:
            with _translate_errors():
                page = next(stream, None)
                if page is None:
                    return
                infos = [_describe_object(meta) for meta in page]
            yield infos

    def level(self, prefix: str) -> tuple[list[str], list[ObjectInfo]]:
        """Return the folders (by their last name) and the objects directly below a prefix."""
        self._require_listable()
        _check_process()
        with _translate_errors():
            level = self._obstore.list_with_delimiter(self._store, prefix or None)
        folders = [folder.rstrip("/").rpartition("/")[2] for folder in level["common_prefixes"]]
        return folders, [_describe_object(meta) for meta in level["objects"]]

    # -- writing -----------------------------------------------------------------------------------

    def put(self, key: str, data: Bytes, *, new: bool = False) -> None:
        """Write an object in one request. new: ObjectRefused with EEXIST if the object exists, with
        ENOTSUP if the service has no such condition."""
        self._require_listable()
        mode: Any = "create" if new else "overwrite"
        with _translate_errors():
            self._obstore.put(self._get_client(key), key, data, mode=mode, use_multipart=False)

    def upload(self, key: str, data: Iterable[Bytes], size: int) -> None:
        """Write a large object of `size` bytes in parts, several at a time, with repeats.

        The object appears whole or not at all. An exception raised by `data` ends the upload, and
        is raised here.
        """
        self._require_listable()
        _check_process()
        if self._uploads is None:
            self._uploads = self._open_client(for_uploads=True)
        part_bytes = max(limits.object_part_bytes, -(-size // limits.object_parts_max))
        failed: list[BaseException] = []

        def read_data() -> Iterator[Bytes]:
            try:
                yield from data
            except BaseException as error:
                failed.append(error)
                raise

        try:
            self._obstore.put(
                self._uploads,
                key,
                read_data(),
                use_multipart=True,
                chunk_size=part_bytes,
                max_concurrency=limits.object_parts,
            )
        except Exception as error:
            if failed:
                raise failed[0] from None
            problem = _translate_error(error)
            if problem.again:
                problem = build_timeout(problem.what, limits.object_deadline_s)
            raise problem from None

    def delete(self, keys: Sequence[str]) -> None:
        """Delete objects; it is no error if they do not exist."""
        self._require_listable()
        _check_process()
        with _translate_errors():
            try:
                self._obstore.delete(self._store, list(keys))
            except FileNotFoundError as error:  # of some services, if the object does not exist
                if len(keys) > 1 or "NoSuchBucket" in str(error):
                    raise

    # -- the library's clients ---------------------------------------------------------------------

    def _require_listable(self) -> None:
        if not self.listable:
            remedy = "name files, or patterns such as train-{000..012}.tar"
            raise UsageError(f"{self.url} has no folders: {remedy}")

    def _get_client(self, key: str) -> Any:
        """Return the client for an object: on a web server one for each set of secrets."""
        _check_process()
        if self.listable:
            return self._store
        user, query = _private.get(f"{self.url}/{key}", ("", ""))
        if (user, query) not in self._stores:
            self._stores[user, query] = self._open_client(user, query)
        return self._stores[user, query]

    def _open_client(self, user: str = "", query: str = "", *, for_uploads: bool = False) -> Any:
        """Open a client of the library, for a web server with a user's name and a query."""
        from obstore.store import AzureStore, GCSStore, HTTPStore

        scheme, _, name = self.url.partition("://")
        options = self._options | {"allow_http": scheme == "http"}
        # Retries are ours, and end with the deadline and with the engine; but only the library can
        # send parts of an upload again. While a request is sent, nothing is heard either.
        deadline = timedelta(seconds=limits.object_deadline_s)
        retries: dict[str, Any] = {"max_retries": 0, "retry_timeout": deadline}
        if for_uploads:
            options["read_timeout"] = deadline
            first, most = limits.object_pause_s, limits.object_pause_s_max
            retries["max_retries"] = 1000
            retries["backoff"] = {
                "init_backoff": timedelta(seconds=first),
                "max_backoff": timedelta(seconds=most),
                "base": 2,
            }
        more: dict[str, Any] = {"client_options": options, "retry_config": retries}
        if not self.listable:
            url = f"{scheme}://{user}{name}/" + (f"?{query}" if query else "")
            return HTTPStore(url, **more)
        try:
            if scheme == "s3":
                return self._open_s3(name, more)
            return (GCSStore if scheme == "gs" else AzureStore)(name, **more)
        except Exception as error:
            remedy = f"check its name and the settings of {scheme}:// (docs/objects.md)"
            if "Account must be specified" in str(error):
                remedy = "az:// URLs are az://container/name; set AZURE_STORAGE_ACCOUNT_NAME"
            kind = type(error).__name__
            raise UsageError(f"{self.url} cannot be opened ({kind}): {remedy}") from None

    def _open_s3(self, name: str, more: dict[str, Any]) -> S3Store:
        from obstore.store import S3Store

        config = read_aws_profile(os.environ)
        names = ("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL", "AWS_ENDPOINT")
        endpoints = [*map(os.environ.get, names), config.get("endpoint")]
        endpoint = next((value for value in endpoints if value), "")
        if endpoint:
            config["endpoint"] = endpoint
        if endpoint.startswith("http://"):
            more["client_options"] = more["client_options"] | {"allow_http": True}
        if config.pop("provider", None):
            from obstore.auth.boto3 import Boto3CredentialProvider

            more["credential_provider"] = Boto3CredentialProvider()
        return S3Store(name, **config, **more)


def open_service_bucket(url: str, stall_s: float = limits.object_stall_s) -> Bucket:
    """Return the bucket of a URL. Users of the same settings share a bucket and its connections."""
    return open_shared(Bucket, url, stall_s, ("AWS_", "GOOGLE_", "AZURE_"))


def open_shared(
    kind: Callable[[str, float], T], url: str, stall_s: float, prefixes: tuple[str, ...]
) -> T:
    """Return an object of a URL, the same for all users as long as these variables of the
    environment are the same."""
    settings = (item for item in os.environ.items() if item[0].startswith(prefixes))
    shared: T = _open_shared(kind, url, stall_s, tuple(sorted(settings)))
    return shared


@functools.lru_cache(maxsize=64)
def _open_shared(kind: Callable[[str, float], Any], url: str, stall_s: float, _: object) -> Any:
    return kind(url, stall_s)


def _check_process() -> None:
    """Raise ForkError in a forked child: without the library's threads, its calls never return."""
    global _started_in
    if _started_in is None:
        _started_in = threads.forks
    elif _started_in != threads.forks:
        what = "object stores were used before this process was forked"
        raise ForkError(f"{what}: start processes by 'spawn', or open the data in the child")


def _read_version(meta: Mapping[str, Any]) -> int:
    return compute_version(meta.get("e_tag"), str(meta["last_modified"].replace(microsecond=0)))


def _describe_object(meta: Any) -> ObjectInfo:
    when_s = meta["last_modified"].timestamp()
    return ObjectInfo(str(meta["path"]), int(meta["size"]), _read_version(meta), when_s)


# -- what went wrong -------------------------------------------------------------------------------

_status = re.compile(r"status code: (\d{3})")
_service_code = re.compile(r"<Code>(\w{1,64})</Code>")
_kind = re.compile(r"\bkind: (Timeout|Interrupted|Connect|Request|Decode|Unknown)\b")


@contextlib.contextmanager
def _translate_errors() -> Iterator[None]:
    """Turn the library's exceptions into ObjectRefused, without their text."""
    try:
        yield
    except (ObjectRefused, UsageError, ForkError):
        raise
    except Exception as error:
        raise _translate_error(error) from None


def _translate_error(error: Exception) -> ObjectRefused:
    text, name = str(error), type(error).__name__
    match = _status.search(text)
    status = int(match[1]) if match else 0
    match = _service_code.search(text)
    code = match[1] if match else ""
    words = f"{status} {code}".strip() if status else ""
    denied = ("PermissionDeniedError", "UnauthenticatedError")
    no_ranges = name == "NotSupportedError" or "non-partial response" in text
    is_redirect = status // 100 == 3 or "BareRedirect" in text
    for is_so, number, otherwise in (
        (status == 404, errno.ENOENT, ""),
        (name == "FileNotFoundError", errno.ENOENT, "404: there is no such object or bucket"),
        (name in denied or status in (401, 403), errno.EACCES, "access denied"),
        (name == "AlreadyExistsError", errno.EEXIST, "the object exists already"),
        (status == 501 or name == "NotImplementedError", errno.ENOTSUP, "it cannot do that"),
        (name == "PreconditionError", errno.ESTALE, "the object has another version"),
        (no_ranges, errno.ENOTSUP, "the server does not answer ranges"),
        (status == 416, errno.ERANGE, ""),
        (code.startswith(("Expired", "InvalidToken")), errno.EACCES, ""),
    ):
        if is_so:
            return ObjectRefused(number, otherwise if no_ranges else words or otherwise)
    if status in _again or code in _slow_codes:
        return ObjectRefused(errno.EIO, words, again=True)
    if is_redirect:
        what = words or "a redirect to nowhere"
        return ObjectRefused(errno.EIO, f"{what}: is the region right (AWS_REGION)?")
    return ObjectRefused(errno.EIO, words) if status else _translate_lost_request(text, name)


def _translate_lost_request(text: str, name: str) -> ObjectRefused:
    """Translate an exception of a request that got no answer."""
    lowered = text.lower()
    if "credential" in lowered or "169.254.169.254" in text or "metadata.google" in text:
        return ObjectRefused(errno.EACCES, "no credentials were found")
    kind = _kind.search(text)
    if kind is None:
        return ObjectRefused(errno.EIO, f"the request failed ({name})")
    if "certificate" in lowered:
        return ObjectRefused(errno.EIO, "the server's certificate is not trusted")
    words = {
        "Timeout": "no answer in time",
        "Interrupted": "the connection was lost",
        "Connect": "no connection",
    }
    return ObjectRefused(errno.EIO, words.get(kind[1], "the connection failed"), again=True)


# -- credentials that obstore does not look for ----------------------------------------------------

_given_elsewhere = (
    "AWS_ACCESS_KEY_ID",
    "AWS_SKIP_SIGNATURE",
    "AWS_WEB_IDENTITY_TOKEN_FILE",
    "AWS_CONTAINER_CREDENTIALS_RELATIVE_URI",
    "AWS_CONTAINER_CREDENTIALS_FULL_URI",
)


def read_aws_profile(environment: Mapping[str, str]) -> dict[str, Any]:
    """Read keys, region and endpoint of the profile in use from ~/.aws, unless the environment sets
    them. `provider` marks a profile that boto3 has to resolve (roles, sign-on)."""
    profile = environment.get("AWS_PROFILE", "default")
    home = os.path.join(os.path.expanduser("~"), ".aws")
    keys = environment.get("AWS_SHARED_CREDENTIALS_FILE", os.path.join(home, "credentials"))
    settings = environment.get("AWS_CONFIG_FILE", os.path.join(home, "config"))
    section = "default" if profile == "default" else f"profile {profile}"
    profile_settings = _read_section(settings, section) | _read_section(keys, profile)
    options: dict[str, Any] = {}
    if (
        "region" in profile_settings
        and not {"AWS_REGION", "AWS_DEFAULT_REGION"} & environment.keys()
    ):
        options["region"] = profile_settings["region"]
    if "endpoint_url" in profile_settings:
        options["endpoint"] = profile_settings["endpoint_url"]
    if any(name in environment for name in _given_elsewhere):
        return options
    for name in ("aws_access_key_id", "aws_secret_access_key", "aws_session_token"):
        if name in profile_settings:
            options[name.removeprefix("aws_")] = profile_settings[name]
    if (
        "access_key_id" not in options
        and {"role_arn", "sso_session", "sso_start_url"} & profile_settings.keys()
    ):
        try:
            import boto3  # noqa: F401
        except ImportError:
            what = f"the AWS profile {profile!r} is a role or sign-on"
            raise UsageError(f"{what}: pip install boto3, or set AWS_ACCESS_KEY_ID") from None
        options["provider"] = True
    return options


def _read_section(path: str, name: str) -> dict[str, str]:
    reader = configparser.RawConfigParser()
    try:
        reader.read(path)
    except (configparser.Error, UnicodeDecodeError):
        raise UsageError(f"{path} is not a file of AWS settings: repair or remove it") from None
    return dict(reader[name]) if reader.has_section(name) else {}
