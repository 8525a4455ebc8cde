"""Datasets: samples by number, and the index that locates them; `open` finds and loads both."""

from __future__ import annotations

import contextlib
import copy
import functools
import hashlib
import operator
import os
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, SupportsIndex

import numpy as np
import numpy.typing as npt

from .. import limits
from ..arguments import Path, check_function, check_path, check_whole
from ..engine import store as stores
from ..engine.open import add_mirrors, read_extent
from ..engine.protocol import Buffer
from ..engine.read_method import INSTALLED_BYTES
from ..errors import LimitError, UsageError
from ..extent import Int
from ..index.concat import split_by_part
from ..index.fields import SUMS_FIELD, Field
from ..index.layout import Boxes, Windowed
from ..index.sidecar import list_saved_paths, own_folder
from ..index.table import Index
from ..index.vocabulary import set_vocabulary
from ..order.order import Order, Ordering, Shuffle, check_words
from ..order.selection import Bitmap, Selection, Subset, map_numbers
from ..order.weighted import WeightTable
from ..plan.batch_layout import Ids
from ..plan.steps import StepPlan, plan_samples
from .columns import Slice
from .fields import build_fields
from .lengths import (
    SavedLengths,
    build_unmeasured_error,
    count_numbers,
    find_counted,
    load_lengths,
)
from .sample import Decode, LoadedSample, open_samples
from .saved import allot_array, load_selection, save_selection, spill
from .selecting import By, Condition, choose_samples, divide_samples, narrow
from .sources import IndexReference, choose_names, convert_integers, pin_paths, request_index
from .weighing import (
    Weighting,
    WeightsOf,
    make_table,
    narrow_weights,
    read_weights,
    spill_weighting,
)

if TYPE_CHECKING:
    from .stats import FieldStats


def open(
    path: Path | Sequence[Path],
    *,
    format: str | None = None,
    record_bytes: int | None = None,
    header_bytes: int = 0,
    dtype: Any = None,
    shape: Sequence[int] | None = None,
    extensions: str | Sequence[str] | None = None,
    index: str | os.PathLike[str] = "auto",
    progress: stores.Progress | None = None,
    mirrors: Path | Sequence[Path] = (),
    as_dtype: Any = None,
    vocabulary: int | Mapping[str, int] | None = None,
    split: str | Sequence[str] | None = None,
    rename: Mapping[str, str] | None = None,
    normalize: str | Mapping[str, FieldStats] | None = None,
    normalize_dtype: str = "float32",
    **more: Any,
) -> Dataset:
    """Open the samples at `path`. Only the metadata that locates them is read.

    path:          a file or folder of any format in `penstock formats`, or the URL of one
                   ("s3://bucket/folder"); a pattern such as "train-*.tar" or
                   "train-{000..146}.tar", or a list of files, as one dataset.
    format:        the format's name; by default it is recognised by the content.
    more:          options of the format: `penstock formats` lists them.
    record_bytes:  size of a record; or `dtype` and `shape` of one. `header_bytes` are skipped at
                   the start of each file.
    extensions:    which files of a folder count; by default all.
    index:         "auto" takes the saved index if it is fresh, and else makes and saves it;
                   "read" does not save it; "rebuild" makes and saves it; "memory" neither reads
                   nor writes one; anything else is the path of a saved index that fits.
    progress:      called now and then with the number of files seen.
    mirrors:       folders or URLs that hold copies of these files, or of some of them, under the
                   same names as in the folder of `path`. Loaders read from all places at once, and
                   fall back from one to another. Sizes are compared now; that the bytes are the
                   same is for you to guarantee. docs/mirrors.md
    as_dtype:      integers in which samples and batches have all fields of integers, in place of
                   those stored: "int64" or "int32", as embeddings take them. Raw bytes stay bytes.
    vocabulary:    the number of tokens that there are, of which lists of tokens have none but 0 to
                   vocabulary - 1: another one is an error at its step. Of several fields with rows
                   of integers, "input_ids" or "tokens" is meant; or by name, {field: number}.
    split:         the split to open, or several in a list, of data whose folders or files are
                   called by splits, such as train/ and test/; "" opens all as one.
    rename:        {its field: another name}, of fields that samples and batches have under another
                   name. A field "__key__", "__id__", "__url__", "__epoch__" or "__rng__", or
                   "label" beside labels, would hide what every sample has: it needs one.

    normalize:     "stats": samples and batches have each field of floats as (x - mean) / sd, by
                   the statistics that `penstock stats` saved of this data, opened alike; or such
                   statistics by field, of a selection for example: {field: stats}. A deviation of 0
                   counts as 1, and NaN stays. In `normalize_dtype`, "float32" or "bfloat16".

    Raises a PenstockError that names the file: MissingError, FormatError, SidecarError, UsageError.
    """
    given_paths = [path] if isinstance(path, str | bytes | os.PathLike) else path
    if not isinstance(given_paths, Sequence) or not given_paths:
        raise UsageError(f"path is {path!r}: give a path, or a list of them")
    checked_paths = [check_path("path", given_path) for given_path in given_paths]
    paths = tuple(pin_paths(checked_paths, bool(split)))
    index = check_path("index", index)
    if not isinstance(mirrors, Sequence):
        raise UsageError(f"mirrors is {mirrors!r:.100}: give folders or URLs in a list")
    check_function("progress", progress, "a function of a number of files")
    given_mirrors = [mirrors] if isinstance(mirrors, str | bytes) else mirrors
    checked = [check_path("a mirror", mirror) for mirror in given_mirrors]
    roots = [root for mirror in checked for root in pin_paths([mirror])]
    more |= {"record_bytes": record_bytes, "dtype": dtype, "shape": shape}
    more |= {"header_bytes": header_bytes, "extensions": extensions}
    request, below = request_index(paths, format, split, more, progress)
    place = request.place
    if below:
        paths, roots = (place.path,), [os.path.join(root, below) for root in roots]
    table, sidecar = request.find(index)
    table = choose_names(request.attach(table), rename, place.path)
    if as_dtype is not None:
        table = convert_integers(table, as_dtype, place.path)
    if vocabulary is not None:
        table = set_vocabulary(table, vocabulary, place.path)
    if roots:
        table = replace(table, files=add_mirrors(table.files, roots))
    dataset = Dataset(place.path, table, sidecar, paths)
    if normalize is not None:
        from .stats import normalize_fields

        dataset.index = normalize_fields(dataset, normalize, normalize_dtype)
    return dataset


