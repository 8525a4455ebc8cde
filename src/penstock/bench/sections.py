"""The parts of the benchmark's page: each a heading, what is drawn, and its numbers. Pure.

Each takes runs and yields nothing where they know nothing of it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from xml.etree.ElementTree import Element

import numpy as np

from ..page import chart, document
from ..page.svg import element
from ..page.words import counted, duration, latency, number, percent, size, time_unit
from . import compare
from .headline import ceilings_of, factor, interval, resource
from .recorded import Floats
from .recorded import RecordedEpoch as Epoch
from .recorded import RecordedRun as Run

KINDS = ("k-accent", "k-orange", "k-green", "k-purple", "k-amber", "k-sky", "k-grey", "k-ink")
"""Colours of runs, in their order."""

_parts = ("computing", "waiting", "barrier", "other")
_part_names = ("computing", "waiting for a batch", "at the barrier", "other")
_most_columns = 60
_most_bins = 240
_label_letters = 28
_histogram_bins = 36


def bytes_said(count: float) -> str:
    return size(count / 1e6)


def _whole(share: float) -> str:
    return f"{100 * share:.0f} %"


def short(label: str) -> str:
    """A name that fits beside a bar."""
    return label if len(label) <= _label_letters else f"{label[: _label_letters - 1]}…"


# -- loaders beside each other ---------------------------------------------------------------------


def loaders(runs: Sequence[Run]) -> Iterator[Element]:
    """What each run reached, metric by metric, and how it compares with the first."""
    rows = compare.compare_runs(runs)
    if not rows:
        return
    if len(runs) == 1:
        figures = [document.row(row.metric.name, [_cells(row)[0]]) for row in rows]
        yield document.folded("All figures", document.tabled(["", runs[0].label], figures))
        return
    yield element("h2", "The loaders compared")
    drawn = {
        "samples/s": "samples/s",
        "utilisation": "utilisation of the accelerators",
        "wait for a batch, p99": "wait for a batch, p99",
        "CPU seconds per 1,000 samples": "CPU seconds per 1,000 samples",
        "peak memory": "peak memory",
        "first batch after": "first batch after",
    }
    panels = []
    for row in rows:
        values = [each or 0.0 for each in row.values]
        if row.metric.name not in drawn or not max(values):
            continue
        bars = [
            chart.Named(
                short(run.label),
                _said(row, place),
                [(values[place] / max(values), f"fill {kind}")],
            )
            for place, (run, kind) in enumerate(zip(runs, kinds(runs), strict=True))
        ]
        said = ", ".join(f"{bar.label} {bar.note}" for bar in bars)
        better = "more is better" if row.metric.better > 0 else "less is better"
        name = drawn[row.metric.name]
        panels.append(document.panel(name, better, chart.named_bars(f"{name}: {said}", bars)))
    yield element("div", *panels, class_="panels figures")
    headings = ["", *(run.label for run in runs)]
    table = document.tabled(
        headings, [document.row(row.metric.name, _cells(row)) for row in rows], "named"
    )
    told = f"Small print: the ratio to {runs[0].label}. {compare.basis(runs)}"
    yield document.figure(told, table)


def _cells(row: compare.MetricRow) -> list[Element]:
    cells = []
    for place, value in enumerate(row.values):
        ratio = row.ratios[place]
        more = ""
        if ratio is not None:  # what wraps is the words
            told = interval(ratio).replace(" ", "\u00a0")
            more = f"{told} {compare.judge_ratio(row, place)}".strip()
        cells.append(document.cell(_said(row, place), value, more))
    return cells


def _said(row: compare.MetricRow, place: int) -> str:
    value = row.values[place]
    return "–" if value is None else row.metric.said(value)


def kinds(runs: Sequence[Run]) -> list[str]:
    """The colour of each run."""
    return [KINDS[place % len(KINDS)] for place in range(len(runs))]


# -- where time went -------------------------------------------------------------------------------

_shares = {"compute": 0, "storage_wait": 1, "barrier": 2, "other": 3}


def time(runs: Sequence[Run]) -> Iterator[Element]:
    """The shares of an epoch's time, and the run from its start to its end."""
    yield element("h2", "Where time went")
    known = [run for run in runs if any(run.get("decomposition", name) for name in _shares)]
    if known:
        rows = []
        for run in known:
            parts = [run.get("decomposition", name) or 0.0 for name in _shares]
            note = f"{percent(parts[0])} computing"
            rows.append(chart.Named(short(run.label), note, list(zip(parts, _parts, strict=True))))
        said = "; ".join(f"{row.label}: {row.note}" for row in rows)
        yield document.figure(
            "Shares of the accelerators' time, in steps that are measured.",
            document.legend(_parts, _part_names),
            chart.named_bars(f"Where time went: {said}", rows),
        )
        headings = ["", "waiting for a batch", "at the barrier", "computing", "other"]
        order = ("storage_wait", "barrier", "compute", "other")
        yield document.tabled(
            headings,
            [
                document.row(
                    run.label,
                    [known_cell(run.get("decomposition", name), percent) for name in order],
                )
                for run in known
            ],
        )
    yield from _phases(runs)


