"""Keras 3: batches of a loader for `fit`, `evaluate` and `predict`."""

from __future__ import annotations

from typing import Any

import keras

from ..errors import UsageError
from ..loader.epoch import check_loader


class KerasData(keras.utils.PyDataset):
    """Batches of a loader as Keras takes them: `model.fit(penstock.keras.Data(loader))`.

    loader:  gives (x, y), (x, y, weights) or dicts, as its `decode` makes them.

    Batches come in the order of the loader, whatever `shuffle` is in `fit`. Each epoch of Keras is
    one of the loader; a walk that Keras drops before its end starts again, because Keras looks
    at the first batches of a model that is not built. A run is resumed by epoch: save
    `loader.state_dict()` at the end of an epoch, and load it before `fit(initial_epoch=...)`.
    Raises UsageError for a loader within an epoch.
    """

    def __init__(self, loader: Any) -> None:
        super().__init__()
        self.loader = check_loader("penstock.keras.Data", loader)
        self._batches: Any = iter(())
        self._begins_walk = True
        self._position: dict[str, Any] | None = None  # after the last batch of a walk of ours

    def __len__(self) -> int:
        """Batches of an epoch."""
        return len(self.loader)

    @property
    def num_batches(self) -> int:
        """Batches of an epoch. Keras asks for them before each walk over them, and only then."""
        self._begins_walk = True
        return len(self.loader)

    def __getitem__(self, number: int) -> Any:
        """Return the next batch: `number` is drawn by Keras, the order is the loader's."""
        if self._begins_walk:
            self._begin_walk()
        batch = next(self._batches, _end)
        if batch is _end:
            raise UsageError("Keras asked for more batches: make Data again, and leave out workers")
        self._position = self.loader.state_dict()
        return batch

    def _begin_walk(self) -> None:
        state = self.loader.state_dict()
        if state == self._position:  # else the loader was moved since
            state["step"] = 0
            self.loader.load_state_dict(state)
        if state["step"]:
            raise UsageError(f"the loader is at step {state['step']}: load a state of an epoch end")
        self._batches = iter(self.loader)
        self._begins_walk = False


Data = KerasData

_end = object()
