// Tables of weights: picks against the rule, counts, and columns that contradict each other.
#include "order/weight_table.hpp"

#include <algorithm>
#include <cstdint>
#include <stdexcept>
#include <vector>

#include "tests/support/check.hpp"

using penstock::WeightTable;
using Values = std::vector<std::uint64_t>;
using Weights = std::vector<std::uint32_t>;

namespace {

__extension__ typedef unsigned __int128 Product;

std::uint64_t next(std::uint64_t& state) {
  state ^= state << 13;
  state ^= state >> 7;
  return state ^= state << 17;
}

Values sum_blocks(const Weights& weights) {
  Values bases{0};
  for (std::size_t start = 0; start < weights.size(); start += penstock::weight_block) {
    bases.push_back(bases.back());
    for (std::size_t i = start; i < std::min(start + penstock::weight_block, weights.size()); ++i)
      bases.back() += weights[i];
  }
  return bases;
}

// Every so many weights are above 0, and of up to so many bits.
Weights draw(std::size_t count, std::uint64_t one_in, unsigned bits) {
  std::uint64_t state = 88172645463325252u;
  Weights weights(count);
  for (auto& weight : weights)
    if (next(state) % one_in == 0)
      weight = static_cast<std::uint32_t>(next(state) >> (64 - bits)) | 1;
  weights[next(state) % count] |= 1;
  return weights;
}

void check_picks(const Weights& weights, std::uint64_t picks) {
  const Values bases = sum_blocks(weights);
  const WeightTable table(weights, bases);
  std::uint64_t state = 7;
  const std::uint64_t offset = next(state) % table.total();
  Values sums{0};
  for (const auto weight : weights) sums.push_back(sums.back() + weight);
  Values numbers(500);
  for (auto& number : numbers) number = next(state) % picks;
  numbers.front() = 0;
  numbers.back() = picks - 1;
  Values samples = numbers;
  CHECK(table.pick(samples, samples, picks, offset) == samples.size());
  for (std::size_t i = 0; i < numbers.size(); ++i) {
    const auto point =
        static_cast<std::uint64_t>((Product{numbers[i]} * table.total() + offset) / picks);
    CHECK(sums[samples[i]] <= point && point < sums[samples[i] + 1]);
  }
  numbers[37] = picks;
  CHECK(table.pick(numbers, samples, picks, offset) == 37);
}

bool is_refused(const Weights& weights, const Values& bases) {
  try {
    const WeightTable table(weights, bases);
  } catch (const std::invalid_argument&) {
    return true;
  }
  return false;
}

void contradicting_columns() {
  Weights weights = draw(5000, 2, 31);
  Values bases = sum_blocks(weights);
  std::uint64_t state = 11;
  for (auto& weight : weights) weight = static_cast<std::uint32_t>(next(state)) >> (state % 32);
  for (std::size_t i = 1; i + 1 < bases.size(); ++i) bases[i] = next(state) % bases.back();
  std::sort(bases.begin(), bases.end());
  const WeightTable table(weights, bases);
  Values numbers(5000);
  for (std::size_t i = 0; i < numbers.size(); ++i) numbers[i] = i;
  CHECK(table.pick(numbers, numbers, numbers.size(), 1) == numbers.size());
  CHECK(*std::max_element(numbers.begin(), numbers.end()) < weights.size());
  std::swap(bases[3], bases[100]);
  CHECK(is_refused(weights, bases));
  CHECK(is_refused({}, {0}));
  CHECK(is_refused({0, 0}, {0, 0}));
  CHECK(is_refused({1, 2}, {0, 3, 3}));
  CHECK(is_refused({1, 2}, {1, 3}));
  CHECK(is_refused({1, 2}, {0, std::uint64_t{1} << 63}));
}

}  // namespace

int main() {
  for (const std::size_t count : {1u, 31u, 32u, 33u, 5000u})
    for (const std::uint64_t one_in : {1u, 3u, 400u})
      for (const unsigned bits : {1u, 10u, 31u})
        for (const std::uint64_t picks : {std::uint64_t{1}, std::uint64_t{4999},
                                          std::uint64_t{1} << 33, std::uint64_t{1} << 62})
          check_picks(draw(count, one_in, bits), picks);
  contradicting_columns();
}
