"""Sections of docs/performance.md: the title, the words and the remarks beside each record."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal, NamedTuple

from benchmarks.record import number


class Target(NamedTuple):
    """The value that a row has to reach, and from which side.

    `within` targets lie between `low` and `high`, whatever the limit in the record says; `either`
    targets count as met by something that the row's remark names.
    """

    side: Literal["at least", "at most", "within", "either"]
    limit: float = 1.0
    low: float = 0.0
    high: float = 0.0

    def text(self) -> str:
        """The target as the table prints it."""
        if self.side == "within":
            digits = 3 if self.high - 1 > 1e-3 else 10
            return f"{self.low:.{digits}g}..{self.high:.{digits}g}"
        sign = "≤" if self.side == "at most" else "≥"
        return f"{sign} {number(self.limit)}" + (", or see note" if self.side == "either" else "")

    def holds(self, value: float) -> bool:
        """True if the value reaches the target; an `either` target may hold otherwise, too."""
        if self.side == "within":
            return self.low <= value <= self.high
        return value <= self.limit if self.side == "at most" else value >= self.limit


AT_MOST = Target("at most")
CLOSE = Target("within", low=0.97, high=1.03)


@dataclass(frozen=True, slots=True)
class Section:
    """One record's part of the page.

    `targets` maps patterns of row names to the side of their target, for rows whose note does not
    say it; a remark is added to the notes of the rows whose name its pattern finds.
    """

    record: str
    title: str
    command: str
    words: str
    targets: Mapping[str, Target] = field(default_factory=dict)
    remarks: tuple[tuple[str, str], ...] = ()


SECTIONS = (
    Section(
        "bench",
        "Records, files and photographs on one host",
        "make bench",
        """about ten minutes; `make bench ARGS=--quick` takes two. Floors are C++ programs without a
loader; other loaders run at the best of their settings, penstock with its defaults.""",
        {"order / (positions|samples against copy)|dealing": AT_MOST},
    ),
    Section(
        "formats",
        "Containers, and how fast they are indexed",
        "make bench-formats",
        """containers against fixed records of the same sizes; indexing beside reading the file.""",
    ),
    Section(
        "lmdb",
        "LMDB on slow shared storage",
        "make bench-lmdb",
        """(root) an emulated shared file system, half a millisecond away: the `lmdb` package at its
best setting, Caffe's distributed pass, and each of LMDBIO's ideas switched off in turn.""",
        remarks=((r"pass, 16 nodes", "the bytes allow at most 15.8"),),
    ),
    Section(
        "objects",
        "Object stores",
        "make bench-objects",
        """objects of 100 kB, 20 ms away. LitData's chunks and WebDataset stream whole shards and
shuffle nearby; penstock draws an exact random order.""",
    ),
    Section(
        "cluster",
        "The cache of several hosts",
        "make bench-cluster",
        """(root) four emulated hosts with 100 MB/s of storage between them; for first epochs
beside the DataLoader, which draws all that such storage gives, two hosts and storage that is far
away instead. *The same keys*: a bare loop that puts the same short samples together and apart.""",
        {"dealing|^from peers": AT_MOST},
        (
            (
                r"^(peers|mpi)1m /",
                "eight messages are asked for at once, as a loader does; one at a time is the row "
                "`-single`",
            ),
            (r"^stall", "relaxed: the median of the epochs, not the mean"),
        ),
    ),
    Section(
        "share",
        "Several jobs on one host",
        "make bench-share",
        """(root) real jobs on two cores and 120 MB/s of emulated storage, divided evenly, by
`penstock broker`, by the best shares that were found by running them (*oracle*), or not at all
(*unmanaged*).""",
        {"PerSched": CLOSE, r"^broker, \d+ jobs$|^Tenant": AT_MOST},
    ),
    Section(
        "checkpoint",
        "Checkpoints",
        "make bench-checkpoint",
        """the cost of a checkpoint of 1 GB to the training that it is of.""",
        {"^blocked by|^step with|^bytes that": AT_MOST},
    ),
    Section(
        "asynchrony",
        "A save beside a loop that wants the same rate",
        "python -m benchmarks.asynchrony",
        """`Budget.process_bytes_per_s` bounds reads and saves together; a loop wants 0.25 to 2
