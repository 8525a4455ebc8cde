// CRC-32C (Castagnoli), by the processor's instruction if it has one, else by table.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>

namespace penstock {

// The checksum of `data`; or of preceding bytes and `data`, if `before` is the checksum of the
// former.
std::uint32_t crc32c(std::span<const std::byte> data, std::uint32_t before = 0);

// The checksum of two concatenated pieces, computed from their checksums.
std::uint32_t crc32c_concat(std::uint32_t first, std::uint32_t second, std::size_t second_bytes);

// What crc32c uses here.
std::string_view crc32c_kernel() noexcept;

// crc32c by table alone; tests compare it with crc32c.
std::uint32_t crc32c_portable(std::span<const std::byte> data, std::uint32_t before = 0);

}  // namespace penstock
