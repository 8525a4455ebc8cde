"""Sampler of a run: the samples of this rank at each step, and the position of the run.

It holds order, geometry and cursor. These are settled at first use and not before, because a
program may start torch.distributed after it has created its loaders.
"""

from __future__ import annotations

import os
import sys
import warnings
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from operator import methodcaller
from typing import TYPE_CHECKING, Any, Literal, get_args

from .. import limits
from ..arguments import Path, check_choice, check_flag, check_whole
from ..budget import Budget
from ..dataset.dataset import Dataset
from ..dataset.packing import Buckets, bucket_orders, check_batch_tokens
from ..dataset.row_counting import EpochRows, RowTablePlace
from ..dataset.weighing import WeightsOf
from ..engine.threads import make_turn
from ..errors import StateError, UsageError
from ..order.order import Order, Ordering, Shuffle
from ..order.packed_order import PackedOrder, RowOrdering
from ..order.selection import Selection, find_base
from ..plan.assignment import Locality
from ..plan.cursor import Cursor, Identity
from ..plan.replica_policy import Uses
from ..plan.steps import Assignment, Steps
from ..ranks.gather import Gather
from ..ranks.place import Place, detect, suspect_processes
from .auto_shuffle import AutoShuffle
from .balancing import Balanced, Balancing, balance_costs, name_assignment
from .equal_batches import PeerCheck, Reweighing, WeightsRecord
from .workers import BatchTask, EpochTasks, identify_data

if TYPE_CHECKING:
    from ..cache.agreement import Cache