_phase_kinds = ("setup", "peers", "computing", "local", "storage")
_phase_names = ("start-up", "staging", "training", "evaluation", "checkpoints")


def _phases(runs: Sequence[Run]) -> Iterator[Element]:
    phases = [_phases_of(run) for run in runs]
    if not any(sum(each) for each in phases):
        return
    yield element("h3", "From start to end")
    longest = max(sum(each) for each in phases)
    rows = [
        chart.Named(
            short(run.label),
            duration(sum(each)),
            [(part / longest, kind) for part, kind in zip(each, _phase_kinds, strict=True)],
        )
        for run, each in zip(runs, phases, strict=True)
    ]
    said = "; ".join(f"{row.label}: {row.note}" for row in rows)
    yield document.figure(
        "Phases of the run by the clock on the wall.",
        document.legend(_phase_kinds, _phase_names),
        chart.named_bars(f"Phases: {said}", rows),
    )
    for run, each in zip(runs, phases, strict=True):
        if each[1]:
            yield element("p", _staged(run, each), class_="soft")


def _phases_of(run: Run) -> list[float]:
    """Start-up, staging, training, evaluation, checkpoints, in seconds; an epoch's checkpoints are
    in its own time."""
    saving = sum(each.seconds or 0.0 for each in run.checkpoints)
    spent = {
        kind: sum(each.seconds or 0.0 for each in run.epochs if each.kind == kind)
        for kind in ("train", "eval")
    }
    return [
        run.get("startup_s") or 0.0,
        run.get("staging_s") or 0.0,
        max(0.0, spent["train"] - saving),
        spent["eval"],
        saving,
    ]


def _staged(run: Run, phases: Sequence[float]) -> str:
    said = f"{run.label}: staging took {duration(phases[1])}, {percent(phases[1] / sum(phases))} "
    said += "of the run"
    samples = sum(each.samples or 0.0 for each in run.epochs if each.kind == "train")
    if samples and phases[2]:
        rate = samples / (phases[1] + phases[2])
        said += f"; were it counted as training, that would be {number(rate)} samples/s"
    return f"{said}."


# -- over time -------------------------------------------------------------------------------------


def timeline(runs: Sequence[Run], asked: float | None) -> Iterator[Element]:
    """Shares by epoch, and by step within the epochs."""
    known = [run for run in runs if run.trained]
    if not known:
        return
    yield element("h2", "Utilisation over time")
    rule = "" if asked is None else f"utilisation asked for, {percent(asked)}"
    names = document.legend(_parts, _part_names, rule)
    panels = [_by_epoch(run, asked) for run in known]
    caption = f"Shares of the time of steps, epoch by epoch.{_shared(known)}"
    yield document.grid(caption, names, panels)
    yield element("h3", "Within the epochs, step by step")
    for run in known:
        yield document.figure(_binned(run), _by_step(run, asked))
    yield document.folded("Numbers of each epoch", *(_epochs(run) for run in known))