class Kind(ABC):
    """Kind of a dataset made of others: its order and how its samples are finished.

    noun:         with its article, for messages.
    parts:        the datasets that this one numbers the samples of, one after the other.
    samples_per_epoch:  samples that an epoch draws.
    fingerprint:  identity of the data, if it is not the index's with the selection's.
    steps:        name of, and remedy for, starts that count steps, if there are such.
    refusals:     what to do instead, for each method that the kind does not have.
    has_rows:     True if batches have rows of documents in place of samples. Then also:
    arrays:          fields of a batch with as many rows as it.
    row_bytes:       bytes of a full row as they are stored.
    document_bytes:  mean bytes of what is read at once.
    """

    noun: str
    parts: tuple[Dataset, ...]
    samples_per_epoch: int
    fingerprint: str = ""
    steps: tuple[str, str] | None = None
    refusals: Mapping[str, str] = MappingProxyType({})
    has_rows = False
    arrays: tuple[str, ...] = ()
    row_bytes: float
    document_bytes: float

    @abstractmethod
    def make_order(self, seed: int, **options: Any) -> Ordering:
        """Return the order of epoch 0; see `Dataset.order`."""

    @abstractmethod
    def rebuild(self) -> tuple[Callable[..., Dataset], tuple[Any, ...]]:
        """Return a function and its arguments that make the dataset again."""

    @abstractmethod
    def describe(self) -> str:
        """Return the dataset's repr."""

    def compose_decode(self, decode: Decode | None) -> Decode | None:
        """Return the function that turns a sample of a step into what is collated."""
        return decode

    def finish_sample(self, sample: LoadedSample) -> LoadedSample:
        """Return the sample that was read by its number as `decode` takes it."""
        return sample

    def keep(self, chosen: Bitmap) -> Dataset:
        """Return the dataset of the chosen samples."""
        raise AssertionError(f"nothing is selected from {self.noun}")

    def weigh(self, values: Slice) -> Dataset:
        """Return the dataset of the same samples by other weights."""
        raise AssertionError(f"{self.noun} is not weighed")

    def open_whole(self) -> Dataset:
        """Return the dataset of all samples, without weights."""
        raise AssertionError(f"{self.noun} is no stage")

    def lay_out(
        self, index: Index, planned: StepPlan, buffer: Buffer, take: Callable[[int], Buffer]
    ) -> dict[str, Any]:
        """Return the fields of a step's batch of rows, in memory of `take`."""
        raise AssertionError(f"{self.noun} has no rows")

    def find_row_table(self) -> tuple[str, str, str]:
        """Return the place of files with counts of rows: a path without an end, and the identity
        and version of the data."""
        raise AssertionError(f"{self.noun} has no rows")