class StepSampler:
    """Sampler that deals the samples of `order` to steps and ranks.

    choice:            decides the order at first use, unless a resumed state does; of `order` only
                       the length is used then.
    batch_size:        samples of one rank in a step; or
    global_batch_size: samples of all ranks in a step.
    drop_last, pad:    treatment of the last step, see `Steps`.
    assignment:        which rank has which samples of a step, see `Steps`.
                       "local" needs the locality that `begin` is given.
    place:             of this process; None detects it at first use.
    check_peers:       number of steps after which the processes of a data coordinate compare.
    fingerprint:       identity of the data.
    reweighing:        orders under weights that are handed in; None refuses these.
    commit:            of the data at its hub, if it comes from one.
    row_table:         where counts of packed rows are kept.
    balancing:         costs of the samples, for "balanced".
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
        choice: AutoShuffle | None = None,
        assignment: Assignment = "strided",
        check_peers: int | None = None,
        reweighing: Reweighing | None = None,
        commit: str = "",
        row_table: RowTablePlace | None = None,
        balancing: Balancing | None = None,
    ) -> None:
        if batch_size is not None and global_batch_size is not None:
            raise UsageError("batch_size and global_batch_size are both given: choose one")
        self._requested_order = order
        self._has_rows = isinstance(order, PackedOrder)
        self._reweighing = reweighing
        self._weights: WeightsRecord | None = None  # those handed in
        self.choice = choice
        self._order: Ordering | None = None
        self._resumed: Ordering | None = None  # from a state, which decides instead of the choice
        self._cursor: Cursor | None = None
        self._row_table = row_table
        self._rows: EpochRows | None = None
        self.drop_last = check_flag("drop_last", drop_last)
        self.pad = check_flag("pad", pad)
        self.assignment = assignment
        self._balancing = balancing
        self._fingerprint, self._commit = fingerprint, commit
        sizes = {"batch_size": batch_size, "global_batch_size": global_batch_size}
        self._sizes = {name: check_whole(name, n) for name, n in sizes.items() if n is not None}
        self._peer_check = None
        if check_peers is not None:
            self._peer_check = PeerCheck(check_peers, fingerprint)
            if place is None or place.readers is None:
                what = f"check_peers={check_peers} compares the processes of a data coordinate"
                raise UsageError(f"{what}: give place= a mesh, a sharding, or Place(readers=...)")
        self._requested_place = place
        self._turn = make_turn()  # of the thread that settles, begins an epoch or restores
        self._settled: tuple[Place, Steps] | None = None
        if place is not None:
            self._settle()
        else:  # arguments that do not suit one rank suit no world size
            self._make_steps(1)

    def __len__(self) -> int:
        """Steps of an epoch, the same on every rank. Packed rows are counted for it."""
        return self.count_steps(self._cursor_epoch)

    def count_steps(self, epoch: int) -> int:
        """Count the steps of an epoch; `len` counts the current one's."""
        return len(self.find_steps(epoch, whole=True))

    def estimate_steps(self) -> int:
        """Estimate the steps of an epoch of packed rows; of samples, return their number."""
        rows = self.find_rows(self._cursor_epoch)
        if rows is None:
            return len(self.steps)
        known = rows.counts.estimate()
        return len(replace(self.steps, count=max(known, self.steps.global_batch)))

    @property
    def place(self) -> Place:
        """Rank, world size, and their source."""
        return self._settle()[0]

    @property
    def steps(self) -> Steps:
        """The geometry of an epoch. Of packed rows, without an end: see `find_steps`."""
        return self._settle()[1]

    def find_steps(self, epoch: int, whole: bool = False) -> Steps:
        """Return the geometry of an epoch.

        whole:  of packed rows, count all first. Else those of the first steps, and `Steps.extend`
                counts further.
        """
        rows = self.find_rows(epoch)
        if rows is None:
            return self.steps
        counts = rows.counts
        known = rows.count_all() if whole else counts.reach(self.steps.global_batch)
        if known == 0:
            raise UsageError("no document has a token: there are no rows to pack")
        return replace(self.steps, count=known, counter=counts)

    def find_rows(self, epoch: int) -> EpochRows | None:
        """Return the rows of an epoch, and the thread that counts them; None for samples."""
        if not self._has_rows:
            return None  # without the choice of an order, which may need a process group
        order = self.order
        assert isinstance(order, PackedOrder)
        with self._turn:
            rows = self._rows
            if rows is None or rows.order.epoch != epoch or rows.base is not order:
                if rows is not None:
                    rows.close()
                self._rows = rows = EpochRows(order, epoch, self.place, self._row_table)
            return rows

    def close(self) -> None:
        """End the thread that counts rows, if there is one."""
        if self._rows is not None:
            self._rows.close()
            self._rows = None

    @property
    def _has_batches(self) -> bool:
        """True if a row is a batch: then each rank has one a step."""
        order = self._requested_order
        return isinstance(order, PackedOrder) and not order.joins_documents

    @property
    def _cursor_epoch(self) -> int:
        return 0 if self._cursor is None else self._cursor.epoch

    @property
    def seed(self) -> int:
        return self._requested_order.seed

    @property
    def choice_record(self) -> dict[str, Any]:
        """Record of the choice and its reason; empty if the order was not left to a choice."""
        return {} if self.choice is None else dict(self.choice.record)

    def describe(self) -> str:
        """Describe the order and, if it is settled, the place, for the repr of a loader."""
        text = f"seed={self.seed}, shuffle={self._requested_order.shuffle!r}"
        if self.choice is not None:
            text = f"seed={self.seed}, shuffle='auto'"
            text += "" if self._order is None else f" ({self._order.algorithm})"
        if self._settled is None:
            return text
        place = self._settled[0]
        return f"{text}, rank {place.rank}/{place.world_size} ({place.source})"

    def count_draws(self) -> list[int]:
        """Count the samples drawn from each dataset before the run's position, over all epochs."""
        cursor, position = self.cursor, self.cursor.step * self.steps.global_batch
        if not isinstance(self.order, PackedOrder):
            position = min(position, len(self._requested_order))
        return self.order.at_epoch(cursor.epoch).count_drawn(position)

    @property
    def order(self) -> Ordering:
        """Order of epoch 0. The first access makes the choice, if there is one to make."""
        if (settled := self._order) is not None:
            return settled
        with self._turn:
            if self._order is None:
                place, steps = self._settle()
                chosen = self._requested_order if self.choice is None else self._resumed
                if chosen is None and self.choice is not None:
                    chosen = self.choice.choose(place, steps)
                assert chosen is not None
                self._order = chosen.for_steps(steps.global_batch, len(steps))
            return self._order

    @property
    def cursor(self) -> Cursor:
        return self._cursor or self._make_cursor()

    def _make_cursor(self) -> Cursor:
        with self._turn:
            if self._cursor is not None:
                return self._cursor
            steps, order = self.steps, self.order
            has_rows = isinstance(order, PackedOrder)
            unit = steps.world_size if self._has_batches else 1
            identity = Identity(
                self._fingerprint,
                order.algorithm,
                order.seed,
                steps.global_batch // unit,
                self._commit,
            )
            self._cursor = Cursor(identity, len(steps), self._weights, has_rows, unit)
            return self._cursor

    @property
    def position(self) -> dict[str, Any] | None:
        """Position of a run that has begun, or was restored or named; else None."""
        state = None if self._cursor is None else self._cursor.state()
        has_moved = state and (state["epoch"] or state["step"] or "weights" in state)
        return state if has_moved else None

    def restore_position(self, position: Mapping[str, Any] | None) -> None:
        """Go on at a position; at the begin of an epoch, with any batches."""
        if position is not None and (position["step"] or "weights" in position):
            self.restore(position)
        elif position is not None:
            self.set_epoch(position["epoch"])

    def restore(self, state: Mapping[str, Any]) -> None:
        """Move to the position of `state`, on the ranks there are now.

        The order becomes the state's, if the order is a matter of choice. Raises StateError
        if the state does not fit; nothing has changed then.
        """
        with self._turn:
            self._restore(state)

    def _restore(self, state: Mapping[str, Any]) -> None:
        was = self._settled, self._order, self._cursor, self._resumed
        weighed = self._requested_order, self._weights
        if isinstance(state, Mapping):
            self._resume_weights(state.get("weights"))
        if state and self._find_new_place() is not None:
            self._settled = self._order = self._cursor = None
        if self.choice is not None and isinstance(state, Mapping):
            order = self.choice.resume_order(str(state.get("order")))
            if order is not None:
                self._resumed, self._order, self._cursor = order, None, None
        try:
            self.cursor.check(state, self.place.world_size)
            rows = self.find_rows(state["epoch"])
            if rows is not None:
                row = state["step"] * state["global_batch"]
                rows.counts.resume_at(state["window"], state["before"], row)
            self.cursor.restore(state, self.place.world_size)
        except BaseException:
            self._settled, self._order, self._cursor, self._resumed = was
            self._requested_order, self._weights = weighed
            raise

    def state_at(self, epoch: int, step: int) -> dict[str, Any]:
        """Return the state of this run at another place."""
        rows = self.find_rows(epoch)
        unit = self.steps.world_size if self._has_batches else 1
        state = self.cursor.state() | {"epoch": epoch, "step": step * unit}
        if rows is not None:
            row = step * self.steps.global_batch
            place = rows.counts.locate(row - 1) if row else (0, 0)
            state |= dict(zip(("window", "before"), place, strict=True))
        return state

    def set_weights(
        self,
        weights: WeightsOf,
        columns: Mapping[str, Any] | None,
        path: Path | None,
        gather: Gather | None,
    ) -> None:
        """Weigh the samples again from the next epoch on; see `Loader.set_weights`."""
        cursor = self.cursor
        if cursor.begun or cursor.step:
            where = (
                f"in the middle of epoch {cursor.epoch} (step {cursor.step} of {len(self.steps)})"
            )
            remedy = f"end the epoch, or call set_epoch({cursor.epoch + 1}) first"
            raise UsageError(f"set_weights {where}: {remedy}")
        if self._reweighing is None or self.choice is not None:
            raise UsageError("set_weights needs a dataset of penstock, and a shuffle that is named")
        epoch = cursor.next_epoch
        self._requested_order, self._weights = self._reweighing.weigh(
            weights, columns, self._weights, epoch, self.renew_place(), path, gather
        )
        self._order = self._cursor = None
        self.cursor.set_epoch(epoch)

    def _resume_weights(self, record: Any) -> None:
        """Take over the weights of a state, unless they are the current ones."""
        now = None if self._weights is None else self._weights["digest"]
        if record is not None:
            is_record = isinstance(record, Mapping) and type(record.get("number")) is int
            if self._reweighing is None or not is_record:
                what = f"weights that were handed in ({record!r:.100})"
                raise StateError(f"the state has {what}: pass it to a loader that takes such")
        if (None if record is None else record.get("digest")) != now:
            assert self._reweighing is not None
            self._requested_order = self._reweighing.resume(record)
            self._order = self._cursor = None
        elif record is not None and record != self._weights:
            self._cursor = None
        self._weights = record

    @property
    def rank_samples(self) -> int:
        """Number of samples of this rank in an epoch, repeats included."""
        steps = self.find_steps(self._cursor_epoch, whole=True)
        last = steps.rows(len(steps) - 1, self.place.rank)
        return (len(steps) - 1) * steps.rows(0, self.place.rank) + last

    def tasks(self, epoch: int, first: int = 0) -> Iterator[BatchTask]:
        """Generate the samples of this rank, step by step from `first` on."""
        if isinstance(self.order, RowOrdering):
            what = "batch_tokens is for" if self._has_batches else "packed rows are laid out by"
            raise UsageError(f"{what} the loader that reads: leave out workers='processes'")
        steps, rank, order = self.steps, self.place.rank, self.order.at_epoch(epoch)
        key = Order(1, order.seed, epoch, purpose="augmentation").key()
        window = steps.window(rank)
        while first < len(steps):
            last = min(len(steps), first + window)
            positions, bounds, repeats = steps.positions(first, last, rank, order)
            edges = bounds.tolist()
            ids, marks = order.rows(positions)
            for k, step in enumerate(range(first, last)):
                rows = slice(edges[k], edges[k + 1])
                step_marks = {name: column[rows] for name, column in marks.items()}
                step_repeats = repeats if step >= steps.full else 0
                yield BatchTask(ids[rows], epoch, step, step_repeats, key, rank, step_marks)
            first = last

    def record_step(self, epoch: int, step: int) -> None:
        """Record that the steps before `step` of `epoch` have been handed over.

        If a check of peers is due, it comes first: UsageError if their samples differ.
        """
        if self._peer_check is not None and self._peer_check.is_due(step):
            done = step - 1
            order, steps = self.order.at_epoch(epoch), self.find_steps(epoch).extend(step)
            positions, _, _ = steps.positions(done, step, self.place.rank, order)
            self._peer_check.compare(self.place, epoch, done, order.rows(positions)[0])
        if not self._has_rows:
            (self._cursor or self.cursor).move(epoch, step)
            return
        rows = self.find_rows(epoch)
        assert rows is not None
        if self._is_end(epoch, step):
            if rows.counts.has_claim:  # of the state that this epoch went on from
                rows.count_all()
            self.cursor.move(epoch, limits.order_count_max)
        else:
            place = rows.counts.locate(step * self.steps.global_batch - 1)
            self.cursor.move(epoch, step, place)
        rows.start()  # not before: the first batch is to come soon
        rows.counts.check_claim()

    def end_epoch(self, epoch: int) -> None:
        """Do nothing: the last step was recorded."""

    def set_epoch(self, epoch: int) -> None:
        self.cursor.set_epoch(epoch)

    def _is_end(self, epoch: int, step: int) -> bool:
        """Return whether an epoch of packed rows ends before a step."""
        rows, needed = self.find_rows(epoch), (step + 1) * self.steps.global_batch
        try:
            if rows is not None and rows.counts.reach(needed) >= needed:
                return False
            return step >= len(self.find_steps(epoch).extend(step + 1))
        except Exception:  # of documents that come later: that step raises it
            return False

    def find_uses(self, epoch: int, ranks: tuple[int, ...]) -> Uses:
        """Return the times at which these ranks use samples, as seen from an epoch.

        Raises UsageError if the order has no inverse, or if the assignment depends on samples.
        """
        order = self.order
        if (
            not isinstance(order, Order | Selection)
            or find_base(order) is None
            or self.assignment in ("local", "balanced")
        ):
            known = "the next use of a sample is known for one dataset without weights"
            raise UsageError(f"Cache.replicas: {known}, 'strided' or 'contiguous': leave it out")
        return Uses(order, self.steps, ranks, epoch)

    def renew_place(self) -> Place:
        """Look up again, before an epoch, on which ranks it runs, and return this rank's place.

        A process group may have been started since the place was first looked up. Raises UsageError
        if it is another one in the middle of an epoch.
        """
        now, cursor, was = self._find_new_place(), self._cursor, self.place
        if now is None:
            return was
        if cursor is not None and cursor.step != 0 and cursor.begun:
            ranks = [f"rank {at.rank} of {at.world_size} ({at.source})" for at in (was, now)]
            what = f"the loader ran as {ranks[0]} and is now {ranks[1]}"
            raise UsageError(f"{what}: create it after init_process_group, or pass rank=")
        self._settled = self._order = self._cursor = None
        if cursor is not None and cursor.step != 0:  # from a state, which fits any ranks
            self.cursor.restore(cursor.state(), now.world_size)
        elif cursor is not None:
            self.cursor.set_epoch(cursor.next_epoch)
        return self.place

    @property
    def needs_locality(self) -> bool:
        """True if `begin` has to be told which nodes keep which samples."""
        balancing = self._balancing
        return self.assignment == "local" or (balancing is not None and balancing.needs_locality)

    def begin(self, locality: Locality | None = None) -> tuple[int, int]:
        """Start an epoch on the ranks there are now. Returns the epoch and its first step.

        locality:  if `needs_locality`: the nodes that keep samples, and the nodes of the ranks; the
                   same on every rank.
        """
        with self._turn:
            return self._begin(locality)

    def _begin(self, locality: Locality | None) -> tuple[int, int]:
        assert (locality is not None) == self.needs_locality, "only these need nodes"
        place, balance = self.renew_place(), self.steps.balance
        if (self.steps.locality if balance is None else balance.locality) is not locality:
            self._settled = place, self._make_steps(place.world_size, locality)
        if self._balancing is not None:
            epoch, step = self.cursor.peek()
            steps = self.find_steps(epoch).extend(step + 1)
            self._balancing.compare(place, steps, self.order.at_epoch(epoch), epoch, step)
        return self.cursor.begin()

    def _find_new_place(self) -> Place | None:
        """Return the process's current place if it differs from the settled one, else None."""
        if self._settled is None or self._requested_place is not None:
            return None
        was, now = self._settled[0], detect(None, None, os.environ, sys.modules)
        return None if (now.rank, now.world_size) == (was.rank, was.world_size) else now

    def _settle(self) -> tuple[Place, Steps]:
        if (settled := self._settled) is not None:
            return settled
        with self._turn:
            if self._settled is None:
                place = self._find_place()
                self._settled = place, self._make_steps(place.world_size)
            return self._settled

    def _find_place(self) -> Place:
        place = self._requested_place or detect(None, None, os.environ, sys.modules)
        if place.conflict is not None:
            ranks = f"{place.source} is initialised as rank {place.rank} of {place.world_size}"
            warnings.warn(f"{place.conflict}, but {ranks}, which is used", stacklevel=5)
        hint = suspect_processes(os.environ, sys.modules) if place.source == "default" else None
        if hint is not None:
            warnings.warn(
                f"{hint} says that JAX has other processes, but it is not initialised for them: "
                "this one takes all samples. Call jax.distributed.initialize() before the loader "
                "is used, or give place=",
                stacklevel=5,
            )
        return place

    def _make_steps(self, world_size: int, locality: Locality | None = None) -> Steps:
        unknown = self.assignment == "local" and locality is None  # before the first epoch
        sizes, most = self._sizes, limits.order_count_max
        global_batch = sizes.get("global_batch_size") or sizes.get("batch_size", 1) * world_size
        if global_batch > most:
            ranks = f"batch_size is {sizes['batch_size']} on {world_size:,} ranks"
            raise UsageError(f"{ranks}: a global batch has at most 2^62 samples; lower it")
        has_rows = isinstance(self._requested_order, PackedOrder)  # counted as an epoch goes on
        return Steps(
            most if has_rows else len(self._requested_order),
            global_batch,
            world_size,
            self.drop_last,
            self.pad,
            "strided" if unknown else self.assignment,
            locality if self.assignment == "local" else None,
            balance=None if self._balancing is None else self._balancing.locate(locality),
        )


