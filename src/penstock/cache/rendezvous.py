"""Rendezvous of the ranks of a job: each rank sends a text, and receives the texts of all.

penstock starts no cluster and runs no service of its own. Ranks find each other through whatever
started them: the process group of torch.distributed (torchrun, Ray Train), jax.distributed, MPI, or
a function of the user.
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
from ..topology import Place, detect, find_reader

Gather = Callable[[str], list[str]]
"""Function that exchanges texts between all ranks.

It is called on every rank at the same time, with the text of that rank, and returns the texts of
all ranks in order of rank.
"""

_ERROR = "error"
_elsewhere = "192.0.2.1"
"""Address that no host has (RFC 5737): packets to it take the default route."""


def find_gather(
    place: Place,
    modules: Mapping[str, Any],
    environ: Mapping[str, str],
    user_gather: Gather | None = None,
) -> Gather:
    """Return the function by which the readers of this job exchange texts: all that iterate.

    user_gather:  the user's own function, which is used unchecked.

    Raises UsageError if there is no way to exchange texts. MPI is begun here only in processes that
    were started for MPI: in others, beginning it may end the process.
    """
    reader = find_reader(place, environ, modules)
    if reader.world_size == 1:
        return lambda text: [text]
    if user_gather is not None:
        return user_gather
    store = find_store(modules)
    if store is not None:
        ranks = detect(None, None, {}, modules).world_size
        if place.readers is None and ranks != place.world_size:
            raise UsageError(
                f"the process group has {ranks} ranks, the loader "
                f"{place.world_size} ({place.source}): say which of them iterate by "
                "place=Place(rank, world_size, readers=...), or give Cache(gather=...) among those "
                "that share the data, by all_gather_object in a group of them for instance"
            )
        readers = tuple(place.readers or range(ranks))
        if readers[-1] >= ranks:
            raise UsageError(
                f"readers names rank {readers[-1]} and the process group has {ranks}: name ranks "
                "of the process group"
            )
        return lambda text: _exchange_by_store(store, readers, reader.rank, text)
    mpi = modules.get("mpi4py.MPI")
    begun = (
        mpi is not None
        and mpi.Is_initialized()
        and not mpi.Is_finalized()
        and mpi.COMM_WORLD.Get_size() == reader.world_size
    )
    by_srun = reader.source == "Slurm" and "PMIX_RANK" in environ
    if begun or by_srun or reader.source in ("Open MPI", "MPICH", "MVAPICH2"):
        return _find_mpi_gather(reader)
    raise UsageError(
        f"{reader.world_size} ranks ({reader.source}) that share a cache have to tell each other "
        "where they are: initialise torch.distributed first, start them with mpiexec and install "
        "mpi4py, or give Cache(gather=...)"
    )


def find_store(modules: Mapping[str, Any]) -> Any:
    """Return the key-value store of the process group, or None if there is none.

    It is that of torch.distributed, or else that of jax.distributed.
    """
    distributed = modules.get("torch.distributed")
    if distributed is not None and distributed.is_available() and distributed.is_initialized():
        return distributed.distributed_c10d._get_default_store()
    coordination = modules.get("jax._src.distributed")
    client = None if coordination is None else coordination.global_state.client
    return None if client is None else _wrap_client(client)


class CoordinationStore:
    """Key-value store of jax.distributed, with the methods of torch's stores that are used here."""

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


def _exchange_by_store(store: Any, readers: Sequence[int], own: int, text: str) -> list[str]:
    """Exchange texts among these ranks of the process group, through its key-value store.

    The store waits for keys that are not there yet. It counts how often each rank has sent, because
    a rank may have been in other groups before.

    own:  number of this rank among the readers.
    """
    members = "penstock/members/" + hashlib.sha256(repr(readers).encode()).hexdigest()[:16]
    turn = store.add(f"{members}/{own}", 1)
    store.set(f"{members}/{turn}/{own}", text)
    keys = {f"{members}/{turn}/{number}": rank for number, rank in enumerate(readers)}
    try:
        texts = [store.get(key).decode() for key in keys]
    except RuntimeError as error:  # the store's time-out, or its server has gone
        absent = "the other ranks"
        with contextlib.suppress(RuntimeError):
            ranks = [str(rank) for key, rank in keys.items() if not store.check([key])]
            absent = f"rank {', '.join(ranks)}" if ranks else absent
        raise UsageError(
            f"rank {readers[own]} waited for {absent}, which did not say where its data lies "
            f"({error}): iterate the loader on all ranks; if some read nothing, leave them out of "
            "place=Place(rank, world_size, readers=...), or of the mesh"
        ) from None
    # Whoever has sent this turn's text has received all of the turn before.
    with contextlib.suppress(RuntimeError, NotImplementedError):  # a key that stays is small
        store.delete_key(f"{members}/{turn - 1}/{own}")
    return texts