times of it. How long `save` blocked; when the save was durable, against its bytes at the whole
rate; the loop meanwhile, against what it reads without a save, at most what the floor of
checkpoints (0.375) leaves.""",
        {"save durable": AT_MOST},
    ),
    Section(
        "survey",
        "Checking that files are unchanged",
        "python -m benchmarks.survey FOLDER",
        """what opening and each epoch of a cached data set cost before anything is read, beside
asking the file system for each file once, and an epoch that reads them.""",
    ),
    Section(
        "selecting",
        "A part of the samples",
        "python -m benchmarks.selecting",
        """a random half of 10^9 samples: lookups in batches of 4,096 random ones, in time of one
processor, against `np.take` of an array of the selected numbers; and a condition over two columns
against numpy.""",
    ),
    Section(
        "packing",
        "Rows of documents",
        "make bench-packing",
        """lengths of pages of the web (lognormal, median 500, sigma 1.1) in rows by
`penstock.pack`: how full, how long it takes, and how soon the first batch comes; beside packers of
other libraries.""",
        {"^(counting|first|max|dealing)": AT_MOST},
    ),
    Section(
        "arrays",
        "Windows and patches of arrays",
        "make bench-arrays",
        """two threads. Weather: two fields in Zarr, a day a chunk (zstd), windows of 24 hours and
the 6 behind them on 64 x 64 places. Volumes of 192^3 in HDF5 (gzip), patches of 96^3. The
other side reads the same samples in the same order (MONAI in blocks: a volume after the other), at
the faster of 0 and 2 workers, which run before the clock starts; xarray opens without dask, which
costs more. "25 % decoded" is the budget for decoded chunks; beside decodes stands the least that
any plan could do for that order and memory, without what is read ahead. Statistics
are held against reading and decoding the same batches alone.""",
        {"(windows: open|memory)$|plan a window|^decodes of a chunk": AT_MOST},
    ),
    Section(
        "clips",
        "Clips of films",
        "make bench-clips",
        """clips of 16 frames of films in H.264 (keyframes every 8, 30, 250) and AV1 (every 2), in