class PositionedLoader:
    """A loader with a position in its run.

    It is pickled as torch's are: by the arguments that it was made with, the public attributes that
    were set since, those of a subclass, and the position where a copy goes on.
    """

    _epochs: EpochTasks

    def set_epoch(self, epoch: int) -> None:
        """Choose the epoch that starts next. Without it epochs count up by themselves."""
        self._epochs.set_epoch(epoch)

    def state_dict(self) -> dict[str, Any]:
        """Return the position of the run: a few JSON-able values, the same on every rank, O(1).

        Counts the batches that were handed over, not those read ahead. May be taken at any time.
        """
        return self.cursor.state()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue at the position of `state` with the next epoch, on any world size.

        Raises StateError if the state is of other data, another seed, order or global batch.
        """
        self._epochs.restore(state)

    def set_weights(
        self,
        weights: WeightsOf,
        *,
        columns: Mapping[str, Any] | None = None,
        path: Path | None = None,
        gather: Gather | None = None,
    ) -> None:
        """Weigh the samples again, as `Dataset.weigh` does, from the next epoch on.

        weights, columns:  see `Dataset.weigh`; an array has a weight for each `dataset[i]`.
        path:    file in which the first rank saves the weights, whole or not at all. States name
                 it, and a run that continues reads them there. Keep one file for each call that a
                 checkpoint may go back to.
        gather:  function that returns the texts of all ranks for this rank's; by default
                 the process group, as `Cache` finds it.

        All ranks have to call it between epochs, and with the same weights: they compare number,
        epoch and digest, and a difference is a UsageError on all of them and changes nothing.
        An epoch draws as many samples as before. In a mixture, passes that have started go on under
        the new weights.

        A state names the weights by number and digest. It holds the weights of up to 8,192 samples
        itself. With neither these nor `path`, call this with the same weights before
        `load_state_dict`. UsageError in the middle of an epoch, for a curriculum, and with
        shuffle="auto".
        """
        self._epochs.set_weights(weights, columns, path, gather)

    def count_draws(self) -> list[int]:
        """Count the samples drawn from each dataset of a mixture, over all epochs.

        They are counted up to the position that `state_dict` gives. Divided by the number of a
        dataset's samples, they are its passes.
        """
        return self._epochs.count_draws()

    def count_steps(self, epoch: int) -> int:
        """Count the steps of an epoch; of packed rows, epochs differ."""
        return self._epochs.count_steps(epoch)

    def state_at(self, epoch: int, step: int) -> dict[str, Any]:
        """Return the state at the start of a step, as `state_dict` gives it there."""
        return self._epochs.state_at(epoch, step)

    @property
    def epoch(self) -> int:
        """Epoch of the position that `state_dict` gives."""
        return self.cursor.epoch

    @property
    def cursor(self) -> Cursor:
        return self._epochs.cursor

    @property
    def place(self) -> Place:
        """Rank and world size, and their source."""
        return self._epochs.place

    def _keep_given(self, kind: type[PositionedLoader], given: Mapping[str, Any]) -> None:
        """Keep the arguments of `kind.__init__`, which are the names that it begins with."""
        self._kind_given, self._before = kind, frozenset(vars(self))  # what a subclass has set
        self._given = {name: value for name, value in given.items() if name != "self"}

    def _end_making(self) -> None:
        """Know what is set from now on from what the constructor has set."""
        made = {name: value for name, value in vars(self).items() if name not in self._before}
        self._made: Mapping[str, Any] = made | {"_made": None}

    def __getstate__(self) -> Any:
        public = {name for name in self._made if not name.startswith("_")}
        others = {
            name: value
            for name, value in vars(self).items()
            if name not in self._made or (name in public and value is not self._made[name])
        }
        return self._kind_given, self._given, others, self._epochs.position

    def __setstate__(self, state: Any) -> None:
        kind, given, others, position = state
        kind.__init__(self, **given)
        vars(self).update(others)
        self._epochs.restore_position(position)


def make_step_sampler(
    dataset: Any,
    seed: int,
    shuffle: Shuffle | Literal["auto"],
    *,
    batch_size: int | None,
    global_batch_size: int | None,
    drop_last: bool,
    pad: bool,
    place: Place | None,
    budget: Budget,
    check_peers: int | None = None,
    assignment: Assignment | Balanced = "strided",
    cache: Cache | None = None,
    batch_tokens: float | Buckets | None = None,
    block: int = 256,
    group: int = 64,
) -> StepSampler:
    """Make the sampler of the order of a dataset; for the arguments see `Loader`.

    dataset:  of penstock; or of torch's kind, with `__len__`.
    """
    check_choice("shuffle", shuffle, (*get_args(Shuffle), "auto"))
    named: Shuffle = "exact" if shuffle == "auto" else shuffle
    options: dict[str, Any] = {}
    if isinstance(dataset, Dataset):
        choice = AutoShuffle(dataset, seed, budget) if shuffle == "auto" else None
        make_order: Callable[[Dataset], Ordering] = methodcaller(
            "order", seed, shuffle=named, block=block, group=group
        )
        if batch_tokens is not None:
            has_size = batch_size is not None or global_batch_size is not None
            check_batch_tokens(has_size, cache is not None, choice is not None)
            make_order = bucket_orders(dataset, batch_tokens, make_order)
        order = make_order(dataset)
        options = {
            "choice": choice,
            "assignment": name_assignment(assignment),
            "reweighing": Reweighing(dataset, make_order),
            "commit": dataset.commit,
            "row_table": None if dataset.rows is None else dataset.rows.find_row_table(),
            "balancing": balance_costs(dataset, order, assignment, cache),
        }
    else:
        order = Order(len(dataset), seed, shuffle=named)
    return StepSampler(
        identify_data(dataset),
        order,
        batch_size=batch_size,
        global_batch_size=global_batch_size,
        drop_last=drop_last,
        pad=pad,
        place=place,
        check_peers=check_peers,
        **options,
    )