def _find_mpi_gather(place: Place) -> Gather:
    try:
        from mpi4py import MPI
    except ImportError as error:
        raise UsageError(
            f"{place.world_size} ranks ({place.source}) that share a cache tell each other where "
            f"they are by mpi4py, which cannot be imported ({error}): pip install mpi4py, "
            "initialise torch.distributed, or give Cache(gather=...)"
        ) from None
    if MPI.COMM_WORLD.Get_size() != place.world_size:
        raise UsageError(
            f"MPI sees {MPI.COMM_WORLD.Get_size()} ranks and there are {place.world_size} "
            f"({place.source}): use the mpiexec of the MPI that mpi4py has "
            f"({MPI.get_vendor()[0]}), or give Cache(gather=...)"
        )
    return _exchange_by_mpi


def _exchange_by_mpi(text: str) -> list[str]:
    from mpi4py import MPI

    # The first allreduce of Python objects makes a communicator, and mpi4py does not let other
    # threads run until all ranks have come. Were it the user's, at the end of an epoch say, who
    # comes first would not answer peers, for whose sake the others are late.
    MPI.COMM_WORLD.allreduce(0)
    return list(MPI.COMM_WORLD.allgather(text))


def is_mpi(gather: Gather) -> bool:
    """True if `find_gather` has chosen MPI."""
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

    It is the address of the interface on the way to the launcher's address (MASTER_ADDR), or else
    to the address of this host's name.
    """
    master = environ.get("MASTER_ADDR") or socket.gethostname()
    try:
        own = _find_address_towards(master)
    except OSError as error:
        raise UsageError(
            f"the address of this host towards {master!r} cannot be found ({error}): give "
            "Cache(listen=...)"
        ) from None
    if ipaddress.ip_address(own).is_loopback and master in (
        socket.gethostname(),
        socket.getfqdn(),
    ):
        # Many systems give their own name a loopback address (127.0.1.1), which is none for others.
        with contextlib.suppress(OSError):
            return _find_address_towards(_elsewhere)
    return own


def _find_address_towards(other: str) -> str:
    family, kind, _, _, address = socket.getaddrinfo(other, 9, type=socket.SOCK_DGRAM)[0]
    with socket.socket(family, kind) as probe:
        probe.connect(address)  # of a datagram socket: nothing is sent
        return str(probe.getsockname()[0])


def exchange_values(
    gather: Gather, place: Place, say: Callable[[], Mapping[str, Any]]
) -> list[dict[str, Any]]:
    """Return the values that the ranks introduce themselves with, by rank.

    If `say` raises on one rank, its error is raised there. All other ranks raise a UsageError with
    its text, so nobody waits for a rank that does not come.

    The addresses and public keys of peers go this way. With $PENSTOCK_SECRET, which is the same on
    all ranks, each text carries a code, and one that was made without the secret is a UsageError.
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


def read_texts(texts: Sequence[str], own: str, place: Place, secret: bytes) -> list[dict[str, Any]]:
    """Return the values in the texts of all ranks, by rank.

    Raises UsageError if a rank could not take part, or a text is missing, is no text of this
    exchange, or was made with another secret. It depends on its arguments alone, so ranks that hold
    the same texts end the same way.

    own:  text of this rank, as it was sent.
    """
    if not isinstance(texts, Sequence) or isinstance(texts, str | bytes):
        raise UsageError(f"gather returned {texts!r:.100}: it has to return a list of texts")
    if len(texts) != place.world_size or texts[place.rank] != own:
        raise UsageError(
            f"gather returned {len(texts)} texts on rank {place.rank} of {place.world_size}: it "
            "has to return what each rank said, in order of rank"
        )
    values = [_read_text(secret, place, *pair) for pair in enumerate(texts)]
    for rank, value in enumerate(values):
        if _ERROR in value:
            raise UsageError(f"rank {rank} cannot take part in the cache: {value[_ERROR]}")
    return values


def _read_text(secret: bytes, place: Place, rank: int, text: str) -> dict[str, Any]:
    """Return the values in a rank's text; raise UsageError if it holds none."""
    value = None
    if isinstance(text, str):
        unsigned = _verify(secret, place, rank, text)
        with contextlib.suppress(ValueError, RecursionError):
            value = json.loads(unsigned)
    if not isinstance(value, dict):
        raise UsageError(
            f"gather returned {text!r:.100} for rank {rank}, which is nothing that a rank said: it "
            "has to return what each rank said, in order of rank"
        )
    return value


def _sign(secret: bytes, place: Place, rank: int, text: str) -> str:
    """Put the code of a rank's text before it: HMAC-SHA256 of rank, world and text."""
    if not secret:
        return text
    whole = f"{rank}/{place.world_size}:{text}".encode()
    return hmac.digest(secret, whole, "sha256").hex() + text


def _verify(secret: bytes, place: Place, rank: int, signed: str) -> str:
    """Return a rank's text without its code. Raises UsageError if the code is not right."""
    text = signed if signed.startswith("{") else signed[64:]
    wanted = _sign(secret, place, rank, text)
    if not hmac.compare_digest(wanted.encode(), signed.encode()):
        raise UsageError(
            f"what rank {rank} says of itself was not made with the PENSTOCK_SECRET of rank "
            f"{place.rank}: set the same one, or none, on all ranks; or somebody else writes to "
            "the store in which ranks meet"
        )
    return text
