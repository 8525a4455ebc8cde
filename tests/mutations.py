"""python -m tests.mutations [NAME ...]: hand-made bugs of the cache's session, of what a rank of a
job does, of the protocol of checkpoints and of sharing, each of which the virtual cluster has to
find.

Each bug is an edit of `penstock.plan.cache_session`, or of the module that its name begins with;
mutations.txt lists them. The edited module is made in memory; no file changes. Scenarios are run
from seed 1 on until one fails, for at most `--seconds`. The exit code is 1 if a bug is not found.
"""

from __future__ import annotations

import argparse
import importlib
import itertools
import re
import sys
import time
import types
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import penstock.checkpoint
import penstock.sharing
from penstock.plan import cache_session
from tests.virtual import (
    JobParts,
    ScenarioError,
    SharingParts,
    draw_broker_scenario,
    draw_checkpoint_scenario,
    draw_job_scenario,
    draw_scenario,
    run_broker_scenario,
    run_checkpoint_scenario,
    run_job_scenario,
    run_scenario,
)
from tests.virtual.checkpoint_cluster import DECIDING, gather_parts

SHARING = [
    "job_state",
    "transfers",
    "ledger",
    "client",
    "transfer_permit",
    "federation",
    "broker_session",
]
"""Modules of `penstock.sharing` that decide, and are made anew with a bug in one of them; for
those of `penstock.checkpoint` see `tests.virtual.checkpoint_cluster.DECIDING`."""


JOBS = {
    "steps": ("plan", "steps", "Steps", "steps"),
    "session": ("plan", "readahead", "Session", "session"),
    "cursor": ("plan", "cursor", "Cursor", "cursor"),
    "step_reader": ("loader", "step_reader", "StepReader", "reader"),
    "ticket_router": ("loader", "step_reader", "TicketRouter", "router"),
}
"""Classes that decide what a rank of a job does: folder, module, name of the class, and its
name in `JobParts`."""


class Mutation(NamedTuple):
    """An edit that makes the session wrong."""

    name: str
    old: str
    new: str
    seed: int | None
    """One that finds it, where the first one that does comes late."""

    @property
    def module(self) -> str | None:
        """The module of `package` that is edited; None for the cache's session."""
        return self.name.partition(": ")[0] if ": " in self.name else None

    @property
    def seeds(self) -> list[int]:
        """The seeds that have to find it: its own, and those that half a minute of a core is enough
        for."""
        count = 2000 if self.module is None else 100 if self.module in SHARING else 1000
        return [*([] if self.seed is None else [self.seed]), *range(1, count + 1)]

    @property
    def package(self) -> types.ModuleType:
        """The package of the module."""
        if self.module in JOBS:
            return importlib.import_module(f"penstock.{JOBS[self.module][0]}")
        return penstock.sharing if self.module in SHARING else penstock.checkpoint

    @property
    def path(self) -> Path:
        """The file that is edited."""
        if self.module is None:
            return Path(cache_session.__file__)
        assert self.package.__file__ is not None
        module = JOBS[self.module][1] if self.module in JOBS else self.module
        return Path(self.package.__file__).with_name(f"{module}.py")


def read_mutations() -> list[Mutation]:
    """Read the list."""
    text = Path(__file__).with_suffix(".txt").read_text()
    piece = r"^## (.+?)(?:, seed (\d+))?\n((?:.*\n)+?)----\n((?:.*\n)+?)(?=\n## |\Z)"
    pieces = re.findall(piece, text, re.MULTILINE)
    assert len(pieces) == text.count("## "), "a bug is written in another way"
    return [
        Mutation(name, old[:-1], new[:-1], int(seed) if seed else None)
        for name, seed, old, new in pieces
    ]


def edit_source(mutation: Mutation) -> str:
    """Return the source of the module with the bug."""
    source = mutation.path.read_text()
    if source.count(mutation.old) != 1:
        raise ValueError(f"{mutation.name}: its piece stands {source.count(mutation.old)} times")
    return source.replace(mutation.old, mutation.new)


def make_session(mutation: Mutation) -> type[Any]:
    """Return the session with the bug."""
    code = compile(edit_source(mutation), cache_session.__file__, "exec")
    name = "penstock.plan.cache_session_with_a_bug"
    module = types.ModuleType(name)
    module.__package__ = "penstock.plan"
    sys.modules[name] = module
    try:
        exec(code, vars(module))
    finally:
        del sys.modules[name]
    session: type[Any] = module.CacheSession
    return session


