"""Packers of other libraries on the lengths that ours gets: fill, and time a document.

    pip install --target build/rivals --no-deps trl axolotl nemo_toolkit numba llvmlite \
        grain portpicker
    python -m benchmarks.packing_rivals [--sources build/rivals]

Each runs as its library ships it, from that folder or the environment: the one file with the
packer, where the whole library wants more than that, beside stand-ins for what packing does not
use. A packer that cannot be had is restated here, by what its documentation and source say that it
does, and its row says so. Documents over L tokens are divided beforehand for all alike. Times of
TRL's and Grain's include the tokens that they move; those of the others are of lengths alone.
"""

from __future__ import annotations

import argparse
import importlib.util
import itertools
import sys
import time
import types
from bisect import bisect_left, insort
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

Int = npt.NDArray[np.int64]
Fills = list[int]
"""Tokens in each row."""
Pack = Callable[[Int, int], Fills]

LIBRARY = Path("build/rivals")
TRL_BATCH = 1000  # rows of datasets.map by default
AXOLOTL_GROUP, AXOLOTL_BIN = 100_000, 200  # its defaults
GRAIN_ROWS = 8  # as torchtitan uses it


@dataclass(frozen=True)
class Rival:
    """A packer.

    load:      returns the library's own packer; ImportError or OSError if it cannot be had.
    restated:  the same algorithm, restated.
    documents: how many documents it is given: some take time by the square.
    """

    name: str
    load: Callable[[Path], Pack]
    restated: Pack
    documents: int


# -- the algorithms, restated ----------------------------------------------------------------------


def best_fit_decreasing(lengths: Int, length: int) -> Fills:
    """The longest first, each into the row with the least space that holds it."""
    fills: Fills = []
    spaces: list[tuple[int, int]] = []
    for size in np.sort(lengths)[::-1].tolist():
        at = bisect_left(spaces, (size, -1))
        if at < len(spaces):
            space, row = spaces.pop(at)
        else:
            space, row = length, len(fills)
            fills.append(0)
        fills[row] += size
        if space > size:
            insort(spaces, (space - size, row))
    return fills


def best_fit_in_batches(lengths: Int, length: int) -> Fills:
    """Best fit decreasing in batches of 1,000 documents."""
    parts = np.split(lengths, range(TRL_BATCH, len(lengths), TRL_BATCH))
    return list(itertools.chain.from_iterable(best_fit_decreasing(part, length) for part in parts))


def first_fit(lengths: Iterable[int], length: int, most: int | None = None) -> Fills:
    """Each into the first row that holds it and has fewer than `most` documents."""
    fills, counts = np.zeros(1024, np.int64), np.zeros(1024, np.int64)
    rows = 0
    for size in lengths:
        fits = fills[:rows] + size <= length
        if most is not None:
            fits &= counts[:rows] < most
        row = int(np.argmax(fits)) if rows and fits.any() else rows
        if row == rows:
            rows += 1
            if rows > len(fills):
                fills, counts = (np.append(each, np.zeros_like(each)) for each in (fills, counts))
        fills[row] += size
        counts[row] += 1
    return fills[:rows].tolist()


def first_fit_in_groups(lengths: Int, length: int) -> Fills:
    """First fit in groups of 100,000, at most 200 documents a row."""
    parts = np.split(lengths, range(AXOLOTL_GROUP, len(lengths), AXOLOTL_GROUP))
    return list(
        itertools.chain.from_iterable(
            first_fit(part.tolist(), length, AXOLOTL_BIN) for part in parts
        )
    )


def first_fit_into_eight(lengths: Int, length: int) -> Fills:
    """First fit into 8 rows, which all leave when a document fits none of them."""
    done: Fills = []
    fills = [0] * GRAIN_ROWS
    for size in lengths.tolist():
        row = next((row for row, fill in enumerate(fills) if fill + size <= length), None)
        if row is None:
            done += fills
            fills, row = [0] * GRAIN_ROWS, 0
        fills[row] += size
    return done + [fill for fill in fills if fill]


def first_fit_shuffled(lengths: Int, length: int) -> Fills:
    """First fit of shuffled lengths over all rows."""
    return first_fit(np.random.default_rng(0).permutation(lengths).tolist(), length)


# -- the libraries' own ----------------------------------------------------------------------------


@contextmanager
def _import_from(folder: Path, **stand_ins: dict[str, Any]) -> Iterator[None]:
    """Import from a folder; modules that are not there are stood in for, with these names."""
    sys.path.insert(0, str(folder))
    added = []
    try:
        for name, contents in stand_ins.items():
            dotted = name.replace("__", ".")
            if dotted not in sys.modules and not (
                dotted == "transformers" and importlib.util.find_spec(dotted)
            ):
                module = types.ModuleType(dotted)
                module.__dict__.update(contents)
                module.__path__ = []  # type: ignore[attr-defined]
                sys.modules[dotted] = module
                added.append(dotted)
        yield
    finally:
        sys.path.remove(str(folder))
        for dotted in added:
            del sys.modules[dotted]


def _run_file(path: Path) -> types.ModuleType:
    """Run one file of a library as a module."""
    spec = importlib.util.spec_from_file_location(f"rival_{path.stem}", path)
    if spec is None or spec.loader is None or not path.exists():
        raise ImportError(f"{path} is not there")
    module = importlib.util.module_from_spec(spec)
    sys.modules[module.__name__] = module
    spec.loader.exec_module(module)
    return module


