// Rows of an array in the order of a permutation, by streams instead of random reads.
#pragma once

#include <cstddef>
#include <span>

#include "order/order.hpp"

namespace penstock {

// Sizes that fit a core's caches and page tables; tests use smaller ones.
struct CacheLimits {
  std::size_t bytes = 8u << 20;  // of an array whose rows are read in random order
  std::size_t streams = 4096;    // places that are written to in turn
};

// Copy row permutation(i) of `in` to row i of `out`, for rows of `row_bytes`; the permutation has
// as many samples as there are rows. `in` and `out` have one size and are the same memory or do not
// overlap.
//
// Small rows take two bytes of scratch each (four from 2^28 rows on), and a copy of `in` if it is
// also `out`. Runs on up to `threads` threads. Throws std::bad_alloc, std::invalid_argument.
void shuffle_rows(const Permutation& permutation, std::span<const std::byte> in,
             std::span<std::byte> out, std::size_t row_bytes, unsigned threads,
             const CacheLimits& caches = {});

}  // namespace penstock
