"""Packing, in plain Python: the oracle of the core's."""

from __future__ import annotations

import bisect


def pack_plainly(
    lengths: list[int], length: int, split: bool, multiple: int
) -> list[list[tuple[int, int, int]]]:
    """Return the rows: of each its pieces (document, first token, tokens) as they were placed."""
    rows: list[list[tuple[int, int, int]]] = []
    spaces: list[int] = []  # ascending: those that a row has
    stacks: dict[int, list[int]] = {}

    def place(document: int, start: int, tokens: int) -> None:
        taken = -(-tokens // multiple) * multiple
        at = bisect.bisect_left(spaces, taken)
        if at == len(spaces):
            rows.append([])
            row, free = len(rows) - 1, length
        else:
            free = spaces[at]
            row = stacks[free].pop()
            if not stacks[free]:
                del stacks[free], spaces[at]
        rows[row].append((document, start, tokens))
        free -= taken
        if free:
            if free not in stacks:
                stacks[free] = []
                bisect.insort(spaces, free)
            stacks[free].append(row)

    for document, tokens in enumerate(lengths):
        if tokens > length and split:
            start = 0
            while tokens - start > length:
                place(document, start, length)
                start += length - 1
            place(document, start, tokens - start)
        elif tokens:
            place(document, 0, min(tokens, length))
    return rows


def place_plainly(
    rows: list[list[int]], length: int, multiple: int, flat: bool
) -> dict[str, list[int]]:
    """Return what `place_pieces` does, piece by piece: `rows` are the tokens of their pieces."""
    targets, rooms, sequences = [], [], []  # a sequence: its piece or -1, and its tokens
    place = piece = 0
    for number, row in enumerate(rows):
        for tokens in row:
            targets.append(place)
            sequences.append((piece, tokens))
            room = -(-tokens // multiple) * multiple
            rooms.append(room)
            place, piece = place + room, piece + 1
        if not flat:
            gap = (number + 1) * length - place
            place += gap
            if multiple == 1:
                sequences.append((-1, gap))
            elif rooms:
                rooms[-1] += gap
    if multiple == 1:
        sequences = [each for each in sequences if each[1]]
        rooms = [tokens for _, tokens in sequences]
    starts = [sum(tokens for _, tokens in sequences[:k]) for k in range(len(sequences) + 1)]
    return {
        "targets": targets,
        "places": [place],
        "starts": starts,
        "rooms": [*targets, place] if multiple > 1 else [],
        "longest": [max(rooms, default=0)],
        "source": [piece for piece, _ in sequences],
    }
