// AVX2 and F16C: this file alone is compiled for them.
#include "images/resample_kernel.hpp"

#if defined(__AVX2__) && defined(__F16C__)

#include <immintrin.h>

#include <algorithm>
#include <cstring>

namespace penstock::images {
namespace {

__m256i load(const void* at) { return _mm256_loadu_si256(static_cast<const __m256i*>(at)); }
__m128i load_half(const void* at) { return _mm_loadu_si128(static_cast<const __m128i*>(at)); }
void store(void* at, __m256i value) { _mm256_storeu_si256(static_cast<__m256i*>(at), value); }
void store_half(void* at, __m128i value) { _mm_storeu_si128(static_cast<__m128i*>(at), value); }

// Rows of 16 words to columns.
void transpose_words(__m256i (&row)[16]) {
  __m256i a[16], b[16];
  for (int i = 0; i < 8; ++i) {
    a[2 * i] = _mm256_unpacklo_epi16(row[2 * i], row[2 * i + 1]);
    a[2 * i + 1] = _mm256_unpackhi_epi16(row[2 * i], row[2 * i + 1]);
  }
  for (int i = 0; i < 4; ++i) {
    b[4 * i] = _mm256_unpacklo_epi32(a[4 * i], a[4 * i + 2]);
    b[4 * i + 1] = _mm256_unpackhi_epi32(a[4 * i], a[4 * i + 2]);
    b[4 * i + 2] = _mm256_unpacklo_epi32(a[4 * i + 1], a[4 * i + 3]);
    b[4 * i + 3] = _mm256_unpackhi_epi32(a[4 * i + 1], a[4 * i + 3]);
  }
  for (int half = 0; half < 2; ++half)
    for (int i = 0; i < 4; ++i) {
      a[8 * half + 2 * i] = _mm256_unpacklo_epi64(b[8 * half + i], b[8 * half + 4 + i]);
      a[8 * half + 2 * i + 1] = _mm256_unpackhi_epi64(b[8 * half + i], b[8 * half + 4 + i]);
    }
  for (int i = 0; i < 8; ++i) {
    row[i] = _mm256_permute2x128_si256(a[i], a[8 + i], 0x20);
    row[8 + i] = _mm256_permute2x128_si256(a[i], a[8 + i], 0x31);
  }
}

// Bytes of a row that are summed at a time: a cache line, so that each is read once a group of rows.
constexpr std::size_t strip_bytes = 64;

// Words of 32 bytes of `at`, as high bytes: those of bytes 0..7 and 16..23, then the others.
void widen(const std::uint8_t* at, __m256i& low, __m256i& high) {
  const __m256i bytes = load(at);
  low = _mm256_unpacklo_epi8(_mm256_setzero_si256(), bytes);
  high = _mm256_unpackhi_epi8(_mm256_setzero_si256(), bytes);
}

// `Parts` times 32 bytes of a row, weighed and summed over the taps of a target, as words.
template <std::size_t Parts>
void sum_bytes(const std::uint8_t* at, std::size_t stride, const std::uint16_t* weights,
               std::uint32_t count, __m256i* sums) {
  __m256i sum[2 * Parts];
  for (auto& one : sum) one = _mm256_setzero_si256();
  for (std::uint32_t k = 0; k < count; ++k, at += stride) {
    const __m256i weight = _mm256_set1_epi16(static_cast<short>(weights[k]));
    // The next strip of this row: rows are far apart, and no hardware sees that they come in turn.
    _mm_prefetch(reinterpret_cast<const char*>(at) + strip_bytes, _MM_HINT_T0);
    for (std::size_t part = 0; part < Parts; ++part) {
      __m256i low, high;
      widen(at + 32 * part, low, high);
      sum[2 * part] = _mm256_add_epi16(sum[2 * part], _mm256_mulhi_epu16(low, weight));
      sum[2 * part + 1] = _mm256_add_epi16(sum[2 * part + 1], _mm256_mulhi_epu16(high, weight));
    }
  }
  const __m256i bias = _mm256_set1_epi16(static_cast<short>(rounding_bias(count)));
  const __m256i top = _mm256_set1_epi16(-0x8000);
  for (std::size_t part = 0; part < 2 * Parts; ++part)
    sums[part * 16] = _mm256_xor_si256(_mm256_adds_epu16(sum[part], bias), top);
}

template <std::size_t Parts>
void sum_strip(const Pixels& source, const Taps& taps, std::size_t row, std::size_t rows,
               std::size_t byte, std::uint16_t* columns) {
  __m256i block[2 * Parts][16];
  for (std::size_t i = 0; i < 16; ++i) {
    const std::size_t target = row + std::min(i, rows - 1);
    sum_bytes<Parts>(source.first + taps.first[target] * source.stride + byte, source.stride,
                     &taps.weights[target * taps.width], taps.count[target], &block[0][i]);
  }
  for (std::size_t part = 0; part < 2 * Parts; ++part) {
    transpose_words(block[part]);
    std::uint16_t* out = columns + (byte + part / 2 * 32 + part % 2 * 8) * 16;
    for (std::size_t i = 0; i < 16; ++i) store(out + (i < 8 ? i : i + 8) * 16, block[part][i]);
  }
}

void sum_rows(const Pixels& source, const Taps& taps, std::size_t row, std::size_t rows,
              std::size_t row_bytes, std::uint16_t* columns) {
  if (taps.width > rounded_taps_max)
    return portable_kernel.sum_rows(source, taps, row, rows, row_bytes, columns);
  std::size_t byte = 0;
  for (; byte + strip_bytes <= row_bytes; byte += strip_bytes)
    sum_strip<strip_bytes / 32>(source, taps, row, rows, byte, columns);
  for (; byte + 32 <= row_bytes; byte += 32) sum_strip<1>(source, taps, row, rows, byte, columns);
  if (byte == row_bytes) return;
  const Pixels rest{source.first + byte, source.stride};
  portable_kernel.sum_rows(rest, taps, row, rows, row_bytes - byte, columns + byte * 16);
}

void sum_columns(const std::uint16_t* columns, const Taps& taps, bool flip,
                 std::size_t column_step, std::size_t channel_step, std::uint8_t* results) {
  if (taps.width > rounded_taps_max)
    return portable_kernel.sum_columns(columns, taps, flip, column_step, channel_step, results);
  const std::size_t targets = taps.first.size();
  const __m256i top = _mm256_set1_epi16(-0x8000), half = _mm256_set1_epi16(128);
  for (std::size_t target = 0; target < targets; ++target) {
    const std::uint16_t* weights = &taps.weights[target * taps.width];
    const std::uint32_t count = taps.count[target];
    const std::uint16_t* at = columns + taps.first[target] * 3 * 16;
    __m256i sum[3] = {_mm256_setzero_si256(), _mm256_setzero_si256(), _mm256_setzero_si256()};
    for (std::uint32_t k = 0; k < count; ++k, at += 48) {
      const __m256i weight = _mm256_set1_epi16(static_cast<short>(weights[k]));
      sum[0] = _mm256_add_epi16(sum[0], _mm256_mulhrs_epi16(load(at), weight));
      sum[1] = _mm256_add_epi16(sum[1], _mm256_mulhrs_epi16(load(at + 16), weight));
      sum[2] = _mm256_add_epi16(sum[2], _mm256_mulhrs_epi16(load(at + 32), weight));
    }
    std::uint8_t* out = results + (flip ? targets - 1 - target : target) * column_step * 16;
    for (std::size_t channel = 0; channel < 3; ++channel) {
      const __m256i level = _mm256_adds_epu16(_mm256_xor_si256(sum[channel], top), half);
      const __m256i rounded = _mm256_srli_epi16(level, 8);
      store_half(out + channel * channel_step * 16,
                 _mm_packus_epi16(_mm256_castsi256_si128(rounded),
                                  _mm256_extracti128_si256(rounded, 1)));
    }
  }
}

void transpose(const std::uint8_t* results, std::size_t count, std::uint8_t* lines,
               std::size_t stride) {
  for (std::size_t k = 0; k < count; k += 16) {
    __m128i a[16], b[16];
    for (std::size_t i = 0; i < 16; ++i) a[i] = load_half(results + (k + i) * 16);
    // Four rounds of merging row i with row i + 8 transpose the square.
    for (int round = 0; round < 4; ++round) {
      for (int i = 0; i < 8; ++i) {
        b[2 * i] = _mm_unpacklo_epi8(a[i], a[i + 8]);
        b[2 * i + 1] = _mm_unpackhi_epi8(a[i], a[i + 8]);
      }
      std::copy(b, b + 16, a);
    }
    for (std::size_t i = 0; i < 16; ++i) store_half(lines + i * stride + k, a[i]);
  }
}

__m128i round_to_bfloat(__m256 value) {
  const __m256i bits = _mm256_castps_si256(value);
  const __m256i odd = _mm256_and_si256(_mm256_srli_epi32(bits, 16), _mm256_set1_epi32(1));
  const __m256i sum = _mm256_add_epi32(_mm256_add_epi32(bits, _mm256_set1_epi32(0x7FFF)), odd);
  const __m256i high = _mm256_srli_epi32(sum, 16);
  return _mm_packus_epi32(_mm256_castsi256_si128(high), _mm256_extracti128_si256(high, 1));
}

template <Type type>
void convert_as(const std::uint8_t* levels, std::size_t count, const float* scales,
                const float* offsets, std::uint8_t* out) {
  std::size_t k = 0, part = 0;
  for (; k + 8 <= count; k += 8, part = part == 16 ? 0 : part + 8) {
    const __m128i packed = _mm_loadl_epi64(reinterpret_cast<const __m128i*>(levels + k));
    const __m256 level = _mm256_cvtepi32_ps(_mm256_cvtepu8_epi32(packed));
    const __m256 product = _mm256_mul_ps(level, _mm256_loadu_ps(scales + part));
    const __m256 value = _mm256_add_ps(product, _mm256_loadu_ps(offsets + part));
    std::uint8_t* to = out + k * size_of(type);
    if constexpr (type == Type::float32)
      store(to, _mm256_castps_si256(value));
    else if constexpr (type == Type::float16)
      store_half(to, _mm256_cvtps_ph(value, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC));
    else
      store_half(to, round_to_bfloat(value));
  }
  if (k < count)
    portable_kernel.convert(levels + k, count - k, scales + part, offsets + part, type,
                            out + k * size_of(type));
}

void convert(const std::uint8_t* levels, std::size_t count, const float* scales,
             const float* offsets, Type type, void* out) {
  const auto convert_chosen = type == Type::float32   ? convert_as<Type::float32>
                              : type == Type::float16 ? convert_as<Type::float16>
                                                      : convert_as<Type::bfloat16>;
  convert_chosen(levels, count, scales, offsets, static_cast<std::uint8_t*>(out));
}

}  // namespace

const ResampleKernel avx2_kernel{sum_rows, sum_columns, transpose, convert};

}  // namespace penstock::images

#endif
