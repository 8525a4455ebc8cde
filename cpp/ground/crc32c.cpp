#include "ground/crc32c.hpp"

#include <array>
#include <bit>
#include <cstring>

#include "ground/processor.hpp"

#if defined(__x86_64__)
#include <nmmintrin.h>

// The instruction belongs to SSE 4.2 for GCC, and is a feature of its own for clang.
#if defined(__clang__)
#define PENSTOCK_CRC32 __attribute__((target("sse4.2,crc32")))
#else
#define PENSTOCK_CRC32 __attribute__((target("sse4.2")))
#endif
#endif

namespace penstock {
namespace {

constexpr std::uint32_t polynomial = 0x82f63b78;  // reflected

using Table = std::array<std::array<std::uint32_t, 256>, 8>;

// tables[k][b]: effect of byte b on the checksum k bytes later.
constexpr Table make_tables() {
  Table t{};
  for (std::uint32_t b = 0; b < 256; ++b) {
    std::uint32_t c = b;
    for (int bit = 0; bit < 8; ++bit) c = (c >> 1) ^ ((c & 1u) != 0 ? polynomial : 0u);
    t[0][b] = c;
  }
  for (std::size_t k = 1; k < 8; ++k)
    for (std::size_t b = 0; b < 256; ++b)
      t[k][b] = (t[k - 1][b] >> 8) ^ t[0][t[k - 1][b] & 0xffu];
  return t;
}

constexpr Table tables = make_tables();

std::uint32_t sum_by_table(const std::byte* p, std::size_t n, std::uint32_t c) {
  if constexpr (std::endian::native == std::endian::little) {
    for (; n >= 8; n -= 8, p += 8) {
      std::uint64_t v;
      std::memcpy(&v, p, 8);
      v ^= c;
      c = 0;
      for (std::size_t k = 0; k < 8; ++k) c ^= tables[7 - k][(v >> (8 * k)) & 0xffu];
    }
  }
  for (; n > 0; --n, ++p) c = (c >> 8) ^ tables[0][(c ^ static_cast<std::uint32_t>(*p)) & 0xffu];
  return c;
}

#if defined(__x86_64__)

using Shift = std::array<std::array<std::uint32_t, 256>, 4>;

// Effect of `stripe_bytes` zeros on each byte of a checksum.
Shift make_shift(std::size_t stripe_bytes) {
  std::array<std::uint32_t, 32> bits{};
  for (std::size_t bit = 0; bit < 32; ++bit) {
    std::uint32_t c = 1u << bit;
    for (std::size_t i = 0; i < stripe_bytes; ++i) c = (c >> 8) ^ tables[0][c & 0xffu];
    bits[bit] = c;
  }
  Shift shift{};
  for (std::size_t k = 0; k < 4; ++k)
    for (std::size_t b = 0; b < 256; ++b)
      for (std::size_t bit = 0; bit < 8; ++bit)
        if ((b >> bit & 1u) != 0) shift[k][b] ^= bits[8 * k + bit];
  return shift;
}

std::uint32_t apply_shift(const Shift& shift, std::uint64_t c) {
  return shift[0][c & 0xffu] ^ shift[1][(c >> 8) & 0xffu] ^ shift[2][(c >> 16) & 0xffu] ^
         shift[3][c >> 24 & 0xffu];
}

std::uint64_t word(const std::byte* at) {
  std::uint64_t v;
  std::memcpy(&v, at, 8);
  return v;
}

// The instruction takes three cycles and one can start each cycle, so three stripes are summed side
// by side, and joined by moving a checksum over the zeros of a stripe, which is linear in its bits.
// Consumes the multiples of three stripes at the front of the bytes.
template <std::size_t stripe_bytes>
PENSTOCK_CRC32 std::uint64_t sum_by_stripes(const std::byte*& p, std::size_t& n, std::uint64_t c) {
  static const Shift shift = make_shift(stripe_bytes);
  for (; n >= 3 * stripe_bytes; n -= 3 * stripe_bytes, p += 3 * stripe_bytes) {
    std::uint64_t c1 = 0, c2 = 0;
    for (std::size_t i = 0; i < stripe_bytes; i += 8) {
      __builtin_prefetch(p + 12 * stripe_bytes + 3 * i);  // processors see no stream in three
      c = _mm_crc32_u64(c, word(p + i));
      c1 = _mm_crc32_u64(c1, word(p + stripe_bytes + i));
      c2 = _mm_crc32_u64(c2, word(p + 2 * stripe_bytes + i));
    }
    c = apply_shift(shift, c) ^ c1;
    c = apply_shift(shift, c) ^ c2;
  }
  return c;
}

PENSTOCK_CRC32 std::uint32_t sum_by_instruction(const std::byte* p, std::size_t n,
                                                std::uint32_t start) {
  std::uint64_t c = start;
  // Joining costs about as much as 100 bytes; what long stripes leave over is worth shorter ones.
  if (n >= 3 * 1024) c = sum_by_stripes<1024>(p, n, c);
  if (n >= 3 * 128) c = sum_by_stripes<128>(p, n, c);
  for (; n >= 8; n -= 8, p += 8) c = _mm_crc32_u64(c, word(p));
  auto last = static_cast<std::uint32_t>(c);
  for (; n > 0; --n, ++p) last = _mm_crc32_u8(last, static_cast<unsigned char>(*p));
  return last;
}

#endif

}  // namespace

std::uint32_t crc32c(std::span<const std::byte> data, std::uint32_t before) {
#if defined(__x86_64__)
  if (processor().sse42) return ~sum_by_instruction(data.data(), data.size(), ~before);
#endif
  return crc32c_portable(data, before);
}

std::string_view crc32c_kernel() noexcept { return processor().sse42 ? "sse4.2" : "portable"; }

std::uint32_t crc32c_concat(std::uint32_t first, std::uint32_t second, std::size_t second_bytes) {
  // Zeros behind the first are a multiplication by x^(8 * bytes); bit 31 is x^0, as it is
  // reflected.
  const auto times = [](std::uint32_t a, std::uint32_t b) {
    std::uint32_t product = 0;
    for (; a != 0; a <<= 1) {
      if ((a & 0x80000000u) != 0) product ^= b;
      b = (b >> 1) ^ ((b & 1u) != 0 ? polynomial : 0u);
    }
    return product;
  };
  std::uint32_t power = 0x00800000u;  // x^8: of one byte
  for (; second_bytes != 0; second_bytes >>= 1, power = times(power, power)) {
    if ((second_bytes & 1u) != 0) first = times(first, power);
  }
  return first ^ second;
}

std::uint32_t crc32c_portable(std::span<const std::byte> data, std::uint32_t before) {
  return ~sum_by_table(data.data(), data.size(), ~before);
}

}  // namespace penstock
