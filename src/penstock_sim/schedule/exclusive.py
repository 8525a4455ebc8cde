"""Unit tasks in an order, each on one resource that few may use at a time. Pure.

Jobs whose tasks follow each other (the index, then the data), one slot a task. The problem is from
Kagaris and Dutta, Scheduling Mutual Exclusion Accesses in Equal-Length Jobs (TOPC 6(2), 2019).
`two_tasks` is an algorithm of ours, and optimal. From three tasks on the problem is hard, and
`list_schedule` a heuristic beside `lower_bound`.

A resource is a number from 0; `SHARED` is one that all may use at once.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from penstock.errors import UsageError
from penstock.extent import Int

from .colouring import (
    Capacity,
    check_capacities,
    check_numbers,
    colour_edges,
    count_fewest,
    rank_edges,
)

SHARED = -1


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
    left = np.zeros(len(room), np.int64)
    for job in tasks:
        np.add.at(left, job[job != SHARED], 1)
    slots: list[list[int]] = [[] for _ in tasks]
    unfinished = [number for number, job in enumerate(tasks) if len(job)]
    slot = 0
    sequences = [job.tolist() for job in tasks]

    def urgency(number: int) -> tuple[int, int]:
        done = len(slots[number])
        resource = sequences[number][done]
        busy = 0 if resource == SHARED else int(left[resource])
        return done - len(sequences[number]), -busy

    while unfinished:
        taken = room.copy()
        for number in sorted(unfinished, key=urgency):
            resource = sequences[number][len(slots[number])]
            if resource != SHARED:
                if not taken[resource]:
                    continue
                taken[resource] -= 1
                left[resource] -= 1
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
