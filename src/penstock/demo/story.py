"""The story of `penstock demo`: an exact shuffle, a crash and an exact resume, a race."""

from __future__ import annotations

import errno
import hashlib
import json
import multiprocessing
import os
import shutil
import signal
import statistics
import time
from collections.abc import Callable, Iterable, Iterator
from importlib.util import find_spec
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np

from ..checkpoint.checkpoints import Checkpoints
from ..dataset.dataset import Dataset
from ..dataset.dataset import open as open_dataset
from ..errors import StorageError, UsageError
from ..loader.loader import Loader
from .digits import CLASSES, TRAIN_COUNT, Classifier, decode_digit, write_digits

EPOCHS = 8
BATCH = 50
RANKS = 2
ACCURACY_MIN = 0.9

Say = Callable[[str], object]
"""Function that shows a line; a line that begins with "# " is a heading."""

Batches = list[list[str]]
"""The names of the samples of each global batch, in order."""


def run_demo(folder: Path, say: Say) -> bool:
    """Run the whole story with data in an empty folder; True if every promise held.

    Takes about ten seconds on two cores. Raises OSError if the folder cannot be written.
    """
    started = time.monotonic()
    say("# 1. A folder of images")
    train, test = write_digits(folder / "digits")
    say(f"Drew {TRAIN_COUNT:,} images of digits: {train}{os.sep}0 to 9, one file each.")
    say("penstock.open() reads that folder in place: nothing is converted, sub-folders are labels.")
    say("# 2. Training, every sample once an epoch")
    batches, passed = _train(train, test, say)
    say("# 3. kill -9, and an exact resume on two ranks")
    passed &= _crash_and_resume(folder, train, batches, say)
    say("# 4. Small records, shuffled")
    _race(folder, say)
    say("")
    took = f"{time.monotonic() - started:.0f} s"
    say(f"All held, in {took}." if passed else f"FAILED, after {took}: see above.")
    return passed


def make_loader(folder: Path, rank: int = 0, world_size: int = 1) -> Loader:
    """Open the training data as one rank."""
    dataset = open_dataset(folder, index="memory")
    settings: dict[str, Any] = {"rank": rank, "world_size": world_size, "decode": decode_digit}
    return Loader(dataset, global_batch_size=BATCH, seed=1, **settings)


def train_epochs(loader: Loader, model: Classifier) -> Iterator[list[str]]:
    """Train from the loader's position to the last epoch; yield the names of each batch."""
    while loader.epoch < EPOCHS:
        for batch in loader:
            model.learn(batch["image"], batch["label"])
            yield list(batch["key"])


def _train(train: Path, test: Path, say: Say) -> tuple[Batches, bool]:
    model, started = Classifier(), time.monotonic()
    with make_loader(train) as loader:
        batches = list(train_epochs(loader, model))
        stall_s = loader.stats()["stall_ns"] / 1e9
    steps = len(batches) // EPOCHS
    say(
        f"{EPOCHS} epochs of {steps} steps in {time.monotonic() - started:.1f} s; the model waited "
        f"{stall_s:.2f} s of them for data."
    )
    epochs = [list(chain(*batches[n * steps : (n + 1) * steps])) for n in range(EPOCHS)]
    exact = all(len(set(names)) == len(names) == TRAIN_COUNT for names in epochs)
    fresh = len({tuple(epoch) for epoch in epochs}) == EPOCHS
    if not exact or not fresh:
        say("FAILED: an epoch did not have every sample exactly once, in a new order.")
        return batches, False
    say(
        f"Each of the {EPOCHS} epochs had all {TRAIN_COUNT:,} samples exactly once, newly shuffled."
    )
    right = _score(model, test)
    said = f"Accuracy on images that it has not seen: {right:.1%} (by chance {1 / CLASSES:.0%})."
    say(said if right >= ACCURACY_MIN else f"FAILED: {said} {ACCURACY_MIN:.0%} were expected.")
    return batches, right >= ACCURACY_MIN


def _score(model: Classifier, test: Path) -> float:
    dataset = open_dataset(test, index="memory")
    with Loader(dataset, 200, shuffle="none", decode=decode_digit, rank=0, world_size=1) as loader:
        rights = [model.classify(batch["image"]) == batch["label"] for batch in loader]
    return float(np.concatenate(rights).mean())


# -- crash and resume ------------------------------------------------------------------------------


