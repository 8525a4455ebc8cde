"""python -m demo [FOLDER]: train through penstock, crash and resume, race; see `make demo`."""

from __future__ import annotations

import argparse
import hashlib
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

console = Console(highlight=False)

DATA = Path("demo-data")
ACCURACY_MIN = 0.95
RANKS = 2
STEPS_WANTED = 240  # of training on the user's images


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m demo", description=__doc__)
    parser.add_argument("folder", nargs="?", help="your images; class sub-folders give labels")
    options = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    started = time.monotonic()
    try:
        passed = story(options.folder)
    except KeyboardInterrupt:
        console.print("\nStopped. What was written is kept in demo-data/; `make clean` removes it.")
        return 130
    console.print(f"\n{time.monotonic() - started:.0f} s. `make clean` removes demo-data/.")
    return 0 if passed else 1


def story(folder: str | None) -> bool:
    with console.status("importing torch"):
        import torch  # the slow one first, so that the wait has a reason on the screen
    torch.set_num_threads(1)  # the model is small; the other cores decode
    DATA.mkdir(exist_ok=True)
    console.rule("1. The data", align="left")
    task = digits_task() if folder is None else images_task(Path(folder).expanduser().resolve())
    console.rule("2. Training", align="left")
    batches, passed = train(task, ACCURACY_MIN if folder is None else None)
    console.rule(f"3. Crash, and resume on {RANKS} ranks", align="left")
    passed &= crash_and_resume(task, batches)
    console.rule("4. The race", align="left")
    if folder is None:
        race_records()
    else:
        race_images(task)
    return passed


# -- 1. the data -----------------------------------------------------------------------------------


def digits_task() -> Any:
    from .images import write_digits
    from .training import Task

    with console.status("writing 1,797 PNG files"):
        train, test = write_digits(DATA / "digits")
    console.print(
        f"1,797 handwritten digits, PNG files from {train}/0/ to {test}/9/.\n"
        "penstock opens the folder as it is: no conversion, labels from sub-folders."
    )
    return Task(train, test, side=8, channels=1, classes=10, epochs=10, global_batch=64)


