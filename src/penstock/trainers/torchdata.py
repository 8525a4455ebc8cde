"""torchdata.nodes: a loader as the source of a graph of nodes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torchdata import nodes

from ..loader.epoch import check_loader


class LoaderNode(nodes.BaseNode[Any]):
    """Batches of a loader as a node: `torchdata.nodes.Loader(penstock.torchdata.Node(loader))`.

    Each walk is an epoch of the loader, the next one by itself. The state is the loader's: of the
    batches that went into nodes above, `Prefetcher` counts those that came out.
    """

    def __init__(self, loader: Any) -> None:
        super().__init__()
        self.loader = check_loader("penstock.torchdata.Node", loader)
        self._batches: Any = iter(())

    def reset(self, initial_state: Mapping[str, Any] | None = None) -> None:
        """Start the next epoch, or continue at a state."""
        super().reset(initial_state)
        if initial_state is not None:
            self.loader.load_state_dict(initial_state)
        self._batches = iter(self.loader)

    def next(self) -> Any:
        """Return the next batch of the epoch."""
        return next(self._batches)

    def get_state(self) -> dict[str, Any]:
        """Return the position of the run after the last batch."""
        return self.loader.state_dict()


Node = LoaderNode
