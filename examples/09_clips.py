"""Clips: which way does it move? Trained on 2 ranks, stopped, and gone on with on 3.

Films of squares that move to the left or to the right, whose frames alone do not tell it. Films are
made in a temporary folder. Needs av (PyAV).
"""

import tempfile
from pathlib import Path

import av
import numpy as np

import penstock
import torch

SIZE, FRAMES = 64, 120


def write_films(folder: Path, films: int) -> None:
    """Write films of H.264, with a keyframe every 30 frames, into a folder for each way."""
    random = np.random.default_rng(films)
    for number in range(films):
        way = ("left", "right")[number % 2]
        (folder / way).mkdir(parents=True, exist_ok=True)
        with av.open(str(folder / way / f"{number}.mp4"), "w") as film:
            stream = film.add_stream("libx264", rate=30, options={"g": "30"})
            stream.width, stream.height, stream.pix_fmt = SIZE, SIZE, "yuv420p"
            picture = np.zeros((SIZE, SIZE, 3), np.uint8)
            row, column = random.integers(0, SIZE - 16, 2)
            picture[row : row + 16, column : column + 16] = random.integers(99, 255, 3)
            for _ in range(FRAMES):
                picture = np.roll(picture, 2 if way == "right" else -2, axis=1)
                film.mux(stream.encode(av.VideoFrame.from_ndarray(picture, format="rgb24")))
            film.mux(stream.encode(None))


def open_clips(folder: Path) -> penstock.Dataset:
    """Clips of four frames, each third one, that overlap."""
    return penstock.open(folder, clips={"frames": 4, "every": 3, "stride": 3})


def predict(model: torch.nn.Module, batch: penstock.Batch) -> torch.Tensor:
    """Predict the way of each clip, uint8 (B, 4, 64, 64, 3)."""
    return model(torch.from_numpy(batch["frames"]).permute(0, 4, 1, 2, 3) / 255)


def train(
    model: torch.nn.Module,
    optimizer: torch.optim.Optimizer,
    loaders: list[penstock.Loader],
    steps: int | None = None,
) -> list[list[int]]:
    """Train so many steps, or all that are left; return the clips of each.

    In real life each rank has a process of its own.
    """
    seen = []
    for batches in zip(*loaders, strict=True):
        for batch in batches:
            labels = torch.from_numpy(batch["label"])
            loss = torch.nn.functional.cross_entropy(predict(model, batch), labels)
            (loss / len(batches)).backward()
        optimizer.step()
        optimizer.zero_grad()
        seen.append(sorted(np.concatenate([batch.ids for batch in batches]).tolist()))
        if len(seen) == steps:
            break
    return seen


def main() -> None:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        write_films(folder / "train", 12)
        write_films(folder / "test", 4)
        data, test = open_clips(folder / "train"), open_clips(folder / "test")
        torch.manual_seed(0)
        model = torch.nn.Sequential(
            torch.nn.Conv3d(3, 16, (2, 9, 9), stride=(1, 4, 4)),
            torch.nn.ReLU(),
            torch.nn.AdaptiveMaxPool3d(1),
            torch.nn.Flatten(),
            torch.nn.Linear(16, 2),
        )
        optimizer = torch.optim.Adam(model.parameters(), 3e-3)

        def open_ranks(world_size: int) -> list[penstock.Loader]:
            how = {"global_batch_size": 24, "seed": 0, "world_size": world_size}
            return [penstock.Loader(data, rank=rank, **how) for rank in range(world_size)]

        two = open_ranks(2)
        seen = train(model, optimizer, two, steps=10)
        state = two[0].state_dict()  # equal on all ranks: any may save it
        print(f"{len(data)} clips; stopped after {len(seen)} of {len(two[0])} steps on 2 ranks")
        three = open_ranks(3)
        for loader in three:
            loader.load_state_dict(state)
        seen += train(model, optimizer, three)
        (alone,) = open_ranks(1)
        same = seen == [sorted(batch.ids.tolist()) for batch in alone]
        print(f"went on on 3: {len(seen)} steps, the same clips as 1 rank alone: {same}")
        correct = 0
        for batch in penstock.Loader(test, 32, shuffle="none"):
            with torch.no_grad():
                ways = predict(model, batch).argmax(1).numpy()
            correct += int((ways == batch["label"]).sum())
        print(f"right of {len(test)} clips of other films: {correct / len(test):.0%}")
        for loader in [*two, *three, alone]:
            loader.close()


if __name__ == "__main__":
    main()
