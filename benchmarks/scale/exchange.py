"""The exchange of texts among ranks: what it asks of a store, what a request costs, and how long it
takes by simulation."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

from penstock.ranks import gather

from .costs import START_S
from .curves import Curve
from .rendezvous import MessageCosts, StoreExchange, TreeExchange, predict_store

EXCHANGES = 3
"""Exchanges by which a cache is joined: introductions, addresses, and that all have attached."""
SERVER = """
import sys
from torch.distributed import TCPStore
store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
print(store.port, flush=True)
sys.stdin.read()
"""


class CountedStore:
    """A store of torch.distributed whose calls are counted."""

    def __init__(self, store: Any) -> None:
        self._store = store
        self.calls: Counter[str] = Counter()
        self._lock = threading.Lock()

    def __getattr__(self, name: str) -> Any:
        method = getattr(self._store, name)

        def counted(*arguments: Any) -> Any:
            with self._lock:
                self.calls[name] += 1
            return method(*arguments)

        return counted


def count_calls(world: int) -> Counter[str]:
    """Count the calls by which so many ranks exchange texts through a store, as it is shipped."""
    from torch.distributed import HashStore

    store = CountedStore(HashStore())
    exchange = partial(gather._exchange_by_store, store, tuple(range(world)))
    threads = [threading.Thread(target=exchange, args=(rank, f"{rank}")) for rank in range(world)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return store.calls


def measure_request_ns(text_bytes: int, requests: int) -> int:
    """Measure the processor time of torch's TCPStore for a request of a text, in its process."""
    from torch.distributed import TCPStore

    with subprocess.Popen(
        [sys.executable, "-c", SERVER], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as server:
        assert server.stdout is not None
        store = TCPStore("127.0.0.1", int(server.stdout.readline()), is_master=False)
        store.set("text", "x" * text_bytes)
        before = read_processor_s(server.pid)
        for _ in range(requests):
            store.get("text")
        spent = read_processor_s(server.pid) - before
        del store
        server.terminate()
    return int(spent / requests * 1e9)


def read_processor_s(pid: int) -> float:
    """Return the processor time of a process so far."""
    words = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(words[11]) + int(words[12])) / os.sysconf("SC_CLK_TCK")


def simulate_exchanges(
    text_bytes: int, costs: MessageCosts, simulated: Sequence[int], worlds: Sequence[int]
) -> tuple[list[Curve], dict[str, Any]]:
    """Curves of the exchange through a store and of one in a tree; and what was simulated."""
    shipped = [(world, StoreExchange(world, text_bytes, costs).run()) for world in simulated]
    wrong = max(
        abs(predict_store(world, text_bytes, costs).seconds / run.seconds - 1)
        for world, run in shipped[-2:]
    )
    predicted = [(world, predict_store(world, text_bytes, costs)) for world in worlds]
    tree = [(world, TreeExchange(world, text_bytes, costs).run()) for world in worlds]
    told = "a tree of hosts"
    once = f"once, of {EXCHANGES}"
    curves = [
        Curve(
            "rendezvous by a store", "ranks", "s", 2, START_S / EXCHANGES, once,
            (), tuple((world, run.seconds) for world, run in shipped), told,
        ),
        Curve(
            "rendezvous in a tree (not built)", "ranks", "s", 1, START_S / EXCHANGES, once,
            (), tuple((world, run.seconds) for world, run in tree),
        ),
    ]  # fmt: skip
    raw = {
        "simulated": [[world, *run] for world, run in shipped],
        "predicted": [[world, *run] for world, run in predicted],
        "tree": [[world, *run] for world, run in tree],
        "formula_off_by": wrong,
    }
    return curves, raw