class _Quiet:
    """Logger that says nothing."""

    def __getattr__(self, name: str) -> Callable[..., None]:
        return lambda *arguments, **options: None


def load_trl(folder: Path) -> Pack:
    import pyarrow as pa

    names = {"PreTrainedTokenizerBase": object, "ProcessorMixin": object}
    with _import_from(folder, transformers=names):
        pack_table = _run_file(folder / "trl" / "data_utils.py")._pack_bfd

    def pack(lengths: Int, length: int) -> Fills:
        fills: Fills = []
        for start in range(0, len(lengths), TRL_BATCH):
            ends = np.concatenate([[0], np.cumsum(lengths[start : start + TRL_BATCH])])
            tokens = pa.array(np.zeros(ends[-1], np.int32))
            column = pa.ListArray.from_arrays(ends.astype(np.int32), tokens)
            packed = pack_table(pa.table({"input_ids": column}), length, "truncate")
            fills += packed["input_ids"].combine_chunks().value_lengths().to_pylist()
        return fills

    return pack


def load_axolotl(folder: Path) -> Pack:
    with _import_from(
        folder,
        axolotl={},
        axolotl__utils={},
        axolotl__utils__distributed={"reduce_and_broadcast": None},
        axolotl__utils__logging={"get_logger": lambda name: _Quiet()},
    ):
        import numba  # noqa: F401  # type: ignore[import-not-found,unused-ignore]

        module = _run_file(folder / "axolotl" / "utils" / "samplers" / "multipack.py")
        module.pack_group(np.array([1, 2]), 0, 4, 2, AXOLOTL_BIN, True)  # compiled now

    def pack(lengths: Int, length: int) -> Fills:
        rows = module.pack_parallel(lengths, length, AXOLOTL_GROUP, AXOLOTL_BIN, 1)
        return [int(lengths[row].sum()) for row in rows]

    return pack


def load_grain(folder: Path) -> Pack:
    with _import_from(folder):
        import grain  # type: ignore[import-not-found,unused-ignore]

    def pack(lengths: Int, length: int) -> Fills:
        documents = [{"tokens": np.ones(size, np.int32)} for size in lengths.tolist()]
        source = grain.MapDataset.source(documents).to_iter_dataset()
        packed = grain.experimental.FirstFitPackIterDataset(
            source,
            length_struct={"tokens": length},
            num_packing_bins=GRAIN_ROWS,
            shuffle_bins=False,
        )
        return [int(row["tokens"].sum()) for row in packed]

    return pack


def load_nemo(folder: Path) -> Pack:
    with _import_from(
        folder, nemo={}, nemo__utils={"logging": _Quiet()}, tqdm={"tqdm": lambda values: values}
    ):
        module = _run_file(folder / "nemo" / "utils" / "sequence_packing_utils.py")

    def pack(lengths: Int, length: int) -> Fills:
        return [sum(row) for row in module.first_fit_shuffle(lengths.tolist(), length)]

    return pack


RIVALS = (
    Rival("TRL, bfd (batches of 1,000)", load_trl, best_fit_in_batches, 20_000),
    Rival("axolotl, multipack (groups of 100,000)", load_axolotl, first_fit_in_groups, 20_000),
    Rival("Grain, first fit (8 rows)", load_grain, first_fit_into_eight, 5_000),
    Rival("NeMo, first_fit_shuffle", load_nemo, first_fit_shuffled, 2_000),
)


# -- measuring -------------------------------------------------------------------------------------


def draw_lengths(count: int, seed: int = 1) -> Int:
    """Web-like lengths: lognormal, median 500, sigma 1.1."""
    drawn = np.random.default_rng(seed).lognormal(np.log(500), 1.1, count)
    return np.maximum(1, drawn).astype(np.int64)


def divide_long(lengths: Int, length: int) -> Int:
    """Divide lengths above `length` into whole rows and the rest."""
    pieces = -(-lengths // length)
    divided = np.full(int(pieces.sum()), length, np.int64)
    ends = np.cumsum(pieces) - 1
    divided[ends] = lengths - (pieces - 1) * length
    return divided


def measure_rivals(
    length: int, library: Path = LIBRARY, rivals: Iterable[Rival] = RIVALS
) -> list[dict[str, Any]]:
    """Pack with each; a row has name, source, documents, fill (of 1) and ns a document."""
    rows = []
    for rival in rivals:
        source = "as shipped"
        try:
            pack = rival.load(library)
        except (ImportError, OSError) as error:
            pack, source = rival.restated, f"restated: {error}"
        lengths = divide_long(draw_lengths(rival.documents), length)
        started = time.process_time()
        fills = pack(lengths, length)
        taken = time.process_time() - started
        assert max(fills) <= length, rival.name
        rows.append(
            {
                "name": rival.name,
                "source": source,
                "documents": rival.documents,
                "length": length,
                "packed": sum(fills) / int(lengths.sum()),
                "fill": sum(fills) / (len(fills) * length),
                "ns": taken / rival.documents * 1e9,
            }
        )
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--sources", type=Path, default=LIBRARY)
    sources = Path(parser.parse_args().sources).resolve()
    for length in (2048, 8192, 131_072):
        for row in measure_rivals(length, sources):
            print(
                f"{length:7,}  {row['name']:40} {row['fill']:7.2%}  {row['ns']:12,.0f} ns a "
                f"document ({row['documents']:,}; {row['source']})"
            )


if __name__ == "__main__":
    main()
