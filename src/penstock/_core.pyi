"""The data path of penstock in C++: arrays in, arrays out."""

from collections.abc import Callable, Sequence
from typing import Annotated, Any, overload

import numpy
import numpy.typing
from numpy.typing import NDArray
from typing_extensions import Buffer

def get_sanitizers() -> str | None:
    """Names of the sanitizers that the module was built with, or None."""

class Permutation:
    """
    A permutation of [0, count), drawn from a 64-bit state.

    cipher: use the cipher for small counts too, in place of a table.
    level:  instruction set, see `list_order_levels`; the fastest if empty.
    """

    def __init__(self, count: int, state: int, cipher: bool = False, level: str = "") -> None: ...
    def forward(
        self,
        positions: Annotated[
            NDArray[numpy.uint64], dict(shape=(None,), order="C", device="cpu", writable=False)
        ],
        samples: Annotated[NDArray[numpy.uint64], dict(shape=(None,), order="C", device="cpu")],
    ) -> int:
        """
        Write the sample at each position to `samples`.

        Returns the index of the first position outside [0, count), or the size if there is none.
        """

    def inverse(
        self,
        samples: Annotated[
            NDArray[numpy.uint64], dict(shape=(None,), order="C", device="cpu", writable=False)
        ],
        positions: Annotated[NDArray[numpy.uint64], dict(shape=(None,), order="C", device="cpu")],
    ) -> int:
        """
        Write the position of each sample to `positions`.

        Returns the index of the first sample outside [0, count), or the size if there is none.
        """

    def run(
        self,
        start: int,
        samples: Annotated[NDArray[numpy.uint64], dict(shape=(None,), order="C", device="cpu")],
    ) -> int:
        """
        Write the samples at positions start, start + 1, ... to `samples`; returns as `forward` does.
        """

class Groups:
    """
    A permutation of [0, count) in groups of `span`, each with a key of its own.
    """

    def __init__(self, count: int, span: int, state: int, level: str = "") -> None: ...
    def forward(
        self,
        positions: Annotated[
            NDArray[numpy.uint64], dict(shape=(None,), order="C", device="cpu", writable=False)
        ],
        samples: Annotated[NDArray[numpy.uint64], dict(shape=(None,), order="C", device="cpu")],
    ) -> int:
        """
        Write the sample at each position to `samples`.

        Returns the index of the first position outside [0, count), or the size if there is none.
        """

    def inverse(
        self,
        samples: Annotated[
            NDArray[numpy.uint64], dict(shape=(None,), order="C", device="cpu", writable=False)
        ],
        positions: Annotated[NDArray[numpy.uint64], dict(shape=(None,), order="C", device="cpu")],
    ) -> int:
        """
        Write the position of each sample to `positions`.

        Returns the index of the first sample outside [0, count), or the size if there is none.
        """

def list_order_levels() -> list[str]:
    """
    Names of the instruction sets that this processor runs, the fastest last.
    """

class Bitmap:
    """
    A set of samples of [0, count) as bits, with their counts.

    portable:  use no instructions that only some processors have.
    """

    def __init__(
        self,
        count: int,
        words: Annotated[
            NDArray[numpy.uint64], dict(shape=(None,), order="C", device="cpu", writable=False)
        ],
        counts: Annotated[
            NDArray[numpy.uint64], dict(shape=(None,), order="C", device="cpu", writable=False)
        ],
        bases: Annotated[
            NDArray[numpy.uint64], dict(shape=(None,), order="C", device="cpu", writable=False)
        ],
        hints: Annotated[
            NDArray[numpy.uint32], dict(shape=(None,), order="C", device="cpu", writable=False)
        ],
        portable: bool = False,
    ) -> None: ...
    @property
    def ones(self) -> int:
        """Samples of the set."""

    def forward(
        self,
        positions: Annotated[
            NDArray[numpy.uint64], dict(shape=(None,), order="C", device="cpu", writable=False)
        ],
        samples: Annotated[NDArray[numpy.uint64], dict(shape=(None,), order="C", device="cpu")],
    ) -> int:
        """
        Write the sample that each number within the set has to `samples`.

        Returns the index of the first number outside [0, ones), or the size.
        """

    def inverse(
        self,
        samples: Annotated[
            NDArray[numpy.uint64], dict(shape=(None,), order="C", device="cpu", writable=False)
        ],
        positions: Annotated[NDArray[numpy.uint64], dict(shape=(None,), order="C", device="cpu")],
    ) -> int:
        """
        Write the number within the set of each sample to `positions`.

        Returns the index of the first sample that is not in the set, or the size.
        """

def count_bits(
    words: Annotated[
        NDArray[numpy.uint64], dict(shape=(None,), order="C", device="cpu", writable=False)
    ],
) -> tuple[
    Annotated[NDArray[numpy.uint64], dict(shape=(None,))],
    Annotated[NDArray[numpy.uint64], dict(shape=(None,))],
    Annotated[NDArray[numpy.uint32], dict(shape=(None,))],
]:
    """Count the bits: columns `counts`, `bases` and `hints` of a `Bitmap`."""

def set_bits(
    words: Annotated[NDArray[numpy.uint64], dict(shape=(None,), order="C", device="cpu")],
    count: int,
    samples: Annotated[
        NDArray[numpy.uint64], dict(shape=(None,), order="C", device="cpu", writable=False)
    ],
) -> int:
    """
    Set the bits of samples.

    Returns the index of the first sample outside [0, count) or set before, or the size.
    """

class WeightTable:
    """Weights of samples, with their sums before each block of 32."""

    def __init__(
        self,
        weights: Annotated[
            NDArray[numpy.uint32], dict(shape=(None,), order="C", device="cpu", writable=False)
        ],
        bases: Annotated[
            NDArray[numpy.uint64], dict(shape=(None,), order="C", device="cpu", writable=False)
        ],
    ) -> None: ...
    @property
    def total(self) -> int:
        """Sum of all weights."""

    def pick(
        self,
        numbers: Annotated[
            NDArray[numpy.uint64], dict(shape=(None,), order="C", device="cpu", writable=False)
        ],
        samples: Annotated[NDArray[numpy.uint64], dict(shape=(None,), order="C", device="cpu")],
        picks: int,
        offset: int,
    ) -> int:
        """
        Write the sample of each pick: the one that the point (number * total + offset) //
        picks falls on.

        Returns the index of the first number outside [0, picks), or the size.
        """

