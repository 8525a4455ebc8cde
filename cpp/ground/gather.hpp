// Many pieces copied from one memory to another.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

namespace penstock {

// Copies `lengths[i]` bytes at `at[i]` of `source` to `targets[i]` of `out`. Whatever is not inside
// of either throws std::out_of_range before anything is copied.
void gather(std::span<const std::byte> source, std::span<const std::int64_t> at,
            std::span<const std::int64_t> lengths, std::span<const std::int64_t> targets,
            std::span<std::byte> out);

// Copies `lengths[i]` bytes from each address into `out`, one after the other, each with zeros up to a
// multiple of `alignment`, on so many threads, this one among them; and sums on the way: checksums[i]
// is the CRC-32C of what extent i takes in `out`. std::out_of_range where `out` is not filled exactly;
// the addresses are believed. An extent that is in its place already is summed there.
void collect(std::span<const std::uint64_t> from, std::span<const std::int64_t> lengths,
             std::size_t alignment, std::span<std::byte> out, unsigned threads,
             std::span<std::uint32_t> checksums);

// What was written before it is seen before what is written after it, by all who do the same
// between reading the latter and the former.
void fence();

}  // namespace penstock
