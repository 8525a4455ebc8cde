"""The bound of a run, computed from its loader's counters: pure arithmetic, nothing is measured.
What would make decoding cheaper is measured by others, and asked for only if decoding binds.

A loader that reads ahead makes a step wait only if loading is slower than the step. If more than a
little time goes to waiting, the run is therefore bound by the longest kind of waiting, however long
the user's step is. Without reading ahead, loading and computing take turns, and the longer one
binds.

Waiting for bytes is waiting for storage or for other hosts, in proportion to the bytes that came
from each. It is copying if the data was found in the page cache and no rate was set. The reads
themselves show which property of a storage binds: see `_find_storage_bound`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, NamedTuple, get_args

from .. import limits
from ..engine.protocol import ReadMethod
from ..index.table import Index
from ..meter import Counters

Part = Literal["compute", "storage", "decode", "network", "copy"]
"""Part of the time in steps: the user's step ("compute"); waiting for storage, for decoding, for
other hosts ("network"); and the rest ("copy"): copying, collating, planning."""

Bound = Literal[
    "compute", "decode", "bandwidth", "iops", "metadata", "network", "copy", "storage", "unknown"
]
"""Resource that bounds a run. bandwidth, iops and metadata are properties of storage; "storage" if
they cannot be told apart, "unknown" before the second step."""

PARTS: tuple[Part, ...] = get_args(Part)
READY = 0.05
"""Share of all time in steps that jitter alone may make a loader wait."""
FEW_STEPS = 30
"""Steps below which an explanation is uncertain."""
CLOSE = 0.1
"""Share of all time: causes of waiting that differ by less may change places."""
_saturated_share = 0.5


@dataclass(frozen=True, slots=True, kw_only=True)
class Setup:
    """Configuration of a loader, not shown by its counters.

    backend:         way of reading, as in `Loader.stats`; "workers" if workers read; "" before the
                     first read.
    cached:          True if the data was found in the page cache.
    reads_max:       most reads in flight; 0 if unknown.
    gap_bytes:       bytes that take as long as one more read.
    bytes_per_s_max, cores_max: limits of the budget; None for no limit.
    leased:          True if a broker has limited the budget.
    reads_per_s, bytes_per_s: measured rates of the storage; None without a measurement.
    decode_threads:  0 without decode.
    cores:           processors that the process may use.
    ahead:           True if batches are made while the user computes.
    images:          True if `decode` is the user's and samples hold images.
    note:            end of the sentence about a cheaper decode.
    """

    backend: str = ""
    cached: bool = False
    reads_max: int = 0
    gap_bytes: int = limits.gap_bytes_default
    bytes_per_s_max: float | None = None
    cores_max: float | None = None
    leased: bool = False
    reads_per_s: float | None = None
    bytes_per_s: float | None = None
    decode_threads: int = 0
    cores: int = 1
    ahead: bool = True
    images: bool = False
    note: str = ""

    def describe_storage(self, method: ReadMethod | None, measured: Mapping[str, Any]) -> Setup:
        """Return the setup with the way in which an engine reads.

        measured:  of the storage, if shuffle="auto" has measured it: latency_ns of a read, requests
                   in flight, bytes_per_s.
        """
        known: dict[str, Any] = {"bytes_per_s": measured.get("bytes_per_s")}
        if measured.get("latency_ns"):
            known["reads_per_s"] = 1e9 * measured["requests"] / measured["latency_ns"]
        if method is not None:
            known |= {"backend": method.backend, "cached": method.cached}
            known |= {"reads_max": method.threads, "gap_bytes": method.gap_bytes}
        return replace(self, **known)


def hold_images(index: Index) -> bool:
    """Tell by their names whether samples hold images."""
    names = [index.key(0) if index.count else "", *(f".{field.name}" for field in index.fields)]
    return any(name.lower().endswith(_image_endings) for name in names)


_image_endings = (".jpg", ".jpeg", ".png", ".webp", ".tif", ".tiff", ".image", ".img")


class Remedy(NamedTuple):
    """A change that helps against one `Part`, or against "turns": loading and computing alternate.

    factor:  most times as many samples/s: the gain if nothing were left of that part.
    how:     the change, in words.
    """

    against: str
    factor: float
    how: str


class DecodeGain(NamedTuple):
    """A change that makes decoding cheaper, as it was measured on the user's samples.

    factor:  times as many samples that a thread decodes in a time.
    how:     the change, in words.
    """

    factor: float
    how: str


MeasureGains = Callable[[], Sequence[DecodeGain]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Explanation:
    """Answer to "what bounds this run, and what would help?"; str() of it is for people.

    bound:          resource that limits samples/s: see `Bound`.
    shares:         shares of all time in steps, by `Part`; they sum to 1. Waiting for first batches
                    is left out, because nothing can be read ahead of them.
    samples_per_s:  rate over that time.
    remedies:       changes that help, the most useful one first.
    certainty:      reliability: "clear", or the reason for doubt.
    counters:       counters of the time explained, from which all of this follows.
    setup:          configuration of the loader.
    until:          totals at its end, from which `explain_run(since=...)` goes on.
    """

    bound: Bound
    shares: Mapping[Part, float]
    samples_per_s: float
    remedies: tuple[Remedy, ...]
    certainty: str
    counters: Counters
    setup: Setup
    until: Counters

    @property
    def verdict(self) -> str:
        """The bound in one sentence."""
        if self.bound == "unknown":
            return "There is nothing to explain before the second step."
        waiting = 1 - self.shares["compute"]
        if self.bound == "compute":
            beside = f"{waiting:.0%} of the time goes to loading"
            return f"Bound by compute: the loader keeps up, {beside}."
        return f"Bound by {_bound_names[self.bound]}: {waiting:.0%} of the time goes to loading."

    def __str__(self) -> str:
        """Show the verdict first, and last the one change that helps most."""
        lines = [self.verdict]
        counted = self.counters
        if self.bound != "unknown":
            shares = ", ".join(f"{name} {self.shares[name]:.1%}" for name in PARTS)
            lines.append(f"time      {shares}, of {counted.steps_ns * 1e-9:.3g} s in steps")
            lines.append(
                f"rate      {self.samples_per_s:,.0f} samples/s in {counted.batches:,} steps"
            )
        if counted.epochs and counted.batches:
            first_s = counted.first_batch_ns / counted.epochs * 1e-9
            lines.append(
                f"stalls    median {_format_time(counted.stall_quantile_ns(0.5))}, 99 % below "
                f"{_format_time(counted.stall_quantile_ns(0.99))}; "
                f"first batch after {first_s:.3g} s"
            )
        lines.append(f"from      {_describe_counters(counted, self.setup)}")
        lines.append(f"certainty {self.certainty}")
        for number, remedy in enumerate([*self.remedies[1:], *self.remedies[:1]], 1):
            name = "change" if number == len(self.remedies) else "also"
            most = f"at most {remedy.factor:.2f}x" if remedy.factor < 10 else "over 10x"
            lines.append(f"{name:<9} {most}: {remedy.how}")
        return "\n".join(lines)


_bound_names: Mapping[Bound, str] = {
    "compute": "compute",
    "decode": "decode",
    "bandwidth": "the bandwidth of storage",
    "iops": "reads per second of storage (IOPS)",
    "metadata": "opening files (metadata of storage)",
    "network": "the network between hosts",
    "copy": "copying and collating",
    "storage": "storage",
}


def explain_run(
    until: Counters,
    setup: Setup,
    since: Explanation | None = None,
    measure_gains: MeasureGains | None = None,
) -> Explanation:
    """Explain what has bounded a run since an earlier explanation, or since its start.

    measure_gains:  called if decoding binds.
    """
    counted = until if since is None else until.since(since.until)
    shares = divide_time(counted, setup)
    bound: Bound = "unknown"
    if counted.batches > 1 and counted.steps_ns > 0:
        part: Part = max(PARTS[1:], key=lambda wait: shares[wait])
        if shares["compute"] >= (1 - READY if setup.ahead else shares[part]):
            part = "compute"
        bound = _find_storage_bound(counted, setup) if part == "storage" else part
    gains = measure_gains() if bound == "decode" and measure_gains is not None else ()
    remedies: tuple[Remedy, ...] = ()
    if bound != "unknown":
        remedies = _suggest_remedies(bound, shares, counted, setup, gains)
    return Explanation(
        bound=bound,
        shares=shares,
        samples_per_s=1e9 * counted.samples / counted.steps_ns if counted.steps_ns else 0.0,
        remedies=remedies,
        certainty=_judge_certainty(bound, shares, counted),
        counters=counted,
        setup=setup,
        until=until,
    )


def divide_time(counted: Counters, setup: Setup) -> dict[Part, float]:
    """Divide all time in steps among the parts; all of it is compute if there was none."""
    storage, network, copy = _split_waiting(counted, setup)
    times: dict[Part, float] = {
        "compute": counted.compute_ns,
        "storage": counted.bytes_ns * storage,
        "decode": counted.decode_ns,
        "network": counted.bytes_ns * network,
        "copy": counted.bytes_ns * copy + max(0, counted.rest_ns) + counted.own_ns,
    }
    total = sum(times.values())
    if total <= 0:
        return {part: float(part == "compute") for part in PARTS}
    return {part: times[part] / total for part in PARTS}


def _split_waiting(counted: Counters, setup: Setup) -> tuple[float, float, float]:
    """Split the waiting for bytes: fractions for storage, for other hosts and for copying."""
    if setup.cached and not _is_rate_used_up(counted, setup):
        return 0.0, 0.0, 1.0
    engine = counted.engine
    storage = engine.get("bytes", 0) + engine.get("disk_bytes", 0)
    network = engine.get("peer_bytes", 0)
    copied = engine.get("ram_bytes", 0) + engine.get("replica_bytes", 0)
    total = storage + network + copied
    if total <= 0:
        return 1.0, 0.0, 0.0
    return storage / total, network / total, copied / total


def _is_rate_used_up(counted: Counters, setup: Setup) -> bool:
    """True if the budget's rate was used up, by the counters."""
    if setup.bytes_per_s_max is None:
        return False
    busy_ns = counted.engine.get("busy_ns", counted.time_ns)
    return counted.engine.get("bytes", 0) * 1e9 > _saturated_share * setup.bytes_per_s_max * busy_ns