class Dataset:
    """Samples by number, and the index that locates them.

    `dataset[i]` reads one sample and checks that its file is as it was indexed; loaders read many
    at once. Immutable; may be pickled, and then opens the saved index again.

    subset:     the selected samples of the index; by default all.
    weighting:  weights of these samples; by default each comes once an epoch.
    kind:       what differs in a mixture, a curriculum or packed rows; opened data has none.
    """

    def __init__(
        self,
        path: str,
        index: Index,
        sidecar: str | None = None,
        paths: tuple[str, ...] = (),
        subset: Subset | None = None,
        weighting: Weighting | None = None,
        kind: Kind | None = None,
    ) -> None:
        self.path = path
        self._paths = paths or (path,)
        self.index = index
        self.sidecar = sidecar
        self.subset = subset
        self.weighting = weighting
        self.kind = kind

    @property
    def parts(self) -> tuple[Dataset, ...]:
        """The opened datasets, or selections of them, that this one numbers the samples of."""
        return (self,) if self.kind is None else self.kind.parts

    @property
    def rows(self) -> Kind | None:
        """The kind of packed rows, if batches have rows of documents in place of samples."""
        return self.kind if self.kind is not None and self.kind.has_rows else None

    @property
    def fields(self) -> tuple[Field, ...]:
        """Fields of a sample."""
        return tuple(made for made in self.index.made if made.name != SUMS_FIELD)

    @property
    def classes(self) -> tuple[str, ...] | None:
        """Names of the classes, if labels are numbers of names."""
        return self.index.classes

    @property
    def fingerprint(self) -> str:
        """Identity of the data: equal for a copy elsewhere, different for other data or for
        another selection."""
        if self.kind is not None and self.kind.fingerprint:
            return self.kind.fingerprint
        if self.subset is None:
            return self.index.identity
        both = f"{self.index.identity}/{self.subset.digest}"
        return hashlib.blake2b(both.encode(), digest_size=16).hexdigest()

    @property
    def commit(self) -> str:
        """Commit of the hub that the data is of, hf:// or its local cache; "" for other data.

        Of several datasets each commit once.
        """
        if self.kind is None:
            from ..engine.hub import find_commit  # loads the hub's client

            return find_commit(self.index.files.root)
        commits = dict.fromkeys(dataset.commit for dataset in self.parts)
        return " ".join(commit for commit in commits if commit)

    def __len__(self) -> int:
        return self.index.count if self.subset is None else len(self.subset)

    @property
    def samples_per_epoch(self) -> int:
        """Samples that an epoch draws: each once, unless there are weights or a kind says else."""
        if self.kind is not None:
            return self.kind.samples_per_epoch
        return len(self) if self.weighting is None else self.weighting.samples_per_epoch

    @property
    def lengths(self) -> Int:
        """The length of each sample, int64, as `self[i]` numbers them.

        They are what `penstock lengths` has measured; else what the container knows: the numbers of
        the only list of a sample (of "input_ids" or "tokens", if there are several), or its bytes
        if that holds bytes. Of all samples they are a mapped file, or in memory up to 4 million.
        UsageError if the container does not know them; SidecarError if those measured are of
        another version of the data.
        """
        saved = self.load_lengths()
        if saved is not None and self.subset is None:
            return saved.values
        read = self.find_lengths()
        if read is None:
            path = next(dataset for dataset in self.parts if dataset.find_id_lengths() is None).path
            raise build_unmeasured_error(path)
        count = len(self)
        values: Int = allot_array(count, np.int64, own_folder(), limits.lengths_samples_inline_max)
        for start in range(0, count, limits.selection_chunk_samples):
            stop = min(start + limits.selection_chunk_samples, count)
            values[start:stop] = read(start, stop)
        return values

    def find_lengths(self) -> Slice | None:
        """Return the function that gives the lengths of the samples [start, stop), if known."""
        take = self.find_id_lengths()
        if take is None:
            return None
        return lambda start, stop: take(self.ids(np.arange(start, stop, dtype=np.uint64)))

    def find_id_lengths(self) -> Callable[[Ids], Int] | None:
        """Return the function that gives lengths by the numbers of `batch.ids`, if known."""
        if self.kind is not None:
            takes = [dataset.find_id_lengths() for dataset in self.parts]
            known = [take for take in takes if take is not None]
            return join_takes(self.parts, known) if len(known) == len(takes) else None
        saved = self.load_lengths()
        if saved is not None:
            return saved.take
        if find_counted(self.index) is None:
            return None
        return partial(count_numbers, self.index)

    def load_lengths(self) -> SavedLengths | None:
        """Return the lengths that `penstock lengths` has measured of all samples, if it has."""
        if self.kind is not None:
            return self.parts[0].load_lengths() if len(self.parts) == 1 else None
        return load_lengths(self.list_length_paths(), self.index, self.path)

    def list_length_paths(self) -> list[str]:
        """List the paths at which measured lengths are looked for and saved, as the index is."""
        return list_saved_paths(self.path, "lengths")

    def stats(
        self,
        *,
        by_axis: int | None = None,
        bins: int = 0,
        threads: int | None = None,
        force: bool = False,
        progress: Callable[[int, int], None] | None = None,
    ) -> Mapping[str, FieldStats]:
        """Measure statistics of each field of numbers, and save them beside the index.

        by_axis:   axis of a sample: each place along it has statistics of its own, too.
        bins:      of a histogram between the extrema. It takes a second read of the data.
        threads:   by default one for each core that this process may use.
        force:     measure again what is there.
        progress:  called with the samples done, and all, of both reads.

        A selection has statistics of its own samples; weights do not count. The result has the same
        bits for any number of threads. Killed at any time, the same call goes on where it was.
        UsageError for data without numbers, and for mixtures.
        """
        from .stats import measure_stats  # only here: opening data needs none of it

        return measure_stats(self, by_axis, bins, threads, force, progress)

    def load_stats(self) -> Mapping[str, FieldStats]:
        """Return the statistics that `stats` or `penstock stats` has measured of these samples.

        MissingError if it has not; SidecarError if they are damaged, or of another version of the
        data or other fields of it.
        """
        from .stats import load_stats

        return load_stats(self)

    def has_lengths(self) -> bool:
        """True if lengths are known: measured ones may be of another version still."""
        if self.kind is not None:
            return all(dataset.has_lengths() for dataset in self.parts)
        measured = any(os.path.exists(path) for path in self.list_length_paths())
        return measured or find_counted(self.index) is not None

    def ids(self, numbers: npt.ArrayLike) -> Ids:
        """Return the numbers in the whole dataset of the samples `self[number]`, as `batch.ids`
        and "__id__" have them. They differ from `numbers` in a selection only."""
        if self.subset is None:
            return check_words(numbers, len(self), "sample")
        return map_numbers(self.subset, numbers)

    def origins(self, ids: npt.ArrayLike, field: str | None = None) -> dict[str, Int]:
        """Return where windows start: by axis, the first element of each window, halo included.

        ids:    as `batch.ids` has them.
        field:  of which arrays, or targets; by default the first field.
        """
        numbers = check_words(ids, self.index.count, "sample").reshape(-1).view(np.int64)
        names = [field.name for field in self.index.fields]
        named = dict(zip(names, self.index.layouts, strict=True))
        layout = named.get(field or names[0])
        if isinstance(layout, Boxes):
            return layout.grid.name_origins(numbers)
        if isinstance(layout, Windowed):
            return layout.name_origins(numbers)
        raise UsageError(f"{self.path}: {field or names[0]!r} has no windows: open it with window=")

    @functools.cached_property
    def coordinates(self) -> Mapping[str, Any]:
        """The values along axes of windows, by name, of HDF5 and Zarr; read when first asked for.

        data.coordinates["time"][start : start + 24] are the times of a window at `start`, as
        `origins` tells it: datetime64 where CF conventions say so ("hours since 2024-01-01"). An
        axis has one if the data has an array of numbers of its name along it alone. With
        sample="file" it is a list, of one array for each file.
        """
        from .coordinates import read_coordinates

        return read_coordinates(self.index)

    def order(
        self,
        seed: int,
        *,
        shuffle: Shuffle = "exact",
        block: int = 256,
        group: int = 64,
        stream: int = 0,
    ) -> Ordering:
        """Return the order of epoch 0, as loaders draw it; other streams are unrelated to it."""
        options: Any = {"shuffle": shuffle, "block": block, "group": group, "stream": stream}
        if self.kind is not None:
            return self.kind.make_order(seed, **options)
        order: Any = Order(self.samples_per_epoch, seed, **options)
        if self.weighting is not None:
            order = self.weighting.make_order(order, len(self))
        return order if self.subset is None else Selection(order, self.subset)

    def select(
        self,
        ids: Any = None,
        *,
        mask: Any = None,
        where: Condition | None = None,
        fraction: float | None = None,
        seed: int = 0,
        columns: Mapping[str, Any] | None = None,
        saved: Path | None = None,
    ) -> Dataset:
        """Return the dataset of some of these samples, each once. Give one of:

        ids:       numbers of samples in any sequence, or a `range` of them.
        mask:      truth values, one for each sample.
        where:     a condition on the samples' columns, such as "label == 'cat' and bytes > 1000" or
                   "key.startswith('en/')", or a function of the `Columns` that returns a mask.
        fraction:  of the samples, drawn by `seed`. A larger fraction of one seed holds a smaller.

        saved:     the path of a file that `save_selection` has written for the same data.

        columns:   arrays by name, one value for each sample, for `where`.

        Columns are "label", "bytes" (of a sample), "key", in a mixture "source", fields that are
        one number a sample (read at first use), `columns`, and axes of windows (see `origins`).

        Samples stay in the sequence of the data; a loader's order decides how they come. They
        are numbered from 0 on here, as `dataset[i]` takes them, and so is a selection of a
        selection. `batch.ids`, keys, labels and caches keep the numbers of the whole dataset (see
        `ids`). A selection of a mixture draws from the selected samples by the same weights.

        Takes 1.04 bits for each sample of the whole dataset. UsageError if nothing is selected, and
        for ids that do not exist or come twice, masks of another length and unknown columns.
        """
        self._check_method("select")
        others = {"ids": ids, "mask": mask, "where": where, "fraction": fraction}
        if saved is not None:
            given = [name for name, value in others.items() if value is not None]
            if given or self.subset is not None:
                also = f"{given[0]} is given too" if given else "this is a selection itself"
                raise UsageError(f"saved selects from all samples, and {also}: leave it out")
            return self._keep(
                load_selection(
                    check_path("saved", saved), self.index.fingerprint, commit=self.commit
                )
            )
        chosen = choose_samples(
            self, ids=ids, mask=mask, where=where, fraction=fraction, seed=seed, columns=columns
        )
        return self._keep(chosen)

    def save_selection(self, path: Path) -> None:
        """Save which samples are selected, for `select(saved=path)`; whole, or not at all.

        The file is mapped when it is opened: processes of a host share its memory, and a selection
        of 10^9 samples opens at once. StorageError if it cannot be written.
        """
        if not isinstance(self.subset, Bitmap):
            raise UsageError(f"{self.path} is no selection: save a selection of one dataset")
        save_selection(check_path("path", path), self.subset, self.index.fingerprint, self.commit)

    def weigh(
        self,
        weights: WeightsOf | None = None,
        *,
        samples_per_epoch: int | None = None,
        columns: Mapping[str, Any] | None = None,
    ) -> Dataset:
        """Return the dataset of the same samples, each of which comes as often as its weight says.

        weights:  an array of one number from 0 on for each sample; a dict {class: weight of each of
                  its samples}; the name of a column (see `select`); or a function of the `Columns`
                  that returns such an array. None: all are alike, and an epoch draws so many
                  samples, fewer than there are: one at random of each of as many stretches of the
                  data, which are of one length (random windows, where there is one at each place).
        samples_per_epoch:  samples that an epoch draws; by default as many as there are, or as
                  before if there were weights.
        columns:  arrays by name, one value for each sample, for a name or a function.

        A sample of weight w is expected samples_per_epoch * w / (sum of all weights) times in an
        epoch. It comes as often, rounded down or up, in every epoch, and exactly as often on
        average. So samples that are expected less than once are left out of some epochs, evenly:
        they come at least once in any ceil(2 / expected) epochs. A weight of 0 is never drawn.
        Weights are kept to 2^-31 of the largest; one above 0 that this would make 0 is refused.

        Other weights replace these. A selection keeps the weights of its samples. In a mixture,
        weights decide within each dataset; how much comes from each is for the mixture.

        Takes 4.25 bytes a sample, from 4 million samples on in a mapped file without a name in the
        user's cache folder (with one for worker processes, when they start). UsageError for weights
        that are negative, not finite, all 0, or of another number, for unknown classes and columns,
        and for classes without a weight.
        """
        self._check_method("weigh")
        number = self.samples_per_epoch
        if samples_per_epoch is not None:
            self._check_method("samples_per_epoch")
            most = limits.order_count_max
            number = check_whole("samples_per_epoch", samples_per_epoch, 1, most)
        if weights is None:
            most = min(len(self), limits.weights_count_max)
            if columns is not None or self.kind is not None or samples_per_epoch is None:
                raise UsageError("weigh() without weights takes samples_per_epoch= of opened data")
            drawn = copy.copy(self)
            number = check_whole("samples_per_epoch without weights", number, 1, most)
            drawn.weighting = Weighting(None, number)
            return drawn
        values = read_weights(self, weights, columns)
        return self._weigh(values, number) if self.kind is None else self.kind.weigh(values)

    def split(
        self,
        parts: Mapping[str, float],
        *,
        by: By | None = None,
        seed: int = 0,
        columns: Mapping[str, Any] | None = None,
    ) -> dict[str, Dataset]:
        """Divide the samples into selections: each sample is in exactly one.

        parts:    fractions by name that add up to 1: {"train": 0.9, "val": 0.1}.
        by:       None divides a seeded order, to within a sample of the fractions. The name of a
                  column (see `select`), or a function that gives a value for each sample, divides
                  by a hash of seed and value: samples of equal values are in one part, parts have
                  about the fractions, and by="key" gives a sample the same part whichever other
                  samples there are, so that data may be added. (It is refused where keys
                  count samples over several files, as in Parquet.)
        columns:  arrays by name, one value for each sample, for `by`.

        UsageError if a part would have no sample.
        """
        self._check_method("split")
        chosen = divide_samples(self, parts, by, seed, columns)
        return {name: self._keep(samples) for name, samples in chosen.items()}

    def _check_method(self, name: str) -> None:
        if self.kind is not None and name in self.kind.refusals:
            what, remedy = f"{name} of {self.kind.noun}", self.kind.refusals[name]
            raise UsageError(f"{what} of {self.path}: {remedy}")

    def _keep(self, chosen: Bitmap) -> Dataset:
        """Return the dataset of the chosen samples, numbered as here."""
        if self.kind is not None:
            return self.kind.keep(chosen)
        selected = copy.copy(self)
        if self.weighting is not None:
            selected.weighting = narrow_weights(self.weighting, chosen, own_folder())
        selected.subset = chosen if self.subset is None else narrow(self.subset, chosen)
        return selected

    def _weigh(self, values: Slice, samples_per_epoch: int) -> Dataset:
        """Return the dataset of the same samples by the weights that `values` gives."""
        weighed = copy.copy(self)
        table = make_table(values, len(self), own_folder())
        weighed.weighting = Weighting(table, samples_per_epoch)
        return weighed

    def join_weights(self) -> WeightTable:
        """Return the weights of all samples as one table, as `weigh` takes them again."""
        if self.kind is not None:
            tables = [dataset.join_weights().weights for dataset in self.parts]
            return WeightTable.from_integers(np.concatenate(tables))
        if self.weighting is None or self.weighting.table is None:
            raise UsageError(f"{self.path} has no weights: weigh() it by some first")
        return self.weighting.table

    def open_whole(self) -> Dataset:
        """Return the dataset of all samples, without weights."""
        if self.kind is not None:
            return self.kind.open_whole()
        whole = copy.copy(self)
        whole.subset = whole.weighting = None
        return whole

    def __getitem__(self, sample: SupportsIndex) -> LoadedSample:
        """Read one sample: its fields, its "__key__" and, if known, its "label".

        A field is an array if the format knows dtype and shape, else bytes, as `decode` gets it.
        So that `decode(dataset[i])` can be tried, "__id__", "__epoch__" (0) and "__rng__" can be
        asked for too, but are no keys. Raises ChangedError if the file is not as it was indexed.
        """
        number = operator.index(sample)
        if not -len(self) <= number < len(self):
            raise IndexError(f"sample {number} does not exist: there are {len(self):,}")
        number = int(self.ids([number % len(self)])[0])
        planned, buffer = self._read(number)
        fields = build_fields(self.index, planned, buffer)
        values = open_samples(self.index, planned, fields, 0, 0)(0)
        del values["__id__"], values["__epoch__"]  # the stream has them
        for field in self.index.fields:
            if field.shape == () and field.parser is None and field.name in values:
                dtype = field.as_dtype or field.dtype
                values[field.name] = np.asarray(values[field.name], dtype)
        return values if self.kind is None else self.kind.finish_sample(values)

    def compose_decode(self, decode: Decode | None) -> Decode | None:
        """Return the function that turns a sample of a step into what is collated."""
        return decode if self.kind is None else self.kind.compose_decode(decode)

    def __iter__(self) -> Iterator[dict[str, Any]]:
        return (self[sample] for sample in range(len(self)))

    def _read(self, sample: int) -> tuple[StepPlan, np.ndarray[Any, np.dtype[np.uint8]]]:
        """Read one sample. Returns the plan that locates its fields in the bytes, and the bytes."""
        ids, bounds = np.array([sample], np.uint64), np.array([0, 1], np.int64)
        (group,) = plan_samples(self.index, ids, bounds, 0, None)
        (planned,) = group.steps
        where = f"sample {sample:,}: {self.index.where(sample)}"
        try:
            if planned.layout.bytes > INSTALLED_BYTES:
                raise MemoryError
            buffer = np.empty(planned.layout.bytes, np.uint8)
        except MemoryError:
            size = f"{planned.layout.bytes:,} bytes"
            raise LimitError(f"{where}: no memory for its {size}: cut it into parts") from None
        columns = (column.tolist() for column in planned.requests[:-1])
        for file, offset, length, _, target in zip(*columns, strict=True):
            data = read_extent(self.index.files, file, offset, length, where)
            buffer[target : target + length] = np.frombuffer(data, np.uint8)
        return planned, buffer

    def __reduce__(self) -> tuple[Any, ...]:
        if self.kind is not None:
            return self.kind.rebuild()
        index, names = self.index, ("attributes", "label_column", "classes", "joined")
        joined = {name: getattr(index, name) for name in names if index.joined is not None}
        index = replace(index, attributes=tuple(a for a in index.attributes if a.picked is None))
        subset, weighting, data = self.subset, self.weighting, index.fingerprint
        if isinstance(subset, Bitmap) and subset.nbytes > limits.selection_bytes_inline_max:
            with contextlib.suppress(OSError):  # no room for a file: it is pickled whole
                subset = spill(subset, data, own_folder())
        if weighting is not None:
            weighting = spill_weighting(weighting, data, own_folder())
        if self.sidecar is None:
            return Dataset, (self.path, self.index, None, self._paths, subset, weighting)
        reference = IndexReference.make(index, self.path, self._paths, self.sidecar)
        return _reopen, (reference, joined, subset, weighting)

    def __repr__(self) -> str:
        if self.kind is not None:
            return self.kind.describe()
        labelled = f", {len(self.classes)} classes" if self.classes is not None else ""
        joined = "" if self.index.joined is None else f", joined with {self.index.joined[1]}"
        selected = "" if self.subset is None else f"{len(self):,} selected of "
        if self.weighting is not None:
            selected = f"{self.samples_per_epoch:,} an epoch by weight, {selected}"
        return (
            f"<penstock.Dataset {self.path!r}: {selected}{self.index.count:,} samples{labelled}, "
            f"{self.index.total_bytes:,} bytes, format {self.index.format}{joined}>"
        )


def _reopen(reference: IndexReference, joined: Mapping[str, Any], *more: Any) -> Dataset:
    """Open a pickled dataset again, with what its index has that is not saved."""
    index, sidecar = reference.open()
    return Dataset(reference.path, replace(index, **joined), sidecar, reference.paths, *more)


def join_takes(
    datasets: Sequence[Dataset], takes: Sequence[Callable[[Ids], Int]]
) -> Callable[[Ids], Int]:
    """Return the function that gives lengths by the numbers of all parts.

    takes:  for each part the function that gives lengths by its numbers.
    """
    if len(takes) == 1:
        return takes[0]
    first = np.cumsum([0, *(dataset.index.count for dataset in datasets)], dtype=np.int64)

    def take_parts(ids: Ids) -> Int:
        lengths = np.empty(len(ids), np.int64)
        for number, rows, part_ids in split_by_part(first, ids.view(np.int64)):
            lengths[rows] = takes[number](part_ids.view(np.uint64))
        return lengths

    return take_parts
