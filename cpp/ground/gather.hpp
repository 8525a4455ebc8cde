// Copies of many extents from one memory to another.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

namespace penstock {

// Copy `lengths[i]` bytes at `at[i]` of `source` to `targets[i]` of `out`. An extent that leaves
// either throws std::out_of_range before anything is copied.
void gather(std::span<const std::byte> source, std::span<const std::int64_t> at,
            std::span<const std::int64_t> lengths, std::span<const std::int64_t> targets,
            std::span<std::byte> out);

// Chunks of an array, in C order, and windows that have something of each.
//
// values:  of each chunk.
// boxes:   of each chunk, axis by axis: its first indices in the array, those behind its last, and
//          its shape in `values`, whose front it is.
// edges:   of each chunk, in the two columns that follow, and the end.
// places:  of windows: their first indices, axis by axis.
// rows:    of windows, to which they go.
// shape:   of each window.
struct Overlaps {
  std::span<const std::span<const std::byte>> values;
  std::span<const std::int64_t> boxes, edges, places, rows, shape;
};

// Copy the parts of windows that chunks hold to rows of `windows`. An element has `item_bytes`; the
// caller is one of the `threads`. Throws std::out_of_range or std::invalid_argument, before anything
// is copied, if sizes do not fit. No two chunks may hold the same place of the array.
void copy_overlaps(const Overlaps& overlaps, std::size_t item_bytes, std::span<std::byte> windows,
                   unsigned threads);

// Copy `lengths[i]` bytes from each address into `out`, one after the other, each padded with zeros
// to a multiple of `alignment`. checksums[i] becomes the CRC-32C of extent i with its padding. Runs
// on `threads` threads, the caller included. Throws std::out_of_range unless the extents fill `out`
// exactly; addresses are not checked. An extent that is already in its place is only summed.
void pack_extents(std::span<const std::uint64_t> from, std::span<const std::int64_t> lengths,
             std::size_t alignment, std::span<std::byte> out, unsigned threads,
             std::span<std::uint32_t> checksums);

// Order this thread's accesses to shared memory. A thread that reads a value written after this
// call, and then calls fence() itself, sees all values written before this call.
void fence();

}  // namespace penstock
