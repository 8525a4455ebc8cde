"""Tokenize the texts of a data set into Megatron's .bin and .idx, whole or not at all.

    read (Loader) -> encode (a process a core) -> append in order, in DESTINATION.tmp
        -> every few seconds: fsync, note in the manifest
        -> all done: .idx, read back and compare sums, give the files their names, .idx last

Each sample is a document, in the order of the source, whatever is in it: document i is sample i.
What is written depends on the texts and the tokenizer only, so that a run that goes on after a
kill, with any number of processes, ends up with the same bytes.
"""

from __future__ import annotations

import contextlib
import copy
import importlib.metadata
import math
import os
import time
from collections.abc import Callable, Generator, Iterator
from dataclasses import dataclass, replace
from glob import escape, glob
from typing import Any, Literal

import numpy as np

from .. import limits
from ..arguments import (
    Path,
    bind_arguments,
    check_choice,
    check_flag,
    check_function,
    check_kind,
    check_whole,
)
from ..dataset.dataset import Dataset
from ..dataset.dataset import open as open_dataset
from ..dataset.sample import FieldReader
from ..engine.atomic_file import storage_errors, sync_folder
from ..engine.host import read_machine
from ..errors import FormatError, PenstockError, StorageError, UsageError
from ..index.concat import JointIndex, rename_fields
from ..index.fields import SUMS_FIELD
from ..index.formats.jsonl import build_line_error
from ..index.formats.registry import FORMATS
from ..loader.loader import Loader
from ..order.order import Order
from .conversion import check_outside, check_unchanged
from .encoder_processes import EncodedTexts, encode_texts_ahead
from .encoding import is_raw
from .manifest import (
    CHOICES,
    MANIFEST,
    ConversionManifest,
    Progress,
    check_destination,
    choose_batch_size,
    describe_source,
    lock_folder,
    mismatch_error,
    refuse_foreign_files,
)
from .token_files import BIN, IDX, LENGTHS, PLACED, TokenWriter, choose_dtype, sum_file
from .token_worker import TextError
from .tokenizer_file import Library, TokenizerFile

_SUFFIXES = (".bin", ".idx")
_MANIFEST_SUFFIX = ".manifest.json"


@dataclass(frozen=True, slots=True)
class Tokenized:
    """Result of a tokenization.

    path:      prefix of the files: path.bin, path.idx and path.manifest.json.
    bytes:     of .bin and .idx.
    empty:     documents without text, the broken ones included.
    broken:    documents that are empty because their lines, fields or UTF-8 are broken.
    verified:  documents that were encoded again and compared.
    written:   documents written by this run; the others were there.
    """

    path: str
    documents: int
    tokens: int
    bytes: int
    dtype: str
    empty: int
    broken: int
    verified: int
    written: int

    @property
    def call(self) -> str:
        """The Python call that opens the result."""
        return f"penstock.open({self.path!r})"


def tokenize(
    source: Dataset,
    destination: Path,
    tokenizer: Path,
    *,
    field: str | None = None,
    eos: str | int | bool = True,
    bos: str | int | None = None,
    special: Literal["text", "tokens"] = "text",
    broken: Literal["raise", "mask"] = "raise",
    engine: Library = "tokenizers",
    workers: int | None = None,
    verify: bool = False,
    force: bool = False,
    progress: Progress | None = None,
) -> Tokenized:
    """Write the tokens of all texts of `source` as destination.bin and destination.idx, or resume
    an interrupted run.

    tokenizer:  a tokenizer.json of Hugging Face's `tokenizers`, or the folder that holds one.
                Truncation, padding and template of the file are not applied.
    field:      the field of text: by default "text", "txt", or the only one of bytes. JSON lines
                need not be opened with fields=.
    eos:        the token that ends each document: True is the tokenizer's own (by
                tokenizer_config.json beside it, or its usual name), False none; else one by its
                text or number.
    bos:        a token at the beginning of each document; None is none.
    special:    "text": a special token's name in a text is encoded as other text, so that no
                document can pretend to end; "tokens": it becomes that token.
    broken:     "raise": a line that is no object, a field that is missing, null or no string, and
                broken UTF-8 are FormatErrors; "mask": such a document is empty, and counted.
    engine:     "tiktoken" encodes several times as fast. It is refused unless the merges of the
                tokenizer are proved to give equal tokens, and 1,000 documents are compared.
    workers:    processes that encode; by default as many as there are cores.
    verify:     compare the files with their checksums, and encode 1,000 documents again, one by
                one, also if it was complete already.
    force:      replace destination if it holds other tokens that this function wrote.

    An empty text is a document of its end token alone. Documents of more than 2^31-1 tokens have
    several sequences. Tokens are uint16 if the vocabulary is below 65,500, else int32.

    Raises UsageError if the arguments are impossible or the destination holds something else;
    FormatError for broken texts, with file, sample or line, field and value; StorageError if
    writing fails, disk full included; WorkerError if a process ended; ChangedError if the source
    changed. After any of these, and after Ctrl-C or kill -9, nothing half-written has a final
    name, and the same call resumes.
    """
    return prepare_tokenization(**locals()).execute()


