"""Slots of unit accesses and tasks: who uses which resource when, so that none waits. Pure.

Without an order (an open shop), as the reads of a batch: n accesses, each by one reader to one
target, are the edges of a bipartite graph, a slot is a colour, and as many slots are enough as the
busiest reader or target needs (König). Readers that all walk all targets need no planner:
`penstock.plan.rotation`. Slots give the order of accesses at a target; they are not times of a
clock.

In an order: jobs whose tasks follow each other (the index, then the data), one slot a task. The
problem is from Kagaris and Dutta, Scheduling Mutual Exclusion Accesses in Equal-Length Jobs (TOPC
6(2), 2019). `two_tasks` is an algorithm of ours, and optimal. From three tasks on the problem is
hard, and `list_schedule` a heuristic beside `lower_bound`.

A resource is a number from 0; `SHARED` is one that all may use at once.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from penstock import limits
from penstock.errors import UsageError
from penstock.extent import Int

SHARED = -1

Capacity = int | Sequence[int] | Int
"""Accesses at a time: of all alike, or of each by its number."""


def stagger(
    readers: npt.ArrayLike,
    targets: npt.ArrayLike,
    *,
    reader_capacity: Capacity = 1,
    target_capacity: Capacity = 1,
) -> Int:
    """Find the slot of each access, from 0, int64 (n,): the fewest slots that there can be.

    They are as many as any reader or target needs at most: its accesses over its capacity, rounded
    up.

    readers, targets:  of each access, whole numbers from 0, shape (n,); pairs may repeat.

    No reader and no target has more accesses in a slot than its capacity. An access of many bytes
    is given as several. Time grows with n and with the number of slots. Raises UsageError if arrays
    or capacities are something else.
    """
    left, right = check_numbers("readers", readers), check_numbers("targets", targets)
    if len(left) != len(right):
        raise UsageError(
            f"readers has {len(left)} values where targets has {len(right)}: give both for each"
            " access"
        )
    if not len(left):
        return np.empty(0, np.int64)
    left_room = check_capacities("reader_capacity", reader_capacity, int(left.max()) + 1)
    right_room = check_capacities("target_capacity", target_capacity, int(right.max()) + 1)
    return colour_edges(left, right, left_room, right_room)


def colour_edges(left: Int, right: Int, left_room: Int, right_room: Int) -> Int:
    """Colour each edge, none at a node more often than it has room for, with the fewest colours.

    Returns int64, from 0. The arguments must have been checked.
    """
    colours = max(count_fewest(left, left_room), count_fewest(right, right_room))
    # A node of more room is several nodes, of as many edges each as there are colours.
    return _colour_properly(_split(left, colours), _split(right, colours), colours)


def count_fewest(nodes: Int, room: Int) -> int:
    """Return the slots that the busiest node needs."""
    degree = np.bincount(nodes, minlength=len(room))
    return int((-(-degree // room)).max(initial=0))


def rank_edges(nodes: Int, by: Int) -> Int:
    """Rank each edge, from 0, among its node's edges, ordered by some key and then as they are."""
    order = np.lexsort((by, nodes))
    starts = np.flatnonzero(np.diff(nodes[order], prepend=-1))
    place = np.arange(len(nodes)) - np.repeat(starts, np.diff(starts, append=len(nodes)))
    result = np.empty(len(nodes), np.int64)
    result[order] = place
    return result


def _split(nodes: Int, size: int) -> list[int]:
    """Split nodes of more than `size` edges, and number all nodes anew."""
    piece = rank_edges(nodes, np.zeros(len(nodes), np.int64)) // size
    pairs = np.stack([nodes, piece], axis=1)
    return np.unique(pairs, axis=0, return_inverse=True)[1].reshape(-1).tolist()


