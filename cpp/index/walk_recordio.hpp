// The records of an MXNet RecordIO file, and on request the values of their image headers.
//
// Part: u32 magic, u32 (part << 29 | length), data, zeros up to a multiple of four. A record is one
// part (0), or a first (1), middle (2) and last (3) one: if the data holds the magic at a
// multiple of four, the writer cuts there and drops it. Parts before the last have no padding, so
// the next part's magic follows their data: a piece that is four bytes longer gives it back.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "ground/parse_error.hpp"
#include "index/buffered_reader.hpp"

namespace penstock::recordio {

struct Options {
  bool header = false;  // read the image header of each record
  bool strip = false;   // leave it out of the pieces; only with `header`
};

struct Walk {
  std::vector<std::int64_t> first;           // (records + 1) number of each record's first piece
  std::vector<std::int64_t> offset, length;  // of pieces
  std::vector<std::int64_t> at;              // of each record, the offset of its magic
  // With `header`, of each record: u32 flag, f32 label, u64 id, (u64 id2).
  std::vector<std::uint32_t> flag;
  std::vector<float> label;
  std::vector<std::uint64_t> id;
  std::optional<ParseError> parse_error;
  int read_error = 0;  // errno if reading failed
};

Walk walk(Source& source, const ReadPolicy& policy, const Options& options);

inline constexpr std::uint32_t magic = 0xced7230a;
inline constexpr std::uint64_t image_header_bytes = 24;

}  // namespace penstock::recordio
