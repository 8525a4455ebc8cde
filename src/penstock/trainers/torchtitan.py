"""torchtitan: a loader for its configuration, with the position in its checkpoints."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from torchtitan.components.dataloader import BaseDataLoader

import torch

from ..dataset.dataset import open as open_dataset
from ..dataset.packing import pack
from ..errors import UsageError
from ..loader.epoch import SharedIterator
from ..torch.loader import DataLoader


class TitanLoader(BaseDataLoader):  # type: ignore[misc]
    """Batches for torchtitan's Trainer, without end: Loader.Config(dataset_path=...) is the line.

    Each data-parallel rank takes its share of one global order; ranks of other axes (tensor,
    context, pipeline) get the batches of theirs. The position is a few integers that are equal on
    all ranks: a checkpoint of any data-parallel degree continues the same global batches, if
    local_batch_size * degree stays. The last batch of an epoch is left out if it is not full.
    """

    @dataclass(kw_only=True, slots=True)
    class Config(BaseDataLoader.Config):  # type: ignore[misc]
        """Configuration of the loader.

        dataset_path:  of what `penstock.open` reads.
        options:       of `penstock.open`. For flat tokens {"dtype": "uint16"} is enough: `window`
                       is seq_len then, whose inputs are followed by the last label.
        pack:          options of `penstock.pack`, {} for none: rows of seq_len tokens of documents,
                       with the positions that torchtitan's masks are made of.
        decode:        function of a sample that returns a dict of inputs and "labels", where the
                       samples are no windows of tokens.
        infinite:      go on with the next epoch; torchtitan's validation turns it off.
        seed, shuffle, num_workers: of `penstock.torch.DataLoader`.
        """

        options: dict[str, Any] = field(default_factory=dict)
        pack: dict[str, Any] | None = None
        decode: Callable[[dict[str, Any]], dict[str, Any]] | None = None
        seed: int = 0
        shuffle: str = "exact"
        num_workers: int = 0
        infinite: bool = True

    def __init__(
        self,
        config: Config,
        *,
        dp_world_size: int,
        dp_rank: int,
        seq_len: int,
        local_batch_size: int,
        **runtime: Any,
    ) -> None:
        del runtime  # tokenizer and the like
        self._is_infinite = config.infinite
        if not config.dataset_path:
            raise UsageError("dataset_path is not set: name the data that penstock.open reads")
        has_windows = "dtype" in config.options and config.pack is None
        window = {"window": seq_len} if has_windows else {}
        dataset = open_dataset(config.dataset_path, **window | config.options)
        if config.pack is not None:
            ours = config.pack.keys() & {"length", "style", "shift_labels"}
            if ours:
                raise UsageError(f"pack has {sorted(ours)}: leave these out, torchtitan sets them")
            dataset = pack(dataset, seq_len, shift_labels=True, **config.pack)
        self.loader = DataLoader(
            dataset,
            local_batch_size,
            config.shuffle,
            drop_last=True,
            seed=config.seed,
            decode=config.decode,
            num_workers=config.num_workers,
            rank=dp_rank,
            world_size=dp_world_size,
        )
        """The loader of this rank: its counters, `explain` and `stats`."""

    def __iter__(self) -> Iterator[tuple[dict[str, torch.Tensor], torch.Tensor]]:
        return SharedIterator(self._divide_batches())

    def _divide_batches(self) -> Iterator[tuple[dict[str, torch.Tensor], torch.Tensor]]:
        yield from map(_divide, self.loader)
        while self._is_infinite:
            yield from map(_divide, self.loader)

    def state_dict(self) -> dict[str, Any]:
        """Return the position after the last batch that was taken."""
        return self.loader.state_dict()

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Continue at a position; an empty one, of a checkpoint without a loader, is refused."""
        self.loader.load_state_dict(dict(state_dict))


def _divide(batch: Any) -> tuple[dict[str, torch.Tensor], torch.Tensor]:
    """Divide a batch into inputs and labels."""
    if "position_ids" in batch:
        return {"input": batch["input_ids"], "positions": batch["position_ids"]}, batch["labels"]
    if "labels" in batch:
        inputs = {name: batch[name] for name in batch if name != "labels"}
        return inputs, batch["labels"]
    (tokens,) = batch.values()
    return {"input": tokens[:, :-1].long()}, tokens[:, 1:].long()


Loader = TitanLoader