an exact shuffle, two threads: against the best of torchcodec, PyAV, decord and OpenCV on the same
clips in the same order, each in a process of its own, and against a loop in C over packets in
memory, with the same FFmpeg. Our frames are compared with a decode from each film's start, and a
quarter of the others' with ours. "Nothing kept": every clip is decoded, as rivals do.""",
        {"^index|bytes read a clip|memory / budget": AT_MOST},
    ),
    Section(
        "lerobot",
        "Data of robots",
        "make bench-clips",
        """a LeRobot v3 data set with three cameras (256 x 256, AV1, a keyframe every second frame),
`delta_timestamps`, an exact shuffle; against LeRobot's own data set under torch's DataLoader, with
torchcodec and the best number of workers.""",
    ),
    Section(
        "audio",
        "Sound",
        "make bench-clips",
        """segments of 2 s of files of 60 s, in an exact shuffle, two threads; against a loop over
`soundfile` that opens, seeks and reads, or keeps its files open.""",
    ),
    Section(
        "engines",
        "Work that many programs share",
        "make bench-engines",
        """two started workers of each engine on the same tasks: an index of sparse tars
and tokens by tiktoken; the ratio is the local pool's time to the engine's. One sparse file of 10 GB
(JSON lines: 4) against eight of as many bytes: plan, work and commit on a pool of eight workers.
Tokens against datatrove's local executor and `litdata.optimize`: all with two processes that the
clock sees start, rivals with threads within `tokenizers`, as they are faster; the tokens are
compared. Shards
are tars of two samples.""",
    ),
    Section(
        "step_loader",
        "Batches for trainers that deal them",
        "python -m benchmarks.step_loader",
        """`StepLoader` beside `DataLoader`, of the same records in the same order, and how long
the first batch takes after others that are skipped.""",
        {"^skipping": AT_MOST},
    ),
    Section(
        "wheel",
        "From the wheel",
        "make figures WHEEL=dist/WHEEL PHOTOS=FOLDER",
        """penstock of the wheel that users install beside the build of this tree, both alive and in
turns, over the kinds of data that the README names, crops of photographs, texts and an index of
lines.""",
    ),
    Section(
        "sizes",
        "What a loader costs as sizes grow",
        "python -m benchmarks.sizes",
        """samples, files and ranks from one to many: time to open and to the first batch, and
memory, in a new process; rates by the size of a batch, by threads that decode, and by reads in
flight. The note has all points, and why a curve bends. Larger jobs: [scale.md](scale.md).""",
    ),
    Section(
        "skewed",
        "Samples of which some take long to decode",
        "python -m benchmarks.skewed",
        """beside steps that two cores can just keep supplied: exact order, with steps decoded
further ahead once the threads run out of them, against torch's workers and against a pool whose
fast samples overtake the slow ones, as MinatoLoader's do.""",
    ),
    Section(
        "foreign",
        "Torch datasets",
        "make bench-foreign",
        """our `DataLoader` and torch's on the same torch datasets, in turns, with workers that are
warm. What a loader cannot change is most of it: the notes name the bare loop that indexes and
collates. `cpu us` is of the calling process and the workers together.""",
    ),
    Section(
        "text",
        "JSON lines",
        "make bench-text",
        """indexing beside a memchr pass over the page cache; the text of documents as long as those
of the web, in an exact shuffle. Rates are of processor time, of all threads. Hugging Face's
`datasets` has parsed the lines before; penstock parses them at each read.""",
    ),
    Section(
        "columns",
        "Token lists",
        "make bench-text",
        """token lists of a folder of Hugging Face `datasets`, whose lengths are those of the web,
beside fixed records of as many bytes, both in an exact shuffle, by turns. Rates are of processor
time.""",
    ),
    Section(
        "tokenizing",
        "Tokens of texts",
        "make bench-text",
        """`penstock tokenize`, from JSON lines to synced files that were read back, beside
`encode_batch_fast` of `tokenizers` on the same texts in memory.""",
    ),
    Section(
        "annotations",
        "Annotations, the hub, and lengths",
        "python -m benchmarks.annotations",
        """indexes of COCO and Pascal VOC beside a parse by Python's library that checks and keeps
nothing; images with their boxes, records over `hf://` from a loopback server, and lengths by a
function, each beside a bare loop in two threads. Rates are of processor time; no row has a
target.""",
    ),
    Section(
        "shuffling",
        "Arrays in random order",
        "make bench-shuffling",
        """`penstock.order.shuffle` of 2^25 numbers of 8 bytes on two threads; rows `processors`
count the processor time of all threads. The record names the function as it was called then.""",
    ),
    Section(
        "gpu",
        "Arrays in random order on a GPU",
        "make bench-gpu",
        """`penstock.torch.gpu` against a copy of the same bytes in the memory of a CUDA device, and
batches of `device=` against a copy from pinned memory and against steps that wait for none. Rows of
few elements and of batches count the host's time, others the device's. Values are medians; the
record has every repetition.""",
    ),
    Section(
        "bench-bench",
        "The benchmark itself",
        "make bench-bench",
        """the cost of `penstock bench`: utilisation with reading switched off, small files a
second, the time to the first step, the loaders on the same files, generation.""",
        {
            "^error of a step|^from the command": AT_MOST,
            "^generate": Target("either"),
        },
        (
            (
                "^generate",
                "relaxed: met if the rate reaches 690 MB/s or the ratio 0.8; "
                "a ratio below 0.8 is met by the rate alone",
            ),
        ),
    ),
    Section(
        "schedules",
        "Schedules of transfers",
        "make bench-schedules",
        """PerSched against its authors' figures, beside four online rules, on their jobs and on 100
random mixes. The rows are computed, not timed, so a busy machine does not change them.""",
        {
            "PerSched": CLOSE,
            "^stagger|^rotation": AT_MOST,
        },
    ),
    Section(
        "sim",
        "The simulator",
        "make bench-sim",
        """its parity model against published rows, penstock's policy in the corrected model against
the bound, over the run and in the first epoch, and against NoPFS (within one step of the run if
both read across the ends of epochs; `loop` rows: penstock as its loader is), and the time and
memory of 1,024 nodes. Run times are simulated and the same on any machine, but for the last two
rows.""",
        {
            "^parity": Target("within", low=1 - 1e-9, high=1 + 1e-9),
            "^bound|^first epoch|^nopfs|^1,024": AT_MOST,
        },
        ((r"^(bound|first epoch) (cosmoflow|s4)$", "no target: the data exceed the caches"),),
    ),
    Section(
        "scale",
        "On the way to 10^12 samples",
        "make bench-scale",
        """costs of each structure at 10^12 samples, 10^6 shards, 10^5 ranks or 12,500 hosts, and
the size at which it passes its limit: measured, simulated or extrapolated by the cost of a unit, as
each note says. Times are of one processor, the least of several; memory, messages and descriptors
are counts.""",
    ),
    Section(
        "images",
        "Photographs: decoded, cropped and resized",
        "make bench-images ARGS='--photos FOLDER'",
        """RandomResizedCrop(224) with a flip (R), the same files and crops for all, from memory, by
processor time; "q90" are the photographs re-encoded at quality 90, 4:2:0. The floor is a C++
program over libjpeg-turbo.""",
        {"whole pipeline|index / bytes of the files": AT_MOST},
    ),
    Section(
        "image-folder",
        "Photographs: a whole epoch of ImageFolder",
        "make bench-images ARGS='--photos FOLDER' WHEEL=dist/WHEEL",
        """640 photographs in class folders, RandomResizedCrop(224), a flip, normalised float32,
batches of 64, two workers or threads: torch's DataLoader over torchvision's ImageFolder, and the
same script with penstock. Pairs take turns, each contender in a process of its own; "CPU" is the
processor time of all its processes. "four lines" are those of docs/images/torchvision.md.
Differences from torchvision are those of its deterministic transforms, in levels.""",
        {"torchvision.*mean": AT_MOST},
    ),
    Section(
        "sim-live",
        "The simulator against live hosts",
        "make bench-sim",
        """(root) emulated hosts that train, against a simulation that was made beforehand.""",
        {"": Target("within", low=1 / 1.1, high=1.1)},
        (("", "relaxed: the fastest of several turns counts"),),
    ),
)


