"""LMDB environments written byte by byte: pages of any size, all data versions, and damages.

The lmdb package writes pages of 4096 bytes in versions 1 and 3; version 2 nobody writes any more.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping

Entries = Mapping[bytes, bytes | Mapping[bytes, bytes]]
"""Values by key; a mapping is a named database."""

NO_PAGE = (1 << 64) - 1
BRANCH, LEAF, OVERFLOW, META = 1, 2, 4, 8
BIG_DATA, SUB_DATA = 1, 2


class Environment:
    """The bytes of an environment, and where its pages are.

    data:    the file.
    header:  bytes before the content of a page.
    kinds:   of each page: META, BRANCH, LEAF, OVERFLOW, or 0 inside of a run.
    """

    def __init__(
        self,
        entries: Entries,
        *,
        version: int = 1,
        page_bytes: int = 512,
        flags: int = 0,
        txnid: int = 1,
        shuffled: bool = False,
    ) -> None:
        self.version, self.page_bytes, self.txnid = version, page_bytes, txnid
        self.header = 16 if version == 1 else 24
        self.base = 0 if version == 1 else 24
        self._shuffled = shuffled
        self._pages = [b"", b""]
        self.kinds = [META, META]
        main = self._tree(entries, flags)
        free = struct.pack("<IHH5Q", page_bytes, 8, 0, 0, 0, 0, 0, NO_PAGE)
        for slot in (0, 1):
            age = 0 if txnid & 1 != slot else txnid
            record = main if age else struct.pack("<IHH5Q", 0, flags, 0, 0, 0, 0, 0, NO_PAGE)
            meta = struct.pack("<IIQQ", 0xBEEFC0DE, version, 0, 1 << 20) + free + record
            meta += struct.pack("<QQ", len(self._pages) - 1 if age else 1, age)
            self._pages[slot] = self._page(slot, META, bytes(4), meta)
        self.data = bytearray(b"".join(self._pages))

    @property
    def main(self) -> int:
        """The place of the main database's live record."""
        return (self.txnid & 1) * self.page_bytes + self.header + 72

    def at(self, kind: int, which: int = 0) -> int:
        """The place at which a page of a kind begins."""
        numbers = [number for number, each in enumerate(self.kinds) if each == kind]
        return numbers[which] * self.page_bytes

    def node(self, page: int, which: int) -> int:
        """The place at which a node of a page begins."""
        (pointer,) = struct.unpack_from("<H", self.data, page + self.header + 2 * which)
        return page + pointer + self.base

    def put(self, at: int, form: str, *values: int) -> Environment:
        """Numbers written over what is there."""
        struct.pack_into("<" + form, self.data, at, *values)
        return self

    def _page(self, number: int, kind: int, tail: bytes, content: bytes) -> bytes:
        head = struct.pack("<Q", number)
        if self.version > 1:
            head += struct.pack("<Q", self.txnid)
        page = head + struct.pack("<HH", 0, kind) + tail + content
        return page + bytes(-len(page) % self.page_bytes)

    def _add(self, kind: int, tail: bytes, content: bytes) -> int:
        number = len(self._pages)
        page = self._page(number, kind, tail, content)
        for at in range(0, len(page), self.page_bytes):
            self._pages.append(page[at : at + self.page_bytes])
            self.kinds.append(0 if at else kind)
        return number

    def _nodes(self, kind: int, nodes: list[bytes]) -> int:
        """A page of nodes, the first of them at its end."""
        pointers, content, end = [], b"", self.page_bytes
        for node in nodes:
            end -= len(node)
            pointers.append(end - self.base)
            content = node + content
        lower = self.header - self.base + 2 * len(nodes)
        array = struct.pack(f"<{len(nodes)}H", *pointers)
        gap = bytes(self.page_bytes - self.header - len(array) - len(content))
        return self._add(kind, struct.pack("<HH", lower, end - self.base), array + gap + content)

    def _leaf_node(self, key: bytes, value: bytes | Mapping[bytes, bytes]) -> tuple[bytes, int]:
        """A leaf's node, and the pages that its value takes for itself."""
        flags, pages, length = 0, 0, 0
        if isinstance(value, Mapping):
            flags, value = SUB_DATA, self._tree(value, 0)
            if self.version == 3:
                key += b"\0"
        length = len(value)
        stored = key + bytes(len(key) % 2) if self.version == 3 else key
        most = (((self.page_bytes - self.header) // 2) & ~1) - 2
        if 8 + len(stored) + length > most and not flags:
            flags, pages = BIG_DATA, (self.header - 1 + length) // self.page_bytes + 1
            page = self._add(OVERFLOW, struct.pack("<I", pages), value)
            value = struct.pack("<Q", page)
            if self.version > 1:
                value += struct.pack("<QQ", self.txnid, pages)
        node = struct.pack("<HHHH", length & 0xFFFF, length >> 16, flags, len(key)) + stored + value
        return node + bytes(len(node) % 2), pages

    def _tree(self, entries: Entries, flags: int) -> bytes:
        """The record of a database whose pages are added."""
        if not entries:
            return struct.pack("<IHH5Q", 0, flags, 0, 0, 0, 0, 0, NO_PAGE)
        overflows, counts, depth = 0, {LEAF: 0, BRANCH: 0}, 1
        nodes: list[tuple[bytes, bytes]] = []
        order = sorted(entries)
        made = {}
        for key in reversed(order) if self._shuffled else order:
            made[key], pages = self._leaf_node(key, entries[key])
            overflows += pages
        nodes = [(key, made[key]) for key in order]
        level = self._level(LEAF, nodes)
        counts[LEAF] = len(level)
        while len(level) > 1:
            nodes = []
            for i, (key, page) in enumerate(level):
                head = struct.pack("<HHHH", page & 0xFFFF, page >> 16, 0, len(key) if i else 0)
                node = head + (key if i else b"")
                nodes.append((key, node + bytes(len(node) % 2)))
            level = self._level(BRANCH, nodes)
            counts[BRANCH] += len(level)
            depth += 1
        root = level[0][1]
        return struct.pack(
            "<IHH5Q", 0, flags, depth, counts[BRANCH], counts[LEAF], overflows, len(entries), root
        )

    def _level(self, kind: int, nodes: list[tuple[bytes, bytes]]) -> list[tuple[bytes, int]]:
        """Nodes put into pages: the first key and the number of each page."""
        groups: list[list[tuple[bytes, bytes]]] = [[]]
        room = self.page_bytes - self.header
        for key, node in nodes:
            if sum(len(n) + 2 for _, n in groups[-1]) + len(node) + 2 > room:
                groups.append([])
            groups[-1].append((key, node))
        if self._shuffled:
            made = [self._nodes(kind, [n for _, n in group]) for group in reversed(groups)][::-1]
        else:
            made = [self._nodes(kind, [n for _, n in group]) for group in groups]
        return [(group[0][0], page) for group, page in zip(groups, made, strict=True)]
