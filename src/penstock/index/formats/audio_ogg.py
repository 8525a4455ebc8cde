"""Ogg files of Vorbis or Opus: pages that say how many samples there are up to their end.

A decoder is given the last packet of a page alone, from which no samples are taken, and then the
packets of the next pages. Opus refers far back: within 20 ms, what is wrong in the beginning falls
to a half. It is given a second.
"""

from __future__ import annotations

import struct

import numpy as np

from ...engine.store import StoreFile
from .media_tracks import SoundTrack, check_sound, read_whole

_CODECS = {b"OpusHead": ("opus", 2, 19), b"\x01vorbis": ("vorbis", 3, 30)}
"""By how the first packet begins: the codec, its packets of headers, and the bytes of the first."""
_OPUS_RATE, _OPUS_PACKET = 48_000, 5760  # samples a second, and in a packet at most


def parse_ogg(source: StoreFile) -> SoundTrack:
    """Parse the pages of an Ogg file that has one stream."""
    data = read_whole(source)
    edges, pages = _list_pages(source, data)
    headers, part, first = _split_page(data[: edges[1]], b"")[0][:1] or [b""], b"", 1
    head = headers[0]
    codec, wanted, least = _CODECS.get(head[:8], _CODECS.get(head[:7], ("", 0, 0)))
    if not codec or len(head) < least:
        what = f"Ogg with {head[:8]!r}, and Vorbis and Opus are read"
        raise source.flaw(0, f"{what}: re-encode it")
    while len(headers) < wanted:
        if first + 1 >= len(edges):
            raise source.flaw(len(data), "the headers of its sound are cut: copy the file again")
        packets, part = _split_page(data[edges[first] : edges[first + 1]], part)
        headers, first = headers + packets, first + 1
    if codec == "opus":
        channels, rate, skipped = head[9], _OPUS_RATE, head[10] | head[11] << 8
        config = head[:10] + bytes(6) + head[16:]  # without what is skipped, and the rate before
        back, longest = _OPUS_RATE, _OPUS_PACKET
    else:
        channels, rate = struct.unpack_from("<BI", head, 11)
        skipped, back, longest = 0, 0, 1 << (head[28] >> 4)
        comment = b"\x03vorbis"  # what it says is not for the decoder
        config = bytes([2, least, len(comment)]) + head[:least] + comment + headers[2]
    check_sound(source, 0, rate, channels)
    at, (said, count, begins) = np.array(edges[first:]), np.array(pages, np.int64)[first:].T
    told = np.maximum.accumulate(np.where(count > 0, said, 0))
    passed = np.diff(told, prepend=0)
    wrong = (passed < 0) | (passed > count * longest) | (count > 0) & (told != said)
    for page in np.flatnonzero(wrong)[:1]:
        what = f"a page of {count[page]} packets ends at sample {said[page]:,}"
        before = f"and the one before at {told[page] - passed[page]:,}"
        raise source.flaw(int(at[page]), f"{what}, {before}: the file is cut or damaged")
    start = np.append(0, told) - skipped
    usable = np.maximum.accumulate(np.where(begins > 0, np.arange(len(count)), -1))
    page = np.searchsorted(start[1:], start[:-1] - back, side="right") - 1
    since = np.where(page < 0, -1, usable[page])
    frames = max(0, int(start[-1]))
    return SoundTrack(codec, config, "<f4", rate, channels, frames, start, at, since, is_paged=True)


def _list_pages(source: StoreFile, data: bytes) -> tuple[list[int], list[tuple[int, int, bool]]]:
    """List where pages begin, and the end; and of each the samples up to its end, the packets that
    end in it, and whether the last of these begins there."""
    edges, pages = [0], []
    stream = number = None
    while (at := edges[-1]) < len(data):
        head = data[at : at + 27 + 255]
        table = head[27 : 27 + head[26]] if len(head) > 26 else b""
        end = at + 27 + len(table) + sum(table)
        if head[:4] != b"OggS":
            raise source.flaw(at, f"{head[:4]!r} where a page of Ogg should be: damaged")
        if len(head) < 27 or len(table) < head[26] or end > len(data):
            raise source.flaw(at, "a page of Ogg goes beyond the end: the file is cut")
        granule, own, sequence = struct.unpack_from("<qII", head, 6)
        if stream not in (None, own) or (at and head[5] & 2):
            what = "several streams, one beside or behind the other"
            raise source.flaw(at, f"{what}: write each into a file, by `ffmpeg -c:a copy`")
        if number is not None and sequence != number + 1:
            what = f"page {sequence:,} of Ogg behind page {number:,}"
            raise source.flaw(at, f"{what}: a part of the file is missing")
        stream, number = own, sequence
        count = len(table) - table.count(255)
        pages.append((granule, count, count > 1 or (count == 1 and not head[5] & 1)))
        edges.append(end)
    return edges, pages


def _split_page(page: bytes, part: bytes) -> tuple[list[bytes], bytes]:
    """Split a page of Ogg into the packets that end in it, and the beginning of one that does not.

    part:  the beginning that the page before has left.
    """
    at = start = 27 + page[26]
    packets = []
    if not page[5] & 1:
        part = b""
    for segment in page[27:start]:
        at += segment
        if segment < 255:
            packets.append(part + page[start:at])
            part, start = b"", at
    return packets, part + page[start:at]