def shuffle_rows(
    permutation: Permutation,
    array: Annotated[
        NDArray[numpy.uint8], dict(shape=(None,), order="C", device="cpu", writable=False)
    ],
    out: Annotated[NDArray[numpy.uint8], dict(shape=(None,), order="C", device="cpu")],
    row_bytes: int,
    threads: int,
) -> None:
    """
    Copy row permutation(i) of `array` to row i of `out`, which may be the same memory.
    """

def deal_rows(
    costs: Annotated[
        NDArray[numpy.uint16], dict(shape=(None,), order="C", device="cpu", writable=False)
    ],
    turns: Annotated[
        NDArray[numpy.int64], dict(shape=(None,), order="C", device="cpu", writable=False)
    ],
    rows: int,
    ranks: int,
    in_stripes: bool,
    dealt: Annotated[NDArray[numpy.int64], dict(shape=(None,), order="C", device="cpu")],
) -> None:
    """
    Deal the rows of steps to ranks by cost.

    in_stripes: every rank gets one of each `ranks` neighbours in cost.
    Writes, step by step, the first row of each rank, the second of each, ... to `dealt`.
    """

class Engine:
    """
    Threads that read extents of files into buffers.

    `backend` is 0 for pread, 1 for io_uring, 2 for mmap.
    """

    def __init__(
        self,
        root: bytes,
        names: Annotated[
            NDArray[numpy.uint8], dict(shape=(None,), order="C", device="cpu", writable=False)
        ],
        ends: Annotated[
            NDArray[numpy.int64], dict(shape=(None,), order="C", device="cpu", writable=False)
        ],
        size: Annotated[
            NDArray[numpy.int64], dict(shape=(None,), order="C", device="cpu", writable=False)
        ],
        mtime_ns: Annotated[
            NDArray[numpy.int64], dict(shape=(None,), order="C", device="cpu", writable=False)
        ],
        keep_max: int,
        backend: int,
        direct: bool,
        threads: int,
    ) -> None: ...
    def submit(
        self,
        file: Annotated[
            NDArray[numpy.uint32], dict(shape=(None,), order="C", device="cpu", writable=False)
        ],
        offset: Annotated[
            NDArray[numpy.int64], dict(shape=(None,), order="C", device="cpu", writable=False)
        ],
        length: Annotated[
            NDArray[numpy.int64], dict(shape=(None,), order="C", device="cpu", writable=False)
        ],
        buffer: Annotated[
            NDArray[numpy.uint32], dict(shape=(None,), order="C", device="cpu", writable=False)
        ],
        target: Annotated[
            NDArray[numpy.int64], dict(shape=(None,), order="C", device="cpu", writable=False)
        ],
        runs: Annotated[
            NDArray[numpy.int64], dict(shape=(None,), order="C", device="cpu", writable=False)
        ],
        buffers: Sequence[
            Annotated[NDArray[numpy.uint8], dict(shape=(None,), order="C", device="cpu")]
        ],
        patience_ns: int,
        tally: Annotated[NDArray[numpy.int64], dict(shape=(None,), order="C", device="cpu")],
    ) -> int:
        """
        Queue requests and return their ticket; see `penstock.extent.Requests`. Their bytes are
        added to `tally[0]`.

        ValueError names the first column and row that is invalid.
        """

    def poll(self, timeout_ns: int) -> list[tuple[int, list[tuple[int, int, int]]]]:
        """
        Wait for completions: (ticket, failures); a failure is (extent, errno, bytes read).

        Returns at once if nothing is outstanding, or if the engine is closed.
        """

    def close(self) -> None:
        """Drop queued requests, wait for those under way, and join the threads."""

    def set_threads(self, threads: int) -> None:
        """Change the number of threads; takes effect within one chunk."""

    def throttle(self, bytes_per_s: float) -> None:
        """Limit the rate of reading; 0 removes the limit."""

    def set_backend(self, backend: int, direct: bool) -> None:
        """Change how chunks are read that no thread has begun."""

    def counters(self) -> tuple[int, ...]:
        """
        Totals: (bytes, runs, extents, tickets, opens, open_ns, work_ns, busy_ns).
        """

    @property
    def is_closed(self) -> bool: ...
    @property
    def is_inherited(self) -> bool:
        """
        True in a forked child, where the engine has no threads and must not be used.
        """

class Arena:
    """Recycled, touched, page-aligned memory for batches."""

    def __init__(self, bytes_max: int) -> None: ...
    def take(self, bytes: int) -> Annotated[NDArray[numpy.uint8], dict(shape=(None,))]:
        """
        Lend an array that returns its memory when the last view of it is gone.
        """

    def prepare(self, bytes: int, blocks: int) -> int:
        """
        Touch memory for so many blocks, as the bound has room; return for how many.
        """

    def hand_over(
        self, block: Annotated[NDArray[numpy.uint8], dict(shape=(None,), order="C", device="cpu")]
    ) -> None:
        """Count an array that was lent as the user's from now on."""

    def has_room(self, blocks: Sequence[int], reserved_bytes: int) -> bool:
        """
        True if blocks of these sizes, and so many bytes, fit the bound besides `ahead_bytes`.
        """

    @property
    def bytes_max(self) -> int:
        """
        Bound of what is kept, lent or not; what is kept above it is freed at once.
        """

    @bytes_max.setter
    def bytes_max(self, arg: int, /) -> None: ...
    @property
    def ahead_bytes(self) -> int:
        """Bytes of memory in arrays that are alive and not the user's."""

    @property
    def kept_bytes(self) -> int:
        """Bytes of memory that waits to be lent again."""

    @property
    def lent_bytes(self) -> int:
        """Bytes of memory in arrays that are alive."""

def move_blocks(
    file: int,
    writes: bool,
    offsets: Sequence[int],
    blocks: Sequence[Annotated[NDArray[numpy.uint8], dict(shape=(None,), order="C", device="cpu")]],
) -> list[int]:
    """
    Read or write blocks of an open file, many at a time. Returns for each the bytes that moved,
    or -errno.
    """