def _colour_properly(left: Sequence[int], right: Sequence[int], colours: int) -> Int:
    """Colour edges such that no two of a node have the same colour.

    No node may have more edges than there are colours. Edges come one by one. If no colour is free
    at both ends, one is freed: along the path from the right end on which its free colour and the
    left one's take turns, the two are exchanged. A path that came to the left end would come by the
    colour that is free there.
    """
    every = (1 << colours) - 1
    free = ([every] * (max(left) + 1), [every] * (max(right) + 1))
    edge_at: tuple[dict[tuple[int, int], int], ...] = ({}, {})
    ends = (left, right)
    colour_of = [0] * len(left)
    for edge, (u, v) in enumerate(zip(left, right, strict=True)):
        both = free[0][u] & free[1][v]
        if both:
            colour = _lowest(both)
        else:
            colour, other = _lowest(free[0][u]), _lowest(free[1][v])
            path = []
            side, node, wanted = 1, v, colour
            while (node, wanted) in edge_at[side]:
                path.append(edge_at[side][node, wanted])
                side = 1 - side
                node = ends[side][path[-1]]
                wanted = colour + other - wanted
            for crossed in path:
                for at, end in zip(edge_at, ends, strict=True):
                    del at[end[crossed], colour_of[crossed]]
            for crossed in path:
                colour_of[crossed] = colour + other - colour_of[crossed]
                for at, end in zip(edge_at, ends, strict=True):
                    at[end[crossed], colour_of[crossed]] = crossed
            free[1][v] ^= 1 << colour | 1 << other
            free[side][node] ^= 1 << colour | 1 << other
        colour_of[edge] = colour
        for at, spare, node in zip(edge_at, free, (u, v), strict=True):
            at[node, colour] = edge
            spare[node] ^= 1 << colour
    return np.array(colour_of, np.int64)


def _lowest(bits: int) -> int:
    return (bits & -bits).bit_length() - 1


def check_numbers(name: str, values: npt.ArrayLike, least: int = 0) -> Int:
    """Check whole numbers: raise UsageError unless they are in range and in one dimension."""
    numbers = np.asarray(values)
    if numbers.size == 0:
        numbers = numbers.astype(np.int64)
    if numbers.ndim != 1 or numbers.dtype.kind not in "iu":
        raise UsageError(
            f"{name} is {numbers.dtype} of shape {numbers.shape}: use whole numbers, one for each"
        )
    most = limits.schedule_nodes_max  # arrays are as long as the largest number
    if len(numbers) and not least <= int(numbers.min()) <= int(numbers.max()) < most:
        raise UsageError(
            f"{name} has {numbers.min()}..{numbers.max()}: use numbers of {least}..{most - 1}"
        )
    return numbers.astype(np.int64)


def check_capacities(name: str, value: Capacity, count: int) -> Int:
    """Return one capacity for each of `count`; UsageError if one is no whole number above 0, or
    missing."""
    checked = np.asarray(value)
    if checked.dtype.kind not in "iu" or checked.ndim > 1 or (checked < 1).any():
        raise UsageError(f"{name} is {value!r}: use a whole number above 0, or one for each")
    if checked.ndim and len(checked) < count:
        raise UsageError(
            f"{name} has {len(checked)} values, and there are {count}: give one for each"
        )
    return np.array(
        np.broadcast_to(checked, (count,)) if not checked.ndim else checked[:count], np.int64
    )


# -- tasks in an order -----------------------------------------------------------------------------


def two_tasks(first: npt.ArrayLike, second: npt.ArrayLike, capacity: Capacity = 1) -> Int:
    """Find the slots of two tasks of each job, int64 (n, 2), from 0: the fewest that there can be.

    They are as many as `two_task_bound`.

    first, second:  the resource of each job's first and second task, shape (n,).
    capacity:       tasks that a resource has at a time.

    Why it is optimal. Jobs are edges between first and second resources, and get D colours, D the
    largest degree, at most T - 1 of the bound T. A first task goes into the slot that is its rank
    by colour at its resource, at most the colour; a second one into the slot, from the end, that is
    its rank by descending colour. So ranks sum to D + 1 <= T at most, and the second task is after
    the first. A resource has its first tasks at the beginning and its second ones at the end. They
    overlap nowhere, or with a capacity in one slot that has room for both.
    """
    left, right, room = _read_tasks(first, second, capacity)
    if not len(left):
        return np.empty((0, 2), np.int64)
    colour = colour_edges(left, right, room, room)
    early = rank_edges(left, colour) // room[left]
    late = rank_edges(right, -colour) // room[right]
    return np.stack([early, _find_bound(left, right, room) - 1 - late], axis=1)


