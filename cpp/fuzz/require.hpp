// The guarantee of every walker for any bytes: extents inside the file, or an error inside it.
#pragma once

#include <cstdlib>
#include <optional>
#include <vector>

#include "tests/support/memory_source.hpp"
#include "ground/parse_error.hpp"
#include "index/buffered_reader.hpp"

namespace penstock {

inline std::string_view contents(const std::uint8_t* data, std::size_t size) {
  return {reinterpret_cast<const char*>(data), size};
}

inline void require(bool condition) {
  if (!condition) std::abort();
}

// Small blocks, and hops from small distances on, so that short inputs take every way.
inline constexpr ReadPolicy small_policy{1024, 64, 700};

inline void require_inside(const std::vector<std::int64_t>& offset,
                           const std::vector<std::int64_t>& length, std::size_t size) {
  require(offset.size() == length.size());
  for (std::size_t i = 0; i < offset.size(); ++i) {
    require(offset[i] >= 0 && length[i] >= 0);
    require(static_cast<std::uint64_t>(offset[i]) + static_cast<std::uint64_t>(length[i]) <= size);
  }
}

inline void require_inside(const std::optional<ParseError>& error, std::size_t size) {
  require(!error || (error->offset <= size && !error->message.empty()));
}

}  // namespace penstock
