"""Runs one race: sweep each reference for its best setting, then pair that with penstock.

Every contender first runs a verifying epoch over every byte. Whoever disagrees with the first one
about the number of samples or their sum has no result.
"""

from __future__ import annotations

import resource
import sys
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field, replace
from itertools import chain
from pathlib import Path
from statistics import median
from typing import Any

from .contender import Candidate, Contender, ContenderError, Measurement
from .corpus import resident_pages
from .pairing import Comparison, Pairs, compare, epochs_per_block
from .record import Row
from .suite import Race, Reference

SUBJECT = "penstock"
UNIT = "samples/s"
SLOW_S = 2.0
PAGE_BYTES = resource.getpagesize()
RESIDENT_MAX = 0.01


@dataclass(frozen=True, slots=True)
class Effort:
    """Pairs for rows with a target and for those without, and how many settings to try.

    `quick` tries the first candidate only, which is the one that usually wins.
    """

    gated: Pairs
    informative: Pairs
    candidates_max: int

    @classmethod
    def full(cls) -> Effort:
        return cls(Pairs(8, 6, 20), Pairs(3, 2, 4), candidates_max=5)

    @classmethod
    def quick(cls) -> Effort:
        return cls(Pairs(3, 2, 6), Pairs(2, 1, 1), candidates_max=1)


@dataclass(slots=True)
class Truth:
    """The sum that an epoch must add up to, as told by the first contender that finished one."""

    samples: int | None = None
    total: int | None = None
    touch: int | None = None

    def check_verified(self, samples: int, total: int) -> None:
        if self.samples is None:
            self.samples, self.total = samples, total
        if (samples, total) != (self.samples, self.total):
            raise ContenderError(
                f"wrong data: {samples} samples with sum {total}, "
                f"the first contender saw {self.samples} with sum {self.total}"
            )

    def check_touched(self, measured: Measurement) -> None:
        assert self.samples is not None
        epochs, rest = divmod(measured.samples, self.samples)
        if self.touch is None:
            self.touch = measured.touch // epochs
        if rest or measured.touch != self.touch * epochs:
            raise ContenderError(
                f"wrong data: {measured.samples} samples with touch {measured.touch}; "
                f"an epoch has {self.samples} with touch {self.touch}"
            )


@dataclass(slots=True)
class Running:
    """A contender that has proved its data, with its first measurement."""

    contender: Contender
    first: Measurement
    epoch_seconds: float


@dataclass(slots=True)
class Result:
    """Rows of a race and everything they were made of."""

    rows: list[Row] = field(default_factory=list)
    raw: dict[str, Any] = field(default_factory=lambda: {"sweeps": {}, "pairs": {}})


def run_race(race: Race, effort: Effort, only: frozenset[str], seed: int) -> Result:
    """One race; a contender that fails is a row with its error."""
    path = race.path()
    race.prepare(path)
    with ExitStack() as stack:
        result = Course(race, effort, seed, stack).run(only)
    if race.cold:
        refuse_if_warm(path, result)
    return result


def refuse_if_warm(path: Path, result: Result) -> None:
    """Takes the verdict from rows whose file ended up in the page cache: they were not cold."""
    pages = resident_pages(path)
    result.raw["resident_pages_after"] = pages
    if pages is None:
        note = "cannot tell whether the file stayed cold"
    elif pages * PAGE_BYTES > RESIDENT_MAX * path.stat().st_size:
        note = f"not cold: {pages} pages were in the page cache afterwards"
    else:
        return
    result.rows = [replace(row, met=False, note=f"{row.note}; {note}") for row in result.rows]


