// Weights of samples as integers with their sums, and the sample that each of n evenly spaced points
// falls on, in near-constant time and 4.25 bytes a sample.
//
//   weights  of each sample, 32 bits.
//   bases    sums of the weights before each block of 32 samples, and of all.
//
// Pick t of n is at (t * total + offset) / n: the points are total / n apart, so a sample of weight
// w holds n * w / total of them, rounded down or up, for every offset in [0, total). Over all
// offsets the mean is exact.
//
// A point's block is found by hints, one for about as much weight as a block has on average, and a
// binary search between two of them; the block's 32 weights are two cache lines. Points are looked
// up in groups, so that these lines are fetched ahead.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace penstock {

inline constexpr std::size_t weight_block = 32;

// A table whose memory belongs to somebody else, for instance to a mapped file. Immutable. Columns
// that contradict each other give wrong samples, but no access outside of them.
class WeightTable {
 public:
  // Throws std::invalid_argument if a column's size does not fit, or if the sums descend or are 0.
  WeightTable(std::span<const std::uint32_t> weights, std::span<const std::uint64_t> bases);

  std::uint64_t total() const noexcept { return bases.back(); }

  // Pick -> sample, of `picks` picks. `numbers` and `samples` have one size and are the same memory
  // or do not overlap. Returns the index of the first number at or above `picks`, or the size; the
  // values in `samples` after such a number are unspecified. picks >= 1 and offset < total().
  std::size_t pick(std::span<const std::uint64_t> numbers, std::span<std::uint64_t> samples,
                   std::uint64_t picks, std::uint64_t offset) const noexcept;

  std::span<const std::uint32_t> weights;
  std::span<const std::uint64_t> bases;

 private:
  std::size_t find_block(std::uint64_t point) const noexcept;
  std::uint64_t find_sample(std::size_t block, std::uint64_t point) const noexcept;

  unsigned hint_bits_;
  std::vector<std::uint32_t> hints_;  // the block that holds the point j << hint_bits_
};

}  // namespace penstock
