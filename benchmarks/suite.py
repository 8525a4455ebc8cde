"""The measurements: the rows that time an epoch, their contenders and targets."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from .contender import ROOT, Candidate
from .corpus import Corpora, make_cold, make_warm

FLOORS = ROOT / "build" / "floors"


@dataclass(frozen=True, slots=True)
class Reference:
    """The contender that penstock is held against: the fastest of some candidates.

    group is what `--only` selects; target is the ratio to reach, None for information. Candidates
    are made late, because some need the data converted and that may fail.
    """

    group: str
    title: str
    candidates: Callable[[], list[Candidate]]
    target: float | None = None


@dataclass(frozen=True, slots=True)
class Race:
    """One epoch over one corpus by several contenders; the first reference is the floor."""

    name: str
    path: Callable[[], Path]
    prepare: Callable[[Path], None]
    subject: Callable[[], Candidate]
    references: tuple[Reference, ...]
    cold: bool = False


def floor(program: str, label: str, **options: object) -> Candidate:
    """A floor program."""
    return Candidate(label, (str(FLOORS / f"{program}_floor"), *words(options)))


def baseline(module: str, label: str, **options: object) -> Candidate:
    """A contender in Python."""
    start = (sys.executable, "-m", f"benchmarks.baselines.{module}")
    return Candidate(label, (*start, *words(options)))


def words(options: dict[str, object]) -> list[str]:
    """Options as command line words."""
    return [
        word
        for name, value in options.items()
        for word in ("--" + name.replace("_", "-"), str(value))
    ]


def races(corpora: Corpora) -> list[Race]:
    """All of them, in the order of the table."""
    return [
        records(
            corpora,
            "records4k",
            4096,
            {"torch": 6, "getitems": 3, "ffcv": 1.5, "floor": 0.8, "two": 0.95},
        ),
        records(corpora, "records512", 512, {"torch": 12}),
        tokens(corpora),
        files(corpora),
        cold(corpora),
        jpeg(corpora),
    ]


def records(corpora: Corpora, name: str, record_bytes: int, targets: dict[str, float]) -> Race:
    """Small records of one file, warm, exact shuffle."""
    shape = {"record_bytes": record_bytes, "batch": 256, "seed": corpora.seed}

    def path() -> Path:
        return corpora.records(record_bytes)

    def floors(mode: str, threads: int) -> Callable[[], list[Candidate]]:
        options = {"mode": mode, "threads": threads, **shape}
        return lambda: [floor("records", f"{mode} x{threads}", path=path(), **options)]

    def sweep(
        module: str, workers: tuple[int, ...], at: Callable[[], Path] = path, ahead: int = 2
    ) -> Callable[[], list[Candidate]]:
        return lambda: [
            baseline(module, f"workers={n}", path=at(), workers=n, ahead=ahead, **shape)
            for n in workers
        ]

    def ffcv() -> list[Candidate]:
        at = corpora.ffcv(record_bytes)
        return [
            baseline(
                "ffcv_loader",
                f"threads={n}, ahead={ahead}",
                path=at,
                workers=n,
                ahead=ahead,
                **shape,
            )
            for n, ahead in ((2, 3), (1, 3))
        ]

    return Race(
        name,
        path,
        make_warm,
        lambda: baseline("penstock_loader", "defaults", path=path(), **shape),
        (
            Reference(
                "floor", "floor: map + memcpy, 1 thread", floors("mmap", 1), targets.get("floor")
            ),
            Reference(
                "floor", "floor: map + memcpy, 2 threads", floors("mmap", 2), targets.get("two")
            ),
            # Workers never won: with one or two of them an epoch took 1.8 to 4.7 times as long.
            Reference("torch", "torch, best", sweep("torch_loader", (0,)), targets["torch"]),
            Reference(
                "getitems",
                "torch + __getitems__, best",
                sweep("torch_getitems", (0,)),
                targets.get("getitems"),
            ),
            Reference("ffcv", "FFCV, best", ffcv, targets.get("ffcv")),
            # A record costs these as much whatever its size: one size says it. Two workers took 2
            # and 1.7 times as long.
            *(
                (
                    Reference("grain", "Grain, best", sweep("grain_loader", (0,))),
                    Reference(
                        "litdata",
                        "LitData (not an exact shuffle)",
                        sweep("litdata_loader", (0,), lambda: corpora.litdata(record_bytes)),
                    ),
                )
                if record_bytes == 4096
                else ()
            ),
        ),
    )


def tokens(corpora: Corpora) -> Race:
    """Windows of 2,048 tokens and the next one, of a flat file of uint16, as int64; warm, exact
    shuffle."""
    shape = {"record_bytes": 4096, "kind": "tokens", "batch": 64, "seed": corpora.seed}

    def path() -> Path:
        return corpora.records(4096)

    def torch(module: str) -> Callable[[], list[Candidate]]:
        # Two workers took five times as long.
        return lambda: [baseline(module, "workers=0", path=path(), workers=0, **shape)]

    return Race(
        "tokens",
        path,
        make_warm,
        lambda: baseline("penstock_loader", "defaults", path=path(), **shape),
        (
            Reference("torch", "torch, best", torch("torch_loader")),
            Reference("getitems", "torch + __getitems__, best", torch("torch_getitems")),
        ),
    )


def files(corpora: Corpora) -> Race:
    """One sample a file, warm."""
    shape = {"batch": 64, "seed": corpora.seed}

    def path() -> Path:
        return corpora.files(100_000)

    def floors() -> list[Candidate]:
        return [floor("files", f"threads={n}", path=path(), threads=n, **shape) for n in (2, 1)]

    def torch() -> list[Candidate]:
        # One worker took four times as long, two three times.
        options = {"path": path(), "kind": "files", "workers": 0, **shape}
        return [baseline("torch_loader", "workers=0", **options)]

    return Race(
        "files100k",
        path,
        make_warm,
        lambda: baseline("penstock_loader", "defaults", path=path(), kind="files", **shape),
        (
            Reference("floor", "floor: open + read + close, best", floors, 0.85),
            Reference("torch", "torch, best", torch, 1.5),
        ),
    )


def cold(corpora: Corpora) -> Race:
    """Large records past the page cache."""
    shape = {"record_bytes": 128 << 10, "seed": corpora.seed}

    def path() -> Path:
        return corpora.cold(128 << 10)

    def floors() -> list[Candidate]:
        return [
            floor("direct", f"qd=32, {kind} buffers", path=path(), depth=32, buffers=kind, **shape)
            for kind in ("fixed", "plain")
        ]

    return Race(
        "cold128k",
        path,
        make_cold,
        lambda: baseline(
            "penstock_loader", "direct=required", path=path(), batch=32, direct="required", **shape
        ),
        (Reference("floor", "floor: io_uring + O_DIRECT, best", floors, 0.9),),
        cold=True,
    )


def jpeg(corpora: Corpora) -> Race:
    """Decode, resize and collate."""
    shape = {"batch": 64, "workers": 2, "seed": corpora.seed}

    def loop() -> list[Candidate]:
        return [baseline("jpeg_loop", "threads=2", path=corpora.images(), **shape)]

    def torch() -> list[Candidate]:
        options = {"path": corpora.images(), "kind": "jpeg", **shape}
        return [baseline("torch_loader", "workers=2", **options)]

    return Race(
        "jpeg",
        corpora.images,
        make_warm,
        lambda: baseline(
            "penstock_loader", "defaults", path=corpora.images(), kind="jpeg", **shape
        ),
        (
            Reference("floor", "floor: bare loop, 2 threads", loop, 0.95),
            Reference("torch", "torch, 2 workers", torch),
        ),
    )