@dataclass(slots=True)
class Course:
    """One race while it runs; `stack` ends the contenders that are still there at its end."""

    race: Race
    effort: Effort
    seed: int
    stack: ExitStack
    truth: Truth = field(default_factory=Truth)
    result: Result = field(default_factory=Result)

    def run(self, only: frozenset[str]) -> Result:
        """All sweeps first, then all pairs, so that every pair meets the same warm subject."""
        best = {
            reference: self.sweep(reference)
            for reference in self.race.references
            if selected(reference.group, only)
        }
        subject: Running | str = "not selected"
        if selected(SUBJECT, only):
            subject = self.start(self.race.subject(), SUBJECT)
        for reference, running in best.items():
            self.result.rows.append(self.row(reference, subject, running))
        return self.result

    def sweep(self, reference: Reference) -> Running | str:
        """The fastest candidate, still running, or why there is none."""
        best: Running | str = "no candidate"
        try:
            candidates = reference.candidates()
        except RuntimeError as error:
            return str(error)
        for candidate in candidates[: self.effort.candidates_max]:
            running = self.start(candidate, reference.title)
            if isinstance(running, str):
                best = running if isinstance(best, str) else best
            elif isinstance(best, str) or running.epoch_seconds < best.epoch_seconds:
                if not isinstance(best, str):
                    best.contender.close()
                best = running
            else:
                running.contender.close()
        return best

    def start(self, candidate: Candidate, title: str) -> Running | str:
        """Starts, verifies and measures a candidate for the first time; its error if it fails."""
        label = f"{title} [{candidate.label}]"
        try:
            contender = self.stack.enter_context(Contender(candidate))
            self.truth.check_verified(*contender.verify())
            once = contender.measure(1)
            self.truth.check_touched(once)
            epochs = epochs_per_block(once.seconds)
            # One slow epoch says enough for a choice; a short one is measured again, as a block.
            block = once if once.seconds > SLOW_S else contender.measure(epochs)
            self.truth.check_touched(block)
        except ContenderError as error:
            self.result.raw["sweeps"][label] = {"error": str(error)}
            say(f"{self.race.name}: {label}: {error}")
            return str(error)
        self.result.raw["sweeps"][label] = {
            "about": contender.about,
            "blocks": [asdict(once), asdict(block)],
        }
        rate, cpu = block.rate_per_s, block.cpu_us_per_sample
        say(f"{self.race.name}: {label}: {rate:,.0f}/s, {cpu:.2f} us CPU")
        return Running(contender, block, block.seconds / epochs)

    def row(self, reference: Reference, subject: Running | str, running: Running | str) -> Row:
        """The row of one reference."""
        name = f"{self.race.name} / {reference.title}"
        if isinstance(subject, str) or isinstance(running, str):
            return failed(name, reference, subject, running)
        try:
            comparison = self.pair(reference, subject, running)
        except ContenderError as error:
            return failed(name, reference, subject, str(error))
        label = running.contender.candidate.label
        row = compared(name, label, reference, comparison, self.seed)
        running.contender.close()
        self.result.raw["pairs"][name] = {
            "candidate": label,
            "ratios": comparison.ratios,
            "blocks": [[asdict(one), asdict(other)] for one, other in comparison.pairs],
            "idle_cpu_share": {
                SUBJECT: idle_share(subject.contender),
                reference.title: idle_share(running.contender),
            },
        }
        say(f"{name}: ratio {row.ratio:.2f} ({row.low:.2f}..{row.high:.2f})")
        return row

    def pair(self, reference: Reference, subject: Running, running: Running) -> Comparison:
        """The turns of the two, every block checked."""
        comparison = compare(
            subject.contender,
            subject.epoch_seconds,
            running.contender,
            running.epoch_seconds,
            self.effort.informative if reference.target is None else self.effort.gated,
        )
        for measured in chain.from_iterable(comparison.pairs):
            self.truth.check_touched(measured)
        return comparison


def selected(group: str, only: frozenset[str]) -> bool:
    """True if `--only` lets a group take part."""
    return not only or group in only


def compared(name: str, label: str, reference: Reference, comparison: Comparison, seed: int) -> Row:
    """Medians over the pairs."""
    low, high = comparison.interval(seed)
    ours, theirs = zip(*comparison.pairs, strict=True)
    target = reference.target
    return Row(
        name=name,
        value=median([one.rate_per_s for one in ours]),
        unit=UNIT,
        floor=median([one.rate_per_s for one in theirs]),
        ratio=comparison.ratio,
        target=target,
        met=None if target is None else comparison.ratio >= target,
        low=low,
        high=high,
        cpu_us_per_sample=median([one.cpu_us_per_sample for one in ours]),
        floor_cpu_us_per_sample=median([one.cpu_us_per_sample for one in theirs]),
        note=label,
    )


def failed(name: str, reference: Reference, subject: Running | str, running: Running | str) -> Row:
    """A row without a ratio is missed if the subject failed, and else has no verdict."""
    notes = []
    if isinstance(running, str):
        notes.append(f"{reference.title}: {running}")
    else:
        notes.append(running.contender.candidate.label)
    if isinstance(subject, str):
        notes.append(f"{SUBJECT}: {subject}")
    return Row(
        name=name,
        value=None if isinstance(subject, str) else subject.first.rate_per_s,
        unit=UNIT,
        floor=None if isinstance(running, str) else running.first.rate_per_s,
        target=reference.target,
        met=False if reference.target is not None and isinstance(subject, str) else None,
        cpu_us_per_sample=None if isinstance(subject, str) else subject.first.cpu_us_per_sample,
        floor_cpu_us_per_sample=(
            None if isinstance(running, str) else running.first.cpu_us_per_sample
        ),
        note="; ".join(notes),
    )


def idle_share(contender: Contender) -> float:
    """CPU use of a contender while it should have slept, as a share of one core."""
    return contender.idle_cpu_seconds / max(contender.idle_seconds, 1e-9)


def say(text: str) -> None:
    """Progress, apart from the table."""
    print(text, file=sys.stderr, flush=True)
