// Bitmaps: rank and select against a list, portable and not, also where columns contradict.
#include "order/bitmap.hpp"

#include <algorithm>
#include <cstdint>
#include <stdexcept>
#include <vector>

#include "tests/support/check.hpp"

using penstock::Bitmap;
using penstock::BitmapCounts;
using Values = std::vector<std::uint64_t>;

namespace {

std::uint64_t next(std::uint64_t& state) {
  state ^= state << 13;
  state ^= state >> 7;
  return state ^= state << 17;
}

std::size_t words_for(std::uint64_t count) { return (count + 2047) / 2048 * 32; }

// Every so many samples on average, in runs; all of them with 1.
Values draw(std::uint64_t count, std::uint64_t one_in, std::uint64_t run) {
  Values samples;
  std::uint64_t state = 88172645463325252u;
  for (std::uint64_t start = 0; start < count; start += run)
    if (next(state) % one_in == 0)
      for (std::uint64_t s = start; s < std::min(start + run, count); ++s) samples.push_back(s);
  return samples;
}

void check_set(std::uint64_t count, const Values& samples) {
  Values words(words_for(count));
  CHECK(penstock::set_bits(words, count, samples) == samples.size());
  if (!samples.empty()) CHECK(penstock::set_bits(words, count, samples) == 0);
  const Values beyond{count};
  CHECK(penstock::set_bits(words, count, beyond) == 0);
  const BitmapCounts counts(words);
  for (const bool portable : {false, true}) {
    const Bitmap bitmap(count, words, counts.counts, counts.bases, counts.hints, portable);
    CHECK(bitmap.ones() == samples.size());
    Values numbers(samples.size());
    for (std::size_t i = 0; i < numbers.size(); ++i) numbers[i] = i;
    Values found = numbers;
    CHECK(bitmap.select(found, found) == found.size());
    CHECK(found == samples);
    CHECK(bitmap.rank(found, found) == found.size());
    CHECK(found == numbers);
    const Values outside{bitmap.ones()};
    Values out(1);
    CHECK(bitmap.select(outside, out) == 0);
    CHECK(bitmap.rank(beyond, out) == 0);
    for (std::uint64_t s = 0; s < std::min<std::uint64_t>(count, 300); ++s) {
      const bool is_in = std::binary_search(samples.begin(), samples.end(), s);
      CHECK(bitmap.rank(Values{s}, out) == (is_in ? 1 : 0));
    }
  }
}

void contradicting_columns() {
  constexpr std::uint64_t count = 20'000;
  std::uint64_t state = 7;
  Values words(words_for(count));
  penstock::set_bits(words, count, draw(count, 2, 1));
  BitmapCounts counts(words);
  for (auto& value : counts.counts) value = next(state);
  for (auto& value : counts.hints) value = static_cast<std::uint32_t>(next(state));
  for (const bool portable : {false, true}) {
    const Bitmap bitmap(count, words, counts.counts, counts.bases, counts.hints, portable);
    Values numbers(bitmap.ones());
    for (std::size_t i = 0; i < numbers.size(); ++i) numbers[i] = i;
    CHECK(bitmap.select(numbers, numbers) == numbers.size());
    CHECK(*std::max_element(numbers.begin(), numbers.end()) < count);
  }
  bool refused = false;
  try {
    const Bitmap short_one(count + 2048, words, counts.counts, counts.bases, counts.hints);
  } catch (const std::invalid_argument&) {
    refused = true;
  }
  CHECK(refused);
}

}  // namespace

int main() {
  for (const std::uint64_t count : {1u, 63u, 64u, 2047u, 2048u, 2049u, 100'000u})
    for (const std::uint64_t one_in : {1u, 2u, 50u, 100'000u})
      for (const std::uint64_t run : {1u, 40u, 5000u}) check_set(count, draw(count, one_in, run));
  contradicting_columns();
}