def images_task(folder: Path) -> Any:
    import penstock

    from .images import list_images
    from .training import Task

    try:
        with console.status(f"looking for images in {folder}"):
            found = list_images(folder, DATA / "images")
    except penstock.PenstockError as error:
        raise SystemExit(f"demo: {error}") from None
    if found.count < 20:
        raise SystemExit(f"demo: {folder} has {found.count} images; the demo needs 20 or more")
    said = f"{found.total:,} images in {folder}"
    if found.count < found.total:
        said += f",\nof which the demo takes {found.count:,}, drawn by penstock's own shuffle"
    console.print(f"{escape(said)}.\nEvery fifth is held out. That folder is only read.")
    count = found.count - found.count // 5
    batch = min(64, max(2, count // 8))
    if found.classes is None:
        console.print(
            "Not all lie in class sub-folders: an autoencoder is trained, without labels."
        )
    else:
        console.print(f"The {len(found.classes)} sub-folders are the classes.")
    return Task(
        found.train,
        found.test,
        side=64,
        channels=3,
        classes=len(found.classes or ()),
        epochs=min(10, max(2, STEPS_WANTED // -(-count // batch))),
        global_batch=batch,
    )


# -- 2. training -----------------------------------------------------------------------------------


def train(task: Any, accuracy_min: float | None) -> tuple[list[list[str]], bool]:
    """Trains without interruption; the batches it saw, and whether it learnt enough."""
    from .training import Trainer, score

    trainer = Trainer(task)
    steps = len(trainer.loader)
    console.print(
        f"A small CNN, {task.epochs} epochs of {steps} steps, "
        f"global batch {task.global_batch}, seed {task.seed}.\n"
        "Images are decoded in threads; each epoch has another order."
    )
    batches: list[list[str]] = []
    broken: set[str] = set()
    before = score(trainer.model, task)
    start = time.monotonic()
    for step in bar(trainer.steps(), "training", task.epochs * steps):
        batches.append(step.keys)
        broken.update(step.broken)
    seconds = time.monotonic() - start
    trainer.loader.close()
    report_broken(broken, sum(map(len, batches[:steps])))
    after = score(trainer.model, task)
    stall = trainer.loader.stats()["stall_ns"] * 1e-9
    console.print(f"{seconds:.1f} s, of which the model waited {stall:.2f} s for data.")
    for epoch in range(task.epochs):
        keys = [key for batch in batches[epoch * steps : (epoch + 1) * steps] for key in batch]
        if len(keys) != len(set(keys)) or set(keys) != set(batches_keys(batches[:steps])):
            console.print(f"[red]epoch {epoch} did not have every sample once[/]")
            return batches, False
    console.print(f"Every image came exactly once in each of the {task.epochs} epochs.")
    if not task.classes:
        console.print(f"Held-out reconstruction error: {before:.4f} before, {after:.4f} after.")
        return batches, True
    said = f"[bold]Held-out accuracy: {after:.1%}[/] (before training {before:.1%})"
    if accuracy_min is not None and after < accuracy_min:
        console.print(f"[red]{said}: FAILED, it should be {accuracy_min:.0%} or more[/]")
        return batches, False
    console.print(said)
    return batches, True


def batches_keys(batches: list[list[str]]) -> Iterator[str]:
    return (key for batch in batches for key in batch)


def report_broken(broken: set[str], count: int) -> None:
    """Names images that could not be decoded; ends the demo where they are the most."""
    if not broken:
        return
    console.print(f"[yellow]{len(broken)} of {count} images could not be decoded[/], left out:")
    for key in sorted(broken)[:5]:
        console.print(f"  {escape(key)}")
    if len(broken) > 5:
        console.print(f"  and {len(broken) - 5} more")
    if 2 * len(broken) > count:
        raise SystemExit("demo: most images are broken: give another folder")


# -- 3. crash and resume ---------------------------------------------------------------------------


def crash_and_resume(task: Any, batches: list[list[str]]) -> bool:
    """The same run, killed in the middle of an epoch and continued by two processes."""
    import torch

    from .training import Trainer, crashing, ledger, merged, resuming, run_processes, score

    steps = len(batches) // task.epochs
    epoch, step = task.epochs // 2, max(1, steps // 2)
    saved_at = epoch * steps + step
    killed_at = saved_at + min(5, len(batches) - saved_at)
    with tempfile.TemporaryDirectory(prefix="penstock-demo-") as scratch:
        folder = Path(scratch)
        console.print(
            f"The same run in a new process: a checkpoint after step {step} of epoch {epoch},\n"
            f"then {killed_at - saved_at} more steps, then kill -9."
        )
        with console.status("training again, until the crash"):
            (code,) = run_processes([(crashing, (task, folder, saved_at, killed_at))])
        if code != -signal.SIGKILL:
            console.print(f"[red]the process ended with {code}, not by kill -9[/]")
            return False
        state = torch.load(folder / "checkpoint.pt")
        console.print("The loader's part of the checkpoint is all of this:")
        console.print(f"  {state['loader']}", soft_wrap=True)
        with console.status(f"resuming on {RANKS} ranks (gloo)"):
            calls = [(resuming, (task, folder, rank, RANKS)) for rank in range(RANKS)]
            codes = run_processes(calls)
        if any(codes):
            console.print(f"[red]the ranks ended with {codes}[/]")
            return False
        before = ledger(folder / "crashed.jsonl")[:saved_at]
        after = merged([ledger(folder / f"resumed-{rank}.jsonl") for rank in range(RANKS)])
        trainer = Trainer(task)
        trainer.model.load_state_dict(torch.load(folder / "final.pt")["model"])
    table = Table("run", "global batches", "SHA-256 of all names in order")
    table.add_row("uninterrupted, 1 rank", f"{len(batches)}", digest(batches)[:32])
    table.add_row(
        f"crashed, then {RANKS} ranks", f"{saved_at} + {len(after)}", digest(before + after)[:32]
    )
    console.print(table)
    if before + after != batches:
        console.print("[red]FAILED: the resumed run saw other batches[/]")
        return False
    console.print(
        f"The same samples, in the same order, in the same {len(batches)} global batches."
    )
    what = "Held-out accuracy" if task.classes else "Held-out reconstruction error"
    value = score(trainer.model, task)
    console.print(
        f"{what} of the resumed run: {f'{value:.1%}' if task.classes else f'{value:.4f}'}"
    )
    return True


def digest(batches: list[list[str]]) -> str:
    text = "\n\n".join("\n".join(batch) for batch in batches)
    return hashlib.sha256(text.encode("utf-8", "surrogateescape")).hexdigest()


# -- 4. the race -----------------------------------------------------------------------------------


def race_records() -> None:
    from . import race

    if shutil.disk_usage(DATA).free < 1e9:
        console.print("Left out: it writes a file of 410 MB, and less than 1 GB is free.")
        return
    with console.status("writing 4 KiB records"):
        path = race.write_records(DATA)
    count = path.stat().st_size // race.RECORD_BYTES
    console.print(
        f"{count:,} records of {race.RECORD_BYTES:,} bytes, in the page cache, shuffled, "
        f"batch {race.BATCH}.\nAll take turns; medians of {race.ROUNDS} epochs."
    )
    with ExitStack() as stack:
        contenders, note = race.record_contenders(path, stack)
        taken = race.race(contenders, bar)
    show(taken, count, race.RECORD_BYTES)
    if note:
        console.print(f"[yellow]{escape(note)}[/]")


def race_images(task: Any) -> None:
    from . import race
    from .images import Decode

    with ExitStack() as stack:
        decode = Decode(task.side, task.channels)
        contenders = race.image_contenders(task.train, decode, task.global_batch, stack)
        console.print(
            f"Your training images, {task.side} x {task.side}, batch {task.global_batch}; "
            "one decode function for all.\n"
            f"All take turns; medians of {race.ROUNDS} epochs."
        )
        taken = race.race(contenders, bar)
    show(taken, len(task.train.read_text(errors="surrogateescape").splitlines()), None)


def show(taken: dict[str, list[float]], count: int, size: int | None) -> None:
    """The table, slowest first; ratios are medians of those of the single rounds."""
    from .race import median

    def ratio(name: str, other: str | None) -> str:
        if other is None:
            return ""
        pairs = zip(taken[name], taken[other], strict=True)
        return f"{median([theirs / ours for ours, theirs in pairs]):.2f}"

    floor = next((name for name in taken if name.startswith("floor")), None)
    plain = next(name for name in taken if name.endswith("0 workers"))
    table = Table("", "samples/s", "GB/s", "x torch", "x floor")
    for column in table.columns[1:]:
        column.justify = "right"
    for name in sorted(taken, key=lambda name: -median(taken[name])):
        rate = count / median(taken[name])
        gb = f"{rate * size / 1e9:.2f}" if size else ""
        row = (escape(name), f"{rate:,.0f}", gb, ratio(name, plain), ratio(name, floor))
        table.add_row(*row, style="bold" if name == "penstock" else None)
    console.print(table)


def bar(items: Iterable[Any], what: str, total: int | None = None) -> Iterator[Any]:
    """The items, with a progress bar that goes away."""
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
    )
    quiet = not console.is_terminal
    with Progress(*columns, console=console, transient=True, disable=quiet) as progress:
        yield from progress.track(items, total=total, description=what)


if __name__ == "__main__":
    sys.exit(main())