def probe_io_uring() -> int:
    """errno of creating an io_uring; 0 if the kernel grants one."""

def get_file_system(path: bytes) -> str:
    """Name of the file system of a path, or its number in hexadecimal."""

def probe_direct_io(path: bytes) -> int:
    """
    errno of reading a file by O_DIRECT; 0 if that works or the file cannot be opened.
    """

def measure_residency(path: bytes) -> float:
    """
    Part of a file that is in the page cache, 0 to 1; -1 if the kernel does not tell.
    """

def scan_folder(
    root: bytes, extensions: Sequence[bytes], threads: int, tick: Callable[[int], object] | None
) -> tuple[
    Annotated[NDArray[numpy.uint8], dict(shape=(None,))],
    Annotated[NDArray[numpy.int64], dict(shape=(None,))],
    Annotated[NDArray[numpy.int64], dict(shape=(None,))],
    Annotated[NDArray[numpy.int64], dict(shape=(None,))],
    Annotated[NDArray[numpy.int32], dict(shape=(None,))],
    Annotated[NDArray[numpy.uint8], dict(shape=(None,))],
    Annotated[NDArray[numpy.int64], dict(shape=(None,))],
    Annotated[NDArray[numpy.int64], dict(shape=(None,))],
    list[tuple[int, bytes]],
]:
    """
    List the files below a folder.

    Returns (names, ends, size, mtime_ns, folder, folder_names, folder_ends, folder_mtime_ns,
    failures); a failure is (errno, path). `tick` is called with the number of files so far.
    """

def stat_files(
    root: bytes,
    names: Annotated[
        NDArray[numpy.uint8], dict(shape=(None,), order="C", device="cpu", writable=False)
    ],
    ends: Annotated[
        NDArray[numpy.int64], dict(shape=(None,), order="C", device="cpu", writable=False)
    ],
    threads: int,
) -> tuple[
    Annotated[NDArray[numpy.int64], dict(shape=(None,))],
    Annotated[NDArray[numpy.int64], dict(shape=(None,))],
    Annotated[NDArray[numpy.int32], dict(shape=(None,))],
]:
    """Read sizes and times of named files: (size, mtime_ns, errno)."""

def count_jpeg_kernels() -> int:
    """Return the number of kernels that this machine can run."""

def parse_jpeg_header(
    file: Annotated[
        NDArray[numpy.uint8], dict(shape=(None,), order="C", device="cpu", writable=False)
    ],
    pixels_max: int,
) -> tuple[tuple[int, int, int, int, int], tuple[int, int, int, str, int]]:
    """
    Parse the segments of a JPEG up to its scan.

    Returns (width, height, sampling, restart interval, bytes of the header) and a problem:
    (status, byte, row of blocks or -1, message, stray bytes). Status is 0 if all is well,
    1 for what is not baseline, 2 for damage, 3 for too many pixels, 4 for positions that do
    not fit. Sampling is 0 for grey, 1 for 4:4:4, 2 for 4:2:2, 3 for 4:2:0.
    """

def decode_jpeg(
    file: Annotated[
        NDArray[numpy.uint8], dict(shape=(None,), order="C", device="cpu", writable=False)
    ],
    left: int,
    top: int,
    out: Annotated[NDArray[numpy.uint8], dict(shape=(None, None, None), order="C", device="cpu")],
    kernel: int,
    positions: Annotated[
        NDArray[numpy.uint8], dict(shape=(None,), order="C", device="cpu", writable=False)
    ],
    stretch_only: bool = False,
    shrink: int = 1,
) -> tuple[Annotated[NDArray[numpy.uint8], dict(shape=(None,))], tuple[int, int, int, str, int]]:
    """
    Decode the region of a JPEG that has the shape of `out`: (height, width, 3).

    `shrink` divides the sides of the picture in which it lies: 1, 2, 4 or 8.
    With positions, decoding begins at the region's first row of blocks; `stretch_only` has
    it read no byte of the scan that it does not need. Returns the positions that it found on
    the way if it had none, and a problem as `parse_jpeg_header`.
    """

def find_jpeg_positions(
    file: Annotated[
        NDArray[numpy.uint8], dict(shape=(None,), order="C", device="cpu", writable=False)
    ],
    kernel: int,
    known: Annotated[
        NDArray[numpy.uint8], dict(shape=(None,), order="C", device="cpu", writable=False)
    ],
) -> tuple[Annotated[NDArray[numpy.uint8], dict(shape=(None,))], tuple[int, int, int, str, int]]:
    """
    Find where each row of blocks of a JPEG begins: 12 bytes each.

    known: positions of the first rows, or none. Returns all of them, and a problem as
    `parse_jpeg_header`.
    """

