// Integers of little-endian files.
#pragma once

#include <cstddef>
#include <cstdint>

namespace penstock {

inline std::uint32_t u32_at(const std::byte* p) {
  std::uint32_t v = 0;
  for (unsigned i = 0; i < 4; ++i) v |= std::to_integer<std::uint32_t>(p[i]) << (8 * i);
  return v;
}

inline std::uint64_t u64_at(const std::byte* p) {
  return u32_at(p) | (static_cast<std::uint64_t>(u32_at(p + 4)) << 32);
}

}  // namespace penstock
