// Kernels with AVX2 and BMI2: the same numbers as the portable ones.
#if defined(__x86_64__)

#include <immintrin.h>

#include <cstring>

#include "images/jpeg_entropy.hpp"
#include "images/jpeg_kernel.hpp"
#include "images/jpeg_shrink.hpp"

namespace penstock::jpeg {
namespace {

__m256i load(const void* p) { return _mm256_loadu_si256(static_cast<const __m256i*>(p)); }
void store(void* p, __m256i v) { _mm256_storeu_si256(static_cast<__m256i*>(p), v); }
__m256i load_halves(const void* low, const void* high) {
  return _mm256_inserti128_si256(
      _mm256_castsi128_si256(_mm_loadu_si128(static_cast<const __m128i*>(low))),
      _mm_loadu_si128(static_cast<const __m128i*>(high)), 1);
}
// Sixteen bytes as numbers of 16 bits.
__m256i load_wide(const void* p) {
  return _mm256_cvtepu8_epi16(_mm_loadu_si128(static_cast<const __m128i*>(p)));
}

Unstuffed unstuff(const std::uint8_t* in, std::size_t limit, std::size_t size, std::uint8_t* out) {
  Unstuffed done;
  const __m256i stuffed = _mm256_set1_epi8(-1);
  while (done.read < limit) {
    std::size_t plain;
    if (size - done.read >= 32) {
      const __m256i bytes = load(in + done.read);
      store(out + done.written, bytes);
      const auto found = static_cast<std::uint32_t>(
          _mm256_movemask_epi8(_mm256_cmpeq_epi8(bytes, stuffed)));
      if (found == 0) {
        done.read += 32;
        done.written += 32;
        continue;
      }
      plain = _tzcnt_u32(found);
    } else {
      plain = 0;
      for (; done.read + plain < size && in[done.read + plain] != 0xFF; ++plain)
        out[done.written + plain] = in[done.read + plain];
    }
    done.read += plain;
    done.written += plain;
    if (done.read >= size) break;
    if (done.read + 1 < size && in[done.read + 1] != 0) {
      done.is_end = true;
      return done;
    }
    out[done.written++] = 0xFF;
    done.read += 2;
  }
  if (done.read > size) done.read = size;
  done.is_end = done.read == size;
  return done;
}

std::size_t decode(EntropyState& state, const McuLayout& layout, std::size_t count,
                   std::int16_t* blocks, std::uint8_t* last) {
  return decode_mcus<true>(state, layout, count, blocks, last);
}

std::size_t skip(EntropyState& state, const McuLayout& layout, std::size_t count) {
  return decode_mcus<false>(state, layout, count, nullptr, nullptr);
}

// Rows of two blocks of 16-bit numbers: one block in each half of a vector.
struct Rows {
  __m256i row[8];
};

__m256i make_pair(int first, int second) {
  return _mm256_set1_epi32((first & 0xFFFF) | static_cast<int>(static_cast<unsigned>(second) << 16));
}

// Products of interleaved numbers, summed: a * first + b * second, for eight lanes at a time.
struct Sums {
  __m256i low, high;
};
Sums multiply(__m256i low, __m256i high, int first, int second) {
  const __m256i constants = make_pair(first, second);
  return {_mm256_madd_epi16(low, constants), _mm256_madd_epi16(high, constants)};
}
Sums operator+(Sums a, Sums b) {
  return {_mm256_add_epi32(a.low, b.low), _mm256_add_epi32(a.high, b.high)};
}
Sums operator-(Sums a, Sums b) {
  return {_mm256_sub_epi32(a.low, b.low), _mm256_sub_epi32(a.high, b.high)};
}
// Times 2**13.
Sums scale(__m256i a) {
  const __m256i zero = _mm256_setzero_si256();
  return {_mm256_srai_epi32(_mm256_unpacklo_epi16(zero, a), 3),
          _mm256_srai_epi32(_mm256_unpackhi_epi16(zero, a), 3)};
}

template <int shift>
__m256i descale(Sums a) {
  return _mm256_packs_epi32(_mm256_srai_epi32(a.low, shift), _mm256_srai_epi32(a.high, shift));
}

// One pass over the eight numbers of each lane.
template <int shift>
void transform_lanes(Rows& r) {
  const __m256i low26 = _mm256_unpacklo_epi16(r.row[2], r.row[6]);
  const __m256i high26 = _mm256_unpackhi_epi16(r.row[2], r.row[6]);
  const Sums even2 = multiply(low26, high26, c0_541 + c0_765, c0_541);
  const Sums even6 = multiply(low26, high26, c0_541, c0_541 - c1_847);
  const __m256i half = _mm256_set1_epi32(1 << (shift - 1));
  const Sums sum = scale(_mm256_add_epi16(r.row[0], r.row[4])) + Sums{half, half};
  const Sums difference = scale(_mm256_sub_epi16(r.row[0], r.row[4])) + Sums{half, half};
  const __m256i z3 = _mm256_add_epi16(r.row[7], r.row[3]), z4 = _mm256_add_epi16(r.row[5], r.row[1]);
  const __m256i low_z = _mm256_unpacklo_epi16(z3, z4), high_z = _mm256_unpackhi_epi16(z3, z4);
  const Sums y3 = multiply(low_z, high_z, c1_175 - c1_961, c1_175);
  const Sums y4 = multiply(low_z, high_z, c1_175, c1_175 - c0_390);
  const __m256i low17 = _mm256_unpacklo_epi16(r.row[1], r.row[7]);
  const __m256i high17 = _mm256_unpackhi_epi16(r.row[1], r.row[7]);
  const __m256i low35 = _mm256_unpacklo_epi16(r.row[3], r.row[5]);
  const __m256i high35 = _mm256_unpackhi_epi16(r.row[3], r.row[5]);
  const auto finish = [&](int i, Sums even, Sums odd) {
    r.row[i] = descale<shift>(even + odd);
    r.row[7 - i] = descale<shift>(even - odd);
  };
  finish(0, sum + even2, multiply(low17, high17, c1_501 - c0_899, -c0_899) + y4);
  finish(3, sum - even2, multiply(low17, high17, -c0_899, c0_298 - c0_899) + y3);
  finish(1, difference + even6, multiply(low35, high35, c3_072 - c2_562, -c2_562) + y3);
  finish(2, difference - even6, multiply(low35, high35, -c2_562, c2_053 - c2_562) + y4);
}

void transpose(Rows& r) {
  __m256i a[8], b[8];
  for (int i = 0; i < 4; ++i) {
    a[2 * i] = _mm256_unpacklo_epi16(r.row[2 * i], r.row[2 * i + 1]);
    a[2 * i + 1] = _mm256_unpackhi_epi16(r.row[2 * i], r.row[2 * i + 1]);
  }
  for (int i = 0; i < 2; ++i)
    for (int j = 0; j < 2; ++j) {
      b[4 * i + 2 * j] = _mm256_unpacklo_epi32(a[4 * i + j], a[4 * i + 2 + j]);
      b[4 * i + 2 * j + 1] = _mm256_unpackhi_epi32(a[4 * i + j], a[4 * i + 2 + j]);
    }
  for (int j = 0; j < 4; ++j) {
    r.row[2 * j] = _mm256_unpacklo_epi64(b[j], b[4 + j]);
    r.row[2 * j + 1] = _mm256_unpackhi_epi64(b[j], b[4 + j]);
  }
}

bool is_first_row(const std::int16_t* block) {
  __m256i all = _mm256_zextsi128_si256(_mm_loadu_si128(reinterpret_cast<const __m128i*>(block + 8)));
  for (int i = 16; i < 64; i += 16) all = _mm256_or_si256(all, load(block + i));
  return _mm256_testz_si256(all, all) != 0;
}

// The first pass if sums exceed 16 bits, in damaged pictures alone. A block that has a first row alone
// wraps then, where others saturate.
[[gnu::noinline]] void transform_large(Rows& r, const std::int16_t* first, const std::int16_t* second) {
  const __m256i wrapped = _mm256_slli_epi16(r.row[0], 2);
  const __m256i wraps = _mm256_set_m128i(_mm_set1_epi8(is_first_row(second) ? -1 : 0),
                                         _mm_set1_epi8(is_first_row(first) ? -1 : 0));
  transform_lanes<11>(r);
  for (__m256i& row : r.row) row = _mm256_blendv_epi8(row, wrapped, wraps);
}

// Two blocks side by side.
void transform_pair(std::int16_t* first, std::int16_t* second, const std::uint16_t* quantisers,
                    std::uint8_t* out, std::size_t stride) {
  Rows r;
  const __m256i zero = _mm256_setzero_si256();
  for (int i = 0; i < 8; ++i)
    r.row[i] = _mm256_mullo_epi16(load_halves(first + 8 * i, second + 8 * i),
                                  load_halves(quantisers + 8 * i, quantisers + 8 * i));
  const __m256i kept = _mm256_srai_epi16(_mm256_slli_epi16(r.row[0], 2), 2);
  if (_mm256_movemask_epi8(_mm256_cmpeq_epi16(kept, r.row[0])) == -1) [[likely]]
    transform_lanes<11>(r);
  else
    transform_large(r, first, second);
  for (int i = 0; i < 4; ++i) {
    store(first + 16 * i, zero);
    store(second + 16 * i, zero);
  }
  transpose(r);
  transform_lanes<18>(r);
  transpose(r);
  const __m256i centre = _mm256_set1_epi8(-128);
  for (std::size_t i = 0; i < 8; i += 2) {
    // Halves: rows i and i + 1 of the first block, then of the second.
    const __m256i rows = _mm256_add_epi8(_mm256_packs_epi16(r.row[i], r.row[i + 1]), centre);
    const __m256i sides = _mm256_permute4x64_epi64(rows, 0xD8);
    _mm_storeu_si128(reinterpret_cast<__m128i*>(out + i * stride), _mm256_castsi256_si128(sides));
    _mm_storeu_si128(reinterpret_cast<__m128i*>(out + (i + 1) * stride),
                     _mm256_extracti128_si256(sides, 1));
  }
}

// The sample of a block that has a first coefficient alone.
std::uint64_t spread(std::int16_t coefficient, std::uint16_t quantiser) {
  const auto product = static_cast<std::int16_t>(
      static_cast<std::uint32_t>(static_cast<std::int32_t>(coefficient)) * quantiser);
  const auto clamp = [](int value, int low, int high) {
    return value < low ? low : value > high ? high : value;
  };
  const auto wrapped = static_cast<std::int16_t>(static_cast<std::uint16_t>(product * 4));
  const int level = (wrapped + 16) >> 5;
  return static_cast<std::uint64_t>(clamp(level, -128, 127) + 128) * 0x0101010101010101U;
}

void transform(std::int16_t* blocks, const std::uint8_t* last, std::size_t count,
               const std::uint16_t* quantisers, std::uint8_t* out, std::size_t stride) {
  alignas(32) std::int16_t none[64] = {};
  for (std::size_t b = 0; b < count; b += 2) {
    const bool is_pair = b + 1 < count;
    std::int16_t* const first = blocks + 64 * b;
    std::int16_t* const second = is_pair ? first + 64 : none;
    if (last[b] == 0 && (!is_pair || last[b + 1] == 0)) {
      const __m128i samples =
          _mm_set_epi64x(static_cast<long long>(spread(second[0], quantisers[0])),
                         static_cast<long long>(spread(first[0], quantisers[0])));
      for (std::size_t row = 0; row < 8; ++row)
        _mm_storeu_si128(reinterpret_cast<__m128i*>(out + 8 * b + row * stride), samples);
      first[0] = second[0] = 0;
      continue;
    }
    transform_pair(first, second, quantisers, out + 8 * b, stride);
  }
}

// Interleave the bytes of numbers below 256.
__m256i interleave(__m256i even, __m256i odd) {
  return _mm256_or_si256(even, _mm256_slli_epi16(odd, 8));
}

void widen(const std::uint8_t* in, std::size_t count, std::uint8_t* out) {
  const __m256i three = _mm256_set1_epi16(3), one = _mm256_set1_epi16(1), two = _mm256_set1_epi16(2);
  for (std::size_t i = 0; i < count; i += 16) {
    const __m256i here = _mm256_mullo_epi16(load_wide(in + i), three);
    const __m256i before = _mm256_add_epi16(load_wide(in + i - 1), one);
    const __m256i behind = _mm256_add_epi16(load_wide(in + i + 1), two);
    store(out + 2 * i, interleave(_mm256_srli_epi16(_mm256_add_epi16(here, before), 2),
                                  _mm256_srli_epi16(_mm256_add_epi16(here, behind), 2)));
  }
}

void widen_rows(const std::uint8_t* nearer, const std::uint8_t* farther, std::size_t count,
                std::uint8_t* out) {
  const __m256i three = _mm256_set1_epi16(3), eight = _mm256_set1_epi16(8),
                seven = _mm256_set1_epi16(7);
  const auto mix = [&](std::ptrdiff_t i) {
    return _mm256_add_epi16(_mm256_mullo_epi16(load_wide(nearer + i), three), load_wide(farther + i));
  };
  for (std::size_t i = 0; i < count; i += 16) {
    const auto at = static_cast<std::ptrdiff_t>(i);
    const __m256i here = _mm256_mullo_epi16(mix(at), three);
    const __m256i before = _mm256_add_epi16(mix(at - 1), eight);
    const __m256i behind = _mm256_add_epi16(mix(at + 1), seven);
    store(out + 2 * i, interleave(_mm256_srli_epi16(_mm256_add_epi16(here, before), 4),
                                  _mm256_srli_epi16(_mm256_add_epi16(here, behind), 4)));
  }
}

// Sixteen bytes of each of three vectors, in turn: 48 bytes.
void store_triples(std::uint8_t* out, __m128i a, __m128i b, __m128i c) {
  const auto put = [&](int part, __m128i from_a, __m128i from_b, __m128i from_c) {
    const __m128i bytes = _mm_or_si128(_mm_or_si128(_mm_shuffle_epi8(a, from_a), _mm_shuffle_epi8(b, from_b)),
                                       _mm_shuffle_epi8(c, from_c));
    _mm_storeu_si128(reinterpret_cast<__m128i*>(out + 16 * part), bytes);
  };
  put(0, _mm_setr_epi8(0, -1, -1, 1, -1, -1, 2, -1, -1, 3, -1, -1, 4, -1, -1, 5),
      _mm_setr_epi8(-1, 0, -1, -1, 1, -1, -1, 2, -1, -1, 3, -1, -1, 4, -1, -1),
      _mm_setr_epi8(-1, -1, 0, -1, -1, 1, -1, -1, 2, -1, -1, 3, -1, -1, 4, -1));
  put(1, _mm_setr_epi8(-1, -1, 6, -1, -1, 7, -1, -1, 8, -1, -1, 9, -1, -1, 10, -1),
      _mm_setr_epi8(5, -1, -1, 6, -1, -1, 7, -1, -1, 8, -1, -1, 9, -1, -1, 10),
      _mm_setr_epi8(-1, 5, -1, -1, 6, -1, -1, 7, -1, -1, 8, -1, -1, 9, -1, -1));
  put(2, _mm_setr_epi8(-1, 11, -1, -1, 12, -1, -1, 13, -1, -1, 14, -1, -1, 15, -1, -1),
      _mm_setr_epi8(-1, -1, 11, -1, -1, 12, -1, -1, 13, -1, -1, 14, -1, -1, 15, -1),
      _mm_setr_epi8(10, -1, -1, 11, -1, -1, 12, -1, -1, 13, -1, -1, 14, -1, -1, 15));
}

// Sixteen pixels.
void convert_16(const std::uint8_t* y, const std::uint8_t* cb, const std::uint8_t* cr,
                std::uint8_t* rgb) {
  const __m256i centre = _mm256_set1_epi16(128), one = _mm256_set1_epi16(1);
  const __m256i luma = load_wide(y);
  const __m256i blue = _mm256_sub_epi16(load_wide(cb), centre);
  const __m256i red = _mm256_sub_epi16(load_wide(cr), centre);
  // (c * x + 2**15) >> 16 from the upper half of c * 2x.
  const auto multiply_rounded = [&](__m256i x, int constant) {
    const __m256i product = _mm256_mulhi_epi16(_mm256_add_epi16(x, x),
                                               _mm256_set1_epi16(static_cast<short>(constant)));
    return _mm256_srai_epi16(_mm256_add_epi16(product, one), 1);
  };
  const __m256i r = _mm256_add_epi16(_mm256_add_epi16(luma, red), multiply_rounded(red, 91881 - 65536));
  const __m256i b = _mm256_add_epi16(_mm256_add_epi16(luma, _mm256_add_epi16(blue, blue)),
                                     multiply_rounded(blue, 116130 - 131072));
  const __m256i constants = make_pair(-22554, 65536 - 46802), half = _mm256_set1_epi32(1 << 15);
  const auto green = [&](__m256i pairs) {
    return _mm256_srai_epi32(_mm256_add_epi32(_mm256_madd_epi16(pairs, constants), half), 16);
  };
  const __m256i mixed = _mm256_packs_epi32(green(_mm256_unpacklo_epi16(blue, red)),
                                           green(_mm256_unpackhi_epi16(blue, red)));
  const __m256i g = _mm256_add_epi16(_mm256_sub_epi16(luma, red), mixed);
  const auto narrow = [](__m256i v) {
    return _mm_packus_epi16(_mm256_castsi256_si128(v), _mm256_extracti128_si256(v, 1));
  };
  store_triples(rgb, narrow(r), narrow(g), narrow(b));
}

void convert(const std::uint8_t* y, const std::uint8_t* cb, const std::uint8_t* cr, std::size_t count,
             std::uint8_t* rgb) {
  std::size_t i = 0;
  for (; i + 16 <= count; i += 16) convert_16(y + i, cb + i, cr + i, rgb + 3 * i);
  if (i == count) return;
  std::uint8_t rest[48];
  convert_16(y + i, cb + i, cr + i, rest);
  std::memcpy(rgb + 3 * i, rest, 3 * (count - i));
}

void repeat(const std::uint8_t* grey, std::size_t count, std::uint8_t* rgb) {
  const auto repeat_16 = [](const std::uint8_t* from, std::uint8_t* to) {
    const __m128i levels = _mm_loadu_si128(reinterpret_cast<const __m128i*>(from));
    store_triples(to, levels, levels, levels);
  };
  std::size_t i = 0;
  for (; i + 16 <= count; i += 16) repeat_16(grey + i, rgb + 3 * i);
  if (i == count) return;
  std::uint8_t rest[48];
  repeat_16(grey + i, rest);
  std::memcpy(rgb + 3 * i, rest, 3 * (count - i));
}

}  // namespace

const KernelFunctions avx2_functions{
    unstuff, decode, skip, transform, transform_shrunken, widen, widen_rows, convert, repeat};

}  // namespace penstock::jpeg

#endif