class Slab:
    """
    Slots in memory that the processes of a host share; each is filled once.
    """

    @staticmethod
    def create(slots: int, data_bytes: int, alignment: int, inside: bool, identity: bytes) -> Slab:
        """
        Create a slab of empty slots; `inside`: the data is part of the shared memory.
        """

    @staticmethod
    def attach(pid: int, fd: int, identity: bytes) -> Slab:
        """Attach the slab that a living process has open as descriptor `fd`."""

    def close(self) -> None:
        """
        Give back all claims, unless this process inherited them; may be called again.
        """

    @property
    def is_closed(self) -> bool: ...
    @property
    def is_inherited(self) -> bool:
        """True in a forked child, which has no claims and cannot claim."""

    @property
    def fd(self) -> int: ...
    @property
    def slots(self) -> int: ...
    @property
    def is_data_inside(self) -> bool: ...
    @property
    def data(self) -> Annotated[NDArray[numpy.uint8], dict(shape=(None,))]: ...
    def counters(self) -> tuple[int, ...]:
        """
        (ready slots, allocated bytes, published bytes, claims taken over, slots dropped).
        """

    def claim(
        self,
        slots: Annotated[
            NDArray[numpy.int64], dict(shape=(None,), order="C", device="cpu", writable=False)
        ],
    ) -> Annotated[NDArray[numpy.uint8], dict(shape=(None,))]:
        """
        Claim slots: 0 if ready, 1 if claimed by this call, 2 if another claim stands.
        """

    def find_offsets(
        self,
        slots: Annotated[
            NDArray[numpy.int64], dict(shape=(None,), order="C", device="cpu", writable=False)
        ],
    ) -> Annotated[NDArray[numpy.int64], dict(shape=(None,))]:
        """Offsets of ready slots; -1 for others."""

    def allocate(
        self,
        lengths: Annotated[
            NDArray[numpy.int64], dict(shape=(None,), order="C", device="cpu", writable=False)
        ],
    ) -> Annotated[NDArray[numpy.int64], dict(shape=(None,))]:
        """Offsets of room for so many bytes each; -1 if there is no more."""

    def has_claims(
        self,
        slots: Annotated[
            NDArray[numpy.int64], dict(shape=(None,), order="C", device="cpu", writable=False)
        ],
    ) -> Annotated[NDArray[numpy.bool_], dict(shape=(None,))]:
        """True for slots that are claimed through this object."""

    def publish(
        self,
        slots: Annotated[
            NDArray[numpy.int64], dict(shape=(None,), order="C", device="cpu", writable=False)
        ],
        at: Annotated[
            NDArray[numpy.int64], dict(shape=(None,), order="C", device="cpu", writable=False)
        ],
        lengths: Annotated[
            NDArray[numpy.int64], dict(shape=(None,), order="C", device="cpu", writable=False)
        ],
    ) -> Annotated[NDArray[numpy.bool_], dict(shape=(None,))]:
        """
        Make slots ready at these offsets; False if the claim was not held here.
        """

    def abandon(
        self,
        slots: Annotated[
            NDArray[numpy.int64], dict(shape=(None,), order="C", device="cpu", writable=False)
        ],
    ) -> None:
        """Give claims back; slots that are not claimed here are ignored."""

    def drop(
        self,
        slots: Annotated[
            NDArray[numpy.int64], dict(shape=(None,), order="C", device="cpu", writable=False)
        ],
        at: Annotated[
            NDArray[numpy.int64], dict(shape=(None,), order="C", device="cpu", writable=False)
        ],
    ) -> None:
        """Make slots empty whose bytes were found damaged at these offsets."""

    def gather(
        self,
        at: Annotated[
            NDArray[numpy.int64], dict(shape=(None,), order="C", device="cpu", writable=False)
        ],
        lengths: Annotated[
            NDArray[numpy.int64], dict(shape=(None,), order="C", device="cpu", writable=False)
        ],
        targets: Annotated[
            NDArray[numpy.int64], dict(shape=(None,), order="C", device="cpu", writable=False)
        ],
        out: Annotated[NDArray[numpy.uint8], dict(shape=(None,), order="C", device="cpu")],
    ) -> None:
        """
        Copy `lengths[i]` bytes from `data[at[i]:]` to `out[targets[i]:]`, for each i.
        """

    def populate(self) -> None:
        """Take all memory from the system now."""

def crc32c(data: Buffer | numpy.typing.NDArray[Any], before: int = 0) -> int:
    """
    CRC-32C of contiguous bytes.

    before: checksum of the bytes that precede `data`; the result is the checksum of both.
    """

class DecoderPool:
    """
    FFmpeg's decoders, and those that wait for work: opening one takes longer than decoding a short chunk. Thread-safe.
    """

    def __init__(self, module: str, idle_max: int) -> None:
        """
        module: path of a loaded module that is linked with FFmpeg's libraries.
        """

    def decode_pictures(
        self,
        data: Annotated[
            NDArray[numpy.uint8], dict(shape=(None,), order="C", device="cpu", writable=False)
        ],
        bounds: Annotated[
            NDArray[numpy.int64], dict(shape=(None,), order="C", device="cpu", writable=False)
        ],
        packet_bounds: Annotated[
            NDArray[numpy.int64], dict(shape=(None,), order="C", device="cpu", writable=False)
        ],
        sizes: Annotated[
            NDArray[numpy.int64], dict(shape=(None,), order="C", device="cpu", writable=False)
        ],
        rows: Annotated[
            NDArray[numpy.int64], dict(shape=(None,), order="C", device="cpu", writable=False)
        ],
        kind_numbers: Annotated[
            NDArray[numpy.int64], dict(shape=(None,), order="C", device="cpu", writable=False)
        ],
        turns: Annotated[
            NDArray[numpy.int64], dict(shape=(None,), order="C", device="cpu", writable=False)
        ],
        wanted_bounds: Annotated[
            NDArray[numpy.int64], dict(shape=(None,), order="C", device="cpu", writable=False)
        ],
        wanted: Annotated[
            NDArray[numpy.int64], dict(shape=(None,), order="C", device="cpu", writable=False)
        ],
        places: Annotated[
            NDArray[numpy.int64], dict(shape=(None,), order="C", device="cpu", writable=False)
        ],
        kinds: Sequence[tuple[str, bytes, Sequence[tuple[str, str]]]],
        memory: Sequence[
            Annotated[NDArray[numpy.uint8], dict(shape=(None, None, None, 3), device="cpu")]
        ],
        is_scaled: bool,
        threads: int,
    ) -> tuple[int, str] | None:
        """
        Decode frames of groups, RGB. Return the first group that cannot be, and what is wrong with it.

        rows: the row of each packet's frame; negative: its errors are none.
        turns: quarters clockwise by which each group's frames become upright.
        wanted: rows, ascending in each group; a row may come several times.
        places: the frame of the memory, counted through all of it, for each of these.
        kinds: FFmpeg's name, what the decoder is given, options.
        is_scaled: frames of other sizes are scaled; else they are an error.
        """

    def decode_samples(
        self,
        kind: tuple[str, bytes, Sequence[tuple[str, str]]],
        data: numpy.typing.NDArray[numpy.uint8],
        sizes: numpy.typing.NDArray[numpy.int64],
        packing: str,
        first: int,
        out: numpy.typing.NDArray[Any],
    ) -> None:
        """
        Decode samples, from the number `first` on, into `out`, (samples, channels); ValueError says what is wrong with the packets.

        packing: "" for packets, "pages" of Ogg, "primed" if of the first page the last packet alone is given.
        """

    @property
    def opened(self) -> int:
        """Decoders opened so far."""

    @property
    def idle(self) -> list[str]:
        """Names of the decoders that wait for work."""

