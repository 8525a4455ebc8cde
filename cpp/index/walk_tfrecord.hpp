// The records of a TFRecord file, and on request the features of the tf.Example in each.
//
// Record: u64 length, u32 masked CRC of the eight length bytes, data, u32 masked CRC of the data.
// There is no header, count or index: the walk must end exactly at the end of the file.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "ground/parse_error.hpp"
#include "index/buffered_reader.hpp"

namespace penstock::tfrecord {

enum class Check { none, length, all };  // checksums to compare; all: those of the data too

struct Options {
  Check check = Check::length;
  std::vector<std::string> features;  // names of features of tf.Example
  // Records that begin in [begin, stop) are walked, the first where one seems to begin: it does if
  // those before it end there.
  std::uint64_t begin = 0;
  std::optional<std::uint64_t> stop = {};  // none: the end of the file
};

// Kind of list that holds the values of a feature.
enum class Kind : std::uint8_t { absent = 0, bytes = 1, floats = 2, integers = 3 };

// One row a record and feature asked for: row = record * features + feature.
struct Features {
  std::vector<std::uint8_t> kind;
  std::vector<std::int64_t> values;  // their number
  std::vector<std::int64_t> offset;  // of the only value (bytes), or of all (packed floats); else -1
  std::vector<std::int64_t> length;
  std::vector<std::int64_t> value;  // of the first integer
};

struct Walk {
  std::vector<std::int64_t> offset, length;  // of the data of each record
  Features features;
  std::uint64_t begin = 0, end = 0;  // of the records
  std::optional<ParseError> parse_error;
  int read_error = 0;  // errno if reading failed
};

Walk walk(Source& source, const ReadPolicy& policy, const Options& options);

// The masked form of a checksum that files store, so that data that holds checksums has good
// checksums.
constexpr std::uint32_t mask_crc(std::uint32_t crc) {
  return ((crc >> 15) | (crc << 17)) + 0xa282ead8u;
}

}  // namespace penstock::tfrecord
