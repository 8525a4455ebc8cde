// Rank and select with POPCNT and PDEP.
#if defined(__x86_64__)

#include <immintrin.h>

#include "order/bitmap_kernel.hpp"

namespace penstock {
namespace {

struct Bmi2 {
  static std::uint64_t count(std::uint64_t word) noexcept {
    return static_cast<std::uint64_t>(_mm_popcnt_u64(word));
  }
  static std::uint64_t locate(std::uint64_t word, std::uint64_t n) noexcept {
    return _tzcnt_u64(_pdep_u64(std::uint64_t{1} << n, word));
  }
};

}  // namespace

std::size_t select_bmi2(const Bitmap& bitmap, std::span<const std::uint64_t> numbers,
                        std::span<std::uint64_t> samples) noexcept {
  return BitmapKernel<Bmi2>::select(bitmap, numbers, samples);
}

std::size_t rank_bmi2(const Bitmap& bitmap, std::span<const std::uint64_t> samples,
                      std::span<std::uint64_t> numbers) noexcept {
  return BitmapKernel<Bmi2>::rank(bitmap, samples, numbers);
}

}  // namespace penstock

#endif