def walk_lmdb(
    file: int,
    read: Callable[[int, int], bytes] | None,
    size: int,
    *,
    database: bytes | None = None,
    exclude: Sequence[bytes] = [],
    file_order: bool = False,
    datum: bool = False,
    verify: bool | None = None,
    threads: int = 0,
) -> tuple[dict[str, Any], tuple[int, str] | None]:
    """
    Find the records of an LMDB environment: (columns, None or (offset, message)).
    """

def walk_jsonl(
    file: int, read: Callable[[int, int], bytes] | None, size: int, start: int = 0
) -> tuple[dict[str, Any], tuple[int, str] | None]:
    """Find the lines of a JSONL file: (columns, None or (offset, message))."""

def walk_tfrecord(
    file: int,
    read: Callable[[int, int], bytes] | None,
    size: int,
    check: str = "length",
    features: Sequence[str] = [],
    begin: int = 0,
    stop: int | None = None,
) -> tuple[dict[str, Any], tuple[int, str] | None]:
    """
    Find the records of a TFRecord file: (columns, None or (offset, message)).
    """

def walk_recordio(
    file: int,
    read: Callable[[int, int], bytes] | None,
    size: int,
    header: bool = False,
    strip: bool = False,
) -> tuple[dict[str, Any], tuple[int, str] | None]:
    """
    Find the records of a RecordIO file: (columns, None or (offset, message)).
    """

def walk_tar(
    file: int,
    read: Callable[[int, int], bytes] | None,
    size: int,
    ignore_zeros: bool = False,
    end_required: bool = True,
    duplicates: bool = False,
    label: str | None = None,
    start: int = 0,
) -> tuple[dict[str, Any], tuple[int, str] | None]:
    """
    Find the members of a tar archive and their samples: (columns, None or (offset, message)).
    """

def walk_mp4(
    file: int,
    read: Callable[[int, int], bytes] | None,
    size: int,
    one_group: bool = False,
    sound: bool = False,
) -> tuple[dict[str, Any], tuple[int, str] | None]:
    """
    Find the frames of an MP4 file's track of video, or of sound: (columns, None or (offset, message)).
    """

def merge_extents(
    file: Annotated[
        NDArray[numpy.uint32], dict(shape=(None,), order="C", device="cpu", writable=False)
    ],
    offset: Annotated[
        NDArray[numpy.int64], dict(shape=(None,), order="C", device="cpu", writable=False)
    ],
    length: Annotated[
        NDArray[numpy.int64], dict(shape=(None,), order="C", device="cpu", writable=False)
    ],
    part: Annotated[
        NDArray[numpy.uint32], dict(shape=(None,), order="C", device="cpu", writable=False)
    ],
    target: Annotated[
        NDArray[numpy.int64], dict(shape=(None,), order="C", device="cpu", writable=False)
    ],
    parts: int,
    gap_bytes: int,
    reader: int,
    readers: int,
) -> tuple[
    Annotated[NDArray[numpy.uint32], dict(shape=(None,))],
    Annotated[NDArray[numpy.int64], dict(shape=(None,))],
    Annotated[NDArray[numpy.int64], dict(shape=(None,))],
    Annotated[NDArray[numpy.uint32], dict(shape=(None,))],
    Annotated[NDArray[numpy.int64], dict(shape=(None,))],
    Annotated[NDArray[numpy.int64], dict(shape=(None,))],
    Annotated[NDArray[numpy.int64], dict(shape=(None,))],
]:
    """
    Sort extents by file and offset, and make runs of near neighbours, part by part.

    Returns the five columns in their new order, the edges of the runs, and the bounds of
    each part's runs. A run belongs to the first part that wants one of its extents.
    """

def gather(
    source: Annotated[
        NDArray[numpy.uint8], dict(shape=(None,), order="C", device="cpu", writable=False)
    ],
    at: Annotated[
        NDArray[numpy.int64], dict(shape=(None,), order="C", device="cpu", writable=False)
    ],
    lengths: Annotated[
        NDArray[numpy.int64], dict(shape=(None,), order="C", device="cpu", writable=False)
    ],
    targets: Annotated[
        NDArray[numpy.int64], dict(shape=(None,), order="C", device="cpu", writable=False)
    ],
    out: Annotated[NDArray[numpy.uint8], dict(shape=(None,), order="C", device="cpu")],
) -> None:
    """
    Copy `lengths[i]` bytes from `source[at[i]:]` to `out[targets[i]:]`, for each i.

    IndexError, with nothing copied, if an extent leaves `source` or `out`.
    """

def copy_overlaps(
    chunks: Sequence[
        Annotated[
            NDArray[numpy.uint8], dict(shape=(None,), order="C", device="cpu", writable=False)
        ]
    ],
    boxes: Annotated[
        NDArray[numpy.int64], dict(shape=(None,), order="C", device="cpu", writable=False)
    ],
    edges: Annotated[
        NDArray[numpy.int64], dict(shape=(None,), order="C", device="cpu", writable=False)
    ],
    places: Annotated[
        NDArray[numpy.int64], dict(shape=(None,), order="C", device="cpu", writable=False)
    ],
    rows: Annotated[
        NDArray[numpy.int64], dict(shape=(None,), order="C", device="cpu", writable=False)
    ],
    shape: Annotated[
        NDArray[numpy.int64], dict(shape=(None,), order="C", device="cpu", writable=False)
    ],
    item_bytes: int,
    windows: Annotated[NDArray[numpy.uint8], dict(shape=(None,), order="C", device="cpu")],
    threads: int,
) -> None:
    """
    Copy what windows of an array have of its chunks to rows of `windows`.

    boxes: of each chunk, axis by axis: its first indices in the array, those behind its last,
    and its shape in `chunks`, whose front it is.
    edges: of each chunk, its first window in `places`, their first indices axis by axis, and in
    `rows`; and the end.
    IndexError or ValueError, with nothing copied, if sizes do not fit.
    """

