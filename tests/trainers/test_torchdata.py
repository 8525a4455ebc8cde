"""torchdata.nodes: a loader under a Prefetcher, with the state that torchdata keeps."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

nodes = pytest.importorskip("torchdata.nodes")

import penstock  # noqa: E402
from penstock.errors import UsageError  # noqa: E402
from tests.trainers import drives  # noqa: E402

# A thread of torchdata that drops the last reference to its own graph joins itself.
pytestmark = [
    pytest.mark.filterwarnings(
        "ignore:.*_SingleThreadedMapper.__del__:pytest.PytestUnraisableExceptionWarning"
    ),
    pytest.mark.usefixtures("group"),
]


def drive(loader: Any, state: Any, count: int) -> tuple[list[list[int]], Any]:
    """Walk through a graph of nodes that reads two batches ahead."""
    node = penstock.torchdata.Node(loader)
    graph = nodes.Loader(nodes.Prefetcher(node, prefetch_factor=2))
    if state is not None:
        graph.load_state_dict(state)
    batches: list[list[int]] = []
    while len(batches) < count:
        for batch in graph:
            batches.append(drives.read_batch(batch))
            if len(batches) == count:
                break
    return batches, graph.state_dict()


def test_the_sequence_is_that_of_penstock(data: Path) -> None:
    drives.check_sequence(drive, data)


def test_places_divide_the_batches(data: Path) -> None:
    drives.check_places(drive, data)


def test_resumed_runs_are_equal(data: Path) -> None:
    drives.check_resuming(drive, data)
    drives.check_resuming_again(drive, data)


def test_another_loader_is_refused() -> None:
    with pytest.raises(UsageError, match=r"penstock.torchdata.Node was given a list.*DataLoader"):
        penstock.torchdata.Node([1, 2])