def prepare_tokenization(
    source: Dataset, destination: Path, tokenizer: Path, **settings: Any
) -> Tokenization:
    """Check the arguments of `tokenize`, and return the run that they ask for."""
    asked = bind_arguments(tokenize, source, destination, tokenizer, **settings)
    eos, bos, engine = asked.eos, asked.bos, asked.engine
    check_kind("source", source, Dataset, "what penstock.open() returns")
    if isinstance(source.index, JointIndex):
        raise UsageError("source is a mixture: tokenize each of its datasets, and mix these")
    if source.weighting is not None or source.kind is not None:
        raise UsageError("source has weights, or is mixed or packed: tokenize its data instead")
    if not len(source):
        raise UsageError(f"{source.path} holds no samples: there is nothing to tokenize")
    check_choice("special", asked.special, ("text", "tokens"))
    check_choice("broken", asked.broken, ("raise", "mask"))
    check_choice("engine", engine, ("tokenizers", "tiktoken"))
    check_function("progress", asked.progress, "a function of numbers of documents")
    cores = math.ceil(read_machine().usable_cores)
    path = check_destination("destination", destination)
    path = path.removesuffix(".bin").removesuffix(".idx")
    if os.path.isdir(path):
        raise UsageError(f"{path} is a folder: name files in it, as {path}/tokens")
    check_outside(source, path)
    check_unchanged(source)
    name, reading = _choose_field(source, asked.field, asked.broken)
    loaded = TokenizerFile.load(tokenizer)
    if isinstance(eos, bool):
        end = loaded.find_end() if eos else None
    else:
        end = loaded.find_token("eos", eos)
    begin = None if bos is None else loaded.find_token("bos", bos)
    dtype = choose_dtype(loaded.vocabulary)
    encoder: dict[str, Any] = {
        **loaded.describe_for(engine),
        "special": asked.special,
        "masked": asked.broken == "mask",
        "typecode": "H" if dtype.itemsize == 2 else "i",
        "before": [] if begin is None else [begin],
        "after": [] if end is None else [end],
    }
    options = {
        "to": "tokens",
        "field": name,
        "tokenizer": loaded.digest,
        "tokenizers": loaded.version,
        "engine": engine,
        "tiktoken": importlib.metadata.version("tiktoken") if engine == "tiktoken" else None,
        "special": asked.special,
        "dtype": dtype.name,
        "eos": end,
        "bos": begin,
    }
    parser = reading.index.fields[0].parser
    if parser is not None:
        options |= {"key": parser.keys[name], "default": parser.defaults.get(name)}
    return Tokenization(
        source,
        reading,
        name,
        path,
        loaded,
        dtype,
        encoder,
        ConversionManifest(describe_source(source), options),
        check_whole("workers", cores if asked.workers is None else asked.workers, 1, 4096),
        check_flag("verify", asked.verify),
        check_flag("force", asked.force),
        asked.progress,
    )


