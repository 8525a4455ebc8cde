// A file in memory, for tests and fuzz targets.
#pragma once

#include <algorithm>
#include <cstring>
#include <string>
#include <string_view>

#include "index/source.hpp"

namespace penstock {

struct MemorySource : Source {
  explicit MemorySource(std::string_view contents) : Source(contents.size()), bytes(contents) {}

  std::int64_t read(std::uint64_t offset, std::span<std::byte> out) override {
    ++reads;
    if (error != 0) return -error;
    if (offset >= bytes.size()) return 0;
    const std::string_view part = bytes.substr(offset, out.size());
    if (!part.empty()) std::memcpy(out.data(), part.data(), part.size());
    read_bytes += part.size();
    return static_cast<std::int64_t>(part.size());
  }

  std::string_view bytes;
  std::size_t reads = 0, read_bytes = 0;
  int error = 0;
};

}  // namespace penstock
