// Integers of big-endian files.
#pragma once

#include <cstddef>
#include <cstdint>

namespace penstock {

inline std::uint32_t big_u32_at(const std::byte* p) {
  std::uint32_t v = 0;
  for (unsigned i = 0; i < 4; ++i) v = v << 8 | std::to_integer<std::uint32_t>(p[i]);
  return v;
}

inline std::uint64_t big_u64_at(const std::byte* p) {
  return static_cast<std::uint64_t>(big_u32_at(p)) << 32 | big_u32_at(p + 4);
}

}  // namespace penstock
