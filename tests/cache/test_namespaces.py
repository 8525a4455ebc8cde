"""The cache between hosts that are network and process namespaces, joined by a bridge that is cut.

Each host has an address, a loopback and processes of its own; what tells hosts apart and where they
are reached is found as on real ones. All of it lies in namespaces with names of this run, and goes
with them.
"""

from __future__ import annotations

import os
import secrets
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import numpy as np
import pytest

import penstock
from tests.cache.ranks import Rank, Taken, begin, ended

pytest.importorskip("zmq")

HOSTS, SAMPLES, WIDTH, BATCH = 3, 3000, 100, 30
LOADER = {"global_batch_size": BATCH, "seed": 2, "assignment": "strided"}
BOUNDS = {
    "peer_timeout_s": 4.0,
    "peer_connect_s": 2.0,
    "peer_heartbeat_s": 0.5,
    "peer_silent_s": 2.0,
}
WAIT_S = 2 * BOUNDS["peer_timeout_s"]
"""Longest wait for a batch: a peer's deadline, once, and a busy machine."""


def ip(*words: str) -> None:
    done = subprocess.run(["ip", *words], capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"ip {' '.join(words)}: {done.stderr}"


class Network:
    """Hosts on a bridge, which has a namespace to itself."""

    def __init__(self) -> None:
        name = f"penstock-{secrets.token_hex(3)}"
        self.bridge = f"{name}-bridge"
        self.hosts = [f"{name}-{number}" for number in range(HOSTS)]
        self.addresses = [f"10.77.0.{1 + number}" for number in range(HOSTS)]

    def __enter__(self) -> Network:
        with ExitStack() as undo:
            for namespace in [self.bridge, *self.hosts]:
                ip("netns", "add", namespace)
                undo.callback(ip, "netns", "del", namespace)
                ip("-n", namespace, "link", "set", "lo", "up")
            ip("-n", self.bridge, "link", "add", "bridge", "type", "bridge")
            ip("-n", self.bridge, "link", "set", "bridge", "up")
            for number, (host, address) in enumerate(zip(self.hosts, self.addresses, strict=True)):
                port = f"port{number}"
                pair = f"link add {port} type veth peer name eth0 netns {host}"
                ip("-n", self.bridge, *pair.split())
                ip("-n", self.bridge, "link", "set", port, "master", "bridge", "up")
                ip("-n", host, "address", "add", f"{address}/24", "dev", "eth0")
                ip("-n", host, "link", "set", "eth0", "up")
                ip("-n", host, "route", "add", "default", "via", "10.77.0.254")
            self._undo = undo.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._undo.close()

    def inside(self, number: int) -> list[str]:
        """The command that starts a program on a host, and ends it when it is killed itself."""
        processes = ["unshare", "--pid", "--uts", "--fork", "--kill-child", "--mount-proc"]
        return ["ip", "netns", "exec", self.hosts[number], *processes]

    def turn(self, how: str, number: int, state: str) -> None:
        """Pull out a host's cable or put it back, or its interface."""
        if how == "cable":
            ip("-n", self.bridge, "link", "set", f"port{number}", state)
        else:
            ip("-n", self.hosts[number], "link", "set", "eth0", state)
            if state == "up":
                ip("-n", self.hosts[number], "route", "add", "default", "via", "10.77.0.254")


@pytest.fixture(scope="module")
def network() -> Iterator[Network]:
    for tool in ("ip", "unshare"):
        if shutil.which(tool) is None:
            pytest.skip(f"no {tool} (Debian: apt-get install iproute2 util-linux)")
    if os.geteuid() != 0:
        pytest.skip("only root can make network namespaces")
    try:
        subprocess.run(
            ["unshare", "--net", "--pid", "--uts", "--fork", "--mount-proc", "true"],
            capture_output=True,
            check=True,
        )
    except subprocess.CalledProcessError as error:
        pytest.skip(f"namespaces cannot be made here: {error.stderr.decode().strip()}")
    with Network() as network:
        yield network


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("rows") / "rows.npy"
    np.save(path, np.random.default_rng(8).integers(0, 256, (SAMPLES, WIDTH), np.uint8))
    return path


def epoch(ranks: list[Rank], count: int | None = None) -> list[list[Taken]]:
    """So many batches of each, all at once."""
    for each in ranks:
        each.tell("take", count)
    return [list(each.batches()) for each in ranks]


def another(ranks: list[Rank]) -> list[list[Taken]]:
    begin(ranks)
    return epoch(ranks)


@pytest.mark.parametrize(
    ("how", "cut_s"), [pytest.param("cable", 7, marks=pytest.mark.long), ("interface", 0)]
)
def test_a_network_that_is_cut_and_heals(
    how: str, cut_s: int, network: Network, path: Path
) -> None:
    """Batches go on from storage, after one wait; hosts that are tried in vain cost none. Later
    they find each other again."""
    ranks = [
        Rank(
            path,
            rank,
            HOSTS,
            cache={"ram_bytes": 1 << 20, "cache_block_bytes": 1},
            loader=LOADER,
            budget={"readahead_bytes": 1},  # what is asked for now is not here yet
            bounds=BOUNDS,
            command=network.inside(rank),
            environ={"MASTER_ADDR": network.addresses[0]},
        )
        for rank in range(HOSTS)
    ]
    cut = 2
    with ended(ranks):
        begin(ranks)
        taken = epoch(ranks, 20)
        before = [each.stats() for each in ranks]
        network.turn(how, cut, "down")
        since = time.monotonic()
        taken = [some + rest for some, rest in zip(taken, epoch(ranks), strict=True)]
        epochs = 1
        while time.monotonic() < since + cut_s:
            taken = [some + more for some, more in zip(taken, another(ranks), strict=True)]
            epochs += 1
        alone = [each.stats() for each in ranks]
        network.turn(how, cut, "up")
        read = [stats["bytes"] for stats in alone]
        while True:  # until storage is not needed any more
            taken = [some + more for some, more in zip(taken, another(ranks), strict=True)]
            epochs += 1
            now = [each.stats() for each in ranks]
            if read == [stats["bytes"] for stats in now]:
                break
            read = [stats["bytes"] for stats in now]

    for rank, batches in enumerate(taken):
        options = LOADER | {"rank": rank, "world_size": HOSTS}
        with penstock.Loader(penstock.open(path), **options) as loader:
            expected = [batch.ids.tolist() for _ in range(epochs) for batch in loader]
        assert [each.ids for each in batches] == expected
        assert max(each.waited_s for each in batches) < WAIT_S
        assert len([each for each in batches if each.waited_s > 1]) <= 2  # one, and a busy machine
    for stats in before:
        assert stats["direct_bytes"] == 0
        assert stats["peer_bytes"] > 0
    for stats in alone:
        assert stats["direct_bytes"] > 0
    lost = alone[cut]["peer_bytes"] - before[cut]["peer_bytes"]
    kept = alone[0]["peer_bytes"] - before[0]["peer_bytes"]
    assert lost <= WIDTH * BATCH < kept  # hosts that were not cut off go on asking each other
    for stats, later in zip(alone, now, strict=True):
        assert later["peer_bytes"] > stats["peer_bytes"]
        assert later["served_bytes"] > stats["served_bytes"]


@pytest.mark.long
def test_a_name_that_is_a_loopback_address(network: Network) -> None:
    """A host whose own name leads to itself alone says the address that leads elsewhere."""
    program = (
        "import socket; from penstock.ranks.gather import find_reachable_address\n"
        "socket.sethostname('localhost')\n"
        "print(find_reachable_address({}), find_reachable_address({'MASTER_ADDR': '127.0.0.1'}))"
    )
    done = subprocess.run(
        [*network.inside(1), sys.executable, "-c", program],
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.split() == [network.addresses[1], "127.0.0.1"]
