"""A rank of the virtual cluster: it drives the shipped `CacheSession` over modelled parts.

The rank is its session's driver, as `penstock.cache.engine` is in production, and the loader that
asks for steps. It checks what the session promises at every event; see `VirtualRank.check`.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from penstock import limits
from penstock.extent import Int, Requests
from penstock.plan import Keys, cache_actions
from penstock.plan.cache_actions import RowFailure
from tests.virtual.node import Buffer, require
from tests.virtual.scenario import MS
from tests.virtual.shell import IO_ERROR, VirtualShell, describe

if TYPE_CHECKING:
    from tests.virtual.cluster import VirtualCluster

_REFUSED = {
    kind: number
    for number, kind in enumerate(
        (
            cache_actions.LoadBlocks,
            cache_actions.FetchKeys,
            cache_actions.ProbeRank,
            cache_actions.ReadDisk,
            cache_actions.WriteDisk,
            cache_actions.TakeReplicas,
            cache_actions.OfferReplicas,
            cache_actions.AnswerPeer,
        )
    )
}
"""Kinds of actions that the system may refuse, with their numbers."""
_pause_ns = int(limits.peer_pause_s * 1e9)


class RankEvent(NamedTuple):
    """An event of a rank: the session's method by which it is told, its number, and the call."""

    name: str
    number: int
    call: Callable[[], None]


class _Killed(BaseException):
    """The rank ends here."""


@dataclass(eq=False)
class SubmittedStep:
    """A step that was asked for: its number in the rank's work, keys, and buffers to be filled."""

    number: int
    requests: Requests
    buffers: list[Buffer]
    since_ns: int
    uses: bool
    errors: set[int] = field(default_factory=set)  # keys that storage has failed for it


