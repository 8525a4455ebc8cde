#include "order/bitmap.hpp"

#include <bit>
#include <stdexcept>

#include "ground/limits.hpp"
#include "ground/processor.hpp"
#include "order/bitmap_kernel.hpp"

namespace penstock {

#if defined(__x86_64__)
std::size_t select_bmi2(const Bitmap& bitmap, std::span<const std::uint64_t> numbers,
                        std::span<std::uint64_t> samples) noexcept;
std::size_t rank_bmi2(const Bitmap& bitmap, std::span<const std::uint64_t> samples,
                      std::span<std::uint64_t> numbers) noexcept;
#endif

namespace {

struct Portable {
  static std::uint64_t count(std::uint64_t word) noexcept {
    return static_cast<std::uint64_t>(std::popcount(word));
  }
  // The halves that hold one number n, from 32 bits down to one.
  static std::uint64_t locate(std::uint64_t word, std::uint64_t n) noexcept {
    if (n >= count(word)) return 64;
    std::uint64_t place = 0;
    for (unsigned half = 32; half != 0; half /= 2) {
      const std::uint64_t ones = count((word >> place) & ((std::uint64_t{1} << half) - 1));
      if (n >= ones) {
        n -= ones;
        place += half;
      }
    }
    return place;
  }
};

bool has_bmi2() noexcept { return processor().bmi && processor().popcnt; }

constexpr std::size_t region = std::size_t{1} << region_bits;

}  // namespace

unsigned hint_bits(std::uint64_t ones, std::size_t stretches) noexcept {
  const std::uint64_t ones_of_eight = ones / (stretches / 8 + 1);
  return ones_of_eight == 0 ? 0 : static_cast<unsigned>(std::bit_width(ones_of_eight)) - 1;
}

BitmapCounts::BitmapCounts(std::span<const std::uint64_t> words) {
  if (words.empty() || words.size() % stretch_words != 0 ||
      words.size() > limits::selection_count_max / 64)
    throw std::invalid_argument("a bitmap has whole stretches of 2048 bits, and 2^40 at most");
  counts.resize(words.size() / stretch_words);
  bases.reserve((counts.size() + region - 1) / region + 1);
  std::uint64_t ones = 0;
  for (std::size_t stretch = 0; stretch < counts.size(); ++stretch) {
    if (stretch % region == 0) bases.push_back(ones);
    counts[stretch] = ones - bases.back();
    const std::uint64_t before = ones;
    for (unsigned block = 0; block < 4; ++block) {
      if (block != 0) counts[stretch] |= (ones - before) << (20 + 11 * block);
      for (std::size_t word = 0; word < block_words; ++word)
        ones += Portable::count(words[stretch * stretch_words + block * block_words + word]);
    }
  }
  bases.push_back(ones);
  const unsigned bits = hint_bits(ones, counts.size());
  hints.reserve((ones >> bits) + 2);
  for (std::size_t stretch = 0; stretch < counts.size(); ++stretch) {
    const std::uint64_t end =
        stretch + 1 == counts.size()
            ? ones
            : bases[(stretch + 1) >> region_bits] + (counts[stretch + 1] & 0x7FFFFFFF);
    while (std::uint64_t{hints.size()} << bits < end)
      hints.push_back(static_cast<std::uint32_t>(stretch));
  }
  hints.push_back(static_cast<std::uint32_t>(counts.size() - 1));
}

Bitmap::Bitmap(std::uint64_t count_, std::span<const std::uint64_t> words_,
               std::span<const std::uint64_t> counts_, std::span<const std::uint64_t> bases_,
               std::span<const std::uint32_t> hints_, bool portable)
    : count(count_),
      words(words_),
      counts(counts_),
      bases(bases_),
      hints(hints_),
      hint_bits(bases.empty() ? 0 : penstock::hint_bits(bases.back(), counts.size())),
      portable_(portable || !has_bmi2()) {
  const bool fits = count >= 1 && count <= limits::selection_count_max &&
                    counts.size() == (count + 64 * stretch_words - 1) / (64 * stretch_words) &&
                    words.size() == counts.size() * stretch_words &&
                    bases.size() == (counts.size() + region - 1) / region + 1 &&
                    ones() <= count &&
                    hints.size() == (ones() == 0 ? 1 : ((ones() - 1) >> hint_bits) + 2);
  if (!fits) throw std::invalid_argument("the columns of a bitmap differ in size");
}

std::size_t Bitmap::select(std::span<const std::uint64_t> numbers,
                           std::span<std::uint64_t> samples) const noexcept {
#if defined(__x86_64__)
  if (!portable_) return select_bmi2(*this, numbers, samples);
#endif
  return BitmapKernel<Portable>::select(*this, numbers, samples);
}

std::size_t Bitmap::rank(std::span<const std::uint64_t> samples,
                         std::span<std::uint64_t> numbers) const noexcept {
#if defined(__x86_64__)
  if (!portable_) return rank_bmi2(*this, samples, numbers);
#endif
  return BitmapKernel<Portable>::rank(*this, samples, numbers);
}

std::string_view bitmap_kernel() noexcept { return has_bmi2() ? "bmi2" : "portable"; }

std::size_t set_bits(std::span<std::uint64_t> words, std::uint64_t count,
                     std::span<const std::uint64_t> samples) noexcept {
  for (std::size_t i = 0; i < samples.size(); ++i) {
    if (samples[i] >= count) return i;
    std::uint64_t& word = words[samples[i] / 64];
    const std::uint64_t bit = std::uint64_t{1} << (samples[i] % 64);
    if ((word & bit) != 0) return i;
    word |= bit;
  }
  return samples.size();
}

}  // namespace penstock
