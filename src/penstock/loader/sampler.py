"""Sampler of a run: the samples of this rank at each step, and the position of the run.

It holds order, geometry and cursor. These are settled at first use and not before, because a
program may start torch.distributed after it has created its loaders.
"""

from __future__ import annotations

import os
import sys
import warnings
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple, Protocol

from .. import limits
from ..arguments import check_flag, check_whole
from ..errors import UsageError
from ..order import Marks, Order, Ordering, Selection, find_base
from ..plan import Assignment, Cursor, Identity, Ids, Locality, Steps, Uses
from ..topology import Place, detect, suspect_processes
from .peer_check import PeerCheck


class RankShare(NamedTuple):
    """One rank's samples in one step; `repeats` of them, at the end, fill a padded step."""

    step: int
    ids: Ids
    repeats: int
    marks: Marks


class OrderChoice(Protocol):
    """Choice of the order at first use, unless a resumed state decides it."""

    @property
    def record(self) -> Mapping[str, Any]:
        """The choice and its reason; empty before it is made."""
        ...

    def choose(self, place: Place, steps: Steps) -> Ordering:
        """Choose the order for these steps; the result is the same on all ranks."""
        ...

    def resume_order(self, algorithm: str) -> Ordering | None:
        """Return the order that a state names, or None if it is not one of the choices."""
        ...


