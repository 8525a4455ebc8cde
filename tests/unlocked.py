"""A process in which flock fails, as on network file systems without it: the kernel refuses it."""

from __future__ import annotations

import ctypes
import errno
import platform
import struct

_FLOCK = {"x86_64": 73, "aarch64": 32}
_LOAD, _JUMP_IF_EQUAL, _RETURN = 0x20, 0x15, 0x06
_ALLOW, _ERRNO = 0x7FFF0000, 0x00050000
_NO_NEW_PRIVS, _SECCOMP, _FILTER = 38, 22, 2


def forbid_flock() -> None:
    """Let flock fail with ENOLCK from now on, in this process and those that it starts."""
    program = (
        (_LOAD, 0, 0, 0),  # the number of the system call
        (_JUMP_IF_EQUAL, 0, 1, _FLOCK[platform.machine()]),
        (_RETURN, 0, 0, _ERRNO | errno.ENOLCK),
        (_RETURN, 0, 0, _ALLOW),
    )
    code = ctypes.create_string_buffer(b"".join(struct.pack("HBBI", *line) for line in program))
    filter_of = ctypes.create_string_buffer(struct.pack("HP", len(program), ctypes.addressof(code)))
    libc = ctypes.CDLL(None, use_errno=True)
    for arguments in ((_NO_NEW_PRIVS, 1, 0, 0, 0), (_SECCOMP, _FILTER, filter_of)):
        if libc.prctl(*arguments):
            raise OSError(ctypes.get_errno(), "prctl")
