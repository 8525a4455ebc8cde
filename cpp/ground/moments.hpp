// Sums of numbers about their mean, and counts of bins.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

namespace penstock {

// How many numbers are finite, and how many are missing (NaN); of the finite ones the least, the
// largest, the mean in two parts, and the squares of the distances to it; zeros if there are none.
struct Moments {
  double finite, missing, low, high, mean, rest, squares;
};

// The moments of some numbers, at least one; false if a sum is beyond the type. The same bits on
// every processor.
template <class T>
bool sum_moments(std::span<const T> numbers, Moments& moments);

// Adds to `counts` how many finite numbers are in each bin: edges[k] <= number < edges[k + 1], and
// the last edge is in the last bin. `scale`, bins by their distance, leads at most one bin astray.
template <class T>
void count_bins(std::span<const T> numbers, std::span<const double> edges, double scale,
                std::span<std::int64_t> counts);

}  // namespace penstock