class StepSampler:
    """Sampler that deals the samples of `order` to steps and ranks.

    choice:            decides the order at first use; `order` then only gives its length.
    batch_size:        samples of one rank in a step; or
    global_batch_size: samples of all ranks in a step.
    drop_last, pad:    treatment of the last step, see `Steps`.
    assignment:        which rank has which samples of a step, see `Steps`.
                       "local" needs the locality that `begin` is given.
    place:             of this process; None detects it at first use.
    check_peers:       the processes of one data coordinate compare every so many steps.
    fingerprint:       identity of the data.
    """

    def __init__(
        self,
        fingerprint: str,
        order: Ordering,
        *,
        batch_size: int | None,
        global_batch_size: int | None,
        drop_last: bool,
        pad: bool,
        place: Place | None,
        choice: OrderChoice | None = None,
        assignment: Assignment = "strided",
        check_peers: int | None = None,
    ) -> None:
        if batch_size is not None and global_batch_size is not None:
            raise UsageError("batch_size and global_batch_size are both given: choose one")
        self._requested_order = order
        self._choice = choice
        self._order: Ordering | None = None
        self._resumed: Ordering | None = None  # from a state, which decides instead of the choice
        self._cursor: Cursor | None = None
        self.drop_last = check_flag("drop_last", drop_last)
        self.pad = check_flag("pad", pad)
        self.assignment = assignment
        self._fingerprint = fingerprint
        self._batch_size = None if batch_size is None else check_whole("batch_size", batch_size)
        self._global_batch_size = (
            None
            if global_batch_size is None
            else check_whole("global_batch_size", global_batch_size)
        )
        self._peer_check = None
        if check_peers is not None:
            self._peer_check = PeerCheck(check_peers, fingerprint)
            if place is None or place.readers is None:
                raise UsageError(
                    f"check_peers={check_peers} compares the processes of one data coordinate, "
                    "and nothing says that there are several: give place= a mesh, a sharding, or "
                    "Place(rank, world_size, readers=...)"
                )
        self._requested_place = place
        self._settled: tuple[Place, Steps] | None = None
        if place is not None:
            self._settle()
        else:  # arguments that do not suit one rank suit no world size
            self._make_steps(1)

    def __len__(self) -> int:
        """Steps of an epoch, the same on every rank."""
        return len(self.steps)

    @property
    def place(self) -> Place:
        """Rank, world size, and their source."""
        return self._settle()[0]

    @property
    def place_if_settled(self) -> Place | None:
        return None if self._settled is None else self._settled[0]

    @property
    def steps(self) -> Steps:
        """The geometry of an epoch."""
        return self._settle()[1]

    @property
    def seed(self) -> int:
        return self._requested_order.seed

    @property
    def shuffle(self) -> str:
        """Requested shuffle, "auto" included."""
        return self._requested_order.shuffle if self._choice is None else "auto"

    @property
    def choice_record(self) -> dict[str, Any]:
        """Record of the choice and its reason; empty if the order was not left to a choice."""
        return {} if self._choice is None else dict(self._choice.record)

    def count_draws(self) -> list[int]:
        """Count the samples drawn from each dataset before the run's position, over all epochs."""
        cursor, steps = self.cursor, self.steps
        return self.order.at_epoch(cursor.epoch).count_drawn(
            min(cursor.step * steps.global_batch, len(self._requested_order))
        )

    @property
    def order(self) -> Ordering:
        """Order of epoch 0. The first access makes the choice, if there is one to make."""
        if self._order is None:
            place, steps = self._settle()
            chosen = self._requested_order if self._choice is None else self._resumed
            if chosen is None and self._choice is not None:
                chosen = self._choice.choose(place, steps)
            assert chosen is not None
            self._order = chosen.for_steps(steps.global_batch, len(steps))
        return self._order

    @property
    def order_if_settled(self) -> Ordering | None:
        return self._order

    @property
    def cursor(self) -> Cursor:
        if self._cursor is None:
            steps, order = self.steps, self.order
            identity = Identity(self._fingerprint, order.algorithm, order.seed, steps.global_batch)
            self._cursor = Cursor(identity, len(steps))
        return self._cursor

    def restore(self, state: Mapping[str, Any]) -> None:
        """Move to the position of `state`, on the ranks there are now.

        The order becomes that of the state, if the order is a matter of choice. Raises StateError
        if the state does not fit; nothing has changed then.
        """
        was = self._settled, self._order, self._cursor, self._resumed
        if state and self._find_new_place() is not None:
            self._settled = self._order = self._cursor = None
        if self._choice is not None and isinstance(state, Mapping):
            order = self._choice.resume_order(str(state.get("order")))
            if order is not None:
                self._resumed, self._order, self._cursor = order, None, None
        try:
            self.cursor.restore(state, self.place.world_size)
        except BaseException:
            self._settled, self._order, self._cursor, self._resumed = was
            raise

    @property
    def rank_samples(self) -> int:
        """Number of samples of this rank in an epoch, repeats included."""
        steps = self.steps
        last = steps.rows(len(steps) - 1, self.place.rank)
        return (len(steps) - 1) * steps.rows(0, self.place.rank) + last

    def iterate_shares(self, epoch: int, first: int = 0) -> Iterator[RankShare]:
        """Generate the samples of this rank, step by step from `first` on."""
        steps, rank, order = self.steps, self.place.rank, self.order.at_epoch(epoch)
        window = steps.window(rank)
        while first < len(steps):
            last = min(len(steps), first + window)
            positions, bounds, repeats = steps.positions(first, last, rank, order)
            edges = bounds.tolist()
            ids, marks = order.rows(positions)
            for k, step in enumerate(range(first, last)):
                part = slice(edges[k], edges[k + 1])
                own = {name: column[part] for name, column in marks.items()}
                yield RankShare(step, ids[part], repeats if step >= steps.full else 0, own)
            first = last

    def record_step(self, epoch: int, step: int) -> None:
        """Record that the steps before `step` of `epoch` have been handed over.

        If a check of peers is due, it comes first: UsageError if their samples differ.
        """
        if self._peer_check is not None and self._peer_check.is_due(step):
            done = step - 1
            positions, _, _ = self.steps.positions(
                done, step, self.place.rank, order := self.order.at_epoch(epoch)
            )
            self._peer_check.compare(self.place, epoch, done, order.rows(positions)[0])
        self.cursor.move(epoch, step)

    def find_uses(self, epoch: int, ranks: tuple[int, ...]) -> Uses:
        """Return the times at which these ranks use samples, as seen from an epoch.

        Raises UsageError if the order has no inverse, or if the assignment depends on samples.
        """
        order = self.order
        if (
            not isinstance(order, Order | Selection)
            or find_base(order) is None
            or (self.assignment == "local")
        ):
            raise UsageError(
                "Cache.replicas is True, but the next use of a sample by a rank is known only for "
                "one dataset (not a mixture) with assignment='strided' or 'contiguous': leave "
                "replicas out (assignment='local' does not need them)"
            )
        return Uses(order, self.steps, ranks, epoch)

    def renew_place(self) -> Place:
        """Look up again, before an epoch, on which ranks it runs, and return this rank's place.

        A process group may have been started since the place was first looked up. Raises UsageError
        if it is another one in the middle of an epoch.
        """
        now = self._find_new_place()
        if now is not None:
            self._settle_again(now)
        return self.place

    def begin(self, locality: Locality | None = None) -> tuple[int, int]:
        """Begin an epoch on the ranks there are now. Returns the epoch and its first step.

        locality:  for "local": the nodes that keep samples, and the nodes of the ranks; the same
                   on every rank.
        """
        assert (locality is not None) == (self.assignment == "local"), "only local needs nodes"
        place = self.renew_place()
        if self.steps.locality is not locality:
            self._settled = place, self._make_steps(place.world_size, locality)
        return self.cursor.begin()

    def _find_new_place(self) -> Place | None:
        """Return the process's current place if it differs from the settled one, else None."""
        if self._settled is None or self._requested_place is not None:
            return None
        was, now = self._settled[0], detect(None, None, os.environ, sys.modules)
        return None if (now.rank, now.world_size) == (was.rank, was.world_size) else now

    def _settle_again(self, now: Place) -> None:
        was, cursor = self.place, self._cursor
        if cursor is not None and cursor.step != 0 and cursor.begun:
            raise UsageError(
                f"the loader ran as rank {was.rank} of {was.world_size} ({was.source}) and is now "
                f"rank {now.rank} of {now.world_size} ({now.source}): create it after "
                "init_process_group, or pass rank= and world_size="
            )
        self._settled = self._order = self._cursor = None
        if cursor is not None and cursor.step != 0:  # from a state, which fits any ranks
            self.cursor.restore(cursor.state(), now.world_size)
        elif cursor is not None:
            self.cursor.set_epoch(cursor.next_epoch)

    def _settle(self) -> tuple[Place, Steps]:
        if self._settled is not None:
            return self._settled
        place = self._requested_place or detect(None, None, os.environ, sys.modules)
        if place.conflict is not None:
            warnings.warn(
                f"{place.conflict}, but {place.source} is initialised as rank {place.rank} of "
                f"{place.world_size}, which is used",
                stacklevel=4,
            )
        hint = suspect_processes(os.environ, sys.modules) if place.source == "default" else None
        if hint is not None:
            warnings.warn(
                f"{hint} says that JAX has other processes, but it is not initialised for them: "
                "this one takes all samples. Call jax.distributed.initialize() before the loader "
                "is used, or give place=",
                stacklevel=4,
            )
        self._settled = place, self._make_steps(place.world_size)
        return self._settled

    def _make_steps(self, world_size: int, locality: Locality | None = None) -> Steps:
        unknown = self.assignment == "local" and locality is None  # before the first epoch
        return Steps(
            len(self._requested_order),
            self._compute_global_batch(world_size),
            world_size,
            self.drop_last,
            self.pad,
            "strided" if unknown else self.assignment,
            locality,
        )

    def _compute_global_batch(self, world_size: int) -> int:
        samples = self._global_batch_size or (self._batch_size or 1) * world_size
        if samples > limits.order_count_max:
            raise UsageError(
                f"batch_size is {self._batch_size} on {world_size:,} ranks: a global batch has at "
                f"most 2^62 samples; lower batch_size"
            )
        return samples