class VirtualRank:
    """One life of a rank: from its start until it is killed."""

    def __init__(self, cluster: VirtualCluster, rank: int, first_step: int, kill_at: int) -> None:
        scenario = cluster.scenario
        self._cluster, self._queue, self._draw = cluster, cluster.queue, cluster.draw
        self.rank, self.node = rank, cluster.nodes[scenario.nodes[rank]]
        self.session: Any = cluster.session_class(
            cluster.data, cluster.placement, scenario.nodes, rank, replicas=scenario.replicas > 0
        )
        self.session.disk_buffer_bytes = self._disk_bytes = scenario.disk_buffer_bytes
        self.session.answer_bytes = self._answer_bytes = scenario.answer_bytes
        self.is_alive = True
        self.next_step = first_step
        self.kill_at, self._performed = kill_at, 0
        self.steps: dict[int, SubmittedStep] = {}
        self._reported: list[tuple[SubmittedStep, list[bytes]]] = []
        self._tickets = 0
        self._shell = VirtualShell(cluster, self)
        self._inbox: deque[RankEvent] = deque()
        self._has_turn = False
        self._late_ns, self._late_ns_max = MS // 10, 10 * MS if scenario.is_calm else 1000 * MS
        self._step_ns_max = cluster.step_ns_max(rank)
        self._silent_ns: dict[int, int] = {}  # ranks that did not answer, and since when
        self.probed: set[int] = set()
        self._missed: set[int] = set()  # keys that a peer did not send, of the event in hand

    # -- what the loader does ------------------------------------------------------------------

    @property
    def is_done(self) -> bool:
        """True if all of its steps were reported."""
        return not self.steps and self.next_step == len(self._cluster.work[self.rank])

    @property
    def first_missing(self) -> int:
        """The first step that was not reported."""
        return min((step.number for step in self.steps.values()), default=self.next_step)

    def begin_steps(self) -> None:
        """Ask for steps, as far ahead as the loader does."""
        scenario, work = self._cluster.scenario, self._cluster.work[self.rank]
        while len(self.steps) < scenario.ahead and self.next_step < len(work):
            requests, sizes = work[self.next_step]
            buffers = [np.full(size, 0xEE, np.uint8) for size in sizes]
            uses = self._draw.random() < 0.9 and scenario.replicas > 0
            step = SubmittedStep(self.next_step, requests, buffers, self._queue.now_ns, uses)
            ticket, self._tickets = self._tickets, self._tickets + 1
            self.steps[ticket] = step
            self.next_step += 1
            self.post("request", ticket, partial(self._request, ticket, step))

    def _request(self, ticket: int, step: SubmittedStep) -> None:
        if self._cluster.trace is not None:
            keys = step.requests.offset.tolist()
            self.say(f"wants step {step.number} as {ticket}: keys {keys}")
        self.session.request(ticket, step.requests, len(step.buffers), step.uses)

    def report(self, action: cache_actions.ReportStep) -> None:
        require(action.ticket in self.steps, f"step {action.ticket} is reported twice")
        step = self.steps.pop(action.ticket)
        self._check_failures(step, action.failures)
        self._check_bytes(step, {failure.row for failure in action.failures})
        self._reported.append((step, [buffer.tobytes() for buffer in step.buffers]))
        self._cluster.delivered += len(step.requests.offset)
        self.begin_steps()

    def _check_failures(self, step: SubmittedStep, failures: tuple[RowFailure, ...]) -> None:
        for row, errno, _ in failures:
            key = int(step.requests.offset[row])
            require(errno == IO_ERROR, f"key {key} fails with error {errno}, which nobody raised")
            require(key in step.errors, f"key {key} is reported as failed, and did not fail")

    def _check_bytes(self, step: SubmittedStep, failed_rows: set[int]) -> None:
        requests = step.requests
        columns = (requests.offset, requests.length, requests.buffer, requests.target)
        rows = zip(*(column.tolist() for column in columns), strict=True)
        where = f"step {step.number}: "
        for row, (key, length, buffer, target) in enumerate(rows):
            found = step.buffers[buffer][target : target + length]
            if row not in failed_rows:
                self._cluster.check_bytes(key, found.tobytes(), where)

    # -- turns ---------------------------------------------------------------------------------

    def post(self, name: str, number: int, call: Callable[[], None]) -> None:
        """Have the rank take an event at its next turn."""
        if self.is_alive:
            self._inbox.append(RankEvent(name, number, call))
            self._late_ns = MS // 10
            self._take_turn_in(
                self._draw.randrange(1000, 50_000) + self._cluster.slow_ns(self.rank)
            )

    def adopt(self, budget_bytes: int) -> None:
        """Change the budget; what was begun under the one before may still be there."""
        self.session.disk_buffer_bytes = self.session.answer_bytes = budget_bytes
        self._disk_bytes = max(self._disk_bytes, budget_bytes)
        self._answer_bytes = max(self._answer_bytes, budget_bytes)

    def take_request(self, number: int, keys: Keys, lengths: Int) -> None:
        """Take a request of another rank."""
        self.post("ask", number, lambda: self.session.ask(number, keys, lengths))

    def _take_turn_in(self, delay_ns: int) -> None:
        if not self._has_turn:
            self._has_turn = True
            self._queue.add_in(delay_ns, self._take_turn)

    def _take_turn(self) -> None:
        stopped_ns = self._cluster.stopped_until_ns(self.rank)
        if not self.is_alive:
            return
        if stopped_ns > self._queue.now_ns:
            self._queue.add(stopped_ns, self._take_turn)
            return
        self._has_turn = False
        try:
            sent_bytes = self._cluster.network.sent_bytes(self)
            self.session.advance(self._cluster.clock_ns(self.rank), sent_bytes)
            self.perform()
            for _ in range(len(self._inbox)):
                self.take(self._inbox.popleft())
        except _Killed:
            self._cluster.end_life(self)
            return
        self.check()
        self._wake_later()

    def take(self, event: RankEvent) -> None:
        """Tell the session an event, and do what it says."""
        self._missed.clear()
        if self._cluster.trace is not None:
            self.say(f"event {event.name} {event.number}")
        event.call()
        self.perform()

    def _wake_later(self) -> None:
        wake_ns = self.session.wake_ns
        if self._inbox:
            self._take_turn_in(1000)
        elif wake_ns is not None:
            # A busy machine wakes late, and later where nothing else happens: there are few looks.
            self._late_ns = min(2 * self._late_ns, self._late_ns_max)
            wait_ns = max(0, wake_ns - self._cluster.clock_ns(self.rank))
            self._take_turn_in(wait_ns + self._late_ns)

    def perform(self) -> None:
        """Perform the session's actions, and those that come of them."""
        actions = self.session.actions
        while actions:
            action = actions.popleft()
            if self._cluster.trace is not None:
                self.say(describe(action))
            self._performed += 1
            if self._performed == self.kill_at:
                raise _Killed
            if self._is_refused(action):
                self._cluster.failures += 1
                self.say("... which the system refuses")
                self._note_refusal(action)
                if isinstance(action, cache_actions.WriteDisk | cache_actions.ReadDisk):
                    self.post("fail", action.source, partial(self.session.fail, action))
                else:
                    self.session.fail(action)
                continue
            self._shell.perform(action)

    def _is_refused(self, action: cache_actions.Action) -> bool:
        kind = _REFUSED.get(type(action))
        if kind is None:
            return False
        if isinstance(action, cache_actions.AnswerPeer) and not action.wants:
            return False  # it takes no memory
        return self._cluster.refuses(self.rank, kind)

    def _note_refusal(self, action: cache_actions.Action) -> None:
        if isinstance(action, cache_actions.FetchKeys):
            for ticket, rows in action.parts:
                keys = self.steps[ticket].requests.offset[rows]
                self.note_peer(action.rank, "failed", keys.tolist())
        elif isinstance(action, cache_actions.ProbeRank):
            self.note_peer(action.rank, "failed", [])

    def note_peer(self, rank: int, reason: str | None, missed: list[int]) -> None:
        """Note that a rank has answered, or has not, and the keys that it did not send."""
        self._missed.update(missed)
        self.probed.discard(rank)
        if reason is None:
            self._silent_ns.pop(rank, None)
        else:
            self._silent_ns[rank] = self._cluster.clock_ns(self.rank)

    def check_read(self, keys: list[int]) -> None:
        """Check that keys of other nodes are read from storage only if nobody there answers, and
        that who is silent is tried again after a pause."""
        cluster, nodes = self._cluster, self._cluster.scenario.nodes
        now_ns = cluster.clock_ns(self.rank)
        for key in keys:
            owner = cluster.node_of(key)
            if owner in (-1, nodes[self.rank]) or key in self._missed:
                continue
            for rank in (rank for rank, node in enumerate(nodes) if node == owner):
                require(rank in self._silent_ns, f"key {key} is read, rank {rank} is not asked")
                is_late = self._silent_ns[rank] + _pause_ns <= now_ns
                require(rank in self.probed or not is_late, f"rank {rank} is not tried again")

    def check_fetch(self, rank: int) -> None:
        """Check that a rank may be asked: it is another node's, and is not silent."""
        nodes = self._cluster.scenario.nodes
        require(rank not in self._silent_ns, f"rank {rank}, which is silent, is asked")
        require(nodes[rank] != nodes[self.rank], "a rank of the own node is asked")

    def check_answers(self) -> None:
        """Check the memory of answers."""
        network = self._cluster.network
        sent_bytes = network.sent_bytes(self)
        is_bounded = sent_bytes <= self._answer_bytes or network.sends_one(self)
        require(is_bounded, f"answers take {sent_bytes} bytes")

    def say(self, what: str) -> None:
        if self._cluster.trace is not None:
            self._cluster.trace(f"rank {self.rank}: {what}")

    # -- oracles -------------------------------------------------------------------------------

    def check(self) -> None:
        """Check what holds between events: memory within its bounds, no step without an end."""
        session = self.session
        is_counted = self._shell.lent_bytes <= session.passing_bytes
        require(is_counted, "memory is lent that the session does not count")
        bound = max(1, self._disk_bytes) + 2 * self._cluster.step_bytes_max
        require(
            session.passing_bytes <= bound,
            f"{session.passing_bytes} bytes pass to or from the disk where {bound} may",
        )
        now_ns = self._queue.now_ns
        if self.steps:  # the first one was asked for first
            step = next(iter(self.steps.values()))
            is_late = now_ns - step.since_ns >= self._step_ns_max
            require(not is_late, f"step {step.number} does not come")

    def check_end(self) -> None:
        """Check that everything was reported, answered and freed, and nothing changed since."""
        session = self.session
        require(self.is_done, f"rank {self.rank} waits for steps, and nothing happens any more")
        require(session.is_idle, f"the session of rank {self.rank} is not idle in the end")
        require(session.passing_bytes == 0, "memory of the disk is not freed in the end")
        require(not self._shell.sources, "sources are not released in the end")
        require(not self._cluster.network.unanswered(self), "a request was not answered")
        for claims in (self.node.slab.claims, self.node.disk.claims):
            held = [slot for slot in claims.holders if claims.is_held(slot, self)]
            require(not held, f"slots {held} stay claimed")
        for step, before in self._reported:
            now = [buffer.tobytes() for buffer in step.buffers]
            require(now == before, f"step {step.number} was written to after its report")