class Reason(NamedTuple):
    """One of the README's reasons. `{}` in the words is the ratio of a row of a record; `plain` is
    said in their place while the record is of another tree, or was made beside other work."""

    words: str
    plain: str = ""
    record: str = ""
    row: str = ""


REASONS = (
    Reason(
        "**Your files stay as they are.** [27 formats](docs/formats.md), robots' data and "
        "[films](docs/clips.md) among them, are read in place, on disks and in object stores."
    ),
    Reason(
        "**Small reads are cheap.** Records of 4 KiB: {} times the samples of torch's DataLoader "
        "at its best ([figures](docs/performance.md)).",
        "**Small reads are cheap.** A batch is one plan and a few reads, not a call a sample "
        "([figures](docs/performance.md)).",
        "bench",
        "records4k / torch, best",
    ),
    Reason(
        "**Exact to the sample.** Each sample comes once an epoch; seven values, 200 bytes, resume "
        "it on [any number of ranks](docs/how/resume.md). The order takes no memory, however many "
        "samples there are."
    ),
    Reason(
        "**Slow storage is asked once.** An LMDB half a millisecond away gives {} times the "
        "samples that eight readers get by themselves; [several hosts](docs/cluster.md) read each "
        "byte once.",
        "**Slow storage is asked once.** Reads are merged and run ahead; [several "
        "hosts](docs/cluster.md) read each byte once.",
        "lmdb",
        "node / lmdb, best",
    ),
    Reason(
        "**It says what to change.** `loader.explain()` tells why the GPU waited, "
        "`penstock doctor` what the machine could do, "
        "[and more](docs/how/why-the-gpu-waits.md), in one install of 2 MB."
    ),
)
