// The bytes of one file that a walker parses.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

namespace penstock {

struct Source {
  explicit Source(std::uint64_t bytes) : size(bytes) {}
  virtual ~Source() = default;

  // Bytes read, fewer only at the end of the file; or -errno.
  virtual std::int64_t read(std::uint64_t offset, std::span<std::byte> out) = 0;

  std::uint64_t size;
};

}  // namespace penstock
