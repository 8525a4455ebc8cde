#include "order/weight_table.hpp"

#include <algorithm>
#include <bit>
#include <stdexcept>

namespace penstock {
namespace {

__extension__ typedef unsigned __int128 Product;

constexpr std::size_t group = 16;
constexpr std::size_t line_weights = 16;  // of a cache line

// The point of each pick. (t * total + offset) / picks is split at multiples of picks, so that
// 64 bits are enough where there are fewer than 2^32 picks.
class Points {
 public:
  Points(std::uint64_t total, std::uint64_t picks, std::uint64_t offset) noexcept
      : picks_(picks),
        step_(total / picks),
        step_rest_(total % picks),
        first_(offset / picks),
        first_rest_(offset % picks) {}

  std::uint64_t operator()(std::uint64_t t) const noexcept {
    const std::uint64_t whole = t * step_ + first_;
    if (picks_ >> 32 == 0) return whole + (t * step_rest_ + first_rest_) / picks_;
    return whole + static_cast<std::uint64_t>((Product{t} * step_rest_ + first_rest_) / picks_);
  }

 private:
  std::uint64_t picks_;
  std::uint64_t step_, step_rest_;
  std::uint64_t first_, first_rest_;
};

}  // namespace

WeightTable::WeightTable(std::span<const std::uint32_t> weights_,
                         std::span<const std::uint64_t> bases_)
    : weights(weights_), bases(bases_), hint_bits_(0) {
  const std::size_t blocks = (weights.size() + weight_block - 1) / weight_block;
  if (weights.empty() || weights.size() >> 31 != 0 || bases.size() != blocks + 1 ||
      bases.front() != 0 || bases.back() == 0 || bases.back() >> 63 != 0 ||
      !std::is_sorted(bases.begin(), bases.end()))
    throw std::invalid_argument("the columns of a table of weights do not fit each other");
  const std::uint64_t mean = total() / blocks;
  hint_bits_ = mean == 0 ? 0 : static_cast<unsigned>(std::bit_width(mean)) - 1;
  hints_.reserve((total() >> hint_bits_) + 2);
  for (std::size_t block = 0; block < blocks; ++block)
    while (std::uint64_t{hints_.size()} << hint_bits_ < bases[block + 1])
      hints_.push_back(static_cast<std::uint32_t>(block));
  hints_.push_back(static_cast<std::uint32_t>(blocks - 1));
}

std::size_t WeightTable::find_block(std::uint64_t point) const noexcept {
  const std::size_t hint = point >> hint_bits_;
  const auto low = bases.begin() + hints_[hint] + 1;
  const auto high = bases.begin() + hints_[hint + 1] + 1;
  return static_cast<std::size_t>(std::upper_bound(low, high, point) - bases.begin()) - 1;
}

std::uint64_t WeightTable::find_sample(std::size_t block, std::uint64_t point) const noexcept {
  const std::size_t first = block * weight_block;
  const std::size_t last = std::min(first + weight_block, weights.size()) - 1;
  std::uint64_t rest = point - bases[block];
  std::size_t sample = first;
  while (sample < last && rest >= weights[sample]) rest -= weights[sample++];
  return sample;
}

std::size_t WeightTable::pick(std::span<const std::uint64_t> numbers,
                              std::span<std::uint64_t> samples, std::uint64_t picks,
                              std::uint64_t offset) const noexcept {
  const Points points(total(), picks, offset);
  std::uint64_t place[group];
  std::size_t block[group];
  for (std::size_t start = 0; start < numbers.size(); start += group) {
    const std::size_t size = std::min(group, numbers.size() - start);
    for (std::size_t i = 0; i < size; ++i) {
      if (numbers[start + i] >= picks) return start + i;
      place[i] = points(numbers[start + i]);
      __builtin_prefetch(&hints_[place[i] >> hint_bits_]);
    }
    for (std::size_t i = 0; i < size; ++i)
      __builtin_prefetch(&bases[hints_[place[i] >> hint_bits_]]);
    for (std::size_t i = 0; i < size; ++i) {
      block[i] = find_block(place[i]);
      const std::size_t first = block[i] * weight_block;
      __builtin_prefetch(&weights[first]);
      __builtin_prefetch(&weights[std::min(first + line_weights, weights.size() - 1)]);
    }
    for (std::size_t i = 0; i < size; ++i) samples[start + i] = find_sample(block[i], place[i]);
  }
  return numbers.size();
}

}  // namespace penstock
