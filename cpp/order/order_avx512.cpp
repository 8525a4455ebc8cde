// The order's kernels with AVX-512: 16 lanes.
#if defined(__x86_64__)

// GCC 12 takes the deliberately undefined operands inside its own intrinsics for mistakes
// (GCC bug 105593).
#if defined(__GNUC__) && !defined(__clang__)
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#endif

#include <immintrin.h>

#include "order/order_kernel.hpp"

namespace penstock {
namespace {

struct Avx512 {
  using Words = __m512i;
  static constexpr std::size_t width = 16;
  static constexpr std::size_t unroll = 4;

  static Words all(std::uint32_t x) { return _mm512_set1_epi32(static_cast<int>(x)); }
  static Words add(Words x, Words y) { return _mm512_add_epi32(x, y); }
  static Words sub(Words x, Words y) { return _mm512_sub_epi32(x, y); }
  static Words mul(Words x, Words y) { return _mm512_mullo_epi32(x, y); }
  static Words min(Words x, Words y) { return _mm512_min_epu32(x, y); }
  static Words both(Words x, Words y) { return _mm512_and_si512(x, y); }
  static Words either(Words x, Words y) { return _mm512_or_si512(x, y); }
  static Words exclusive(Words x, Words y) { return _mm512_xor_si512(x, y); }
  static Words left(Words x, Words by) { return _mm512_sllv_epi32(x, by); }
  static Words right(Words x, Words by) { return _mm512_srlv_epi32(x, by); }
  template <unsigned by>
  static Words right(Words x) {
    return _mm512_srli_epi32(x, by);
  }

  // The high words of the 64-bit products: even lanes, odd lanes, and a masked move to join them.
  static Words high(Words x, Words y) {
    const __m512 swapped = _mm512_movehdup_ps(_mm512_castsi512_ps(x));
    const Words even = _mm512_mul_epu32(x, y);
    const Words odd = _mm512_mul_epu32(_mm512_castps_si512(swapped), y);
#if defined(__clang__)
    // Left to itself, clang makes two shuffles of the masked move: 5 % of the whole.
    Words joined = odd;
    __asm__("vmovshdup %1, %0%{%2%}" : "+v"(joined) : "v"(even), "Yk"(__mmask16{0x5555}));
    return joined;
#else
    return _mm512_castps_si512(_mm512_mask_movehdup_ps(_mm512_castsi512_ps(odd), 0x5555,
                                                       _mm512_castsi512_ps(even)));
#endif
  }

  static Words packed(__m512i x, __m512i y) {
    const __m512i even =
        _mm512_set_epi32(30, 28, 26, 24, 22, 20, 18, 16, 14, 12, 10, 8, 6, 4, 2, 0);
    return _mm512_permutex2var_epi32(x, even, y);
  }
  static Words low(const std::uint64_t* in) {
    return packed(_mm512_loadu_si512(in), _mm512_loadu_si512(in + 8));
  }
  static Words low(const std::uint64_t* in, std::uint32_t drop) {
    const __m512i by = _mm512_set1_epi64(drop);
    return packed(_mm512_srlv_epi64(_mm512_loadu_si512(in), by),
                  _mm512_srlv_epi64(_mm512_loadu_si512(in + 8), by));
  }

  static __m512i wide0(Words x) { return _mm512_cvtepu32_epi64(_mm512_castsi512_si256(x)); }
  static __m512i wide1(Words x) { return _mm512_cvtepu32_epi64(_mm512_extracti64x4_epi64(x, 1)); }

  // A mask becomes an integer in a general register, at once. Left to itself, GCC 12 folds the
  // extension to 64 bits into the comparison and, where the result is spilled (as sanitizers make
  // it be), stores 16 bits and reloads 64.
  static std::uint64_t bits_of(std::uint32_t lanes) {
    __asm__("" : "+r"(lanes));
    return lanes;
  }

  static std::uint64_t above(Words x, Words last) {
    return bits_of(_mm512_cmpgt_epu32_mask(x, last));
  }
  static void store(Words x, std::uint64_t* out) {
    _mm512_storeu_si512(out, wide0(x));
    _mm512_storeu_si512(out + 8, wide1(x));
  }
  static std::uint64_t store(Words left, Words right, std::uint32_t bits, std::uint64_t last,
                             std::uint64_t* out) {
    const __m512i by = _mm512_set1_epi64(bits);
    const __m512i limit = _mm512_set1_epi64(static_cast<long long>(last));
    const __m512i x = _mm512_or_si512(_mm512_sllv_epi64(wide0(left), by), wide0(right));
    const __m512i y = _mm512_or_si512(_mm512_sllv_epi64(wide1(left), by), wide1(right));
    _mm512_storeu_si512(out, x);
    _mm512_storeu_si512(out + 8, y);
    return bits_of(_mm512_cmpgt_epu64_mask(x, limit)) |
           bits_of(_mm512_cmpgt_epu64_mask(y, limit)) << 8;
  }
};

}  // namespace

extern const Level level_avx512;
constinit const Level level_avx512{"avx512", permute<Avx512, false>, permute<Avx512, true>};

}  // namespace penstock

#endif
