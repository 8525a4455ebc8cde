// Requests as columns (penstock.extent.Requests), checked and turned into extents with addresses.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "ticket.hpp"

namespace penstock {

struct RequestColumns {
  std::span<const std::uint32_t> file;
  std::span<const std::int64_t> offset;
  std::span<const std::int64_t> length;
  std::span<const std::uint32_t> buffer;
  std::span<const std::int64_t> target;
  std::span<const std::int64_t> runs;
};

// Throws std::invalid_argument naming the first column and row that cannot be.
std::vector<Extent> place(const RequestColumns& columns,
                          std::span<const std::span<std::byte>> buffers, std::size_t file_count);
std::vector<std::size_t> check_runs(const RequestColumns& columns);

}  // namespace penstock
