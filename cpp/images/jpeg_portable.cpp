// Kernels in plain C++: what the others must equal.
#include <algorithm>
#include <cstring>

#include "images/jpeg_entropy.hpp"
#include "images/jpeg_kernel.hpp"
#include "images/jpeg_shrink.hpp"

namespace penstock::jpeg {
namespace {

Unstuffed unstuff(const std::uint8_t* in, std::size_t limit, std::size_t size, std::uint8_t* out) {
  Unstuffed done;
  while (done.read < limit) {
    const void* found = std::memchr(in + done.read, 0xFF, limit - done.read);
    const std::size_t plain =
        found == nullptr ? limit - done.read
                         : static_cast<std::size_t>(static_cast<const std::uint8_t*>(found) - in) - done.read;
    std::memcpy(out + done.written, in + done.read, plain);
    done.read += plain;
    done.written += plain;
    if (found == nullptr) break;
    if (done.read + 1 < size && in[done.read + 1] != 0) {
      done.is_end = true;
      return done;
    }
    out[done.written++] = 0xFF;
    done.read += 2;
  }
  done.read = std::min(done.read, size);
  done.is_end = done.read >= size;
  return done;
}

std::size_t decode(EntropyState& state, const McuLayout& layout, std::size_t count,
                   std::int16_t* blocks, std::uint8_t* last) {
  return decode_mcus<true>(state, layout, count, blocks, last);
}

std::size_t skip(EntropyState& state, const McuLayout& layout, std::size_t count) {
  return decode_mcus<false>(state, layout, count, nullptr, nullptr);
}

std::int16_t saturate(std::int32_t value) {
  return static_cast<std::int16_t>(std::clamp(value, -32768, 32767));
}

// What the first pass makes of columns that have a first coefficient alone, if all columns are such: it
// wraps, where it would saturate in others.
std::int16_t quadruple(std::int16_t value) {
  return static_cast<std::int16_t>(static_cast<std::uint16_t>(static_cast<std::uint32_t>(value) * 4));
}

// One pass over eight numbers, `step` apart. Sums of two inputs wrap in 16 bits, those of products in
// 32 bits, and results saturate, as vectors of such numbers do: damaged pictures alone get there.
template <int shift>
void transform_line(std::int16_t* line, std::size_t step) {
  const auto in = [&](std::size_t i) { return static_cast<std::uint32_t>(line[i * step]); };
  const auto add = [](std::uint32_t a, std::uint32_t b) {
    return static_cast<std::uint32_t>(static_cast<std::int16_t>(static_cast<std::uint16_t>(a + b)));
  };
  const auto c = [](int constant) { return static_cast<std::uint32_t>(constant); };
  const std::uint32_t even2 = in(2) * c(c0_541 + c0_765) + in(6) * c(c0_541);
  const std::uint32_t even6 = in(2) * c(c0_541) + in(6) * c(c0_541 - c1_847);
  const std::uint32_t sum = add(in(0), in(4)) << 13, difference = add(in(0), 0U - in(4)) << 13;
  const std::uint32_t e[] = {sum + even2, difference + even6, difference - even6, sum - even2};
  const std::uint32_t z3 = add(in(7), in(3)), z4 = add(in(5), in(1));
  const std::uint32_t y3 = z3 * c(c1_175 - c1_961) + z4 * c(c1_175);
  const std::uint32_t y4 = z3 * c(c1_175) + z4 * c(c1_175 - c0_390);
  const std::uint32_t o[] = {in(1) * c(c1_501 - c0_899) - in(7) * c(c0_899) + y4,
                             in(3) * c(c3_072 - c2_562) - in(5) * c(c2_562) + y3,
                             in(5) * c(c2_053 - c2_562) - in(3) * c(c2_562) + y4,
                             in(7) * c(c0_298 - c0_899) - in(1) * c(c0_899) + y3};
  constexpr std::uint32_t half = 1U << (shift - 1);
  for (std::size_t i = 0; i < 4; ++i) {
    line[i * step] = saturate(static_cast<std::int32_t>(e[i] + o[i] + half) >> shift);
    line[(7 - i) * step] = saturate(static_cast<std::int32_t>(e[i] - o[i] + half) >> shift);
  }
}

void transform(std::int16_t* blocks, const std::uint8_t* last, std::size_t count,
               const std::uint16_t* quantisers, std::uint8_t* out, std::size_t stride) {
  for (std::size_t b = 0; b < count; ++b) {
    std::int16_t* const block = blocks + 64 * b;
    // Without other coefficients both passes spread the first one.
    const std::size_t coefficients = last[b] == 0 ? 1 : 64;
    const bool is_first_row = std::all_of(block + 8, block + 64, [](int c) { return c == 0; });
    for (std::size_t i = 0; i < coefficients; ++i)
      block[i] = static_cast<std::int16_t>(static_cast<std::uint32_t>(block[i]) * quantisers[i]);
    if (last[b] == 0) {
      const std::int32_t level = (std::int32_t{quadruple(block[0])} + 16) >> 5;
      const int sample = std::clamp(level, -128, 127) + 128;
      for (std::size_t row = 0; row < 8; ++row) std::memset(out + 8 * b + row * stride, sample, 8);
      block[0] = 0;
      continue;
    }
    if (is_first_row)
      for (std::size_t i = 0; i < 64; ++i) block[i] = i < 8 ? quadruple(block[i]) : block[i - 8];
    else
      for (std::size_t i = 0; i < 8; ++i) transform_line<11>(block + i, 8);
    for (std::size_t i = 0; i < 8; ++i) transform_line<18>(block + 8 * i, 1);
    for (std::size_t i = 0; i < 64; ++i) {
      const int level = std::clamp<int>(block[i], -128, 127);
      out[8 * b + i / 8 * stride + i % 8] = static_cast<std::uint8_t>(level + 128);
      block[i] = 0;
    }
  }
}

void widen(const std::uint8_t* in, std::size_t count, std::uint8_t* out) {
  for (std::size_t i = 0; i < count; ++i) {
    const int here = 3 * in[i];
    out[2 * i] = static_cast<std::uint8_t>((here + in[static_cast<std::ptrdiff_t>(i) - 1] + 1) >> 2);
    out[2 * i + 1] = static_cast<std::uint8_t>((here + in[i + 1] + 2) >> 2);
  }
}

void widen_rows(const std::uint8_t* nearer, const std::uint8_t* farther, std::size_t count,
                std::uint8_t* out) {
  const auto mix = [&](std::ptrdiff_t i) { return 3 * nearer[i] + farther[i]; };
  int before = mix(-1), here = mix(0);
  for (std::size_t i = 0; i < count; ++i) {
    const int behind = mix(static_cast<std::ptrdiff_t>(i) + 1);
    out[2 * i] = static_cast<std::uint8_t>((3 * here + before + 8) >> 4);
    out[2 * i + 1] = static_cast<std::uint8_t>((3 * here + behind + 7) >> 4);
    before = here;
    here = behind;
  }
}

// The matrix of JFIF in 16 bits of fraction; green's halves are rounded as one.
void convert(const std::uint8_t* y, const std::uint8_t* cb, const std::uint8_t* cr, std::size_t count,
             std::uint8_t* rgb) {
  const auto clamp = [](int level) { return static_cast<std::uint8_t>(std::clamp(level, 0, 255)); };
  constexpr int half = 1 << 15;
  for (std::size_t i = 0; i < count; ++i) {
    const int blue = cb[i] - 128, red = cr[i] - 128;
    rgb[3 * i] = clamp(y[i] + ((91881 * red + half) >> 16));
    rgb[3 * i + 1] = clamp(y[i] + ((-22554 * blue - 46802 * red + half) >> 16));
    rgb[3 * i + 2] = clamp(y[i] + ((116130 * blue + half) >> 16));
  }
}

void repeat(const std::uint8_t* grey, std::size_t count, std::uint8_t* rgb) {
  for (std::size_t i = 0; i < count; ++i) rgb[3 * i] = rgb[3 * i + 1] = rgb[3 * i + 2] = grey[i];
}

}  // namespace

const KernelFunctions portable_functions{
    unstuff, decode, skip, transform, transform_shrunken, widen, widen_rows, convert, repeat};

}  // namespace penstock::jpeg
