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

// Copies `lengths[i]` bytes from the address `from[i]` to `targets[i]` of `out`, on so many threads,
// this one among them. What leaves `out` throws std::out_of_range before anything is copied; the
// addresses are believed.
void collect(std::span<const std::uint64_t> from, std::span<const std::int64_t> lengths,
             std::span<const std::int64_t> targets, std::span<std::byte> out, unsigned threads);

// What was written before it is seen before what is written after it, by all who do the same
// between reading the latter and the former.
void fence();

}  // namespace penstock