def train_until_killed(folder: Path, train: Path, saved_at: int, killed_at: int) -> None:
    """Train, save a checkpoint after step `saved_at`, and be killed after `killed_at`."""
    loader, model = make_loader(train), Classifier()
    checkpoints = Checkpoints(folder / "checkpoints")
    with open(folder / "crashed.jsonl", "w") as ledger:
        for number, keys in enumerate(train_epochs(loader, model), 1):
            print(json.dumps(keys), file=ledger, flush=True)
            if number == saved_at:
                checkpoints.save(number, model.weights, loader=loader)
                checkpoints.wait()
            if number == killed_at:
                os.kill(os.getpid(), signal.SIGKILL)


def read_the_rest(folder: Path, train: Path, state: dict[str, Any], rank: int) -> None:
    """Read on from a checkpoint as one rank of several; write the ledger of its batches."""
    loader = make_loader(train, rank, RANKS)
    loader.load_state_dict(state)
    with open(folder / f"resumed-{rank}.jsonl", "w") as ledger:
        while loader.epoch < EPOCHS:
            for batch in loader:
                print(json.dumps(list(batch["key"])), file=ledger)


def _crash_and_resume(folder: Path, train: Path, batches: Batches, say: Say) -> bool:
    steps = len(batches) // EPOCHS
    saved_at = EPOCHS // 2 * steps + steps // 3
    killed_at = saved_at + 5
    codes = _run_processes([(train_until_killed, (folder, train, saved_at, killed_at))])
    if codes != [-signal.SIGKILL]:
        say(f"FAILED: the process that was to be killed ended with {codes[0]}.")
        return False
    latest = Checkpoints(folder / "checkpoints").latest()
    if latest is None:
        say("FAILED: the killed process left no checkpoint.")
        return False
    say(f"A second process trained, saved after step {saved_at}, and was killed after {killed_at}.")
    say(f"The loader's whole state in the checkpoint:\n  {latest.loader}")
    calls = [(read_the_rest, (folder, train, latest.loader, rank)) for rank in range(RANKS)]
    codes = _run_processes(calls)
    if any(codes):
        say(f"FAILED: the ranks that resumed ended with {codes}.")
        return False
    resumed = _read_ledger(folder / "crashed.jsonl")[:saved_at]
    resumed += _join_ranks([_read_ledger(folder / f"resumed-{r}.jsonl") for r in range(RANKS)])
    say(f"uninterrupted, 1 rank:    {len(batches)} global batches, SHA-256 {_digest(batches)}")
    say(
        f"killed, then on {RANKS} ranks:  {len(resumed)} global batches, SHA-256 {_digest(resumed)}"
    )
    if resumed != batches:
        say("FAILED: the resumed run saw other batches.")
        return False
    say("The same samples, in the same order, in the same global batches.")
    return True


def _run_processes(calls: list[tuple[Callable[..., None], tuple[Any, ...]]]) -> list[int | None]:
    context = multiprocessing.get_context("spawn")
    children = [context.Process(target=call, args=arguments) for call, arguments in calls]
    try:
        for child in children:
            child.start()
        for child in children:
            child.join()
    finally:
        for child in children:
            if child.is_alive():
                child.kill()
    return [child.exitcode for child in children]


def _read_ledger(path: Path) -> Batches:
    return [json.loads(line) for line in path.read_text().splitlines()]


def _join_ranks(ledgers: list[Batches]) -> Batches:
    """Join the ranks' batches to global batches: rank r has every n-th sample from the r-th on."""
    joined = []
    for shares in zip(*ledgers, strict=True):
        batch = [""] * sum(map(len, shares))
        for rank, share in enumerate(shares):
            batch[rank :: len(shares)] = share
        joined.append(batch)
    return joined


def _digest(batches: Batches) -> str:
    return hashlib.sha256(json.dumps(batches).encode()).hexdigest()[:16]


# -- the race: random reads by penstock and by what people write themselves, in turns --------------

RECORD_BYTES = 4096
RECORDS = 25_600
RACE_BATCH = 256
ROUNDS = 3

Read = Callable[[int], Any]
"""Function that reads the sample of a number."""


def write_records(folder: Path) -> Path:
    """Write random records, 105 MB. StorageError if the folder has less than four times that."""
    free = shutil.disk_usage(folder).free
    if free < 4 * RECORDS * RECORD_BYTES:
        raise StorageError(errno.ENOSPC, f"{folder} has {free / 1e6:,.0f} MB free, 420 are needed")
    path = folder / "records.bin"
    random = np.random.default_rng(1)
    with open(path, "wb") as file:
        for _ in range(0, RECORDS, RACE_BATCH):
            file.write(random.bytes(RACE_BATCH * RECORD_BYTES))
    return path