def two_task_bound(first: npt.ArrayLike, second: npt.ArrayLike, capacity: Capacity = 1) -> int:
    """Return the slots that any schedule of these jobs needs.

    That is the most of: 2 for a job; for a resource its tasks; and its first tasks, and a slot for
    the second task of the last of them, or the same mirrored.
    """
    left, right, room = _read_tasks(first, second, capacity)
    return _find_bound(left, right, room) if len(left) else 0


def _find_bound(left: Int, right: Int, room: Int) -> int:
    one_sided = max(count_fewest(left, room), count_fewest(right, room))
    return max(count_fewest(np.concatenate([left, right]), room), 1 + one_sided, 2)


def _read_tasks(
    first: npt.ArrayLike, second: npt.ArrayLike, capacity: Capacity
) -> tuple[Int, Int, Int]:
    """Return the resources, with one of its own for each shared task, and room at each."""
    left, right = check_numbers("first", first, SHARED), check_numbers("second", second, SHARED)
    if len(left) != len(right):
        raise UsageError(
            f"first has {len(left)} values where second has {len(right)}: give both for each job"
        )
    tasks = np.concatenate([left, right])
    shared = tasks == SHARED
    count = int(tasks.max(initial=-1)) + 1
    room = check_capacities("capacity", capacity, count)
    tasks[shared] = count + np.arange(np.count_nonzero(shared))
    room = np.concatenate([room, np.ones(np.count_nonzero(shared), np.int64)])
    return tasks[: len(left)], tasks[len(left) :], room


def list_schedule(jobs: Sequence[npt.ArrayLike], capacity: Capacity = 1) -> list[Int]:
    """Find the slots of each job's tasks, ascending, int64, by a heuristic.

    It needs at most a few per cent more slots than `lower_bound` if resources are drawn at random.

    jobs:  the resources of each job's tasks, in order; lengths may differ.

    In each slot, and at each resource, jobs with most tasks left go first, of these the one that
    then goes to the busiest resource, by the tasks that are left at each.
    """
    tasks, room = _read_sequences(jobs, capacity)
    remaining = np.zeros(len(room), np.int64)
    for job in tasks:
        np.add.at(remaining, job[job != SHARED], 1)
    slots: list[list[int]] = [[] for _ in tasks]
    unfinished = [number for number, job in enumerate(tasks) if len(job)]
    slot = 0
    sequences = [job.tolist() for job in tasks]

    def urgency(number: int) -> tuple[int, int]:
        done = len(slots[number])
        resource = sequences[number][done]
        busy = 0 if resource == SHARED else int(remaining[resource])
        return done - len(sequences[number]), -busy

    while unfinished:
        taken = room.copy()
        for number in sorted(unfinished, key=urgency):
            resource = sequences[number][len(slots[number])]
            if resource != SHARED:
                if not taken[resource]:
                    continue
                taken[resource] -= 1
                remaining[resource] -= 1
            slots[number].append(slot)
        unfinished = [
            number for number in unfinished if len(slots[number]) < len(sequences[number])
        ]
        slot += 1
    return [np.array(job_slots, np.int64) for job_slots in slots]


def lower_bound(jobs: Sequence[npt.ArrayLike], capacity: Capacity = 1) -> int:
    """Return the slots that any schedule of these jobs needs.

    That is the most of: the longest job; and for each resource its tasks over its capacity, with
    the fewest tasks that come before one of them in its job, and the fewest that come after.
    """
    tasks, room = _read_sequences(jobs, capacity)
    longest = max((len(job) for job in tasks), default=0)
    load = np.zeros(len(room), np.int64)
    head = np.full(len(room), longest)
    tail = np.full(len(room), longest)
    for job in tasks:
        at = np.flatnonzero(job != SHARED)
        np.add.at(load, job[at], 1)
        np.minimum.at(head, job[at], at)
        np.minimum.at(tail, job[at], len(job) - 1 - at)
    needed = np.where(load > 0, -(-load // room) + head + tail, 0)
    return max(longest, int(needed.max(initial=0)))


def _read_sequences(jobs: Sequence[npt.ArrayLike], capacity: Capacity) -> tuple[list[Int], Int]:
    """Return the tasks of each job, and the room at each resource."""
    tasks = [check_numbers(f"jobs[{number}]", job, SHARED) for number, job in enumerate(jobs)]
    count = max((int(job.max(initial=-1)) for job in tasks), default=-1) + 1
    return tasks, check_capacities("capacity", capacity, count)
