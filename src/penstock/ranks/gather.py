"""Exchange of texts among the ranks of a job: each rank sends one and receives all.

penstock starts no cluster and runs no service. Ranks find each other through whatever started them:
torch.distributed (torchrun, Ray Train), jax.distributed, MPI, or the user's function.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import hmac
import ipaddress
import json
import os
import socket
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from .. import limits
from ..errors import UsageError
from .place import Place, detect, find_reader

Gather = Callable[[str], list[str]]
"""Function that exchanges texts between all ranks.

It is called on every rank at the same time, with the text of that rank, and returns the texts of
all ranks in order of rank.
"""

_ERROR = "error"
_elsewhere = "192.0.2.1"
"""Address without a host (RFC 5737): packets to it take the default route."""


def find_gather(
    place: Place,
    modules: Mapping[str, Any],
    environ: Mapping[str, str],
    user_gather: Gather | None = None,
) -> Gather:
    """Return the function by which all ranks that iterate a loader exchange texts.

    user_gather:  the user's function, used unchecked.

    Raises UsageError if there is no way to exchange texts.
    """
    reader = find_reader(place, environ, modules)
    if reader.world_size == 1:
        return lambda text: [text]
    if user_gather is not None:
        return user_gather
    store = find_store(modules)
    if store is not None:
        ranks = detect(None, None, {}, modules).world_size
        readers = tuple(place.readers or range(place.world_size))
        last = readers[-1]
        if last >= ranks or (place.readers is None and last + 1 != ranks):
            raise UsageError(f"{ranks} ranks in the group, not {last + 1}: give Place(readers=...)")
        return lambda text: _exchange_by_store(store, readers, reader.rank, text)
    mpi = modules.get("mpi4py.MPI")
    # Only where MPI started the process: elsewhere, starting MPI may end the process.
    started = (
        mpi is not None
        and mpi.Is_initialized()
        and not mpi.Is_finalized()
        and mpi.COMM_WORLD.Get_size() == reader.world_size
    )
    by_srun = reader.source == "Slurm" and "PMIX_RANK" in environ
    if started or by_srun or reader.source in ("Open MPI", "MPICH", "MVAPICH2"):
        return _find_mpi_gather(reader)
    what = f"{reader.world_size} ranks cannot exchange texts"
    raise UsageError(f"{what}: use torch.distributed or gather=")


def find_store(modules: Mapping[str, Any]) -> Any:
    """Return the key-value store of torch.distributed, else of jax.distributed, else None."""
    distributed = modules.get("torch.distributed")
    if distributed is not None and distributed.is_available() and distributed.is_initialized():
        return distributed.distributed_c10d._get_default_store()
    coordination = modules.get("jax._src.distributed")
    client = None if coordination is None else coordination.global_state.client
    return None if client is None else _wrap_client(client)


class CoordinationStore:
    """Key-value store of jax.distributed, with the methods of torch's stores used here."""

    def __init__(self, client: Any) -> None:
        self._client = client

    def add(self, key: str, amount: int) -> int:
        return int(self._client.key_value_increment(key, amount))

    def set(self, key: str, text: str) -> None:
        self._client.key_value_set(key, text, allow_overwrite=True)

    def get(self, key: str) -> bytes:
        milliseconds = int(limits.coordination_wait_s * 1000)
        return bytes(self._client.blocking_key_value_get_bytes(key, milliseconds))

    def check(self, keys: Sequence[str]) -> bool:
        try:
            for key in keys:
                self._client.key_value_try_get_bytes(key)
        except RuntimeError:  # NOT_FOUND
            return False
        return True

    def delete_key(self, key: str) -> None:
        self._client.key_value_delete(key)


_wrap_client = functools.cache(CoordinationStore)  # the same store at each call


def _exchange_by_store(store: Any, readers: Sequence[int], number: int, text: str) -> list[str]:
    """Exchange texts among some ranks of the process group, through its key-value store.

    number:  number of this rank among the readers.
    """
    members = "penstock/members/" + hashlib.sha256(repr(readers).encode()).hexdigest()[:16]
    turn = store.add(f"{members}/{number}", 1)  # a rank may have been in other groups before
    store.set(f"{members}/{turn}/{number}", text)
    keys = {f"{members}/{turn}/{other}": rank for other, rank in enumerate(readers)}
    try:
        texts = [store.get(key).decode() for key in keys]  # waits for keys that are not there yet
    except RuntimeError as error:  # the store's time-out, or its server has gone
        absent = "the other ranks"
        with contextlib.suppress(RuntimeError):
            ranks = [str(rank) for key, rank in keys.items() if not store.check([key])]
            absent = f"rank {', '.join(ranks)}" if ranks else absent
        what = f"rank {readers[number]} waited for {absent} in vain ({error})"
        raise UsageError(f"{what}: give Place(readers=...)") from None
    # Whoever has sent this turn's text has received all of the turn before.
    with contextlib.suppress(RuntimeError, NotImplementedError):  # a key that stays is small
        store.delete_key(f"{members}/{turn - 1}/{number}")
    return texts


def _find_mpi_gather(place: Place) -> Gather:
    try:
        from mpi4py import MPI
    except ImportError as error:
        what = f"{place.world_size} ranks of MPI need mpi4py ({error})"
        raise UsageError(f"{what}: install it") from None
    if (size := MPI.COMM_WORLD.Get_size()) != place.world_size:
        raise UsageError(f"MPI has {size} ranks, not {place.world_size}: use mpi4py's mpiexec")
    return _exchange_by_mpi


