// Rank and select over one instruction set's bit operations; `Bits` has count(word), the number of
// ones, and locate(word, n), the place of one number n. All give the same values.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>

#include "order/bitmap.hpp"

namespace penstock {

template <class Bits>
struct BitmapKernel {
  static constexpr std::size_t group = 64;  // values whose memory is fetched at a time
  static constexpr std::uint64_t before_mask = 0x7FFFFFFF;

  static std::uint64_t ones_before(const Bitmap& bitmap, std::uint64_t stretch) noexcept {
    return bitmap.bases[stretch >> region_bits] + (bitmap.counts[stretch] & before_mask);
  }

  // The ones in the first `block` blocks of a stretch.
  static std::uint64_t ones_in_blocks(std::uint64_t counts, std::uint64_t block) noexcept {
    return ((counts >> 31 << 11) >> (11 * block)) & 0x7FF;
  }

  // The last of the stretches [low, high] that begins with at most `number` ones before it.
  static std::uint64_t find_stretch(const Bitmap& bitmap, std::uint64_t low, std::uint64_t high,
                                    std::uint64_t number) noexcept {
    while (high > low && (high - low > 15 || (low ^ high) >> region_bits != 0)) [[unlikely]] {
      const std::uint64_t middle = low + (high - low + 1) / 2;
      const bool is_before = ones_before(bitmap, middle) <= number;
      low = is_before ? middle : low;
      high = is_before ? high : middle - 1;
    }
    // Counting all that are left takes less than branches that are mispredicted.
    const std::uint64_t left = number - bitmap.bases[low >> region_bits];
    std::uint64_t found = low;
    for (std::uint64_t later = low + 1; later <= high; ++later)
      found += (bitmap.counts[later] & before_mask) <= left;
    return found;
  }

  // The first word of the block that holds a number; what is left of the number then.
  static std::uint64_t find_block(const Bitmap& bitmap, std::uint64_t stretch,
                                  std::uint64_t& number) noexcept {
    const std::uint64_t counts = bitmap.counts[stretch], fields = counts >> 31;
    number -= bitmap.bases[stretch >> region_bits] + (counts & before_mask);
    const std::uint64_t block = std::uint64_t{(fields & 0x7FF) <= number} +
                                std::uint64_t{(fields >> 11 & 0x7FF) <= number} +
                                std::uint64_t{(fields >> 22) <= number};
    number -= ones_in_blocks(counts, block);
    return stretch * stretch_words + block * block_words;
  }

  // Halves the block three times; `number` is below the ones in it, unless columns contradict.
  static std::uint64_t find_in_block(const Bitmap& bitmap, std::uint64_t word,
                                     std::uint64_t number) noexcept {
    const std::uint64_t* words = bitmap.words.data();
    const auto skip = [&](std::uint64_t ones, std::uint64_t by) {
      const std::uint64_t passed = -std::uint64_t{ones <= number};
      number -= ones & passed;
      word += by & passed;
    };
    skip(Bits::count(words[word]) + Bits::count(words[word + 1]) + Bits::count(words[word + 2]) +
             Bits::count(words[word + 3]),
         4);
    skip(Bits::count(words[word]) + Bits::count(words[word + 1]), 2);
    skip(Bits::count(words[word]), 1);
    return word * 64 + Bits::locate(words[word], number & 63);
  }

  static std::size_t select(const Bitmap& bitmap, std::span<const std::uint64_t> numbers,
                            std::span<std::uint64_t> samples) noexcept {
    const std::uint64_t ones = bitmap.ones(), last = bitmap.counts.size() - 1;
    std::uint64_t number[group], place[group], high[group];
    for (std::size_t base = 0; base < numbers.size(); base += group) {
      const std::size_t size = std::min(group, numbers.size() - base);
      for (std::size_t i = 0; i < size; ++i) {
        number[i] = numbers[base + i];
        if (number[i] >= ones) return base + i;
        const std::uint32_t* hint = &bitmap.hints[number[i] >> bitmap.hint_bits];
        place[i] = std::min<std::uint64_t>(hint[0], last);
        high[i] = std::min<std::uint64_t>(hint[1], last);
        __builtin_prefetch(&bitmap.counts[place[i]]);
        __builtin_prefetch(&bitmap.counts[high[i]]);
      }
      for (std::size_t i = 0; i < size; ++i) {
        place[i] = find_stretch(bitmap, place[i], high[i], number[i]);
        place[i] = find_block(bitmap, place[i], number[i]);
        __builtin_prefetch(&bitmap.words[place[i]]);
      }
      for (std::size_t i = 0; i < size; ++i)
        samples[base + i] = std::min(find_in_block(bitmap, place[i], number[i]), bitmap.count - 1);
    }
    return numbers.size();
  }

  static std::size_t rank(const Bitmap& bitmap, std::span<const std::uint64_t> samples,
                          std::span<std::uint64_t> numbers) noexcept {
    std::uint64_t sample[group];
    for (std::size_t base = 0; base < samples.size(); base += group) {
      const std::size_t size = std::min(group, samples.size() - base);
      for (std::size_t i = 0; i < size; ++i) {
        sample[i] = samples[base + i];
        if (sample[i] >= bitmap.count) return base + i;
        __builtin_prefetch(&bitmap.words[sample[i] / 64]);
        __builtin_prefetch(&bitmap.counts[sample[i] / 64 / stretch_words]);
      }
      for (std::size_t i = 0; i < size; ++i) {
        const std::uint64_t word = sample[i] / 64, stretch = word / stretch_words;
        const std::uint64_t bit = std::uint64_t{1} << (sample[i] % 64);
        if ((bitmap.words[word] & bit) == 0) return base + i;
        const std::uint64_t* block = &bitmap.words[word & ~std::uint64_t{block_words - 1}];
        const std::uint64_t earlier = word % block_words;
        std::uint64_t number = ones_before(bitmap, stretch) +
                               ones_in_blocks(bitmap.counts[stretch],
                                              word / block_words % (stretch_words / block_words));
        for (std::uint64_t w = 0; w + 1 < block_words; ++w)
          number += Bits::count(block[w] & (std::uint64_t{w >= earlier} - 1));
        numbers[base + i] = number + Bits::count(bitmap.words[word] & (bit - 1));
      }
    }
    return samples.size();
  }
};

}  // namespace penstock
