// CRC-32C (Castagnoli), by the processor's instruction where it has one, else by table.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

namespace penstock {

// The checksum of `data`, or of what came before and `data`, given the checksum of the former.
std::uint32_t crc32c(std::span<const std::byte> data, std::uint32_t before = 0);

// The checksum of two pieces one after the other, from those of each.
std::uint32_t crc32c_joined(std::uint32_t first, std::uint32_t second, std::size_t second_bytes);

// crc32c by table alone: the twin that the tests compare.
std::uint32_t crc32c_portable(std::span<const std::byte> data, std::uint32_t before = 0);

}  // namespace penstock
