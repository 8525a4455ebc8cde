"""python -m fuzz NAME [--runs N] [--seconds S] [--corpus FOLDER] [--replay FILE]

Guided by coverage where atheris is installed, else by chance alone.
"""

from __future__ import annotations

import argparse
import importlib
import pkgutil
import sys
import tempfile
import time
from collections.abc import Sequence
from importlib.machinery import PathFinder
from pathlib import Path
from random import Random
from types import ModuleType

import numpy as np

import fuzz
from fuzz import structure

_WORDS = [
    *(bytes([value]) for value in (0, 1, 0x7F, 0x80, 0xFF)),
    *(b"\xff" * n for n in (2, 4, 8)),
    b"\xff\xff\xff\x7f",
    b"\xff" * 7 + b"\x7f",
    (1 << 31).to_bytes(8, "little"),
    (1 << 62).to_bytes(8, "little"),
]


_PARSERS = (
    *("penstock.index.formats", "penstock.index.codecs"),
    *("penstock.index.windows", "penstock.index.clips", "penstock.index.layout"),
    *("penstock.index.extent_tables", "penstock.index.chunked", "penstock.index.table"),
    *("penstock.index.json_fields", "penstock.index.nested", "penstock.index.attributes"),
    *("penstock.engine.hub", "penstock.dataset.predicate"),
)


def main() -> None:
    names = sorted(
        each.name.removeprefix("fuzz_")
        for each in pkgutil.iter_modules(fuzz.__path__)
        if each.name.startswith("fuzz_")
    )
    parser = argparse.ArgumentParser(prog="python -m fuzz", description=__doc__)
    parser.add_argument("name", choices=names)
    parser.add_argument("--runs", type=int, default=0, help="stop after so many inputs")
    parser.add_argument("--seconds", type=int, default=0, help="stop after so long")
    parser.add_argument("--replay", type=Path, help="run this one input")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--corpus", type=Path, help="keep inputs that took new ways in this folder")
    parser.add_argument("--blind", action="store_true", help="without atheris, even if installed")
    given = parser.parse_args()
    if not given.runs and not given.seconds:
        given.runs = 100_000
    if given.replay is not None:
        _target(given.name).one(given.replay.read_bytes())
    elif given.blind:
        _blind(_target(given.name), given)
    else:
        try:
            import atheris  # type: ignore[import-untyped]
        except ModuleNotFoundError:
            _blind(_target(given.name), given)
        else:
            _guided(atheris, given)


def _list_modules(package: ModuleType) -> list[str]:
    """Return the names of all modules of a package, and import none."""
    names = []
    for root in map(Path, package.__path__):
        for path in root.rglob("*.py"):
            parts = path.relative_to(root).with_suffix("").parts
            names.append(".".join([package.__name__, *parts]).removesuffix(".__init__"))
    return names


def _target(name: str) -> ModuleType:
    return importlib.import_module(f"fuzz.fuzz_{name}")


def _tokens(target: ModuleType) -> Sequence[bytes]:
    """Return the words of the target's format."""
    tokens: Sequence[bytes] = getattr(target, "TOKENS", ())
    return tokens


def _guided(atheris: ModuleType, given: argparse.Namespace) -> None:
    # Atheris sees nothing of what the loader of an editable install imports: Python's own is first.
    package = importlib.import_module("penstock")
    sys.meta_path.insert(0, PathFinder)
    # Of a package it takes all modules. Those that only read what a parser found tell it nothing.
    excluded = [name for name in _list_modules(package) if not name.startswith(_PARSERS)]
    with atheris.instrument_imports(include=["penstock"], exclude=excluded):
        target = _target(given.name)
        for entry in importlib.import_module("penstock.index.formats").FORMATS.values():
            entry.load(entry.built_by)  # modules of formats are imported when they are used
    if "atheris" not in type(importlib.import_module(_PARSERS[0]).__loader__).__module__:
        sys.exit("penstock's formats were imported before atheris could instrument them")
    with tempfile.TemporaryDirectory(prefix="penstock-fuzz-") as temporary:
        corpus = given.corpus or Path(temporary)
        corpus.mkdir(parents=True, exist_ok=True)
        seeds = target.seeds()
        for number, seed in enumerate(seeds):
            (corpus / str(number)).write_bytes(seed)
        # Long inputs are slow ones, and say what shorter ones say.
        bytes_max = max(1024, 2 * max(map(len, seeds)))
        limits = [f"-runs={given.runs}"] if given.runs else []
        limits += [f"-max_total_time={given.seconds}"] if given.seconds else []
        flags = [f"-seed={given.seed}", "-timeout=10", "-rss_limit_mb=2048"]
        flags.append(f"-max_len={bytes_max}")

        def mutate(data: bytes, bytes_max: int, seed: int) -> bytes:
            def mutate_bytes(part: bytes) -> bytes:
                mutated: bytes = atheris.Mutate(part, bytes_max)
                return mutated

            return structure.mutate(data, _tokens(target), mutate_bytes, Random(seed))[:bytes_max]

        arguments = [sys.argv[0], *limits, *flags, str(corpus)]
        atheris.Setup(arguments, target.one, custom_mutator=mutate)
        atheris.Fuzz()


def _blind(target: ModuleType, given: argparse.Namespace) -> None:
    random = np.random.default_rng(given.seed)
    seeds, tokens = target.seeds(), _tokens(target)
    started = time.monotonic()
    done = 0
    while not (given.runs and done >= given.runs):
        if given.seconds and time.monotonic() - started >= given.seconds:
            break
        seed = seeds[int(random.integers(len(seeds)))]
        chance = Random(int(random.integers(1 << 32)))
        data = structure.mutate(seed, tokens, lambda part: _mutated(part, random), chance)
        try:
            target.one(data)
        except BaseException:
            path = Path(f"crash-{given.name}-{given.seed}-{done}")
            path.write_bytes(data)
            print(f"replay with: python -m fuzz {given.name} --replay {path}", file=sys.stderr)
            raise
        done += 1
    print(f"{given.name}: {done:,} inputs in {time.monotonic() - started:.1f} s, no finding")


def _mutated(seed: bytes, random: np.random.Generator) -> bytes:
    """A seed with a few bytes replaced, left out, repeated, or cut off."""
    data = bytearray(seed)
    for _ in range(int(random.integers(1, 5))):
        size = len(data)
        if not size:
            break
        at, kind = int(random.integers(size)), int(random.integers(6))
        if kind < 2:
            data[at] = int(random.integers(256))
        elif kind < 4:
            word = _WORDS[int(random.integers(len(_WORDS)))]
            data[at : at + len(word)] = word
        elif kind == 4:
            length = int(random.integers(1, 33))
            part = data[at : at + length]
            data[at : at + length] = part * int(random.integers(0, 3))
        elif random.random() < 0.3:
            del data[at:]
    return bytes(data)


if __name__ == "__main__":
    main()