@dataclass
class Tokenization:
    """One run: its arguments, checked, and the steps from reading to the final names.

    reading:   `source` with the field of text alone.
    path:      prefix of the final names.
    settings:  for `token_worker.make_encoder`.
    place:     writes all tokens, where others encoded them; by default they are encoded here.
    around:    tokens that an empty document has.
    """

    source: Dataset
    reading: Dataset
    field: str
    path: str
    tokenizer: TokenizerFile
    dtype: np.dtype[Any]
    settings: dict[str, Any]
    manifest: ConversionManifest
    workers: int
    verify: bool
    force: bool
    progress: Progress | None
    place: Callable[[TokenWriter], None] | None = None

    def __post_init__(self) -> None:
        self.folder = f"{self.path}.tmp"
        self.around = len(self.settings["before"]) + len(self.settings["after"])

    def execute(self) -> Tokenized:
        """Write what is missing."""
        if os.path.islink(self.folder):
            raise UsageError(f"{self.folder} is a symbolic link: remove it")
        try:
            with lock_folder(self.folder, "tokenizing into"):
                return self._execute_locked()
        finally:
            with contextlib.suppress(OSError):
                os.rmdir(self.folder)  # if nothing is left to go on with

    def _execute_locked(self) -> Tokenized:
        interrupted = self._take_up()
        with storage_errors(self.folder):
            for path in glob(os.path.join(escape(self.folder), f"{PLACED}*")):
                os.unlink(path)
        written = 0
        if not self._is_complete(interrupted):
            if interrupted is None or (self.place is not None and not interrupted.complete):
                self.manifest.save(self.folder)  # what is placed is placed anew
            else:
                self.manifest = interrupted
            written = len(self.source) - self.manifest.samples
            if not self.manifest.complete:
                self._write()
            self._publish()
        self._remove_files()
        verified = self._verify()
        state, idx = self.manifest.shards
        return Tokenized(
            path=self.path,
            documents=state["end"],
            tokens=state["tokens"],
            bytes=state["bytes"] + idx["bytes"],
            dtype=self.dtype.name,
            empty=state["empty"],
            broken=state["broken"],
            verified=verified,
            written=written,
        )

    def _take_up(self) -> ConversionManifest | None:
        """Return the state of an interrupted run, if there is one. One of other data or options is
        an error, or, with force, removed."""
        manifest = ConversionManifest.load(self.folder)
        if manifest is None:
            refuse_foreign_files(self.folder)
            return None
        difference = manifest.describe_difference(self.manifest)
        # A run without broken texts so far may go on with either rule.
        has_broken = manifest.shards and manifest.shards[0]["broken"] > 0
        if difference is None and has_broken and not self.settings["masked"]:
            difference = "with broken='mask', and now 'raise' is asked"
        if difference is None:
            return manifest
        if not self.force:
            raise UsageError(f"{self.folder} holds an interrupted run {difference}: {CHOICES}")
        self._remove_files()
        return None

    def _is_complete(self, interrupted: ConversionManifest | None) -> bool:
        """True if the destination holds these tokens, whole. UsageError if it holds others, unless
        they are to be replaced or an interrupted run was giving the files their names."""
        folder, name = os.path.split(self.path)
        published = ConversionManifest.load(folder, f"{name}{_MANIFEST_SUFFIX}")
        paths = [f"{self.path}{suffix}" for suffix in _SUFFIXES]
        present = [path for path in paths if os.path.lexists(path)]
        if interrupted is not None and interrupted.complete and len(present) < 2:
            return False
        if published is None and present:
            raise UsageError(f"{present[0]} is no output of this: write elsewhere")
        if published is None or self.force:
            return False
        difference = published.describe_difference(self.manifest)
        sizes = [os.path.getsize(path) if path in present else None for path in paths]
        if difference is None and sizes != [shard["bytes"] for shard in published.shards]:
            difference = f"whose files have {sizes[0]} and {sizes[1]} bytes now"
        if difference is not None:
            raise UsageError(f"{self.path} holds tokens {difference}: {CHOICES}")
        self.manifest = published
        return True

    def _write(self) -> None:
        """Encode what is missing, and complete the files in the folder."""
        entry = self.manifest.shards[0] if self.manifest.shards else None
        writer = TokenWriter(self.folder, self.dtype, entry)
        try:
            try:
                (self.place or self._append_all)(writer)
            except StorageError:
                raise
            except BaseException:  # what is done is kept
                with contextlib.suppress(PenstockError):
                    if self.place is None:
                        self._commit(writer)
                raise
            self._commit(writer)
            idx = writer.write_idx()
        finally:
            writer.close()
        self._check(idx)
        self.manifest.shards.append(idx)
        self.manifest.complete = True
        self.manifest.save(self.folder)

    def _append_all(self, writer: TokenWriter) -> None:
        """Encode all documents that are missing, and append their tokens in order."""
        start = int(writer.state["end"])
        self._report(start)
        committed_s = time.monotonic()
        with contextlib.closing(self.encode(start)) as encoded:
            for done in encoded:
                writer.append(done.tokens, done.counts, self.around, done.broken)
                self._report(int(writer.state["end"]))
                if time.monotonic() - committed_s >= limits.encoded_commit_s:
                    self._commit(writer)
                    committed_s = time.monotonic()

    def encode(self, start: int, stop: int | None = None) -> Generator[EncodedTexts, None, None]:
        """Encode the documents [start, stop), by default all from `start` on. No other document is
        read for `stop`, whose fault would be another's."""
        texts = self._read_texts(start) if stop is None else self._read_range(start, stop)
        with contextlib.closing(encode_texts_ahead(self.settings, self.workers, texts)) as encoded:
            try:
                for done in encoded:
                    yield done
                    start += len(done.counts)
            except TextError as error:
                raise self._locate(start + error.number, error.reason) from None

    def _read_texts(self, start: int) -> Iterator[bytes | None]:
        """Yield the texts from document `start` on; None for a broken line."""
        if start == len(self.reading):
            return
        size = choose_batch_size(self.reading)
        with Loader(self.reading, size, shuffle="none", seed=0, rank=0, world_size=1) as loader:
            loader.load_state_dict({**loader.state_dict(), "step": start // size})
            skipped = start % size
            for batch in loader:
                yield from map(_get_bytes, list(batch[self.field])[skipped:])
                skipped = 0

    def _read_range(self, start: int, stop: int) -> Iterator[bytes | None]:
        """Yield the texts of the documents [start, stop); None for a broken line."""
        size = choose_batch_size(self.reading)
        with contextlib.closing(FieldReader(self.reading.index)) as reader:
            for first in range(start, stop, size):
                numbers = np.arange(first, min(first + size, stop), dtype=np.uint64)
                fields = reader.read(self.reading.ids(numbers))
                yield from map(_get_bytes, list(fields[self.field]))

    def _commit(self, writer: TokenWriter) -> None:
        self.manifest.shards = [writer.sync()]
        self.manifest.save(self.folder)

    def _report(self, done: int) -> None:
        if self.progress is not None:
            self.progress(done, len(self.source))

    def _locate(self, document: int, reason: str) -> FormatError:
        """Build the error for a text that cannot be encoded."""
        index = self.reading.index
        sample = int(self.reading.ids([document])[0])
        reason = f"field {self.field!r} {reason}"
        if index.fields[0].parser is not None:
            return build_line_error(index, sample, reason)
        where = f"sample {sample:,} ({index.key(sample)}): {index.where(sample)}"
        return FormatError(f"{where}: {reason}")

    # -- verifying -----------------------------------------------------------------------------

    def _check(self, idx: dict[str, Any]) -> None:
        """Read the files back and compare them with what was written; StorageError, and all starts
        over, if they differ."""
        state = self.manifest.shards[0]
        try:
            for entry in (state, idx) if self.place is None else (idx,):  # by who placed it
                path = os.path.join(self.folder, entry["name"])
                if sum_file(path) != (entry["bytes"], entry["crc32"]):
                    raise mismatch_error(path, "its size or checksum differs")
            opened = open_dataset(os.path.join(self.folder, IDX), index="memory")
            sizes = len(opened), opened.index.total_bytes
            if sizes != (state["end"], state["bytes"]) or state["end"] != len(self.source):
                raise mismatch_error(self.folder, f"it has {sizes[0]:,} documents")
        except StorageError:
            self._remove_files()
            raise

    def _verify(self) -> int:
        """Compare the files with their sums, and some documents with what they are encoded to
        again; the number of these."""
        if not (self.verify or self.settings["engine"] == "tiktoken"):
            return 0
        for suffix, entry in zip(_SUFFIXES, self.manifest.shards, strict=True):
            if sum_file(f"{self.path}{suffix}") != (entry["bytes"], entry["crc32"]):
                what = f"{self.path}{suffix} is damaged, by size and checksum"
                raise FormatError(f"{what}: restore it, or write it again by force=True (--force)")
        count = min(len(self.source), limits.encoded_checked_documents)
        chosen = Order(len(self.source), 0).samples(np.arange(count, dtype=np.uint64)).tolist()
        written = open_dataset(f"{self.path}.idx", index="memory")
        settings = {**self.settings, **self.tokenizer.describe_for("tokenizers")}
        settings["one_by_one"] = True
        texts = (_get_bytes(self.reading[document][self.field]) for document in chosen)
        encoded = encode_texts_ahead(settings, self.workers, texts)
        checked = 0
        with contextlib.closing(encoded):
            for done in encoded:
                ends = np.cumsum(done.counts)
                tokens = np.frombuffer(done.tokens, self.dtype)
                for expected in np.split(tokens, ends[:-1]):
                    if not np.array_equal(written[chosen[checked]]["tokens"], expected):
                        document = chosen[checked]
                        source = self.reading.index.where(document)
                        what = f"{self.path}.bin: document {document:,} is not what tokenizers"
                        of = f"{self.tokenizer.version} makes of {source}"
                        remedy = "write it again without engine=, with force=True (--force)"
                        raise FormatError(f"{what} {of}: {remedy}")
                    checked += 1
        assert checked == count
        return count

    # -- names ---------------------------------------------------------------------------------

    def _publish(self) -> None:
        """Give the files their names, .idx last: without it there are no tokens to open."""
        with storage_errors(self.path):
            if os.path.exists(os.path.join(self.folder, BIN)):
                with contextlib.suppress(FileNotFoundError):
                    os.unlink(f"{self.path}.idx")
                os.rename(os.path.join(self.folder, BIN), f"{self.path}.bin")
            if os.path.getsize(f"{self.path}.bin") != self.manifest.shards[0]["bytes"]:
                raise mismatch_error(f"{self.path}.bin", "its size differs")
            folder, name = os.path.split(self.path)
            self.manifest.save(folder, f"{name}{_MANIFEST_SUFFIX}")
            if os.path.exists(os.path.join(self.folder, IDX)):
                os.rename(os.path.join(self.folder, IDX), f"{self.path}.idx")
        sync_folder(folder)

    def _remove_files(self) -> None:
        """Remove what an interrupted run would go on with."""
        with storage_errors(self.folder):
            for name in (BIN, IDX, LENGTHS, MANIFEST):  # the manifest last
                for present in (name, f".{name}.part"):
                    with contextlib.suppress(FileNotFoundError):
                        os.unlink(os.path.join(self.folder, present))


def _get_bytes(text: Any) -> bytes | None:
    """Return a text in UTF-8; None for a broken line."""
    if text is None:
        return None
    return text.encode() if isinstance(text, str) else bytes(text)


def _choose_field(source: Dataset, name: str | None, broken: str) -> tuple[str, Dataset]:
    """Choose the field of text. Returns its name, and the dataset with it alone."""
    index = source.index
    if index.format == "jsonl" and index.fields[0].parser is None:
        name = name or "text"
        index = FORMATS["jsonl"].attach(
            index, fields={name: name}, types={name: "str"}, broken=broken
        )
    fields = {
        made.name: field
        for field in index.fields
        if field.name != SUMS_FIELD
        for made in field.made
        if (made.dtype.kind == "U" if field.parser is not None else is_raw(field))
    }
    known = ", ".join(made.name for field in index.fields for made in field.made)
    if name is None:
        named = [usual for usual in fields if usual in ("text", "txt")]
        candidates = sorted(named)[:1] or list(fields)
        if len(candidates) != 1:
            raise UsageError(f"field is not given: choose one of {known} by field= (--field)")
        name = candidates[0]
    if name not in fields:
        raise UsageError(f"field is {name!r}: give a field of text of {known}")
    chosen = copy.copy(source)
    field = fields[name]
    if field.parser is not None:
        parser = replace(field.parser, masked=field.parser.masked or broken == "mask")
        index = replace(index, fields=(replace(field, parser=parser), *index.fields[1:]))
        chosen.index = rename_fields(index, {other: None for other in parser.keys if other != name})
    elif any(other.name == SUMS_FIELD for other in index.fields):
        chosen.index = index
    else:
        others = {other.name: None for other in index.fields if other.name != name}
        chosen.index = rename_fields(index, others)
    return name, chosen
