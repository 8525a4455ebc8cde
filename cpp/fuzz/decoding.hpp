// What the targets of the decoder share: decoders, regions, and what holds for every outcome.
#pragma once

#include <algorithm>
#include <vector>

#include "fuzz/written_picture.hpp"

namespace penstock {

inline jpeg::Decoder& find_decoder(jpeg::Kernel kernel) {
  static jpeg::Decoder decoders[] = {jpeg::Decoder(jpeg::Kernel::portable),
                                     jpeg::Decoder(jpeg::list_kernels().back())};
  return decoders[kernel == jpeg::Kernel::portable ? 0 : 1];
}

struct Result {
  jpeg::Outcome outcome;
  std::vector<std::uint8_t> pixels;

  bool operator==(const Result& other) const {
    return outcome.status == other.outcome.status && outcome.block_row == other.outcome.block_row &&
           outcome.error.offset == other.outcome.error.offset &&
           outcome.error.message == other.outcome.error.message &&
           (!outcome.is_ok() || pixels == other.pixels);
  }
};

inline Result decode(jpeg::Decoder& decoder, const jpeg::Header& header, jpeg::Stretch scan,
                     const jpeg::Region& region, std::span<const jpeg::RowPosition> positions = {},
                     std::vector<jpeg::RowPosition>* found = nullptr) {
  Result result;
  result.pixels.resize(std::size_t{region.width} * region.height * 3);
  result.outcome = decoder.decode(header, scan, region, {result.pixels.data(), region.width * 3ul},
                                  positions, found);
  const bool is_row = result.outcome.block_row < header.mcu_rows();
  require(result.outcome.is_ok() == result.outcome.error.message.empty());
  if (result.outcome.status == jpeg::Status::broken) require(is_row && positions.empty());
  else require(result.outcome.is_ok() || result.outcome.status == jpeg::Status::index_misfit);
  return result;
}

// Left, top, width and height by a byte each, of the picture with its sides divided.
inline jpeg::Region choose_region(const jpeg::Header& header, const std::uint8_t* data,
                                  unsigned shrink = 1) {
  const std::uint32_t width = (header.width + shrink - 1) / shrink;
  const std::uint32_t height = (header.height + shrink - 1) / shrink;
  jpeg::Region region;
  region.left = data[0] * width / 256;
  region.top = data[1] * height / 256;
  region.width = 1 + data[2] * (width - region.left - 1) / 255;
  region.height = 1 + data[3] * (height - region.top - 1) / 255;
  region.shrink = shrink;
  return region;
}

// The bytes that the rows of a region lie in.
struct RowBytes {
  std::uint64_t offset;
  ExactBytes bytes;
};

inline RowBytes find_row_bytes(const jpeg::Header& header, const jpeg::Region& region,
                               std::span<const jpeg::RowPosition> positions,
                               std::span<const std::byte> file) {
  const jpeg::RowRange rows = jpeg::find_rows(header, region);
  require(rows.begin < rows.end && rows.end <= header.mcu_rows());
  const std::size_t begin = positions[rows.begin].offset;
  const std::size_t end =
      rows.end < header.mcu_rows() ? positions[rows.end].offset + 1ul : file.size();
  require(begin < end && end <= file.size());
  return {begin, ExactBytes({reinterpret_cast<const char*>(file.data()) + begin, end - begin})};
}

}  // namespace penstock
