// Numbers less their mean, divided by their deviation.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>

namespace penstock {

// Write (x - mean[r]) / sd[r] for each number x, computed in double, to `out` as float, or as the
// upper half of its bits, rounded to even, if `halves`. Numbers are lines of `inner`, each of the
// next row r. Runs on `threads` threads, the caller included.
//
// kind:  as numpy names the type of the numbers: f4, f8, or b, i, u with a size.
//
// Throws std::invalid_argument unless the sizes fit, and the addresses are aligned.
void standardize(std::span<const std::byte> numbers, std::string_view kind,
                 std::span<const double> mean, std::span<const double> sd, std::size_t inner,
                 std::span<std::byte> out, bool halves, unsigned threads);

}  // namespace penstock
