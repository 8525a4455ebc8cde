"""Sidecar: one file that holds an index beside the data. Its format is in docs/format.md.

This module knows paths, bytes, sections and checksums; the index knows their meaning. Reading
either returns exactly the data written or raises SidecarError. Writing either replaces the whole
file or leaves the old one as it was.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import mmap
import os
import secrets
import struct
import zlib
from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from .. import limits
from ..engine.atomic_file import sync_folder
from ..engine.open import is_url
from ..errors import SidecarError, UsageError

Header = dict[str, Any]
Sections = Mapping[str, npt.NDArray[Any]]

MAGIC = b"\x93PENSTK\n"
VERSION = 3
_PRELUDE = struct.Struct("<8sIIQQ")  # magic, version, crc32 of the rest, header bytes, file bytes
_ALIGN = 64
_DTYPES = ("|u1", "<i2", "<i4", "<u4", "<i8")


def list_saved_paths(path: str, kind: str = "", *, beside: bool | None = None) -> list[str]:
    """List the paths at which a file about the data is looked for and saved.

    The first is beside the data, the last in this user's cache. Beside a folder, not inside:
    writing there would change the folder's time and so the data.

    kind:    of the file, such as "lengths"; the index has none.
    beside:  False for the cache alone; by default data that exists as one path has both.
    """
    end = f".{kind}.penstock" if kind else ".penstock"
    real = path if is_url(path) else os.path.realpath(path)
    digest = hashlib.blake2b(os.fsencode(real), digest_size=8).hexdigest()
    name = os.path.basename(path)[:100].replace("*", "_")
    cached_path = os.path.join(own_folder(), f"{digest}-{name}{end}")
    if beside is None:
        beside = not is_url(path) and os.path.exists(path)
    return [path + end, cached_path] if beside else [cached_path]


def choose_saved_path(paths: list[str]) -> str:
    """Return the first path that can be written."""
    for path in paths:
        folder = os.path.dirname(path)
        if path == paths[-1]:
            os.makedirs(folder, exist_ok=True)
        if os.access(folder, os.W_OK):
            return path
    raise UsageError(f"{paths[-1]} cannot be written: give this user a writable cache folder")


def own_folder() -> str:
    """Return the folder in which only this user saves indexes."""
    base = os.environ.get("XDG_CACHE_HOME") or os.path.join(os.path.expanduser("~"), ".cache")
    return os.path.join(base, "penstock")


def is_own(path: str) -> bool:
    """True if this user has saved the file, and not whoever the data came from."""
    return os.path.dirname(path) == own_folder()


def damaged_error(path: str, what: str) -> SidecarError:
    """Make the error for a sidecar whose content differs from the one written."""
    return SidecarError(f"{path}: {what}: rebuild it with `penstock index --force` on its data")


def write_sidecar(path: str, header: Header, sections: Sections) -> None:
    """Replace the file atomically and durably; on any failure the old file stays (OSError)."""
    arrays = {name: np.ascontiguousarray(array) for name, array in sections.items()}
    prelude, places = _plan_sections(header, arrays)
    folder, name = os.path.split(path)
    temporary = os.path.join(folder, f".{name[:64]}.{os.getpid()}.{secrets.token_hex(4)}")
    try:
        with open(temporary, "xb") as out:
            out.write(prelude)
            for key, array in arrays.items():
                out.write(b"\0" * (places[key] - out.tell()))
                out.write(array.data)
            out.flush()
            os.fsync(out.fileno())
        os.replace(temporary, path)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(temporary)
        raise
    with contextlib.suppress(OSError):  # durable where the file system lets a folder be synced
        sync_folder(folder)


def _plan_sections(
    header: Header, arrays: Mapping[str, npt.NDArray[Any]]
) -> tuple[bytes, dict[str, int]]:
    """Make the bytes before the first section, and compute where each section starts.

    Offsets in the header count from the end of the header, since its own length depends on them.
    """
    places: dict[str, int] = {}
    table = []
    end = 0
    for name, array in arrays.items():
        assert array.dtype.str in _DTYPES, (name, array.dtype)
        places[name] = end = _align(end)
        crc = zlib.crc32(array.data)
        table.append([name, array.dtype.str, end, array.nbytes, crc])
        end += array.nbytes
    text = json.dumps({**header, "sections": table}, separators=(",", ":")).encode()
    start = _align(_PRELUDE.size + len(text))
    tail = struct.pack("<QQ", len(text), start + end) + text
    prelude = struct.pack("<8sII", MAGIC, VERSION, zlib.crc32(tail)) + tail
    return prelude, {name: start + place for name, place in places.items()}


def _align(offset: int) -> int:
    return -(-offset // _ALIGN) * _ALIGN


def read_sidecar(
    path: str, verify: bool | None = None
) -> tuple[Header, dict[str, npt.NDArray[Any]]]:
    """Read the header, and the sections as read-only arrays over a memory map.

    The header's checksum is always verified. Those of the sections are verified if `verify` is
    True, and by default if the file has at most `limits.sidecar_bytes_verified_max` bytes. OSError
    if the file cannot be read.
    """
    with open(path, "rb") as file:
        size = os.fstat(file.fileno()).st_size
        if size < _PRELUDE.size:
            raise damaged_error(path, f"truncated: it has {size} bytes")
        data = memoryview(mmap.mmap(file.fileno(), size, access=mmap.ACCESS_READ))
    magic, version, crc, header_bytes, file_bytes = _PRELUDE.unpack_from(data)
    if magic != MAGIC:
        raise damaged_error(path, f"not a sidecar: it starts with {bytes(magic)!r}")
    if version != VERSION:
        raise damaged_error(path, f"version {version}, but penstock reads {VERSION}")
    if header_bytes > size - _PRELUDE.size or file_bytes != size:
        raise damaged_error(path, f"truncated or damaged: {file_bytes:,} bytes were written")
    start = _PRELUDE.size + header_bytes
    if zlib.crc32(data[16:start]) != crc:
        raise damaged_error(path, "the header's checksum does not match")
    try:
        header = json.loads(bytes(data[_PRELUDE.size : start]))
        rows = [(str(n), str(d), int(o), int(b), int(c)) for n, d, o, b, c in header["sections"]]
    except (KeyError, TypeError, ValueError, RecursionError):
        raise damaged_error(path, "the header or its table of sections is malformed") from None
    if verify is None:
        verify = size <= limits.sidecar_bytes_verified_max
    body = data[min(_align(start), size) :]
    return header, {row[0]: _view_section(path, body, row, verify) for row in rows}


def _view_section(
    path: str, body: memoryview, row: tuple[str, str, int, int, int], verify: bool
) -> npt.NDArray[Any]:
    name, dtype, offset, nbytes, crc = row
    if dtype not in _DTYPES:
        raise damaged_error(path, f"section {name!r} has the unknown type {dtype!r}")
    aligned = offset % _ALIGN == 0 and nbytes % np.dtype(dtype).itemsize == 0
    if not aligned or min(offset, nbytes) < 0 or offset + nbytes > len(body):
        raise damaged_error(path, f"section {name!r} lies outside the file")
    section = body[offset : offset + nbytes]
    if verify and zlib.crc32(section) != crc:
        raise damaged_error(path, f"section {name!r}: its checksum does not match")
    return np.frombuffer(section, dtype) if nbytes else np.zeros(0, dtype)