def pack_extents(
    addresses: Annotated[
        NDArray[numpy.uint64], dict(shape=(None,), order="C", device="cpu", writable=False)
    ],
    lengths: Annotated[
        NDArray[numpy.int64], dict(shape=(None,), order="C", device="cpu", writable=False)
    ],
    alignment: int,
    out: Annotated[NDArray[numpy.uint8], dict(shape=(None,), order="C", device="cpu")],
    threads: int,
    checksums: Annotated[NDArray[numpy.uint32], dict(shape=(None,), order="C", device="cpu")],
) -> None:
    """
    Copy `lengths[i]` bytes from each address into `out`, one after the other.

    Zeros fill each extent up to a multiple of `alignment`; `checksums[i]` becomes the CRC-32C
    of extent i with its zeros. IndexError unless the extents fill `out` exactly. The addresses
    are not checked.
    """

def standardize(
    numbers: Annotated[
        NDArray[numpy.uint8], dict(shape=(None,), order="C", device="cpu", writable=False)
    ],
    kind: str,
    mean: Annotated[
        NDArray[numpy.float64], dict(shape=(None,), order="C", device="cpu", writable=False)
    ],
    sd: Annotated[
        NDArray[numpy.float64], dict(shape=(None,), order="C", device="cpu", writable=False)
    ],
    inner: int,
    out: Annotated[NDArray[numpy.uint8], dict(shape=(None,), order="C", device="cpu")],
    halves: bool,
    threads: int,
) -> None:
    """
    Write (x - mean[r]) / sd[r] for each number x, computed in float64, to `out` as float32.

    Numbers are of `kind`, as numpy names it, in lines of `inner`, each of the next row r. With
    `halves` they are written as bfloat16. ValueError if the sizes do not fit.
    """

def fence() -> None:
    """
    Order this thread's accesses to shared memory.

    A thread that reads a value written after this call, and then calls `fence` itself, sees
    all values written before this call.
    """

def parse_json_lines(
    text: Annotated[
        NDArray[numpy.uint8], dict(shape=(None,), order="C", device="cpu", writable=False)
    ],
    bounds: Annotated[
        NDArray[numpy.int64], dict(shape=(None,), order="C", device="cpu", writable=False)
    ],
    keys: Sequence[str],
    kinds: Sequence[str],
) -> tuple[
    Annotated[NDArray[numpy.int64], dict(shape=(None,))],
    list[Any],
    list[Annotated[NDArray[numpy.bool_], dict(shape=(None,))]],
]:
    """
    Parse fields of the lines text[bounds[i]:bounds[i+1]]: (left_over, columns, absent).

    Rows that are left over, for being broken or unusual, and those of absent values, are
    empty. Columns are lists of str or None; arrays; for "ints", "floats" and "bytes"
    values and offsets; for "any" where values begin and end in the text.
    """

def extract_json_strings(
    text: Annotated[NDArray[numpy.uint8], dict(shape=(None,), order="C", device="cpu")],
    bounds: Annotated[
        NDArray[numpy.int64], dict(shape=(None,), order="C", device="cpu", writable=False)
    ],
    key: str,
) -> Annotated[NDArray[numpy.int64], dict(shape=(None,))]:
    """
    Put the strings of a key at the start of the text, as UTF-8: their offsets.

    Ends before a row that is left over or absent. Of lines that were not taken, the text
    stays as it is.
    """

@overload
def sum_moments(
    rows: Annotated[
        NDArray[numpy.float32], dict(shape=(None, None), order="C", device="cpu", writable=False)
    ],
    moments: Annotated[NDArray[numpy.float64], dict(shape=(None, None), order="C", device="cpu")],
) -> bool: ...
@overload
def sum_moments(
    rows: Annotated[
        NDArray[numpy.float64], dict(shape=(None, None), order="C", device="cpu", writable=False)
    ],
    moments: Annotated[NDArray[numpy.float64], dict(shape=(None, None), order="C", device="cpu")],
) -> bool:
    """
    Fill in, for each row, how many numbers are finite and how many NaN; of the finite ones
    the least, the largest, the mean in two parts, and the squares of the distances to it.
    False if a sum is beyond float64.
    """

@overload
def count_bins(
    numbers: Annotated[
        NDArray[numpy.float32], dict(shape=(None,), order="C", device="cpu", writable=False)
    ],
    edges: Annotated[
        NDArray[numpy.float64], dict(shape=(None,), order="C", device="cpu", writable=False)
    ],
    scale: float,
    counts: Annotated[NDArray[numpy.int64], dict(shape=(None,), order="C", device="cpu")],
) -> None: ...
@overload
def count_bins(
    numbers: Annotated[
        NDArray[numpy.float64], dict(shape=(None,), order="C", device="cpu", writable=False)
    ],
    edges: Annotated[
        NDArray[numpy.float64], dict(shape=(None,), order="C", device="cpu", writable=False)
    ],
    scale: float,
    counts: Annotated[NDArray[numpy.int64], dict(shape=(None,), order="C", device="cpu")],
) -> None:
    """
    Add to `counts` how many finite numbers are in each bin, of equal ones.

    scale: bins by the distance of the outer edges.
    """

def pack_documents(
    lengths: Annotated[
        NDArray[numpy.int64], dict(shape=(None,), order="C", device="cpu", writable=False)
    ],
    row_length: int,
    split: bool,
    multiple: int,
) -> tuple[
    Annotated[NDArray[numpy.int64], dict(shape=(None,))],
    Annotated[NDArray[numpy.uint32], dict(shape=(None,))],
    Annotated[NDArray[numpy.int64], dict(shape=(None,))],
    Annotated[NDArray[numpy.int64], dict(shape=(None,))],
]:
    """
    Pack documents of these lengths, in their order, into rows by best fit.

    Returns where each row begins among the pieces, and the end; and of each piece the
    document, its first token there, and its tokens. ValueError for what is out of bounds.
    """

def count_packed_rows(
    lengths: Annotated[
        NDArray[numpy.int64], dict(shape=(None,), order="C", device="cpu", writable=False)
    ],
    row_length: int,
    split: bool,
    multiple: int,
) -> int:
    """Count the rows that `pack_documents` makes."""