def _find_storage_bound(counted: Counters, setup: Setup) -> Bound:
    """Return the property of storage that binds.

    It is the bandwidth if the budget's rate is used up. It is opening files if threads spent a
    third of their time on that; reading and closing them are the other two thirds. Otherwise each
    read costs a time and each byte costs a time. Both are taken from the measured rates of the
    storage, or else from the bytes that take as long as one more read.
    """
    engine = counted.engine
    reads, read_bytes = engine.get("runs", 0), engine.get("bytes", 0)
    if _is_rate_used_up(counted, setup):
        return "bandwidth"
    if not reads:
        return "storage"
    if 3 * engine.get("open_ns", 0) > engine.get("work_ns", 0):
        return "metadata"
    of_reads, of_bytes = float(reads * setup.gap_bytes), float(read_bytes)
    if setup.reads_per_s and setup.bytes_per_s:
        of_reads, of_bytes = reads / setup.reads_per_s, read_bytes / setup.bytes_per_s
    return "iops" if of_reads > of_bytes else "bandwidth"


# -- what would help -------------------------------------------------------------------------------


def _suggest_remedies(
    bound: Bound,
    shares: Mapping[Part, float],
    counted: Counters,
    setup: Setup,
    gains: Sequence[DecodeGain],
) -> tuple[Remedy, ...]:
    """Return a remedy against each part that takes time: without it the others remain (Amdahl)."""
    if bound == "compute":
        loading = 1 - shares["compute"]
        if setup.ahead and setup.decode_threads:  # decoding goes on while the user computes
            decoding_ns = counted.decode_busy_ns / setup.decode_threads
            loading = max(loading, min(1.0, decoding_ns / counted.steps_ns))
        factor = 1 / max(loading, 1e-3)
        return (Remedy("compute", factor, "a faster step: a faster or another accelerator"),)
    remedies = [
        Remedy(part, 1 / max(1 - shares[part], 1e-3), _suggest_change(part, counted, setup))
        for part in PARTS
        if part != "compute" and shares[part] >= 0.01 and not (part == "decode" and gains)
    ]
    if gains:
        remedies += _compare_gains(shares["decode"], counted, setup, gains)
    if not setup.ahead:
        longest = max(shares["compute"], 1 - shares["compute"])
        remedies.append(
            Remedy("turns", 1 / longest, "num_workers=, to load while the step computes")
        )
    return tuple(sorted(remedies, key=lambda remedy: -remedy.factor))


