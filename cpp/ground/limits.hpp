// Bounds of the engine. src/penstock/limits.py holds the same values; a test compares the two.
#pragma once

#include <cstddef>
#include <cstdint>

namespace penstock::limits {

inline constexpr std::uint64_t order_count_max = std::uint64_t{1} << 62;
inline constexpr std::uint64_t selection_count_max = std::uint64_t{1} << 40;
inline constexpr std::size_t header_bytes_max = 1u << 20;
inline constexpr std::uint64_t image_pixels_max = 89478485;
inline constexpr std::uint64_t film_frames_max = 1u << 22;
inline constexpr std::uint64_t film_header_bytes_max = 128u << 20;
inline constexpr std::uint32_t film_boxes_max = 1u << 18;
inline constexpr std::size_t run_bytes_max = 4u << 20;
inline constexpr std::size_t run_extents_max = 256;
inline constexpr std::size_t threads_max = 256;
inline constexpr std::size_t open_files_max = 4096;
inline constexpr unsigned ring_entries = 64;
inline constexpr std::size_t block_bytes_max = 1U << 30;  // of one call of the system

// A scattered read needs one iovec per extent and one per gap between extents; IOV_MAX is 1024.
static_assert(2 * run_extents_max <= 1024);

}  // namespace penstock::limits