def place_pieces(
    offsets: Annotated[
        NDArray[numpy.int64], dict(shape=(None,), order="C", device="cpu", writable=False)
    ],
    lengths: Annotated[
        NDArray[numpy.int64], dict(shape=(None,), order="C", device="cpu", writable=False)
    ],
    length: int,
    multiple: int,
    flat: bool,
) -> tuple[
    Annotated[NDArray[numpy.int64], dict(shape=(None,))],
    int,
    Annotated[NDArray[numpy.int32], dict(shape=(None,))],
    Annotated[NDArray[numpy.int32], dict(shape=(None,))],
    int,
    Annotated[NDArray[numpy.int64], dict(shape=(None,))],
]:
    """
    Return the places of pieces in a batch of rows, or end to end (`flat`).

    Row r has the pieces offsets[r]:offsets[r + 1]. Returns the first place of each piece; the
    places in all; the tokens before each sequence, and the end; with a `multiple` of 2 or
    more the first place of each sequence, and the end; the places of the longest; and of each
    sequence its piece, or -1 of a gap. IndexError if pieces do not fit into rows.
    """

@overload
def lay_out_tokens(
    tokens: Annotated[
        NDArray[numpy.uint8], dict(shape=(None,), order="C", device="cpu", writable=False)
    ],
    item_bytes: int,
    is_signed: bool,
    at: Annotated[
        NDArray[numpy.int64], dict(shape=(None,), order="C", device="cpu", writable=False)
    ],
    lengths: Annotated[
        NDArray[numpy.int64], dict(shape=(None,), order="C", device="cpu", writable=False)
    ],
    targets: Annotated[
        NDArray[numpy.int64], dict(shape=(None,), order="C", device="cpu", writable=False)
    ],
    pad: int,
    shifted: bool,
    inputs: Annotated[NDArray[numpy.int32], dict(shape=(None,), order="C", device="cpu")],
    labels: Annotated[NDArray[numpy.int32], dict(shape=(None,), order="C", device="cpu")],
    positions: Annotated[NDArray[numpy.int32], dict(shape=(None,), order="C", device="cpu")],
) -> int: ...
@overload
def lay_out_tokens(
    tokens: Annotated[
        NDArray[numpy.uint8], dict(shape=(None,), order="C", device="cpu", writable=False)
    ],
    item_bytes: int,
    is_signed: bool,
    at: Annotated[
        NDArray[numpy.int64], dict(shape=(None,), order="C", device="cpu", writable=False)
    ],
    lengths: Annotated[
        NDArray[numpy.int64], dict(shape=(None,), order="C", device="cpu", writable=False)
    ],
    targets: Annotated[
        NDArray[numpy.int64], dict(shape=(None,), order="C", device="cpu", writable=False)
    ],
    pad: int,
    shifted: bool,
    inputs: Annotated[NDArray[numpy.int64], dict(shape=(None,), order="C", device="cpu")],
    labels: Annotated[NDArray[numpy.int64], dict(shape=(None,), order="C", device="cpu")],
    positions: Annotated[NDArray[numpy.int64], dict(shape=(None,), order="C", device="cpu")],
) -> int:
    """
    Write inputs, labels and positions of pieces of documents, and pads between them.

    Piece i is `lengths[i]` tokens of `tokens` from the token `at[i]` on, and goes to the places
    from `targets[i]` on. Returns the piece with the first token that the type of the outputs
    does not hold, or the number of pieces. IndexError, with nothing written, if a piece leaves
    the tokens or the outputs.
    """

class RowPositions:
    """
    Where each row of blocks of JPEG files begins, for all samples of a data set.
    """

    def __init__(
        self,
        entries: Annotated[
            NDArray[numpy.uint8], dict(shape=(None,), order="C", device="cpu", writable=False)
        ],
        first: Annotated[
            NDArray[numpy.int64], dict(shape=(None,), order="C", device="cpu", writable=False)
        ],
        sums: Annotated[
            NDArray[numpy.uint32], dict(shape=(None,), order="C", device="cpu", writable=False)
        ],
        heads: Annotated[
            NDArray[numpy.int32], dict(shape=(None,), order="C", device="cpu", writable=False)
        ],
    ) -> None: ...