def _compare_gains(
    share: float, counted: Counters, setup: Setup, gains: Sequence[DecodeGain]
) -> list[Remedy]:
    """Return what measured gains of decoding, and more cores, mean for the whole run.

    A step takes what its threads decode for, and at least what it takes without waiting for them.
    If loading and computing take turns, nothing overlaps: only the waiting shrinks.
    """
    busy = share
    if setup.ahead and setup.decode_threads and counted.steps_ns:
        busy = min(1.0, counted.decode_busy_ns / (setup.decode_threads * counted.steps_ns))

    def compute_factor(gain: float) -> float:
        step_share = max(1 - share, busy / gain) if setup.ahead else 1 - share + share / gain
        return 1 / min(1.0, max(step_share, 1e-3))

    most = max(setup.cores, setup.decode_threads + 1) / max(1, setup.decode_threads)
    how = _suggest_decode(counted, setup)
    if setup.decode_threads >= setup.cores:
        most = 2.0
        if how == _cheaper_decode:
            how = f"twice as many processors: {setup.decode_threads} threads decode now"
    return [
        Remedy("decode", compute_factor(gain.factor), gain.how)
        for gain in (*gains, DecodeGain(most, how))
    ]


def _suggest_change(part: Part, counted: Counters, setup: Setup) -> str:
    if part == "decode":
        ours = "; or decode=penstock.images.RandomResizedCrop, or from_torchvision(transform) there"
        return _suggest_decode(counted, setup) + ours * setup.images + setup.note
    if part == "network":
        return "more of the data on this host (cache ram_bytes, assignment='local'), a faster link"
    if part == "copy":
        return "less to copy: smaller samples, a cheaper collate; there is no other work"
    if _is_rate_used_up(counted, setup):
        larger = _suggest_larger("bytes_per_s", setup)
        return f"{larger} above {setup.bytes_per_s_max:,.0f}, used up now"
    more_reads = f", or more than {setup.reads_max} reads in flight (Budget)"
    more_reads = more_reads if setup.reads_max else ""
    return {
        "metadata": "files packed into shards (penstock convert): one open for many samples",
        "iops": f"larger reads (shuffle='blocked' or 'auto', penstock convert){more_reads}",
        "bandwidth": "fewer bytes from storage: cache=, smaller samples; or a faster storage",
        "storage": "a faster storage, or a cache of it",
    }[_find_storage_bound(counted, setup)]