def make_protocol(mutation: Mutation) -> types.SimpleNamespace:
    """Return the classes and functions of checkpoints with the bug."""
    return gather_parts(make_modules(mutation, list(DECIDING)))


def make_sharing(mutation: Mutation) -> SharingParts:
    """Return the classes of sharing with the bug."""
    modules = make_modules(mutation, SHARING)
    parts = SharingParts()
    homes = [modules[part.__module__.rpartition(".")[2]] for part in parts]
    return SharingParts(*(getattr(*pair) for pair in zip(homes, parts._fields, strict=True)))


def make_parts(mutation: Mutation) -> JobParts:
    """Return the classes that a job drives, with the bug in one of them."""
    assert mutation.module is not None
    folder, _, class_name, part = JOBS[mutation.module]
    name = f"penstock.{folder}.{mutation.module}_with_a_bug"
    module = types.ModuleType(name)
    module.__package__ = f"penstock.{folder}"
    sys.modules[name] = module
    try:
        exec(compile(edit_source(mutation), str(mutation.path), "exec"), vars(module))
    finally:
        del sys.modules[name]
    return JobParts()._replace(**{part: getattr(module, class_name)})


def make_modules(mutation: Mutation, deciding: list[str]) -> dict[str, types.ModuleType]:
    """Return the modules of a package that decide, made anew with the bug in one of them."""
    package = mutation.package
    names = [f"{package.__name__}.{name}" for name in deciding]
    kept = {name: sys.modules.pop(name) for name in names}
    edited = f"{package.__name__}.{mutation.module}"
    assert edited in kept, f"{edited} is none of the modules that decide"
    module = types.ModuleType(edited)
    module.__package__ = package.__name__
    sys.modules[edited] = module
    try:
        exec(compile(edit_source(mutation), str(mutation.path), "exec"), vars(module))
        return {name: importlib.import_module(f"{package.__name__}.{name}") for name in deciding}
    finally:
        for name in names:
            sys.modules.pop(name, None)
        sys.modules.update(kept)
        for name, original in kept.items():
            setattr(package, name.rpartition(".")[2], original)


def find_bug(mutation: Mutation, seeds: Iterable[int]) -> tuple[int, str] | None:
    """Return the first of these seeds that finds the bug, and what it says; None if none does."""
    if mutation.module is None:
        session = make_session(mutation)

        def run(seed: int) -> Any:
            return run_scenario(draw_scenario(seed), session_class=session)
    elif mutation.module in JOBS:
        job_parts = make_parts(mutation)

        def run(seed: int) -> Any:
            return run_job_scenario(draw_job_scenario(seed), parts=job_parts)
    elif mutation.module in SHARING:
        parts = make_sharing(mutation)

        def run(seed: int) -> Any:
            return run_broker_scenario(draw_broker_scenario(seed), parts=parts)
    else:
        protocol = make_protocol(mutation)

        def run(seed: int) -> Any:
            return run_checkpoint_scenario(draw_checkpoint_scenario(seed), parts=protocol)

    for seed in seeds:
        try:
            run(seed)
        except ScenarioError as error:
            return seed, str(error)
    return None


def count_seeds(seconds: float) -> Iterator[int]:
    """Give seeds from 1 on, for so long."""
    until_s = time.monotonic() + seconds
    return itertools.takewhile(lambda _: time.monotonic() < until_s, itertools.count(1))


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.mutations", description=__doc__)
    parser.add_argument("names", nargs="*", help="bugs to look for; all by default")
    parser.add_argument("--seconds", type=float, default=60, help="for each bug")
    options = parser.parse_args()
    missed = 0
    chosen = [each for each in read_mutations() if not options.names or each.name in options.names]
    for mutation in chosen:
        begin_s = time.monotonic()
        found = find_bug(mutation, count_seeds(options.seconds))
        spent_s = time.monotonic() - begin_s
        missed += found is None
        what = "NOT FOUND" if found is None else f"seed {found[0]}: {found[1]}"
        print(f"{spent_s:6.1f} s  {mutation.name}: {what}", flush=True)
    print(f"{len(chosen) - missed} of {len(chosen)} found")
    return int(missed > 0)


if __name__ == "__main__":
    sys.exit(main())
