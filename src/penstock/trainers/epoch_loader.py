"""Loaders as adapters take them: epochs by number, and a state that continues a run."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Protocol, runtime_checkable

from ..errors import UsageError


@runtime_checkable
class EpochLoader(Protocol):
    """A loader of penstock: `Loader`, `torch.DataLoader`, `torch.DeviceLoader`, `jax.Loader`."""

    def __iter__(self) -> Iterator[Any]: ...

    def __len__(self) -> int: ...

    def set_epoch(self, epoch: int) -> None: ...

    def state_dict(self) -> dict[str, Any]: ...

    def load_state_dict(self, state: Mapping[str, Any]) -> None: ...


def check_loader(taker: str, loader: Any) -> EpochLoader:
    """Return the loader that `taker` was given. Raises UsageError if it is none of penstock's."""
    if isinstance(loader, type) or not isinstance(loader, EpochLoader):
        given = loader.__name__ if isinstance(loader, type) else f"a {type(loader).__name__}"
        raise UsageError(f"{taker} was given {given}: give a Loader or a DataLoader of penstock")
    return loader
