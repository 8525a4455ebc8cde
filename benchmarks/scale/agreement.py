"""The agreement of ranks that join a cache, and the cache that each then has: time and memory."""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from functools import partial

from penstock.cache import agreement
from penstock.cache.key_index import Addressed
from penstock.index import Index
from penstock.plan.cache_session import CacheSession
from penstock.ranks import gather
from penstock.ranks.place import Place

from .costs import BLOCK_SAMPLES, HOST_RANKS, RANK_MB, START_S, time_least, trace_peak
from .curves import Curve


def make_texts(index: Index, world: int) -> list[str]:
    """Make the introductions of so many ranks, by the shipped code for one of them."""
    cache = agreement.Cache(ram_bytes=512 << 30, cache_block_bytes=64 << 10)
    place = Place(0, world)
    first = agreement._introduce(index, cache, lambda text: [text], place, place)
    text = json.dumps(first | {"host": "@host", "name": "@name", "coordinate": 10**9})
    return [
        text.replace("@host", f"{first['host'][:-6]}{rank // HOST_RANKS:06}")
        .replace("@name", f"node{rank // HOST_RANKS:06}")
        .replace(str(10**9), str(rank))
        for rank in range(world)
    ]


def agree(index: Index, texts: Sequence[str]) -> agreement.CacheAgreement:
    """Do what `join_cache` does with the introductions of all ranks."""
    place = Place(0, len(texts))
    members = gather.read_texts(texts, texts[0], place, b"")
    agreement._check_alike(members)
    agreement._locate_coordinates(members, "strided")
    return agreement._agree(Addressed(index), place, members, BLOCK_SAMPLES)


def measure_agreement(index: Index, worlds: Sequence[int]) -> tuple[list[Curve], int]:
    """Curves of the agreement of all ranks and of a rank's cache; and the bytes of a text."""
    times, memory, sessions, session_memory = [], [], [], []
    text_bytes = 0
    addressed = Addressed(index)
    for world in worlds:
        texts = make_texts(index, world)
        text_bytes = len(texts[-1])
        started = time.thread_time()
        job = agree(index, texts)
        times.append((world, time.thread_time() - started))
        memory.append(
            (world, trace_peak(partial(agree, index, texts)) + sum(map(len, texts)) / 1e6)
        )
        make = partial(CacheSession, addressed, job.placement, job.nodes, 0)
        sessions.append((world, time_least(make, 1)))
        session_memory.append((world, trace_peak(make)))
    told = "a tree of hosts"
    curves = [
        Curve("agreement: time", "ranks", "s", 1, START_S, "once", tuple(times), (), told),
        Curve("agreement: memory", "ranks", "MB", 1, RANK_MB, "a rank", tuple(memory), (), told),
        Curve("a rank's cache: making it", "ranks", "s", 1, START_S, "once", tuple(sessions)),
        Curve("a rank's cache: memory", "ranks", "MB", 1, RANK_MB, "a rank", tuple(session_memory)),
    ]
    return curves, text_bytes
