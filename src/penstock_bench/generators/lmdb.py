"""LMDB: an environment a file, each sample a value, its key a number that counts over all files."""

from __future__ import annotations

import errno

from penstock.engine import AtomicFile, storage_errors
from penstock.index import missing_library

from ..file_draft import Draft

_PAGE = 4096


def write(part: AtomicFile, draft: Draft) -> None:
    """Write a file, in one transaction."""
    try:
        import lmdb
    except ModuleNotFoundError:
        raise missing_library("lmdb", "lmdb", "writing LMDB") from None
    pages = draft.count * (-(-draft.sample_bytes // _PAGE) + 2) + 64
    with storage_errors(part.path):
        try:
            environment = lmdb.open(
                part.temporary, pages * _PAGE, subdir=False, lock=False, sync=False, max_dbs=0
            )
            with environment, environment.begin(write=True) as transaction:
                for number, record in enumerate(draft.records(), draft.number * draft.count):
                    transaction.put(f"{number:09d}".encode(), bytes(record), append=True)
        except lmdb.DiskError as error:
            raise OSError(errno.ENOSPC, str(error)) from None
        except lmdb.Error as error:
            raise OSError(errno.EIO, str(error)) from None