def race_records(path: Path) -> dict[str, float]:
    """Race over the records of a file: samples a second of each contender."""
    dataset = open_dataset(path, record_bytes=RECORD_BYTES, index="memory")
    file = os.open(path, os.O_RDONLY)
    try:
        return _race_all(
            dataset,
            "a Python loop of os.pread",
            lambda number: os.pread(file, RECORD_BYTES, number * RECORD_BYTES),
        )
    finally:
        os.close(file)


def race_files(folder: str) -> tuple[Dataset, dict[str, float]]:
    """Race over a folder of files, one a sample; return the dataset, and the race's results.

    UsageError if samples are no whole files.
    """
    dataset = open_dataset(folder, index="memory")
    files = dataset.index.files
    if len(files) != len(dataset):
        raise UsageError(f"{folder} has {dataset.index.format}: give a folder of images or texts")
    paths = [files.path(number) for number in range(len(files))]
    return dataset, _race_all(
        dataset, "a Python loop of open and read", lambda number: Path(paths[number]).read_bytes()
    )


def _race_all(dataset: Dataset, name: str, read: Read) -> dict[str, float]:
    """Let all read every sample once, in turns; the first round warms up.

    torch's DataLoader takes part if torch is installed.
    """
    contenders: dict[str, Callable[[], Iterable[Any]]] = {
        name: lambda: _read_by_hand(read, len(dataset))
    }
    if find_spec("torch") is not None:
        contenders["torch DataLoader, 0 workers"] = _make_torch_epochs(read, len(dataset))
    field = dataset.index.fields[0].name
    with Loader(dataset, RACE_BATCH, rank=0, world_size=1) as loader:
        contenders["penstock"] = lambda: (batch[field] for batch in loader)
        seconds: dict[str, list[float]] = {name: [] for name in contenders}
        for _ in range(ROUNDS + 1):
            for name, epoch in contenders.items():
                started = time.perf_counter()
                samples = sum(len(batch) for batch in epoch())
                seconds[name].append(time.perf_counter() - started)
                if samples != len(dataset):
                    raise AssertionError(f"{name} read {samples} of {len(dataset)} samples")
    return {name: len(dataset) / statistics.median(taken[1:]) for name, taken in seconds.items()}


def _read_by_hand(read: Read, count: int) -> Iterable[Any]:
    order = np.random.default_rng().permutation(count).tolist()
    for start in range(0, count, RACE_BATCH):
        samples = [np.frombuffer(read(n), np.uint8) for n in order[start : start + RACE_BATCH]]
        lengths = {len(sample) for sample in samples}
        yield np.stack(samples) if len(lengths) == 1 else samples


def _make_torch_epochs(read: Read, count: int) -> Callable[[], Iterable[Any]]:
    import torch

    class Samples(torch.utils.data.Dataset[Any]):
        def __len__(self) -> int:
            return count

        def __getitem__(self, number: int) -> torch.Tensor:
            return torch.frombuffer(bytearray(read(number)), dtype=torch.uint8)

    def collate(samples: list[torch.Tensor]) -> Any:
        lengths = {len(sample) for sample in samples}
        return torch.stack(samples) if len(lengths) == 1 else samples

    return lambda: torch.utils.data.DataLoader(
        Samples(), batch_size=RACE_BATCH, shuffle=True, collate_fn=collate
    )


def race_own_files(folder: str, say: Say) -> None:
    """Race over the files of a folder, which is only read."""
    dataset, rates = race_files(folder)
    say(f"# {len(dataset):,} files of {dataset.path}")
    _show_race(rates, round(dataset.index.mean_bytes), "bytes on average", say)


def _race(folder: Path, say: Say) -> None:
    try:
        path = write_records(folder)
    except StorageError as error:
        say(f"Left out: {error}")
        return
    _show_race(race_records(path), RECORD_BYTES, "bytes", say)


def _show_race(rates: dict[str, float], sample_bytes: int, unit: str, say: Say) -> None:
    slowest = min(rates.values())
    say(f"Samples of {sample_bytes:,} {unit} in the page cache, medians of {ROUNDS} epochs:")
    for name, rate in sorted(rates.items(), key=lambda item: item[1]):
        size = f"{rate * sample_bytes / 1e9:.2f} GB/s"
        say(f"  {name:<30}{rate:>12,.0f} samples/s{size:>12}{rate / slowest:>7.1f} x")