class ImageTransform:
    """A crop, a size, a layout and a type of images, for any thread."""

    def __init__(
        self,
        kind: str,
        height: int,
        width: int,
        shorter: int,
        area: Sequence[float],
        ratio: Sequence[float],
        flip: float,
        flip_rows: float,
        is_planar: bool,
        type: str,
        scale: Sequence[float],
        offset: Sequence[float],
        pixels_max: int,
        shrinks: bool = False,
        flips_first: Sequence[bool] = [False, False],
        is_drawn: bool = False,
        resized: Sequence[int] = [0, 0],
        longest: int = 0,
        cut: Sequence[int] = [0, 0],
        padding: Sequence[int] = [0, 0, 0, 0],
        pads_small: bool = False,
        mode: str = "constant",
        fill: Sequence[float] = [0.0, 0.0, 0.0],
    ) -> None: ...
    @property
    def row_bytes(self) -> int:
        """Bytes of one image."""

    def transform_rows(
        self,
        values: Annotated[
            NDArray[numpy.uint8], dict(shape=(None,), order="C", device="cpu", writable=False)
        ],
        bounds: Annotated[
            NDArray[numpy.int64], dict(shape=(None,), order="C", device="cpu", writable=False)
        ],
        first: int,
        end: int,
        keys: Annotated[
            NDArray[numpy.uint64], dict(shape=(None,), order="C", device="cpu", writable=False)
        ],
        numbers: Annotated[
            NDArray[numpy.uint64], dict(shape=(None,), order="C", device="cpu", writable=False)
        ],
        positions: RowPositions,
        out: Annotated[NDArray[numpy.uint8], dict(shape=(None,), order="C", device="cpu")],
        crops: Annotated[NDArray[numpy.int32], dict(shape=(None,), order="C", device="cpu")],
        lengths: Annotated[
            NDArray[numpy.int64], dict(shape=(None,), order="C", device="cpu", writable=False)
        ],
    ) -> list[tuple[int, int, int, int, str, int, bool]]:
        """
        Make the rows [first, end) of the JPEG files values[bounds[i]:bounds[i + 1]].

        keys, numbers:  key of the random numbers of each row, and its sample.
        positions:      those of all samples that are known.
        crops:          gets left, top, width, height, flips (1 columns, 2 rows), width and
                        height of the image, for each row; may be empty.
        lengths:        bytes of each whole file, if the rows have only what `plan_reads` says;
                        empty if they are whole.

        Returns the rows of which there is something to say: row, status (0 made, 1 not ours,
        2 broken, 3 too large, 4 the whole file is needed, 5 too small), byte, row of blocks or -1, message, stray bytes that were
        skipped, and whether the positions did not fit.
        """

    def plan_reads(
        self,
        positions: RowPositions,
        key: int,
        numbers: Annotated[
            NDArray[numpy.uint64], dict(shape=(None,), order="C", device="cpu", writable=False)
        ],
        lengths: Annotated[
            NDArray[numpy.int64], dict(shape=(None,), order="C", device="cpu", writable=False)
        ],
    ) -> tuple[
        Annotated[NDArray[numpy.int64], dict(shape=(None,))],
        Annotated[NDArray[numpy.int64], dict(shape=(None,))],
        Annotated[NDArray[numpy.int64], dict(shape=(None,))],
    ]:
        """
        Return which bytes of samples of these lengths their crops need: of each header, from 0
        on, and begin and end of those of the rows.
        """

    def transform_file(
        self,
        file: Annotated[
            NDArray[numpy.uint8], dict(shape=(None,), order="C", device="cpu", writable=False)
        ],
        words: Annotated[
            NDArray[numpy.uint64], dict(shape=(None,), order="C", device="cpu", writable=False)
        ],
        out: Annotated[NDArray[numpy.uint8], dict(shape=(None,), order="C", device="cpu")],
    ) -> tuple[tuple[int, int, int, int, str, int, bool], list[int]]:
        """
        Make one row of a JPEG file, by 44 random words. Returns what `transform_rows` says of
        it, and its crop.
        """

    def decode_images(
        self,
        values: Annotated[
            NDArray[numpy.uint8], dict(shape=(None,), order="C", device="cpu", writable=False)
        ],
        bounds: Annotated[
            NDArray[numpy.int64], dict(shape=(None,), order="C", device="cpu", writable=False)
        ],
        first: int,
        end: int,
        sizes: Annotated[
            NDArray[numpy.int32], dict(shape=(None,), order="C", device="cpu", writable=False)
        ],
        out: Annotated[NDArray[numpy.uint8], dict(shape=(None,), order="C", device="cpu")],
        out_bounds: Annotated[
            NDArray[numpy.int64], dict(shape=(None,), order="C", device="cpu", writable=False)
        ],
    ) -> list[tuple[int, int, int, int, str, int, bool]]:
        """
        Decode the rows [first, end) whole, to out[out_bounds[i]:out_bounds[i + 1]].

        sizes:  (height, width) of each image, as `read_image_sizes` gives them.

        Returns problems as `transform_rows` does.
        """

    def find_positions(
        self,
        values: Annotated[
            NDArray[numpy.uint8], dict(shape=(None,), order="C", device="cpu", writable=False)
        ],
        bounds: Annotated[
            NDArray[numpy.int64], dict(shape=(None,), order="C", device="cpu", writable=False)
        ],
    ) -> tuple[
        Annotated[NDArray[numpy.uint8], dict(shape=(None,))],
        Annotated[NDArray[numpy.int64], dict(shape=(None,))],
        Annotated[NDArray[numpy.uint32], dict(shape=(None,))],
        Annotated[NDArray[numpy.int32], dict(shape=(None,))],
        list[tuple[int, int, int, int, str, int, bool]],
    ]:
        """
        Find where each row of blocks begins, which decodes all of each file.

        Returns 12 bytes for each row of blocks of all files, their number, their checksum
        and (width, height, bytes of the header) for each file, 0 for one that is not ours or is
        broken, and problems as `transform_rows` does.
        """

    def transform_pixels(
        self,
        pixels: Annotated[
            NDArray[numpy.uint8],
            dict(shape=(None, None, None), order="C", device="cpu", writable=False),
        ],
        words: Annotated[
            NDArray[numpy.uint64], dict(shape=(None,), order="C", device="cpu", writable=False)
        ],
        out: Annotated[NDArray[numpy.uint8], dict(shape=(None,), order="C", device="cpu")],
    ) -> list[int]:
        """
        Make one row of an image that is decoded, by 44 random words. Returns its crop, whose width is
        0 if the image is too small.
        """

    def choose_crop(
        self,
        height: int,
        width: int,
        words: Annotated[
            NDArray[numpy.uint64], dict(shape=(None,), order="C", device="cpu", writable=False)
        ],
    ) -> list[int]:
        """
        Return the crop of an image of this size, as `transform_rows` gives it.
        """

def read_image_sizes(
    values: Annotated[
        NDArray[numpy.uint8], dict(shape=(None,), order="C", device="cpu", writable=False)
    ],
    bounds: Annotated[
        NDArray[numpy.int64], dict(shape=(None,), order="C", device="cpu", writable=False)
    ],
    pixels_max: int,
) -> tuple[
    Annotated[NDArray[numpy.int32], dict(shape=(None,))],
    list[tuple[int, int, int, int, str, int, bool]],
]:
    """
    Read height and width of JPEG files from their headers; 0 where there is a problem, as
    `ImageTransform.transform_rows` lists them.
    """

def resample(
    pixels: Annotated[
        NDArray[numpy.uint8],
        dict(shape=(None, None, None), order="C", device="cpu", writable=False),
    ],
    height: int,
    width: int,
    kernel: int,
    out: Annotated[NDArray[numpy.uint8], dict(shape=(None,), order="C", device="cpu")],
) -> None:
    """
    Resize an RGB image by a kernel: 0 is portable, the others need their instructions.
    """

def count_resample_kernels() -> int:
    """Return the number of kernels that this machine can run."""

def list_kernels() -> dict[str, str]:
    """
    Return the instruction set that each part of the core uses on this processor.
    """
