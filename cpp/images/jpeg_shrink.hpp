// Inverse transforms that give 4, 2 or 1 samples of a side of 8: means of the samples, as far as the
// lower coefficients tell them. The integer arithmetic is libjpeg's, which scales by these transforms.
//
// Compiled once for each instruction set, by the files of the kernels. Sums wrap in 32 bits, which
// damaged pictures alone notice.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>

namespace penstock::jpeg {
namespace {

using Lanes = std::uint32_t __attribute__((vector_size(32)));  // of eight columns

// Reduced transforms of eight numbers, of which the one at 4 has no part: by constants times 2**13.
template <unsigned side>
struct Reduced;

template <>
struct Reduced<4> {
  static constexpr unsigned extra_bits = 1;

  template <class Number>
  static void apply(const Number (&in)[8], Number (&out)[4]) {
    const Number first = in[0] << 14;
    const Number even = in[2] * 15137u - in[6] * 6270u;
    const Number inner = in[1] * 8697u - in[3] * 17799u + in[5] * 11893u - in[7] * 1730u;
    const Number outer = in[1] * 20995u + in[3] * 7373u - in[5] * 4926u - in[7] * 4176u;
    out[0] = first + even + outer;
    out[1] = first - even + inner;
    out[2] = first - even - inner;
    out[3] = first + even - outer;
  }
};

template <>
struct Reduced<2> {
  static constexpr unsigned extra_bits = 2;

  template <class Number>
  static void apply(const Number (&in)[8], Number (&out)[2]) {
    const Number first = in[0] << 15;
    const Number odd = in[1] * 29692u - in[3] * 10426u + in[5] * 6967u - in[7] * 5906u;
    out[0] = first + odd;
    out[1] = first - odd;
  }
};

std::uint8_t to_sample(std::int32_t level) {
  return static_cast<std::uint8_t>(std::clamp(level, -128, 127) + 128);
}

template <unsigned side>
void transform_reduced(const std::int16_t* block, const std::uint16_t* quantisers,
                       std::uint8_t* out, std::size_t stride) {
  using Signed = std::int32_t __attribute__((vector_size(32)));
  using Words = std::uint16_t __attribute__((vector_size(16)));
  using Shorts = std::int16_t __attribute__((vector_size(16)));
  constexpr unsigned down = 11 + Reduced<side>::extra_bits, right = 18 + Reduced<side>::extra_bits;
  Lanes in[8], sums[side];
  for (std::size_t i = 0; i < 8; ++i) {
    Words coefficients, steps;
    std::memcpy(&coefficients, block + 8 * i, sizeof coefficients);
    std::memcpy(&steps, quantisers + 8 * i, sizeof steps);
    in[i] = (Lanes)__builtin_convertvector((Shorts)(coefficients * steps), Signed);
  }
  Reduced<side>::apply(in, sums);
  for (std::size_t row = 0; row < side; ++row) {
    const Signed line = (Signed)(sums[row] + (1u << (down - 1))) >> down;
    std::uint32_t columns[8], levels[side];
    std::memcpy(columns, &line, sizeof columns);
    Reduced<side>::apply(columns, levels);
    for (std::size_t i = 0; i < side; ++i)
      out[row * stride + i] =
          to_sample(static_cast<std::int32_t>(levels[i] + (1u << (right - 1))) >> right);
  }
}

void transform_shrunken(unsigned side, std::int16_t* blocks, const std::uint8_t* last,
                        std::size_t count, const std::uint16_t* quantisers, std::uint8_t* out,
                        std::size_t stride) {
  for (std::size_t b = 0; b < count; ++b, blocks += 64, out += side) {
    if (side == 1 || last[b] == 0) {
      const auto first =
          static_cast<std::int16_t>(static_cast<std::uint32_t>(blocks[0]) * quantisers[0]);
      const std::uint8_t sample = to_sample((first + 4) >> 3);
      for (unsigned row = 0; row < side; ++row) std::memset(out + row * stride, sample, side);
    } else if (side == 4) {
      transform_reduced<4>(blocks, quantisers, out, stride);
    } else {
      transform_reduced<2>(blocks, quantisers, out, stride);
    }
    if (last[b] == 0)
      blocks[0] = 0;
    else
      std::memset(blocks, 0, 64 * sizeof *blocks);
  }
}

}  // namespace
}  // namespace penstock::jpeg
