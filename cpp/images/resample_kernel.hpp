// The steps of a resize over one instruction set; all sets give the same bits.
#pragma once

#include "images/resample.hpp"

namespace penstock::images {

inline constexpr std::size_t group_rows = 16;
inline constexpr std::size_t pattern = 24;  // values after which channels and vectors begin alike

struct ResampleKernel {
  // Vertical pass of up to 16 targets from `row` on: columns[byte * 16 + i] becomes the level of
  // target row + i in 1/256, less 32,768. `rows` beyond the last target repeat it.
  void (*sum_rows)(const Pixels& source, const Taps& taps, std::size_t row, std::size_t rows,
                   std::size_t row_bytes, std::uint16_t* columns);
  // Horizontal pass: results[(target * step.column + channel * step.channel) * 16 + i].
  void (*sum_columns)(const std::uint16_t* columns, const Taps& taps, bool flip,
                      std::size_t column_step, std::size_t channel_step, std::uint8_t* results);
  // lines[i * stride + k] = results[k * 16 + i], for k below `count`, a multiple of 16.
  void (*transpose)(const std::uint8_t* results, std::size_t count, std::uint8_t* lines,
                    std::size_t stride);
  // Values of `count` levels; level k has scales[k % 24] and offsets[k % 24].
  void (*convert)(const std::uint8_t* levels, std::size_t count, const float* scales,
                  const float* offsets, Type type, void* out);
};

extern const ResampleKernel portable_kernel;
extern const ResampleKernel avx2_kernel;

std::uint16_t to_half(float value) noexcept;
std::uint16_t to_bfloat(float value) noexcept;

// Taps up to which products may be rounded one by one: each loses up to half of 1/256 level, so that
// more of them would add up to levels, and to sums beyond 16 bits. Wider taps are summed exactly.
inline constexpr std::size_t rounded_taps_max = 64;

// Bias that makes up for the rounding down of `count` products.
constexpr std::uint16_t rounding_bias(std::uint32_t count) noexcept {
  return static_cast<std::uint16_t>(count / 2);
}

}  // namespace penstock::images