def _exchange_by_mpi(text: str) -> list[str]:
    from mpi4py import MPI

    # The first allreduce of Python objects makes a communicator, and mpi4py holds up all threads
    # until every rank has come. If the user made that call first, at the end of an epoch, early
    # ranks would not answer their peers, and late ranks would wait for these answers.
    MPI.COMM_WORLD.allreduce(0)
    return list(MPI.COMM_WORLD.allgather(text))


def is_mpi(gather: Gather) -> bool:
    """Return whether `find_gather` has chosen MPI."""
    return gather is _exchange_by_mpi


def host_identity() -> str:
    """Identity shared by the processes that can share memory: machine, boot, process namespace."""
    return f"{machine_identity()}:{os.stat('/proc/self/ns/pid').st_ino}"


def machine_identity() -> str:
    """Identity shared by the processes that see the same devices: machine and boot."""
    with open("/proc/sys/kernel/random/boot_id") as file:
        return file.read().strip()


def find_reachable_address(environ: Mapping[str, str]) -> str:
    """Return the address at which other hosts reach this one.

    It is the interface on the way to the launcher's address (MASTER_ADDR), else to the address of
    this host's name.
    """
    master = environ.get("MASTER_ADDR") or socket.gethostname()
    try:
        address = _find_address_towards(master)
    except OSError as error:
        raise UsageError(f"no address towards {master!r} ({error}): set Cache(listen=)") from None
    if ipaddress.ip_address(address).is_loopback and master in (
        socket.gethostname(),
        socket.getfqdn(),
    ):
        # Many systems give their name a loopback address (127.0.1.1), useless to other hosts.
        with contextlib.suppress(OSError):
            return _find_address_towards(_elsewhere)
    return address


def _find_address_towards(other: str) -> str:
    family, kind, _, _, address = socket.getaddrinfo(other, 9, type=socket.SOCK_DGRAM)[0]
    with socket.socket(family, kind) as probe:
        probe.connect(address)  # of a datagram socket: nothing is sent
        return str(probe.getsockname()[0])


def exchange_values(
    gather: Gather, place: Place, say: Callable[[], Mapping[str, Any]]
) -> list[dict[str, Any]]:
    """Return what `say` returns on each rank, by rank.

    If `say` raises on one rank, that rank raises the error, and all others a UsageError with its
    text: nobody waits for a rank that does not come. With $PENSTOCK_SECRET, equal on all ranks,
    each text carries a code; a text without the right code is a UsageError.
    """
    secret = os.environ.get("PENSTOCK_SECRET", "").encode()
    failure: Exception | None = None
    try:
        text = json.dumps(say())
    except Exception as error:
        failure, text = error, json.dumps({_ERROR: str(error)})
    text = _sign(secret, place, place.rank, text)
    texts = gather(text)
    if failure is not None:
        raise failure
    return read_texts(texts, text, place, secret)


def read_texts(
    texts: Sequence[str], sent: str, place: Place, secret: bytes
) -> list[dict[str, Any]]:
    """Return the values in the texts of all ranks, by rank.

    sent:  the text that this rank sent.

    Raises UsageError if a rank failed, or a text is missing, foreign, or made with another secret.
    The result depends on the arguments alone: ranks with the same texts end alike.
    """
    is_list = isinstance(texts, Sequence)
    if not is_list or len(texts) != place.world_size or texts[place.rank] != sent:
        raise UsageError(f"gather returned {texts!r:.100}: return all ranks' texts, by rank")
    seen: dict[str, str] = {}  # ranks say mostly the same: what 10^5 say is kept once
    values = [_read_text(secret, place, *pair, seen) for pair in enumerate(texts)]
    for rank, value in enumerate(values):
        if _ERROR in value:
            raise UsageError(f"rank {rank} cannot take part: {value[_ERROR]}")
    return values


def _read_text(secret: bytes, place: Place, rank: int, text: str, seen: Any) -> dict[str, Any]:
    """Return the values in a rank's text, strings as in `seen`. Raises UsageError if none."""
    value = None
    if isinstance(text, str):
        unsigned = _verify(secret, place, rank, text)
        with contextlib.suppress(ValueError, RecursionError):
            value = json.loads(unsigned)
    if not isinstance(value, dict):
        raise UsageError(f"gather returned {text!r:.100} for rank {rank}: return each rank's text")
    return {
        seen.setdefault(name, name): seen.setdefault(it, it) if isinstance(it, str) else it
        for name, it in value.items()
    }


def _sign(secret: bytes, place: Place, rank: int, text: str) -> str:
    """Prefix a rank's text with its code: HMAC-SHA256 of rank, world size and text."""
    if not secret:
        return text
    whole = f"{rank}/{place.world_size}:{text}".encode()
    return hmac.digest(secret, whole, "sha256").hex() + text


def _verify(secret: bytes, place: Place, rank: int, signed: str) -> str:
    """Return a rank's text without its code. Raises UsageError if the code is wrong."""
    text = signed if signed.startswith("{") else signed[64:]
    wanted = _sign(secret, place, rank, text)
    if not hmac.compare_digest(wanted.encode(), signed.encode()):
        raise UsageError(f"rank {rank} fails authentication: set the same PENSTOCK_SECRET on all")
    return text
