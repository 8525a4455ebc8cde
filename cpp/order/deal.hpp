// Rows of a step dealt to ranks by their cost, so that the ranks' sums are near each other.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

namespace penstock {

enum class Dealing {
  // Every rank gets one of each `ranks` neighbours, so that the rows of all ranks with the same
  // number cost about the same.
  stripes,
  // A row goes to any rank that may still get one: sums are nearer to each other.
  sums,
};

// Deal the rows of some steps. A step's rows are sorted, the costliest first, those of equal cost
// by number. Each goes to the rank whose sum is smallest so far, of those that may get it; among
// equal sums, rank r has the turn (r + turn) % ranks. All ranks get as many rows, or, if `rows` is
// no multiple of `ranks`, the first ones get one more: in stripes, of the cheapest.
//
// costs:  of the rows, step by step; `rows` of each step, fewer than 2^24.
// turns:  of each step.
// dealt:  as many as costs. Step by step, the first row of each rank, the second of each, ...
//
// Throws std::bad_alloc, and std::invalid_argument if the sizes do not fit.
void deal_rows(std::span<const std::uint16_t> costs, std::span<const std::int64_t> turns,
               std::size_t rows, std::size_t ranks, Dealing dealing, std::span<std::int64_t> dealt);

}  // namespace penstock
