"""Slots of unit accesses in no order: which reader asks which target when, so that none waits.
Pure.

The reads of a batch need no order (an open shop): n accesses, each by one reader to one target, are
the edges of a bipartite graph, a slot is a colour, and as many slots are enough as the busiest
reader or target needs (König). Readers that all walk all targets need no planner:
`penstock.plan.rotation`.

Slots give the order of accesses at a target; they are not times of a clock.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from penstock import limits
from penstock.errors import UsageError
from penstock.extent import Int

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