def _each(run: Run) -> int:
    """Epochs that share a column."""
    return -(-len(run.trained) // _most_columns)


def _shared(runs: Sequence[Run]) -> str:
    each = max(map(_each, runs))
    return "" if each == 1 else f" A column is the mean of up to {each} epochs."


def _fractions(sums: Floats) -> list[list[float]]:
    """Rows of parts as shares of their sum; nothing of nothing."""
    totals = sums.sum(axis=1, keepdims=True)
    shared = np.divide(sums, totals, out=np.zeros_like(sums), where=totals > 0)
    return [[float(part) for part in row] for row in shared]


def _by_epoch(run: Run, asked: float | None) -> Element:
    each = _each(run)
    sums = np.array([epoch.parts_s[run.measured(epoch)].sum(axis=0) for epoch in run.trained])
    grouped = np.add.reduceat(sums, np.arange(0, len(sums), each), axis=0)
    stacks = _fractions(grouped)
    first, last = stacks[0][0], stacks[-1][0]
    note = percent(first) if len(stacks) == 1 else f"first {percent(first)}, last {percent(last)}"
    drawn = chart.columns(
        f"Computing by epoch, {run.label}: {note}",
        stacks,
        _parts,
        high=1.0,
        said=_whole,
        marks=[] if asked is None else [asked] * len(stacks),
        first=run.trained[0].number,
        last=run.trained[-1].number,
    )
    return document.panel(run.label, note, drawn)


def _steps_a_bin(run: Run) -> int:
    return -(-sum(each.steps for each in run.trained) // _most_bins)


def _binned(run: Run) -> str:
    each = _steps_a_bin(run)
    said = f"{run.label}: all steps, means of the ranks; the full height is all of the time"
    return f"{said}." if each == 1 else f"{said}. What is drawn is the mean of {each} steps."


def _by_step(run: Run, asked: float | None) -> Element:
    each = _steps_a_bin(run)
    bounds = [0]
    stacks: list[list[float]] = []
    if len(run.trained) > _most_bins // 4:  # too many to tell apart: they share bins
        joined = np.concatenate([epoch.parts_s for epoch in run.trained])
        stacks = _fractions(np.add.reduceat(joined, np.arange(0, len(joined), each), axis=0))
        bounds.append(len(stacks))
        names = [f"epochs {run.trained[0].number:,} to {run.trained[-1].number:,}"]
    else:
        for epoch in run.trained:
            starts = np.arange(0, epoch.steps, each)
            stacks += _fractions(np.add.reduceat(epoch.parts_s, starts, axis=0))
            bounds.append(len(stacks))
        names = [f"epoch {epoch.number:,}" for epoch in run.trained]
    steps = counted(sum(epoch.steps for epoch in run.trained), "step")
    return chart.shares(
        f"Shares of time by step, {run.label}; the table has the numbers of each epoch",
        stacks,
        _parts,
        bounds=bounds,
        names=names,
        across=f"{steps}, from the first to the last",
        rule=asked,
    )


def _epochs(run: Run) -> Element:
    headings = [f"{run.label}, epoch", "kind", "took", "samples/s", "computing", "waiting"]
    headings += ["wait p50", "wait p99", "CPU", "delivered", "read", "of the device"]
    headings += ["cached before", "after"]
    shown = run.epochs[:_most_columns]
    rows = [_epoch(run, epoch) for epoch in shown]
    if len(shown) < len(run.epochs):
        more = f"and {counted(len(run.epochs) - len(shown), 'more epoch')}: see the record"
        rows.append(
            document.row("…", [element("td", more, class_="reason", colspan=len(headings) - 1)])
        )
    return document.tabled(headings, rows)


def _epoch(run: Run, epoch: Epoch) -> Element:
    shares = [None, None]
    waits: list[float | None] = [None, None]
    if epoch.steps:
        steps = run.measured(epoch)
        shares = _fractions(epoch.parts_s[steps].sum(axis=0, keepdims=True))[0][:2]  # type: ignore[assignment]
        known = epoch.wait_s[:, steps]
        known = known[~np.isnan(known)]
        waits = np.percentile(known, [50, 99]).tolist() if len(known) else waits
    rate = epoch.samples / epoch.seconds if epoch.samples and epoch.seconds else None
    cells = [
        element("td", epoch.kind),
        known_cell(epoch.seconds, duration),
        known_cell(rate, number),
        *(known_cell(share, percent) for share in shares),
        *(known_cell(wait, latency) for wait in waits),
        known_cell(epoch.total("cpu_s"), duration),
        known_cell(epoch.bytes, bytes_said),
        known_cell(epoch.total("read_bytes"), bytes_said),
        known_cell(epoch.total("device_bytes"), bytes_said),
        known_cell(epoch.cached_before, percent),
        known_cell(epoch.cached_after, percent),
    ]
    return document.row(f"{epoch.number:,}", cells)


def known_cell(value: float | None, said: Callable[[float], str]) -> Element:
    """A figure, or a dash."""
    return document.cell("–" if value is None else said(value), value)


# -- waiting ---------------------------------------------------------------------------------------


def stalls(runs: Sequence[Run]) -> Iterator[Element]:
    """How long batches are waited for: how often how long."""
    known = [run for run in runs if len(run.stalls_s)]
    if not known:
        return
    yield element("h2", "Waiting for a batch")
    every = np.concatenate([run.stalls_s for run in known])
    some = every[every > 0]
    low, high = (float(some.min()), float(some.max())) if len(some) else (1e-6, 1e-3)
    low, high = 10 ** math.floor(math.log10(low)), 10 ** math.ceil(math.log10(high) + 1e-9)
    edges = np.geomspace(low, high, _histogram_bins + 1)
    counts = {run.label: np.histogram(run.stalls_s, edges)[0].tolist() for run in known}
    zeros = {run.label: int((run.stalls_s <= 0).sum()) for run in known}
    most = max(max(counts[run.label] + [zeros[run.label]]) for run in known)
    panels = []
    for run, kind in zip(known, kinds(known), strict=True):
        marks = [
            chart.Mark(f"p{q} {latency(value)}", value)
            for q in (50, 95, 99)
            if (value := _stall(run, q)) is not None
        ]
        longest = latency(float(run.stalls_s.max()))
        drawn = chart.histogram(
            f"Waits for a batch, {run.label}: {', '.join(mark.label for mark in marks)}, longest "
            f"{longest}",
            counts[run.label],
            zeros[run.label] if any(zeros.values()) else None,
            marks,
            low=low,
            high=high,
            most=most,
            said=latency,
            kind=kinds(runs)[list(runs).index(run)] if len(runs) > 1 else kind,
        )
        panels.append(document.panel(run.label, f"longest {longest}", drawn))
    yield element(
        "figure",
        element(
            "figcaption",
            "How many steps of ranks waited how long; both axes are logarithmic, all on one scale.",
        ),
        element("div", *panels, class_="panels"),
    )


def _stall(run: Run, percentile: int) -> float | None:
    """As the record has it, or by its steps."""
    found = run.get("stall_s", f"p{percentile}")
    return float(np.percentile(run.stalls_s, percentile)) if found is None else found


# -- what bounds it --------------------------------------------------------------------------------


def roofline(runs: Sequence[Run]) -> Iterator[Element]:
    """The measured point under each ceiling."""
    yield element("h2", "What bounds it")
    known = [run for run in runs if ceilings_of(run)]
    if not known:
        yield element("p", "The ceilings of this machine and path were not measured.")
        return
    for run in known:
        found = ceilings_of(run)
        measured = run.get("roofline", "measured") or run.get("samples_per_s")
        rows = [
            chart.Ceiling(
                each.name,
                each.samples_per_s,
                f"{number(each.samples_per_s)} samples/s"
                + (f", {factor(each.samples_per_s / measured)} ×" if measured else ""),
                binding=not place,
            )
            for place, each in enumerate(found)
        ]
        point = None
        if measured:
            point = chart.Mark(f"measured: {number(measured)} samples/s", measured)
        said = ", ".join(f"{row.label} {row.note}" for row in rows)
        drawn = chart.ceilings(
            f"Ceilings of {run.label}: {said}", rows, point, "samples/s, logarithmic", number
        )
        yield document.figure(
            f"{run.label}: what each resource allows at most; {resource(found[0].name)} bind"
            f"{'' if found[0].name == 'compute' else 's'}.",
            drawn,
        )
        table = document.tabled(
            ["ceiling", "samples/s", "× measured", "how it was measured"],
            [
                document.row(
                    each.name,
                    [
                        known_cell(each.samples_per_s, number),
                        known_cell(each.samples_per_s / measured if measured else None, factor),
                        element("td", each.how or "–", class_="said"),
                    ],
                    "strong" if not place else None,
                )
                for place, each in enumerate(found)
            ],
        )
        yield document.folded(f"How the ceilings were measured, {run.label}", table)


# -- what was read ---------------------------------------------------------------------------------


def reading(runs: Sequence[Run]) -> Iterator[Element]:
    """Whether storage was measured, or memory: what was cached, and what the device gave."""
    yield element("h2", "Was it storage that was measured?")
    known = [run for run in runs if any(_cached(each) for each in run.trained)]
    panels = []
    for run in known:
        each = _each(run)
        pairs = [
            (epoch.cached_before or 0.0, epoch.cached_after or 0.0) for epoch in run.trained[::each]
        ]
        first, last = pairs[0][0], pairs[-1][1]
        note = f"{_whole(first)} before the first epoch, {_whole(last)} after the last"
        drawn = chart.columns(
            f"Share of the data in the page cache by epoch, {run.label}: {note}",
            [(min(before, after), max(0.0, after - before)) for before, after in pairs],
            ("local", "peers"),
            high=1.0,
            said=_whole,
            first=run.trained[0].number,
            last=run.trained[-1].number,
        )
        panels.append(document.panel(run.label, note, drawn))
    if panels:
        names = document.legend(
            ("local", "peers"), ("in the page cache before the epoch", "added by it")
        )
        caption = "The share of the data in the page cache of this host, epoch by epoch."
        yield document.grid(caption, names, panels)
    else:
        yield element("p", "What was in the page cache is not known.", class_="soft")
    headings = ["", "delivered", "read by the process", "of the device", "× delivered, read"]
    headings += ["× delivered, device", "every byte checked"]
    yield document.tabled(headings, [_read(run) for run in runs])


def _cached(epoch: Epoch) -> bool:
    return epoch.cached_before is not None or epoch.cached_after is not None


def _read(run: Run) -> Element:
    delivered, read = run.delivered_bytes, run.total("read_bytes")
    device = run.get("device_bytes")
    device = run.total("device_bytes") if device is None else device
    verified = run.values.get("verified")
    checked = "no" if verified is None else "yes" if verified else "other bytes came"
    cells = [known_cell(each, bytes_said) for each in (delivered, read, device)]
    for each in (read, device):
        known = each is not None and delivered
        cells.append(known_cell(each / delivered if known else None, factor))  # type: ignore[operator]
    return document.row(run.label, [*cells, element("td", checked)])


# -- checkpoints, ranks ----------------------------------------------------------------------------


def checkpoints(runs: Sequence[Run]) -> Iterator[Element]:
    """What saving took."""
    known = [run for run in runs if any(each.seconds is not None for each in run.checkpoints)]
    if not known:
        return
    yield element("h2", "Checkpoints")
    high = max(each.seconds or 0.0 for run in known for each in run.checkpoints)
    unit, name = time_unit(high)
    panels, rows = [], []
    for run in known:
        seconds = np.array([each.seconds for each in run.checkpoints if each.seconds is not None])
        groups = np.array_split(seconds, min(len(seconds), _most_columns))
        mean = float(seconds.mean())
        note = f"{counted(len(seconds), 'checkpoint')}, {duration(mean)} on average"
        drawn = chart.columns(
            f"Time of each checkpoint, {run.label}: {note}",
            [[float(group.mean()) / unit] for group in groups],
            ("storage",),
            high=high / unit,
            said=number,
            last=len(seconds),
            across="checkpoint",
        )
        panels.append(document.panel(run.label, note, drawn))
        rates = [
            each.bytes / each.seconds for each in run.checkpoints if each.bytes and each.seconds
        ]
        sizes = [each.bytes for each in run.checkpoints if each.bytes is not None]
        cells = [
            known_cell(float(len(seconds)), number),
            known_cell(float(np.mean(sizes)) if sizes else None, bytes_said),
            known_cell(mean, duration),
            known_cell(float(seconds.min()), duration),
            known_cell(float(seconds.max()), duration),
            known_cell(
                float(np.mean(rates)) if rates else None, lambda rate: f"{bytes_said(rate)}/s"
            ),
        ]
        rows.append(document.row(run.label, cells))
    yield document.figure(
        f"How long each checkpoint took, in {name}; all on one scale.",
        element("div", *panels, class_="panels"),
    )
    headings = ["", "checkpoints", "size", "mean", "shortest", "longest", "mean rate"]
    yield document.tabled(headings, rows)


def ranks(runs: Sequence[Run]) -> Iterator[Element]:
    """What each rank did, where there are several."""
    known = [run for run in runs if run.trained and len(run.trained[0].ranks) > 1]
    if not known:
        return
    yield element("h2", "Rank by rank")
    sums = {run.label: _by_rank(run) for run in known}
    high = max(float(each.sum(axis=1).max()) for each in sums.values())
    unit, name = time_unit(high)
    panels = []
    for run in known:
        found = sums[run.label]
        waits = found[:, 1] / found.sum(axis=1)
        note = f"waiting {percent(float(waits.min()))} to {percent(float(waits.max()))}"
        drawn = chart.columns(
            f"Time of each rank, {run.label}: {note}",
            (found / unit).tolist(),
            _parts,
            high=high / unit,
            said=number,
            first=0,
            last=len(found) - 1,
            across="rank",
        )
        panels.append(document.panel(run.label, note, drawn))
    caption = f"What each rank spent its measured steps on, in {name}; all on one scale."
    yield document.grid(caption, document.legend(_parts, _part_names), panels)


def _by_rank(run: Run) -> Floats:
    """Ranks x parts, in seconds over all measured steps."""
    total = np.zeros((len(run.trained[0].ranks), len(_parts)))
    for epoch in run.trained:
        found = epoch.by_rank_s[:, run.measured(epoch)].sum(axis=1)
        total[: len(found)] += found[: len(total)]
    return total
