// Requests as columns (penstock.extent.Requests), checked and turned into extents with addresses.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "engine/ticket.hpp"

namespace penstock {

struct RequestColumns {
  std::span<const std::uint32_t> file;
  std::span<const std::int64_t> offset;
  std::span<const std::int64_t> length;
  std::span<const std::uint32_t> buffer;
  std::span<const std::int64_t> target;
  std::span<const std::int64_t> runs;
};

// Run j is extents [runs[j], runs[j+1]).
struct PlacedRequests {
  std::vector<Extent> extents;
  std::vector<std::size_t> runs;
};

// Check requests and give them addresses. Throws std::invalid_argument, which names the first
// invalid column and row.
PlacedRequests place_requests(const RequestColumns& columns, std::span<const std::span<std::byte>> buffers,
             std::size_t file_count);

}  // namespace penstock