def _suggest_larger(name: str, setup: Setup) -> str:
    return f"a lease of {name} (penstock top)" if setup.leased else f"a Budget.{name}"


def _suggest_decode(counted: Counters, setup: Setup) -> str:
    threads, cores = setup.decode_threads, setup.cores
    most = setup.cores_max
    if most is not None and counted.decode_cpu_ns > _saturated_share * most * counted.steps_ns:
        return f"{_suggest_larger('cores', setup)} above {most:.3g}, used up now"
    if threads and threads < cores:
        name = "num_workers" if setup.backend == "workers" else "decode_threads"
        return f"more than {threads} {name}: there are {cores} processors"
    if setup.backend != "workers" and 0 < counted.decode_cpu_ns < 0.6 * counted.decode_busy_ns:
        share = counted.decode_cpu_ns / counted.decode_busy_ns
        return (
            f"a decode that releases the GIL and does not wait, and processors that nobody else "
            f"uses: its threads ran {share:.0%} of the time"
        )
    return _cheaper_decode


_cheaper_decode = (
    "a cheaper decode: smaller images, another decoder, or decoding once (penstock convert)"
)


# -- certainty -------------------------------------------------------------------------------------


def _judge_certainty(bound: Bound, shares: Mapping[Part, float], counted: Counters) -> str:
    if bound == "unknown" or counted.batches < FEW_STEPS:
        return f"hardly: {counted.batches} steps so far, ask again after {FEW_STEPS}"
    if bound == "compute":
        near = 1 - READY - CLOSE / 2 < shares["compute"] < 1 - READY / 2
        return "a close call: the loader just keeps up" if near else "clear"
    if bound == "storage":
        return "it is storage; which property of it is unknown: its reads were not counted"
    first, second = sorted((shares[part] for part in PARTS if part != "compute"), reverse=True)[:2]
    if first - second < CLOSE:
        return "a close call: other waiting takes nearly as long"
    return "clear"


# -- words -----------------------------------------------------------------------------------------


def _describe_counters(counted: Counters, setup: Setup) -> str:
    """Describe in words the counters that matter."""
    engine = counted.engine
    reads, read_bytes = engine.get("runs", 0), engine.get("bytes", 0)
    words = [f"{counted.samples:,} samples"]
    if reads:
        words.append(f"{reads:,} reads of {read_bytes / reads:,.0f} bytes")
        words.append(f"{engine['opens']:,} opens" if "opens" in engine else "")
    busy_ns, work_ns = engine.get("busy_ns", 0), engine.get("work_ns", 0)
    if busy_ns:
        words.append(f"{read_bytes / busy_ns * 1e3:,.0f} MB/s and {reads / busy_ns * 1e9:,.0f} /s")
        if setup.reads_max and setup.backend in ("pread", "mmap"):
            at_work = min(1.0, work_ns / (busy_ns * setup.reads_max))
            words.append(f"{setup.reads_max} threads reading {at_work:.0%} of it")
    if counted.decode_busy_ns:
        words.append(
            f"{counted.decode_cpu_ns * 1e-9:.3g} s of processors in "
            f"{counted.decode_busy_ns * 1e-9:.3g} s of decoding"
        )
    if counted.failed:
        words.append(f"{counted.failed:,} batches failed")
    return ", ".join(word for word in words if word)


def _format_time(time_ns: int) -> str:
    for unit, size in (("s", 1_000_000_000), ("ms", 1_000_000), ("us", 1_000)):
        if time_ns >= size:
            return f"{time_ns / size:.3g} {unit}"
    return f"{time_ns} ns"
