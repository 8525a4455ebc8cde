// The order's kernels with AVX2: 8 lanes.
#if defined(__x86_64__)

#include <immintrin.h>

#include "order/order_kernel.hpp"

namespace penstock {
namespace {

struct Avx2 {
  using Words = __m256i;
  static constexpr std::size_t width = 8;
  static constexpr std::size_t unroll = 2;

  static Words all(std::uint32_t x) { return _mm256_set1_epi32(static_cast<int>(x)); }
  static Words add(Words x, Words y) { return _mm256_add_epi32(x, y); }
  static Words sub(Words x, Words y) { return _mm256_sub_epi32(x, y); }
  static Words mul(Words x, Words y) { return _mm256_mullo_epi32(x, y); }
  static Words min(Words x, Words y) { return _mm256_min_epu32(x, y); }
  static Words both(Words x, Words y) { return _mm256_and_si256(x, y); }
  static Words either(Words x, Words y) { return _mm256_or_si256(x, y); }
  static Words exclusive(Words x, Words y) { return _mm256_xor_si256(x, y); }
  static Words left(Words x, Words by) { return _mm256_sllv_epi32(x, by); }
  static Words right(Words x, Words by) { return _mm256_srlv_epi32(x, by); }
  template <unsigned by>
  static Words right(Words x) {
    return _mm256_srli_epi32(x, by);
  }

  // The high words of the 64-bit products: even lanes, odd lanes, and a blend to join them.
  static Words high(Words x, Words y) {
    const Words even = _mm256_srli_epi64(_mm256_mul_epu32(x, y), 32);
    const Words odd = _mm256_mul_epu32(_mm256_srli_epi64(x, 32), y);
    return _mm256_blend_epi32(even, odd, 0xAA);
  }

  static __m256i load(const std::uint64_t* in) {
    return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(in));
  }
  static Words packed(__m256i x, __m256i y) {
    const __m256 halves = _mm256_shuffle_ps(_mm256_castsi256_ps(x), _mm256_castsi256_ps(y), 0x88);
    return _mm256_permute4x64_epi64(_mm256_castps_si256(halves), 0xD8);
  }
  static Words low(const std::uint64_t* in) { return packed(load(in), load(in + 4)); }
  static Words low(const std::uint64_t* in, std::uint32_t drop) {
    const __m256i by = _mm256_set1_epi64x(drop);
    return packed(_mm256_srlv_epi64(load(in), by), _mm256_srlv_epi64(load(in + 4), by));
  }

  static __m256i wide0(Words x) { return _mm256_cvtepu32_epi64(_mm256_castsi256_si128(x)); }
  static __m256i wide1(Words x) { return _mm256_cvtepu32_epi64(_mm256_extracti128_si256(x, 1)); }
  static void put(std::uint64_t* out, __m256i x) {
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(out), x);
  }

  static std::uint64_t above(Words x, Words last) {
    const Words within = _mm256_cmpeq_epi32(_mm256_min_epu32(x, last), x);
    return static_cast<unsigned>(_mm256_movemask_ps(_mm256_castsi256_ps(within))) ^ 0xFFu;
  }
  static void store(Words x, std::uint64_t* out) {
    put(out, wide0(x));
    put(out + 4, wide1(x));
  }
  static std::uint64_t store(Words left, Words right, std::uint32_t bits, std::uint64_t last,
                             std::uint64_t* out) {
    const __m256i by = _mm256_set1_epi64x(bits);
    const __m256i limit = _mm256_set1_epi64x(static_cast<long long>(last));
    const __m256i x = _mm256_or_si256(_mm256_sllv_epi64(wide0(left), by), wide0(right));
    const __m256i y = _mm256_or_si256(_mm256_sllv_epi64(wide1(left), by), wide1(right));
    put(out, x);
    put(out + 4, y);
    // Values stay below 2^62, so that the signed comparison is right.
    const auto bits_above = [&](__m256i v) {
      const __m256d above = _mm256_castsi256_pd(_mm256_cmpgt_epi64(v, limit));
      return static_cast<unsigned>(_mm256_movemask_pd(above));
    };
    return bits_above(x) | bits_above(y) << 4;
  }
};

}  // namespace

extern const Level level_avx2;
constinit const Level level_avx2{"avx2", permute<Avx2, false>, permute<Avx2, true>};

}  // namespace penstock

#endif
