"""Grain: a loader as an IterDataset, whose iterators have Grain's state."""

from __future__ import annotations

from typing import Any

import grain

from ..loader.epoch import EpochLoader, check_loader, make_turn


class LoaderIterDataset(grain.IterDataset[Any]):
    """Batches of a loader as a dataset of Grain: `penstock.grain.IterDataset(loader)`.

    Each iterator walks through one epoch of the loader, the next one by itself. It reads in this
    process: transformations in threads may follow, worker processes (`mp_prefetch`) may not.
    """

    def __init__(self, loader: Any) -> None:
        super().__init__()
        self.loader = check_loader("penstock.grain.IterDataset", loader)

    def __iter__(self) -> LoaderIterator:
        return LoaderIterator(self.loader)


class LoaderIterator(grain.DatasetIterator[Any]):
    """Iterator over an epoch; its state is the loader's, after the last batch that it gave.

    A state after the last batch of an epoch continues with the next epoch.
    """

    def __init__(self, loader: EpochLoader) -> None:
        super().__init__()
        self._loader = loader
        self._batches: Any = None
        self._turn = make_turn()
        self._state: dict[str, Any] | None = None

    def __next__(self) -> Any:
        with self._turn:
            if self._batches is None:
                self._batches = iter(self._loader)
            batch = next(self._batches)
            self._state = self._loader.state_dict()
            return batch

    def get_state(self) -> dict[str, Any]:
        """Return the position of the run: JSON-able, always with the same keys."""
        return dict(self._state or self._loader.state_dict())

    def set_state(self, state: dict[str, Any]) -> None:
        """Continue at a position."""
        self._loader.load_state_dict(state)
        self._state, self._batches = None, None


IterDataset = LoaderIterDataset
