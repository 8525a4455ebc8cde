"""torchtitan's loader: exact at every step, and in checkpoints of any data-parallel degree."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("torchtitan")

from torchtitan.components.dataloader import BaseDataLoader

import penstock
from penstock.errors import StateError, UsageError
from tests import ROOT
from tests.trainers.scenario import EPOCHS, GLOBAL, Numbers, make_data, read_numbers, take_number
from tests.trainers.titan_ranks import TOKENS, WINDOW, write_tokens

STEPS = 15  # the ragged one is left out: torchtitan's loaders have batches of one size


def build(data: Path, rank: int = 0, ranks: int = 1, **options: Any) -> Any:
    path = str(make_data(data))
    config = penstock.torchtitan.Loader.Config(
        **{"dataset_path": path, "seed": 3, "decode": take_number} | options
    )
    size = GLOBAL // ranks
    return config.build(
        dp_world_size=ranks, dp_rank=rank, tokenizer=None, seq_len=8, local_batch_size=size
    )


def take(loader: Any, steps: int) -> list[Numbers]:
    batches = list(islice(loader, steps))
    for inputs, labels in batches:
        assert (inputs["x"] == labels).all()
        assert list(inputs) == ["x"]
    return [read_numbers(labels) for _, labels in batches]


@pytest.mark.parametrize(("rank", "ranks"), [(0, 1), (0, 2), (1, 2)])
def test_epochs_without_end(rank: int, ranks: int, data: Path) -> None:
    """The sequence is that of the loader alone, epoch after epoch."""
    plain = penstock.torch.DataLoader(
        penstock.open(make_data(data)),
        *(GLOBAL // ranks, True),
        seed=3,
        drop_last=True,
        decode=take_number,
        rank=rank,
        world_size=ranks,
    )
    expected = [read_numbers(batch["x"]) for _ in range(EPOCHS) for batch in plain]
    loader = build(data, rank, ranks)
    assert isinstance(loader, BaseDataLoader)
    assert take(loader, EPOCHS * STEPS) == expected


def test_validation_ends_with_the_data(data: Path) -> None:
    """`infinite=False` ends a walk after its epoch, as torchtitan's validation asks for; the next
    walk is the next epoch, and a state from within one leads to the rest of it."""
    whole = take(build(data), 2 * STEPS)
    loader = build(data, infinite=False)
    assert take(loader, 2 * STEPS) == whole[:STEPS]
    assert take(loader, 2 * STEPS) == whole[STEPS:]
    loader = build(data, infinite=False)
    assert take(loader, 5) == whole[:5]
    resumed = build(data, infinite=False)
    resumed.load_state_dict(loader.state_dict())
    assert take(resumed, 2 * STEPS) == whole[5:STEPS]


def test_resume_at_every_step(data: Path) -> None:
    """Also of a resumed run, within the same epoch."""
    whole = take(build(data), EPOCHS * STEPS)
    for step in range(1, EPOCHS * STEPS):
        first = build(data)
        assert take(first, step) == whole[:step]
        second = build(data)
        second.load_state_dict(first.state_dict())
        assert take(second, 1) == whole[step : step + 1]
        third = build(data)
        third.load_state_dict(second.state_dict())
        assert take(third, EPOCHS * STEPS - step - 1) == whole[step + 1 :]


def test_checkpoints_of_any_degree(tmp_path: Path) -> None:
    """Saved by DCP on dp 2 x tp 2, loaded on other meshes: the same global batches, and ranks of
    one data-parallel coordinate get the same."""
    write_tokens(tmp_path)

    def run(dp: int, tp: int, what: str, steps: int) -> list[list[int]]:
        subprocess.run(
            [
                *(sys.executable, "-m", "torch.distributed.run", "--standalone"),
                *(f"--nproc-per-node={dp * tp}", "-m", "tests.trainers.titan_ranks"),
                *(str(tmp_path), str(dp), str(tp), what, str(steps)),
            ],
            cwd=ROOT,
            env={**os.environ, "OMP_NUM_THREADS": "1"},
            check=True,
            timeout=240,
        )
        shares = [
            json.loads((tmp_path / f"{what}-{dp}x{tp}-{rank}.json").read_text())
            for rank in range(dp * tp)
        ]
        for rank, share in enumerate(shares):
            assert share == shares[rank // tp * tp]
        dealt = zip(*shares[::tp], strict=True)
        return [np.stack(parts, 1).ravel().tolist() for parts in dealt]

    order = penstock.torch.DataLoader(
        penstock.open(tmp_path / "tokens.bin", window=WINDOW, dtype="uint16"),
        *(GLOBAL, True),
        seed=3,
        drop_last=True,
        rank=0,
        world_size=1,
    )
    epochs = [
        [int(row[0]) for row in next(iter(batch.values()))] for _ in range(2) for batch in order
    ]
    assert len(epochs) == 2 * (TOKENS // WINDOW // GLOBAL)
    assert run(2, 2, "save", 6) == epochs[:6]
    for dp, tp in ((1, 2), (4, 1), (2, 2)):
        assert run(dp, tp, "load", 14) == epochs[6:20], (dp, tp)


def test_what_does_not_fit_is_refused(data: Path) -> None:
    with pytest.raises(UsageError, match="dataset_path is not set"):
        build(data, dataset_path="")
    with pytest.raises(StateError, match="no state of a penstock loader"):
        build(data).load_state_dict({})


def test_packed_rows_come_with_the_positions_that_masks_are_made_of(tmp_path: Path) -> None:
    """`pack=` gives rows of seq_len tokens, as `penstock.pack` makes them, and resumes in them."""
    (np.arange(4000) % 50).astype(np.uint16).tofile(tmp_path / "tokens.bin")
    options = {"dtype": "uint16", "eos": 0}
    rows = penstock.pack(
        penstock.open(tmp_path / "tokens.bin", **options), 32, window=16, shift_labels=True
    )
    plain = penstock.torch.DataLoader(rows, 4, shuffle=True, seed=3, drop_last=True)
    expected = [batch for _ in range(2) for batch in plain]

    def build_packed(**pack: Any) -> Any:
        config = penstock.torchtitan.Loader.Config(
            dataset_path=str(tmp_path / "tokens.bin"), options=options, pack=pack, seed=3
        )
        return config.build(
            dp_world_size=1, dp_rank=0, tokenizer=None, seq_len=32, local_batch_size=4
        )

    loader = build_packed(window=16)
    found = list(islice(loader, 5))
    resumed = build_packed(window=16)
    resumed.load_state_dict(json.loads(json.dumps(loader.state_dict())))
    found += islice(resumed, len(expected) - 5)
    for (inputs, labels), batch in zip(found, expected, strict=True):
        assert list(inputs) == ["input", "positions"]
        assert (inputs["input"] == batch["input_ids"]).all()
        assert (inputs["positions"] == batch["position_ids"]).all()
        assert (labels == batch["labels"]).all()
    with pytest.raises(UsageError, match=r"pack has \['style'\]"):
        build_packed(style="flat")
