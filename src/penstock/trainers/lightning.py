"""Lightning: loaders as a data module that keeps their positions in the checkpoint."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator, Mapping
from typing import Any

from ..errors import StateError
from ..loader.epoch import EpochLoader, check_loader


def _import_lightning() -> Any:
    """Import the package that the program uses: `lightning` has another Trainer than the older."""
    names = ["lightning.pytorch", "pytorch_lightning"]
    for name in sorted(names, key=lambda name: name not in sys.modules):
        try:
            return importlib.import_module(name)
        except ModuleNotFoundError as error:
            if error.name not in (name, name.partition(".")[0]):
                raise
    raise ModuleNotFoundError("penstock.lightning needs: pip install lightning", name="lightning")


_lightning: Any = _import_lightning()


class LoaderView:
    """A loader whose epochs Lightning does not name: several that it combines have each its own.
    With `repeats` it gives its next epoch again and again, for `overfit_batches`."""

    def __init__(self, loader: Any, repeats: bool = False) -> None:
        self._loader, self._epoch = loader, loader.state_dict()["epoch"] if repeats else None

    def __len__(self) -> int:
        return len(self._loader)

    def __iter__(self) -> Iterator[Any]:
        if self._epoch is not None:
            self._loader.set_epoch(self._epoch)
        return iter(self._loader)


class Data(_lightning.LightningDataModule):  # type: ignore[misc]
    """Loaders for a Lightning trainer: trainer.fit(model, penstock.lightning.Data(train)).

    train:  a `penstock.torch.DataLoader`, or a list or dict of some, as Lightning combines them.
    val, test, predict: likewise, or other loaders.

    The positions of `train` are part of each checkpoint, and a fit with `ckpt_path=` continues
    exactly, in mid-epoch and on another number of ranks with the same global batch. With
    `overfit_batches` each epoch has the same first batches, of `val` also. Raises UsageError for
    training loaders without a state.
    """

    def __init__(self, train: Any, val: Any = None, test: Any = None, predict: Any = None) -> None:
        super().__init__()
        for name, loader in _name_loaders(train):
            check_loader(f"train{name}", loader)
        self._train = train
        others = (val, test, predict)
        self._val, self._test, self._predict = ([] if one is None else one for one in others)

    def train_dataloader(self) -> Any:
        overfits = getattr(self.trainer, "overfit_batches", 0)
        return _replace_loaders(self._train, _repeat if overfits else LoaderView)

    def val_dataloader(self) -> Any:
        overfits = getattr(self.trainer, "overfit_batches", 0)
        return _replace_loaders(self._val, _repeat) if overfits else self._val

    def test_dataloader(self) -> Any:
        return self._test

    def predict_dataloader(self) -> Any:
        return self._predict

    def state_dict(self) -> dict[str, Any]:
        """Return the positions of the training loaders, by their places in `train`."""
        return {name: loader.state_dict() for name, loader in _name_loaders(self._train)}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue at the positions of a checkpoint."""
        loaders = dict(_name_loaders(self._train))
        if set(loaders) != set(state):
            raise StateError(f"the state is of train{sorted(state)}: give Data the same loaders")
        for name, loader in loaders.items():
            loader.load_state_dict(state[name])


def _name_loaders(loaders: Any, name: str = "") -> Iterator[tuple[str, Any]]:
    if isinstance(loaders, Mapping | list | tuple):
        items = loaders.items() if isinstance(loaders, Mapping) else enumerate(loaders)
        for key, loader in items:
            yield from _name_loaders(loader, f"{name}[{key!r}]")
    else:
        yield name, loaders


def _replace_loaders(loaders: Any, make: Any) -> Any:
    if isinstance(loaders, Mapping):
        return {key: _replace_loaders(loader, make) for key, loader in loaders.items()}
    if isinstance(loaders, list | tuple):
        return [_replace_loaders(loader, make) for loader in loaders]
    return make(loaders)


def _repeat(loader: Any) -> Any:
    return LoaderView(loader, repeats=True) if isinstance(loader, EpochLoader) else loader
